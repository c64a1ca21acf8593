"""Sums of whole numbers about per-example gradients: bounds that always hold, means and norms by
closed form.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax import models
from fljax.upload import exact_noise

B, P, Q = 12, 9, 7
ROW = np.random.default_rng(0).normal(size=(2, B, 16)).astype(np.float32)


def layer(params, example):
    """The gradient is x (outer) y of a matrix, and y of a bias."""
    return jnp.vdot(example["x"] @ params["w"] + params["b"], example["y"])


def tied(params, example):
    """A matrix that an example meets twice, so that its rows are held."""
    w = params["w"]
    return jnp.vdot(example["x"] @ w, example["y"]) + jnp.vdot(w @ example["y"], example["x"])


def network(kind, shape, **given):
    made = models.create(kind, example_shape=shape, num_classes=10, key=jax.random.key(1), **given)
    rng = np.random.default_rng(1)
    batch = {"x": rng.normal(size=(B, *shape)).astype(np.float32), "y": rng.integers(0, 10, B)}
    return models.softmax_cross_entropy(made.apply), made.params, jax.tree.map(jnp.asarray, batch)


@functools.cache
def case(name):
    """(loss, params, batch), and the largest product."""
    params = {"w": jnp.zeros((P, Q)), "b": jnp.zeros(Q)}
    batch = {"x": jnp.asarray(ROW[0, :, :P]), "y": jnp.asarray(ROW[1, :, :Q])}
    if name == "layer":
        return layer, params, batch
    if name == "tied":
        return tied, {"w": jnp.zeros((P, P))}, batch | {"y": jnp.asarray(ROW[1, :, :P])}
    if name == "mlp":
        return network("mlp", (20,), hidden=(16, 12))
    return network("cnn", (8, 8, 1))


@functools.cache
def sums(name, method="taps", number=None):
    """(key, mask, batch, places, most, size) -> whole numbers, of rows made `size` long; number: in
    place of `most`, as one for all.
    """
    loss, params, _ = case(name)
    G = fljax_kernels.per_example_grads(loss, method=method)

    def fun(key, mask, batch, places, most, size):
        bound = jnp.broadcast_to(most, mask.shape) if number is None else number
        clip = lambda norms: jnp.where(norms > 0, size / norms, 0.0)
        return G(params, batch, batch_mask=mask).grid_sum(key, clip, bound, places)[0]

    return jax.jit(fun)


def flat(tree):
    """Int64 `[D]`."""
    return np.concatenate([np.asarray(z, np.int64).ravel() for z in jax.tree.leaves(tree)])


def each(fun, key, batch, *sizes):
    """The rows `[B, D]`, every one alone, by the same program."""
    with jax.debug_key_reuse(False):
        one = lambda i: fun(key, jnp.arange(B) == i, batch, jnp.arange(B), *sizes)
        return np.stack([flat(one(i)) for i in range(B)])


def given(most, size):
    return np.uint32(most), np.float32(size)


@pytest.mark.parametrize(
    "name",
    ["layer"]
    + [
        pytest.param(name, marks=pytest.mark.slow(reason="compiles one more network's gradients"))
        for name in ("tied", "mlp", "cnn")
    ],
)
def test_each_row_has_a_bounded_norm_in_whole_numbers_and_their_sum_is_exact(name, key):
    _, params, batch = case(name)
    fun, places, everybody = sums(name), jnp.arange(B), jnp.ones(B, bool)
    for most, size in ((2000**2, 1e9), (37**2, 1e3), (0, 10.0), (65535**2, 65535.0)):
        made, sizes = jax.random.fold_in(key, most), given(most, size)
        rows = each(fun, made, batch, *sizes)
        with jax.debug_key_reuse(False):
            total = fun(made, everybody, batch, places, *sizes)
            back = jax.tree.map(lambda z: z[::-1], batch)
            reversed_total = fun(made, everybody, back, places[::-1], *sizes)
        squares = np.sum(rows**2, axis=1)
        assert squares.max() <= most
        if most:
            assert (squares > 0).all() and squares.max() >= 0.8 * most
        # Whatever is added up together: a row depends on nothing but itself and its place.
        assert np.array_equal(flat(total), rows.sum(axis=0))
        assert np.array_equal(flat(reversed_total), flat(total))
        shapes = [z.shape for z in jax.tree.leaves(params)]
        assert [z.shape for z in jax.tree.leaves(total)] == shapes


@pytest.mark.slow(reason="compiles the sum by one more method", but=["taps"])
@pytest.mark.parametrize("method", ["taps", "vmap"])
def test_the_bound_holds_whatever_a_row_holds(method, key):
    sizes = np.float32([1, 1e-30, 1e30, np.inf, np.nan, 0, 1e-45, 1e18, 3e37, 1, 1e9, 1])
    x = jnp.asarray(ROW[0, :, :P] * sizes[:, None])
    y = jnp.asarray(ROW[1, :, :Q]) * jnp.float32([1] * 9 + [1e30, 1e-9, np.nan])[:, None]
    rows = each(sums("layer", method), key, {"x": x, "y": y}, *given(10**6, 1e3))
    squares = np.sum(rows**2, axis=1)
    assert squares.max() <= 10**6
    # Of one whose square is not finite nothing is left; others count, of a zero x by the bias.
    assert not squares[[2, 3, 4, 8, 9, 11]].any() and (squares[[0, 1, 5, 6, 7, 10]] > 0).all()


@pytest.mark.slow(reason="compiles large networks")
@pytest.mark.parametrize(("kind", "share"), [("softmax", 0.97), ("mlp", 0.99)])
def test_clipped_rows_end_near_the_bound(kind, share, key):
    """As docs/explain/integer_noise.md says of 784 dense numbers at a noise multiplier of 1."""
    sizes = {"hidden": (256, 128)} if kind == "mlp" else {}
    loss, params, one = network(kind, (784,), **sizes)
    x = np.random.default_rng(5).normal(size=(60, 784)).astype(np.float32)
    batch = {"x": jnp.asarray(x), "y": jnp.tile(one["y"], 5)}
    G = fljax_kernels.per_example_grads(loss, method="taps")
    longest, places = exact_noise.STDDEV, jnp.arange(60)

    @jax.jit
    def alone(i):
        made = G(params, batch, batch_mask=places == i)
        most = jnp.full(60, math.floor(longest**2), jnp.uint32)
        total = made.grid_sum(key, lambda norms: longest / norms, most, places)[0]
        return jnp.sqrt(sum(jnp.sum(jnp.square(z.astype(float))) for z in jax.tree.leaves(total)))

    with jax.debug_key_reuse(False):
        lengths = np.stack([alone(i) for i in range(60)]) / longest
    # A row's length scatters by .023 at most: three standard errors of the mean.
    assert lengths.max() <= 1 and lengths.mean() == pytest.approx(share, abs=0.009)


@pytest.mark.slow(reason="draws thousands of times")
def test_means_norms_and_independence_are_those_of_the_closed_form(key):
    x = np.zeros((2, P), np.float32)
    x[:, :4] = [3.0, -1.0, 0.4, 2.2]  # alike rows, the worst case for errors that add up
    y = np.float32(np.tile(ROW[1, :1, :Q], (2, 1)))
    batch = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    loss, params, _ = case("layer")
    loss = lambda params, e: layer({"w": params["w"], "b": jnp.zeros(Q)}, e)
    G = fljax_kernels.per_example_grads(loss, method="taps")
    most, trials = jnp.full(2, 10**6, jnp.uint32), 20_000

    def one(key):
        made = G({"w": params["w"]}, batch)
        of = lambda keep: made.grid_sum(key, lambda n: keep * 20.0 / n, most, jnp.arange(2))[0]["w"]
        return of(jnp.float32([1, 0])), of(jnp.float32([0, 1]))

    with jax.debug_key_reuse(False):
        a, b = jax.jit(jax.vmap(one))(jax.random.split(key, trials))
    a, b = np.asarray(a, float), np.asarray(b, float)
    product = np.outer(x[0], y[0]).astype(float)
    product *= 20.0 / np.linalg.norm(product)
    # x and y scaled such that their lengths are as the fourth roots of 4 and 7 entries.
    long = np.sqrt(20.0 * np.sqrt(4 / 7))
    of_x, of_y = (z[0] / np.linalg.norm(z[0]) * size for z, size in ((x, long), (y, 20 / long)))
    added = [np.sum((z - np.floor(z)) * (np.ceil(z) - z)) for z in (of_x, of_y)]
    error = a.std(axis=0) / np.sqrt(trials)
    assert (np.abs(a.mean(axis=0) - product) <= 5 * error + 1e-4).all()
    squares = np.sum(a**2, axis=(1, 2))
    expected = (np.sum(of_x**2) + added[0]) * (np.sum(of_y**2) + added[1])
    assert abs(squares.mean() - expected) <= 5 * squares.std() / np.sqrt(trials)
    # Every entry is one of the four products of whole numbers next to the factors.
    low = np.floor(of_x)[:, None] + np.arange(2), np.floor(of_y)[:, None] + np.arange(2)
    near = (low[0][:, None, :, None] * low[1][None, :, None, :]).reshape(P, Q, 4)
    assert (a[..., None] == near).any(axis=-1).all()
    # Rows are rounded apart, although alike: errors of a sum do not add up.
    both = (a - product) * (b - product)
    assert (np.abs(both.mean(axis=0)) <= 5 * both.std(axis=0) / np.sqrt(trials) + 1e-6).all()


@pytest.mark.slow(reason="adds up hundreds of rows in eight ways")
def test_the_sum_is_right_where_one_product_would_pass_float32(key):
    size = 300  # rows, all of them 65535 long, which float32 does not add up exactly
    x = jnp.zeros((size, P)).at[:, 0].set(1.0)
    y = jnp.zeros((size, Q)).at[:, 0].set(1.0)
    loss = lambda params, e: jnp.vdot(e["x"] @ params, e["y"])
    G = fljax_kernels.per_example_grads(loss, method="taps")
    most = jnp.full(size, 65535**2, jnp.uint32)

    def total(key, keep):
        made = G(jnp.zeros((P, Q)), {"x": x, "y": y}, batch_mask=keep)
        return made.grid_sum(key, lambda n: 65535 * jnp.ones_like(n), most, jnp.arange(size))[0]

    total = jax.jit(total)
    with jax.debug_key_reuse(False):
        whole = int(total(key, jnp.ones(size, bool))[0, 0])
        parts = [int(total(key, jnp.arange(size) % 7 == k)[0, 0]) for k in range(7)]
    assert whole == sum(parts) and 2**24 < whole <= size * 65535


@pytest.mark.slow(reason="compiles the sum once for each kind of bound", but=["4000000"])
@pytest.mark.parametrize("most", [2000**2, 65535**2])
def test_a_number_bounds_each_row_as_an_array_of_it_does(most, key):
    *_, batch = case("layer")
    rows = jnp.ones(B, bool), batch, jnp.arange(B)
    with jax.debug_key_reuse(False):
        found = [
            flat(sums("layer", number=number)(key, *rows, *given(most, 1e9)))
            for number in (None, most)
        ]
    assert np.array_equal(*found)


@pytest.mark.slow(reason="compiles for a mesh")
@pytest.mark.parametrize("number", [None, 10**6])
def test_gradients_on_a_mesh_give_the_same_whole_numbers(number, key):
    _, _, batch = case("layer")
    fun, sizes = sums("layer", number=number), given(10**6, 1e3)
    mask, places = jnp.ones(B, bool), jnp.arange(B)
    alone = fun(jax.random.clone(key), mask, batch, places, *sizes)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        spread = jax.device_put((mask, batch, places), jax.P("rows"))
        found = fun(key, *spread, *sizes)
    assert np.array_equal(flat(alone), flat(found))


def test_what_is_no_key_and_coefficients_of_arrays_are_refused(key):
    loss, params, batch = case("layer")
    matrix = fljax_kernels.per_example_grads(loss)(params, batch)
    most, places = jnp.zeros(B, jnp.uint32), jnp.arange(B)
    with pytest.raises(ValueError, match="Expected key to be one typed PRNG key"):
        matrix.grid_sum(7, jnp.ones_like, most, places)
    with pytest.raises(ValueError, match="Expected one coefficient for each row"):
        matrix.grid_sum(key, lambda norms: {"w": norms, "b": 2 * norms}, most, places)
    # In int32 a square above 2**31 would be less than any bound.
    for bounds, told in (
        (most.astype(jnp.int32), r"int32 \[12\]"),
        (most[:1], r"uint32 \[1\]"),
        (-1, "-1"),
        (2**32 - 1, "4294967295"),
        (True, "True"),
    ):
        with pytest.raises(ValueError, match=f"Expected most_squared_norms .* got .*={told}"):
            matrix.grid_sum(key, jnp.ones_like, bounds, places)
    for numbers, told in (
        (places[:1], r"int32 \[1\]"),
        (places.astype(jnp.float32), r"float32 \[12\]"),
    ):
        with pytest.raises(ValueError, match=f"Expected places .* got places={told}"):
            matrix.grid_sum(key, jnp.ones_like, most, numbers)
