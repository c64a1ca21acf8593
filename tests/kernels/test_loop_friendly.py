"""loop_friendly: the same numbers, no convolution left, through every container."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fljax_kernels
from fljax_kernels import _platforms

optimized = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")

# As inside a loop: what most tests below look at has no loop of its own.
loop_friendly = functools.partial(fljax_kernels.loop_friendly, inside_loop=True)
NHWC = ("NHWC", "HWIO", "NHWC")


def primitives_of(jaxpr):
    """Names of all primitives in a jaxpr and the jaxprs inside it."""
    names = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            names |= primitives_of(inner)
    return names


def draw(shape):
    """Unit normals that depend on the shape alone."""
    return jnp.asarray(np.random.default_rng(list(shape)).standard_normal(shape), jnp.float32)


def for_cpus(fun, *args):
    """The program that is lowered for CPUs."""
    with _platforms.only("cpu"):
        return jax.make_jaxpr(fun)(*args)


def has_convolution(fun, *args):
    return "conv_general_dilated" in primitives_of(for_cpus(fun, *args).jaxpr)


def conv_float64(lhs, rhs, strides, padding, lhs_dilation, rhs_dilation, groups):
    """[N, C, spatial...], [O, C / groups, kernel...] -> [N, O, out...], one output place at a
    time.
    """
    rank = lhs.ndim - 2
    holes = [(size - 1) * d + 1 for size, d in zip(lhs.shape[2:], lhs_dilation, strict=True)]
    spread = np.zeros((*lhs.shape[:2], *holes))
    spread[(slice(None), slice(None), *(slice(None, None, d) for d in lhs_dilation))] = lhs
    x = np.pad(spread, [(0, 0), (0, 0), *[(max(lo, 0), max(hi, 0)) for lo, hi in padding]])
    crop = [
        slice(max(-lo, 0), size - max(-hi, 0))
        for (lo, hi), size in zip(padding, x.shape[2:], strict=True)
    ]
    x = x[(slice(None), slice(None), *crop)]
    reach = [(k - 1) * d + 1 for k, d in zip(rhs.shape[2:], rhs_dilation, strict=True)]
    out = [(size - r) // s + 1 for size, r, s in zip(x.shape[2:], reach, strides, strict=True)]
    y = np.zeros((lhs.shape[0], rhs.shape[0], *out))
    per_in, per_out = lhs.shape[1] // groups, rhs.shape[0] // groups
    for place in np.ndindex(*out):
        cut = [
            slice(place[i] * strides[i], place[i] * strides[i] + reach[i], rhs_dilation[i])
            for i in range(rank)
        ]
        window = x[(slice(None), slice(None), *cut)]
        for group in range(groups):
            inputs, outputs = (
                slice(group * per_in, (group + 1) * per_in),
                slice(group * per_out, (group + 1) * per_out),
            )
            value = np.tensordot(
                window[:, inputs], rhs[outputs], (range(1, rank + 2), range(1, rank + 2))
            )
            y[(slice(None), outputs, *place)] = value
    return y


# lhs [N, C, ...], rhs [O, C/g, ...], strides, padding, lhs_dilation, rhs_dilation, groups
CASES = {
    "0d": ((2, 3), (4, 3), (), (), (), (), 1),
    "1d": ((2, 3, 11), (4, 3, 3), (2,), ((1, 1),), (1,), (1,), 1),
    "2d_same": ((2, 3, 6, 7), (5, 3, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1),
    "2d_strided_uneven": ((2, 3, 9, 8), (5, 3, 4, 2), (3, 2), ((2, 0), (0, 1)), (1, 1), (1, 1), 1),
    "2d_dilated": ((2, 3, 9, 8), (5, 3, 3, 2), (1, 2), ((2, 1), (1, 1)), (1, 1), (2, 3), 1),
    "2d_transposed": ((2, 3, 4, 5), (5, 3, 3, 3), (1, 1), ((2, 1), (1, 2)), (2, 3), (1, 1), 1),
    "2d_negative_padding": (
        (2, 3, 8, 8),
        (5, 3, 3, 3),
        (1, 1),
        ((-1, 0), (1, -2)),
        (1, 1),
        (1, 1),
        1,
    ),
    "2d_1x1_strided": ((2, 3, 8, 8), (5, 3, 1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), (1, 1), 1),
    "2d_kernel_larger_than_output": (
        (2, 3, 9, 9),
        (5, 3, 8, 7),
        (1, 1),
        ((0, 0), (0, 0)),
        (1, 1),
        (1, 1),
        1,
    ),
    "2d_grouped": ((2, 6, 6, 6), (4, 3, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 2),
    "2d_depthwise": ((2, 6, 6, 6), (12, 1, 3, 3), (2, 1), ((1, 1), (1, 0)), (1, 1), (1, 2), 6),
    "2d_grouped_large_kernel": (
        (2, 4, 9, 9),
        (6, 2, 8, 8),
        (1, 1),
        ((0, 0), (0, 0)),
        (1, 1),
        (1, 1),
        2,
    ),
    "1d_shifted": ((2, 8, 11), (3, 8, 4), (1,), ((2, 1),), (1,), (1,), 1),
    "2d_shifted": ((2, 8, 6, 7), (4, 8, 5, 3), (1, 2), ((2, 2), (1, 1)), (1, 1), (1, 1), 1),
    "2d_shifted_valid": ((2, 8, 12, 6), (4, 8, 3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1),
    "2d_shifted_dilated_uneven": (
        (2, 8, 9, 8),
        (4, 8, 3, 2),
        (1, 2),
        ((4, 2), (1, 0)),
        (1, 1),
        (3, 1),
        1,
    ),
    "2d_shifted_transposed": (
        (2, 8, 4, 5),
        (3, 8, 3, 3),
        (1, 1),
        ((2, 2), (1, 1)),
        (2, 2),
        (1, 1),
        1,
    ),
    "2d_shifted_negative_padding": (
        (2, 8, 16, 6),
        (4, 8, 2, 3),
        (1, 1),
        ((-1, 0), (0, 0)),
        (1, 1),
        (1, 1),
        1,
    ),
    "2d_shifted_out_of_sight": (
        (1, 4, 2, 5),
        (2, 4, 3, 3),
        (1, 1),
        ((4, 4), (1, 1)),
        (1, 1),
        (3, 1),
        1,
    ),
    "2d_shifted_grouped": ((2, 8, 6, 6), (4, 4, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 2),
    "3d_shifted": (
        (1, 8, 4, 5, 6),
        (2, 8, 2, 3, 2),
        (1, 2, 1),
        ((1, 0), (1, 1), (0, 1)),
        (1,) * 3,
        (1, 1, 2),
        1,
    ),
    "3d": (
        (2, 2, 4, 5, 6),
        (3, 2, 2, 3, 2),
        (1, 2, 1),
        ((1, 0), (1, 1), (0, 1)),
        (1, 1, 1),
        (1, 1, 2),
        1,
    ),
}


def operands(name):
    lhs_shape, rhs_shape, *settings = CASES[name]
    rng = np.random.default_rng(0)
    return rng.standard_normal(lhs_shape), rng.standard_normal(rhs_shape), settings


def conv(lhs, rhs, settings, **options):
    strides, padding, lhs_dilation, rhs_dilation, groups = settings
    return lax.conv_general_dilated(
        lhs,
        rhs,
        strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        feature_group_count=groups,
        **options,
    )


@pytest.mark.slow(
    reason="compiles one more convolution and its gradients, five times",
    but=[
        "0d",
        "1d",
        "2d_dilated",
        "2d_transposed",
        "2d_negative_padding",
        "2d_kernel_larger_than_output",
        "2d_depthwise",
        "1d_shifted",
        "2d_shifted_dilated_uneven",
        "2d_shifted_transposed",
        "2d_shifted_out_of_sight",
        "2d_shifted_grouped",
        "3d",
    ],
)
@optimized
@pytest.mark.parametrize("name", CASES)
def test_convolution_and_both_gradients_agree_with_float64_and_hold_no_convolution(name):
    lhs, rhs, settings = operands(name)
    exact = conv_float64(lhs, rhs, *settings)
    weight = np.random.default_rng(1).standard_normal(exact.shape).astype(np.float32)
    x, w = jnp.asarray(lhs, jnp.float32), jnp.asarray(rhs, jnp.float32)
    if "shifted" in name:  # `split` is in that form alone
        assert "split" in primitives_of(
            for_cpus(loop_friendly(lambda x, w: conv(x, w, settings)), x, w).jaxpr
        )
    # A sum of n float32 products of unit normals is off by at most about n * 2^-24 * its absolute
    # sum; n < 200 here.
    actual = jax.jit(loop_friendly(lambda x, w: conv(x, w, settings)))(x, w)
    np.testing.assert_allclose(actual, exact, rtol=0, atol=2e-4)

    def loss(x, w):
        return jnp.vdot(weight, conv(x, w, settings))

    rewritten = jax.grad(loop_friendly(loss), (0, 1))
    assert not has_convolution(rewritten, x, w)
    expected = jax.jit(jax.grad(loss, (0, 1)))(x, w)
    # The convolution is linear in each operand: <gradient, direction> is the loss at that
    # direction, in float64.
    for index in range(2):
        direction = np.random.default_rng(2).standard_normal(expected[index].shape)
        at = (direction, rhs) if index == 0 else (lhs, direction)
        slope = np.vdot(weight.astype(np.float64), conv_float64(*at, *settings))
        assert (
            abs(np.vdot(np.asarray(jax.jit(rewritten)(x, w)[index], np.float64), direction) - slope)
            < 5e-3
        )
    for outside in (rewritten, loop_friendly(jax.grad(loss, (0, 1)))):
        assert not has_convolution(outside, x, w)
        for a, e in zip(jax.jit(outside)(x, w), expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-4, atol=5e-4)


@pytest.mark.parametrize(
    "spec", [("NHWC", "HWIO", "NHWC"), ("NHWC", "OIHW", "NCHW"), ("HWNC", "HWIO", "CHWN")]
)
def test_layouts_are_kept(spec):
    shapes = {"N": 2, "C": 3, "H": 6, "W": 5, "I": 3, "O": 4}
    x = draw([shapes[c] for c in spec[0]])
    w = draw([{**shapes, "H": 3, "W": 2}[c] for c in spec[1]])

    def f(x, w):
        return lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=spec)

    np.testing.assert_allclose(loop_friendly(f)(x, w), f(x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["2d_same", "2d_depthwise"])
def test_bfloat16_keeps_its_dtype_and_accumulates_in_float32(name):
    lhs, rhs, settings = operands(name)
    x, w = jnp.asarray(lhs, jnp.bfloat16), jnp.asarray(rhs, jnp.bfloat16)
    actual = jax.jit(loop_friendly(lambda x, w: conv(x, w, settings)))(x, w)
    exact = conv_float64(np.asarray(x, np.float64), np.asarray(w, np.float64), *settings)
    assert actual.dtype == jnp.bfloat16
    # bfloat16 has 8 bits: one rounding of the result is 2^-8 relative, its accumulation in float32
    # is far below.
    np.testing.assert_allclose(np.asarray(actual, np.float64), exact, rtol=2**-8, atol=1e-5)
    wide = loop_friendly(lambda x, w: conv(x, w, settings, preferred_element_type=jnp.float32))(
        x, w
    )
    assert wide.dtype == jnp.float32
    np.testing.assert_allclose(wide, exact, rtol=1e-5, atol=1e-5)


def test_vmapped_weights_become_a_batched_product():
    x = draw((3, 2, 6, 6, 2))
    w = draw((3, 3, 3, 2, 4))

    def f(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)

    expected = jax.jit(jax.vmap(f))(x, w)
    for fun in (jax.vmap(loop_friendly(f)), loop_friendly(jax.vmap(f))):
        assert not has_convolution(fun, x, w)
        np.testing.assert_allclose(jax.jit(fun)(x, w), expected, rtol=1e-5, atol=1e-5)
    # The vmapped gradient of a vmapped weight is a convolution grouped over the batch.
    grad = jax.vmap(jax.grad(lambda w, x: jnp.sum(f(x, w) ** 2)))
    assert not has_convolution(loop_friendly(grad), w, x)
    np.testing.assert_allclose(
        jax.jit(loop_friendly(grad))(w, x), jax.jit(grad)(w, x), rtol=1e-4, atol=1e-3
    )


def layer(x, w):
    return jnp.tanh(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC))


@jax.custom_vjp
def scaled(x, w):
    return layer(x, w)


# A wrong gradient on purpose (three times the true one): whoever inlines the function would lose
# it.
scaled.defvjp(lambda x, w: jax.vjp(layer, x, w), lambda pull, g: tuple(3 * a for a in pull(g)))


@jax.custom_jvp
def tripled(x, w):
    return layer(x, w)


@tripled.defjvp
def _(primals, tangents):
    y, t = jax.jvp(layer, primals, tangents)
    return y, 3 * t


def branches(x, w):
    return lax.switch(jnp.int32(1), [lambda x, w: x, layer, lambda x, w: -layer(x, w)], x, w)


def loop(x, w):
    return lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, layer(c[1], w)), (jnp.int32(0), x)
    )[1]


def scanned(x, w):
    return lax.scan(lambda c, s: (layer(c, w) * s, c.sum()), x, jnp.arange(3, dtype=x.dtype))[0]


def counted(x, w):
    constants = jnp.asarray(np.linspace(0, 1, 6), x.dtype)
    body = jax.checkpoint(lambda c: layer(c, w) * constants[None, :, None, None])
    return lax.fori_loop(0, 2, lambda _, c: jax.jit(body)(c), x)


CONTAINERS = {
    "jit": jax.jit(layer),
    "scan": scanned,
    "switch": branches,
    "checkpoint": jax.checkpoint(layer),
    "checkpoint_policy": jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable),
    "fori_of_jit_of_checkpoint": counted,
    "custom_vjp": scaled,
    "custom_jvp": tripled,
    "scan_of_custom_vjp": lambda x, w: lax.scan(lambda c, _: (scaled(c, w), None), x, length=2)[0],
}


@pytest.mark.slow(
    reason="compiles one more container",
    but=["scan", "switch", "checkpoint_policy", "custom_jvp", "scan_of_custom_vjp"],
)
@optimized
@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_are_looked_through_and_custom_rules_kept(name):
    fun = CONTAINERS[name]
    x, w = draw((2, 6, 6, 3)), 0.3 * draw((3, 3, 3, 3))

    def loss(fun, x, w):
        return jnp.sum(fun(x, w) ** 2)

    expected = jax.jit(jax.grad(functools.partial(loss, fun), (0, 1)))(x, w)
    inside = jax.grad(functools.partial(loss, loop_friendly(fun)), (0, 1))
    outside = loop_friendly(jax.grad(functools.partial(loss, fun), (0, 1)))
    assert has_convolution(fun, x, w)
    assert not has_convolution(loop_friendly(fun), x, w)
    np.testing.assert_allclose(
        jax.jit(loop_friendly(fun))(x, w), jax.jit(fun)(x, w), rtol=1e-5, atol=1e-5
    )
    for rewritten in (inside, outside):
        assert not has_convolution(rewritten, x, w)
        for a, e in zip(jax.jit(rewritten)(x, w), expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)


def test_while_loop_is_looked_through():
    x, w = draw((2, 6, 6, 3)), 0.3 * draw((3, 3, 3, 3))
    assert not has_convolution(loop_friendly(loop), x, w)
    np.testing.assert_allclose(
        jax.jit(loop_friendly(loop))(x, w), jax.jit(loop)(x, w), rtol=1e-5, atol=1e-5
    )


def test_second_derivatives():
    x, w = draw((1, 5, 5, 2)), 0.3 * draw((3, 3, 2, 2))

    def sharpness(fun):
        return lambda w: jnp.sum(jax.grad(lambda x: jnp.sum(fun(x, w)))(x) ** 2)

    for fun in (layer, tripled):
        expected = jax.jit(jax.grad(sharpness(fun)))(w)
        actual = jax.jit(jax.grad(sharpness(loop_friendly(fun))))
        assert not has_convolution(actual, w)
        np.testing.assert_allclose(actual(w), expected, rtol=1e-4, atol=1e-4)


def pool(x, window=(1, 2, 2, 1)):
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


@pytest.mark.slow(
    reason="compiles one more window",
    but=["window0-False", "window1-True", "window2-False", "window3-True"],
)
@optimized
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("window", [(1, 2, 2, 1), (1, 3, 2, 1), (1, 1, 4, 1), (1, 1, 1, 1)])
def test_max_pool_and_its_gradient_are_the_native_ones_bit_by_bit(window, ties):
    x = draw((2, 7, 9, 3))
    # Rounded to a few values, most windows hold ties, each of which the native rule gives to its
    # first element.
    x = jnp.round(x) if ties else x
    weight = draw(pool(x, window).shape)
    gradient = jax.grad(lambda x: jnp.vdot(weight, pool(x, window)))
    inside = jax.grad(loop_friendly(lambda x: jnp.vdot(weight, pool(x, window))))
    assert "reduce_window_max" not in primitives_of(for_cpus(inside, x).jaxpr)
    assert "select_and_scatter_add" not in primitives_of(for_cpus(loop_friendly(gradient), x).jaxpr)
    np.testing.assert_array_equal(
        jax.jit(loop_friendly(lambda x: pool(x, window)))(x), pool(x, window)
    )
    expected = jax.jit(gradient)(x)
    np.testing.assert_array_equal(jax.jit(inside)(x), expected)
    np.testing.assert_array_equal(jax.jit(loop_friendly(gradient))(x), expected)


@pytest.mark.parametrize("place", range(4))
def test_max_pool_hands_nan_and_infinity_on(place):
    for value in (np.nan, np.inf, -np.inf):
        x = jnp.arange(4.0).at[place].set(value).reshape(1, 2, 2, 1)
        np.testing.assert_array_equal(loop_friendly(pool)(x), pool(x))


def test_what_it_cannot_rewrite_stays_native():
    x = draw((1, 40, 40, 1))
    w = draw((33, 33, 1, 1))

    def large(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)

    def overlapping(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    assert has_convolution(loop_friendly(large), x, w)
    np.testing.assert_array_equal(loop_friendly(large)(x, w), large(x, w))
    np.testing.assert_array_equal(loop_friendly(overlapping)(x), overlapping(x))


def test_what_lies_outside_loops_stays_native_unless_told_that_it_is_inside_one():
    x, w = draw((2, 6, 6, 3)), 0.3 * draw((3, 3, 3, 3))

    def both(x, w):
        return scanned(jax.jit(layer)(x, w), w)

    def count(fun):
        return str(for_cpus(fun, x, w)).count("conv_general_dilated[")

    assert (count(both), count(fljax_kernels.loop_friendly(both)), count(loop_friendly(both))) == (
        2,
        1,
        0,
    )
    actual = jax.jit(fljax_kernels.loop_friendly(both))(x, w)
    np.testing.assert_allclose(actual, jax.jit(both)(x, w), rtol=1e-5, atol=1e-5)


def test_outside_loops_pools_are_rewritten_and_convolutions_are_not():
    x, w = draw((2, 6, 6, 3)), 0.3 * draw((3, 3, 3, 3))
    gradient = jax.grad(fljax_kernels.loop_friendly(lambda x: jnp.sum(pool(layer(x, w)) ** 2)))
    found = primitives_of(for_cpus(gradient, x).jaxpr)
    assert "conv_general_dilated" in found
    assert not {"reduce_window_max", "select_and_scatter_add"} & set(found)


def sums_apart(fun, *args):
    """Whether some sum in the program has an axis between those that it adds up."""

    def found(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "reduce_sum":
                shape, axes = equation.invars[0].aval.shape, equation.params["axes"]
                long = [axis in axes for axis in range(len(shape)) if shape[axis] > 1]
                if "".join(str(int(x)) for x in long).strip("0").count("0"):
                    return True
            if any(found(inner) for inner in jax.extend.core.jaxprs_in_params(equation.params)):
                return True
        return False

    return found(for_cpus(fun, *args).jaxpr)


APART = [
    ((6, 5, 4, 3), (0, 1, 3)),
    ((2, 6, 5, 4, 3), (1, 2, 4)),
    ((9, 4, 5, 2, 6), (0, 2, 4)),
    ((8, 1, 4, 5), (0, 3)),
    ((1, 8, 4, 1, 5), (0, 1, 4)),
]
# Neighbours in fact; no saving; sums of nothing.
LEFT = [
    ((1, 4, 1, 3), (1, 3)),
    ((9, 1, 3), (0, 2)),
    ((2, 8, 16), (0, 2)),
    ((8, 2, 128), (0, 2)),
    ((8, 4, 5, 0), (0, 2)),
    ((0, 4, 5), (0, 2)),
]


@optimized
@pytest.mark.slow(reason="compiles sums over many axes", but=["shape4-axes4"])
@pytest.mark.parametrize(("shape", "axes"), APART)
def test_sums_over_axes_that_lie_apart_are_added_up_in_stages(shape, axes):
    x = draw(shape)

    def total(x):
        return jnp.sum(jnp.square(x), axis=axes)

    friendly = fljax_kernels.loop_friendly(total)
    assert sums_apart(total, x) and not sums_apart(friendly, x)
    expected = np.square(np.asarray(x, np.float64)).sum(axis=axes)
    np.testing.assert_allclose(jax.jit(friendly)(x), expected, rtol=1e-6)
    np.testing.assert_allclose(
        jax.vmap(friendly)(jnp.stack([x, 2 * x]))[1], 4 * expected, rtol=1e-6
    )
    np.testing.assert_allclose(jax.jacrev(friendly)(x), jax.jacrev(total)(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(friendly)(x), jax.jacfwd(total)(x), rtol=1e-6)


@pytest.mark.parametrize(("shape", "axes"), LEFT)
def test_other_sums_stay_as_they_are(shape, axes):
    x = jnp.zeros(shape)

    def total(x):
        return jnp.sum(x, axis=axes)

    assert str(jax.make_jaxpr(fljax_kernels.loop_friendly(total))(x)) == str(
        jax.make_jaxpr(total)(x)
    )


def test_sums_of_sharded_types_and_of_symbolic_shapes_stay_as_they_are():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    placed = jax.sharding.NamedSharding(mesh, jax.P("d"))
    friendly = fljax_kernels.loop_friendly(lambda x: jnp.sum(x, axis=(1, 3)))
    x = draw((8, 9, 2, 3))
    actual = jax.jit(friendly)(jax.device_put(x, placed))
    assert actual.sharding.spec[0] == "d"
    np.testing.assert_allclose(actual, jnp.sum(x, axis=(1, 3)), rtol=1e-6)
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 9, 2, 3"), jnp.float32)
    np.testing.assert_allclose(
        jax.export.export(jax.jit(friendly))(symbolic).call(x), actual, rtol=1e-6
    )


def test_a_group_norm_s_means_and_their_gradients_are_added_up_in_stages():
    x, weights = draw((2, 4, 4, 3, 2)), draw((2, 4, 4, 3, 2))

    def norm(x):
        centred = x - x.mean(axis=(1, 2, 4), keepdims=True)
        return jnp.sum(
            weights
            * centred
            * lax.rsqrt(jnp.mean(centred**2, axis=(1, 2, 4), keepdims=True) + 1e-5)
        )

    gradient = jax.grad(norm)
    friendly = fljax_kernels.loop_friendly(gradient)
    assert sums_apart(gradient, x) and not sums_apart(friendly, x)
    np.testing.assert_allclose(jax.jit(friendly)(x), jax.jit(gradient)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32])
def test_sums_of_other_dtypes_than_float32_and_float64_stay_as_they_are(dtype):
    x = draw((8, 4, 5)).astype(dtype)

    def total(x):
        return lax.reduce_sum(x, (0, 2))

    assert sums_apart(fljax_kernels.loop_friendly(total), x)


def test_another_platform_than_the_cpu_keeps_its_convolutions():
    x, w = draw((2, 6, 6, 3)), 0.3 * draw((3, 3, 3, 3))
    assert not has_convolution(loop_friendly(scanned), x, w)
    with _platforms.only("cuda", "tpu"):
        program = jax.make_jaxpr(loop_friendly(scanned))(x, w)
    assert "conv_general_dilated" in primitives_of(program.jaxpr)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_models_side_by_side_meet_in_products_on_a_gpu(dtype):
    def loss(w, x):
        y = lax.conv_general_dilated(x[None], w, (1, 1), "SAME", dimension_numbers=NHWC)[0]
        y = lax.reduce_window(y, np.array(-np.inf, dtype), lax.max, *[(2, 2, 1)] * 2, "VALID")
        return jnp.sum(jnp.square(y.astype(jnp.float32)))

    def of_models(loss):
        mean = lambda w, xs: jnp.mean(jax.vmap(loss, (None, 0))(w, xs))
        return jax.vmap(jax.value_and_grad(mean))

    slow = {"conv_general_dilated", "reduce_window_max", "select_and_scatter_add"}
    w, x = 0.3 * draw((3, 3, 3, 2, 4)), draw((3, 5, 6, 6, 2))  # models; models, examples
    w, x = w.astype(dtype), x.astype(dtype)
    friendly = of_models(fljax_kernels.loop_friendly(loss, side_by_side=True))
    with _platforms.only("cuda"):
        assert not slow & primitives_of(jax.make_jaxpr(friendly)(w, x).jaxpr)
        actual = jax.jit(friendly)(w, x)
    for platform, fun in (("tpu", friendly), ("cuda", of_models(loop_friendly(loss)))):
        with _platforms.only(platform):
            assert slow & primitives_of(jax.make_jaxpr(fun)(w, x).jaxpr)
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    for a, b in zip(actual, jax.jit(of_models(loss))(w, x), strict=True):
        assert a.dtype == b.dtype
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


def test_a_program_without_convolutions_in_loops_keeps_its_loops():
    def fun(x, w):
        return lax.scan(lambda c, _: (jnp.tanh(c), None), layer(x, w), length=2)[0]

    x, w = draw((2, 6, 6, 3)), draw((3, 3, 3, 3))
    assert str(jax.make_jaxpr(fljax_kernels.loop_friendly(fun))(x, w)) == str(
        jax.make_jaxpr(fun)(x, w)
    )


def test_python_arguments_and_pytrees_pass_as_they_are():
    def fun(params, x, train, *, mode, steps):
        assert train is True and mode == "sum" and steps == 2
        y = layer(x, params["w"])
        return {"y": y, "total": y.sum()}, None

    x, w = draw((2, 6, 6, 3)), draw((3, 3, 3, 3))
    actual, none = loop_friendly(fun)({"w": w}, x, True, mode="sum", steps=2)
    assert none is None
    np.testing.assert_allclose(actual["y"], layer(x, w), rtol=1e-5, atol=1e-5)


def test_prints_inside_appear_once(capsys):
    def fun(x, w):
        return lax.scan(lambda c, _: (jax.debug.print("seen") or layer(c, w), None), x, length=2)[0]

    x, w = draw((2, 6, 6, 3)), draw((3, 3, 3, 3))
    jax.block_until_ready(loop_friendly(fun)(x, w))
    jax.effects_barrier()
    assert capsys.readouterr().out.count("seen") == 2
