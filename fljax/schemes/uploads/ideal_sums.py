"""What the schemes with an ideal secure sum share: noise of all clients that together hides one of them.

No scheme here runs cryptography. Each takes its protocol for an ideal functionality, which reveals the sum of the
usable uploads and nothing else; they differ in which links a client needs, hence how often rounds are lost, and in
cost.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import optax

from fljax import _keys
from fljax.accounting import events
from fljax.schemes import base
from fljax.schemes.uploads import adversaries
from fljax.schemes.uploads import round as _uploads
from fljax.types import LossFn, Params
from fljax.upload import secure_sum

Links = Literal["server", "peers"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_uploads.Config):
    """As `uploads.round.Config`; noise_multiplier is that of the sum, towards colluders who know their own part of it.

    A round in which more than max_stragglers clients cannot be used is aborted and leaves the model as it was.

    Raises:
      ValueError: as there, or nobody honest may be left to add noise: max_colluders + max_stragglers >= num_parties.
    """

    def _check_parties(self, num_parties: int) -> None:
        super()._check_parties(num_parties)
        _share(self, 0.0)


def _share(config: Config, stddev: float) -> float:
    return secure_sum.share_stddev(
        stddev,
        num_clients=config.parties,
        max_colluders=config.max_colluders,
        max_stragglers=config.max_stragglers,
    )


def maker(links: Links) -> Callable[..., base.FederatedAlgorithm]:
    """`make` of a scheme whose clients need `links`, and each of them, for their upload to count."""

    def make(
        config: Config,
        loss: LossFn,
        *,
        num_units: int,
        server_optimizer: optax.GradientTransformation | None = None,
        chunk_size: int | None = None,
        groups: int | None = None,
    ) -> base.FederatedAlgorithm:
        """Builds the algorithm: local SGD, clipped updates, and the noise of every responder in an ideal secure sum.

        Guarantee: one round is one `event(config)` for the unit "client", towards the server and at most
        `max_colluders` clients, if the secure sum is ideal and nobody deviates from it. Idealisation: noise is drawn in
        float32 with JAX's threefry generator, which is no cryptographic source. RoundInfo is not private.

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
        stddev = _share(config, base.noise_multiplier(config) * config.l2_clip_norm)

        def release(key: jax.Array, round_index: jax.Array, uploads: _uploads.Uploads) -> tuple[Params, jax.Array]:
            return secure_sum.secure_sum(
                _keys.server_key(key, round_index, _keys.Purpose.NOISE),
                uploads.total,
                uploads.num_responders,
                stddev=stddev,
                least_responders=config.parties - config.max_stragglers,
            )

        return _uploads.algorithm(
            config,
            loss,
            release,
            _uploads.straggler_pmf(config, links=links),
            num_units=num_units,
            server_optimizer=server_optimizer,
            chunk_size=chunk_size,
            groups=groups,
        )

    return make


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one client's data.

    Raises ValueError if noise_multiplier is None.
    """
    return _uploads.event(config, base.noise_multiplier(config))


def viewer(links: Links) -> Callable[[Config, jax.Array, int], adversaries.Views]:
    """`views` of a scheme whose clients need `links`."""

    def views(config: Config, key: jax.Array, num_rounds: int) -> adversaries.Views:
        """Who saw what in a run with this key; `config` with its noise multiplier, above 0."""
        reached = adversaries.reached(config, key, num_rounds, links=links)
        share = _share(config, base.noise_multiplier(config))
        return adversaries.sum_views(config, reached, share_mu=_uploads.sensitivity(config) / share)

    return views
