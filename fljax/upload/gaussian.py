"""Central Gaussian noise as a gradient transformation."""

import secrets
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import fljax_kernels
from fljax import _validate
from fljax_kernels.chacha20 import api as chacha20


class NoiseState(NamedTuple):
    """key: `[]` typed PRNG key, split at each update, so that no noise is drawn twice."""

    key: jax.Array


def _drawn() -> jax.Array:
    key = chacha20.key(secrets.token_bytes(chacha20.BYTES))
    if isinstance(key, jax.core.Tracer):
        raise ValueError(
            "Expected prng_key to be a typed PRNG key inside jax.jit, got prng_key=None."
        )
    if jax.process_count() > 1:
        raise ValueError(
            f"Expected prng_key to be a typed PRNG key, the same in all {jax.process_count()} "
            "processes, got prng_key=None."
        )
    return key


def gaussian_privatizer(
    *, stddev: float | jax.Array, prng_key: jax.Array | None = None
) -> optax.GradientTransformation:
    """Adds independent Gaussian noise to every entry of the updates.

    Guarantee: on a sum which one privacy unit moves by at most s in L2 norm
    (`clipped_grad(...).sensitivity(relation)`), each update is the Gaussian mechanism with noise
    multiplier stddev / s; all that follows in an `optax.chain` is post-processing. Noise is drawn
    and added in float32 at least and cast last; idealisation and limits are those of
    `fljax_kernels.gaussian_noise`. Give it the SUM, or the sum divided by a public constant which
    `stddev` and s are divided by too; never a mean over the batch that was really drawn.

    Args:
      stddev: noise_multiplier * s. Absolute, in the unit of the updates. >= 0.
      prng_key: typed key. The noise of an update is a function of this key and the number of
        updates so far: a replay from an older state draws the same noise again. None: a ChaCha20
        key of 256 bits of the operating system, drawn once, by this call; two states from `init`
        share it.

    Returns:
      `init(params) -> NoiseState`; `update(updates, state, params=None) -> (noisy, state)`; shapes
      and dtypes stay.

    Raises:
      ValueError: `stddev` is negative or not finite, `prng_key` is not a typed key, or there is
        none inside `jax.jit`, which would draw one once and add the same noise in every call, or in
        one of several processes, where each would draw its own.

    Source: Abadi et al. (2016), arXiv:1607.00133, Algorithm 1, "Add noise".
    """
    if not isinstance(stddev, jax.core.Tracer):
        _validate.non_negative(stddev=float(np.asarray(stddev)))
    if prng_key is None:
        prng_key = _drawn()
    _validate.typed_key(prng_key=prng_key)

    def init(params: Any) -> NoiseState:
        del params
        # A key of its own: the caller may donate the state and keep the key.
        return NoiseState(jax.random.fold_in(prng_key, 0))

    def update(updates: Any, state: NoiseState, params: Any = None) -> tuple[Any, NoiseState]:
        del params
        key, noise_key = jax.random.split(state.key)
        return fljax_kernels.add_gaussian_noise(noise_key, updates, stddev), NoiseState(key)

    return optax.GradientTransformation(init, update)
