"""L-BFGS as one scan in which each step looks at the function once, strict about dtypes."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

T = TypeVar("T")
_MEMORY = 20  # pairs that are remembered
_ENDS = 20  # of lines, the worst of which is the bar
_TRIALS = 5  # on a line
_DECREASE, _CURVATURE = 1e-4, 0.9
_FARTHER, _FARTHEST = 0.25, 9.0  # beyond the best trial, of how far it is from the one before
_MARGIN = 0.1  # of what holds an end of the line, on either side, where nothing is tried
_PROMISE = 1e-3  # of what a point lacks to the best one: with less ahead, a search has settled
_CURVED = 1e-6  # the least cosine of a step and the gradient's change: rounding is below


class _Best(NamedTuple):
    """A point `[N]`, the value there and its gradient `[N]`."""

    x: jax.Array
    value: jax.Array
    grad: jax.Array


class _Point(NamedTuple):
    """On a line: how far along it, the value there, and the slope."""

    length: jax.Array
    value: jax.Array
    slope: jax.Array


class _Line(NamedTuple):
    """A search from `x` `[N]`, of gradient `grad`, along `direction` `[N]`.

    bar: what a trial must be below. length: of the next trial. low: the best trial below the bar,
    at first the start; its gradient `[N]`. high: one that was too far; infinitely far until there
    is one.
    """

    x: jax.Array
    grad: jax.Array
    direction: jax.Array
    slope: jax.Array
    bar: jax.Array
    length: jax.Array
    trials: jax.Array
    low: _Point
    low_grad: jax.Array
    high: _Point


class _Memory(NamedTuple):
    """steps, changes: `[M, N]`, of x and of its gradient, the oldest overwritten.

    products: `[M, M]`, of each step with the changes from its own on, the oldest pair first. pairs:
    ever kept. filled: that count. scale: of the inverse Hessian where they say nothing. ends: the
    values at the last lines' ends.
    """

    steps: jax.Array
    changes: jax.Array
    products: jax.Array
    pairs: jax.Array
    filled: jax.Array
    scale: jax.Array
    ends: jax.Array


def lbfgs(value: Callable[[T], jax.Array], start: T, num_looks: int) -> tuple[T, jax.Array]:
    """(the variables with the least value seen, that value).

    Each step is one value and gradient: of one more trial on the current line, or, where the weak
    conditions of Wolfe end that, of the first on the next. So searches under `vmap` do not wait for
    one another. A trial must be below the worst of the last 20 lines' ends, not below the last one:
    networks of ReLUs have gradients that jump, and so has a distance between them; a search that
    never climbs is caught at the first jump.

    After 5 trials the best of them is taken; where none is below the bar, the last and shortest,
    and the next direction is the steepest, tried from that length on. Having climbed, a search may
    settle above the best point that it saw: where the slope ahead promises less than a thousandth
    of the way back down, it goes on from the best point, remembering nothing.

    A value or gradient that is not finite means that the trial was too far, and is never taken: a
    search with nothing else ahead stays where it is.

    Args:
      value: `variables -> []`.
      start: pytree of float arrays: the search has their dtype, with jax_enable_x64 too.
      num_looks: values and gradients.

    Source: Liu, Nocedal (1989), On the limited memory BFGS method for large scale optimization;
      Grippo, Lampariello, Lucidi (1986), A nonmonotone line search technique for Newton's method;
      Lewis, Overton (2013), Nonsmooth optimization via quasi-Newton methods, Algorithm 2.6, with
      cubics in place of halves.
    """
    flat, restore = ravel_pytree(start)
    look = jax.value_and_grad(lambda x: value(restore(x)).astype(flat.dtype))

    def step(carry: Any, _: None) -> tuple[Any, None]:
        line, memory, best = carry
        x = line.x + line.length * line.direction
        seen, grad = look(x)
        best = _choose(seen < best.value, _Best(x, seen, grad), best)
        return (*_search(line, memory, seen, grad, best), best), None

    (_, _, best), _ = jax.lax.scan(step, _begin(flat), None, length=num_looks)
    return restore(best.x), best.value


def _begin(x: jax.Array) -> tuple[_Line, _Memory, _Best]:
    """On a line of no length, whose first trial is the start and ends it."""
    dtype, still, none = x.dtype, jnp.zeros_like(x), jnp.zeros((), jnp.int32)
    zero, one, infinite = (jnp.asarray(v, dtype) for v in (0, 1, jnp.inf))
    rows, ends = jnp.zeros((_MEMORY, x.size), dtype), jnp.full((_ENDS,), -jnp.inf, dtype)
    memory = _Memory(rows, rows, jnp.eye(_MEMORY, dtype=dtype), none, none, zero, ends)
    best = _Best(x, infinite, still)
    return _line(best, still, zero, infinite, one), memory, best


def _line(
    start: _Best, direction: jax.Array, slope: jax.Array, bar: jax.Array, length: jax.Array
) -> _Line:
    """A new one, before its first trial, which is of this length."""
    zero, infinite = jnp.zeros_like(length), jnp.full_like(length, jnp.inf)
    low, high = _Point(zero, start.value, slope), _Point(infinite, infinite, zero)
    none = jnp.zeros((), jnp.int32)
    return _Line(start.x, start.grad, direction, slope, bar, length, none, low, start.grad, high)


def _search(
    line: _Line, memory: _Memory, seen: jax.Array, grad: jax.Array, best: _Best
) -> tuple[_Line, _Memory]:
    """After the value and gradient of a trial: with the next one, here or on a new line."""
    trial = _Point(line.length, seen, _dot(grad, line.direction))
    finite = jnp.isfinite(seen) & jnp.isfinite(trial.slope)
    below = finite & (seen <= line.bar + _DECREASE * line.length * line.slope)
    accepted = below & (trial.slope >= _CURVATURE * line.slope)
    better = below & ((line.low.length == 0) | (seen < line.low.value))
    low, low_grad = _choose(better, (trial, grad), (line.low, line.low_grad))
    # Below the bar, and still as steep: the end is beyond, or before what was too far.
    high = _choose(better, line.high, trial)
    further = line._replace(
        length=_between(low, high, line.low),
        trials=line.trials + 1,
        low=low,
        low_grad=low_grad,
        high=high,
    )

    ended = accepted | (further.trials == _TRIALS)
    failed = ended & ~accepted & (low.length == 0)
    end, end_grad = _choose(accepted | (failed & finite), (trial, grad), (low, low_grad))
    step = end.length * line.direction
    memory = _remember(memory, ended & ~failed, step, end_grad - line.grad)
    ends = jnp.concatenate([memory.ends[1:], end.value[None]])
    memory = memory._replace(
        filled=jnp.where(failed, 0, memory.filled), ends=jnp.where(ended, ends, memory.ends)
    )
    start = _Best(line.x + step, end.value, end_grad)
    direction, slope = _direction(memory, end_grad)
    settled = ended & (-slope < _PROMISE * (end.value - best.value))
    settled = settled & jnp.isfinite(_dot(best.grad, best.grad))
    start, (direction, slope) = _choose(
        settled, (best, _steepest(best.grad)), (start, (direction, slope))
    )
    memory = memory._replace(
        filled=jnp.where(settled, 0, memory.filled),
        ends=jnp.where(settled, best.value, memory.ends),
    )
    length = jnp.where(failed, line.length, 1)
    new = _line(start, direction, slope, jnp.max(memory.ends), length)
    return _choose(ended, new, further), memory


def _between(low: _Point, high: _Point, before: _Point) -> jax.Array:
    """The next trial's length: the minimum of the cubic through two trials, kept off both; beyond
    the best one while none was too far.
    """
    open_ended = jnp.isinf(high.length)
    other = _choose(open_ended, before, high)
    span = other.length - low.length
    mean = low.slope + other.slope - 3 * (other.value - low.value) / span
    root = jnp.sqrt(jnp.square(mean) - low.slope * other.slope) * jnp.sign(span)
    cubic = other.length - span * (other.slope + root - mean) / (other.slope - low.slope + 2 * root)
    near = low.length + jnp.where(open_ended, -_FARTHER, _MARGIN) * span
    far = low.length + jnp.where(open_ended, -_FARTHEST, 1 - _MARGIN) * span
    # No minimum, going down: far. Nothing finite there: near.
    blind = jnp.where(open_ended, far, near)
    cubic = jnp.where(jnp.isfinite(cubic), cubic, blind)
    return jnp.clip(cubic, jnp.minimum(near, far), jnp.maximum(near, far))


def _remember(memory: _Memory, ended: jax.Array, step: jax.Array, change: jax.Array) -> _Memory:
    """With this pair in place of the oldest, if a line ended and it tells a positive curvature."""
    product, size = _dot(step, change), _dot(change, change)
    kept = ended & (product > _CURVED * jnp.sqrt(_dot(step, step) * size))
    # What is not kept is written behind the end, which drops it: no copy of all rows.
    slot = jnp.where(kept, memory.pairs % _MEMORY, _MEMORY)
    steps = memory.steps.at[slot].set(step, mode="drop")
    changes = memory.changes.at[slot].set(change, mode="drop")
    one = kept.astype(jnp.int32)
    pairs, filled = memory.pairs + one, jnp.minimum(memory.filled + one, _MEMORY)
    order, counts = _order(pairs, filled)
    column = jnp.where(counts, _times(steps, change)[order], 0)
    products = jnp.pad(memory.products[1:, 1:], ((0, 1), (0, 1))).at[:, -1].set(column)
    return memory._replace(
        steps=steps,
        changes=changes,
        products=jnp.where(kept, products, memory.products),
        pairs=pairs,
        filled=filled,
        scale=jnp.where(kept, product / size, memory.scale),
    )


def _order(pairs: jax.Array, filled: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows from the oldest to the newest, `[M]`, and which of them count."""
    places = jnp.arange(_MEMORY, dtype=jnp.int32)
    return (pairs + places) % _MEMORY, places >= _MEMORY - filled


def _direction(memory: _Memory, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where to go from a point of this gradient, and the slope.

    What is known as two loops over the pairs are two triangular systems of all their products: rows
    are read by products with matrices, not one by one.
    """
    order, counts = _order(memory.pairs, memory.filled)
    back = jnp.argsort(order)
    products = jnp.where(
        counts[:, None] & counts[None], memory.products, jnp.eye(_MEMORY, dtype=grad.dtype)
    )
    solve = lambda right, trans: jax.scipy.linalg.solve_triangular(products, right, trans=trans)
    scale = memory.scale
    first = solve(jnp.where(counts, _times(memory.steps, grad)[order], 0), 0)
    rest = grad - _times(first[back], memory.changes)
    along = jnp.where(counts, _times(memory.changes, rest)[order], 0)
    second = solve(jnp.diagonal(products) * first - scale * along, 1)
    direction = -(scale * rest + _times(second[back], memory.steps))
    slope = _dot(direction, grad)
    # By rounding alone it may lead up.
    return _choose((memory.filled > 0) & (slope < 0), (direction, slope), _steepest(grad))


def _steepest(grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Down the gradient, by at most 1, and the slope."""
    size = _dot(grad, grad)
    length = jnp.minimum(1 / jnp.sqrt(size), 1)
    return -length * grad, -length * size


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Of vectors, in their own precision: products for matrices round operands on accelerators."""
    return jnp.sum(a * b)


def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _choose(which: jax.Array, yes: T, no: T) -> T:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), yes, no)
