"""Who saw what in a run: bounds on the exact view of what arrived, and never more than was
promised.
"""

import dataclasses

import numpy as np
import pytest

from fljax import schemes
from fljax.accounting.shared_noise import adversaries
from fljax.accounting.shared_noise import exact as view
from fljax.schemes.uploads import round as uploads

NUM, ROUNDS = 6, 12
LATE = {"straggler_law": "uniform", "max_stragglers": 3, "late_prob": 0.5, "l2_clip_norm": 0.5}


def run(name, key, **changes):
    scheme = schemes.get(name)
    config = scheme.Config(
        **{"num_parties": NUM, "max_colluders": 1, "noise_multiplier": 4.0, **LATE, **changes}
    )
    return config, scheme.event(config), scheme.views(config, key, ROUNDS)


def test_late_uploads_come_from_stragglers_and_rounds_differ(key):
    config = schemes.get("lightdp").Config(num_parties=NUM, max_colluders=1, **LATE)
    found, again = (
        uploads.reached(dataclasses.replace(config, late_prob=p), key, ROUNDS) for p in (0.5, 1.0)
    )
    assert set(found.ravel()) == {adversaries.NEVER, adversaries.LATE, adversaries.IN_TIME}
    np.testing.assert_array_equal(np.maximum(found, adversaries.LATE), again)
    counts = (found == adversaries.IN_TIME).sum(axis=1)
    assert counts.min() >= NUM - 3 and len(set(counts)) > 1


@pytest.mark.slow(reason="solves the exact view of every client", ids=["k_regular"])
@pytest.mark.parametrize("graph", ["complete", "k_regular"])
def test_lightdps_table_bounds_the_exact_view_of_what_arrived(graph, key):
    config, event, found = run("lightdp", key, graph=graph, degree=3, pair_variance_ratio=2.0)
    edges = schemes.lightdp.edges(config)
    own = schemes.get("lightdp").upload_noise(config).own_stddev
    noise = view.pair_graph(edges, num_clients=NUM, own_variance=own**2, pair_variance=2 * own**2)
    rows = {row.who: row.mu for row in found.adversaries}
    assert list(rows) == [
        "the server and any 1 clients",
        "the server alone",
        "any 1 clients without the server",
        "the server and all other clients",
    ]

    def exact(fun, colluders, which):
        mu = [
            fun(noise, seen=seen, colluders=colluders) for seen in which
        ]  # sensitivity: two clip norms, 1
        return np.sqrt(np.square(mu).sum(axis=0))

    arrived, answered = found.reached > adversaries.NEVER, found.reached == adversaries.IN_TIME
    alone = exact(view.exact_mu, np.zeros(NUM, bool), arrived)
    assert np.all(alone <= rows["the server alone"] * (1 + 1e-12))
    one, outside = [], []
    for colluder in np.eye(NUM, dtype=bool):
        one.append(exact(view.exact_mu, colluder, arrived))
        outside.append(exact(view.sum_mu, colluder, answered))
    one, outside = np.nanmax(one, axis=0), np.nanmax(outside, axis=0)
    assert np.all(one <= rows["the server and any 1 clients"] * (1 + 1e-12))
    assert np.all(outside <= rows["any 1 clients without the server"] * (1 + 1e-12))
    # Not by much (what never arrived counts as arrived; on sparse graphs longer ways to ground are
    # left out), and less than is promised for a run in which everything arrives.
    assert np.all(
        rows["the server and any 1 clients"] <= (1.15 if graph == "complete" else 1.3) * one
    )
    promised = np.sqrt(ROUNDS) / event.mechanism.noise_multiplier
    assert 0.7 * promised < rows["the server and any 1 clients"].min() < promised
    everything = np.sqrt(arrived.sum(axis=0)) / own
    np.testing.assert_allclose(rows["the server and all other clients"], everything, rtol=1e-12)
    assert [row.promised for row in found.adversaries] == [True, True, True, False]


def test_with_local_noise_nobody_helps(key):
    _, event, found = run("local_dp", key)
    first, averages = found.adversaries
    assert first.who == "the server and any number of clients"
    arrived = (found.reached > adversaries.NEVER).sum(axis=0)
    np.testing.assert_allclose(
        first.mu, np.sqrt(arrived) / event.mechanism.noise_multiplier, rtol=1e-12
    )
    assert np.all(averages.mu < first.mu)


def test_a_secure_sums_table_counts_the_noise_in_each_sum(key):
    config, event, found = run(
        "smpc_dp", key, max_stragglers=2, straggler_law="bernoulli", link_failure_prob=0.3
    )
    answered = found.reached == adversaries.IN_TIME
    counts = answered.sum(axis=1)
    assert (
        set(counts) <= {0, 4, 5, 6} and 0 in counts and len(set(counts)) > 2
    )  # some rounds were aborted
    share = 4.0 / np.sqrt(NUM - 1 - 2)
    for row, colluders in zip(found.adversaries, (1, 0, NUM - 1), strict=True):
        square = np.zeros(NUM)
        for there, count in zip(answered, counts, strict=True):
            square += there / (
                max(count - colluders, 1) * share**2
            )  # sensitivity: two clip norms, 1
        np.testing.assert_allclose(row.mu, np.sqrt(square), rtol=1e-12)
    promised = np.sqrt(ROUNDS) / event.mechanism.noise_multiplier
    assert found.adversaries[0].mu.max() < promised < found.adversaries[2].mu.max()
    assert config.max_colluders == 1 and not found.adversaries[2].promised
