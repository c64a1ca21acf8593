"""Canaries of a run: units of their own, there by coins, found again in the model, and no more
often than the claim allows.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import schemes
from fljax.attacks import one_run
from fljax.data import canaries, subjects
from fljax.simulation import config as config_lib
from fljax.simulation import planted, run, verify
from fljax.simulation.report import run_page
from tests.simulation.test_seeds import Watch


def config(scheme, /, **settings):
    sections = {"scheme": {"scheme": scheme}, "model": {"model": "softmax"}}
    values = {"run": {"seed": 3, "num_rounds": 1, "canaries": 30}, "data": {"num_clients": 7}}
    for section, more in settings.items():
        values.setdefault(section, {}).update(more)
    for section, more in values.items():
        sections[section] = sections.get(section, {}) | more
    return config_lib.from_sections(sections)


def job(scheme, /, **settings):
    return run.prepare(config(scheme, **settings))


@pytest.mark.parametrize(
    ("scheme", "unit", "settings"),
    [
        ("dp_fedavg", "client", {}),
        ("dp_fedsgd", "example", {}),
        ("higradavg", "subject", {"data": {"dataset": "writers", "num_clients": 7}}),
    ],
)
def test_a_canary_is_one_more_unit_where_its_coin_says_so(scheme, unit, settings):
    with_them = job(scheme, **settings)
    without = job(scheme, **settings, **{"run": {"canaries": 0}})
    told = with_them.task.canaries
    included = told.included
    assert included.size == 30 and 5 < included.sum() < 25
    more = with_them.facts.num_units(unit) - without.facts.num_units(unit)
    # A client that is not there is a client without examples: how many there are is public.
    assert more == (30 if unit == "client" else included.sum())
    assert with_them.facts.num_examples == without.facts.num_examples + included.sum()
    assert with_them.plan.event.privacy_unit == unit
    # The ordinary ones are where they were, and the config says how many clients those are.
    assert with_them.config.data.num_clients == without.config.data.num_clients
    rows, before = (np.asarray(one.task.client_data.indices) for one in (with_them, without))
    first = len(without.task.dataset.train["y"])
    for client, mine in enumerate(before):
        kept = rows[client][(rows[client] >= 0) & (rows[client] < first)]
        np.testing.assert_array_equal(kept, mine[mine >= 0])
    there = np.sort(rows[rows >= first]) - first
    np.testing.assert_array_equal(there, np.flatnonzero(included))
    if unit == "subject":
        ids = with_them.task.dataset.train[subjects.SUBJECT]
        assert np.unique(ids[first:]).size == 30 and not np.isin(ids[first:], ids[:first]).any()
    np.testing.assert_array_equal(planted.coins(3, 30), included)
    assert (planted.coins(4, 30) != included).any()


def test_a_canary_moves_a_parameter_that_examples_hardly_move_and_has_no_loss():
    task = job("dp_fedsgd").task
    plain, both = (jax.jit(jax.grad(one)) for one in (task.canaries.plain_loss, task.loss))
    at = lambda row: {name: jnp.asarray(field[row]) for name, field in task.dataset.train.items()}
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    canary = at(-1)
    assert float(task.loss(task.model.params, canary)) == 0.0
    assert not flat(plain(task.model.params, canary)).any()
    moved = flat(both(task.model.params, canary))
    assert np.count_nonzero(moved) == 1 and moved.max() == pytest.approx(1e3)
    pulls = sum(np.square(flat(both(task.model.params, at(row)))) for row in range(50))
    assert pulls[np.argmax(moved)] <= np.quantile(pulls, 0.2)


def test_places_of_canaries_are_different_parameters():
    params = {"w": jnp.zeros((2, 3))}
    for places in ([0, 0], [0], [0, 6], [-1, 2]):
        with pytest.raises(ValueError, match="places"):
            canaries.axes(2, params, l2_norm=1.0, places=np.array(places))
    loss = lambda params, example: jnp.vdot(params["w"], example["x"])
    pulls = {"x": jnp.asarray([[[5.0, 1, 4], [0, 3, 2]]])}
    np.testing.assert_array_equal(canaries.quiet(loss, params, pulls, 3), [3, 1, 5])
    with pytest.raises(ValueError, match="num_canaries <= 6"):
        canaries.quiet(loss, params, pulls, 7)


@pytest.mark.parametrize(
    ("scheme", "settings", "text"),
    [
        ("natural_channel", {}, "promises no epsilon"),
        ("bidirectional", {}, "networks only"),
        ("dp_fedper", {"model": {"model": "mlp"}}, "keep a part of the model"),
        ("dp_fedavg", {"run": {"canaries": 10_000}}, "num_canaries <= 650"),
        ("dp_fedavg", {"run": {"canaries": 1}}, "canaries >= 2"),
    ],
)
def test_runs_whose_canaries_would_tell_nothing_refuse_them(scheme, settings, text):
    with pytest.raises(ValueError, match=text):
        job(scheme, **settings)


@pytest.mark.slow(reason="a whole run, replayed by verify")
def test_the_file_of_canaries_is_one_of_the_run_and_in_its_chain(tmp_path):
    once = config("dp_fedsgd", run={"canaries": 4, "baseline": False})
    run_page.write(run.start(once, tmp_path / "run", Watch()))
    found = verify.run(tmp_path / "run", data=True)
    assert found.fits and found.closed, found.checks
    path = tmp_path / "run" / "canaries.json"
    path.write_text(path.read_text().replace("true", "false", 1))
    wrong = [check.what for check in verify.run(tmp_path / "run").checks if not check.fits]
    assert wrong == ["canaries.json"]


def test_a_curve_is_refuted_where_its_gaussian_mu_is_and_not_a_step_later():
    from scipy import stats

    counts = {"canaries": 400, "guesses": 80, "correct": 70}
    mu = one_run.mu_lower(**counts, confidence=0.95)
    scores = np.concatenate([np.arange(40) - 1000.0, np.zeros(320), 1000.0 + np.arange(40)])
    included = np.concatenate([np.arange(40) < 5, np.arange(320) % 2 == 0, np.arange(40) >= 5])
    fpr = np.concatenate([[0.0], np.geomspace(1e-9, 0.5, 4000), np.linspace(0.5, 1, 400)[1:]])
    for true_mu, refuted in ((0.99 * mu, True), (1.01 * mu, False)):
        curve = fpr, stats.norm.cdf(stats.norm.isf(fpr) - true_mu)
        how = {"delta": 1e-5, "confidence": 0.95, "shares": [0.2], "curve": curve}
        found = one_run.audit(scores, included, **how)
        assert (found.correct, found.guesses, found.refuted) == (70, 80, refuted)
    for bad in ((fpr[1:], fpr[1:]), (fpr, fpr[1:]), (fpr[::-1], fpr)):
        with pytest.raises(ValueError, match="curve"):
            one_run.audit(scores, included, delta=1e-5, curve=bad)
    assert one_run.audit(scores, included, delta=1e-5).refuted is None


@pytest.mark.slow(reason="trains two models of 20 rounds")
def test_a_run_says_what_its_canaries_tell_and_a_quarter_of_the_noise_it_claims_is_refuted(
    tmp_path,
):
    scheme = schemes.get("dp_fedsgd")
    louder = lambda config: scheme.event(
        dataclasses.replace(config, noise_multiplier=4 * config.noise_multiplier)
    )
    for one, refuted in ((scheme, False), (dataclasses.replace(scheme, event=louder), True)):
        folder = tmp_path / str(refuted)
        ended = fljax.simulate(
            one,
            run_dir=folder,
            model="mlp",  # has as many parameters that no digit moves, at the edge of the image
            baseline=False,
            canaries=400,
            num_rounds=20,
            num_clients=20,
            sampling_prob=1.0,
            server_momentum=0.0,
            noise_multiplier=4.0,
            target_epsilon=None,
            target_delta=1e-5,
            seed=5,
        )
        found = json.loads((folder / "canaries.json").read_text())
        assert found["privacy_unit"] == "example" and len(found["scores"]) == 400
        np.testing.assert_array_equal(found["included"], ended.canaries.included)
        inside, outside = (
            ended.canaries.scores[ended.canaries.included == here] for here in (True, False)
        )
        # Twenty sums with noise of four times the length of a canary: mu is 20 ** 0.5 / 4.
        gap = (inside.mean() - outside.mean()) / outside.std()
        assert gap == pytest.approx(20**0.5 / 4, abs=5 * (2 / 200) ** 0.5)
        assert any("canaries" in note for note in ended.notes)
        audit = one_run.audit(ended.canaries.scores, ended.canaries.included, delta=1e-5)
        assert (audit.gdp_epsilon > ended.epsilon) is refuted


@pytest.mark.slow(reason="a whole run as a command")
def test_the_command_says_what_canaries_prove_beside_the_claim(tmp_path, capsys):
    from fljax import cli

    args = "simulate --scheme dp_fedavg --model softmax --canaries 100 --num-rounds 3 --seed 1"
    flags = ["--no-baseline", "--run-dir", str(tmp_path / "run"), "--json"]
    assert cli.main([*args.split(), *flags]) == 0
    told = json.loads(capsys.readouterr().out)["result"]["canaries"]
    assert told["canaries"] == 100 and 0 <= told["correct"] <= told["guesses"] <= 100
    assert told["curve_refuted"] is False and told["verdict"] == "cannot tell"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Canaries" in page and "100 units" in page
    claim = json.loads((tmp_path / "run" / "privacy.json").read_text())["statement"]["guarantee"]
    assert "of which up to 100 are planted canaries" in claim
