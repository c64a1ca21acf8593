"""Dordis, a row of Table I: SecAgg whose noise is what those who respond need, no more where fewer
drop out than may.

There clients add noise in parts, and those that turn out to be too many are taken back by their
seeds, which the clients have shared among each other. The scheme has the ideal sum with the noise
that is left, so that a round is the same Gaussian mechanism whoever responds; `part_stddevs` and
`part` are what its parties draw, for `timing`.

Source: reference 13 of Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy
and Straggler Resilience"; its ideal form is ours.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys
from fljax.schemes.central import round as central
from fljax.schemes.uploads import ideal_sums
from fljax.schemes.uploads import round as uploads
from fljax.server.rounds import Round
from fljax_kernels import chacha20


def hide(config: ideal_sums.Config) -> uploads.Hide:
    """Noise of all responders, of which those that do not collude add up to what the event says.

    A round to which fewer than num_parties - max_stragglers respond is aborted.
    """
    stddev, colluders = central.stddev(config), config.max_colluders

    def hidden(here: Round, sent: uploads.Uploads) -> uploads.Hidden:
        responders = sent.num_responders.astype(jnp.float32)
        # In a round that counts somebody honest responds, since C + S < N.
        honest = jnp.maximum(responders - colluders, 1)
        total = jnp.float32(stddev) * jnp.sqrt(responders / honest)
        key = here.server_key(_keys.Purpose.NOISE)
        noisy = fljax_kernels.add_gaussian_noise(key, sent.total, total)
        completed = sent.num_responders >= config.parties - config.max_stragglers
        shown = jax.tree.map(lambda leaf: jnp.where(completed, leaf, 0), noisy)
        return uploads.Hidden(shown, completed)

    return hidden


def part_stddevs(num_clients: int, max_dropouts: int, max_colluders: int) -> np.ndarray:
    """`[S + 1]`: of one client's parts, of a total noise of standard deviation 1: where d clients
    are gone, the first d + 1 parts of the others but the colluders make that.

    Raises:
      ValueError: nobody is left.
    """
    honest = num_clients - max_colluders - np.arange(max_dropouts + 1)
    if honest[-1] < 1:
        raise ValueError(
            f"Expected max_dropouts + max_colluders < num_clients={num_clients}, got "
            f"max_dropouts={max_dropouts} and max_colluders={max_colluders}."
        )
    return np.asarray(np.sqrt(np.diff(1 / honest, prepend=0.0)))


def part(seed: bytes, size: int, stddev: float) -> np.ndarray:
    """Int32 `[size]`, one part of a client's noise, from a seed of 32 bytes: normals that are
    rounded, since masks hide integers. For timing: what rounding costs in privacy is not counted.
    """
    key = jax.random.wrap_key_data(jnp.asarray(np.frombuffer(seed, "<u4")), impl=chacha20.IMPL)
    return np.asarray(_rounded(key, size, jnp.float32(stddev)))


@functools.partial(jax.jit, static_argnums=1)
def _rounded(key: jax.Array, size: int, stddev: jax.Array) -> jax.Array:
    noise = fljax_kernels.add_gaussian_noise(key, jnp.zeros(size, jnp.float32), stddev)
    return jnp.rint(noise).astype(jnp.int32)


SCHEME = uploads.scheme(
    summary="secure aggregation by masks, noise taken back by dropouts; unit: client",
    Config=ideal_sums.Config,
    make=uploads.maker(hide, links="peers"),
    normals=lambda config, num_params: config.parties * num_params,
)
