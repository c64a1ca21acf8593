"""An ideal secure sum: the server learns the sum of all uploads and nothing else, or nothing at
all.

No cryptography is run: what real protocols (homomorphic encryption, secret sharing, coded
computation) promise is taken for granted, so that their noise, links and costs can be compared.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _validate
from fljax.types import Params


class SecureSum(NamedTuple):
    """total: params-like, zeros if the round was aborted. completed: bool `[]`."""

    total: Params
    completed: jax.Array


def share_stddev(
    stddev: float, *, num_clients: int, max_colluders: int, max_stragglers: int
) -> float:
    """Noise stddev of one client such that N - C - S honest contributions add up to `stddev`.

    Guarantee: with at most C colluders, who know their own noise, and at least N - S responders,
    the sum holds noise of at least `stddev` that the adversary does not know.

    Raises:
      ValueError: nobody honest may be left, C + S >= N.

    Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
      Resilience", the baselines of section V, where the standard deviation is printed in the place
      of the variance.
    """
    _validate.non_negative(stddev=stddev)
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative_int(max_colluders=max_colluders, max_stragglers=max_stragglers)
    left = num_clients - max_colluders - max_stragglers
    if not left >= 1:
        raise ValueError(
            f"Expected max_colluders + max_stragglers < {num_clients} clients for a secure sum, "
            f"got max_colluders={max_colluders} and max_stragglers={max_stragglers}: nobody honest "
            "adds noise."
        )
    return stddev / math.sqrt(left)


def secure_sum(
    key: jax.Array,
    update_sum: Params,
    num_responders: jax.Array,
    *,
    stddev: float,
    least_responders: int,
) -> SecureSum:
    """The sum of the responders' updates, each with its own N(0, stddev**2); aborted if too few
    respond.

    Guarantee: the total is what the ideal functionality releases; its noise is drawn at once, as
    the sum of independent normals is one. An aborted round releases nothing but the fact.

    Args:
      key: typed key, used once.
      update_sum: float32 tree, the responders' clipped updates added up.
      num_responders: integer `[]`.
      stddev: one client's, see `share_stddev`. least_responders: the noise is sized for so many, >=
        1.

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.non_negative(stddev=stddev)
    _validate.positive_int(least_responders=least_responders)
    completed = num_responders >= least_responders
    noise_stddev = jnp.float32(stddev) * jnp.sqrt(jnp.asarray(num_responders).astype(jnp.float32))
    noisy = fljax_kernels.add_gaussian_noise(key, update_sum, noise_stddev)
    return SecureSum(jax.tree.map(lambda leaf: jnp.where(completed, leaf, 0), noisy), completed)
