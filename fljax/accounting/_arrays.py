"""One text for two machines: JAX for sweeps and transformations, NumPy for a single number.

A single number does not repay a compilation, nor the import of JAX. Within `host()` the functions
below, and whatever `jnp` names, are NumPy's; elsewhere they are JAX's, imported on first use. A
module that takes its arrays from here serves both with the same lines, in float64.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

_ON_HOST: contextvars.ContextVar[bool] = contextvars.ContextVar("_ON_HOST", default=False)
F = TypeVar("F", bound=Callable[..., Any])


class _Later:
    """A module, imported when an attribute of it is asked for."""

    def __init__(self, name: str, on_host: Any = None):
        self._name, self._on_host = name, on_host

    def __getattr__(self, name: str) -> Any:
        if self._on_host is not None and _ON_HOST.get():
            return getattr(self._on_host, name)
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import jax as jax
    import jax.numpy as jnp
else:
    jax = _Later("jax")
    jnp = _Later("jax.numpy", np)


@contextlib.contextmanager
def host() -> Iterator[None]:
    """Within this scope, in this thread only, arrays are NumPy's and nothing is compiled."""
    before = _ON_HOST.set(True)
    try:
        with np.errstate(all="ignore"):  # branches not taken overflow
            yield
    finally:
        _ON_HOST.reset(before)


def on_host() -> bool:
    """True within `host()`."""
    return _ON_HOST.get()


def is_jax(value: Any) -> bool:
    """True for an array of JAX, also one that is being traced."""
    return "jax" in sys.modules and isinstance(value, jax.Array)


def compiled(**static: Any) -> Callable[[F], F]:
    """`jax.jit` with these static arguments, from the first call on; nothing within `host()`."""

    def decorate(fun: F) -> F:
        program = functools.cache(lambda: jax.jit(fun, **static))

        @functools.wraps(fun)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (fun if on_host() else program())(*args, **kwargs)

        call.program = program  # type: ignore[attr-defined]  # what its compilations are counted by
        return call  # type: ignore[return-value]

    return decorate


def tree_map(fun: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """`jax.tree.map` for tuples, NamedTuples, lists and None."""
    if tree is None:
        return None
    if isinstance(tree, tuple | list):
        parts = [tree_map(fun, *branches) for branches in zip(tree, *rest, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return fun(tree, *rest)


def leaves(tree: Any) -> list[Any]:
    """`jax.tree.leaves`, of the same trees."""
    if tree is None:
        return []
    return (
        [leaf for part in tree for leaf in leaves(part)]
        if isinstance(tree, tuple | list)
        else [tree]
    )


def vmap(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.vmap` over the leading axis of every argument."""

    def over(*args: Any) -> Any:
        if not on_host():
            return jax.vmap(fun)(*args)
        size = len(leaves(args)[0])
        found = [fun(*tree_map(lambda leaf, i=i: leaf[i], args)) for i in range(size)]
        return tree_map(lambda *leaves: np.stack(leaves), found[0], *found[1:])

    return over


def fori_loop(low: int, high: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """`jax.lax.fori_loop`."""
    if not on_host():
        return jax.lax.fori_loop(low, high, body, state)
    for step in range(low, high):
        state = body(step, state)
    return state


def while_loop(go_on: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """`jax.lax.while_loop`."""
    if not on_host():
        return jax.lax.while_loop(go_on, body, state)
    while go_on(state):
        state = body(state)
    return state


def folded(body: Callable[[Any, Any], Any], state: Any, rows: Any) -> Any:
    """The state after `body(state, row)` for each row of the leading axis of `rows`."""
    if not on_host():
        return jax.lax.scan(lambda state, row: (body(state, row), None), state, rows)[0]
    for i in range(len(leaves(rows)[0])):
        state = body(state, tree_map(lambda leaf, i=i: leaf[i], rows))
    return state


def mapped(fun: Callable[[Any], Any], rows: Any) -> Any:
    """`jax.lax.map`."""
    return vmap(fun)(rows) if on_host() else jax.lax.map(fun, rows)


def stop_gradient(tree: Any) -> Any:
    """`jax.lax.stop_gradient`."""
    return tree if on_host() else jax.lax.stop_gradient(tree)


def put(x: Any, index: Any, value: Any) -> Any:
    """A copy of `x` with `value` at `index`."""
    if not on_host():
        return x.at[index].set(value)
    out = np.array(x)
    out[index] = value
    return out


def add_at(x: Any, index: Any, value: Any) -> Any:
    """A copy of `x` with `value` added at `index`; what is named twice gets both."""
    if not on_host():
        return x.at[index].add(value)
    out = np.array(x)
    np.add.at(out, index, value)
    return out


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """`jax.scipy.special.logsumexp`."""
    if not on_host():
        return jax.scipy.special.logsumexp(x, axis=axis, keepdims=keepdims)
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis)


def softmax(x: Any, axis: int) -> Any:
    """`jax.nn.softmax`."""
    return jnp.exp(x - logsumexp(x, axis, keepdims=True))


def _special(name: str) -> Callable[[Any], Any]:
    def of(x: Any) -> Any:
        if on_host():
            return getattr(importlib.import_module("scipy.special"), name)(x)
        return getattr(importlib.import_module("jax.scipy.special"), name)(x)

    return of


erf, erfc, log_ndtr, ndtri = map(_special, ("erf", "erfc", "log_ndtr", "ndtri"))
