"""A small vision transformer, which takes ONE image."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

_PATCH, _WIDTH, _HEADS, _BLOCKS = 4, 96, 3, 2


class SmallViT(nnx.Module):
    """Patches of 4 x 4, two blocks of width 96 with three heads and an MLP twice as wide, layer
    norms before each, and one dense layer on the mean token.

    161,578 parameters on `[32, 32, 3]` with 10 classes. Sides are any that 4 divides.

    Source: Dosovitskiy et al. (2021), An image is worth 16x16 words, arXiv:2010.11929, section 3.1;
      the mean token in place of a class token.
    """

    def __init__(self, example_shape: Sequence[int], num_classes: int, *, rngs: nnx.Rngs) -> None:
        if len(example_shape) != 3 or example_shape[0] % _PATCH or example_shape[1] % _PATCH:
            raise ValueError(
                f"Expected example_shape to be [height, width, channels] with sides that {_PATCH} "
                f"divides, got example_shape={tuple(example_shape)}."
            )
        self.shape = height, width, channels = tuple(example_shape)
        self.grid = (height // _PATCH, width // _PATCH)
        tokens = self.grid[0] * self.grid[1]
        self.patches = nnx.Linear(_PATCH * _PATCH * channels, _WIDTH, rngs=rngs)
        self.places = nnx.Param(nnx.initializers.normal(0.1)(rngs.params(), (tokens, _WIDTH)))
        self.blocks = nnx.List([_Block(rngs) for _ in range(_BLOCKS)])
        self.norm = _norm(rngs)
        self.logits = nnx.Linear(_WIDTH, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        if x.shape != self.shape:  # another grid of as many numbers would be read, too
            raise ValueError(f"Expected x of shape {self.shape}, got x of shape {x.shape}.")
        down, across = self.grid
        x = x.reshape(down, _PATCH, across, _PATCH, -1)
        x = x.transpose(0, 2, 1, 3, 4).reshape(down * across, -1)
        x = self.patches(x) + self.places[...]
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x).mean(0)[None])[0]


class _Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm1 = _norm(rngs)
        self.qkv = nnx.Linear(_WIDTH, 3 * _WIDTH, rngs=rngs)
        self.out = nnx.Linear(_WIDTH, _WIDTH, rngs=rngs)
        self.norm2 = _norm(rngs)
        self.up = nnx.Linear(_WIDTH, 2 * _WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * _WIDTH, _WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        tokens = len(x)
        qkv = self.qkv(self.norm1(x)).reshape(tokens, _HEADS, -1)
        query, key, value = jnp.split(qkv, 3, -1)
        alike = jnp.einsum("thd,shd->hts", query, key) / query.shape[-1] ** 0.5
        mixed = jnp.einsum("hts,shd->thd", jax.nn.softmax(alike), value)
        x = x + self.out(mixed.reshape(tokens, _WIDTH))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


def _norm(rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(_WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
