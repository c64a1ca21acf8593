"""`account` and `calibrate` by the flags of every scheme: the numbers that `simulate` books."""

import dataclasses
import json

import pytest

from fljax import cli, schemes
from fljax.accounting import information
from fljax.data.facts import Facts
from fljax.schemes.channels import round as channels
from fljax.simulation import budget
from fljax.simulation.config import from_sections, parts

WITH_EPSILON = [name for name in schemes.NAMES if schemes.get(name).promise == "epsilon"]
COUNTED = [name for name in schemes.NAMES if schemes.get(name).promise == "nats"]
CHANNELS = [name for name in COUNTED if not schemes.get(name).uploads_seen]
FACTS = Facts(60, 1200, 20, num_subjects=300, most_clients_of_subject=3, most_items_of_subject=4)
ROUNDS, EPSILON, DELTA = 4, 6.0, 1e-5
pytestmark = pytest.mark.usefixtures("compiled_once")


def asked(capsys, *args):
    """The result of a command."""
    code = cli.main([*map(str, args), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0, document["error"]
    return document["result"]


def refused(capsys, *args):
    """The error of a command."""
    assert cli.main([str(arg) for arg in args]) == 2
    return capsys.readouterr().err


def booked(name):
    """The plan of a run of the scheme on data with these counts, by Renyi divergences."""
    fitted = schemes.get(name).fitted(parts({"scheme": {"scheme": name}})["scheme_config"], FACTS)
    values = {k: v for k, v in dataclasses.asdict(fitted).items() if v is not None}
    privacy = {"target_epsilon": EPSILON, "target_delta": DELTA, "accountant": "rdp"}
    run = {"num_rounds": ROUNDS}
    scheme = {"scheme": name, **values}
    config = from_sections({"scheme": scheme, "privacy": privacy, "run": run})
    return budget.plan(config, schemes.get(name), FACTS)


def flags(config):
    """A config as one writes it."""
    found = []
    for name, value in dataclasses.asdict(config).items():
        if isinstance(value, tuple) and not value:
            continue
        values = value if isinstance(value, tuple) else (value,)
        found += ["--" + name.replace("_", "-"), *map(str, values)]
    return found


@pytest.mark.slow(reason="calibrates a mixture of sums three times", ids=["higradavg_sum"])
@pytest.mark.parametrize("name", WITH_EPSILON)
def test_a_scheme_is_accounted_and_calibrated_as_its_run_is(name, capsys):
    plan = booked(name)
    same = ["--scheme", name, "--rounds", ROUNDS, "--delta", DELTA, "--accountant", "rdp"]
    (row,) = asked(capsys, "account", *same, *flags(plan.scheme_config))["rows"]
    assert row["epsilon_upper"] == plan.epsilons[ROUNDS] <= EPSILON

    opened = dataclasses.replace(plan.scheme_config, noise_multiplier=None)
    (row,) = asked(capsys, "calibrate", *same, "--epsilon", EPSILON, *flags(opened))["rows"]
    noise = plan.scheme_config.noise_multiplier
    assert noise <= row["value"] <= noise * 1.001  # printed with few digits, rounded up
    assert EPSILON * 0.99 <= row["epsilon"] <= EPSILON


@pytest.mark.parametrize(
    ("args", "same"),
    [
        (
            "dp_fedavg --dataset-size 1000 --batch-size 100 --epochs 2.5",
            "dp_fedavg --sampling-prob 0.1 --rounds 25",
        ),
        (
            "dp_fedsgd --dataset-size 1000 --batch-size 100 --epochs 2",
            "dp_fedsgd --sampling-prob 0.1 --rounds 20",
        ),
        # of one silo, whose rounds take two steps each: 5 of them, of which the last is whole
        (
            "dp_sgd --dataset-size 300 --batch-size 30 --epochs 0.9",
            "dp_sgd --item-sampling-prob 0.1 --rounds 5",
        ),
        (
            "sgd_dp --num-clients 9 --dataset-size 40 --batch-size 8 --epochs 2",
            "sgd_dp --num-parties 9 --records-per-client 40 --batch-size 8 --num-rounds 10",
        ),
    ],
    ids=["clients", "examples", "items", "records"],
)
def test_epochs_say_the_sampling_and_the_rounds_of_a_scheme(args, same, capsys):
    rest = ["--noise-multiplier", "3", "--accountant", "rdp"]
    one, other = (asked(capsys, "account", "--scheme", *a.split(), *rest) for a in (args, same))
    assert one["rows"] == other["rows"] and one["assumed"] == other["assumed"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("lightdp --dataset-size 9 --batch-size 3 --epochs 1", "Expected --rounds with --scheme"),
        ("gd_dp --num-clients 9 --dataset-size 9 --epochs 1", "does not depend on the size"),
        ("dp_sgd --dataset-size 9 --batch-size 3", "together, got dataset_size=9, batch_size=3"),
        ("dp_sgd --rounds 2 --dataset-size 9 --batch-size 3 --epochs 1", "Expected --rounds, or"),
        (
            "dp_fedavg --sampling-prob 0.2 --dataset-size 9 --batch-size 3 --epochs 1",
            "Expected --sampling-prob, or",
        ),
        ("higradavg", "without data, say it"),
        ("fedavg", "which guarantees nothing"),
    ],
)
def test_half_a_run_of_a_scheme_is_refused(args, words, capsys):
    found = refused(capsys, "account", "--noise-multiplier", 3, "--scheme", *args.split())
    assert words in found and found.count("\n") == 1


def test_who_left_out_the_noise_is_told_how_to_find_it(capsys):
    found = refused(capsys, "account", "--scheme", "dp_fedavg")
    assert "fljax calibrate --scheme dp_fedavg --epsilon EPSILON" in found


@pytest.mark.parametrize("name", CHANNELS)
def test_a_channel_is_accounted_in_nats_added_up(name, capsys):
    for mode in ("fresh", "once"):
        said = ["--nats", 3, "--noise-mode", mode, "--num-local-epochs", 2, "--rounds", 5]
        found = asked(capsys, "account", "--scheme", name, *said)
        channel = information.natural([1.0, 2.0], nats=3.0, covariance_source="declared")
        counted = "once" if mode == "once" else "linear"
        spent = information.after_uses(channel, 5 * 2, label_nats=0.0, mode=counted)
        assert found["nats"] == pytest.approx(spent.nats, rel=1e-9) and not found["rows"]
    assert isinstance(schemes.get(name).Config(), channels.ChannelConfig)
    assert "counts nats" in refused(capsys, "calibrate", "--scheme", name, "--epsilon", 3)


def test_noisy_uploads_are_accounted_in_nats_added_up(capsys):
    name = "parameter_channel"
    found = asked(capsys, "account", "--scheme", name, "--nats", 3, "--rounds", 5)
    assert found["nats"] == 15 and "5 uploads" in found["assumed"] and not found["rows"]
    assert "counts nats" in refused(capsys, "calibrate", "--scheme", name, "--epsilon", 3)


def test_rounds_of_a_gaussian_are_its_steps(capsys):
    same = ["--noise-multiplier", 2, "--sampling-prob", 0.1, "--accountant", "rdp"]
    one, other = (asked(capsys, "account", *same, flag, 30) for flag in ("--rounds", "--steps"))
    assert one == other
    both = refused(capsys, "account", *same, "--rounds", 3, "--steps", 4)
    assert "--steps or --rounds" in both
