"""Local DP: each client's upload carries enough noise to be published alone.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience", its
references 4 and 5, the baseline.
"""

import jax
import jax.numpy as jnp
import optax

import fljax_kernels
from fljax import _keys
from fljax.accounting import events
from fljax.schemes import base
from fljax.schemes.uploads import adversaries
from fljax.schemes.uploads import round as _uploads
from fljax.server import costs as costs_lib
from fljax.types import LossFn, Params

# The mean's noise falls with the root of the clients, so there are many; views are unsampled Gaussians, which "gdp"
# counts exactly.
START = _uploads.START | {
    "scheme": {"num_parties": None, "l2_clip_norm": 1.0, "server_learning_rate": 0.5},
    "data": {"dataset": "writers", "num_clients": 400, "partition": "iid"},
    "privacy": {"target_epsilon": 8.0, "target_delta": 2e-4, "accountant": "gdp"},
}
Config = _uploads.Config
fitted, non_private = _uploads.fitted, _uploads.non_private


def make(
    config: Config,
    loss: LossFn,
    *,
    num_units: int,
    server_optimizer: optax.GradientTransformation | None = None,
    chunk_size: int | None = None,
    groups: int | None = None,
) -> base.FederatedAlgorithm:
    """Builds the algorithm.

    Guarantee: one round is one `event(config)` for the unit "client", towards everybody who sees the uploads, however
    many collude. Idealisation: noise is drawn in float32 with JAX's threefry generator, which is no cryptographic
    source; of the sum, which alone the simulation needs, it is drawn at once. RoundInfo is not private.

    Args:
      config: its noise_multiplier must be set.
      loss: `loss(params, example) -> []`.
      num_units: clients in the population; must be `num_parties`.
      server_optimizer: any optax optimizer in place of SGD with the configured rate and momentum.
      chunk_size: clients that train side by side; only speed and memory depend on it. None: by backend and model.
      groups: as for `aggregate.sum_in_chunks`; only the order of additions depends on it.

    Raises:
      ValueError: noise_multiplier is None, num_units is not num_parties, chunk_size < 1, or groups < 1.
    """
    stddev = base.noise_multiplier(config) * config.l2_clip_norm

    def release(key: jax.Array, round_index: jax.Array, uploads: _uploads.Uploads) -> tuple[Params, jax.Array]:
        noise_key = _keys.server_key(key, round_index, _keys.Purpose.NOISE)
        together = jnp.float32(stddev) * jnp.sqrt(uploads.num_responders.astype(jnp.float32))
        return fljax_kernels.add_gaussian_noise(noise_key, uploads.total, together), jnp.ones((), bool)

    return _uploads.algorithm(
        config,
        loss,
        release,
        _uploads.straggler_pmf(config),
        num_units=num_units,
        server_optimizer=server_optimizer,
        chunk_size=chunk_size,
        groups=groups,
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one client's data.

    Raises ValueError if noise_multiplier is None.
    """
    return _uploads.event(config, base.noise_multiplier(config))


def costs(config: Config, num_params: int) -> costs_lib.Costs:
    """One client's round."""
    return costs_lib.plain(num_params)


def views(config: Config, key: jax.Array, num_rounds: int) -> adversaries.Views:
    """Who saw what in a run with this key; `config` with its noise multiplier, above 0."""
    mu = _uploads.sensitivity(config) / base.noise_multiplier(config)
    reached = adversaries.reached(config, key, num_rounds)
    return adversaries.uploads_views(config, reached, own_mu=mu, colluding_mu=mu, alone_mu=mu)


SCHEME = base.Scheme(
    summary="clipped client updates, each with local Gaussian noise; unit: client",
    promise="epsilon",
    Config=Config,
    make=make,
    event=event,
    fitted=fitted,
    non_private=non_private,
    noise_at="client",
    start=START,
    population=_uploads.population,
    views=views,
    costs=costs,
)
