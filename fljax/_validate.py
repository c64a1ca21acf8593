"""Range checks of host scalars, in one wording: the rule, the name, the value."""

import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fljax import _near


def _check(rule: str, holds: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        try:
            # `not holds` rather than the opposite comparison, so that NaN fails.
            good = bool(holds(value))
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise ValueError(f"Expected {name} {rule}, got {name}={value!r}.")


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(dtype: Any) -> bool:
    if isinstance(dtype, np.dtype) and dtype.kind in "fiu":
        return True
    import jax.numpy as jnp  # of bfloat16 and its like only JAX knows

    return bool(jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer))


def is_number(value: Any) -> bool:
    """One real number of Python, NumPy or JAX. True is none: who writes it means another
    argument.
    """
    if isinstance(value, numbers.Real):
        return not isinstance(value, bool)
    dtype = getattr(value, "dtype", None)
    return dtype is not None and np.ndim(value) == 0 and _is_real(dtype)


def positive(**values: Any) -> None:
    """Raises ValueError unless every value is finite and > 0."""
    _check("> 0 and finite", lambda v: is_number(v) and v > 0 and math.isfinite(v), values)


def non_negative(**values: Any) -> None:
    """Raises ValueError unless every value is finite and >= 0."""
    _check(">= 0 and finite", lambda v: is_number(v) and v >= 0 and math.isfinite(v), values)


def squarable(**values: Any) -> None:
    """Raises ValueError unless every value is in [1e-100, 1e100]: its square is a number, too."""
    _check("in [1e-100, 1e100]", lambda v: is_number(v) and 1e-100 <= v <= 1e100, values)


def grid_steps(**values: Any) -> None:
    """Raises ValueError unless every value is a length of a vector of integers, at least one step.

    A smaller one is a length in another unit: integers that move by less than a step do not move.
    """
    _check(
        "in [1, 1e100], in whole steps of the grid",
        lambda v: is_number(v) and 1 <= v <= 1e100,
        values,
    )


def probability(**values: Any) -> None:
    """Raises ValueError unless every value is in (0, 1]."""
    _check("in (0, 1]", lambda v: is_number(v) and 0 < v <= 1, values)


def open_unit(**values: Any) -> None:
    """Raises ValueError unless every value is in (0, 1): the range of a delta."""
    _check("in (0, 1)", lambda v: is_number(v) and 0 < v < 1, values)


def closed_unit(**values: Any) -> None:
    """Raises ValueError unless every value is in [0, 1]."""
    _check("in [0, 1]", lambda v: is_number(v) and 0 <= v <= 1, values)


def below_one(**values: Any) -> None:
    """Raises ValueError unless every value is in [0, 1): the range of a delta that may be spent
    already.
    """
    _check("in [0, 1)", lambda v: is_number(v) and 0 <= v < 1, values)


def each(check: Callable[..., None], **values: Any) -> None:
    """Raises what `check` raises for one number of the arrays `values`."""
    for name, value in values.items():
        array = np.asarray(value)
        if array.size and not _is_real(array.dtype):
            check(**{name: value})  # which refuses it: strings would become numbers below
        array = array.astype(np.float64)
        # The ends and NaN tell of all: NaN spreads to both.
        for end in (array.min(), array.max()) if array.size else ():
            check(**{name: float(end)})


def positive_int(**values: Any) -> None:
    """Raises ValueError unless every value is an integer >= 1."""
    _check("to be an integer >= 1", lambda v: _is_integer(v) and v >= 1, values)


def non_negative_int(**values: Any) -> None:
    """Raises ValueError unless every value is an integer >= 0."""
    _check("to be an integer >= 0", lambda v: _is_integer(v) and v >= 0, values)


def one_of(choices: Iterable[Any], **values: Any) -> None:
    """Raises ValueError unless every value is among `choices`; the error says which one is most
    like it.
    """
    choices = list(choices)
    for name, value in values.items():
        try:
            _check(f"to be one of {choices}", lambda v: v in choices, {name: value})
        except ValueError as error:
            raise ValueError(f"{error}{_near.did_you_mean(value, choices)}") from None


def typed_key(**keys: Any) -> None:
    """Raises ValueError unless every value is one typed PRNG key (`jax.random.key`)."""
    import jax

    for name, key in keys.items():
        if not (hasattr(key, "dtype") and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)):
            shown = getattr(key, "dtype", type(key).__name__)
            raise ValueError(
                f"Expected {name} to be a typed PRNG key (jax.random.key), got {name} of type "
                f"{shown}."
            )
        if key.ndim != 0:
            raise ValueError(
                f"Expected {name} to be one typed PRNG key, got {name} of shape {key.shape}."
            )


def stream_key(**keys: Any) -> None:
    """Raises ValueError unless every value is one typed key of threefry (`jax.random.key(seed,
    impl="threefry2x32")`) or of ChaCha20 (`fljax_kernels.chacha20.key(secret)`).

    With other generators a draw under `vmap` may depend on its neighbours, so a client's draws
    would depend on others.
    """
    from fljax_kernels import _threefry
    from fljax_kernels.chacha20 import api as chacha20

    typed_key(**keys)
    for name, key in keys.items():
        if not (_threefry.is_kind(key) or chacha20.is_kind(key)):
            raise ValueError(
                f"Expected {name} to be a threefry or ChaCha20 key, got {name} of dtype "
                f"{key.dtype}."
            )


class Checked:
    """Root of configs that are made of parts: each part checks its fields, then asks the next."""

    def __post_init__(self) -> None:
        """Checks the fields."""
