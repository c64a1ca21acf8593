"""What a certificate assumes of the data is held against them, and follows from them, before a
folder is made.
"""

import dataclasses
import json

import numpy as np
import pytest

from fljax import cli, schemes
from fljax.cli import simulate
from fljax.data import store
from fljax.data.facts import Facts
from fljax.errors import PrivacyPreconditionError
from fljax.simulation import config as config_lib
from fljax.simulation import run

C = 6
FACTS = Facts(C, 60, 12, num_subjects=20, most_clients_of_subject=4, most_items_of_subject=3)
COUNTS = ("num_parties", "records_per_client")
OF_SUBJECTS = (
    "higradavg",
    "higradavg_sum",
    "item_sum_cap",
    "local_group_dp",
    "subject_sampled",
    "user_ldp",
)


def fields(scheme):
    return {field.name for field in dataclasses.fields(scheme.Config)}


def few(scheme, **changes):
    """A config with none for every count, which 6 clients of 12 records suit."""
    numbers = {"max_colluders": 1, "max_stragglers": 1, "local_batch_size": 2} | dict.fromkeys(
        COUNTS
    )
    return scheme.Config(**{k: v for k, v in numbers.items() if k in fields(scheme)} | changes)


def joins(scheme):
    return next((name for name in ("num_parties",) if name in fields(scheme)), None)


@pytest.mark.parametrize("name", schemes.NAMES)
def test_every_scheme_takes_its_counts_from_the_data_and_refuses_others(name):
    scheme = schemes.get(name)
    config = few(scheme)
    fitted = scheme.fitted(config, FACTS)
    assert not any(getattr(fitted, count, 0) is None for count in COUNTS)
    assert scheme.fitted(fitted, FACTS) == fitted  # as a run that goes on does
    count = joins(scheme)
    if count is None:  # clients, or their examples, are sampled: any number of them is in the claim
        assert scheme.fitted(config, FACTS._replace(num_clients=C + 1)) == fitted
        assert fitted == config or "records_per_client" in fields(scheme)
        return
    assert getattr(fitted, count) == C
    for other in (C - 1, C + 1):
        with pytest.raises(
            PrivacyPreconditionError, match=f"{count} to be num_clients={other}, .* got {count}={C}"
        ):
            scheme.fitted(fitted, FACTS._replace(num_clients=other))


@pytest.mark.parametrize("name", ["gd_dp", "gsgd_dp", "parameter_channel", "sgd_dp"])
def test_no_client_has_more_records_than_places(name):
    scheme = schemes.get(name)
    assert scheme.fitted(few(scheme), FACTS).records_per_client == 12
    assert scheme.fitted(few(scheme, records_per_client=13), FACTS).records_per_client == 13
    with pytest.raises(
        PrivacyPreconditionError, match=r"records_per_client >= 12, .* got records_per_client=11"
    ):
        scheme.fitted(few(scheme, records_per_client=11), FACTS)


def test_batches_that_clients_cannot_fill_are_refused_when_their_records_are_counted():
    config = few(schemes.get("sgd_dp"), batch_size=13)
    with pytest.raises(ValueError, match=r"up to records_per_client=12, got batch_size=13"):
        schemes.get("sgd_dp").fitted(config, FACTS)


@pytest.mark.parametrize("name", OF_SUBJECTS)
def test_no_subject_lies_in_more_silos_than_are_counted(name):
    scheme = schemes.get(name)
    assert scheme.fitted(few(scheme, silos_per_subject=4), FACTS).holders == 4
    assert (
        scheme.fitted(few(scheme), FACTS).holders == C
    )  # all there are, not what private data say
    for holders in (1, 3):
        with pytest.raises(
            PrivacyPreconditionError,
            match=f"silos_per_subject >= 4, .* got silos_per_subject={holders}",
        ):
            scheme.fitted(few(scheme, silos_per_subject=holders), FACTS)
    with pytest.raises(
        ValueError, match="silos_per_subject <= num_parties=6, got silos_per_subject=7"
    ):
        scheme.fitted(few(scheme, silos_per_subject=7), FACTS)
    with pytest.raises(PrivacyPreconditionError, match="subjects unknown"):
        scheme.fitted(few(scheme), Facts(C, 60, 12))


def test_a_claim_about_whole_silos_needs_no_subjects():
    scheme = schemes.get("user_ldp")
    config = few(scheme, privacy_unit="client", silos_per_subject=1)
    assert scheme.fitted(config, Facts(C, 60, 12)).num_parties == C


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("secagg_dp", {"max_colluders": 3, "max_stragglers": 3}, "max_colluders"),
        ("local_dp", {"max_stragglers": 6}, "max_stragglers < num_parties=6"),
        ("lightdp", {"graph": "k_regular", "degree": 6}, "below num_parties=6"),
        ("bidirectional", {"cohort_size": 7}, "cohort_size <= 6, got cohort_size=7"),
        ("bidirectional", {"max_colluders": 6}, "max_colluders < 6, got max_colluders=6"),
        ("higradavg", {"silo_noise": (1.0, 2.0)}, "num_parties=6, got 2 factors"),
    ],
    ids=str,
)
def test_what_does_not_go_with_that_many_clients_is_refused_by_name(name, changes, words):
    scheme = schemes.get(name)
    config = few(scheme, **changes)  # cannot be known yet
    with pytest.raises(ValueError, match=words):
        scheme.fitted(config, FACTS)


def test_a_count_that_is_still_none_is_no_number():
    scheme = schemes.get("higradavg")
    with pytest.raises(
        ValueError, match="Expected num_parties to be a number, got num_parties=None"
    ):
        scheme.event(few(scheme, noise_multiplier=1.0))


def settled(*args):
    config, _, _ = simulate.parse(args)
    return config


def test_parties_and_clients_are_one_number_under_two_flags():
    for args in (
        ["--num-parties", "20"],
        ["--num-clients", "20"],
        ["--num-parties", "20", "--num-clients", "20"],
    ):
        assert settled("--scheme", "lightdp", *args).data.num_clients == 20
    assert settled("--scheme", "higradavg", "--num-parties", "9").data.num_clients == 9
    assert (
        settled("--scheme", "lightdp").data.num_clients == 50 and settled().data.num_clients == 500
    )


# Small data, few rounds: what is refused is refused before the first of them.
FLAGS = ["--num-rounds", "2", "--no-baseline", "--model", "softmax", "--devices", "1"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["--scheme", "higradavg", "--silos-per-subject", "1"],
            ["silos_per_subject >= 16", "silos_per_subject=1 "],
        ),
        (
            ["--scheme", "item_sum_cap", "--num-clients", "8", "--num-parties", "16"],
            ["num_clients=8", "num_parties=16"],
        ),
        (
            ["--scheme", "lightdp", "--num-parties", "20", "--num-clients", "30"],
            ["num_clients=30", "num_parties=20"],
        ),
        (
            ["--scheme", "gsgd_dp", "--records-per-client", "3"],
            ["records_per_client >= 29", "records_per_client=3"],
        ),
        (["--scheme", "bidirectional", "--model", "resnet20"], ["model='resnet20'"]),
        (
            ["--scheme", "secagg_dp", "--num-clients", "8"],
            ["max_colluders=5", "max_stragglers=5", "8"],
        ),
        (
            ["--scheme", "mp_dp_naive", "--target-epsilon", "3"],
            ["target_epsilon=none", "mp_dp_naive", "got target_epsilon=3.0"],
        ),
        (["--scheme", "fedavg", "--target-epsilon", "3"], ["target_epsilon=none", "fedavg"]),
        (
            ["--scheme", "white_channel", "--target-epsilon", "3"],
            ["target_epsilon=none", "white_channel"],
        ),
        (
            ["--noise-multiplier", "0"],
            ["Expected noise_multiplier > 0", "got noise_multiplier=0.0"],
        ),
        (
            ["--scheme", "gsgd_dp", "--noise-multiplier", "0"],
            ["noise_multiplier > 0", "got noise_multiplier=0.0"],
        ),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_what_disagrees_is_refused_by_name_before_a_folder_is_made(
    args, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "continue_new", None)  # no round is built
    assert cli.main(["simulate", *FLAGS, *args]) != 0
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert said.count("\n") == 1 and list(tmp_path.iterdir()) == []


class Silent:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        pass

    def stop(self):
        pass


def test_counts_that_follow_from_the_data_are_written_down_and_booked(tmp_path):
    sections = {
        "scheme": {"scheme": "higradavg"},
        "data": {"num_clients": 8},
        "run": {"num_rounds": 2, "baseline": False},
    }
    job = run.prepare(config_lib.from_sections(sections))
    assert job.config.scheme_config.num_parties == job.config.data.num_clients == 8
    steps = job.config.scheme_config.num_local_steps
    assert job.plan.event.mechanism.count == steps * 8  # in each of the silos that hold a subject
    again = run.prepare(
        config_lib.from_sections(config_lib.from_toml(config_lib.to_toml(job.config)))
    )
    assert again.config == job.config and again.plan == job.plan


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    rng = np.random.default_rng(0)

    def clients(count):
        for i in range(count):
            size = 3 + i % 2
            yield {
                "x": rng.random((size, 4, 4, 1), np.float32),
                "y": (np.arange(size) % 3).astype(np.int32),
                "subject": np.arange(size, dtype=np.int32) + 2 * (i == 0),
            }

    store.write(folder / "train", clients(7))
    store.write(folder / "test", clients(2))
    return folder


@pytest.mark.slow(reason="writes a store and a run")
def test_a_store_knows_its_clients(disk, tmp_path):
    sections = {
        "scheme": {"scheme": "gd_dp", "noise_multiplier": 40.0},
        "data": {"dataset": f"disk:{disk}"},
        "run": {"num_rounds": 2, "baseline": False, "checkpoint_every": 1},
    }
    config = config_lib.from_sections(sections)
    assert config.data.num_clients is None
    outcome = run.start(config, tmp_path / "run", Silent(), devices=1)
    kept = config_lib.from_sections(
        config_lib.from_toml((tmp_path / "run" / "config.toml").read_text())
    )
    assert (
        kept.data.num_clients,
        kept.scheme_config.num_parties,
        kept.scheme_config.records_per_client,
    ) == (7, 7, 4)
    assert (
        kept == outcome.config
        and json.loads((tmp_path / "run" / "privacy.json").read_text())["num_units"] == 24
    )
    before = [path.read_bytes() for path in sorted((tmp_path / "run").glob("*.*"))]
    run.resume(tmp_path / "run", Silent(), devices=1)
    assert before == [path.read_bytes() for path in sorted((tmp_path / "run").glob("*.*"))]
    for changes, words in (
        ({"data": sections["data"] | {"num_clients": 8}}, "num_clients=7, as .* has, got 8"),
        (
            {"scheme": sections["scheme"] | {"num_parties": 8}},
            "num_clients=7, .* got num_parties=8",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            run.start(config_lib.from_sections(sections | changes), tmp_path / "other", Silent())
        assert not (tmp_path / "other").exists()


def test_subjects_on_disk_are_held_against_the_claim_too(disk, tmp_path):
    sections = {
        "scheme": {"scheme": "higradavg", "silos_per_subject": 6, "noise_multiplier": 40.0},
        "data": {"dataset": f"disk:{disk}"},
        "run": {"num_rounds": 1, "baseline": False},
    }
    with pytest.raises(
        PrivacyPreconditionError, match=r"silos_per_subject >= 7, .* got silos_per_subject=6"
    ):
        run.prepare(config_lib.from_sections(sections))
    sections["scheme"]["silos_per_subject"] = 7
    assert run.prepare(config_lib.from_sections(sections)).facts.most_clients_of_subject == 7
