"""The scan of Adam is Adam: against optax, step by step; Gauss-Newton finds what least squares
find.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

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


def test_gauss_newton_solves_least_squares_and_stands_still_where_they_are_solved():
    rng = np.random.default_rng(0)
    matrix, seen = rng.normal(size=(12, 5)), rng.normal(size=12)
    a, b = jnp.asarray(matrix, jnp.float32), jnp.asarray(seen, jnp.float32)
    residual = lambda v, weight: [weight * (a[:, :2] @ v["x"] + a[:, 2:] @ v["y"] - b)]
    start = {"x": jnp.zeros(2), "y": jnp.ones(3)}
    expected, rest = np.linalg.lstsq(matrix, seen, rcond=None)[:2]
    # 5 unknowns are solved by 5 products; 50 a step must not make 0 / 0 of what is left.
    paths = jnp.asarray([1.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    solve = lambda v: _descent.gauss_newton(residual, v, 300, lambda _, path: path, paths)
    found, value = jax.jit(jax.vmap(solve))(jax.tree.map(lambda v: jnp.stack([v, 3 * v]), start))
    for at in range(2):
        np.testing.assert_allclose(np.concatenate([found["x"][at], found["y"][at]]), expected, 1e-4)
        np.testing.assert_allclose(value[at], 4 * rest[0], rtol=1e-5)  # by the last step's weight
    assert _descent.num_steps(300) == 6 and _descent.num_steps(1) == 1


def test_gauss_newton_takes_no_step_that_is_worse_or_not_finite():
    # From 2 the first steps overshoot to where the root is no number; damped enough, they arrive.
    residual = lambda v, _: jnp.sqrt(v) - 0.25
    solve = lambda v: _descent.gauss_newton(
        residual, v, 50 * 40, lambda _, path: path, jnp.zeros(40)
    )
    found, value = jax.jit(solve)(jnp.asarray([2.0]))
    np.testing.assert_allclose(found, 0.0625, rtol=1e-3)
    assert float(value) < 1e-8
    lost, value = jax.jit(solve)(jnp.asarray([-1.0]))
    assert float(lost[0]) == -1.0 and np.isnan(value)
