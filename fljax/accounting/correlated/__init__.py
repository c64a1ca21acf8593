"""Noise that is correlated over rounds: its matrix, what one unit moves, its error, its choice.

A strategy (`fljax_kernels.correlated.Strategy`) is a lower-triangular matrix C: rounds release the
sums x plus C^-1 z, as private as C x + z, which is one Gaussian mechanism. What is wanted of them
are the running sums, where the model is after each round: their error is that of A C^-1 z, A the
lower triangle of ones.
"""

from fljax.accounting.correlated.choose import (
    banded,
    banded_inverse,
    buffered,
    endless_bands,
    square_root,
    tree,
)
from fljax.accounting.correlated.dense import dense_banded
from fljax.accounting.correlated.matrices import encoder, squared_errors
from fljax.accounting.correlated.participation import (
    most_participations,
    moved,
    sensitivity,
)

__all__ = [
    "banded",
    "banded_inverse",
    "buffered",
    "dense_banded",
    "encoder",
    "endless_bands",
    "most_participations",
    "moved",
    "sensitivity",
    "square_root",
    "squared_errors",
    "tree",
]
