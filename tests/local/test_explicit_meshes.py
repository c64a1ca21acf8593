"""On a mesh with Explicit axes, JAX's default, what is private works where `jax.grad` does, and is
sharded as it is.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import fljax
import fljax_kernels
from fljax_kernels import per_example_grads

B, D, K = 16, 8, 4
KINDS = {"explicit": AxisType.Explicit, "auto": AxisType.Auto}
P = PartitionSpec
# Of params: [D, K], [K], and a table [D, D] that is looked up. Of the batch: its leading axis.
PLACES = {
    "batch": ({"w": P(), "b": P(), "table": P()}, P("data")),
    "both": ({"w": P("model"), "b": P(), "table": P(None, "model")}, P("data")),
    "same axis": (
        {"w": P("data"), "b": P("model"), "table": P("data", "model")},
        P(("data", "model")),
    ),
    "params": ({"w": P(None, "model"), "b": P(), "table": P("data")}, P()),
}


def loss(params, example):
    hidden = jnp.tanh(example["x"] + params["table"][example["symbol"]])
    return -jax.nn.log_softmax(hidden @ params["w"] + params["b"])[example["y"]]


def given():
    rng = np.random.default_rng(0)
    sizes = {"w": (D, K), "b": (K,), "table": (D, D)}
    params = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    batch = {"x": rng.normal(size=(B, D)).astype(np.float32)}
    batch |= {
        "symbol": rng.integers(0, D, B).astype(np.int32),
        "y": rng.integers(0, K, B).astype(np.int32),
    }
    return params, batch, np.arange(B) % 5 == 0


def clipped(**options):
    options = {"l2_clip_norm": 0.5, "keep_batch_dim": False, **options}
    fun = options.pop("fun", loss)
    return lambda params, batch, padding: fljax.clipped_grad(fun, **options)(
        params, batch, is_padding_example=padding
    )


def traced_bound(params, batch, padding):
    return clipped(l2_clip_norm=1 + jnp.max(jnp.abs(params["b"])))(params, batch, padding)


def closed_over(params, batch, padding):
    """The loss closes over an array of the mesh."""
    return clipped(fun=lambda p, e: loss(p, e) * jnp.sum(params["b"]))(params, batch, padding)


def products(params, batch, padding, **options):
    G = per_example_grads(loss, **options)(params, batch, batch_mask=~padding)
    first = (
        G.values(),
        G.row_norms(),
        G.row_norms(per_leaf=True),
        G.gram(),
        G.matvec(params),
        G.materialize(),
    )
    weighed = G.weighted_sum(lambda norms, x: x * jnp.minimum(1, 1 / norms), batch["x"][:, 0])
    outside = G.weighted_sum(lambda norms: jnp.minimum(1, jnp.sum(params["b"]) / norms))
    return first, G.rmatvec(batch["x"][:, 0]), weighed, outside


FUNCTIONS = {
    "clipped_grad": clipped(),
    "outputs": clipped(return_values=True, return_grad_norms=True),
    "microbatches": clipped(microbatch_size=3, return_values=True),
    "per layer": clipped(l2_clip_norm={"w": 0.5, "b": 0.2, "table": 0.3}),
    "subjects": clipped(subject_ids=lambda batch: batch["y"]),
    "transform": clipped(pre_clipping_transform=lambda grad: grad["w"], microbatch_size=3),
    "traced bound": traced_bound,
    "closed over": closed_over,
    "clipped_fun": lambda p, batch, padding: fljax.clipped_fun(
        lambda p, x: {"out": x @ p["w"], "norm": jnp.sum(jnp.square(x))},
        batch_argnums=1,
        keep_batch_dim=False,
        return_norms=True,
        microbatch_size=5,
    )(p, batch["x"], is_padding_example=padding),
    "clip_pytree": lambda p, batch, padding: fljax.clip_pytree(p, 0.5),
    "products": products,
    "taps in microbatches": lambda *a: products(*a, method="taps", microbatch_size=3),
    "clip_and_sum": lambda p, batch, padding: fljax_kernels.clip_and_sum(
        {"x": batch["x"]}, 0.5, mask=~padding
    ),
    "segments": lambda p, batch, padding: fljax_kernels.clip_and_sum(
        batch["x"], 0.5, mask=~padding, segment_ids=batch["y"], num_segments=K
    ),
    "noise": lambda p, batch, padding: fljax_kernels.add_gaussian_noise(jax.random.key(1), p, 0.3),
    "noise of clients": lambda p, batch, padding: fljax_kernels.gaussian_noise(
        jax.random.split(jax.random.key(1), 3), p, 0.3
    ),
}
QUICK = [
    ("clipped_grad", "both"),
    ("clipped_fun", "batch"),
    ("clip_pytree", "same axis"),
    ("subjects", "batch"),
    ("clip_and_sum", "batch"),
    ("noise", "same axis"),
]


def a_mesh(kind):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(KINDS[kind],) * 2)


def placed(kind, place):
    mesh, (params, batch, padding), (of_params, of_batch) = a_mesh(kind), given(), PLACES[place]

    def put(leaf, spec):
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    params = {name: put(leaf, of_params[name]) for name, leaf in params.items()}
    return mesh, (
        params,
        jax.tree.map(lambda leaf: put(leaf, of_batch), batch),
        put(padding, of_batch),
    )


def check(name, kind, place):
    """Sums of 16 rows of norm 1/2, and products of 8, added up in another order."""
    mesh, arguments = placed(kind, place)
    run = jax.jit(FUNCTIONS[name])
    plain = run(*given())
    with jax.set_mesh(mesh):
        found = run(*arguments)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=2e-5, atol=2e-6)
    return found


@pytest.mark.parametrize(("name", "place"), QUICK)
def test_a_function_on_explicit_axes_gives_what_it_gives_on_one_device(name, place):
    check(name, "explicit", place)


@pytest.mark.slow(reason="128 programs for meshes of devices: every function, mesh and place")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_function_on_every_mesh_gives_what_it_gives_on_one_device(name, kind, place):
    check(name, kind, place)


def test_a_clipped_sum_is_sharded_like_the_parameters_and_norms_like_the_batch():
    total, rows = check("outputs", "explicit", "both")
    _, (params, _, _) = placed("explicit", "both")

    def specs(tree):
        return jax.tree.map(lambda x: jax.typeof(x).sharding.spec, tree)

    assert specs(total) == specs(params)
    assert specs(rows.values) == specs(rows.grad_norms) == P("data")


@pytest.mark.slow(reason="compiles for two meshes")
def test_a_mesh_that_only_the_arrays_name_serves_too():
    """Without `jax.set_mesh`, inside jit and outside."""
    _, arguments = placed("explicit", "batch")
    plain = FUNCTIONS["clipped_grad"](*given())
    for run in (FUNCTIONS["clipped_grad"], jax.jit(FUNCTIONS["clipped_grad"])):
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(run(*arguments)), strict=True):
            np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=2e-5, atol=2e-6)


def test_a_loss_that_is_wrong_is_refused_as_without_a_mesh():
    mesh, arguments = placed("explicit", "batch")
    wrong = clipped(fun=lambda p, e: p["b"])
    with pytest.raises(
        ValueError, match=r"Expected fun to return a scalar for one row, got shape \(\d+,\)"
    ) as without:
        wrong(*jax.tree.map(np.asarray, arguments))
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="Expected fun to return") as within:
        wrong(*arguments)
    assert str(within.value) == str(without.value)
