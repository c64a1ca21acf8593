"""What may be weighed chunk by chunk without being asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.local import clipping
from fljax_kernels import per_example_grads
from fljax_kernels.per_example.separable import one_by_one

OUTSIDE = jnp.arange(8, dtype=jnp.float32)
ENTRIES_APART = {
    "clip": lambda n: jnp.minimum(1.0, 1.0 / n),
    "constant": jnp.ones_like,
    "where": lambda n: jnp.where(jnp.isfinite(n), jnp.clip(n, 0.0, 1.0), 0.0),
    "vmap": jax.vmap(lambda x: jnp.minimum(1.0, 1.0 / x)),
    "flat": lambda n: clipping.flat(n, 1.0),
    "psac": lambda n: clipping.to_bound(n, 1.0, style="psac"),
    "auto_s": lambda n: clipping.to_bound(
        n, 1.0, style="auto_s", rescale_to_unit_norm=True, nan_safe=True
    ),
}
TOGETHER = {
    "median": lambda n: jnp.minimum(1.0, jnp.median(n) / n),
    "sum": lambda n: n / jnp.sum(n),
    "rank": lambda n: jnp.argsort(jnp.argsort(n)).astype(n.dtype),
    "place": lambda n: n * jnp.arange(n.shape[0]),
    "before": jnp.cumsum,
    "backwards": lambda n: n[::-1],
    "shifted": lambda n: jnp.roll(n, 1),
    "array_of_this_length": lambda n: n * OUTSIDE,
    "array_of_another_length": lambda n: n * OUTSIDE[:5],
    "length": lambda n: n / n.shape[0],
    "length_by_a_sum": lambda n: n / jnp.sum(jnp.ones_like(n)),
    "length_in_a_constant": lambda n: n * np.float32(n.shape[0]),
    "power_of_the_length": lambda n: n ** n.shape[0],
    "ones_of_another_length": lambda n: jnp.ones(5),
    "ones_of_this_length": lambda n: jnp.ones(8),
    "of_some": lambda n: jnp.minimum(1.0, jnp.median(n[n > 0]) / n),
    "noise": lambda n: n + jax.random.normal(jax.random.key(0), n.shape),
}


@pytest.mark.parametrize("name", [*ENTRIES_APART, *TOGETHER])
def test_only_functions_of_each_entry_alone_pass(name):
    fun = (ENTRIES_APART | TOGETHER)[name]
    shapes = lambda size: (jax.ShapeDtypeStruct((size,), jnp.float32),)
    assert one_by_one(fun, shapes, 8, 32) == (name in ENTRIES_APART)


def test_numbers_from_an_outer_trace_are_no_entries():
    def outer(bound, weights):
        shapes = lambda size: (jax.ShapeDtypeStruct((size,), jnp.float32),)
        assert one_by_one(lambda n: jnp.minimum(1.0, bound / n), shapes, 8, 32)
        assert not one_by_one(lambda n: weights * n, shapes, 8, 32)
        return bound

    jax.jit(outer)(1.0, jnp.ones(8))


WEIGHTS = np.linspace(0.0, 1.0, 32, dtype=np.float32)
OF_A_BATCH = {
    "median": TOGETHER["median"],
    "length": lambda n: jnp.minimum(1.0, 1.0 / n) / n.shape[0],
    "closed_over": lambda n: WEIGHTS * jnp.minimum(1.0, 1.0 / n),
    "ones": lambda n: jnp.ones(32),
    "scalar": lambda n, w: w * n,
}


@pytest.mark.parametrize("name", OF_A_BATCH)
def test_what_weighs_a_batch_as_a_whole_sees_it_whole(key, name):
    keys = jax.random.split(key, 3)
    params = {
        "w": jax.random.normal(keys[0], (3, 3, 4, 8)),
        "u": jax.random.normal(keys[1], (1, 16, 16, 8)),
    }
    batch = jax.random.normal(keys[2], (32, 16, 16, 4))

    def convolutional(params, example):
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(
            example[None], params["w"], (1, 1), "SAME", dimension_numbers=layout
        )
        return jnp.sum(jnp.tanh(x) * params["u"])

    @jax.jit
    def both(params, batch):
        return total("auto", params, batch), total("vmap", params, batch)

    def total(method, params, batch):
        g = per_example_grads(convolutional, method=method)(params, batch)
        assert ("chunks" in g.explain()) == (method == "auto" and jax.default_backend() == "cpu")
        return g.weighted_sum(OF_A_BATCH[name], *([jnp.float32(0.5)] if name == "scalar" else []))

    (mine, norms), (expected, lengths) = both(params, batch)
    np.testing.assert_allclose(norms, lengths, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
