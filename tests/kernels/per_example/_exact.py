"""Compares all products of G with float64 vmap(grad), within twice the error of float32
vmap(grad).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import per_example_grads
from fljax_kernels.per_example.cases import B

FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
WEIGHTS = np.array([0.75, -1.5, 0.25])


def matrix(rows):
    return np.concatenate(
        [np.asarray(g, np.float64).reshape(B, -1) for g in jax.tree.leaves(rows)], axis=1
    )


def flat(tree):
    return np.concatenate([np.asarray(g, np.float64).ravel() for g in jax.tree.leaves(tree)])


@functools.cache
def _values_and_rows(loss):
    """One function for each loss, so that tests of one loss trace and compile it once."""
    return jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0)), compiler_options=FAST)


def reference_rows(loss, params, batch):
    batch = jax.tree.map(
        lambda x: jax.random.clone(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
        batch,
    )
    values, rows = _values_and_rows(loss)(params, batch)
    return np.asarray(values, np.float64), matrix(rows)


def widen(tree):
    return jax.tree.map(
        lambda x: np.asarray(x, np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )


def products_of(values, g, direction):
    return {
        "values": values,
        "row_norms": np.linalg.norm(g, axis=1),
        "gram": g @ g.T,
        "rmatvec": WEIGHTS @ g,
        "matvec": g @ direction,
        "materialize": g,
    }


def check(loss, params, batch, *, leave_out=(), **options):
    """All products of one loss but those left out; returns explain()."""
    direction = jax.tree.map(
        lambda x: np.cos(np.arange(x.size, dtype=x.dtype)).reshape(x.shape), params
    )
    said = []

    def products(params, batch, direction):
        g = per_example_grads(loss, **options)(params, batch)
        said.append(g.explain())
        asked = {
            "values": g.values,
            "row_norms": g.row_norms,
            "gram": g.gram,
            "rmatvec": lambda: g.rmatvec(jnp.asarray(WEIGHTS, jnp.float32)),
            "matvec": lambda: g.matvec(direction),
            "materialize": g.materialize,
        }
        return {name: product() for name, product in asked.items() if name not in leave_out}

    actual = jax.jit(products, compiler_options=FAST)(params, batch, direction)
    plain = products_of(*reference_rows(loss, params, batch), flat(direction))
    with jax.enable_x64(True):
        exact = products_of(*reference_rows(loss, widen(params), widen(batch)), flat(direction))
    for name, as_array in {"rmatvec": flat, "materialize": matrix}.items():
        if name in actual:
            actual[name] = as_array(actual[name])
    # Both sum about n terms of magnitude up to |g_i| |g_j|: where plain float32 is lucky, ten
    # roundings are allowed.
    norm, direction_norm = exact["row_norms"].max(), np.linalg.norm(flat(direction))
    size = {
        "values": np.abs(exact["values"]).max(),
        "gram": norm**2,
        "matvec": norm * direction_norm,
    }
    for name, value in actual.items():
        error = np.abs(np.asarray(value, np.float64) - exact[name]).max()
        allowed = 2 * np.abs(plain[name] - exact[name]).max() + 10 * 2.0**-24 * size.get(name, norm)
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"
    return said[0]
