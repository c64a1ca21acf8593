"""Real data that come with scikit-learn, so that nothing is downloaded."""

from typing import Any

import numpy as np

from fljax.data.dataset import Dataset, split


def digits() -> Dataset:
    """1,797 handwritten digits, 8 x 8 grey values, 10 classes. Raises ImportError without
    scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as reason:
        raise ImportError(
            "The digits come with scikit-learn, which is not installed: pip install 'fljax[sim]'."
        ) from reason
    raw: Any = load_digits()
    # Pixels are counts 0..16 of set points in 4 x 4 blocks of the scanned bitmap.
    x = (raw.images / 16.0)[..., None].astype(np.float32)
    return split(x, raw.target.astype(np.int32), 10, "digits")


def breast_cancer() -> Dataset:
    """569 rows of 30 numbers in [0, 1], 2 classes. Raises ImportError without scikit-learn."""
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as reason:
        raise ImportError(
            "The breast-cancer table comes with scikit-learn, which is not installed: pip install "
            "'fljax[sim]'."
        ) from reason
    raw: Any = load_breast_cancer()
    low, high = raw.data.min(axis=0), raw.data.max(axis=0)
    x = ((raw.data - low) / (high - low)).astype(np.float32)
    return split(x, raw.target.astype(np.int32), 2, "breast_cancer")
