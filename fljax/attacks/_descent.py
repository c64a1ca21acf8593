"""Adam and Gauss-Newton as one scan, strict about dtypes: what all searches here use."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
_BETA1, _BETA2, _FLOOR = 0.9, 0.999, 1e-8
PRODUCTS = 50  # with the Jacobian, to a step of Gauss-Newton
_DAMPING, _EASED, _DAMPED, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 0.2, 5.0, 1e-10, 1e4
_SOLVED = 1e-12  # of the squared residual of a step's linear equations: below is float32's rounding


def adam(
    value_and_grad: Callable[[T, Any], tuple[jax.Array, T]],
    start: T,
    learning_rates: np.ndarray,
    inputs: Any = None,
    *,
    signed: bool = False,
    project: Callable[[T], T] = lambda variables: variables,
) -> tuple[T, T, jax.Array]:
    """(last variables, those with the least value seen, that value).

    Args:
      value_and_grad: `(variables, input of this step) -> (value [], gradient)`.
      start: pytree of arrays of one float dtype, in which is searched.
      learning_rates: `[steps]`, one for each step.
      inputs: pytree with leading axis steps, or None.
      signed: Adam is given the sign of the gradient.
      project: applied after each step.

    Source: Kingma, Ba (2015), arXiv:1412.6980, Algorithm 1.
    """
    steps = np.arange(1, len(learning_rates) + 1)
    # Rates with the correction of both moments' bias at each step.
    rates = np.asarray(learning_rates) * np.sqrt(1 - _BETA2**steps) / (1 - _BETA1**steps)
    floors = _FLOOR * np.sqrt(1 - _BETA2**steps)

    def step(carry: Any, x: Any) -> tuple[Any, None]:
        variables, first, second, best, least = carry
        rate, floor, given = x
        value, grads = value_and_grad(variables, given)
        value = value.astype(least.dtype)
        better = value < least
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), variables, best)
        if signed:
            grads = jax.tree.map(jnp.sign, grads)
        first = jax.tree.map(lambda m, g: _BETA1 * m + (1 - _BETA1) * g, first, grads)
        second = jax.tree.map(lambda v, g: _BETA2 * v + (1 - _BETA2) * g * g, second, grads)
        variables = jax.tree.map(
            lambda p, m, v: p - rate * m / (jnp.sqrt(v) + floor), variables, first, second
        )
        return (project(variables), first, second, best, jnp.where(better, value, least)), None

    zero, dtype = jax.tree.map(jnp.zeros_like, start), _dtype(start)
    carry = (start, zero, zero, start, jnp.full((), jnp.inf, dtype))
    xs = (jnp.asarray(rates, dtype), jnp.asarray(floors, dtype), inputs)
    (last, _, _, best, least), _ = jax.lax.scan(step, carry, xs)
    return last, best, least


def gauss_newton(
    residual: Callable[[T, Any], Any],
    start: T,
    num_products: int,
    weigh: Callable[[T, Any], Any],
    inputs: Any,
) -> tuple[T, jax.Array]:
    """(last variables, their sum of squares) of `residual`, by damped steps of Gauss and Newton.

    Each step solves the linearised problem by at most PRODUCTS conjugate gradients, which ask for
    products with the Jacobian alone, and is taken where it makes the sum of squares smaller; else
    the next one is damped more.

    Args:
      residual: `(variables, weights) -> pytree`, whose squares are summed.
      start: pytree of arrays of one float dtype, in which is searched.
      num_products: in all, shared out among the steps.
      weigh: `(variables, input of this step) -> weights`, held through a step.
      inputs: pytree with leading axis `num_steps(num_products)`.

    Source: Levenberg (1944), Marquardt (1963); truncated as in Nocedal, Wright (2006), Numerical
      optimization, sections 7.1 and 10.3.
    """

    def step(carry: tuple[T, jax.Array], given: Any) -> tuple[tuple[T, jax.Array], None]:
        variables, damping = carry
        weights = weigh(variables, given)
        at = lambda v: residual(v, weights)
        seen, forward = jax.linearize(at, variables)
        backward = jax.linear_transpose(forward, variables)
        down = jax.tree.map(jnp.negative, backward(seen)[0])
        normal = lambda v: _add(damping, v, backward(forward(v))[0])
        moved = _add(jnp.ones_like(damping), _solve(normal, down, num_products), variables)
        better = square(at(moved)) < square(seen)  # False where it is not finite
        variables = jax.tree.map(lambda a, b: jnp.where(better, a, b), moved, variables)
        damping = jnp.where(better, damping * _EASED, damping * _DAMPED)
        return (variables, jnp.clip(damping, _LEAST_DAMPING, _MOST_DAMPING)), None

    (last, _), _ = jax.lax.scan(step, (start, jnp.asarray(_DAMPING, _dtype(start))), inputs)
    return last, square(residual(last, weigh(last, jax.tree.map(lambda leaf: leaf[-1], inputs))))


def num_steps(num_products: int) -> int:
    """How many steps `gauss_newton` takes."""
    return -(-num_products // PRODUCTS)


def square(tree: Any) -> jax.Array:
    """The sum of squares of all leaves, `[]`."""
    return _dot(tree, tree)


def _solve(normal: Callable[[T], T], right: T, num_products: int) -> T:
    """By conjugate gradients, which stand still once rounding is all that is left."""
    first = square(right)

    def step(carry: Any, _: None) -> tuple[Any, None]:
        found, left, direction, size = carry
        go = size > _SOLVED * first
        ahead = normal(direction)
        # `go` keeps both quotients from 0 / 0.
        along = jnp.where(go, size / jnp.where(go, _dot(direction, ahead), 1), 0)
        found, left = _add(along, direction, found), _add(-along, ahead, left)
        now = square(left)
        turn = jnp.where(go, now / jnp.where(go, size, 1), 0)
        return (found, left, _add(turn, direction, left), now), None

    begin = (jax.tree.map(jnp.zeros_like, right), right, right, first)
    return jax.lax.scan(step, begin, None, length=min(num_products, PRODUCTS))[0][0]


def _dot(a: Any, b: Any) -> jax.Array:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    # From a plain 0: an array of one would be of float64 with jax_enable_x64.
    return jnp.asarray(sum((jnp.sum(u * v) for u, v in pairs), 0.0))


def _dtype(tree: Any) -> Any:
    return jax.tree.leaves(tree)[0].dtype


def _add(scale: jax.Array, a: T, b: T) -> T:
    return jax.tree.map(lambda u, v: scale * u + v, a, b)
