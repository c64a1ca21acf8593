"""Checks of arguments that several kernels take."""

from typing import Any

import jax
import numpy as np


def one_key(key: Any) -> None:
    """Raises ValueError unless it is one typed PRNG key."""
    if not (
        hasattr(key, "dtype")
        and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
        and np.ndim(key) == 0
    ):
        raise ValueError(
            "Expected key to be one typed PRNG key, got "
            f"{getattr(key, 'dtype', type(key).__name__)}."
        )
