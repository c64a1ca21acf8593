import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.accounting.shared_noise import exact as view
from fljax.upload import key_agreement, pair_noise, secure_sum
from fljax_kernels.pairwise import graphs

optimized = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")

PARAMS = {"w": jnp.zeros((3, 4)), "b": jnp.zeros(5, jnp.bfloat16)}
EDGES = [[3, 1], [0, 1], [2, 0], [3, 2], [0, 3]]  # in no order
OWN, PAIR = [0.5, 0.8, 1.0, 0.6], [0.3, 0.2, 0.5, 0.4, 0.7]


def flat(tree, num_clients):
    return np.concatenate(
        [np.asarray(leaf).reshape(num_clients, -1) for leaf in jax.tree.leaves(tree)], axis=1
    )


@functools.cache  # a noise function compiles once
def default():
    return spec()


def spec(**changes):
    return pair_noise.cohort_noise(
        EDGES, **{"num_clients": 4, "own_stddev": OWN, "pair_stddev": PAIR, **changes}
    )


@optimized
@pytest.mark.slow(reason="compiles the noise of all pairs of a cohort")
def test_a_client_with_its_own_keys_computes_its_row(key):
    rows = default()(key, 7, PARAMS)
    alone = jax.jit(pair_noise.client_noise)
    for client in (0, 3):  # of three neighbours each, so that one program serves both
        agreement = key_agreement.SimulatedKeyAgreement(client, jax.random.clone(key))
        near = {
            sum(edge) - client: s for edge, s in zip(EDGES, PAIR, strict=True) if client in edge
        }
        peers = sorted(near)
        stddev = np.asarray([near[peer] for peer in peers], np.float32)
        keys = agreement.round_keys(7, peers), agreement.own_key(7)
        own = alone(
            *keys, client, np.asarray(peers), PARAMS, own_stddev=OWN[client], pair_stddev=stddev
        )
        for name, leaf in own.items():
            assert leaf.dtype == jnp.float32
            np.testing.assert_allclose(leaf, rows[name][client], rtol=1e-6, atol=1e-6)


@pytest.mark.slow(reason="compiles the noise of all pairs of a cohort", ids=["joint_law"])
@pytest.mark.parametrize("draw", ["pairs", "joint_law"])
def test_the_covariance_of_the_uploads_is_the_accountants(draw, key):
    n = 200_000
    if draw == "pairs":
        noise, edges, own, pair = spec(), EDGES, OWN, PAIR
    else:
        edges, own, pair = graphs.complete(4), 0.5, 0.7
        noise = pair_noise.cohort_noise(
            edges, num_clients=4, own_stddev=own, pair_stddev=pair, draw=draw
        )
    rows = np.asarray(noise(key, 0, jnp.zeros(n)), np.float64)
    graph = view.pair_graph(
        edges,
        num_clients=4,
        own_variance=np.square(own),
        pair_variance=np.square(np.broadcast_to(pair, len(edges))),
    )
    expected = np.asarray(view.covariance(graph))
    scale = np.sqrt((np.outer(np.diagonal(expected), np.diagonal(expected)) + expected**2) / n)
    assert np.all(np.abs(rows @ rows.T / n - expected) <= 5 * scale)
    # Removing a responder changes the noise of the average as equation (9) says.
    for responds in (np.ones(4, bool), np.asarray([True, False, True, True])):
        found = np.mean(rows[responds].mean(axis=0) ** 2)
        exact = float(view.average_variance(graph, responds))
        assert abs(found / exact - 1) <= 5 * np.sqrt(2 / n)


@optimized
@pytest.mark.slow(reason="compiles the noise of all pairs of a cohort")
def test_a_round_repeats_and_another_round_does_not(key):
    noise = default()
    first, again, other = (flat(noise(jax.random.clone(key), t, PARAMS), 4) for t in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)


@optimized
@pytest.mark.slow(reason="compiles the noise of all pairs of a cohort")
def test_edges_without_noise_are_not_drawn(key):
    with_zero = spec(pair_stddev=[0.3, 0.2, 0.5, 0.4, 0.0])(key, 0, PARAMS)
    without = pair_noise.cohort_noise(
        EDGES[:4], num_clients=4, own_stddev=OWN, pair_stddev=PAIR[:4]
    )(key, 0, PARAMS)
    np.testing.assert_array_equal(flat(with_zero, 4), flat(without, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spec(num_clients=5, own_stddev=1.0), "no path from client 0 to client 4"),
        (lambda: spec(own_stddev=[1.0]), r"own_stddev of shape \[\] or \[4\]"),
        (lambda: spec(pair_stddev=-1.0), "pair_stddev >= 0 and finite"),
        (lambda: spec(draw="joint"), "draw to be one of"),
        (lambda: spec(draw="joint_law"), "graph that is not complete with one pair_stddev"),
        (
            lambda: pair_noise.cohort_noise(
                [[0, 1], [1, 0]], num_clients=2, own_stddev=1, pair_stddev=1
            ),
            "once in edges",
        ),
    ],
)
def test_bad_noise_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_ideal_secure_sum_holds_its_noise_or_releases_nothing(key):
    n, stddev = (
        100_000,
        secure_sum.share_stddev(2.0, num_clients=10, max_colluders=3, max_stragglers=3),
    )
    assert stddev == 1.0
    total = {"w": jnp.full(n, 5.0)}
    run = jax.jit(
        lambda k, count: secure_sum.secure_sum(k, total, count, stddev=stddev, least_responders=7)
    )
    for count, completed in ((10, True), (7, True), (6, False)):
        found = run(jax.random.fold_in(key, count), jnp.asarray(count))
        assert bool(found.completed) == completed
        if completed:
            # Colluders' noise is in it too: 7 responders, 3 of them colluders, leave 4 = 2.0**2
            # unknown.
            noise = np.asarray(found.total["w"], np.float64) - 5
            assert abs(np.mean(noise**2) / count - 1) <= 5 * np.sqrt(2 / n)
        else:
            assert not np.any(found.total["w"])


def test_a_secure_sum_without_honest_noise_is_refused():
    with pytest.raises(ValueError, match=r"max_colluders \+ max_stragglers < 50 clients"):
        secure_sum.share_stddev(1.0, num_clients=50, max_colluders=40, max_stragglers=10)
    with pytest.raises(ValueError, match="least_responders"):
        secure_sum.secure_sum(
            jax.random.key(0), jnp.zeros(2), jnp.asarray(1), stddev=1.0, least_responders=0
        )
