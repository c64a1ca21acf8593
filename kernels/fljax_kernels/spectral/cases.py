"""Named matrices, shared by tests and bench."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """A matrix `[num_rows, dim]` and a floor; `kind` says what its spectrum looks like."""

    name: str
    num_rows: int
    dim: int
    stddev: float
    kind: str = "random"

    def __str__(self) -> str:
        return self.name

    def rows(self) -> np.ndarray:
        """Float64; as the kernels see it after rounding to their dtype."""
        rng = np.random.default_rng(len(self.name) + 31 * self.num_rows + self.dim)
        g = rng.normal(size=(self.num_rows, self.dim)) / np.sqrt(self.dim)
        if self.kind == "rank_deficient":
            g = g[rng.integers(0, max(1, self.num_rows // 3), self.num_rows)]
        elif self.kind == "repeated":
            g = np.eye(self.num_rows, self.dim)[rng.permutation(self.num_rows)]
        elif self.kind == "zero":
            g = np.zeros_like(g)
        elif self.kind == "steep":
            u, _, vt = np.linalg.svd(g, full_matrices=False)
            g = (u * np.geomspace(1e2, 1e-6, min(g.shape))) @ vt
        return g.astype(np.float32).astype(np.float64)


CASES = (
    Case("random", 12, 64, 0.2),
    Case("rank_deficient", 12, 64, 0.1, "rank_deficient"),
    Case("repeated", 10, 64, 0.3, "repeated"),
    Case("repeated_at_the_floor", 16, 64, 0.25, "repeated"),
    Case("zero", 6, 40, 0.5, "zero"),
    Case("steep", 20, 64, 0.05, "steep"),
    Case("more_rows_than_columns", 64, 20, 0.15),
    Case("one_row", 1, 30, 0.4),
    Case("low_floor", 12, 64, 1e-4),
    Case("high_floor", 12, 64, 100.0),
)
