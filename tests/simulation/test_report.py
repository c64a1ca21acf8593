"""The report: one file, nothing from outside, every number the run's own."""

import dataclasses
import re
from html.parser import HTMLParser

import matplotlib.figure
import numpy as np
import pytest

from fljax import schemes
from fljax.accounting import gaussian
from fljax.accounting.words import describe
from fljax.simulation import budget, run
from fljax.simulation.config import Config, DataConfig, ModelConfig, RunConfig
from fljax.simulation.observers import progress
from fljax.simulation.report import figures, picture, run_page

FILES = {"metrics.jsonl", "privacy.json", "config.toml", "model.json"}


class Elements(HTMLParser):
    """All elements with their attributes, and whether tags are balanced."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in {"meta", "br", "img"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, compiled_once):
    config = Config(
        scheme_config=schemes.get("dp_fedavg").Config(sampling_prob=0.5),
        data=DataConfig(num_clients=30),
        model=ModelConfig(model="softmax"),
        run=RunConfig(num_rounds=4, seed=0, eval_every=2),
    )
    return run.start(config, tmp_path_factory.mktemp("report"), progress.Lines())


@pytest.fixture(scope="module")
def page(outcome):
    return run_page.render(outcome)


def test_a_figure_that_is_drawn_once_is_what_matplotlib_saves_after_two_drawings(monkeypatch):
    """Its own way draws a figure with a layout twice, and only the second drawing counts."""
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", "the same names of parts")

    def figure():
        made = matplotlib.figure.Figure(figsize=(5, 2), layout="constrained")
        left, right = made.subplots(1, 2)
        left.plot([1, 2, 30], [0.5, 4, 7], label="a line")
        left.set(xlabel="round", ylabel="a long name")
        left.legend()
        right.imshow(np.arange(12.0).reshape(3, 4))
        return made

    once = picture.svg(figure())
    monkeypatch.setattr(picture, "_lay_out", lambda figure: None)
    assert once == picture.svg(figure())


def test_every_curve_has_its_numbers_and_a_rule_is_no_curve():
    ends = [{"round": 1, "test_accuracy": 0.125}, {"round": 5, "test_accuracy": 0.5}]
    found = figures.accuracy(ends)
    assert "<summary>Numbers</summary>" in found and "<td>0.125</td>" in found
    spent = [{"round": 1, "epsilon": 1.5}, {"round": 2, "epsilon": 1.75}]
    found = figures.epsilon(spent, 4.0)
    assert "<td>1.75</td>" in found and "budget" not in re.sub(r"(?s)<svg.*?</svg>", "", found)


@pytest.mark.slow(reason="whole runs")
def test_a_report_says_what_the_event_of_a_round_is(outcome):
    said = describe(outcome.plan.event.mechanism)
    assert f"Here event(config) is {said}." in run_page.render(outcome)


def test_nothing_in_it_comes_from_outside(page):
    elements = Elements(page)
    assert not elements.open
    for tag, attributes in elements.found:
        assert tag not in {"script", "link", "iframe", "object"}
        for name in ("src", "href", "xlink:href"):
            found = attributes.get(name, "#")
            beside = tag == "a" and found in FILES  # of the run's own folder, where it is shown
            assert beside or found.startswith(("#", "data:"))
    styles = " ".join(a.get("style", "") for _, a in elements.found)
    assert not re.search(r"url\((?!#)", styles) and "@import" not in page


def test_a_claim_says_float32_of_noise_that_is_not_exact(outcome):
    for noise, wanted in (("float32", "float32"), ("exact", "whole numbers")):
        made = dataclasses.replace(outcome.plan.scheme_config, noise=noise)
        said = budget.statement(outcome.plan._replace(scheme_config=made), 4)["not_covered"]
        (line,) = (line for line in said if "drawn and added in" in line)
        assert wanted in line


def test_it_shows_the_runs_own_numbers_and_the_whole_claim(outcome, page):
    text = page
    last = outcome.records[-1]
    words = budget.statement(outcome.plan, 4)
    assert text.count("<svg") == 6
    assert (
        f"{last['test_accuracy']:.1%}" in text and f"{last['baseline_test_accuracy']:.1%}" in text
    )
    assert budget.shown_epsilon(last["epsilon"]) in text
    assert all(line.replace("'", "&#x27;") in text for line in words["not_covered"])
    for word in (
        "ADD_OR_REMOVE_ONE",
        "PLD",
        "one client more or less",
        "client",
        "l2_clip_norm",
        "(calibrated)",
    ):
        assert word in text


def test_the_same_run_gives_the_same_report(outcome, page):
    assert run_page.render(outcome) == page


def test_text_is_escaped(outcome):
    data = dataclasses.replace(outcome.config.data)
    object.__setattr__(data, "dataset", "<script>alert('x')</script>")
    evil = outcome._replace(config=dataclasses.replace(outcome.config, data=data))
    assert "<script" not in run_page.render(evil)


def test_a_non_private_model_is_spoken_of_only_where_one_was_trained(outcome):
    for baseline in (True, False):
        said = budget.statement(outcome.plan._replace(baseline=baseline), 4)["not_covered"]
        assert any("non-private model" in line for line in said) is baseline
    assert outcome.plan.baseline and "FedAvg on the same cohorts" in run_page._curves(outcome)


@pytest.mark.slow(reason="draws one more page", ids=["squared-squared error"])
@pytest.mark.parametrize(
    ("kind", "axis"), [("cross_entropy", "cross-entropy, nats"), ("squared", "squared error")]
)
def test_the_axis_of_the_loss_names_the_loss(outcome, kind, axis):
    model = dataclasses.replace(outcome.config.model, loss=kind)
    text = run_page.render(
        outcome._replace(config=dataclasses.replace(outcome.config, model=model))
    )
    assert axis in text and ("cross-entropy" in text) is (kind == "cross_entropy")


def test_a_claim_in_nats_is_not_called_an_infinite_epsilon(outcome, capsys):
    plan = outcome.plan._replace(
        epsilons=(0.0, *[float("inf")] * 4), target_epsilon=None, in_nats=True
    )
    assert "in nats" in budget.statement(plan, 4)["guarantee"]
    watch = progress.Lines()
    watch.start(plan, 0)
    watch.round({"round": 4, "test_loss": 1.0, "test_accuracy": 0.5, "epsilon": "inf"})
    shown = capsys.readouterr().out + re.sub(
        r"<[^>]+>", "|", run_page._cards(outcome._replace(plan=plan))
    )
    assert (
        "nats" in shown and "inf" not in shown.replace("information", "") and "delta" not in shown
    )


def test_without_a_baseline_and_without_noise_it_says_so(outcome):
    said = {"epsilon": "inf", "lost": True, "test_accuracy": 0.11}
    records = [{k: v for k, v in r.items() if "baseline" not in k} | said for r in outcome.records]
    plan = outcome.plan._replace(
        epsilons=(0.0, *[float("inf")] * 4), target_epsilon=None, baseline=False
    )
    text = run_page.render(outcome._replace(records=records, plan=plan, baseline_params=None))
    assert "added no noise to what was sent" in text
    assert "4 of 4 rounds were lost" in text and "11.0% is near chance" in text
    assert "non-private" not in text  # nor in the legend of a picture


def test_a_scheme_that_hides_uploads_shows_who_saw_what(outcome):
    assert not run_page._views(outcome)
    lightdp = schemes.get("lightdp")
    hides = lightdp.Config(num_parties=30, noise_multiplier=3.0, late_prob=0.5)
    config = dataclasses.replace(outcome.config, scheme="lightdp", scheme_config=hides)
    plan = outcome.plan._replace(scheme_config=hides, event=lightdp.event(hides))
    text = run_page._views(outcome._replace(config=config, plan=plan))
    assert not Elements(text).open and text.count("<svg") == 1
    shown = re.sub(r"<[^>]+>", "|", text)
    for words in (
        "the server and any 5 clients",
        "the server alone",
        "(outside the claim)",
        "late: seen, not averaged",
    ):
        assert words in shown
    found = lightdp.views(hides, outcome.task.round_key, 4)
    most = budget.shown_epsilon(
        float(gaussian.mu_to_epsilon(found.adversaries[0].mu.max(), plan.delta))
    )
    assert f"to {most}" in shown


def test_epsilon_is_never_printed_smaller_than_it_is():
    assert budget.shown_epsilon(3.0001) == "3.001" and budget.shown_epsilon(3.0) == "3.000"
    assert budget.shown_epsilon(float("inf")) == "inf"


def test_no_column_is_wider_than_a_phone():
    """A grid whose columns have a least width above 390 px would move the page sideways."""
    widths = [int(width) for width in re.findall(r"minmax\((\d+)px", run_page.CSS)]
    assert widths and max(widths) < 390 - 2 * 24
    assert "section { overflow-x: auto; }" in run_page.CSS  # charts and tables move on their own


def test_what_a_round_promises_and_idealises_is_in_the_page_itself():
    def make():
        """Builds it.

        Guarantee: one round is `private`.
        Idealisation: reals.

        Args: none.
        """

    assert run_page._promise(make) == "one round is private. Idealisation: reals."
    assert run_page._promise(lambda: None) == ""
    for name in schemes.NAMES:
        assert run_page._promise(schemes.get(name).make)
