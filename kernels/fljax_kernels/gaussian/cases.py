"""Named trees, shared by tests and bench."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Case:
    """`num_clients` draws of a tree with these leaf shapes and dtypes."""

    name: str
    num_clients: int
    leaves: tuple[tuple[tuple[int, ...], str], ...]

    def __str__(self) -> str:
        return self.name

    def like(self) -> dict[str, Any]:
        return {
            f"leaf{i}": jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
            for i, (shape, dtype) in enumerate(self.leaves)
        }


CASES = (
    Case("tree", 3, (((7, 143), "float32"), ((3, 2, 5), "float32"))),
    Case("bfloat16", 4, (((257,), "bfloat16"), ((), "float32"), ((33,), "float16"))),
    Case("no_client", 0, (((10, 2), "float32"),)),
    Case("no_entry", 2, (((0, 4), "float32"),)),
)
