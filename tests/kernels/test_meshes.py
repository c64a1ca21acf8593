"""Loops and branches of devices that share arrays with others: all take the same steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fljax_kernels import _meshes, discrete

CLIENTS = PartitionSpec("clients")


def on(devices_of_each):
    """A mesh of two clients, and a function over it that takes each its own part."""
    mesh = jax.make_mesh(
        (2, devices_of_each), ("clients", "model"), axis_types=(AxisType.Auto,) * 2
    )

    def mapped(fun, *args):
        over = jax.shard_map(
            fun, mesh=mesh, in_specs=(CLIENTS,) * len(args), out_specs=CLIENTS,
            check_vma=False, axis_names={"clients"},
        )  # fmt: skip
        with jax.set_mesh(mesh):
            put = [jax.device_put(x, NamedSharding(mesh, CLIENTS)) for x in args]
            return jax.jit(over).lower(*put).compile(), put

    return mapped


def counted(x):
    """Adds a row's neighbour as often as the row's first number says; x `[1, 8]`."""

    def more(state):
        step, x = state
        # The neighbour lies on another device: parts travel between those that share a row.
        x = jax.lax.with_sharding_constraint(x, PartitionSpec(None, "model"))
        moved = jax.lax.with_sharding_constraint(
            x + jnp.roll(x, 1, axis=1), PartitionSpec(None, "model")
        )
        return step + 1, moved

    last = x[0, 0].astype(jnp.int32)
    return _meshes.while_loop(lambda s: s[0] < last, more, (jnp.int32(0), x))[1]


def test_a_loop_of_other_length_on_devices_that_share_arrays_ends_with_the_numbers_of_one():
    x = jnp.asarray(np.random.default_rng(0).integers(0, 9, (2, 8)), jnp.float32)
    x = x.at[:, 0].set(jnp.asarray([3.0, 1.0]))
    run, put = on(4)(counted, x)
    assert "collective-permute" in run.as_text()  # which waits for all eight
    expected = []
    for row in np.asarray(x):
        for _ in range(int(row[0])):
            row = row + np.roll(row, 1)
        expected.append(row)
    np.testing.assert_array_equal(run(*put), expected)


def test_devices_that_share_nothing_go_their_own_way():
    x = jnp.asarray([[3.0] * 8, [1.0] * 8])
    axes = []

    def fun(x):
        axes.append(_meshes.in_step())
        return x

    on(1)(fun, x)
    on(2)(fun, x)
    assert axes[0] == () and axes[-1] == ("clients",) and _meshes.in_step() == ()


@pytest.mark.slow(reason="draws by tables on eight devices")
def test_integer_noise_of_devices_that_share_arrays_is_that_of_one():
    """Ties are settled in a loop, as often as a client has them."""
    size, stddev = 300_000, 4000.0

    def draw(seed):
        key = jax.random.key(seed[0, 0])
        return discrete.discrete_gaussian_noise(key, (size,), stddev)[None]

    seeds = jnp.asarray([[1], [2]], jnp.uint32)
    run, put = on(4)(draw, seeds)
    alone = [jax.jit(draw)(seed[None]) for seed in seeds]
    np.testing.assert_array_equal(run(*put), np.concatenate(alone))
