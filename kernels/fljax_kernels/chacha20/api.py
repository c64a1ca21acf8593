"""ChaCha20 as a generator of `jax.random`, and its block function.

A typed key is the cipher's key of 256 bits. What is drawn from it is told apart by the nonce, and
by the counter within:

| what | nonce | counter | of each block |
|---|---|---|---|
| bits of a width | 1, width, 0 | number of the block | all 16 words |
| `split` | 2, 0, 0 | number of the new key | the first 8 words |
| `fold_in` | 3, 0, 0 | the folded number | the first 8 words |
| `jax.random.key(seed)` | 4, 0, 0 | 0, under a key of the seed's bits | the first 8 words |

Of n numbers, number d is word d // b of block d % b, where b = ceil(n / 16): RFC 8439's stream in
another order, so that words lie in memory as the cipher leaves them. Numbers of 64 bits take two
words, the high ones first and then the low ones; those of 8 and 16 take the low bits of one.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _platforms
from fljax_kernels.chacha20 import cipher

BYTES = 32  # of a key
_BITS, _SPLIT, _FOLD_IN, _SEED = range(1, 5)
_KEY_WORDS = 8
_FEWEST = 2**16  # blocks of a draw that pay for a kernel of their own


def block(
    key: jax.Array, counter: jax.Array | int, nonce: Sequence[jax.Array | int] = (0, 0, 0)
) -> jax.Array:
    """The block function of RFC 8439.

    Args:
      key: uint32 `[8]`, little-endian words. counter: uint32 `[...]`. nonce: 3 words below 2**32.

    Returns:
      uint32 `[16, ...]`, the words of each block.

    Source: RFC 8439, section 2.3.
    """
    words = [jnp.asarray(word, jnp.uint32) for word in nonce]
    if len(words) != 3 or jnp.shape(key) != (_KEY_WORDS,):
        raise ValueError(
            f"Expected a key of shape (8,) and 3 words of nonce, got shape {jnp.shape(key)} and "
            f"{len(words)}."
        )
    return jnp.stack(cipher.blocks(jnp.asarray(key), jnp.asarray(counter, jnp.uint32), words))


def _nonce(purpose: int, width: int = 0) -> list[np.uint32]:
    return [np.uint32(purpose), np.uint32(width), np.uint32(0)]


def _keys(key: jax.Array, counter: jax.Array, purpose: int) -> jax.Array:
    """Data of new keys `[..., 8]`, one for each counter `[...]`."""
    return jnp.stack(cipher.blocks(key, counter, _nonce(purpose))[:_KEY_WORDS], axis=-1)


def _seed(seed: jax.Array) -> jax.Array:
    wide = seed.dtype.itemsize > 4
    high = lax.shift_right_logical(seed, seed.dtype.type(32)) if wide else jnp.zeros_like(seed)
    zeros = jnp.zeros(_KEY_WORDS - 2, jnp.uint32)
    both = jnp.stack([seed.astype(jnp.uint32), high.astype(jnp.uint32)])
    return _keys(jnp.concatenate([both, zeros]), jnp.uint32(0), _SEED)


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    counter = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return _keys(key, counter, _SPLIT)


def _fold_in(key: jax.Array, data: jax.Array | int) -> jax.Array:
    return _keys(key, jnp.asarray(data).astype(jnp.uint32), _FOLD_IN)


def words(key: jax.Array, counter: jax.Array, width: int = 32) -> tuple[jax.Array, ...]:
    """What draws of numbers of `width` bits are made of: 16 arrays uint32 `[b]`.

    Args:
      key: data uint32 `[8]`, or `[8, b]` of each block. counter: uint32 `[b]`.
    """
    return cipher.blocks(key, counter, _nonce(_BITS, width))


def _by_loop(key: jax.Array, count: int, width: int) -> jax.Array:
    """The words of draws of one key, uint32 `[16 * count]`."""
    return jnp.concatenate(words(key, lax.iota(jnp.uint32, count), width))


def _by_pallas(key: jax.Array, count: int, width: int) -> jax.Array:
    """The same, on accelerators by a kernel that writes each word once."""
    by_loop = functools.partial(_by_loop, count=count, width=width)
    if count < _FEWEST:
        return by_loop(key)
    from fljax_kernels.chacha20 import pallas  # which takes its time to import

    @jax.custom_batching.custom_vmap
    def of_one(key: jax.Array) -> jax.Array:
        nonce = tuple(int(word) for word in _nonce(_BITS, width))
        forms = {
            platform: lambda key, platform=platform: pallas.words(
                key, count, nonce, platform
            ).reshape(-1)
            for platform in pallas.ROWS
        }
        return _platforms.choose(key, cpu=by_loop, default=forms["cuda"], tpu=forms["tpu"])

    @of_one.def_vmap
    def of_many(size: int, batched: list[bool], keys: jax.Array) -> tuple[jax.Array, bool]:
        return jax.vmap(by_loop)(keys), True

    return of_one(key)


def _random_bits(
    key: jax.Array,
    bit_width: int,
    shape: tuple[int, ...],
    stream: Callable[[jax.Array, int, int], jax.Array] = _by_loop,
) -> jax.Array:
    if bit_width not in (8, 16, 32, 64):
        raise ValueError(f"Expected bit_width to be 8, 16, 32 or 64, got {bit_width}.")
    size = math.prod(shape)
    num = size * (2 if bit_width == 64 else 1)
    count = -(-num // cipher.WORDS)
    if count > 2**32:
        raise ValueError(f"Expected at most 2**36 words of one key, got {num}.")
    drawn = stream(key, count, bit_width)[:num]
    if bit_width == 64:
        high, low = drawn[:size].astype(jnp.uint64), drawn[size:].astype(jnp.uint64)
        drawn = (high << np.uint64(32)) | low
    return drawn.astype(jnp.dtype(f"uint{bit_width}")).reshape(shape)


_define = functools.partial(
    jax.extend.random.define_prng_impl,
    key_shape=(_KEY_WORDS,),
    seed=_seed,
    split=_split,
    fold_in=_fold_in,
)
IMPL = _define(random_bits=_random_bits, name="chacha20", tag="cc20")
"""What `jax.random.key(seed, impl=IMPL)` and `jax.random.wrap_key_data(data, impl=IMPL)` take: all
of `jax.random` draws from such keys, and so does every kernel here.

Guarantee: as far as ChaCha20 is a pseudorandom function, draws of keys that differ, and a key's
draws, splits and folds, cannot be told from independent uniform bits by who has not got the key.
They are integers: the same on any device, mesh and platform, alone, under `vmap` and under `jit`. A
key made of a seed has no more than the seed's bits: `key` takes 32 secret bytes. JAX keeps keys in
memory as any array, and computes in no constant time: whoever reads the process has them.

Source: RFC 8439 (Nir, Langley), "ChaCha20 and Poly1305 for IETF Protocols".
"""


PALLAS_IMPL = _define(
    random_bits=functools.partial(_random_bits, stream=_by_pallas),
    name="chacha20_pallas",
    tag="cc20p",
)
"""As `IMPL`, to the same bits: draws of a million numbers and more of one key, on TPUs and CUDA, by
a Pallas kernel that writes each word once, where XLA's loop moves twenty times that. It has run
on an H200, to the same bits; for TPUs it has been compiled, and run by Pallas's interpreter alone:
where it first runs, hold a draw against `IMPL`'s.
"""


def is_kind(key: Any) -> bool:
    """Whether `key` is a typed key of `IMPL` or `PALLAS_IMPL`, whose bits are the same."""
    return key.dtype in _dtypes()


def has_kernel(key: Any, size: int) -> bool:
    """Whether accelerators draw `size` numbers of 32 bits of this key by a kernel of their own."""
    return key.dtype == _dtypes()[1] and -(-size // cipher.WORDS) >= _FEWEST


@functools.cache
def _dtypes() -> tuple[Any, ...]:
    made = (functools.partial(jax.random.key, 0, impl=impl) for impl in (IMPL, PALLAS_IMPL))
    return tuple(jax.eval_shape(make).dtype for make in made)


def key(secret: bytes) -> jax.Array:
    """A typed key `[]` of 32 secret bytes, such as `secrets.token_bytes(32)`.

    Raises:
      ValueError: these are not 32 bytes.
    """
    if not isinstance(secret, bytes) or len(secret) != BYTES:
        shown = f"{len(secret)} of them" if isinstance(secret, bytes) else type(secret).__name__
        raise ValueError(f"Expected 32 secret bytes, got {shown}.")
    data = np.frombuffer(secret, "<u4").astype(np.uint32)
    made: jax.Array = jax.random.wrap_key_data(jnp.asarray(data), impl=IMPL)
    return made
