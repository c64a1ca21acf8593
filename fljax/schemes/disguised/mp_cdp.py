"""Noise once, by a trusted server, on the mean of true clipped gradients: the reference of the bidirectional paper.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure Bidirectional
Privacy-Preservation in Federated Learning", section 6, "MP-CDP".
"""

import dataclasses

import optax

from fljax.accounting import events
from fljax.schemes import base
from fljax.schemes.disguised import round as disguised
from fljax.types import LossFn

check_network, fitted = disguised.check_network, disguised.fitted
Config = disguised.Config


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

    Guarantee: one round is one `event(config)`, towards whoever sees the models; the server sees true gradients and is
    trusted. Idealisation, arguments and errors are those of `bidirectional.make`.
    """
    return disguised.algorithm(
        config,
        loss,
        disguised.Uploads("central"),
        num_units=num_units,
        server_optimizer=server_optimizer,
        chunk_size=chunk_size,
        groups=groups,
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one unit. Raises ValueError if noise_multiplier is None."""
    noise = base.noise_multiplier(config) / disguised.sensitivity(config)
    return disguised.claim(config, events.Gaussian(noise))


def non_private(config: Config) -> Config:
    """The same training without noise or clipping."""
    return dataclasses.replace(config, l2_clip_norm=base.NEVER_CLIPS, noise_multiplier=0.0)


SCHEME = base.Scheme(
    summary="true clipped gradients, noise once at a trusted server; unit: record or client",
    promise="epsilon",
    Config=Config,
    make=make,
    event=event,
    fitted=fitted,
    non_private=non_private,
    start=disguised.START,
    population=disguised.population,
    check_network=check_network,
    needs_network=True,
)
