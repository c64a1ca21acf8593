"""Real data that come with scikit-learn, so that nothing is downloaded."""

import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fljax.data.dataset import Dataset, split


def digits() -> Dataset:
    """1,797 handwritten digits, 8 x 8 grey values, 10 classes. Raises ImportError without
    scikit-learn.
    """

    def asked() -> Any:
        from sklearn.datasets import load_digits

        return load_digits()

    x, labels = _table("digits.csv.gz", 0, asked, "digits come")
    # Pixels are counts 0..16 of set points in 4 x 4 blocks of the scanned bitmap.
    x = (x.reshape(-1, 8, 8) / 16.0)[..., None].astype(np.float32)
    return split(x, labels.astype(np.int32), 10, "digits")


def breast_cancer() -> Dataset:
    """569 rows of 30 numbers in [0, 1], 2 classes. Raises ImportError without scikit-learn."""

    def asked() -> Any:
        from sklearn.datasets import load_breast_cancer

        return load_breast_cancer()

    raw, labels = _table("breast_cancer.csv", 1, asked, "breast-cancer table comes")
    low, high = raw.min(axis=0), raw.max(axis=0)
    x = ((raw - low) / (high - low)).astype(np.float32)
    return split(x, labels.astype(np.int32), 2, "breast_cancer")


def _table(
    file: str, header: int, asked: Callable[[], Any], comes: str
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels, read from the file itself, below `header` lines: to import scikit-learn
    takes as long as to import JAX. Another version, which keeps them elsewhere, is `asked`.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None:
        raise ImportError(
            f"The {comes} with scikit-learn, which is not installed: pip install 'fljax[sim]'."
        )
    for place in found.submodule_search_locations or []:
        path = pathlib.Path(place, "datasets", "data", file)
        if path.is_file():
            rows = np.loadtxt(path, delimiter=",", skiprows=header)
            return rows[:, :-1], rows[:, -1]
    raw = asked()
    return raw.data, raw.target
