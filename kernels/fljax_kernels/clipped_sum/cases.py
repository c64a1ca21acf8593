"""Named shapes and dtypes, shared by tests and bench."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Case:
    """`num_clients` rows of `dim` numbers; a `pytree` splits them over leaves of ranks 1, 2 and
    3.
    """

    name: str
    num_clients: int
    dim: int
    dtype: str = "float32"
    pytree: bool = False

    def __str__(self) -> str:
        return self.name

    def make(self, key: jax.Array) -> "jax.Array | dict[str, jax.Array]":
        """Rows whose norms spread over four powers of ten."""
        key_size, key_rows = jax.random.split(key)
        size = 10.0 ** jax.random.uniform(key_size, (self.num_clients, 1), minval=-2, maxval=2)
        rows = (size * jax.random.normal(key_rows, (self.num_clients, self.dim))).astype(
            jnp.dtype(self.dtype)
        )
        if not self.pytree:
            return rows
        third = self.dim // 3 // 2 * 2
        return {
            "bias": rows[:, 0],
            "matrix": rows[:, 1 : 1 + third].reshape(self.num_clients, third // 2, 2),
            "rest": rows[:, 1 + third :],
        }


CASES = (
    Case("one_client", 1, 33),
    Case("pytree", 12, 301, pytree=True),
    Case("float16", 16, 257, dtype="float16"),
    Case("bfloat16", 16, 257, dtype="bfloat16", pytree=True),
    Case("wide", 4, 100_003),
    Case("many", 1000, 17),
    Case("no_client", 0, 20),
)
