"""On a CPU no loop of local training holds a convolution, and what it computes is the same; on a
GPU none is grouped by clients.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fljax_kernels
from fljax.data.cohorts import ClientData, cohort
from fljax.local import sgd
from fljax.schemes.central import dp_fedsgd
from fljax.server.rounds import Performance
from fljax_kernels import _platforms

LOOPS = ("scan", "while")
POOLS = ("reduce_window", "select_and_scatter")


def loss(params, example):
    x = lax.conv_general_dilated(
        example["x"][None],
        params["conv"],
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    x = lax.reduce_window(jnp.tanh(x)[0], -jnp.inf, lax.max, (2, 2, 1), (2, 2, 1), "VALID")
    return -jax.nn.log_softmax(x.reshape(-1) @ params["dense"])[example["y"]]


def convolutions(jaxpr, inside=False):
    """(outside loops, inside loops): how many a jaxpr holds."""
    counts = np.zeros(2, int)
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            counts[int(inside)] += 1
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            counts += convolutions(inner, inside or equation.primitive.name in LOOPS)
    return counts


@pytest.fixture
def problem(key):
    rng = np.random.default_rng(3)
    params = {
        "conv": jnp.asarray(0.4 * rng.standard_normal((3, 3, 1, 4)), jnp.float32),
        "dense": jnp.asarray(0.4 * rng.standard_normal((36, 3)), jnp.float32),
    }
    examples = {
        "x": jnp.asarray(rng.standard_normal((12, 6, 6, 1)), jnp.float32),
        "y": jnp.asarray(rng.integers(0, 3, 12), jnp.int32),
    }
    indices = jnp.asarray([[0, 1, 2, 3, 4, -1], [5, 6, 7, 8, 9, 10]], jnp.int32)
    return params, examples, indices, key


def local_sgd(params, examples, indices, key):
    return sgd.local_sgd(loss, learning_rate=0.1, batch_size=2, num_epochs=2)(
        params, examples, indices, jax.random.split(key, 2)
    ).update


def local_gradient(params, examples, indices, key):
    return sgd.local_gradient(loss, batch_size=2)(
        params, examples, indices, jax.random.split(key, 2)
    ).update


def records(params, examples, indices, key):
    config = dp_fedsgd.Config(sampling_prob=1.0, noise_multiplier=0.0, l2_clip_norm=0.5)
    performance = Performance(microbatch_size=4)
    algorithm = dp_fedsgd.make(config, loss, num_units=12, performance=performance)
    members = cohort(ClientData(examples, indices), jnp.arange(2))
    return algorithm.round(algorithm.init(params), members, key)[0].params


def microbatches(params, examples, indices, key):
    del indices, key
    G = fljax_kernels.per_example_grads(loss, method="taps")
    streamed = fljax_kernels.per_example_grads(loss, method="microbatch", microbatch_size=4)
    assert (
        convolutions(jax.make_jaxpr(lambda p, e: G(p, e).row_norms())(params, examples).jaxpr)[0]
        > 0
    )
    return streamed(params, examples).weighted_sum(lambda n: 1 / (1 + n))


@pytest.mark.slow(reason="compiles one more loop", but=["local_sgd"])
@pytest.mark.parametrize(
    "program", [local_sgd, local_gradient, records, microbatches], ids=lambda f: f.__name__
)
def test_no_loop_of_local_work_holds_a_convolution_on_a_cpu(program, problem):
    *arrays, key = problem
    with _platforms.only("cpu"):
        assert convolutions(jax.make_jaxpr(program)(*arrays, key).jaxpr)[1] == 0
    actual = jax.jit(program)(*arrays, jax.random.clone(key))  # staged for all platforms
    with _platforms.only("cuda", "tpu"):

        def native(*args):  # another function: JAX keeps the traces of the first
            return program(*args)

        assert convolutions(jax.make_jaxpr(native)(*arrays, jax.random.clone(key)).jaxpr)[1] > 0
        expected = jax.jit(native)(*arrays, jax.random.clone(key))
    # Sums of fewer than 100 float32 products of order 1, 12 steps of them.
    chex.assert_trees_all_close(actual, expected, rtol=1e-7, atol=5e-6)


@pytest.mark.slow(reason="lowers one more local training", ids=["local_sgd"])
@pytest.mark.parametrize("train", [local_sgd, local_gradient])
def test_clients_side_by_side_meet_in_products_on_a_gpu_and_in_groups_on_a_tpu(problem, train):
    params, examples, indices, _ = problem

    def operations(platform, indices):
        def run(params, examples, indices):
            return train(params, examples, indices, jax.random.key(0))

        exported = jax.export.export(jax.jit(run), platforms=[platform])
        text = exported(params, examples, indices).mlir_module()
        return {name: text.count(f"stablehlo.{name}") for name in ("convolution", *POOLS)}

    none = dict.fromkeys(("convolution", *POOLS), 0)
    assert operations("cuda", indices) == operations("cpu", indices) == none
    grouped = operations("tpu", indices)
    assert grouped["convolution"] >= 2 and grouped["select_and_scatter"] == 1
