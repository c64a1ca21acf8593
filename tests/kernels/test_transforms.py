"""Every kernel under `pmap` and `shard_map`, with bfloat16 arrays, and with buffers given away."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax_kernels import spectral

D, B, EDGES = 5, 6, np.array([[0, 1], [0, 2], [1, 2]])


def loss(params, example):
    hidden = jnp.tanh(example["x"] @ params["w"] + params["b"])
    return jnp.sum(jnp.square(hidden - example["y"]))


def normal(key, *shape):
    return jax.random.normal(key, shape)


def model_and_batch(key):
    keys = jax.random.split(key, 4)
    params = {"w": normal(keys[0], D, 3), "b": normal(keys[1], 3)}
    return params, {"x": normal(keys[2], B, D), "y": normal(keys[3], B, 3)}


def products(method, key_or_params, batch):
    options = {"microbatch_size": 2} if method == "microbatch" else {}
    matrix = fljax_kernels.per_example_grads(loss, method=method, **options)(key_or_params, batch)
    clipped, norms = matrix.weighted_sum(lambda norms: jnp.minimum(1.0, 0.5 / norms))
    return clipped, norms, matrix.gram(), matrix.rmatvec(jnp.ones(B))


def training(params, batch):
    def step(params, example):
        grads = jax.grad(loss)(params, example)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

    return fljax_kernels.loop_friendly(lambda p, b: jax.lax.scan(step, p, b)[0])(params, batch)


def tree_of(key):
    return {"a": normal(key, 40), "b": normal(jax.random.fold_in(key, 1), 3, 4)}


def gram_of(key):
    rows = normal(key, B, D)
    return rows @ rows.T, normal(jax.random.fold_in(key, 1), B)


# Name -> (kernel, its arguments from a key).
KERNELS = {
    **{
        f"per_example_grads_{method}": (functools.partial(products, method), model_and_batch)
        for method in ("taps", "two_pass", "vmap", "microbatch")
    },
    "loop_friendly": (training, model_and_batch),
    "clip_and_sum": (
        lambda rows: fljax_kernels.clip_and_sum(rows, 0.5),
        lambda key: ({"a": normal(key, B, 7), "b": normal(jax.random.fold_in(key, 1), B, 3, 4)},),
    ),
    "clip_and_sum_segments": (
        lambda rows: fljax_kernels.clip_and_sum(
            rows, 0.5, segment_ids=jnp.array([0, 0, 1, 1, 2, 2]), num_segments=3
        ),
        lambda key: (normal(key, B, D),),
    ),
    "add_gaussian_noise": (
        lambda key, tree: fljax_kernels.add_gaussian_noise(key, tree, 1.5),
        lambda key: (key, tree_of(jax.random.fold_in(key, 2))),
    ),
    "gaussian_noise": (
        lambda keys, like: fljax_kernels.gaussian_noise(keys, like, 1.5),
        lambda key: (jax.random.split(key, 3), tree_of(jax.random.fold_in(key, 2))),
    ),
    "pair_noise": (
        lambda key, like: fljax_kernels.pair_noise(key, EDGES, 3, like, 1.0),
        lambda key: (key, tree_of(jax.random.fold_in(key, 2))),
    ),
    "joint_pair_noise": (
        lambda key, like: fljax_kernels.joint_pair_noise(key, 3, like, 1.0),
        lambda key: (key, tree_of(jax.random.fold_in(key, 2))),
    ),
    "client_pair_noise": (
        lambda keys, like: fljax_kernels.client_pair_noise(keys, 1, np.array([0, 2]), like, 1.0),
        lambda key: (jax.random.split(key, 2), tree_of(jax.random.fold_in(key, 2))),
    ),
    "poisson_sample": (
        lambda key: fljax_kernels.poisson_sample(key, 50, 0.2, 20),
        lambda key: (key,),
    ),
    "fixed_size_sample": (
        lambda key: fljax_kernels.fixed_size_sample(key, 50, 7),
        lambda key: (key,),
    ),
    "spectrum": (lambda gram, _: spectral.spectrum(gram, 1.0), gram_of),
    "lifted_draw": (
        lambda gram, z: spectral.lifted_draw(spectral.spectrum(gram, 1.0), z, 0.7),
        gram_of,
    ),
}
# Two others of four methods and the spectrum that is drawn from: as they are in what is left.
ALSO = pytest.mark.slow(
    reason="compiles one more kernel twice",
    ids=[
        "per_example_grads_two_pass",
        "per_example_grads_microbatch",
        "spectrum",
        "pair_noise",
        "gaussian_noise",
    ],
)
# What is computed from squares of numbers below float32's precision is not asked of 16 bits.
ONLY_WIDE = ("spectrum", "lifted_draw", "poisson_sample", "fixed_size_sample")


def arguments(name, seed=0):
    """Made anew, keys included."""
    return KERNELS[name][1](jax.random.key(seed))


def is_key(leaf):
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def stacked(*leaves):
    if is_key(leaves[0]):  # as numbers: a stack of keys counts as their use
        return jax.random.wrap_key_data(jnp.stack([jax.random.key_data(x) for x in leaves]))
    return jnp.stack(leaves)


def of_devices(name):
    """(kernel, arguments of two devices with a leading axis, what each gets alone)."""
    kernel = KERNELS[name][0]
    alone = [jax.jit(kernel)(*arguments(name, seed)) for seed in range(2)]
    each = [arguments(name, seed) for seed in range(2)]
    return kernel, jax.tree.map(stacked, *each), alone


def close(found, expected, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def part(tree, device):
    return jax.tree.map(lambda leaf: leaf[device], tree)


@pytest.mark.slow(reason="compiles what the next test compiles, under an older name")
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_under_pmap_gives_each_device_its_own(name):
    kernel, both, alone = of_devices(name)
    found = jax.pmap(kernel)(*both)
    for device in range(2):
        close(part(found, device), alone[device])


@ALSO
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_under_shard_map_gives_each_device_its_own(name):
    kernel, both, alone = of_devices(name)
    auto = jax.sharding.AxisType.Auto
    over = jax.make_mesh((2,), ("d",), axis_types=(auto,), devices=jax.devices()[:2])
    spec = jax.sharding.PartitionSpec("d")

    def here(*args):
        found = kernel(*jax.tree.map(lambda leaf: leaf[0], args))
        return jax.tree.map(lambda leaf: leaf[None], found)

    mapped = jax.shard_map(here, mesh=over, in_specs=spec, out_specs=spec, check_vma=False)
    found = jax.jit(mapped)(*both)
    for device in range(2):
        close(part(found, device), alone[device])


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in ONLY_WIDE])
def test_a_kernel_takes_bfloat16_arrays(name):
    """As near to the result in float32 as arguments of 8 bits allow; sums are not of 8 bits."""
    kernel = KERNELS[name][0]

    def cast(tree, old, new):
        return jax.tree.map(lambda x: x.astype(new) if x.dtype == old else x, tree)

    narrow, other = (cast(arguments(name), jnp.float32, jnp.bfloat16) for _ in range(2))
    wide = cast(other, jnp.bfloat16, jnp.float32)
    found, expected = jax.jit(kernel)(*narrow), jax.jit(kernel)(*wide)
    size = max(np.abs(np.asarray(x, np.float64)).max() for x in jax.tree.leaves(expected))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=0, atol=2.0**-4 * size
        )


@ALSO
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_whose_arguments_are_given_away_gives_the_same_bits(name):
    kernel = KERNELS[name][0]
    given, again = arguments(name), arguments(name)
    expected = jax.jit(kernel)(*given)
    arrays = tuple(i for i, x in enumerate(again) if not any(map(is_key, jax.tree.leaves(x))))
    found = jax.jit(kernel, donate_argnums=arrays)(*again)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if jax.default_backend() == "gpu" and jnp.issubdtype(b.dtype, jnp.floating):
            np.testing.assert_allclose(a, b, rtol=1e-5)  # XLA tunes each program's products anew
        else:
            np.testing.assert_array_equal(a, b)
