"""Named graphs and models, shared by tests and bench."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels.pairwise import graphs


@dataclasses.dataclass(frozen=True)
class Case:
    """`num_clients` clients on a graph: "complete", "regular" or "out" of `degree`; a model of
    these leaves.
    """

    name: str
    num_clients: int
    graph: str
    degree: int
    leaves: tuple[tuple[tuple[int, ...], str], ...]

    def __str__(self) -> str:
        return self.name

    def edges(self) -> np.ndarray:
        rng = np.random.default_rng(self.num_clients)
        if self.graph == "complete":
            return graphs.complete(self.num_clients)
        return {"regular": graphs.k_regular, "out": graphs.random_out}[self.graph](
            self.num_clients, self.degree, rng
        )

    def stddev(self) -> np.ndarray:
        """One for each edge, spread over a factor of ten."""
        return np.random.default_rng(1).uniform(0.3, 3.0, len(self.edges())).astype(np.float32)

    def like(self) -> dict[str, Any]:
        return {
            f"leaf{i}": jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
            for i, (shape, dtype) in enumerate(self.leaves)
        }


CASES = (
    Case("two_clients", 2, "complete", 1, (((7, 13), "float32"), ((3, 2, 5), "float32"))),
    Case(
        "complete", 12, "complete", 11, (((257,), "bfloat16"), ((), "float32"), ((33,), "float16"))
    ),
    Case("regular", 20, "regular", 5, (((1001,), "float32"),)),
    Case("out", 15, "out", 2, (((4, 5), "float32"),)),
    # Two blocks of unequal content: the last overlaps the first.
    Case("wide", 5, "complete", 4, (((40_001,), "float32"),)),
    Case("one_client", 1, "complete", 0, (((10, 2), "float32"),)),
    Case("no_entry", 3, "complete", 2, (((0, 4), "float32"),)),
)
