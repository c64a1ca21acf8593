"""Adam and L-BFGS as one scan, strict about dtypes: what all searches here use."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

T = TypeVar("T")
_BETA1, _BETA2, _FLOOR = 0.9, 0.999, 1e-8
_MEMORY = 20  # steps that L-BFGS remembers


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
      start: pytree of float32 arrays.
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

    zero = jax.tree.map(jnp.zeros_like, start)
    carry = (start, zero, zero, start, jnp.full((), jnp.inf, jnp.float32))
    xs = (jnp.asarray(rates, jnp.float32), jnp.asarray(floors, jnp.float32), inputs)
    (last, _, _, best, least), _ = jax.lax.scan(step, carry, xs)
    return last, best, least


def lbfgs(value: Callable[[T], jax.Array], start: T, num_steps: int) -> tuple[T, jax.Array]:
    """(the variables with the least value seen, that value).

    Args:
      value: `variables -> []`.
      start: pytree of float32 arrays.
      num_steps: each with a search along its direction.

    Source: Liu, Nocedal (1989), On the limited memory BFGS method for large scale optimization;
      optax's, with its zoom line search.
    """
    solver = optax.lbfgs(memory_size=_MEMORY)
    both = optax.value_and_grad_from_state(value)

    def step(carry: Any, _: None) -> tuple[Any, None]:
        variables, state, best, least = carry
        now, grads = both(variables, state=state)
        better = now < least
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), variables, best)
        moves, state = solver.update(grads, state, variables, value=now, grad=grads, value_fn=value)
        moved = optax.apply_updates(variables, moves)
        return (moved, state, best, jnp.where(better, now, least)), None

    begin = (start, solver.init(start), start, jnp.full((), jnp.inf, jnp.float32))
    (last, _, best, least), _ = jax.lax.scan(step, begin, None, length=num_steps)
    now = value(last)
    pick = lambda new, old: jnp.where(now < least, new, old)
    return jax.tree.map(pick, last, best), pick(now, least)
