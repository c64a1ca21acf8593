"""Losses and numbers of tasks against scikit-learn's, and against sums by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import models
from fljax.models import tasks

metrics = pytest.importorskip("sklearn.metrics")


def itself(params, x):
    """The outputs are the inputs: what is measured is then known."""
    del params
    return x


@pytest.fixture
def draws():
    return np.random.default_rng(0)


def measured(outputs, y, task, kind, size=16):
    examples = {"x": jnp.asarray(outputs, jnp.float32), "y": jnp.asarray(y)}
    return tasks.measure(itself, (), examples, task=task, kind=kind, microbatch_size=size)


@pytest.mark.parametrize("labels", [1, 3])
def test_bits_are_scored_as_scikit_learn_scores_them(draws, labels):
    outputs, y = draws.normal(size=(37, labels)), draws.integers(0, 2, (37, labels))
    task, given = ("binary", y[:, 0]) if labels == 1 else ("multi_label", y)
    found = measured(outputs, given, task, "binary_cross_entropy")
    said, meant = (outputs > 0).reshape(-1), y.reshape(-1)
    odds = 1 / (1 + np.exp(-outputs.reshape(-1)))
    assert found["loss"] == pytest.approx(metrics.log_loss(meant, odds), rel=1e-5)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(meant, said), rel=1e-6)
    assert found["f1"] == pytest.approx(metrics.f1_score(meant, said), rel=1e-6)


def test_numbers_are_scored_as_scikit_learn_scores_them(draws):
    outputs, y = draws.normal(size=(37, 2)), draws.normal(size=(37, 2)).astype(np.float32)
    found = measured(outputs, y, "regression", "squared")
    assert found["absolute_error"] == pytest.approx(
        metrics.mean_absolute_error(y, outputs), rel=1e-5
    )
    assert found["rmse"] == pytest.approx(np.sqrt(metrics.mean_squared_error(y, outputs)), rel=1e-5)
    assert found["loss"] == pytest.approx(np.square(y - outputs).sum(1).mean() / 2, rel=1e-5)


def test_perplexity_counts_symbols_alike_and_no_padding(draws):
    outputs, y = draws.normal(size=(21, 5, 7)), draws.integers(0, 7, (21, 5)).astype(np.int32)
    y[::3, 2:] = -1
    found = measured(outputs, y, "tokens", "next_token")
    logs = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
    counted = y >= 0
    nats = -np.take_along_axis(logs, np.maximum(y, 0)[..., None], -1)[..., 0]
    assert found["perplexity"] == pytest.approx(np.exp(nats[counted].mean()), rel=1e-5)
    assert found["accuracy"] == pytest.approx((outputs.argmax(-1) == y)[counted].mean(), rel=1e-6)
    by_example = [row[here].mean() for row, here in zip(nats, counted, strict=True)]
    assert found["loss"] == pytest.approx(np.mean(by_example), rel=1e-5)


def test_padding_moves_no_gradient(draws):
    loss = models.next_token(lambda params, x: params)
    logits = jnp.asarray(draws.normal(size=(4, 3)), jnp.float32)
    y = jnp.array([1, 0, -1, -1])
    slope = jax.grad(loss)(logits, {"x": jnp.zeros(4), "y": y})
    assert np.array_equal(slope[2:], np.zeros((2, 3))) and (np.asarray(slope[:2]) != 0).all()


def test_classes_are_measured_as_evaluate_measures_them(draws):
    outputs, y = draws.normal(size=(37, 4)), draws.integers(0, 4, 37)
    found = measured(outputs, y, "classes", "cross_entropy")
    examples = {"x": jnp.asarray(outputs, jnp.float32), "y": jnp.asarray(y)}
    loss, accuracy = models.evaluate(itself, (), examples)
    assert found == pytest.approx({"loss": float(loss), "accuracy": float(accuracy)}, rel=1e-5)


def test_a_model_of_one_output_for_a_sequence_is_refused():
    loss = models.next_token(lambda params, x: params)
    with pytest.raises(ValueError, match=r"outputs \[T, symbols\].*got shape \[3\]"):
        loss(jnp.zeros(3), {"x": jnp.zeros(4), "y": jnp.zeros(4, jnp.int32)})


@pytest.mark.slow(reason="trains a model")
def test_a_token_lstm_tells_each_symbol_from_those_before_it():
    made = models.create(
        "token_lstm", example_shape=(6,), num_classes=5, key=jax.random.key(0), cells=(4,)
    )
    x = jnp.array([0, 1, 2, 3, 4, 0])
    changed = made.apply(made.params, x.at[3].set(1)) != made.apply(made.params, x)
    assert made.apply(made.params, x).shape == (6, 5)
    assert not changed[:3].any() and changed[3:].any()
