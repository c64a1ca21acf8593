"""What hides the uploads of clients of a disguised model: own noise, and noise shared by pairs."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax.upload import pair_noise, split_noise
from fljax_kernels.pairwise import graphs

Noise = Literal["paper", "upload_gaussian", "r0_gaussian", "oracle_clip", "naive", "central"]


class Uploads(NamedTuple):
    """How clients hide what they send.

    noise: the mode. own_stddev: of a client's own noise; of the sum's, where a server adds it.
    edges: `[E, 2]`, who shares noise with whom. pair_stddev: of that noise. protocol: draw every
    client's upload; else what cancels is left out, and one backward pass serves where no triple is
    clipped. mask_all: shared noise on Psi and Phi too, where the mode has none there.
    """

    noise: Noise
    own_stddev: float
    edges: np.ndarray | None = None
    pair_stddev: float = 0.0
    protocol: bool = False
    mask_all: bool = False


def cohort_noise(uploads: Uploads, count: int) -> pair_noise.NoiseFun:
    """Noise `[K, ...]` on every client's upload; only where the mode puts it."""
    own = uploads.own_stddev
    edges = graphs.complete(count) if uploads.edges is None else uploads.edges
    if uploads.noise == "upload_gaussian" or uploads.noise == "r0_gaussian":
        return pair_noise.cohort_noise(
            edges, num_clients=count, own_stddev=own, pair_stddev=uploads.pair_stddev
        )
    uniform = split_noise.cohort_noise(
        edges, num_clients=count, own_stddev=own, pair_stddev=uploads.pair_stddev
    )
    masks = pair_noise.cohort_noise(
        edges, num_clients=count, own_stddev=0.0, pair_stddev=uploads.pair_stddev
    )

    def on_gradient(key: jax.Array, round_index: Any, like: Any) -> Any:
        rows = uniform(key, round_index, like._replace(psi=(), phi=(), psi_head=(), psi_bias=()))
        rest = like._replace(body=[], head=[])
        # Another stream than the gradient's: the same one would give both away in their difference.
        hidden = masks(jax.random.fold_in(key, 1), round_index, rest) if uploads.mask_all else None
        zeros = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), rest)
        return (zeros if hidden is None else hidden)._replace(body=rows.body, head=rows.head)

    return on_gradient


def sum_of_noise(uploads: Uploads, key: jax.Array, like: Any, count: int) -> Any:
    """All clients' own noise on their sum, drawn at once where its law allows; pair noise has
    cancelled.
    """
    noise, own = uploads.noise, uploads.own_stddev
    zeros = jax.tree.map(jnp.zeros_like, like)
    if noise in ("upload_gaussian", "r0_gaussian", "naive"):
        return fljax_kernels.add_gaussian_noise(key, zeros, own * float(np.sqrt(count)))
    if noise == "central":
        return fljax_kernels.add_gaussian_noise(key, zeros, own)
    return split_noise.sum_of_uniform(key, like, own, count)
