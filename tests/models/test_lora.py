import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fljax
import fljax_kernels
from fljax import models
from fljax.models import decoder, functions, lora

SHAPE = decoder.Shape(
    vocabulary=11,
    width=12,
    hidden=20,
    layers=2,
    heads=4,
    kv_heads=2,
    head_width=4,
    rope_base=1e4,
    window=2,
    global_every=2,
    norm_of_queries=True,
    norm_after=True,
    scale_from_one=True,
)


class Net(nnx.Module):
    """A layer at two places, one in a list, attention of flax, and one that is no linear layer."""

    def __init__(self, rngs):
        self.first = nnx.Linear(6, 8, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)])
        self.again = self.blocks[0]
        self.look = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.first(x))
        for block in self.blocks:
            x = nnx.relu(block(x))
        return self.norm(self.look(self.again(x)))


X = jax.random.normal(jax.random.key(3), (5, 6))


def moved(params):
    """Every parameter somewhere else: a matrix b starts at 0."""
    rng = np.random.default_rng(9)

    def somewhere_else(x):
        return jnp.asarray(np.asarray(x) + (0.2 * rng.normal(size=x.shape)).astype(x.dtype))

    return jax.tree.map(somewhere_else, params)


def paths(params):
    return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}


def test_an_adapted_model_starts_as_it_was_and_only_its_small_matrices_are_trained():
    before = Net(nnx.Rngs(0))(X)
    module = lora.add(Net(nnx.Rngs(0)), 2, rngs=nnx.Rngs(1))
    params, apply = models.functional(module, batched=False)
    np.testing.assert_array_equal(apply(params, X), before)
    assert all(path.endswith(("['a']", "['b']")) for path in paths(params))
    # first, the two of the list of which one is used twice, and four of the attention.
    assert len(paths(params)) == 2 * (1 + 2 + 4)
    assert params["look"]["query"]["a"].shape == (8, 2)
    assert params["look"]["out"]["b"].shape == (2, 8)
    assert not np.allclose(apply(moved(params), X), before)


def test_merged_matrices_do_what_they_did_beside_their_layers():
    module = lora.add(Net(nnx.Rngs(0)), 2, rngs=nnx.Rngs(1), alpha=6.0, where=["blocks.*", "look*"])
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        if path[-1] == "b":
            variable[...] = jnp.ones_like(variable[...])
    expected = module(X)
    merged = lora.merge(module)
    assert paths(models.functional(merged).params) == paths(
        models.functional(Net(nnx.Rngs(0))).params
    )
    np.testing.assert_allclose(merged(X), expected, atol=1e-5)
    assert not np.allclose(expected, Net(nnx.Rngs(0))(X))


def test_layers_that_were_adapted_twice_are_merged_from_within():
    module = lora.add(Net(nnx.Rngs(0)), 2, rngs=nnx.Rngs(1), where="blocks.*")
    lora.add(module, 3, rngs=nnx.Rngs(2), trained=["*.a", "*.b"])
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        if path[-1] == "b":
            variable[...] = jnp.full_like(variable[...], 0.1)
    expected = module(X)
    np.testing.assert_allclose(lora.merge(module)(X), expected, atol=1e-5)
    assert type(module.blocks[0]) is nnx.Linear


def test_a_module_that_is_frozen_and_held_in_bfloat16_is_adapted():
    module = lora.freeze(decoder.Decoder(SHAPE, rngs=nnx.Rngs(0)), dtype=jnp.bfloat16)
    params, frozen, _ = functions.parted(lora.add(module, 2, rngs=nnx.Rngs(1)), batched=False)
    assert all(path.endswith(("['a']", "['b']")) for path in paths(params))
    assert {leaf.dtype for leaf in jax.tree.leaves(frozen)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("held", [list, tuple, lambda layers: {"k": layers[0]}])
def test_parameters_that_would_not_be_frozen_are_refused(held):
    class Plain(nnx.Module):
        def __init__(self, rngs):
            self.last = nnx.Linear(2, 2, rngs=rngs)
            self.layers = nnx.data(held([nnx.Linear(2, 2, rngs=rngs)]))

    for change in (lora.freeze, lambda module: lora.add(module, 1, rngs=nnx.Rngs(1))):
        with pytest.raises(ValueError, match=r"got one at layers.* in another container"):
            change(Plain(nnx.Rngs(0)))


def test_layers_go_by_pattern_and_other_parameters_are_trained_where_they_are_named():
    module = decoder.Decoder(SHAPE, rngs=nnx.Rngs(0))
    lora.add(module, 3, rngs=nnx.Rngs(1), where=["*.q", "*.v"], trained="norm.*")
    params = models.functional(module, batched=False).params
    assert paths(params) == {
        *(f"['layers']['attention']['{name}']['{z}']" for name in "qv" for z in "ab"),
        "['norm']['scale']",
    }
    assert params["layers"]["attention"]["q"]["a"].shape == (2, 12, 3)
    assert params["layers"]["attention"]["v"]["b"].shape == (2, 3, 8)


def test_frozen_parameters_are_held_as_asked_and_are_an_argument_of_parted():
    module = lora.freeze(decoder.Decoder(SHAPE, rngs=nnx.Rngs(0)), "layers.*", dtype=jnp.bfloat16)
    tokens = jnp.arange(4)
    params, frozen, apply = functions.parted(module, batched=False)
    assert sorted(params) == ["embedding", "norm"] and sorted(frozen) == ["layers"]
    assert {leaf.dtype for leaf in jax.tree.leaves(frozen)} == {jnp.dtype(jnp.bfloat16)}
    whole = models.functional(module, batched=False).apply
    np.testing.assert_array_equal(apply(params, frozen, tokens), whole(params, tokens))
    none = jax.tree.map(jnp.zeros_like, frozen)
    assert not np.allclose(apply(params, none, tokens), whole(params, tokens))


CASES = [
    pytest.param(adapted, remat, method, id=f"{adapted or 'full'} {remat} {method}")
    for adapted in ("", "lora")
    for remat in (False, True)
    for method in ("taps", "two_pass")
]


@pytest.mark.slow(reason="compiles per-example gradients of a decoder")
@pytest.mark.parametrize(("adapted", "remat", "method"), CASES)
@pytest.mark.parametrize("length", [3, 8])
def test_gradients_of_examples_are_exact_under_scan_and_remat(adapted, remat, method, length):
    """Of 3 tokens a whole layer's norms come from inner products of tokens, else from rows, as
    `explain` says.
    """
    with jax.enable_x64(True):
        module = decoder.Decoder(
            SHAPE, rngs=nnx.Rngs(0), dtype=jnp.float64, param_dtype=jnp.float64, remat=remat
        )
        if adapted:
            lora.add(module, 2, rngs=nnx.Rngs(1), trained="*norm*", param_dtype=jnp.float64)
        params, apply = models.functional(module, batched=False)
        params, loss = moved(params), models.next_token(apply)
        x = jax.random.randint(jax.random.key(5), (4, length), 0, 11, jnp.int32)
        shown = jnp.array([length, length - 1, 1, length])[:, None]
        batch = {"x": x, "y": jnp.where(jnp.arange(length)[None] < shown, (3 * x + 1) % 11, -1)}
        weights = jnp.array([0.3, 0.0, 2.0, 1.0])

        def by_rows(params):
            rows = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
            squares = [jnp.sum(jnp.square(r).reshape(4, -1), axis=1) for r in jax.tree.leaves(rows)]
            sums = jax.tree.map(lambda r: jnp.tensordot(weights, r, axes=1), rows)
            return jnp.sqrt(sum(squares)), sums

        def by_products(params):
            matrix = fljax_kernels.per_example_grads(loss, method=method)(params, batch)
            return matrix.row_norms(), matrix.rmatvec(weights)

        (norms, sums), (found, total) = jax.jit(by_rows)(params), jax.jit(by_products)(params)
        # Norms from inner products are rounded up by 3 * 2^-24 of their squares.
        np.testing.assert_allclose(found, norms, rtol=3 * 2.0**-22)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-13), total, sums)
        forms = fljax_kernels.per_example_grads(loss, method=method)(params, batch).explain()
        assert ("Gram" in forms.replace("Gram of equal rows", "")) == (length == 3 and not adapted)
        assert "materialised" not in forms and "through dot_general" not in forms


def test_the_clipped_sum_of_an_adapted_model_leaves_what_is_frozen_out_of_its_norm():
    module = lora.add(decoder.Decoder(SHAPE, rngs=nnx.Rngs(0)), 2, rngs=nnx.Rngs(1))
    params, apply = models.functional(module, batched=False)
    x = jnp.arange(12, dtype=jnp.int32).reshape(3, 4) % 11
    loss = models.next_token(apply)
    query = fljax.clipped_grad(
        loss, l2_clip_norm=1e-3, return_grad_norms=True, keep_batch_dim=False
    )
    total, aux = jax.jit(query)(params, {"x": x, "y": (x + 1) % 11})
    assert jax.tree.structure(total) == jax.tree.structure(params)
    assert np.all(aux.grad_norms > 1e-2)
    length = float(jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(total))))
    assert 1e-4 < length <= 3e-3 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net: lora.add(net, 0, rngs=nnx.Rngs(1)), "rank"),
        (lambda net: lora.add(net, 99, rngs=nnx.Rngs(1)), "rank <= "),
        (lambda net: lora.add(net, 2, rngs=nnx.Rngs(1), alpha=0.0), "alpha"),
        (lambda net: lora.add(net, 2, rngs=nnx.Rngs(1), where="head"), "name linear layers"),
        (lambda net: lora.add(net, 2, rngs=nnx.Rngs(1), trained="bias"), "but to name parameters"),
        (lambda net: lora.freeze(net, "nothing"), "where to name parameters"),
    ],
    ids=["rank", "rank of a layer", "alpha", "where", "trained", "freeze"],
)
def test_what_names_nothing_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(Net(nnx.Rngs(0)))


def test_a_layer_over_other_axes_than_the_last_is_refused():
    class Odd(nnx.Module):
        def __init__(self):
            self.odd = nnx.LinearGeneral((3,), (2,), axis=(0,), rngs=nnx.Rngs(0))

    with pytest.raises(ValueError, match="over its input's last axes"):
        lora.add(Odd(), 1, rngs=nnx.Rngs(1))
