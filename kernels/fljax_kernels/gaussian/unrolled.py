"""The same draws with the cipher written out: on a CPU a third of the time of `jax.random` for long
leaves.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _platforms, _threefry
from fljax_kernels.chacha20 import api as chacha20
from fljax_kernels.chacha20 import cipher
from fljax_kernels.gaussian import reference

LEAST = 1024  # numbers in a leaf that is drawn on its own
_MOST = 2**32  # positions have 32 bits


def half_variance_normals(key: jax.Array, tree: Any) -> Any:
    """As `reference.half_variance_normals`, bit for bit: a tree that this form does not cover goes
    there whole.

    Small leaves are drawn together, under one cipher: many short ones cost time, and as much to
    compile each.
    """
    leaves, treedef = jax.tree.flatten(tree)
    sizes = [math.prod(jnp.shape(leaf)) for leaf in leaves]
    if any(
        reference.drawn_in(leaf) != np.float32 or size >= _MOST
        for leaf, size in zip(leaves, sizes, strict=True)
    ):
        return reference.half_variance_normals(key, tree)
    if chacha20.is_kind(key):
        together = functools.partial(_under_one_cipher, tree=tree)
        if not any(chacha20.has_kernel(key, size) for size in sizes):
            return together(key)
        apart = functools.partial(reference.half_variance_normals, tree=tree)
        return _platforms.choose(key, cpu=together, default=apart)
    if not _threefry.covers(key):
        return reference.half_variance_normals(key, tree)
    shapes = tuple(jnp.shape(leaf) for leaf in leaves)
    # For accelerators JAX writes the cipher out itself, and XLA draws while it adds.
    for_cpus, for_others = (
        functools.partial(form, shapes=shapes) for form in (_written_out, _by_jax)
    )
    return jax.tree.unflatten(treedef, _platforms.choose(key, cpu=for_cpus, default=for_others))


# Each form is a single equation of its choice: JAX goes over all equations of a choice once more.
# Outside jit a tree of the same shapes is traced once.
@functools.partial(jax.jit, static_argnames="shapes")
def _by_jax(key: jax.Array, shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    like = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    drawn: list[jax.Array] = reference.half_variance_normals(key, like)
    return drawn


@functools.partial(jax.jit, static_argnames="shapes")
def _written_out(key: jax.Array, shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    sizes = [math.prod(shape) for shape in shapes]
    words = jax.random.key_data(
        jax.vmap(lambda i: _threefry.fold_in(key, i))(np.arange(len(shapes), dtype=np.uint32))
    )
    draws = dict(_together(words, {i: size for i, size in enumerate(sizes) if size < LEAST}))
    for i, size in enumerate(sizes):
        if size >= LEAST:
            flat = _threefry.half_variance_normals(words[i], jax.lax.iota(jnp.uint32, size))
            draws[i] = flat if len(shapes[i]) == 1 else _in_memory(flat)
    return [draws[i].reshape(shape) for i, shape in enumerate(shapes)]


def _under_one_cipher(key: jax.Array, tree: Any) -> Any:
    """With ChaCha20 keys: the blocks of all leaves in one loop, which is compiled once."""
    leaves, treedef = jax.tree.flatten(tree)
    sizes = [math.prod(jnp.shape(leaf)) for leaf in leaves]
    counts = [-(-size // cipher.WORDS) for size in sizes]
    if not sum(counts):
        return jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.float32), tree)
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(len(leaves), dtype=np.uint32))
    of_block = [
        jnp.broadcast_to(data[:, None], (data.size, count))
        for data, count in zip(jax.random.key_data(keys), counts, strict=True)
    ]
    number = [jax.lax.iota(jnp.uint32, count) for count in counts]
    drawn = chacha20.words(jnp.concatenate(of_block, axis=1), jnp.concatenate(number))
    ends = np.cumsum(counts)
    shaped = []
    for leaf, size, end, count in zip(leaves, sizes, ends, counts, strict=True):
        flat = jnp.concatenate([word[end - count : end] for word in drawn])[:size]
        shaped.append(_threefry.half_variance_of(flat).reshape(jnp.shape(leaf)))
    return jax.tree.unflatten(treedef, shaped)


def _together(words: jax.Array, sizes: dict[int, int]) -> Iterator[tuple[int, jax.Array]]:
    """Leaf and its numbers, flat, one by one."""
    owner = np.repeat(list(sizes), list(sizes.values())).astype(np.int32)
    position = np.concatenate(
        [np.arange(size, dtype=np.uint32) for size in sizes.values()] or [np.zeros(0, np.uint32)]
    )
    drawn = _threefry.half_variance_normals(words[owner].T, jnp.asarray(position))
    start = 0
    for i, size in sizes.items():
        yield i, jax.lax.slice(drawn, (start,), (start + size,))
        start += size


def _in_memory(normals: jax.Array) -> jax.Array:
    """The same numbers, as the carry of a loop that never turns, which XLA does not fuse across.

    Fused with a reshape, the cipher would run over the innermost axis: one of 3 colours leaves a
    vector unit idle, at five times the time. An optimization barrier does not help: on a CPU XLA
    drops it before it fuses.
    """
    never = normals[0] > 100  # no draw is beyond 3.9; XLA does not know that
    return jax.lax.while_loop(
        lambda c: c[1], lambda c: (-c[0], jnp.zeros_like(c[1])), (normals, never)
    )[0]
