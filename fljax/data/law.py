"""What is known of the law of records, of which a channel's noise is solved: their range, and their
covariance.
"""

from typing import NamedTuple

import numpy as np

from fljax.data import channel, store
from fljax.data.cohorts import ClientData
from fljax.data.dataset import Dataset


class Law(NamedTuple):
    """What a channel is solved from: one covariance for all clients, or one for each.

    values: `[d]` or `[C, d]`, eigenvalues, descending. factor: any `[d, k]` or `[C, d, k]` with
    factor factor^T the covariance. estimated_from: records that it was estimated from; None where
    it is known or declared.
    """

    values: np.ndarray
    factor: np.ndarray
    estimated_from: int | None


def value_range(dataset: Dataset) -> tuple[float, float]:
    """Least and greatest value in the held-out records, which are public.

    Raises:
      ValueError: records are not floating numbers, or all values are alike.
    """
    test = np.asarray(dataset.test["x"])
    if not np.issubdtype(test.dtype, np.floating):
        raise ValueError(
            f"Expected records of floating numbers for a channel, got dtype {test.dtype}."
        )
    low, high = float(test.min()), float(test.max())
    if not low < high:
        raise ValueError(
            "Expected held-out records that are not all zero or all alike, got only the value "
            f"{low!r}."
        )
    return low, high


def of_records(dataset: Dataset, client_data: ClientData | store.Store, source: str) -> Law:
    """Of the data set, where it is known; else of the held-out records; or, "private", of each
    client's own.

    Raises:
      ValueError: a client has fewer than two records, or alike ones, or is on disk, where its own
        are asked for.
    """
    known, test = dataset.covariance, np.asarray(dataset.test["x"])
    if source != "private":
        if known is not None:
            values, vectors = np.linalg.eigh(known)
            roots = np.sqrt(np.maximum(values, 0))
            return Law(np.maximum(values, 0)[::-1], (vectors * roots).astype(np.float32), None)
        estimated = None if source == "declared" else len(test)
        return Law(channel.spectrum(test), channel.data_factor(test), estimated)
    if isinstance(client_data, store.Store):
        raise ValueError(
            "Expected covariance_source other than 'private' for clients on disk, got 'private'."
        )
    train = np.asarray(dataset.train["x"])
    spectra: list[np.ndarray] = []
    factors: list[np.ndarray] = []
    for client, row in enumerate(np.asarray(client_data.indices)):
        own = train[row[row >= 0]]
        spectrum = channel.spectrum(own) if len(own) > 1 else np.zeros(1)
        if not spectrum.max() > 0:
            raise ValueError(
                "Expected clients of at least two records that differ for "
                f"covariance_source='private', got client {client} with {len(own)}."
            )
        spectra.append(spectrum)
        factors.append(channel.data_factor(own))
    width = max(factor.shape[1] for factor in factors)
    padded = [np.pad(factor, ((0, 0), (0, width - factor.shape[1]))) for factor in factors]
    return Law(np.stack(spectra), np.stack(padded), None)
