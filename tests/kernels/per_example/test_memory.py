"""No value of the private gradient has B * D elements, on the benchmark's models at their full
size.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.kernels import workloads
from fljax_kernels import per_example_grads
from tests._environment import READ_ONLY

pytestmark = pytest.mark.optimized(reason="reads the memory and the arrays of the compiled program")


def shapes_of(name):
    found = {}

    def build():
        workload = workloads.make(name)
        found["loss"] = workload.loss
        return workload.params, workload.batch

    params, batch = jax.eval_shape(build)
    return found["loss"], params, batch


def private(loss, method):
    def clipped(params, batch):
        g = per_example_grads(loss, method=method)(params, batch)
        return g.weighted_sum(lambda norms: jnp.minimum(1.0, 1.0 / norms))

    return clipped


def sizes(jaxpr):
    """Elements of every value of a program, those inside loops included."""
    for eqn in jaxpr.eqns:
        yield from (int(np.prod(v.aval.shape)) for v in eqn.outvars if hasattr(v.aval, "shape"))
        for value in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from sizes(inner)


def largest_and_matrix(name, method):
    loss, params, batch = shapes_of(name)
    program = jax.make_jaxpr(private(loss, method))(params, batch)
    examples = jax.tree.leaves(batch)[0].shape[0]
    return max(sizes(program.jaxpr)), examples * sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.slow(
    reason="traces one more model", but=["auto-a", "auto-b256", "auto-d", "taps-b", "taps-c"]
)
@pytest.mark.parametrize("name", workloads.MAKERS)
@pytest.mark.parametrize("method", ["auto", "taps"])
def test_no_value_has_a_third_of_the_elements_of_the_matrix(name, method):
    # A third: with one leaf per layer even vmap(grad) never holds all of G in one buffer.
    largest, matrix = largest_and_matrix(name, method)
    assert largest < matrix / 3


def test_the_check_sees_the_matrix_that_vmap_holds():
    largest, matrix = largest_and_matrix("a", "vmap")
    assert largest > matrix / 3


def test_a_compiled_mlp_needs_little_more_than_the_mean_gradient():
    loss, params, batch = shapes_of("a")

    def mean_gradient(params, batch):
        return jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, batch)))(params)

    plain, ours = (
        jax.jit(f, compiler_options=READ_ONLY).lower(params, batch).compile()
        for f in (mean_gradient, private(loss, "auto"))
    )
    temporary = [c.memory_analysis().temp_size_in_bytes for c in (plain, ours)]
    assert temporary[1] <= 1.5 * temporary[0]
    matrix = 512 * sum(leaf.size for leaf in jax.tree.leaves(params))
    buffers = [
        np.prod([int(n) for n in dims.split(",")])
        for dims in re.findall(r"f32\[([\d,]+)\]", ours.as_text())
    ]
    assert max(buffers) < matrix / 3
