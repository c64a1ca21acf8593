import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from fljax.models import functional


class Nnx(nnx.Module):
    """Written for a batch: flattens all but the first axis."""

    def __init__(self, rngs, dropout=False):
        self.blocks = nnx.List(
            [nnx.Conv(2, 3, (3, 3), rngs=rngs), nnx.Conv(3, 3, (3, 3), rngs=rngs)]
        )
        self.norm = nnx.LayerNorm(3, rngs=rngs)
        self.out = nnx.Linear(48, 5, rngs=rngs)
        self.scale = nnx.Variable(jnp.float32(2.0))
        self.dropout = nnx.Dropout(0.5, rngs=rngs) if dropout else None

    def __call__(self, x):
        for block in self.blocks:
            x = nnx.relu(block(x))
        x = self.norm(x)
        if self.dropout is not None:
            x = self.dropout(x)
        return self.scale[...] * self.out(x.reshape(x.shape[0], -1))


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.LayerNorm()(linen.relu(linen.Conv(3, (3, 3))(x)))
        scale = self.variable("constants", "scale", lambda: jnp.float32(2.0))
        return scale.value * linen.Dense(5)(x.reshape(x.shape[0], -1))


X = jnp.asarray(np.random.default_rng(1).normal(size=(7, 4, 4, 2)).astype(np.float32))


def nnx_case():
    module = Nnx(nnx.Rngs(0))
    return module(X), functional(module)


def linen_case():
    module = Linen()
    variables = module.init(jax.random.key(0), X)
    return module.apply(variables, X), functional(module, variables=variables)


CASES = pytest.mark.parametrize("case", [nnx_case, linen_case])


@CASES
def test_apply_on_each_example_equals_the_module_on_the_batch(case):
    expected, (params, apply) = case()
    actual = jax.jit(jax.vmap(apply, (None, 0)))(params, X)
    assert actual.shape == (7, 5)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(apply(params, X[3]), expected[3], rtol=0, atol=1e-5)


@CASES
def test_apply_obeys_its_params_and_is_differentiable(case):
    _, (params, apply) = case()
    gradient = jax.jit(jax.grad(lambda p: (apply(p, X[0]) ** 2).sum()))(params)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))
    zeros = jax.tree.map(jnp.zeros_like, params)
    np.testing.assert_array_equal(apply(zeros, X[0]), np.zeros(5))


@CASES
def test_params_are_nested_dicts_with_string_keys(case):
    params = case()[1].params
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        assert all(isinstance(step.key, str) for step in path)
        assert isinstance(leaf, jax.Array)
    assert len(jax.tree.leaves(params)) == sum(1 for _ in jax.tree.leaves(params) if _.ndim) >= 6


def test_other_variables_of_the_module_are_constants_and_not_params():
    names = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(nnx_case()[1].params)
    ]
    assert not any("scale" in name and "norm" not in name for name in names)


def test_the_module_is_not_changed_and_later_changes_of_it_do_not_matter():
    module = Nnx(nnx.Rngs(0))
    params, apply = functional(module)
    before = apply(params, X[0])
    jax.jit(jax.grad(lambda p: apply(p, X[0]).sum()))(params)
    np.testing.assert_allclose(module(X)[0], before, rtol=0, atol=1e-5)
    module.out.kernel[...] = jnp.zeros_like(module.out.kernel[...])
    module.scale[...] = jnp.float32(0.0)
    np.testing.assert_array_equal(apply(params, X[0]), before)


def test_a_module_for_one_example_is_taken_as_it_is():
    linear = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    params, apply = functional(linear, batched=False)
    np.testing.assert_allclose(
        apply(params, jnp.ones(4)), linear(jnp.ones((1, 4)))[0], rtol=0, atol=1e-6
    )


def test_weights_shared_by_two_layers_stay_one_parameter():
    class Tied(nnx.Module):
        def __init__(self):
            self.first = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
            self.second = self.first

        def __call__(self, x):
            return self.second(self.first(x))

    params, apply = functional(Tied())
    kernel = params["first"]["kernel"]
    assert list(params) == ["first"]
    np.testing.assert_allclose(
        apply(params, jnp.ones(3)), jnp.ones(3) @ kernel @ kernel, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("evaluation", [False, True])
def test_batch_statistics_are_refused_by_name(evaluation):
    class Norm(nnx.Module):
        def __init__(self):
            self.norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0), use_running_average=evaluation)

        def __call__(self, x):
            return self.norm(x)

    with pytest.raises(
        ValueError, match=r"without batch statistics, got norm.mean in Norm.*GroupNorm"
    ):
        functional(Norm())

    norm = linen.BatchNorm(use_running_average=evaluation)
    with pytest.raises(
        ValueError, match=r"without batch statistics, got a collection 'batch_stats'"
    ):
        functional(norm, variables=norm.init(jax.random.key(0), jnp.ones((2, 3))))


@pytest.mark.parametrize(
    "transform", [lambda fun: fun, jax.jit, jax.grad], ids=["eager", "jit", "grad"]
)
def test_dropout_in_training_mode_is_refused(transform):
    params, apply = functional(Nnx(nnx.Rngs(0), dropout=True))
    with pytest.raises(
        ValueError,
        match=r"pure function, got Nnx which changes dropout.rngs.count.*module.eval\(\)",
    ):
        transform(lambda p: apply(p, X[0]).sum())(params)


def test_dropout_in_evaluation_mode_does_nothing():
    module = Nnx(nnx.Rngs(0), dropout=True)
    module.eval()
    params, apply = functional(module)
    plain_params, plain_apply = functional(Nnx(nnx.Rngs(0)))
    np.testing.assert_array_equal(apply(params, X[0]), plain_apply(plain_params, X[0]))


@pytest.mark.parametrize(
    ("module", "variables", "message"),
    [
        (Linen(), None, "Expected variables to be what module.init returned"),
        (Linen(), {"batch_stats": {}}, r"got variables=\['batch_stats'\]"),
        (
            nnx.Linear(2, 2, rngs=nnx.Rngs(0)),
            {"params": {}},
            "Expected variables=None for an nnx module",
        ),
        (jnp.sin, None, "Expected module to be a flax nnx or linen module"),
    ],
    ids=["missing", "no params", "superfluous", "no module"],
)
def test_bad_input_is_refused(module, variables, message):
    with pytest.raises(ValueError, match=message):
        functional(module, variables=variables)
