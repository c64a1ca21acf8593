"""A decoder that tells each next token, as a flax nnx module: RMSNorm, rotary positions,
grouped-query attention, gated MLP, one table that embeds tokens and tells them.

Layers are stacked, `[layers, ...]`, and run in one `scan`, so that a program's size does not grow
with their number. Weights are held in `param_dtype` and meet the data in `dtype`; norms, softmax
and logits are computed in float32.

Sources: RMSNorm: Zhang and Sennrich (2019), arXiv:1910.07467. Rotary positions: Su et al. (2021),
arXiv:2104.09864. Grouped-query attention: Ainslie et al. (2023), arXiv:2305.13245. Gated MLP:
Shazeer (2020), arXiv:2002.05202. Shapes: Gemma 3 Technical Report (2025), arXiv:2503.19786; The
Llama 3 Herd of Models (2024), arXiv:2407.21783; Qwen3 Technical Report (2025), arXiv:2505.09388;
and the `config.json` published with each.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from fljax import _validate
from fljax.types import Params
from fljax_kernels.per_example.reference import wide


class Stretch(NamedTuple):
    """How Llama 3 stretches rotary positions beyond the length it was first trained on.

    Waves that turn at least `high` times within `original` positions stay; those that turn at most
    `low` times become `factor` times longer; in between the two are blended.
    """

    factor: float
    low: float
    high: float
    original: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape(_validate.Checked):
    """What a decoder is built of; public numbers.

    Raises:
      ValueError: a number is out of its range, or heads cannot be grouped.
    """

    vocabulary: int
    """Tokens are in `[0, vocabulary)`."""
    width: int
    """Of the stream that layers read and add to."""
    hidden: int
    """Of the MLP."""
    layers: int
    heads: int
    """Of queries. A multiple of `kv_heads`."""
    kv_heads: int
    """Of keys and values, each shared by `heads / kv_heads` heads of queries."""
    head_width: int
    """Even: positions turn pairs of numbers."""
    rope_base: float
    """Longest wave of rotary positions / (2 pi), in tokens, as head_width grows."""
    rope_stretch: Stretch | None = None
    window: int | None = None
    """Tokens that a local layer sees: itself and those before it. None: all layers see all."""
    global_every: int = 1
    """Of so many layers the last sees all tokens, the others a window."""
    local_rope_base: float | None = None
    """`rope_base` of layers with a window. None: the same."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Of the gate."""
    norm_epsilon: float = 1e-6
    norm_of_queries: bool = False
    """RMSNorm of each head's queries and keys."""
    norm_after: bool = False
    """RMSNorm of what attention and MLP add, too."""
    scale_from_one: bool = False
    """Norms multiply by 1 + weight in place of weight."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by the root of `width`, rounded to the decoder's dtype."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(
            vocabulary=self.vocabulary,
            width=self.width,
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_width=self.head_width,
            global_every=self.global_every,
        )
        _validate.positive(rope_base=self.rope_base, norm_epsilon=self.norm_epsilon)
        _validate.one_of(tuple(_ACTIVATIONS), activation=self.activation)
        if self.window is not None:
            _validate.positive_int(window=self.window)
        if self.rope_stretch is not None:
            factor, low, high, original = self.rope_stretch
            _validate.positive(factor=factor, low=low, original=original)
            if not high > low:
                raise ValueError(f"Expected rope_stretch with high > low, got {self.rope_stretch}.")
        if self.local_rope_base is not None:
            _validate.positive(local_rope_base=self.local_rope_base)
        if self.heads % self.kv_heads:
            raise ValueError(
                "Expected heads to be a multiple of kv_heads, got "
                f"heads={self.heads} and kv_heads={self.kv_heads}."
            )
        if self.head_width % 2:
            raise ValueError(f"Expected head_width to be even, got {self.head_width}.")

    @property
    def num_params(self) -> int:
        """Numbers in a decoder of this shape."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        products = 2 * self.width * (queries + keys) + 3 * self.width * self.hidden
        norms = (4 if self.norm_after else 2) * self.width
        norms += 2 * self.head_width if self.norm_of_queries else 0
        return self.vocabulary * self.width + self.layers * (products + norms) + self.width

    def sees_all(self) -> np.ndarray:
        """Which layers have no window: bool `[layers]`."""
        number = np.arange(1, self.layers + 1)
        return (
            np.full(self.layers, True) if self.window is None else number % self.global_every == 0
        )


_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}

SHAPES = {
    "tiny": Shape(
        vocabulary=257,
        width=128,
        hidden=512,
        layers=4,
        heads=4,
        kv_heads=2,
        head_width=32,
        rope_base=10_000.0,
        norm_of_queries=True,
    ),
    "gemma3_1b": Shape(
        vocabulary=262_144,
        width=1152,
        hidden=6912,
        layers=26,
        heads=4,
        kv_heads=1,
        head_width=256,
        rope_base=1_000_000.0,
        window=512,
        global_every=6,
        local_rope_base=10_000.0,
        activation="gelu_tanh",
        norm_of_queries=True,
        norm_after=True,
        scale_from_one=True,
        scaled_embedding=True,
    ),
    "llama3.2_1b": Shape(
        vocabulary=128_256,
        width=2048,
        hidden=8192,
        layers=16,
        heads=32,
        kv_heads=8,
        head_width=64,
        rope_base=500_000.0,
        rope_stretch=Stretch(factor=32.0, low=1.0, high=4.0, original=8192),
        norm_epsilon=1e-5,
    ),
    "qwen3_0.6b": Shape(
        vocabulary=151_936,
        width=1024,
        hidden=3072,
        layers=28,
        heads=16,
        kv_heads=8,
        head_width=128,
        rope_base=1_000_000.0,
        norm_of_queries=True,
    ),
}


class RMSNorm(nnx.Module):
    """Divides by the root of the mean square of the last axis, in float32, and scales."""

    def __init__(self, width: int, shape: Shape, param_dtype: Any) -> None:
        start = jnp.zeros if shape.scale_from_one else jnp.ones
        self.scale = nnx.Param(start((width,), param_dtype))
        self.epsilon, self.offset = shape.norm_epsilon, float(shape.scale_from_one)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(wide(x.dtype))
        mean = jnp.mean(jnp.square(y), axis=-1, keepdims=True)
        scale = self.scale[...].astype(y.dtype) + self.offset
        scaled = y * jax.lax.rsqrt(mean + self.epsilon) * jnp.broadcast_to(scale, y.shape)
        return scaled.astype(x.dtype)


class _Positions(NamedTuple):
    """cos, sin: `[T, head_width / 2]`; seen: bool `[T, T]`, which tokens each looks at."""

    cos: jax.Array
    sin: jax.Array
    seen: jax.Array


class Attention(nnx.Module):
    """Each token looks at those before it, and at itself: `[T, width]` -> `[T, width]`."""

    def __init__(self, shape: Shape, dense: Callable[..., nnx.Linear], param_dtype: Any) -> None:
        queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        self.q = dense(shape.width, queries)
        self.k = dense(shape.width, keys)
        self.v = dense(shape.width, keys)
        self.o = dense(queries, shape.width)
        self.q_norm, self.k_norm = nnx.data(None), nnx.data(None)
        if shape.norm_of_queries:
            self.q_norm = RMSNorm(shape.head_width, shape, param_dtype)
            self.k_norm = RMSNorm(shape.head_width, shape, param_dtype)
        self.shape = shape

    def __call__(self, x: jax.Array, at: _Positions) -> jax.Array:
        length, shape = x.shape[0], self.shape
        q = self.q(x).reshape(length, shape.heads, shape.head_width)
        k = self.k(x).reshape(length, shape.kv_heads, shape.head_width)
        v = self.v(x).reshape(length, shape.kv_heads, shape.head_width)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = _turned(q, at), _turned(k, at)
        grouped = q.reshape(length, shape.kv_heads, -1, shape.head_width)
        scores = jnp.einsum("tkgh,skh->kgts", grouped, k, preferred_element_type=wide(x.dtype))
        scores = scores * shape.head_width**-0.5
        # The least float and not -inf: 0 * inf would be NaN in a gradient.
        hidden = jnp.broadcast_to(~at.seen, scores.shape)
        scores = jnp.where(hidden, jnp.finfo(scores.dtype).min, scores)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        return self.o(jnp.einsum("kgts,skh->tkgh", weights, v).reshape(length, -1))


class MLP(nnx.Module):
    """A gated layer: `[T, width]` -> `[T, width]`."""

    def __init__(self, shape: Shape, dense: Callable[..., nnx.Linear]) -> None:
        self.gate = dense(shape.width, shape.hidden)
        self.up = dense(shape.width, shape.hidden)
        self.down = dense(shape.hidden, shape.width)
        self.activation = shape.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(_ACTIVATIONS[self.activation](self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One layer: attention, then the MLP, each added to the stream."""

    def __init__(self, shape: Shape, dtype: Any, param_dtype: Any, *, rngs: nnx.Rngs) -> None:
        dense = functools.partial(
            nnx.Linear, use_bias=False, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        norm = functools.partial(RMSNorm, shape.width, shape, param_dtype)
        self.attention = Attention(shape, dense, param_dtype)
        self.mlp = MLP(shape, dense)
        self.before_attention, self.before_mlp = norm(), norm()
        self.after_attention, self.after_mlp = nnx.data(None), nnx.data(None)
        if shape.norm_after:
            self.after_attention, self.after_mlp = norm(), norm()

    def __call__(self, x: jax.Array, at: _Positions) -> jax.Array:
        added = self.attention(self.before_attention(x), at)
        x = x + (added if self.after_attention is None else self.after_attention(added))
        added = self.mlp(self.before_mlp(x))
        return x + (added if self.after_mlp is None else self.after_mlp(added))


class Decoder(nnx.Module):
    """Tokens `[T]` of ONE text to the logits of each next one, `[T, vocabulary]`, float32.

    Args:
      shape: of `SHAPES`, or one's own.
      rngs: for the initial weights: products LeCun normal, the table normal with standard
        deviation `width ** -0.5`.
      dtype: in which weights meet data. bfloat16 wants sums in float32, which XLA takes inside a
        product, and a master copy: leave `param_dtype` at float32.
      param_dtype: in which weights are held.
      remat: whether a layer's values are computed anew in the backward pass: memory of one layer's
        input a layer in place of all that is in it, for one more forward pass.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        rngs: nnx.Rngs,
        dtype: Any = jnp.float32,
        param_dtype: Any = jnp.float32,
        remat: bool = False,
    ) -> None:
        self.shape, self.dtype, self.remat = shape, dtype, remat
        table = nnx.initializers.normal(shape.width**-0.5)
        self.embedding = nnx.Param(
            table(rngs.params(), (shape.vocabulary, shape.width), param_dtype)
        )

        @nnx.split_rngs(splits=shape.layers)
        @nnx.vmap
        def stacked(rngs: nnx.Rngs) -> Block:
            return Block(shape, dtype, param_dtype, rngs=rngs)

        self.layers = stacked(rngs)
        self.norm = RMSNorm(shape.width, shape, param_dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        if not jnp.issubdtype(tokens.dtype, jnp.integer) or tokens.ndim != 1:
            raise ValueError(
                "Expected tokens [T], integers in [0, vocabulary), got "
                f"{tokens.dtype}{list(tokens.shape)}."
            )
        x = self.embedding[...][tokens].astype(self.dtype)
        if self.shape.scaled_embedding:
            x = x * jnp.asarray(math.sqrt(self.shape.width), self.dtype)
        far, near = positions(self.shape, tokens.shape[0], wide(self.dtype))
        graph, state = nnx.split(self.layers)

        def layer(x: jax.Array, mine: tuple[Any, jax.Array]) -> tuple[jax.Array, None]:
            state, sees_all = mine
            at = far if near is None else jax.tree.map(_choose(sees_all), far, near)
            return nnx.merge(graph, state)(x, at), None

        run = jax.checkpoint(layer) if self.remat else layer
        x, _ = jax.lax.scan(run, x, (state, jnp.asarray(self.shape.sees_all())))
        table = self.embedding[...].astype(self.dtype)
        return jnp.einsum("td,vd->tv", self.norm(x), table, preferred_element_type=wide(self.dtype))


def _choose(first: jax.Array) -> Callable[[jax.Array, jax.Array], jax.Array]:
    return lambda a, b: jax.lax.select(jnp.broadcast_to(first, a.shape), a, b)


def positions(shape: Shape, length: int, dtype: Any) -> tuple[_Positions, _Positions | None]:
    """(of layers that see all tokens, of those with a window or None where there are none)."""
    ahead = np.arange(length)[:, None] - np.arange(length)[None]
    far = _positions(shape, shape.rope_base, ahead >= 0, dtype)
    if shape.window is None:
        return far, None
    base = shape.local_rope_base or shape.rope_base
    return far, _positions(shape, base, (ahead >= 0) & (ahead < shape.window), dtype)


def _positions(shape: Shape, base: float, seen: np.ndarray, dtype: Any) -> _Positions:
    # On the host in float64: a float32 angle of token 100,000 is known to two digits only.
    half = shape.head_width // 2
    turns = base ** (-np.arange(half) / half) / (2 * np.pi)  # a token
    # Layers with a window never see far, and keep their positions as they are.
    if shape.rope_stretch is not None and base == shape.rope_base:
        factor, low, high, original = shape.rope_stretch
        blend = np.clip((turns * original - low) / (high - low), 0, 1)
        turns = turns * blend + turns / factor * (1 - blend)
    angles = 2 * np.pi * np.arange(len(seen))[:, None] * turns[None]
    return _Positions(
        jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype), jnp.asarray(seen)
    )


def _turned(x: jax.Array, at: _Positions) -> jax.Array:
    """Pairs `(i, i + half)` of the last axis of `[T, heads, head_width]`, turned by position."""
    a, b = jnp.split(x.astype(at.cos.dtype), 2, axis=-1)
    cos, sin = (jnp.broadcast_to(z[:, None], a.shape) for z in (at.cos, at.sin))
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def make(
    name: str,
    example_shape: Sequence[int],
    num_classes: int,
    *,
    rngs: nnx.Rngs,
) -> Decoder:
    """The decoder of `SHAPES[name]` for tokens `[T]` of `num_classes` symbols, whatever number of
    them the published one has.

    "tiny" computes in float32; the others in bfloat16, with float32 weights, layer by layer anew.
    """
    if len(example_shape) != 1:
        raise ValueError(
            f"Expected example_shape to be [tokens], got example_shape={tuple(example_shape)}."
        )
    shape = dataclasses.replace(SHAPES[name], vocabulary=num_classes)
    small = name == "tiny"
    dtype = jnp.float32 if small else jnp.bfloat16
    return Decoder(shape, rngs=rngs, dtype=dtype, remat=not small)


def specs(
    params: Params,
    *,
    fsdp: str | None = "fsdp",
    tensor: str | None = "tensor",
    mesh: Mesh | AbstractMesh | None = None,
) -> Params:
    """How a decoder's arrays are spread over a mesh: a tree of PartitionSpec like `params`.

    A matrix is cut along `tensor` where heads or the MLP's hidden numbers lie, and along `fsdp` on
    its other side; matrices of `lora` are cut where the layer's are, and not along their rank;
    scales of norms are whole everywhere. Layers are not cut.

    Args:
      params: of `models.functional` or `models.functions.parted` of a `Decoder`, trained or frozen.
      fsdp, tensor: names of axes of the mesh. None: not cut along that.
      mesh: a side of an array that an axis of it does not divide stays whole. None: an odd one
        does, such as the 257 symbols of "tiny".

    Source: Shoeybi et al. (2019), arXiv:1909.08053, Section 3; Rajbhandari et al. (2019),
      arXiv:1910.02054, stage 3.
    """

    def cut(leaf: jax.Array, *axes: str | None) -> PartitionSpec:
        parts = [1 if axis is None else 2 if mesh is None else mesh.shape[axis] for axis in axes]
        sides = zip(leaf.shape, axes, parts, strict=True)
        return PartitionSpec(*(axis if side % n == 0 else None for side, axis, n in sides))

    def spec(path: tuple[Any, ...], leaf: jax.Array) -> PartitionSpec:
        names = [step.key for step in path]
        if names[-1] == "embedding":
            return cut(leaf, tensor, fsdp)
        into = {"q", "k", "v", "gate", "up"} & set(names)
        back = {"o", "down"} & set(names)
        if not into and not back:
            return PartitionSpec()
        first, last = (fsdp, tensor) if into else (tensor, fsdp)
        cuts = {"kernel": (first, last), "a": (first, None), "b": (None, last)}
        return cut(leaf, None, *cuts[names[-1]])

    return jax.tree_util.tree_map_with_path(spec, params)
