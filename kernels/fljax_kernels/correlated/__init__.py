"""Gaussian noise that is correlated over rounds: what one round adds, later ones partly take back.

A strategy is an invertible lower-triangular matrix C over rounds. Round t adds row t of C^-1 z, z
independent Gaussian noise, which hides whoever moves C times the rounds' sums: the matrix
mechanism. Only what later rounds need of earlier noise is kept.
"""

from fljax_kernels.correlated.api import State, add_noise, correlate, init
from fljax_kernels.correlated.strategies import KINDS, Strategy

__all__ = ["KINDS", "State", "Strategy", "add_noise", "correlate", "init"]
