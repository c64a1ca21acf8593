"""What a plan says after each round."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
from rich.console import Console

from fljax import accounting, schemes
from fljax.accounting import events
from fljax.cli import main
from fljax.data.facts import Facts
from fljax.simulation import as_printed, budget
from fljax.simulation import config as config_lib
from fljax.simulation.observers import progress

ROUND = accounting.PrivacyEvent(
    mechanism=events.Gaussian(10.0), privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
)


def test_pld_is_asked_a_few_times_and_never_reports_less_than_was_spent(monkeypatch):
    asked = []

    def epsilon(event, *, delta, method):
        asked.append(event.mechanism.count)
        return math.sqrt(event.mechanism.count)

    monkeypatch.setattr(accounting, "epsilon", epsilon)
    found = list(budget._epsilons(None, ROUND, 1000, 1e-5, "pld"))
    assert len(asked) == len(set(asked)) == budget.MOST_COMPOSITIONS
    assert len(found) == 1000 and found[-1] == math.sqrt(1000)
    assert all(e >= math.sqrt(t) for t, e in enumerate(found, start=1))
    assert found == sorted(found)


def test_other_accountants_and_short_runs_report_every_round():
    for method, rounds in (("rdp", 40), ("pld", 20)):
        found = list(budget._epsilons(None, ROUND, rounds, 1e-5, method))
        expected = [
            accounting.epsilon(ROUND.repeat(t), delta=1e-5, method=method)
            for t in range(1, rounds + 1)
        ]
        assert found == expected


def test_a_million_rounds_are_counted_in_time_that_grows_with_what_is_asked(monkeypatch):
    asked = []

    def epsilon(event, *, delta, method):
        asked.append(event.mechanism.count)
        return math.sqrt(event.mechanism.count)

    monkeypatch.setattr(accounting, "epsilon", epsilon)
    for method, most in (("rdp", budget.MOST_CONVERSIONS), ("pld", budget.MOST_COMPOSITIONS)):
        asked.clear()
        found = np.asarray(list(budget._epsilons(None, ROUND, config_lib.MOST_STEPS, 1e-5, method)))
        assert len(asked) == most and found.shape == (config_lib.MOST_STEPS,)
        true = np.sqrt(np.arange(1, config_lib.MOST_STEPS + 1))
        assert np.all(found >= true) and np.all(np.diff(found) >= 0) and found[-1] == true[-1]


HUGE = 99999999999999999999999


@pytest.mark.parametrize(
    ("scheme", "section", "name", "most"),
    [
        ("dp_fedavg", "run", "num_rounds", config_lib.MOST_STEPS),
        ("dp_fedavg", "run", "eval_every", 2**31 - 1),
        ("dp_fedavg", "run", "checkpoint_every", 2**31 - 1),
        ("dp_fedavg", "run", "groups", 2**16),
        ("dp_fedavg", "data", "num_clients", 2**31 - 1),
        ("dp_fedavg", "scheme", "local_batch_size", 2**20),
        ("dp_fedavg", "scheme", "num_local_epochs", config_lib.MOST_STEPS),
        ("higradavg", "run", "microbatch_size", 2**20),
        ("higradavg", "scheme", "num_local_steps", config_lib.MOST_STEPS),
        ("higradavg", "scheme", "num_parties", config_lib.MOST_STEPS),
        ("lightdp", "scheme", "num_parties", config_lib.MOST_STEPS),
        ("bidirectional", "scheme", "cohort_size", 2**31 - 1),
        ("gsgd_dp", "scheme", "records_per_client", 2**31 - 1),
    ],
)
def test_a_count_that_cannot_run_is_refused_by_name(scheme, section, name, most):
    for value in (HUGE, most + 1):
        text = (
            f"[scheme]\nscheme = {scheme!r}\n"
            + (f"[{section}]\n" if section != "scheme" else "")
            + f"{name} = {value}"
        )
        with pytest.raises(ValueError, match=f"^Expected {name} <= {most}, got {name}={value}.$"):
            config_lib.from_sections(config_lib.from_toml(text))


def test_counts_set_in_python_are_refused_too():
    with pytest.raises(ValueError, match="Expected num_rounds <= 1000000, got num_rounds=1000001"):
        config_lib.RunConfig(num_rounds=1_000_001)
    huge = schemes.get("dp_fedavg").Config(local_batch_size=HUGE)
    with pytest.raises(ValueError, match="Expected local_batch_size <= "):
        config_lib.Config(scheme_config=huge)


@pytest.mark.parametrize(
    "uses",
    [
        lambda config, rounds: rounds // 2,
        lambda config, rounds: 1,
        lambda config, rounds: 3 - rounds,
    ],
    ids=["none after a round", "some before", "falling"],
)
def test_uses_that_would_claim_too_little_are_refused(uses):
    scheme = dataclasses.replace(schemes.get("dp_fedavg"), uses=uses)
    config = config_lib.Config(scheme_config=scheme.Config(noise_multiplier=1.0))
    with pytest.raises(ValueError, match="Expected uses of scheme='dp_fedavg'"):
        budget.plan(config, scheme, Facts(10, 100, 20))


def test_a_grid_of_orders_that_ends_too_early_is_one_note_and_no_warning():
    # So little noise that the first order is the best one.
    config = config_lib.Config(
        scheme_config=schemes.get("dp_fedavg").Config(noise_multiplier=1e-3, sampling_prob=1.0),
        privacy=config_lib.PrivacyConfig(target_delta=1e-5, target_epsilon=None, accountant="rdp"),
        run=config_lib.RunConfig(num_rounds=3),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = budget.plan(config, schemes.get("dp_fedavg"), Facts(10, 100, 20))
        budget.certified_claim(plan, 3)
    (note,) = plan.notes
    assert note.startswith("The best Renyi order") and note.endswith(".") and "\n" not in note


def test_of_warnings_of_a_kind_the_last_one_is_noted_and_others_are_passed_on(monkeypatch):
    def epsilon(event, *, delta, method):
        warnings.warn(f"order after {event.mechanism.count}", accounting.OrderWarning, stacklevel=1)
        warnings.warn(
            f"wide after {event.mechanism.count}", accounting.pld.WideIntervalWarning, stacklevel=1
        )
        warnings.warn("something else", UserWarning, stacklevel=1)
        return 1.0

    monkeypatch.setattr(accounting, "epsilon", epsilon)
    config = config_lib.Config(
        scheme_config=schemes.get("dp_fedavg").Config(noise_multiplier=1.0),
        run=config_lib.RunConfig(num_rounds=2),
    )
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        plan = budget.plan(config, schemes.get("dp_fedavg"), Facts(10, 100, 10))
    assert plan.notes == ("order after 2", "wide after 2")
    assert {str(warning.message) for warning in heard} == {"something else"}


def plan_of(num_clients, **privacy):
    config = config_lib.from_sections({"run": {"num_rounds": 1}, "privacy": privacy})
    return budget.plan(config, schemes.get("dp_fedavg"), Facts(num_clients, 10 * num_clients, 10))


@pytest.mark.parametrize(
    ("num_clients", "delta", "percent"),
    # 1 - (1 - delta) ** n, rounded up; delta of the first two is n ** -1.1.
    [
        (13, None, "55 %"),
        (40, None, "51 %"),
        (100, 1e-2, "64 %"),
        (1000, 1.1e-4, "11 %"),
        (100, 0.1, "more than 99 %"),
    ],
)
def test_a_delta_that_is_large_for_its_units_says_so_in_terminal_and_report(
    num_clients, delta, percent, capsys
):
    plan = plan_of(num_clients, target_delta=delta)
    warning = budget.delta_warning(plan)
    assert percent in warning and f"{num_clients} clients" in warning and "\n" not in warning
    assert any(percent in line for line in budget.statement(plan, 1)["not_covered"])
    progress.Lines().start(plan, 0)
    assert f"warning: {warning}" in capsys.readouterr().out
    console = Console(force_terminal=True, width=10_000, record=True)
    bar = progress.Terminal(console)
    bar.start(plan, 0)
    bar.stop()
    assert f"warning: {warning}" in console.export_text()


def test_a_small_delta_and_a_run_without_a_claim_need_no_warning():
    assert budget.delta_warning(plan_of(1000, target_delta=1e-4)) is None
    assert not any(
        "large for" in line
        for line in budget.statement(plan_of(1000, target_delta=1e-4), 1)["not_covered"]
    )
    config = config_lib.from_sections({"scheme": {"scheme": "fedavg"}, "run": {"num_rounds": 1}})
    assert (
        budget.delta_warning(budget.plan(config, schemes.get("fedavg"), Facts(16, 100, 10))) is None
    )


@pytest.mark.parametrize("name", schemes.NAMES)
def test_schemes_meant_for_few_clients_name_a_delta_that_is_small_for_their_own_data(name):
    scheme, config = schemes.get(name), config_lib.from_sections({"scheme": {"scheme": name}})
    if scheme.promise != "epsilon" or config.data.num_clients == 500:
        return
    num_examples = {"digits": 1438, "writers": 12_300}[config.data.dataset]
    facts = Facts(config.data.num_clients, num_examples, 1000, 400, 1, 1)
    fitted = scheme.fitted(dataclasses.replace(config.scheme_config, noise_multiplier=9.0), facts)
    assert config.privacy.target_delta * facts.num_units(scheme.event(fitted).privacy_unit) <= 0.1


@pytest.mark.parametrize("name", schemes.NAMES)
def test_schemes_meant_for_few_clients_ask_for_a_delta(name):
    """50 ** -1.1 gives one of 50 clients away whole with a chance of a half."""
    own = schemes.get(name).start.get("privacy", {}).get("target_delta")
    config = config_lib.from_sections(
        {"scheme": {"scheme": name}, "privacy": {"target_delta": "none"}}
    )
    assert config.privacy.target_delta is None
    if own is None:
        assert config_lib.delta_of(config, 50) == config_lib.default_delta(50)
    else:
        with pytest.raises(
            ValueError,
            match=rf"target_delta to be a number for scheme='{name}'.*got target_delta=none",
        ):
            config_lib.delta_of(config, 50)


def test_a_run_without_the_delta_that_its_scheme_asks_for_makes_no_folder(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["simulate", "--scheme", "higradavg", "--num-clients", "8", "--target-delta", "none"])
        == 2
    )
    assert "meant for few units (its own is 0.0002)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_paper_that_is_trained_as_printed_asks_too():
    sections = {
        "scheme": {"scheme": "higradavg", "formula": "paper"},
        "privacy": {"target_delta": "none"},
    }
    config = config_lib.from_sections(sections)
    with pytest.raises(ValueError, match="got target_delta=none"):
        as_printed.prepared(config, schemes.get("higradavg"), Facts(16, 1000, 100, 400, 1, 1))
