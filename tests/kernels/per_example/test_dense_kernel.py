"""The kernel for the sum of a dense layer's rows on CUDA, by Pallas's interpreter and lowered."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from fljax_kernels import _platforms, per_example_grads
from fljax_kernels.per_example import dense_kernel, dense_operands, dense_pallas, kernel_primitives

B, INPUTS, FEATURES = 70, 100, 18


def arrays(examples=B, inputs=INPUTS, features=FEATURES, seed=0):
    """(inputs, cotangents, weights of which some are 0)."""
    draw = np.random.default_rng(seed)
    x, y = (np.float32(draw.normal(size=(examples, size))) for size in (inputs, features))
    return x, y, np.float32(draw.normal(size=examples) * (draw.random(examples) < 0.7))


def interpreted(*of):
    return dense_pallas.sums(*(jnp.asarray(z)[None] for z in of), interpret=True)[0]


def loss(params, example):
    x = jnp.tanh(example["x"].ravel() @ params["a"])
    return jnp.sum((x @ params["b"] + params["c"]) ** 2)


PARAMS = {
    "a": jnp.full((INPUTS, FEATURES), 0.1),
    "b": jnp.full((FEATURES, 40), 0.2),
    "c": jnp.full(40, 0.3),
}
BATCH = {"x": jnp.asarray(np.random.default_rng(1).normal(size=(B, 10, 10)), jnp.float32)}


def clipped(params, batch, mask=None):
    grads = per_example_grads(loss, method="taps")(params, batch, batch_mask=mask)
    return grads.weighted_sum(lambda norms: jnp.minimum(1.0, 1.0 / jnp.maximum(norms, 1e-12)))


def lowered(fun, *arguments, platform="cuda"):
    # Triton asks which GPU it is, and there may be none.
    gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=gpu if platform == "cuda" else None)
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.jit(fun).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def test_thirds_are_all_of_a_number_and_each_has_eleven_bits():
    draw = np.random.default_rng(0)
    z = np.float32(draw.normal(size=1000) * 10.0 ** draw.integers(-25, 38, 1000))
    z = np.concatenate([z, np.float32([0.0, -0.0, np.finfo(np.float32).max])])
    parts = [np.asarray(part) for part in dense_operands.thirds(z)]
    np.testing.assert_array_equal(sum(part.astype(np.float64) for part in parts), z)
    for part in parts:
        np.testing.assert_array_equal(part.view(np.int32) & 0x1FFF, 0)
    for bad in (np.nan, np.inf, -np.inf):
        first, *rest = dense_operands.thirds(np.float32([bad]))
        np.testing.assert_array_equal(first, np.float32([bad]))
        assert not np.any(rest)


@pytest.mark.parametrize(
    "sizes",
    [(B, INPUTS, FEATURES), (1, 17, 65), (33, 16, 3), (300, 5, 2)],
    ids=lambda s: "x".join(map(str, s)),
)
def test_the_kernel_sums_as_exactly_as_float32_products(sizes):
    x, y, c = arrays(*sizes)
    found = np.asarray(interpreted(x, y, c), np.float64)
    terms = np.float64(x).T, np.float64(c)[:, None] * np.float64(y)
    # A rounding of each weighed cotangent, of each product and of each addition, and 2^-29 for the
    # products of thirds that are left out.
    most = (3 + 6 * sizes[0]) * 2.0**-24 * (np.abs(terms[0]) @ np.abs(terms[1]))
    assert np.all(np.abs(found - terms[0] @ terms[1]) <= most)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_adds_nothing_by_weight_0_and_is_seen_otherwise(where, bad):
    x, y, c = arrays(examples=40)
    (x, y)[where][3, -1] = bad
    c[3] = 0.0
    others = np.arange(40) != 3
    clean = [np.where(others.reshape(-1, *[1] * (z.ndim - 1)), z, 0) for z in (x, y, c)]
    np.testing.assert_array_equal(interpreted(x, y, c), interpreted(*clean))
    c[3] = 0.5
    assert not np.isfinite(interpreted(x, y, c)).all()


def test_layers_are_summed_by_a_kernel_where_lowered_for_cuda_and_only_there():
    call = kernel_primitives.CALL
    # Two matrices and a bias.
    assert lowered(clipped, PARAMS, BATCH).count(call) == 3
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), (PARAMS, BATCH))
    assert lowered(jax.vmap(clipped), *several).count(call) == 3
    for platform in ("cpu", "tpu"):
        text = lowered(clipped, PARAMS, BATCH, platform=platform)
        assert call not in text and text == without_kernels(platform)
    exported = jax.export.export(jax.jit(clipped), platforms=("cuda",))(PARAMS, BATCH)
    assert call not in exported.mlir_module()
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (PARAMS, BATCH))
    assert call not in lowered(clipped, *half)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shards_of_a_batch_take_it(check_vma):
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))

    def shard(params, batch):
        return jax.lax.psum(clipped(params, batch)[0], "rows")

    fun = jax.jit(
        jax.shard_map(
            shard, mesh=mesh, in_specs=(P(), P("rows")), out_specs=P(), check_vma=check_vma
        )
    )
    expected = jax.jit(clipped)(PARAMS, BATCH)[0]
    here = lambda fun: fun.trace(PARAMS, BATCH).lower(lowering_platforms=("cuda",)).as_text()
    # From JAX 0.12 none is made without a GPU, and shards are of devices that are here.
    call = kernel_primitives.CALL
    assert here(fun).count(call) == here(jax.jit(clipped)).count(call)
    with _platforms.only("cuda"):
        found = fun(PARAMS, BATCH)
        assert "sum_of_outer_rows" in str(jax.make_jaxpr(fun)(PARAMS, BATCH))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def without_kernels(platform):
    """The same program of a library that knows no kernel for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_kernel, "takes", lambda *arrays: False)
        jax.clear_caches()
        return lowered(clipped, PARAMS, BATCH, platform=platform)


def test_gradients_by_the_kernel_are_those_of_every_form(monkeypatch):
    mask = np.arange(B) % 5 != 0
    batch = {"x": BATCH["x"].at[5, 0, 0].set(np.nan)}  # masked
    expected, norms = jax.jit(clipped)(PARAMS, batch, mask)
    taken = []

    def by_kernel(x, y, c):
        taken.append(x.shape[1:])
        return dense_pallas.sums(x[None], y[None], c[None], interpret=True)[0]

    monkeypatch.setattr(dense_kernel, "weighted_sum", by_kernel)
    with _platforms.only("cuda"):
        found, norms_there = jax.jit(clipped)(PARAMS, batch, mask)
    assert sorted(taken) == [(1,), (FEATURES,), (INPUTS,)]  # of a bias: a layer of one input
    np.testing.assert_allclose(norms_there, norms, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize(
    ("subscripts", "inputs", "weights"),
    [
        ("ij,ijo->o", (5, 7), (5, 7, 6)),
        ("ij,jio->o", (5, 7), (7, 5, 6)),
        ("ij,joi->o", (5, 7), (7, 6, 5)),
        ("ij,jaib->ba", (5, 7), (7, 3, 5, 4)),
        ("ij,aijb->ba", (5, 7), (3, 5, 7, 4)),
        ("jio,ij->o", (5, 7), (7, 5, 6)),  # the weight comes first
    ],
)
def test_axes_of_weights_in_any_order_have_their_own_sums(monkeypatch, subscripts, inputs, weights):
    draw = np.random.default_rng(2)
    normal = lambda *shape: jnp.asarray(draw.normal(size=shape), jnp.float32)
    product = lambda x, w: jnp.einsum(subscripts, *((w, x) if subscripts[0] == "j" else (x, w)))
    of_one = lambda w, x: jnp.sum(jnp.tanh(0.3 * product(x, w)) ** 2)
    w, x, scales = normal(*weights), normal(9, *inputs), jnp.abs(normal(9))
    taken = []
    summed = dense_kernel.weighted_sum
    monkeypatch.setattr(dense_kernel, "weighted_sum", lambda *of: taken.append(of) or summed(*of))
    with _platforms.only("cuda"):
        grads = per_example_grads(of_one, method="taps")(w, x)
        found, norms = grads.weighted_sum(lambda _: scales)
    assert taken
    rows = jax.jit(jax.vmap(jax.grad(of_one), (None, 0)))(w, x)
    wanted = jnp.einsum("b,b...->...", scales, rows)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * float(jnp.abs(wanted).max()))
    assert (norms >= (1 - 1e-6) * jnp.sqrt(jnp.sum(rows.reshape(9, -1) ** 2, axis=1))).all()


def test_side_by_side_empty_and_differentiated():
    """What stands in on a CPU, through the same rules."""
    x, y, c = arrays()
    fun = lambda c: dense_kernel.weighted_sum(x, y, c)
    plain = jax.jit(fun)(c)
    np.testing.assert_allclose(plain, x.T @ (c[:, None] * y), rtol=1e-4, atol=1e-4)
    value, slope = jax.jit(lambda c: jax.jvp(fun, (c,), (c,)))(c)
    np.testing.assert_array_equal(value, plain)
    np.testing.assert_allclose(slope, plain, rtol=1e-5, atol=1e-5)  # it is linear
    bounds = jnp.stack([c, 2 * c])
    text = jax.jit(jax.vmap(fun)).lower(bounds).as_text()
    assert f"<2x{B}x{INPUTS}x" not in text  # rows are read where they lie
    np.testing.assert_allclose(jax.vmap(fun)(bounds)[1], 2 * plain, rtol=1e-5, atol=1e-5)
    both = jax.vmap(dense_kernel.weighted_sum)(*(jnp.stack([z, z]) for z in (x, y, c)))
    np.testing.assert_allclose(both[1], plain, rtol=1e-5, atol=1e-5)
    assert not np.any(dense_kernel.weighted_sum(x[:0], y[:0], c[:0]))


def test_explain_tells_of_the_kernel_where_it_is_made(monkeypatch):
    grads = per_example_grads(loss, method="taps")(PARAMS, BATCH)
    said = "summed by a Pallas kernel"
    assert said not in grads.explain("cpu") + grads.explain("tpu")
    monkeypatch.setattr(dense_kernel, "is_made", lambda x, y: True)
    assert grads.explain("cuda").count(said) == 2
    monkeypatch.setattr(dense_kernel, "is_made", lambda x, y: False)
    assert said not in grads.explain("cuda")


@pytest.mark.parametrize("sizes", [(1, 1), (512, 784), (4096, 65)])
def test_shares_move_no_more_than_the_copy_that_they_replace(sizes):
    examples, inputs = sizes
    x, y = (jax.ShapeDtypeStruct((1, examples, k), jnp.float32) for k in (inputs, 256))
    shares = dense_operands.sizes_of(x, y).shares
    assert shares == 1 or 2 * shares * inputs * 256 <= 2 * examples * inputs


def test_no_kernel_writes_where_32_bits_do_not_reach():
    fun = jax.vmap(dense_kernel.weighted_sum)
    of = lambda groups: [
        jax.ShapeDtypeStruct((groups, *shape), jnp.float32) for shape in ((1, 65), (1, 65), (1,))
    ]
    assert kernel_primitives.CALL in lowered(fun, *of(1000))
    assert kernel_primitives.CALL not in lowered(fun, *of(2**31 // 65**2 + 1))


def test_a_program_that_xla_deals_out_over_devices_has_no_kernel():
    """It cuts none: each device would gather the whole batch."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    given = (NamedSharding(mesh, P()), NamedSharding(mesh, P("d")))
    cut = jax.jit(clipped, in_shardings=given).trace(PARAMS, BATCH)
    assert kernel_primitives.CALL in lowered(clipped, PARAMS, BATCH)
    assert kernel_primitives.CALL not in cut.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(("examples", "inputs", "features"), [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_sums_of_nothing_are_taken_side_by_side(examples, inputs, features):
    shapes = ((2, examples, inputs), (2, examples, features), (2, examples))
    found = jax.vmap(dense_kernel.weighted_sum)(*(jnp.ones(shape) for shape in shapes))
    assert found.shape == (2, inputs, features) and not np.any(found)


def test_a_biass_sum_lies_on_the_mesh_of_its_cotangents():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Explicit,))
    y = jax.device_put(jnp.ones((8, 5)), NamedSharding(mesh, P()))
    (found,) = jax.make_jaxpr(dense_kernel.weighted_rows)(y, jnp.ones(8)).out_avals
    assert found.sharding.mesh == mesh.abstract_mesh


def test_an_old_gpu_has_no_kernel_and_a_fault_in_asking_is_seen(monkeypatch):
    assert not kernel_primitives.without_triton()  # none is here
    monkeypatch.setattr("jax.extend.backend.backends", lambda: {"cpu": None, "cuda": None})
    for capability, old in (("7.5", True), ("9.0", False)):
        gpu = types.SimpleNamespace(compute_capability=capability)
        monkeypatch.setattr(jax, "local_devices", lambda backend, gpu=gpu: [gpu])
        assert kernel_primitives.without_triton() == old

    def fails(backend):
        raise RuntimeError("A fault of another kind.")

    monkeypatch.setattr(jax, "local_devices", fails)
    with pytest.raises(RuntimeError, match="of another kind"):
        kernel_primitives.without_triton()
