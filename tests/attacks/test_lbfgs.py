"""L-BFGS by a budget of looks: what SciPy's finds with as many, alone and side by side, past walls
and along kinks; back to the best point from where they settle above it; in the start's dtype.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.extend.core import jaxprs_in_params

from fljax.attacks import _lbfgs


def valley(x):
    """Rosenbrock's, of any length."""
    return jnp.sum(100 * jnp.square(x[1:] - jnp.square(x[:-1])) + jnp.square(1 - x[:-1]))


def by_scipy(value, gradient, start, looks):
    """The least value that SciPy's L-BFGS-B sees by so many values and gradients."""
    seen = []

    def look(x):
        seen.append(value(x))
        return seen[-1], gradient(x)

    options = {"maxcor": 20, "ftol": 0, "gtol": 0, "maxfun": looks}
    scipy.optimize.minimize(look, start, jac=True, method="L-BFGS-B", options=options)
    return min(seen[:looks])


def test_a_quadratic_is_solved_as_well_as_by_scipy_and_each_look_is_one():
    scales = np.geomspace(1, 1000, 30)
    value = lambda x: 0.5 * jnp.sum(jnp.asarray(scales, jnp.float32) * jnp.square(x - 1))
    search = jax.jit(_lbfgs.lbfgs, static_argnums=(0, 2))
    for looks in (40, 80):
        plain = by_scipy(
            lambda x: 0.5 * np.sum(scales * (x - 1) ** 2),
            lambda x: scales * (x - 1),
            np.zeros(30),
            looks,
        )
        assert float(search(value, jnp.zeros(30), looks)[1]) < 2 * plain
    assert float(search(value, jnp.zeros(30), 1)[1]) == float(value(jnp.zeros(30)))
    best, least = search(value, jnp.zeros(30), 200)
    assert float(least) < 1e-9 and float(value(best)) == pytest.approx(float(least), abs=1e-9)
    np.testing.assert_allclose(best, 1, atol=1e-4)


def test_a_bent_valley_is_walked_to_its_end_side_by_side_as_alone():
    starts = jnp.stack([jnp.resize(jnp.asarray([-1.2, 1.0]), 10), jnp.full(10, 3.0), jnp.ones(10)])
    tree = lambda x: {"front": x[..., :4].reshape(*x.shape[:-1], 2, 2), "rest": x[..., 4:]}
    value = lambda v: valley(jnp.concatenate([v["front"].reshape(-1), v["rest"]]))
    search = lambda v, looks: _lbfgs.lbfgs(value, v, looks)
    many = jax.jit(jax.vmap(search, (0, None)), static_argnums=1)
    # Few: rounding has not yet parted them. The last one starts at the optimum and stays.
    together, values = many(tree(starts), 20)
    for at, start in enumerate(starts):
        alone, least = jax.jit(search, static_argnums=1)(tree(start), 20)
        np.testing.assert_allclose(values[at], least, rtol=1e-3)
        for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(one[at], other, rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(together["rest"][2], 1)
    assert float(values[2]) == 0 and (values[:2] > 0.1).all()
    _, values = many(tree(starts), 200)
    plain = by_scipy(
        scipy.optimize.rosen, scipy.optimize.rosen_der, np.asarray(starts[0], float), 200
    )
    assert plain < 1e-8 and float(values[0]) < 1e-8 and float(values[1]) < 1e-8


def test_what_is_not_finite_is_too_far_and_never_taken():
    # The minimum, at 0.5, lies before the wall at 0; a first direction of length 1 leads through.
    walled = lambda x: jnp.where(x > 0, 4 * x - 2 * jnp.log(jnp.where(x > 0, x, 1)), jnp.nan)
    for start in (0.75, 3.0, 0.01):
        best, least = _lbfgs.lbfgs(lambda x: jnp.sum(walled(x)), jnp.asarray([start]), 60)
        np.testing.assert_allclose(best, 0.5, rtol=1e-3)
        assert np.isfinite(least)
    # A gradient alone that is not finite, and a start that is lost.
    lost, least = _lbfgs.lbfgs(lambda x: jnp.sum(walled(x)), jnp.asarray([-1.0]), 12)
    assert float(lost[0]) == -1.0 and np.isinf(least)
    root = lambda x: jnp.sum(jnp.sqrt(jnp.abs(x)) + x)  # of no gradient at 0
    best, least = _lbfgs.lbfgs(root, jnp.zeros(2), 12)
    np.testing.assert_array_equal(best, 0)
    assert float(least) == 0


def test_kinks_are_followed_to_where_they_meet():
    kinked = lambda x: jnp.sum(jnp.asarray([1.0, 10.0]) * jnp.abs(x - 1)) + jnp.square(x[0] - x[1])
    best, least = _lbfgs.lbfgs(kinked, jnp.asarray([-2.0, 3.0]), 120)
    assert float(least) < 0.02
    np.testing.assert_allclose(best, 1, atol=0.02)


def waves(x):
    return jnp.sum(jnp.cos(3 * x)) + 0.05 * jnp.sum(jnp.square(x))


def test_a_search_that_settles_above_the_best_point_it_saw_goes_on_from_there(monkeypatch):
    """From many starts: which of them settles where is a matter of rounding."""
    drawn = 0.1 * np.random.default_rng(0).normal(size=(63, 5))
    starts = jnp.asarray(np.concatenate([[0.01 * np.arange(1, 6)], drawn]), jnp.float32)

    def slopes(looks):
        best, least = jax.jit(jax.vmap(lambda start: _lbfgs.lbfgs(waves, start, looks)))(starts)
        return np.abs(jax.vmap(jax.grad(waves))(best)).max(1), least

    # A minimum in all directions, though not the lowest.
    steepest, least = slopes(100)
    assert steepest.max() < 1e-2 and float(least[0]) < -4.2
    monkeypatch.setattr(_lbfgs, "_PROMISE", 0.0)
    assert np.sum(slopes(400)[0] > 0.1) > 8


@pytest.mark.parametrize("behind", [np.nan, 1e6])
def test_a_wall_right_ahead_is_approached_by_ever_shorter_lines(behind):
    wall = 1e-6
    value = lambda x: jnp.where(x[0] < wall, 1 - x[0] / wall, behind)
    # Five trials go from 1 to 1e-4, all behind the wall; the next five, from there, do not.
    best, least = _lbfgs.lbfgs(value, jnp.zeros(1), 60)
    assert 0 < float(best[0]) < wall and float(least) < 0.1
    assert float(_lbfgs.lbfgs(value, jnp.zeros(1), 6)[1]) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_search_has_its_starts_dtype_where_x64_is_enabled(dtype):
    with jax.enable_x64(True):
        start = jnp.asarray([-1.2, 1.0, -1.2, 1.0], dtype)
        value = lambda x: valley(x).astype(jnp.float64)  # whatever the start
        best, least = _lbfgs.lbfgs(value, start, 200)
        assert best.dtype == least.dtype == dtype
        np.testing.assert_allclose(best, 1, atol=1e-2 if dtype == np.float32 else 1e-8)
        many, _ = jax.vmap(lambda x: _lbfgs.lbfgs(value, x, 20))(start[None])
        assert many.dtype == dtype


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def test_its_products_are_taken_in_full_precision():
    search = lambda x: _lbfgs.lbfgs(valley, x, 3)
    highest = (jax.lax.Precision.HIGHEST,) * 2
    for run, x in ((search, jnp.ones(10)), (jax.vmap(search), jnp.ones((2, 10)))):
        found = [e for e in equations(jax.make_jaxpr(run)(x).jaxpr) if "dot" in e.primitive.name]
        assert len(found) == 5 and all(e.params["precision"] == highest for e in found)
