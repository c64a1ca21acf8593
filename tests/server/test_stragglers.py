import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.server import stragglers


def test_laws_have_their_closed_forms():
    assert stragglers.fixed(3).tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(stragglers.uniform(10), np.full(11, 1 / 11))
    binomial = [math.comb(50, s) * 0.05**s * 0.95 ** (50 - s) for s in range(51)]
    np.testing.assert_allclose(stragglers.bernoulli(50, 0.05), binomial, rtol=1e-10)
    cut = stragglers.bernoulli(50, 0.05, most=10)
    np.testing.assert_allclose(cut, np.asarray(binomial[:11]) / sum(binomial[:11]), rtol=1e-10)
    assert stragglers.bernoulli(50, 0.0).tolist() == [1.0]
    # Specification, oracle O9.
    np.testing.assert_allclose(
        stragglers.more_than(stragglers.bernoulli(50, 0.05), 10), 2.964604953e-5, rtol=1e-8
    )
    np.testing.assert_allclose(
        stragglers.at_most(stragglers.bernoulli(50, 0.05), 10), 1 - 2.964604953e-5, rtol=1e-12
    )
    np.testing.assert_allclose(
        stragglers.at_most(stragglers.bernoulli(9, 0.999), 0), 1e-27, rtol=1e-9
    )
    np.testing.assert_allclose(1 - stragglers.peers_and_server(49, 0.05), 0.0809947108, rtol=1e-8)
    np.testing.assert_allclose(1 - stragglers.peers_and_server(50, 0.05), 0.0769449753, rtol=1e-8)
    np.testing.assert_allclose(50 * stragglers.peers_and_server(50, 0.05), 46.15275124, rtol=1e-8)


@pytest.mark.parametrize(
    "pmf",
    [stragglers.uniform(3), stragglers.bernoulli(8, 0.3), [0.5, 0, 0, 0.2, 0, 0, 0, 0, 0.3]],
    ids=str,
)
def test_draws_follow_the_law_and_choose_clients_alike(pmf, key):
    draws = 20_000
    found = jax.jit(jax.vmap(lambda k: stragglers.draw(k, pmf, 8, late_prob=0.25)))(
        jax.random.split(key, draws)
    )
    away, late = ~np.asarray(found.responds), np.asarray(found.late)
    counts = np.bincount(away.sum(axis=1), minlength=9) / draws
    law = np.pad(np.asarray(pmf), (0, 9 - len(pmf)))
    assert np.all(np.abs(counts - law) <= 5 * np.sqrt(law * (1 - law) / draws) + 1e-12)
    share = (law * np.arange(9)).sum() / 8
    error = 5 * np.sqrt(0.25 / draws)
    assert np.all(np.abs(away.mean(axis=0) - share) <= error)
    # Pairs too: P(both away) = E[S (S - 1)] / (N (N - 1)).
    both = (law * np.arange(9) * np.arange(-1, 8)).sum() / 56
    pairs = away.astype(float).T @ away / draws
    assert np.all(np.abs(pairs - both)[~np.eye(8, dtype=bool)] <= error)
    assert not np.any(late & ~away) and abs(late.mean() - share / 4) <= error
    np.testing.assert_array_equal(found.seen, ~away | late)


def test_chosen_clients_are_as_many_as_asked(key):
    assert [int(stragglers.chosen(jax.random.clone(key), 9, n).sum()) for n in (0, 4, 9)] == [
        0,
        4,
        9,
    ]
    assert jax.vmap(lambda n: stragglers.chosen(key, 9, n))(jnp.arange(3)).sum(axis=1).tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stragglers.fixed(-1), "count to be an integer >= 0, got count=-1"),
        (lambda: stragglers.uniform(1.5), "most to be an integer >= 0"),
        (lambda: stragglers.bernoulli(5, 1.0), r"link_failure_prob in \[0, 1\)"),
        (lambda: stragglers.bernoulli(5, 0.1, most=5), "most < num_clients=5, got most=5"),
        (lambda: stragglers.arbitrary([0.5, 0.4], 5), "sum 1"),
        (lambda: stragglers.arbitrary([1.5, -0.5], 5), "pmf"),
        (lambda: stragglers.arbitrary([0.0] * 6 + [1.0], 5), "s <= 5"),
        (lambda: stragglers.arbitrary([float("nan")], 5), "pmf"),
        (lambda: stragglers.draw(jax.random.key(0), [1.0], 5, late_prob=1.1), "late_prob"),
        (lambda: stragglers.peers_and_server(5, -0.1), "link_failure_prob >= 0"),
    ],
)
def test_bad_laws_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
