"""Local DP: each client's upload carries enough noise to be published alone.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", its references 4 and 5, the baseline.
"""

import dataclasses

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _keys
from fljax.accounting.shared_noise import adversaries
from fljax.schemes import base, exact
from fljax.schemes.central import round as central
from fljax.schemes.uploads import round as uploads
from fljax.server import costs as costs_lib
from fljax.server.rounds import Round
from fljax.upload import exact_noise

# The mean's noise falls with the root of the clients, so there are many; views are unsampled
# Gaussians, which "gdp" counts exactly.
START = uploads.START | {
    "scheme": {
        "num_parties": None,
        "l2_clip_norm": 1.0,
        "local_learning_rate": 1.0,
        "num_local_epochs": 5,
        "server_learning_rate": 0.5,
        "server_momentum": 0.5,
    },
    "data": {"dataset": "writers", "num_clients": 400, "partition": "iid"},
    "privacy": {"target_epsilon": 8.0, "target_delta": 2e-4, "accountant": "gdp"},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(exact.ExactConfig, uploads.Config):
    """As `uploads.round.Config`, and how noise is drawn."""


def grid_of(config: Config) -> exact_noise.Grid:
    """What every upload is rounded to where noise is exact."""
    return exact_noise.grid(
        base.noise_multiplier(config),
        l2_clip_norm=config.l2_clip_norm,
        most_rows=config.parties,
        norms_moved=central.sensitivity(config) / config.l2_clip_norm,
        noise_of_each=True,
    )


def add_up(config: Config) -> exact.AddUp | None:
    """Uploads in whole numbers, each with noise of its client's own; None where they are float32.

    Guarantee: exchanging one client's data moves its rounded update by so little that its upload is
    a function of what a Gaussian mechanism with the configured noise multiplier releases.
    """
    if not exact.asked(config):
        return None
    return exact.add_up(grid_of(config), noise_of_each=True)


def hide(config: Config) -> uploads.Hide:
    """Every upload's own noise: enough towards everybody who sees the uploads, however many
    collude.

    Of the sum, which alone the simulation needs, it is drawn at once in float32. Whole numbers have
    theirs already.
    """
    if exact.asked(config):
        grid = grid_of(config)
        return lambda here, sent: uploads.Hidden(exact_noise.in_unit(grid, sent.total))
    stddev = central.stddev(config)

    def hidden(here: Round, sent: uploads.Uploads) -> uploads.Hidden:
        together = jnp.float32(stddev) * jnp.sqrt(sent.num_responders.astype(jnp.float32))
        noise_key = here.server_key(_keys.Purpose.NOISE)
        return uploads.Hidden(fljax_kernels.add_gaussian_noise(noise_key, sent.total, together))

    return hidden


def costs(config: Config, num_params: int) -> costs_lib.Costs:
    """One client's round."""
    return costs_lib.plain(num_params)


def views(config: Config, key: jax.Array, num_rounds: int) -> adversaries.Views:
    """Who saw what in a run with this key; `config` with its noise multiplier, above 0."""
    mu = 1 / base.noise_multiplier(config)
    return adversaries.uploads_views(
        uploads.reached(config, key, num_rounds),
        max_colluders=config.max_colluders,
        own_mu=mu,
        colluding_mu=mu,
        alone_mu=mu,
    )


SCHEME = uploads.scheme(
    summary="clipped client updates, each with local Gaussian noise; unit: client",
    Config=Config,
    make=uploads.maker(hide, add_up=add_up),
    start=START,
    views=views,
    costs=costs,
    normals=lambda config, num_params: num_params,  # of one upload; of the sum no fewer
    uploads_seen=True,
)
make, event, fitted, non_private = SCHEME.make, SCHEME.event, SCHEME.fitted, SCHEME.non_private
