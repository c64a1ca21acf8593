"""What the sites become: which forms are chosen, that forcing others changes nothing, and the known
pitfalls.
"""

import contextlib
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax_kernels import per_example_grads
from fljax_kernels.per_example import api, plan, terms
from fljax_kernels.per_example.cases import CASES, B
from tests.kernels.per_example._exact import FAST, check

BY_NAME = {case.name: case for case in CASES}


@contextlib.contextmanager
def changed(owner, name, value):
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@pytest.mark.slow(
    reason="compiles a loss in float32 and float64", but=["mlp", "conv_2d", "scanned_layers"]
)
@pytest.mark.parametrize(
    "name", ["mlp", "conv_2d", "stacked_lstm", "scanned_layers", "tied_embedding"]
)
def test_forcing_the_fallback_gives_the_same_numbers(name):
    with changed(plan, "_rule", lambda *_: None):
        said = check(BY_NAME[name].loss, *BY_NAME[name].make(3), method="taps")
    assert "product" not in said
    assert "convolution" not in said


@pytest.mark.slow(
    reason="compiles a loss for two devices, in float32 and float64",
    ids=["stacked_lstm-False", "stacked_lstm-True"],
)
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    "name", ["attention", "conv_2d_grouped", "stacked_lstm", "tied_autoencoder"]
)
def test_gram_and_rows_give_the_same_numbers(name, held):
    with changed(terms.Product, "held", held):
        said = check(BY_NAME[name].loss, *BY_NAME[name].make(3), method="taps")
    if jax.default_backend() == "cpu":  # a GPU's convolutions have a choice of their own
        assert ("rows, kept" in said) == held


def form(name):
    params, batch = BY_NAME[name].make(0)
    return per_example_grads(BY_NAME[name].loss, method="taps")(params, batch).explain()


@pytest.mark.parametrize(
    "name", ["joined_gate_kernels", "sliced_projection", "low_rank_adaptation", "gru", "remat"]
)
def test_what_only_rearranges_parameters_keeps_the_compact_form(name):
    assert "product" in form(name)


@pytest.mark.parametrize("name", ["tied_embedding", "tied_wide_embedding"])
def test_tied_embeddings_are_not_materialised(name):
    lines = form(name).split("table")[1].splitlines()
    assert any("gather" in line for line in lines)
    assert any("product" in line for line in lines)


def test_unused_parameters_have_zero_rows():
    assert "no gradient" in form("weight_decay_and_unused")


def test_auto_holds_small_matrices_and_taps_large_ones(monkeypatch):
    params, batch = BY_NAME["mlp"].make(0)
    assert per_example_grads(BY_NAME["mlp"].loss)(params, batch).explain().startswith("vmap")
    monkeypatch.setattr(api, "SMALL", 0)
    assert per_example_grads(BY_NAME["mlp"].loss)(params, batch).explain().startswith("taps")


def test_auto_takes_vmap_where_taps_would_hold_the_rows_anyway(monkeypatch):
    monkeypatch.setattr(api, "SMALL", 0)

    def loss(p, e):
        return jnp.sum(jnp.tanh(jnp.tanh(e @ p["w"]) @ p["v"]))

    def scanned(p, e):
        return jnp.sum(jax.lax.scan(lambda h, x: (jnp.tanh(h @ p["w"] + x), None), e[0], e)[0])

    def conv(p, e):
        return jnp.sum(
            jax.lax.conv_general_dilated(
                e[None], p, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            )
        )

    def chosen(loss, params, shape):
        return per_example_grads(loss)(params, jnp.ones((B, *shape))).explain().split(":")[0]

    params = {"w": jnp.ones((4, 4)), "v": jnp.ones((4, 6))}
    # 16 <= n * (4 + 4) and 24 <= n * (4 + 6) for n = 3 tokens; with 40 in the middle, 160 > 3 * 44.
    assert (
        chosen(loss, params, (3, 4))
        == "vmap (100% of each row would be held anyway, as small as its records)"
    )
    assert chosen(loss, params, (1, 4)) == "taps"
    assert chosen(loss, {"w": jnp.ones((4, 40)), "v": jnp.ones((40, 6))}, (3, 4)) == "taps"
    assert chosen(scanned, params, (9, 4)) == "taps"
    assert chosen(conv, jnp.ones((3, 2, 2)), (9, 2)) == "taps"


def two_ways(loss, params, batch, c):
    def products(method):
        g = per_example_grads(loss, method=method)(params, batch)
        return g.row_norms(), g.rmatvec(c)

    taps, vmap = (
        jax.jit(products, static_argnums=0, compiler_options=FAST)(m) for m in ("taps", "vmap")
    )
    np.testing.assert_allclose(taps[0], vmap[0], rtol=1e-5, atol=1e-6)
    for a, b in zip(jax.tree.leaves(taps[1]), jax.tree.leaves(vmap[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow(reason="compiles one more loss", but=["attention", "conv_2d", "mlp"])
@pytest.mark.parametrize(
    "name", ["attention", "conv_2d", "stacked_lstm", "embedding_with_repeated_tokens", "mlp"]
)
def test_a_nan_example_of_weight_zero_leaves_the_others_alone(name):
    case = BY_NAME[name]
    params, batch = case.make(1)
    c = jnp.asarray([0.5, 0.0, 2.0])
    bad = jax.tree.map(
        lambda x: x.at[1].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x, batch
    )

    @jax.jit
    def total(params, batch):
        g = per_example_grads(case.loss, method="taps")(params, batch)
        return g.rmatvec(c), g.row_norms()

    clean, _ = total(params, batch)
    dirty, norms = total(params, bad)
    if name != "embedding_with_repeated_tokens":
        assert not np.isfinite(norms[1])
    assert np.isfinite(norms[0])
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_infinite_row_with_weight_is_not_hidden():
    case = BY_NAME["attention"]
    params, batch = case.make(1)

    @jax.jit
    def total(params, batch):
        return per_example_grads(case.loss, method="taps")(params, batch).rmatvec(jnp.ones(B))

    assert not all(
        np.all(np.isfinite(x)) for x in jax.tree.leaves(total(params, batch.at[1].set(jnp.inf)))
    )


def test_the_norm_of_a_zero_gradient_is_zero_not_nan():
    g = per_example_grads(lambda p, e: jnp.sum(jnp.tanh(e @ p)) * 0.0, method="taps")(
        jnp.ones((4, 4)), jnp.ones((B, 9, 4))
    )
    # 2**-47 |x| is what squares below float32's range may have hidden.
    np.testing.assert_allclose(g.row_norms(), np.zeros(B), atol=1e-12)


@pytest.mark.parametrize("steps", [1, 9])
def test_no_norm_is_lost_where_an_example_is_tiny_and_its_cotangent_huge(steps):
    # Squares of x are below float32's range, those of the cotangent near its upper end: entries of
    # size 1 each.
    x = jnp.full((B, steps, 64), 2.0**-63.6)

    def loss(p, e):
        return jnp.sum(e @ p) * 2.0**60

    g = per_example_grads(loss, method="taps")(jnp.ones((64, 64)), x)
    assert "Gram" in g.explain() if steps > 1 else "|x|^2 |y|^2" in g.explain()
    true = steps * 64 * 2.0**-3.6
    if jax.default_backend() == "cpu":  # else the check could not fail; GPUs keep subnormals
        assert float(jnp.sqrt(jnp.sum(jnp.square(x)))) == 0.0
    assert (np.asarray(g.row_norms()) >= true).all()


def test_no_clipped_row_is_longer_than_its_bound_where_steps_cancel():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((64, 1, 80)), 4, axis=1).astype(np.float32)
    # Cotangents of +-1000 whose sum over the steps is of order 1: the Gram form subtracts numbers
    # of 10^8.
    y = (
        np.float32(1e3)
        * np.array([1, -1, 1, -1], np.float32)[None, :, None]
        * np.ones((64, 1, 70), np.float32)
    )
    y = y + rng.standard_normal((64, 4, 70)).astype(np.float32)

    def loss(p, e):
        return jnp.sum((e["x"] @ p) * e["y"])

    def norms():
        def lengths(p, batch):
            g = per_example_grads(loss, method="taps")(p, batch)
            assert "Gram" in g.explain()
            return g.row_norms()

        found = jax.jit(lengths)(np.zeros((80, 70), np.float32), {"x": x, "y": y})
        return np.asarray(found, np.float64)

    true = np.linalg.norm(
        np.einsum("btp,btq->bpq", x.astype(np.float64), y.astype(np.float64)), axis=(1, 2)
    )
    found = norms()
    assert (found >= true).all()
    assert (found <= 1.7 * true).all()
    with changed(terms, "ROUNDING", 0.0):  # control: plain rounding does lose length
        assert (norms() < 0.98 * true).any()


# What comes back to one row of a table is +-1000 times a direction, and adds up to order 1: of four
# look-ups; of a look-up and of the product that shares the table.
def looked_up(table, e):
    return jnp.sum(table[e["tokens"]] * e["back"])


def tied(table, e):
    return looked_up(table, e) + jnp.dot(table @ e["hidden"], e["logits"])


def cancelling(rng, size, width, *, shared):
    back = rng.standard_normal((size, 1, width)) * np.array([1, -1, 1, -1])[None, :, None] * 1e3
    small = rng.standard_normal((size, 4, width))
    batch = {"tokens": np.full((size, 4), 2, np.int32), "back": back + small}
    if shared:
        direction = rng.standard_normal((size, width))
        batch["back"] = 1e3 * direction[:, None] * np.array([1, 0, 0, 0])[None, :, None]
        batch["hidden"] = direction + 1e-3 * small[:, 0]
        batch["logits"] = np.tile(-1e3 * np.eye(5)[2], (size, 1))
    return {k: v if k == "tokens" else v.astype(np.float32) for k, v in batch.items()}


@pytest.mark.parametrize("shared", [False, True], ids=["look-ups", "look-up and product"])
def test_no_norm_is_short_where_one_row_of_a_table_is_met_several_times(shared):
    batch = cancelling(np.random.default_rng(1), 256, 64, shared=shared)
    loss = tied if shared else looked_up

    def norms():
        found = jax.jit(
            lambda p, b: per_example_grads(loss, method="taps")(p, b).row_norms(),
            compiler_options=FAST,
        )(np.zeros((5, 64), np.float32), batch)
        return np.asarray(found, np.float64)

    wide = {k: v.astype(np.float64) for k, v in batch.items()}
    row = wide["back"].sum(1)  # of token 2; other rows have no gradient
    if shared:
        row = row + wide["logits"][:, 2:3] * wide["hidden"]
    true = np.linalg.norm(row, axis=1)
    found = norms()
    assert (found >= true).all()
    assert (found <= 2 * true).all()
    with changed(terms, "ROUNDING", 0.0):  # control: plain rounding does lose length
        assert (norms() < 0.999 * true).any()


def test_a_batch_of_no_examples_has_empty_norms_and_a_zero_sum():
    params, batch = BY_NAME["mlp"].make(0)
    none = jax.tree.map(lambda x: np.asarray(x)[:0], batch)

    @jax.jit
    def products(params, batch):
        g = per_example_grads(BY_NAME["mlp"].loss, method="vmap")(params, batch)
        return g.row_norms(), g.gram(), g.rmatvec(jnp.zeros(0))

    row_norms, gram, total = products(params, none)
    assert row_norms.shape == (0,) and gram.shape == (0, 0)
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(total))


def branching(p, e):
    """The logarithm and its derivative exist in the branch that is taken only."""
    return jnp.sum(
        jax.lax.cond(
            e[0] > 0, lambda x: jnp.log(x @ p["w"]), lambda x: jnp.tanh(x @ p["w"]) * p["s"], e
        )
    )


def test_an_untaken_branch_may_be_undefined():

    params = {"w": jnp.eye(3) + 0.1, "s": jnp.ones(3)}
    batch = jnp.asarray([[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [0.5, 0.1, 0.2]])
    two_ways(branching, params, batch, jnp.asarray([0.5, 1.5, -1.0]))
    said = per_example_grads(branching, method="taps")(params, batch).explain()
    # Products in both branches are recorded; the scale is known as a whole only, and tapped before
    # them.
    assert "2 products 3 x 3" in said and said.count("tapped") == 1


def test_a_tracer_closed_over_by_the_loss_does_not_leak():
    @jax.jit
    def round_(params, anchor, batch):
        def proximal(p, e):
            return jnp.sum(jnp.square(jnp.tanh(e @ p))) + jnp.sum(jnp.square(p - anchor))

        return per_example_grads(proximal, method="taps")(params, batch).rmatvec(jnp.ones(B))

    params, batch = jnp.ones((3, 2)), jnp.ones((B, 3))
    assert not np.array_equal(round_(params, 0 * params, batch), round_(params, 2 * params, batch))


def test_an_effect_in_the_loss_happens_once(capfd):
    def loss(p, e):
        jax.debug.print("seen {}", jnp.sum(p))
        return jnp.sum(jnp.tanh(e @ (p * 2.0)))

    @jax.jit
    def norms(p, e):
        return per_example_grads(loss, method="taps")(p, e).row_norms()

    jax.block_until_ready(norms(jnp.ones((3, 2)), jnp.ones((B, 3))))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("seen") <= B


def test_products_work_outside_jit_and_do_not_retrace_under_it():
    def loss(p, e):
        return jnp.sum(jnp.tanh(e @ p))

    p, e = jnp.ones((3, 2)), jnp.arange(9.0).reshape(B, 3) / 30  # tanh is far from 1
    two_ways(loss, p, e, jnp.ones(B))

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(p, e):
        return per_example_grads(loss, method="taps")(p, e).row_norms()

    step(p, e)
    step(2 * p, e + 1)
    np.testing.assert_allclose(
        per_example_grads(loss, method="taps")(p, e).row_norms(), step(p, e), rtol=1e-6
    )


def test_bfloat16_parameters_are_summed_in_float32():
    params, batch = BY_NAME["mlp"].make(0)
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)

    def loss(p, e):
        return BY_NAME["mlp"].loss(jax.tree.map(lambda x: x.astype(jnp.float32), p), e)

    def products(params, batch):
        g = per_example_grads(loss, method="taps")(params, batch)
        return g.rmatvec(jnp.ones(B)), g.row_norms()

    assert {x.dtype for x in jax.tree.leaves(jax.eval_shape(products, params, batch))} == {
        jnp.dtype("float32")
    }


def wide_convolution(params, example):
    """More kernel entries than positions pay for: the sum is the convolution's own gradient, no
    rows are held.
    """
    spec = jax.lax.conv_dimension_numbers((1, 3, 3, 8), (3, 3, 8, 32), ("NHWC", "HWIO", "NHWC"))
    out = jax.lax.conv_general_dilated(
        example[None], params["w"], (1, 1), "SAME", dimension_numbers=spec
    )
    return jnp.sum(jnp.sin(out))


def wide_convolution_case():
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"w": 0.3 * jax.random.normal(keys[0], (3, 3, 8, 32))}
    return wide_convolution, params, jax.random.normal(keys[1], (B, 3, 3, 8))


# The last four call jitted functions (`jnp.where`, `relu`, `gelu`), whose bodies meet what differs
# between devices.
NESTED = ["mlp", "group_norm", "dynamic_slices", "tied_embedding"]


@pytest.mark.slow(
    reason="compiles one more structure for eight devices",
    but=["mlp-two_pass", "tied_embedding-taps"],
)
@pytest.mark.parametrize("method", ["taps", "two_pass"])
@pytest.mark.parametrize(
    "name", ["wide_convolution", "scanned_layers", "branches_with_parameters", *NESTED]
)
def test_shard_map_sums_over_devices_only_what_it_is_told_to(name, method):
    case = BY_NAME.get(name)
    loss, params, batch = (case.loss, *case.make(0)) if case else wide_convolution_case()
    batch = jax.tree.map(lambda x: jnp.repeat(x, 4, axis=0), batch)
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    def clipped(params, batch, method=method):
        return per_example_grads(loss, method=method)(params, batch).weighted_sum(
            lambda n: jnp.minimum(1.0, 0.5 / n)
        )

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(spec(), spec("d")), out_specs=(spec(), spec("d")))
    def dealt(params, batch):
        total, norms = clipped(params, batch)
        return jax.lax.psum(total, "d"), norms

    total, norms = dealt(params, batch)
    expected, plain = jax.jit(functools.partial(clipped, method="vmap"))(params, batch)
    np.testing.assert_allclose(norms, plain, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(total), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow(
    reason="compiles one more loss for two devices",
    but=["vmap-mask", "taps-coefficients", "two_pass-closure", "microbatch-mask"],
)
@pytest.mark.parametrize("what", ["coefficients", "mask", "closure"])
@pytest.mark.parametrize("method", ["vmap", "taps", "two_pass", "microbatch"])
def test_shard_map_with_params_and_batch_that_are_the_same_on_all_devices(method, what):
    params, batch = BY_NAME["mlp"].make(0)
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    differs = jnp.asarray(np.random.default_rng(0).random((4, B)), jnp.float32)

    def summed(differs, method):
        shift = jnp.mean(differs) if what == "closure" else jnp.float32(1)

        def loss(params, example):
            return BY_NAME["mlp"].loss(params, example) * shift

        mask = differs[0] > 0.5 if what == "mask" else None
        size = 2 if method == "microbatch" else None
        g = per_example_grads(loss, method=method, microbatch_size=size)(
            params, batch, batch_mask=mask
        )
        return g.rmatvec(differs[0] if what == "coefficients" else jnp.ones(B))

    def alone(differs, method=method):
        return jax.tree.map(lambda x: x[None], summed(differs, method))

    dealt = jax.jit(jax.shard_map(alone, mesh=mesh, in_specs=spec("d"), out_specs=spec("d")))(
        differs
    )
    plain = jax.jit(lambda differs: summed(differs, "vmap"))
    one_by_one = [plain(row[None]) for row in np.asarray(differs)]
    for a, *b in zip(jax.tree.leaves(dealt), *map(jax.tree.leaves, one_by_one), strict=True):
        np.testing.assert_allclose(a, jnp.stack(b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("vma", [True, False], ids=["checked", "unchecked"])
def test_parameters_that_a_shard_map_closes_over_keep_their_rules(vma):
    """Under `jax.set_mesh` they are of another mesh than what is inside: JAX moves them where they
    are used.
    """
    params, batch = BY_NAME["mlp"].make(0)
    mesh = jax.make_mesh((B,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec, said = jax.sharding.PartitionSpec, []

    def norms(params, batch):
        g = per_example_grads(BY_NAME["mlp"].loss, method="taps")(params, batch)
        said.append(g.explain())
        return g.row_norms()

    @jax.jit
    def dealt(params, batch):
        params = jax.tree.map(lambda leaf: 1 * leaf, params)
        return jax.shard_map(
            lambda b: norms(params, b), in_specs=spec("d"), out_specs=spec("d"), check_vma=vma
        )(batch)

    with jax.set_mesh(mesh):
        inside = dealt(params, batch)
    np.testing.assert_allclose(inside, jax.jit(norms)(params, batch), rtol=1e-5)
    assert said[0].count("|x|^2 |y|^2") == said[-1].count("|x|^2 |y|^2") > 0


def test_the_wide_convolution_holds_no_rows():
    loss, params, batch = wide_convolution_case()
    said = per_example_grads(loss, method="taps")(params, batch).explain("cpu")
    assert "9 summed: Gram" in said
