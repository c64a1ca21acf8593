"""Mechanisms broken in places that no audit knows of: each is caught by the scheme's own audit."""

import jax
import pytest

import fljax_kernels
from fljax import schemes
from fljax.attacks import replay, table
from fljax.schemes.silos import round as silos
from fljax.server import aggregate


def half_in_the_kernel(monkeypatch):
    """Every Gaussian draw of the kernels is half as wide."""
    drawn = fljax_kernels.add_gaussian_noise
    monkeypatch.setattr(
        fljax_kernels,
        "add_gaussian_noise",
        lambda key, tree, stddev, **rest: drawn(key, tree, stddev / 2, **rest),
    )


def twice_the_sum(monkeypatch):
    """What clients send counts twice in the sum that the noise is sized for."""
    summed = aggregate.sum_in_chunks

    def doubled(*args, **rest):
        total, stats = summed(*args, **rest)
        return jax.tree.map(lambda leaf: 2 * leaf, total), stats

    monkeypatch.setattr(aggregate, "sum_in_chunks", doubled)


def half_in_one_silo(monkeypatch):
    """The last silo alone draws half its noise."""
    chosen = silos._choose

    def choose(*args):
        here, clients = chosen(*args)
        last = clients.ids == clients.ids.max()
        return here, clients._replace(given=clients.given * jax.numpy.where(last, 0.5, 1.0))

    monkeypatch.setattr(silos, "_choose", choose)


MUTANTS = [
    (half_in_the_kernel, "dp_fedsgd"),
    (twice_the_sum, "secagg_dp"),
    (half_in_one_silo, "local_item_dp"),
]


@pytest.mark.slow(reason="audits rounds by thousands of trials and compiles each scheme for them")
@pytest.mark.parametrize(
    ("mutate", "name"), MUTANTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_mutant_is_caught_where_no_audit_looks_for_it(mutate, name, key, monkeypatch):
    mutate(monkeypatch)
    found = table.row(name, key, table.Settings(trials=5000))
    assert found.verdict == "violated" and found.measured > found.certified


@pytest.mark.slow(reason="replays rounds, and compiles each scheme for that")
@pytest.mark.parametrize(
    ("mutate", "name"), MUTANTS[:2], ids=lambda value: getattr(value, "__name__", value)
)
def test_a_replay_catches_it_too(mutate, name, key, monkeypatch):
    scheme = schemes.get(name)
    mutate(monkeypatch)
    assert replay.replay(scheme, replay.least_config(scheme), key).holds is False
