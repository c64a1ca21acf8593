import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from fljax import models
from fljax.models import losses


def linear(params, x):
    return x @ params


def examples(rows, key):
    keys = jax.random.split(key)
    return {
        "x": 3 * jax.random.normal(keys[0], (rows, 4)),
        "y": jax.random.randint(keys[1], (rows,), 0, 5),
    }


def losses_float64(params, data):
    logits = np.asarray(data["x"], np.float64) @ np.asarray(params, np.float64)
    return logsumexp(logits, axis=1) - logits[np.arange(len(logits)), data["y"]], logits.argmax(
        1
    ) == data["y"]


PARAMS = jax.random.normal(jax.random.key(3), (4, 5))


def test_cross_entropy_agrees_with_float64(key):
    data = examples(40, key)
    actual = jax.jit(jax.vmap(models.softmax_cross_entropy(linear), (None, 0)))(PARAMS, data)
    assert actual.shape == (40,) and actual.dtype == jnp.float32
    # Logits below 64: each of the few operations rounds by at most 64 * 2^-24.
    np.testing.assert_allclose(
        actual, losses_float64(PARAMS, data)[0], rtol=0, atol=8 * 64 * 2.0**-24
    )


def test_the_gradient_is_softmax_minus_one_hot():
    loss = models.softmax_cross_entropy(lambda logits, _: logits)
    logits = jnp.array([1.0, 2.0, 4.0])
    gradient = jax.grad(loss)(logits, {"x": jnp.zeros(()), "y": jnp.int32(2)})
    weights = np.exp([1.0, 2.0, 4.0])
    np.testing.assert_allclose(gradient, weights / weights.sum() - [0, 0, 1], rtol=0, atol=1e-6)


def test_huge_logits_give_a_finite_loss():
    loss = models.softmax_cross_entropy(lambda logits, _: logits)
    value, gradient = jax.value_and_grad(loss)(
        jnp.array([1e30, -1e30]), {"x": jnp.zeros(()), "y": jnp.int32(0)}
    )
    assert value == 0 and bool(jnp.isfinite(gradient).all())


def test_a_masked_class_gives_a_finite_loss():
    loss = models.softmax_cross_entropy(lambda logits, _: logits)
    value = loss(jnp.array([1.0, -jnp.inf, 1.0]), {"x": jnp.zeros(()), "y": jnp.int32(0)})
    np.testing.assert_allclose(value, np.log(2), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_the_loss_is_float32_whatever_the_model_computes_in(dtype):
    loss = models.softmax_cross_entropy(linear)
    value = loss(PARAMS.astype(dtype), {"x": jnp.ones(4, dtype), "y": jnp.uint8(1)})
    assert value.dtype == jnp.float32 and value.shape == ()


@pytest.mark.parametrize("microbatch_size", [1, 7, 8, 40, 1000])
def test_evaluate_does_not_depend_on_the_microbatch(microbatch_size, key):
    data = examples(40, key)
    loss, accuracy = models.evaluate(linear, PARAMS, data, microbatch_size=microbatch_size)
    exact, hits = losses_float64(PARAMS, data)
    np.testing.assert_allclose(loss, exact.mean(), rtol=0, atol=48 * 64 * 2.0**-24)
    np.testing.assert_allclose(accuracy, hits.mean(), rtol=2.0**-23, atol=0)


def test_evaluate_compiles_once_for_a_model_and_a_set(key):
    data = examples(40, key)
    models.evaluate(linear, PARAMS, data, microbatch_size=16)
    compiled = losses._totals._cache_size()
    models.evaluate(linear, 2 * PARAMS, data, microbatch_size=16)
    assert losses._totals._cache_size() == compiled


def test_evaluate_takes_numpy_data_and_refuses_an_empty_set():
    data = {"x": np.ones((3, 4), np.float32), "y": np.zeros(3, np.uint8)}
    loss, accuracy = models.evaluate(linear, jnp.zeros((4, 5)), data)
    np.testing.assert_allclose(loss, np.log(5), rtol=1e-6)
    assert accuracy == 1
    with pytest.raises(ValueError, match="at least one row"):
        models.evaluate(linear, PARAMS, {"x": np.ones((0, 4)), "y": np.ones(0, int)})
    with pytest.raises(ValueError, match="microbatch_size=0"):
        models.evaluate(linear, PARAMS, data, microbatch_size=0)
    with pytest.raises(ValueError, match="kind='hinge'"):
        models.evaluate(linear, PARAMS, data, kind="hinge")


def test_evaluation_is_of_the_loss_that_was_named():
    data = {
        "x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "y": np.array([0, 4, 2], np.int32),
    }
    outputs = np.asarray(data["x"], np.float64) @ np.asarray(PARAMS, np.float64)
    expected = np.square(outputs - np.eye(5)[data["y"]]).sum(axis=1).mean() / 2
    loss, _ = models.evaluate(linear, PARAMS, data, microbatch_size=2, kind="squared")
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_only_the_half_squared_error_is_called_squared():
    """Gradients come back from a perturbed model by that polynomial alone."""
    of_output = models.squared_error(linear).of_output
    losses.NetworkLoss(linear, of_output, "squared")
    for other in (
        lambda outputs, y: 2 * of_output(outputs, y),
        models.softmax_cross_entropy(linear).of_output,
    ):
        with pytest.raises(ValueError, match="half squared error"):
            losses.NetworkLoss(linear, other, "squared")
