"""Pair noise: who gets which bits, that it cancels, and its law."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fljax_kernels import (
    _platforms,
    chacha20,
    client_pair_noise,
    joint_pair_noise,
    pair_keys,
    pair_noise,
)
from fljax_kernels import _threefry as threefry
from fljax_kernels.pairwise import by_client, graphs, reference, streamed
from fljax_kernels.pairwise.cases import CASES

optimized = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")


def flat(tree, num_clients):
    """`[N, D]` NumPy."""
    leaves = [np.asarray(leaf).reshape(num_clients, -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves, axis=1)


def assert_same_bits(a, b):
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(
            np.asarray(x).view(np.uint32), np.asarray(y).view(np.uint32)
        ),
        a,
        b,
    )


def laplacian(edges, variance, num_clients):
    matrix = np.zeros((num_clients, num_clients))
    for (i, j), v in zip(edges, np.broadcast_to(variance, len(edges)), strict=True):
        matrix[[i, j], [i, j]] += v
        matrix[[i, j], [j, i]] -= v
    return matrix


def assert_the_reference(rows, keys, edges, stddev):
    num_clients, size = rows.shape
    exact = reference.pair_noise(keys, edges, num_clients, size, stddev)
    # One rounding of each product (two at the reference's), one of each sum, whose terms are within
    # 5.42 stddevs.
    reach = 5.42 * (np.abs(laplacian(edges, stddev, num_clients)).sum(axis=1) / 2)
    degree = np.bincount(edges.ravel(), minlength=num_clients)
    assert np.all(np.abs(rows - exact) <= ((degree + 3) * 2.0**-24 * reach)[:, None])


@optimized
def test_a_keys_stream_is_that_of_jax_random_normal(key):
    found = jax.jit(threefry.half_variance_normals)(
        jax.random.key_data(key), jnp.arange(100_003, dtype=jnp.uint32)
    )
    expected = jax.random.normal(jax.random.clone(key), (100_003,))
    np.testing.assert_array_equal(np.asarray(found) * np.float32(np.sqrt(2)), expected)


@optimized
@pytest.mark.slow(
    reason="compiles the noise of all pairs of a cohort",
    ids=["two_clients", "regular", "out", "wide"],
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_the_reference_and_each_client_computes_its_own_bit_for_bit(case, key):
    edges, stddev, like = case.edges(), case.stddev(), case.like()
    noise = pair_noise(key, edges, case.num_clients, like, stddev)
    for name, x in like.items():
        assert (noise[name].shape, noise[name].dtype) == ((case.num_clients, *x.shape), jnp.float32)
    rows, keys = flat(noise, case.num_clients), pair_keys(key, edges)
    assert_the_reference(rows, keys, edges, stddev)
    alone = jax.jit(lambda keys, client, peers, s: client_pair_noise(keys, client, peers, like, s))
    for client in (case.num_clients // 2,):
        mine = np.flatnonzero((edges == client).any(axis=1))
        peers = edges[mine].sum(axis=1) - client
        own = alone(keys[mine], client, peers, stddev[mine])
        assert_same_bits(own, jax.tree.map(lambda leaf, c=client: leaf[c], noise))


@optimized
@pytest.mark.slow(reason="compiles the noise of all pairs of a cohort")
def test_jit_vmap_and_devices_give_the_same_bits(key):
    edges, like, stddev = graphs.circulant(8, 4), jnp.zeros(4096), 2.0
    eager = pair_noise(key, edges, 8, like, stddev)
    one = functools.partial(
        pair_noise, edges=jnp.asarray(edges), num_clients=8, like=like, stddev=stddev
    )
    rounds = jax.vmap(one)(jnp.stack([key, jax.random.fold_in(key, 1)]))
    assert_same_bits(rounds[0], eager)
    assert_same_bits(rounds[1], one(jax.random.fold_in(key, 1)))
    mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = NamedSharding(mesh, PartitionSpec(None, "model"))
    assert_same_bits(jax.jit(one, out_shardings=spread)(key), eager)


@optimized
@pytest.mark.slow(reason="compiles the noise of all pairs of a cohort")
def test_clients_of_a_cohort_may_be_vmapped(key):
    # On a regular graph every client has as many peers: one program for all, each edge drawn twice.
    edges = graphs.k_regular(10, 3, np.random.default_rng(0))
    mine = np.stack([np.flatnonzero((edges == client).any(axis=1)) for client in range(10)])
    peers = edges[mine].sum(axis=2) - np.arange(10)[:, None]
    keys = pair_keys(key, edges)
    rows = jax.vmap(lambda k, c, p: client_pair_noise(k, c, p, jnp.zeros(300), 2.0))(
        keys[mine], jnp.arange(10), peers
    )
    assert_same_bits(rows, pair_noise(keys, edges, 10, jnp.zeros(300), 2.0))


@pytest.mark.optimized(reason="bounds the difference of two programs by one rounding", only=True)
@pytest.mark.parametrize("num_clients", [2, 50, 2000])
def test_masks_cancel_with_and_without_stragglers(num_clients, key):
    rng = np.random.default_rng(num_clients)
    edges = (
        graphs.complete(num_clients) if num_clients <= 50 else graphs.k_regular(num_clients, 8, rng)
    )
    stddev = rng.uniform(0.5, 1.0, len(edges)).astype(np.float32)
    keys = pair_keys(key, edges)
    rows = np.asarray(pair_noise(keys, edges, num_clients, jnp.zeros(64), stddev), np.float64)
    whole = np.asarray(
        pair_noise(keys, edges, num_clients, jnp.zeros(64), stddev * 2**16, form="ring")
    )
    each = (
        np.asarray(jax.vmap(lambda k: jax.random.normal(k, (64,)))(keys), np.float64)
        * stddev[:, None]
    )
    ints = each_edge(keys, stddev * 2**16)
    for gone in sorted({0, 1, num_clients // 3, num_clients - 1}):
        stays = np.ones(num_clients, bool)
        stays[rng.permutation(num_clients)[:gone]] = False
        # What is left is the noise on the edges between those who stay and those who are gone.
        low, high = stays[edges[:, 0]], stays[edges[:, 1]]
        sign = (low.astype(int) - high)[:, None]
        # The specification's bound on float32 rounding.
        assert (
            np.abs(rows[stays].sum(axis=0) - (sign * each).sum(axis=0)).max() <= 1e-5 * num_clients
        )
        # Integers lose nothing: exactly the noise of these edges, and zero where nobody is gone.
        total = whole[stays].sum(axis=0, dtype=np.uint32).view(np.int32)
        np.testing.assert_array_equal(total, (sign * ints).sum(axis=0))
        assert gone or not total.any()
    # One rounding for each edge, from a product with an error of 2**-23 of 5.42 * 2**16.
    assert np.abs(ints - each * 2**16).max() <= 0.55


def each_edge(keys, stddev):
    """Every edge's whole-number noise `[E, 64]`, as its lower end alone would draw it."""

    def one(key, stddev):
        return client_pair_noise(
            key[None], 0, np.asarray([1]), jnp.zeros(64), stddev[None], form="ring"
        )

    return np.asarray(jax.vmap(one)(keys, jnp.asarray(stddev))).view(np.int32).astype(np.int64)


@optimized
def test_the_ring_form_is_the_rounded_float_form(key):
    edges, like = graphs.complete(2), jnp.zeros(5000)
    real, whole = (pair_noise(key, edges, 2, like, 100.0, form=form) for form in ("float", "ring"))
    assert whole.dtype == jnp.uint32
    np.testing.assert_array_equal(np.asarray(whole).view(np.int32), np.round(real))


def covariance_and_error(rows):
    """Sample covariance over columns, mean known to be 0, and the standard error of each entry."""
    rows = np.asarray(rows, np.float64)
    found = rows @ rows.T / rows.shape[1]
    variance = np.diagonal(found)
    return found, np.sqrt((np.outer(variance, variance) + found**2) / rows.shape[1])


@pytest.mark.parametrize("form", ["pairs", "joint"])
def test_the_covariance_is_the_graphs_laplacian(form, key):
    edges, like = graphs.complete(6), jnp.zeros(200_000)
    stddev = 1.5 if form == "joint" else np.linspace(0.5, 2.0, 15).astype(np.float32)
    rows = (
        joint_pair_noise(key, 6, like, 1.5)
        if form == "joint"
        else pair_noise(key, edges, 6, like, stddev)
    )
    found, error = covariance_and_error(rows)
    assert np.all(np.abs(found - laplacian(edges, np.square(stddev), 6)) <= 5 * error)
    # Positive control: one edge less is seen.
    assert np.any(
        np.abs(found - laplacian(edges[1:], np.broadcast_to(np.square(stddev), 15)[1:], 6))
        > 5 * error
    )
    assert np.abs(np.asarray(rows, np.float64).sum(axis=0)).max() <= 1e-5 * 1.5 * 6


def test_rounds_and_domains_are_independent(key):
    edges, like = graphs.complete(3), jnp.zeros(50_000)
    rows = [pair_noise(jax.random.fold_in(key, t), edges, 3, like, 1.0)[0] for t in range(2)]
    rows += [
        joint_pair_noise(jax.random.fold_in(key, 0), 3, like, 1.0)[0],
        jax.random.normal(jax.random.fold_in(key, 0), (50_000,)),
    ]
    assert np.abs(np.corrcoef(np.asarray(rows)) - np.eye(4)).max() <= 5 / np.sqrt(50_000)


def test_an_edges_key_does_not_depend_on_the_graph_and_differs_from_all_others(key):
    edges = graphs.complete(200)
    data = np.asarray(jax.random.key_data(pair_keys(key, edges)))
    assert len(np.unique(data, axis=0)) == 19_900
    few = np.asarray(jax.random.key_data(pair_keys(key, edges[777:779])))
    np.testing.assert_array_equal(few, data[777:779])


@pytest.mark.slow(reason="compiles the noise of all pairs of a cohort")
def test_noise_is_linear_in_its_stddev(key):
    edges, stddev = graphs.circulant(5, 2), jnp.arange(1.0, 6.0)
    noise, slope = jax.jvp(
        lambda s: pair_noise(key, edges, 5, jnp.zeros(7), s), (stddev,), (stddev,)
    )
    np.testing.assert_allclose(slope, noise, rtol=1e-5, atol=1e-5)


def test_no_edge_and_zero_stddev_give_zero(key):
    assert not np.any(pair_noise(key, np.zeros((0, 2), np.int32), 4, jnp.zeros(3), 1.0))
    assert not np.any(pair_noise(key, graphs.complete(4), 4, jnp.zeros(3), 0.0))


@optimized
def test_the_program_holds_the_result_and_a_few_blocks():
    num_clients, size = 100, 10**6
    edges = jnp.asarray(graphs.complete(num_clients))
    program = jax.jit(lambda key: pair_noise(key, edges, num_clients, jnp.zeros(size), 1.0))
    memory = program.lower(jax.random.key(0)).compile().memory_analysis()
    assert memory.output_size_in_bytes <= 4 * num_clients * size + 64
    assert memory.temp_size_in_bytes <= 16 * streamed.BLOCK + 200 * len(edges)


ACCELERATORS = ("cuda", "tpu")
several_clients = pytest.mark.parametrize("case", [c for c in CASES if len(c.edges())], ids=str)


def compiled_for(platform, fun):
    """`fun` as it is traced for a platform; it runs here all the same."""

    def traced(*args):
        with _platforms.only(platform):
            return fun(*args)

    return jax.jit(traced)


@pytest.mark.optimized(reason="compares the bits of two programs", only=True)
@several_clients
@pytest.mark.parametrize("platform", ACCELERATORS)
def test_accelerators_make_client_by_client_what_the_stream_makes_of_edges(
    platform, case, key, monkeypatch
):
    """The reference in floats; in whole numbers, each client's own too, bit for bit."""
    monkeypatch.setattr(by_client, "_AT_ONCE", 4)  # so that 11 neighbours take three passes
    edges, stddev, like, count = case.edges(), case.stddev(), case.like(), case.num_clients
    keys = pair_keys(key, edges)
    noise = compiled_for(platform, lambda keys: pair_noise(keys, edges, count, like, stddev))
    assert_the_reference(flat(noise(keys), count), keys, edges, stddev)
    whole = functools.partial(pair_noise, form="ring", stddev=stddev * 2**12)
    found = compiled_for(platform, lambda keys: whole(keys, edges, count, like))(keys)
    assert_same_bits(found, whole(keys, edges, count, like))
    mine = np.flatnonzero((edges == 1).any(axis=1))
    own = functools.partial(client_pair_noise, form="ring", stddev=stddev[mine] * 2**12)
    peers = edges[mine].sum(axis=1) - 1
    alone = compiled_for(platform, lambda keys, client: own(keys, client, peers, like))
    assert_same_bits(alone(keys[mine], 1), jax.tree.map(lambda leaf: leaf[1], found))


@pytest.mark.optimized(reason="compares the bits of one program's rows", only=True)
@pytest.mark.parametrize("platform", ACCELERATORS)
def test_on_accelerators_an_edge_cancels_and_a_client_makes_its_row_up_to_rounding(platform, key):
    """Whether the client's number is known as its program is traced, or not."""
    two = compiled_for(platform, lambda key: pair_noise(key, PAIR, 2, jnp.zeros(300), 3.0))(key)
    np.testing.assert_array_equal(two[0], -two[1])
    edges = graphs.circulant(9, 4)
    keys, mine = pair_keys(key, edges), np.flatnonzero((edges == 1).any(axis=1))
    rows = compiled_for(platform, lambda keys: pair_noise(keys, edges, 9, jnp.zeros(300), 3.0))
    peers = edges[mine].sum(axis=1) - 1
    own = lambda keys, client: client_pair_noise(keys, client, peers, jnp.zeros(300), 3.0)
    for alone in (own, functools.partial(own, client=1)):
        given = (keys[mine], 1) if alone is own else (keys[mine],)
        found = compiled_for(platform, alone)(*given)
        np.testing.assert_allclose(found, rows(keys)[1], rtol=0, atol=1e-5)
        assert np.std(found) > 3


@pytest.mark.slow(reason="compiles two more forms for several sizes")
@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("platform", ACCELERATORS)
def test_accelerators_give_rounds_side_by_side_and_a_client_without_neighbours_theirs(
    platform, size, key
):
    edges, stddev = np.array([[0, 1], [1, 2]], np.int32), jnp.array([300.0, 5000.0])
    keys = jax.vmap(lambda t: pair_keys(jax.random.fold_in(key, t), edges))(jnp.arange(2))
    noise = lambda keys: pair_noise(keys, edges, 4, jnp.zeros(size), stddev, form="ring")
    found = np.asarray(compiled_for(platform, jax.vmap(noise))(keys))
    np.testing.assert_array_equal(found, jax.vmap(noise)(keys))
    assert not found[:, 3].any() and found[:, 1].any()
    assert not found.sum(axis=1, dtype=np.uint32).any()


@pytest.mark.slow(reason="compiles the noise of all pairs of a cohort")
@pytest.mark.parametrize("platform", ACCELERATORS)
def test_on_accelerators_noise_is_linear_in_its_stddev_too(platform, key):
    edges, stddev = graphs.circulant(5, 2), jnp.arange(1.0, 6.0)
    noise = lambda stddev: pair_noise(key, edges, 5, jnp.zeros(7), stddev)
    found, slope = compiled_for(platform, lambda s: jax.jvp(noise, (s,), (s,)))(stddev)
    np.testing.assert_allclose(slope, found, rtol=1e-5, atol=1e-5)
    total = lambda stddev: noise(stddev)[0].sum()
    by_stddev = compiled_for(platform, jax.grad(total))(stddev)
    np.testing.assert_allclose(stddev @ by_stddev, total(stddev), rtol=1e-4)


def lowered_for_each(fun, *args):
    """Whether there is a loop, and whether a window, by platform."""
    traced = jax.jit(fun).trace(*args)
    texts = [traced.lower(lowering_platforms=(p,)).as_text() for p in _platforms.PLATFORMS]
    return [("stablehlo.while" in text, "reduce_window" in text) for text in texts]


def test_a_cpu_loops_over_edges_a_gpu_adds_in_a_window_and_a_tpu_in_turn(key):
    noise = lambda key: pair_noise(key, PAIR, 2, jnp.zeros(5), 1.0)
    assert lowered_for_each(noise, key) == [(True, False), (False, True), (False, False)]


@pytest.mark.slow(reason="lowers three programs for each platform")
def test_all_platforms_loop_over_edges_that_are_traced_and_edges_of_chacha20_keys(key):
    noise = lambda key, edges: pair_noise(key, edges, 2, jnp.zeros(5), 1.0)
    assert lowered_for_each(noise, key, jnp.asarray(PAIR)) == [(True, False)] * 3
    of_cipher = functools.partial(noise, edges=PAIR)
    found = lowered_for_each(of_cipher, jax.random.key(1, impl=chacha20.IMPL))
    assert [loop for loop, _ in found] == [True] * 3 and not found[1][1]
    exported = jax.export.export(
        jax.jit(functools.partial(noise, edges=PAIR)), platforms=_platforms.PLATFORMS
    )
    text = exported(key).mlir_module()
    assert "stablehlo.while" in text and "reduce_window" in text
    np.testing.assert_array_equal(exported(key).call(key), noise(key, PAIR))


def test_a_clients_edges_stand_in_the_order_of_its_neighbours_numbers():
    edges, count = graphs.random_out(15, 2, np.random.default_rng(0)), 15
    mine, sign = by_client.neighbours(edges, count)
    for client in range(count):
        (own,) = np.nonzero((edges == client).any(axis=1))
        peers = edges[own].sum(axis=1) - client
        own, peers = own[np.argsort(peers)], np.sort(peers)
        np.testing.assert_array_equal(mine[client, : len(own)], own)
        np.testing.assert_array_equal(sign[client, : len(own)], np.where(peers > client, 1, -1))
        assert not sign[client, len(own) :].any()
    # One client with all neighbours: others would draw as often as it does.
    star = np.stack([np.zeros(20, np.int32), np.arange(1, 21, dtype=np.int32)], axis=1)
    assert by_client.neighbours(star, 21) is None
    assert by_client.neighbours(np.zeros((0, 2), np.int32), 4) is None


@pytest.mark.parametrize(
    ("edges", "num_clients", "degrees"),
    [
        (graphs.complete(7), 7, {6}),
        (graphs.circulant(12, 4), 12, {4}),
        (graphs.circulant(12, 5), 12, {5}),
        (graphs.k_regular(1000, 20, np.random.default_rng(0)), 1000, {20}),
        (graphs.k_regular(2, 1, np.random.default_rng(0)), 2, {1}),
        (graphs.random_out(30, 2, np.random.default_rng(0)), 30, None),
        (graphs.from_pairs([[2, 1], [0, 1]], 3), 3, {1, 2}),
    ],
)
def test_built_graphs_are_sorted_connected_and_of_their_degree(edges, num_clients, degrees):
    graphs.check_sorted(edges, num_clients)
    assert not graphs.unreached(edges, num_clients).size and edges.dtype == np.int32
    found = set(np.bincount(edges.ravel(), minlength=num_clients).tolist())
    assert found == degrees if degrees else min(found) >= 2


def test_neighbours_on_a_random_regular_graph_are_a_uniform_subset():
    # 6 clients of degree 3: each other client is a neighbour with chance 3/5, each pair of others
    # with 3/10.
    together = np.zeros((5, 5))
    rng, draws = np.random.default_rng(0), 1500
    for _ in range(draws):
        edges = graphs.k_regular(6, 3, rng)
        near = np.zeros(5)
        near[edges[edges[:, 0] == 0, 1] - 1] = 1
        together += np.outer(near, near)
    expected = np.where(np.eye(5), 0.6, 0.3)
    assert np.abs(together / draws - expected).max() <= 5 * np.sqrt(0.25 / draws)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graphs.from_pairs([[0, 1], [2, 3]], 4), "no path from client 0 to client 2"),
        (
            lambda: graphs.from_pairs([[0, 1], [1, 0]], 2),
            r"every pair once in edges, got \[0, 1\] twice",
        ),
        (lambda: graphs.from_pairs([[1, 1]], 2), r"between two clients, got edges\[0\]=\[1, 1\]"),
        (lambda: graphs.from_pairs([[0, 5]], 2), r"between clients 0\.\.1, got 0\.\.5"),
        (lambda: graphs.from_pairs([[0.0, 1.0]], 2), r"integers \[E, 2\], got float64"),
        (lambda: graphs.from_pairs([], 2), "no path from client 0 to client 1"),
        (
            lambda: graphs.k_regular(5, 3, np.random.default_rng(0)),
            "even degree for 5 clients, got degree=3",
        ),
        (
            lambda: graphs.k_regular(6, 1, np.random.default_rng(0)),
            "degree >= 2 for a connected graph",
        ),
        (lambda: graphs.circulant(4, 4), "degree < num_clients=4, got degree=4"),
        (
            lambda: graphs.random_out(4, 0, np.random.default_rng(0)),
            "out_degree to be an integer >= 1",
        ),
        (lambda: graphs.complete(0), "num_clients to be an integer >= 1, got num_clients=0"),
    ],
)
def test_bad_graphs_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


PAIR = np.array([[0, 1]], np.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda k: pair_noise(k, PAIR[:, ::-1], 2, jnp.zeros(3), 1.0),
            "edges sorted, smaller client first",
        ),
        (lambda k: pair_noise(k, np.repeat(PAIR, 2, 0), 2, jnp.zeros(3), 1.0), "every pair once"),
        (lambda k: pair_noise(k, PAIR * 0, 2, jnp.zeros(3), 1.0), "between two clients"),
        (lambda k: pair_keys(k, PAIR[:, ::-1]), "edges with the smaller client first"),
        (lambda k: pair_keys(k, [[0, 1], [1, 2], [0, 1]]), "every pair once"),
        (lambda k: pair_keys(k, [[0, -1]]), "between clients"),
        (lambda k: pair_noise(k, PAIR, 1, jnp.zeros(3), 1.0), r"between clients 0\.\.0"),
        (lambda k: pair_noise(k, PAIR[0], 2, jnp.zeros(3), 1.0), r"integers \[E, 2\]"),
        (
            lambda k: pair_noise(jax.random.split(k, 2), PAIR, 2, jnp.zeros(3), 1.0),
            "one for each of 1 edges",
        ),
        (
            lambda k: pair_noise(jnp.zeros(2, jnp.uint32), PAIR, 2, jnp.zeros(3), 1.0),
            "typed threefry key",
        ),
        (
            lambda k: pair_noise(jax.random.key(0, impl="rbg"), PAIR, 2, jnp.zeros(3), 1.0),
            "threefry key, got key<rbg>",
        ),
        (
            lambda k: pair_noise(k, PAIR, 2, jnp.zeros(3), -1.0),
            "stddev >= 0 and finite, got stddev=-1.0",
        ),
        (lambda k: pair_noise(k, PAIR, 2, jnp.zeros(3), np.nan), "stddev >= 0 and finite"),
        (
            lambda k: pair_noise(k, PAIR, 2, jnp.zeros(3), jnp.ones(2)),
            r"stddev to be a scalar or of shape \(1,\)",
        ),
        (
            lambda k: pair_noise(k, PAIR, 2, jnp.zeros(3), 2.0**29, form="ring"),
            r"stddev <= 2\*\*28 grid units",
        ),
        (
            lambda k: pair_noise(k, PAIR, 2, jnp.zeros(3), 1.0, form="mod"),
            "form to be 'float' or 'ring'",
        ),
        (lambda k: pair_noise(k, PAIR, 2, jnp.zeros(3, int), 1.0), "like with floating leaves"),
        (lambda k: pair_noise(k, PAIR, 0, jnp.zeros(3), 1.0), "num_clients to be an integer >= 1"),
        (
            lambda k: pair_noise(k, PAIR, 2, jax.ShapeDtypeStruct((2**31,), jnp.float32), 1.0),
            r"fewer than 2\*\*31",
        ),
        (
            lambda k: client_pair_noise(k, 0, [1], jnp.zeros(3), 1.0),
            r"keys to be \[K\] typed threefry keys",
        ),
        (
            lambda k: client_pair_noise(k[None], 0, [1, 2], jnp.zeros(3), 1.0),
            r"peers of shape \(1,\)",
        ),
        (
            lambda k: client_pair_noise(k[None], 1, [1], jnp.zeros(3), 1.0),
            "peers other than client=1",
        ),
        (
            lambda k: client_pair_noise(jax.random.split(k, 2), 1, [3, 2], jnp.zeros(3), 1.0),
            "peers >= 0, ascending",
        ),
        (lambda k: joint_pair_noise(k[None], 2, jnp.zeros(3), 1.0), "one typed threefry key"),
        (lambda k: joint_pair_noise(k, 2, jnp.zeros(3), jnp.ones(2)), "stddev to be a scalar"),
    ],
)
def test_bad_arguments_are_named(call, message, key):
    with pytest.raises(ValueError, match=message):
        call(key)
