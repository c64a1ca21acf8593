"""float64 inside a scope: accountants need it, and importing fljax must not switch it on for
everybody.

The pure functions of `fljax.accounting` carry `@float64`. Called with plain numbers or arrays they
enter the scope by themselves (on the CPU) and return float64; few numbers are computed by NumPy.
Called while tracing (under `jit`, `vmap`, `grad`) they need the caller to be inside `x64()`, and
raise otherwise: a float32 epsilon would look right and be wrong.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from fljax.accounting import _arrays
from fljax.accounting._arrays import jax, jnp

F = TypeVar("F", bound=Callable[..., Any])


class Static(tuple[Any, ...]):
    """A tuple that `float64` leaves alone, for a static argument of `jax.jit`."""


def _as_one_array(value: Any) -> Any:
    """Lists and tuples of numbers as an array: `jax.jit` would take each number for an argument of
    its own.
    """
    if (
        type(value) in (list, tuple)
        and value
        and all(isinstance(number, numbers.Real) for number in value)
    ):
        return np.asarray(value, np.float64)
    return value


def is_enabled() -> bool:
    """True where the current thread's JAX computes in float64."""
    # A program that has not imported JAX cannot have switched it.
    return "jax" in sys.modules and bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def is_traced(value: Any) -> bool:
    """True for a value that is known only while tracing."""
    return "jax" in sys.modules and isinstance(value, jax.core.Tracer)


def _cpu() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS left the CPU out: use what there is
        return jax.local_devices()[0]


@contextlib.contextmanager
def x64() -> Iterator[None]:
    """Within this scope, in this thread only, JAX computes in float64 and on the CPU.

    Rank promotion is allowed inside: it checks the caller's code, and ours broadcasts on purpose.
    """
    with jax.enable_x64(True), jax.default_device(_cpu()), jax.numpy_rank_promotion("allow"):
        yield


def float64(fun: Any = None, *, host: int = 0, **static: Any) -> Any:
    """Makes `fun` a float64 function of arrays; see the module.

    `@float64` alone compiles nothing. `@float64(host=N, static_argnames=...)` compiles, but for at
    most N numbers in all, which NumPy computes by the same lines (see `_arrays`).
    """
    if fun is None:
        return lambda fun: _float64(fun, _arrays.compiled(**static)(fun), host)
    return _float64(fun, fun, 0)


def _float64(fun: F, program: Callable[..., Any], most: int) -> F:
    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _arrays.on_host():
            return fun(*args, **kwargs)
        args = tuple(map(_as_one_array, args))
        kwargs = {name: _as_one_array(value) for name, value in kwargs.items()}
        leaves = _arrays.leaves((*args, *kwargs.values()))
        if any(map(is_traced, leaves)):
            if not is_enabled():
                raise RuntimeError(
                    f"Expected float64 while tracing {fun.__name__}: enter `with "
                    "fljax.accounting.x64():` around the transformed call."
                )
            with jax.numpy_rank_promotion("allow"):
                return program(*args, **kwargs)
        inside = is_enabled()
        if not inside and sum(map(np.size, leaves)) <= most:
            with _arrays.host():
                return _arrays.tree_map(np.asarray, fun(*args, **kwargs))
        # A host call may come while some outer program is being traced: evaluate now, do not stage.
        with x64(), jax.ensure_compile_time_eval():
            out = program(*args, **kwargs)
            return out if inside else jax.tree.map(np.asarray, out)

    return wrapped  # type: ignore[return-value]


def as64(value: Any) -> jax.Array:
    """`value` as a float64 array; integers and float32 included."""
    return jnp.asarray(value, jnp.float64)


# A number that is known only while tracing cannot be refused. Outside its range it becomes NaN, and
# makes no claim.


def non_negative(value: Any) -> jax.Array:
    """`value` in float64, NaN where it is not >= 0."""
    value = as64(value)
    return jnp.where(value >= 0, value, jnp.nan)


def positive(value: Any) -> jax.Array:
    """`value` in float64, NaN where it is not > 0 and finite."""
    value = as64(value)
    return jnp.where((value > 0) & jnp.isfinite(value), value, jnp.nan)


def unit(value: Any) -> jax.Array:
    """`value` in float64, NaN where it is not in [0, 1]: a probability, or a delta."""
    value = as64(value)
    return jnp.where((value >= 0) & (value <= 1), value, jnp.nan)


def renyi_orders(orders: Any) -> jax.Array:
    """`orders` in float64, NaN where one is not > 1."""
    orders = as64(orders)
    return jnp.where(orders > 1, orders, jnp.nan)
