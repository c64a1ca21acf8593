"""Runs whose privacy unit is a subject with items in every silo."""

import json
import types

import numpy as np
import pytest

from fljax import accounting, schemes
from fljax.simulation import config as config_lib
from fljax.simulation import run, task
from fljax.simulation.report import run_page


class Silent:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        pass

    def stop(self):
        pass


def sections(scheme, **data):
    return {
        "scheme": {"scheme": scheme, "max_items_per_subject": 4},
        "data": {"dataset": "writers", "num_clients": 16, "partition": "subject_uniform", **data},
        "model": {"model": "softmax"},
        "run": {"num_rounds": 3, "seed": 0, "baseline": False},
    }


@pytest.mark.slow(reason="a whole run of a scheme of silos")
def test_a_run_of_higradavg_protects_subjects(tmp_path):
    outcome = run.start(config_lib.from_sections(sections("higradavg")), tmp_path / "run", Silent())
    claim = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert (claim["privacy_unit"], claim["num_units"], claim["rounds"]) == ("subject", 400, 3)
    assert claim["epsilon"] <= claim["target_epsilon"] and claim["delta"] < 1 / 400
    assert "all its examples, in all silos" in claim["statement"]["guarantee"]
    assert not any("central model" in line for line in claim["statement"]["not_covered"])
    assert np.isfinite(outcome.records[-1]["test_accuracy"])


@pytest.mark.slow(reason="a whole run")
def test_a_run_without_privacy_says_so_and_gives_no_number(tmp_path):
    # On data without subjects: plain averaging needs none.
    sections = {
        "scheme": {"scheme": "fedavg"},
        "data": {"dataset": "digits", "partition": "iid"},
        "run": {"num_rounds": 2, "seed": 0},
    }
    outcome = run.start(config_lib.from_sections(sections), tmp_path / "run", Silent())
    claim = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert (claim["epsilon"], claim["target_epsilon"]) == ("inf", None)
    assert claim["ledger"]["entries"] == [{"count": 2, "mechanism": {"type": "NonPrivate"}}]
    text = run_page.render(outcome)
    assert (
        "no guarantee" in text
        and "accuracy, no guarantee" in text
        and "accuracy, private" not in text
    )


@pytest.mark.slow(reason="whole runs with subjects")
@pytest.mark.parametrize(("scheme", "true"), [("local_group_dp", None), ("user_ldp", 2)])
def test_a_run_of_the_papers_formula_shows_claim_and_truth_side_by_side(scheme, true, tmp_path):
    given = sections(scheme)
    given["scheme"] |= {"formula": "paper"} | ({} if true is None else {"privacy_unit": "client"})
    given["run"]["num_rounds"] = 2
    given["privacy"] = {"target_delta": 1e-3, "target_epsilon": 4.0}
    outcome = run.start(config_lib.from_sections(given), tmp_path / "run", Silent())
    claim = json.loads((tmp_path / "run" / "privacy.json").read_text())
    paper = claim["as_printed"]
    assert paper["certified"] is False and set(paper["errata"]) == set(
        schemes.get(scheme).as_printed.errata
    )
    if true is None:
        # The noise follows the batches' largest groups, and nothing bounds what it tells.
        np.testing.assert_allclose(paper["claimed_epsilon"], 4.0, rtol=1e-4)
        assert claim["epsilon"] == "inf"
    else:
        # The void theorem asks for more noise than the accounting; what is claimed counts half of
        # what two ends move.
        least = np.exp(-4) / (np.sqrt(2 * np.pi) * 4e-3)
        noise = 2 * outcome.plan.scheme_config.noise_multiplier  # in clip norms
        assert noise >= least

        def spent(mu):
            with accounting.x64():
                return float(accounting.gaussian.mu_to_epsilon(mu, 1e-3))

        steps = 2 * outcome.plan.scheme_config.num_local_steps  # of two rounds
        np.testing.assert_allclose(
            paper["claimed_epsilon"], spent(np.sqrt(steps) / noise), rtol=1e-6
        )
        assert claim["epsilon"] >= spent(2 * np.sqrt(steps) / noise) > paper["claimed_epsilon"]
    text = run_page.render(outcome)
    assert (
        "NOT certified" in text
        and "As printed" in text
        and f"{paper['claimed_epsilon']:.3f}" in text
    )


@pytest.mark.slow(reason="whole runs with subjects")
def test_a_text_corpus_of_roles_goes_to_the_lstm_and_is_reported_without_pictures():
    given = {
        "scheme": {"scheme": "item_sum_cap"},
        "data": {"dataset": "roles"},
        "model": {"model": "lstm"},
    }
    built = task.build(config_lib.from_sections(given))
    assert (
        built.client_data.indices.shape[0] == 16
        and np.unique(built.dataset.train["subject"]).size == 132
    )
    example = {name: leaf[0] for name, leaf in built.client_data.examples.items()}
    # Untrained logits are near 0: the loss is near that of guessing among 80 symbols.
    assert abs(float(built.loss(built.model.params, example)) - np.log(80)) < 1
    outcome = types.SimpleNamespace(task=built)
    assert run_page._predictions(outcome) == ""
    assert "What the clients hold" in run_page._clients(outcome)


def test_silo_schemes_start_from_data_with_subjects_and_take_one_factor_per_silo():
    start = config_lib.from_sections(
        {"scheme": {"scheme": "higradavg", "silo_noise": [1, 2.5] * 8}}
    )
    assert (start.data.dataset, start.data.num_clients, start.data.partition) == (
        "writers",
        16,
        "subject_uniform",
    )
    assert start.scheme_config.silo_noise == (1.0, 2.5) * 8
    again = config_lib.from_sections(config_lib.from_toml(config_lib.to_toml(start)))
    assert again == start
    # What the user says counts, and other schemes keep their defaults.
    mine = config_lib.from_sections({"scheme": {"scheme": "higradavg"}, "data": {"num_clients": 4}})
    assert (mine.data.dataset, mine.data.num_clients) == ("writers", 4)
    assert config_lib.from_sections({}).data.dataset == "digits"
    for bad, message in (
        ("many", "list of float, got silo_noise='many'"),
        ([True], "silo_noise=True"),
    ):
        with pytest.raises(ValueError, match=message):
            config_lib.from_sections({"scheme": {"scheme": "higradavg", "silo_noise": bad}})


def test_subjects_are_split_over_the_silos_as_asked():
    config = config_lib.from_sections(
        sections("higradavg", partition="subject_power_law", power_law_exponent=16.0)
    )
    train = config_lib.builtin.load("writers").train
    table = task.client_table(config.data, train, seed=0)
    np.testing.assert_array_equal(np.sort(table[table >= 0]), np.arange(len(train["y"])))
    from fljax.data import subjects

    counts = subjects.counts(train["subject"], table)
    # The law puts 0.644 of a subject into its first silo.
    assert abs(counts.max(axis=1).sum() / counts.sum() - 0.644) < 0.03


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"dataset": "digits", "partition": "iid"},
            ["subjects", "scheme='higradavg'", "dataset='digits'"],
        ),
        ({"dataset": "digits"}, ["'subject'", "subjects unknown"]),
        ({"num_clients": 401}, ["num_silos <= 400", "num_silos=401"]),
    ],
    ids=range(3),
)
def test_a_run_that_cannot_protect_subjects_says_so_in_one_line(changes, words, tmp_path):
    with pytest.raises(ValueError) as error:
        run.start(
            config_lib.from_sections(sections("higradavg", **changes)), tmp_path / "run", Silent()
        )
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_every_silo_scheme_says_where_its_noise_is_added():
    silo = {
        "dp_psac",
        "dp_sgd",
        "fedavg",
        "higradavg",
        "higradavg_sum",
        "item_sum_cap",
        "local_group_dp",
        "local_item_dp",
        "subject_sampled",
        "user_ldp",
    }
    assert {name for name in schemes.NAMES if schemes.get(name).noise_at == "silo"} == silo
