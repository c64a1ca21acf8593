"""Named strategies, shared by tests and bench."""

from fljax_kernels.correlated.strategies import Strategy

CASES = {
    "one_band": Strategy("banded", (1.0,), 6),
    "banded": Strategy("banded", (1.0, 0.5, 0.375, 0.3125), 11),
    "banded_short": Strategy("banded", (1.0, 0.5, 0.375, 0.3125), 2),
    "banded_inverse": Strategy("banded_inverse", (1.0, -0.5, -0.125), 9),
    "buffered": Strategy("buffered", (0.95, 0.4, 0.2, 0.35), 10),
    "dense_banded": Strategy(
        "dense_banded",
        (0.9, 0.0, 0.0, 1.1, 0.4, 0.0, 1.0, -0.3, 0.2, 0.8, 0.5, 0.1, 1.2, 0.3, 0.6),
        5,
    ),
    "dense_one_band": Strategy("dense_banded", (0.5, 1.0, 2.0), 3),
    "tree": Strategy("tree", (), 13),
    "tree_full": Strategy("tree", (), 8),
}
