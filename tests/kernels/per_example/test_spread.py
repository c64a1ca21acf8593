"""Examples and parameters over several devices whose axes are Auto."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fljax_kernels import per_example_grads

B, N, WIDTH, SYMBOLS = 4, 12, 6, 8


def loss(params, tokens):
    """Two layers under a scan, computed anew, between both ends of one table; bfloat16 within."""
    x = params["table"][tokens].astype(jnp.bfloat16)

    def layer(x, kernel):
        return x + jnp.tanh(jnp.dot(x, kernel.astype(x.dtype))), None

    x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["kernels"])
    table = params["table"].astype(x.dtype)
    logits = jnp.einsum("nd,vd->nv", x, table, preferred_element_type=jnp.float32)
    told = jax.nn.log_softmax(logits[:-1])
    return -jnp.sum(jnp.take_along_axis(told, tokens[1:, None], axis=1))


@pytest.mark.parametrize("length", [2, N], ids=["records", "rows"])
def test_rows_that_are_less_than_records_are_made_where_they_arise(length):
    rng = np.random.default_rng(0)
    params = {
        "table": jnp.asarray(rng.normal(size=(SYMBOLS, WIDTH)), jnp.float32),
        "kernels": jnp.asarray(0.3 * rng.normal(size=(2, WIDTH, WIDTH)), jnp.float32),
    }
    tokens = jnp.asarray(rng.integers(0, SYMBOLS, (B, length)))
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    over = PartitionSpec("data")
    specs = {
        "table": PartitionSpec("tensor"),
        "kernels": PartitionSpec(None, None, "tensor"),
    }
    told = []

    def private(params, tokens):
        matrix = per_example_grads(loss)(params, tokens)
        told.append(matrix.explain())
        return matrix.weighted_sum(lambda norms: jnp.minimum(1.0, 2.0 / norms))

    def placed(x, spec):
        return jax.device_put(x, NamedSharding(mesh, spec))

    spread = jax.tree.map(placed, params, specs), placed(tokens, over)
    total, norms = jax.jit(private)(*spread)
    (forms,) = told
    assert ("tapped" in forms) == (length == N) and ("layer by layer" in forms) == (length == 2)
    rows = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, tokens)
    squares = [np.sum(np.square(row).reshape(B, -1), axis=1) for row in jax.tree.leaves(rows)]
    exact = np.sqrt(sum(squares))
    # Numbers of rows are rounded to bfloat16, by 2^-9 of each.
    np.testing.assert_allclose(norms, exact, rtol=2.0**-8)
    factors = np.minimum(1, 2.0 / exact)
    for ours, row in zip(jax.tree.leaves(total), jax.tree.leaves(rows), strict=True):
        np.testing.assert_allclose(ours, np.tensordot(factors, row, 1), atol=2.0 * 2.0**-7)
