"""The K x K definition in NumPy float64: what the Gram form must agree with, and what it is timed
against.
"""

import numpy as np


def covariance(rows: np.ndarray, scale: float) -> np.ndarray:
    """Scale * G^T G, `[K, K]`, of rows `[B, K]`."""
    rows = np.asarray(rows, np.float64)
    return scale * rows.T @ rows


def filling_covariance(rows: np.ndarray, scale: float, stddev: float) -> np.ndarray:
    """U max(stddev^2 - L, 0) U^T, `[K, K]`."""
    values, vectors = np.linalg.eigh(covariance(rows, scale))
    return (vectors * np.maximum(stddev**2 - values, 0)) @ vectors.T


def lifted_covariance(rows: np.ndarray, scale: float, stddev: float) -> np.ndarray:
    """U max(L, stddev^2) U^T, `[K, K]`."""
    values, vectors = np.linalg.eigh(covariance(rows, scale))
    return (vectors * np.maximum(values, stddev**2)) @ vectors.T
