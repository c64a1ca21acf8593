"""Dordis, a row of Table I: SecAgg whose noise is what those who respond need, no more where fewer
drop out than may.

There clients add noise in parts, and those that turn out to be too many are taken back by their
seeds in a message of its own. Here the ideal sum has the noise that is left, so that a round is the
same Gaussian mechanism whoever responds.

Source: reference 13 of Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy
and Straggler Resilience"; its ideal form is ours.
"""

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _keys
from fljax.schemes.central import round as central
from fljax.schemes.uploads import ideal_sums
from fljax.schemes.uploads import round as uploads
from fljax.server.rounds import Round


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


SCHEME = uploads.scheme(
    summary="secure aggregation by masks, noise taken back by dropouts; unit: client",
    Config=ideal_sums.Config,
    make=uploads.maker(hide, links="peers"),
    normals=lambda config, num_params: config.parties * num_params,
)
