"""The scan of Adam is Adam: against optax, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax.attacks import _descent


def test_adam_agrees_with_optax_and_keeps_the_best():
    target = jnp.asarray([1.0, -2.0, 0.5])
    value = lambda x, scale: jnp.sum(scale * jnp.square(x - target))
    rates = np.asarray([0.5] * 30 + [0.05] * 30)
    scales = jnp.linspace(0.5, 1.5, 60)
    start = jnp.zeros(3)
    last, best, least = jax.jit(
        lambda s: _descent.adam(jax.value_and_grad(value), start, rates, s)
    )(scales)
    with jax.numpy_dtype_promotion("standard"):
        x, values = start, []
        optimizer = optax.adam(lambda count: jnp.where(count < 30, 0.5, 0.05))
        state = optimizer.init(x)
        for scale in scales:
            found, grads = jax.value_and_grad(value)(x, scale)
            values.append((float(found), x))
            updates, state = optimizer.update(grads, state)
            x = optax.apply_updates(x, updates)
    np.testing.assert_allclose(last, x, rtol=1e-4, atol=1e-5)
    expected = min(values, key=lambda pair: pair[0])
    np.testing.assert_allclose(least, expected[0], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(best, expected[1], rtol=1e-3, atol=1e-4)


def test_signs_and_projections_are_respected():
    value = lambda x, _: jnp.sum(jnp.asarray([1.0, 1e-6]) * x)
    last, _, _ = _descent.adam(
        jax.value_and_grad(value),
        jnp.zeros(2),
        np.full(5, 0.1),
        signed=True,
        project=lambda x: jnp.clip(x, -0.25, 1),
    )
    np.testing.assert_allclose(
        last, -0.25, rtol=1e-6
    )  # both, though their gradients differ by a million


@pytest.mark.slow(reason="searches for long")
def test_lbfgs_walks_a_bent_valley_to_its_end_and_keeps_the_best():
    def valley(tree):
        x, y = tree["x"], tree["y"]
        return jnp.sum(100 * jnp.square(y - x * x) + jnp.square(1 - x))

    start = {"x": jnp.asarray([-1.2, 0.5]), "y": jnp.asarray([1.0, -1.0])}
    best, least = jax.jit(lambda s: _descent.lbfgs(valley, s, 60))(start)
    np.testing.assert_allclose(best["x"], 1, atol=1e-3)
    np.testing.assert_allclose(best["y"], 1, atol=2e-3)
    assert float(least) == float(valley(best)) < 1e-6
    one, value = _descent.lbfgs(valley, start, 1)
    assert float(value) == float(valley(one)) < float(valley(start))
    # A loss that is not finite is never the best.
    wild = lambda x: jnp.where(x < 0.5, jnp.nan, jnp.square(x))
    assert np.isfinite(_descent.lbfgs(wild, jnp.asarray(2.0), 5)[1])
