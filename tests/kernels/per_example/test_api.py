"""The object: products, masks, coefficients, bad input. Exactness per rule is in test_zoo.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax_kernels import per_example_grads

B = 5
OPTIONS = {
    "auto": {},
    "taps": {"method": "taps"},
    "two_pass": {"method": "two_pass"},
    "taps2": {"method": "taps", "microbatch_size": 2},
    "microbatch2": {"method": "microbatch", "microbatch_size": 2},
    "microbatch64": {"method": "microbatch", "microbatch_size": 64},
}


def loss(params, example):
    hidden = jnp.tanh(example["x"] @ params["w"] + params["b"])
    return jnp.square(jnp.sum(hidden) * params["s"] - example["y"])


@pytest.fixture
def case(key):
    keys = jax.random.split(key, 5)
    params = {
        "w": jax.random.normal(keys[0], (3, 4)),
        "b": jax.random.normal(keys[1], (4,)),
        "s": jax.random.normal(keys[2], ()),
    }
    batch = {"x": jax.random.normal(keys[3], (B, 3)), "y": jax.random.normal(keys[4], (B,))}
    rows = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
    matrix = np.concatenate(
        [np.asarray(g).reshape(B, -1) for g in jax.tree.leaves(rows)], axis=1
    ).astype(np.float64)
    return params, batch, matrix


def ravel(tree):
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


@pytest.mark.slow(reason="compiles one more method's products", ids=["taps2", "microbatch64"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_products_are_those_of_the_matrix(case, options):
    params, batch, matrix = case
    c = jnp.asarray([0.5, -1.0, 2.0, 0.0, 1.0])
    v = jax.tree.map(jnp.cos, params)

    @jax.jit
    def products(params, batch):
        g = per_example_grads(loss, **options)(params, batch)
        return (
            g.row_norms(),
            g.gram(),
            g.rmatvec(c),
            g.matvec(v),
            g.materialize(),
            g.values(),
            g.gram(per_leaf=True),
        )

    norms, gram, total, along, rows, values, grams = products(params, batch)
    close = dict(rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(norms, np.linalg.norm(matrix, axis=1), **close)
    np.testing.assert_allclose(gram, matrix @ matrix.T, **close)
    np.testing.assert_allclose(ravel(total), np.asarray(c) @ matrix, **close)
    np.testing.assert_allclose(along, matrix @ ravel(v), **close)
    np.testing.assert_allclose(ravel(jax.tree.map(lambda x: x[1], rows)), matrix[1], **close)
    np.testing.assert_allclose(values, jax.vmap(loss, (None, 0))(params, batch), **close)
    np.testing.assert_allclose(sum(jax.tree.leaves(grams)), matrix @ matrix.T, **close)


@pytest.mark.slow(reason="compiles one more method's products", ids=["taps2", "microbatch64"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_masked_rows_are_zero_even_when_nan(case, options):
    params, batch, matrix = case
    mask = jnp.asarray([True, False, True, True, False])
    batch = {"x": batch["x"].at[1].set(jnp.nan).at[4].set(jnp.inf), "y": batch["y"]}
    keep = np.where(mask, 1.0, 0.0)[:, None] * matrix

    @jax.jit
    def products(params, batch, mask):
        g = per_example_grads(loss, **options)(params, batch, batch_mask=mask)
        clipped, norms = g.weighted_sum(lambda n: jnp.minimum(1.0, 0.5 / n))
        return (
            g.row_norms(),
            g.gram(),
            g.rmatvec(jnp.ones(B)),
            g.matvec(params),
            clipped,
            norms,
            g.materialize(),
        )

    norms, gram, total, along, clipped, same, rows = products(params, batch, mask)
    np.testing.assert_allclose(norms, np.linalg.norm(keep, axis=1), rtol=1e-5)
    np.testing.assert_allclose(same, np.linalg.norm(keep, axis=1), rtol=1e-5)
    np.testing.assert_allclose(gram, keep @ keep.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ravel(total), keep.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(along, keep @ ravel(params), rtol=1e-5, atol=1e-5)
    scale = np.minimum(1.0, 0.5 / np.linalg.norm(matrix, axis=1))[:, None]
    np.testing.assert_allclose(ravel(clipped), (scale * keep).sum(0), rtol=1e-5, atol=1e-5)
    assert all(np.all(np.asarray(g)[1] == 0) for g in jax.tree.leaves(rows))


@pytest.mark.slow(
    reason="compiles one more method's products", but=["taps", "two_pass", "microbatch2"]
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_padding_by_zeros_is_harmless_to_a_loss_without_a_gradient_there(case, options):
    params, batch, _ = case

    def norm_loss(params, example):
        return jnp.linalg.norm(example["x"] * params["s"] @ params["w"]) + jnp.sum(
            params["b"] * example["y"]
        )

    mask = jnp.arange(B) < 3
    padded = jax.tree.map(lambda x: x.at[3:].set(0), batch)

    @jax.jit
    def products(params, padded):
        g = per_example_grads(norm_loss, **options)(params, padded, batch_mask=mask)
        found, _ = g.weighted_sum(lambda norms: jnp.minimum(1, 0.5 / norms))
        return found, g.row_norms(), g.values()

    found, found_norms, values = products(params, padded)
    grad = jax.jit(jax.grad(norm_loss))
    rows = [grad(params, jax.tree.map(lambda x, i=i: x[i], batch)) for i in range(3)]
    rows = np.stack([ravel(row) for row in rows]).astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(
        ravel(found), (rows * np.minimum(1, 0.5 / norms)[:, None]).sum(axis=0), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(found_norms, [*norms, 0, 0], rtol=1e-5)
    assert np.isfinite(values).all()


@pytest.mark.slow(
    reason="compiles one more method's products", but=["taps", "two_pass", "microbatch2"]
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_zero_coefficient_silences_a_nan_row(case, options):
    params, batch, matrix = case
    bad = {"x": batch["x"].at[2].set(jnp.nan), "y": batch["y"]}
    c = jnp.asarray([1.0, 1.0, 0.0, 1.0, 1.0])
    total = jax.jit(lambda p, b: per_example_grads(loss, **options)(p, b).rmatvec(c))(params, bad)
    np.testing.assert_allclose(ravel(total), np.asarray(c) @ matrix, rtol=1e-5, atol=1e-5)


@pytest.mark.slow(
    reason="compiles one more method's products", but=["taps", "two_pass", "microbatch2"]
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_per_leaf_clipping_and_extra_weights_in_one_pass(case, options):
    params, batch, _ = case
    weight = jnp.asarray([1.0, 0.5, 0.25, 0.0, 1.0])
    bounds = {"w": 0.5, "b": 0.25, "s": 0.1}

    def clip(norms, weight):
        return jax.tree.map(lambda n, bound: weight * jnp.minimum(1.0, bound / n), norms, bounds)

    @jax.jit
    def clipped(params, batch, weight):
        g = per_example_grads(loss, **options)(params, batch)
        assert g.explain()
        return g.weighted_sum(clip, weight, per_leaf=True)

    total, norms = clipped(params, batch, weight)
    rows = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, batch)
    for name, bound in bounds.items():
        flat = np.asarray(rows[name], np.float64).reshape(B, -1)
        length = np.linalg.norm(flat, axis=1)
        np.testing.assert_allclose(norms[name], length, rtol=1e-5)
        expected = (np.asarray(weight) * np.minimum(1, bound / length)) @ flat
        np.testing.assert_allclose(np.ravel(total[name]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow(
    reason="compiles one more method's products", but=["taps", "two_pass", "microbatch2"]
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_aux_and_per_example_keys(case, options):
    params, batch, _ = case

    def noisy(params, example):
        x, k = example
        drop = jax.random.bernoulli(k, 0.5, (4,))
        hidden = jnp.where(drop, jnp.tanh(x @ params["w"]), 0.0)
        return jnp.sum(hidden) * params["s"] + jnp.sum(params["b"]), hidden

    examples = (batch["x"], jax.random.split(jax.random.key(7), B))
    copies = (batch["x"], jax.random.clone(examples[1]))
    (value, hidden), rows = jax.vmap(jax.value_and_grad(noisy, has_aux=True), (None, 0))(
        params, copies
    )

    @jax.jit
    def products(params, examples):
        g = per_example_grads(noisy, has_aux=True, **options)(params, examples)
        return g.values(), g.aux(), g.row_norms()

    values, aux, norms = products(params, examples)
    np.testing.assert_allclose(values, value, rtol=1e-5)
    np.testing.assert_allclose(aux, hidden, rtol=1e-5, atol=1e-6)
    flat = np.concatenate([np.asarray(r).reshape(B, -1) for r in jax.tree.leaves(rows)], axis=1)
    np.testing.assert_allclose(norms, np.linalg.norm(flat, axis=1), rtol=1e-5)


def convolutional(params, example):
    x = jax.lax.conv_general_dilated(
        example["x"][None], params["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jnp.tanh(x + jnp.broadcast_to(params["b"], x.shape))
    x = x.reshape(4, 2, 4, 2, -1).max((1, 3)).ravel()
    return jnp.square(x @ params["u"] - example["y"]), x


@pytest.mark.slow(reason="one more size of chunks", but=["True-23", "False-23"])
@pytest.mark.parametrize("size", [23, 41])
@pytest.mark.parametrize("values_first", [True, False])
def test_chunks_of_a_convolutional_network_give_what_the_whole_batch_gives(key, size, values_first):
    keys = jax.random.split(key, 5)
    params = {
        "w": jax.random.normal(keys[0], (5, 5, 3, 32)),
        "b": jax.random.normal(keys[1], (32,)),
        "u": jax.random.normal(keys[2], (512,)),
    }
    batch = {
        "x": jax.random.normal(keys[3], (size, 8, 8, 3)),
        "y": jax.random.normal(keys[4], (size,)),
    }
    mask = jnp.arange(size) % 7 != 3
    broken = {"x": batch["x"].at[3].set(jnp.nan), "y": batch["y"]}

    @jax.jit
    def products(params, batch):
        g = per_example_grads(convolutional, has_aux=True)(params, batch, batch_mask=mask)
        seen = (g.values(), g.aux()) if values_first else None
        total, norms = g.weighted_sum(
            lambda n, w: w * jnp.minimum(1.0, 5.0 / n), jnp.arange(size, dtype=jnp.float32)
        )
        return total, norms, seen or (g.values(), g.aux()), g.row_norms(), g.rmatvec(jnp.ones(size))

    total, norms, (values, aux), alone, plain = products(params, broken)
    differentiate = jax.vmap(jax.value_and_grad(convolutional, has_aux=True), (None, 0))
    (losses, hidden), rows = jax.jit(differentiate)(params, batch)
    matrix = np.concatenate(
        [np.asarray(g, np.float64).reshape(size, -1) for g in jax.tree.leaves(rows)], axis=1
    )
    keep = np.asarray(mask)
    length = np.linalg.norm(matrix, axis=1)
    weights = np.arange(size) * np.minimum(1, 5 / length) * keep
    close = {"rtol": 1e-4, "atol": 1e-4 * float(length.max())}
    np.testing.assert_allclose(norms, length * keep, rtol=1e-4)
    np.testing.assert_allclose(alone, length * keep, rtol=1e-4)
    np.testing.assert_allclose(ravel(total), weights @ matrix, **close)
    np.testing.assert_allclose(ravel(plain), keep @ matrix, **close)
    np.testing.assert_allclose(values, np.asarray(losses) * keep, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(aux[keep], hidden[keep], rtol=1e-4, atol=1e-4)
    in_chunks = size > 23 and jax.default_backend() == "cpu"
    assert (
        "chunks" in per_example_grads(convolutional, has_aux=True)(params, batch).explain()
    ) == in_chunks


@pytest.mark.parametrize("name", ["taps2", "microbatch2", "microbatch64"])
def test_values_after_a_sum_in_another_trace_are_made_anew(case, name):
    params, batch, _ = case
    g = per_example_grads(loss, **OPTIONS[name])(params, batch)
    jax.eval_shape(lambda: g.weighted_sum(lambda n: jnp.minimum(1.0, 0.5 / n)))
    np.testing.assert_allclose(g.values(), jax.vmap(loss, (None, 0))(params, batch), rtol=1e-5)


@pytest.mark.parametrize("name", ["taps2", "microbatch2"])
def test_weights_of_another_length_are_refused(case, name):
    params, batch, _ = case
    g = per_example_grads(loss, **OPTIONS[name])(params, batch)
    with pytest.raises(ValueError, match=r"per_example with leading axis 5, got shape \(3,\)"):
        g.weighted_sum(lambda n, w: w * n, jnp.ones(3))
    with pytest.raises(ValueError, match=r"coefficients .* leading axis 5, got shape \(6,\)"):
        g.rmatvec(jnp.ones(6))


def test_values_beside_a_sum_cost_no_second_pass(case):
    params, batch, _ = case

    def both(params, batch):
        g = per_example_grads(loss, method="microbatch", microbatch_size=2)(params, batch)
        return g.weighted_sum(lambda n: jnp.minimum(1.0, 0.5 / n)), g.values()

    assert str(jax.make_jaxpr(both)(params, batch)).count("scan[") == 1


@pytest.mark.slow(
    reason="compiles one more method's products", but=["taps", "two_pass", "microbatch2"]
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_shard_map_over_the_batch_gives_local_rows(case, options):
    params, batch, matrix = case
    batch = jax.tree.map(lambda x: jnp.concatenate([x, x, x[:2]]), batch)
    matrix = np.concatenate([matrix, matrix, matrix[:2]])
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    P = jax.sharding.PartitionSpec

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P(), P("d")), out_specs=(P("d"), P()))
    def step(params, batch):
        g = per_example_grads(loss, **options)(params, batch)
        total, norms = g.weighted_sum(lambda n: jnp.minimum(1.0, 0.5 / n))
        return norms, jax.lax.psum(total, "d")

    norms, total = step(params, batch)
    length = np.linalg.norm(matrix, axis=1)
    np.testing.assert_allclose(norms, length, rtol=1e-5)
    np.testing.assert_allclose(
        ravel(total), np.minimum(1, 0.5 / length) @ matrix, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow(
    reason="compiles one more method's products", but=["taps", "two_pass", "microbatch2"]
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_vmap_over_clients_inside_a_training_scan(case, options):
    params, batch, _ = case
    clients = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), params)
    batches = jax.tree.map(lambda x: jnp.stack([x, -x]), batch)

    def train(engine_options):
        def client(params, batch):
            def step(params, _):
                g = per_example_grads(loss, **engine_options)(params, batch)
                total = g.rmatvec(jnp.minimum(1.0, 0.5 / g.row_norms()) / B)
                return jax.tree.map(lambda p, u: p - 0.1 * u, params, total), None

            return jax.lax.scan(step, params, None, length=2)[0]

        return jax.jit(jax.vmap(client))(clients, batches)

    for a, b in zip(
        jax.tree.leaves(train(options)), jax.tree.leaves(train({"method": "vmap"})), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_bad_input_is_refused_with_the_rule(case):
    params, batch, _ = case
    with pytest.raises(ValueError, match="scalar for ONE example, got shape"):
        per_example_grads(lambda p, e: e["x"] @ p["w"])(params, batch).values()
    with pytest.raises(ValueError, match="has_aux=True"):
        per_example_grads(lambda p, e: (1.0, 2.0))(params, batch).values()
    with pytest.raises(ValueError, match=r"params\['n'\] of dtype int32"):
        per_example_grads(loss)({**params, "n": jnp.arange(3)}, batch)
    with pytest.raises(ValueError, match="equal leading axes"):
        per_example_grads(loss)(params, {**batch, "y": jnp.zeros(3)})
    with pytest.raises(ValueError, match="leading batch axis"):
        per_example_grads(loss)(params, {**batch, "y": jnp.zeros(())})
    with pytest.raises(ValueError, match="batch_mask of shape"):
        per_example_grads(loss)(params, batch, batch_mask=jnp.ones(3, bool))
    with pytest.raises(ValueError, match="method to be one of"):
        per_example_grads(loss, method="ghost")
    with pytest.raises(ValueError, match="microbatch_size > 0"):
        per_example_grads(loss, method="microbatch")
    with pytest.raises(ValueError, match="microbatch_size > 0"):
        per_example_grads(loss, microbatch_size=0)
    g = per_example_grads(loss)(params, batch)
    with pytest.raises(ValueError, match="coefficients of shape"):
        g.rmatvec(jnp.ones((B, 1)))
    with pytest.raises(ValueError, match="tree like params"):
        g.rmatvec({"w": jnp.ones(B)})
    with pytest.raises(ValueError, match="vector with the tree"):
        g.matvec({"w": jnp.ones(3)})


@pytest.mark.parametrize(
    ("method", "microbatch_size"),
    [
        ("microbatch", 2),
        *((name, b) for name in ("auto", "taps", "two_pass", "vmap") for b in (None, 2)),
    ],
)
def test_no_examples_have_no_norms_and_a_sum_of_zeros(method, microbatch_size):
    loss = lambda params, x: jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2)
    params = {"w": jnp.ones((300, 300)), "b": jnp.ones(300)}
    grads = per_example_grads(loss, method=method, microbatch_size=microbatch_size)
    grads = grads(params, jnp.ones((0, 300)))
    assert grads.row_norms().shape == (0,) and "of no example" in grads.explain()
    total, norms = grads.weighted_sum(lambda norms: 1 / norms)
    assert norms.shape == (0,)
    jax.tree.map(lambda z, like: np.testing.assert_array_equal(z, 0 * like), total, params)
