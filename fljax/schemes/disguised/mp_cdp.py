"""Noise once, by a trusted server, on the mean of true clipped gradients: the reference of the
bidirectional paper.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", section 6, "MP-CDP".
"""

import dataclasses

from fljax.accounting import events
from fljax.schemes import base
from fljax.schemes.disguised import round as disguised

check_network, fitted = disguised.check_network, disguised.fitted
Config = disguised.Config


def hiding(config: Config) -> disguised.Uploads:
    """Noise once, on the mean of true gradients; the server, which sees them, is trusted."""
    return disguised.Uploads("central", disguised.stddev(config))


make = disguised.maker(hiding)


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one unit. Raises ValueError if noise_multiplier is None."""
    return disguised.claim(config, events.Gaussian(base.noise_multiplier(config)))


def non_private(config: Config) -> Config:
    """The same training without noise or clipping."""
    return dataclasses.replace(config, l2_clip_norm=base.NEVER_CLIPS, noise_multiplier=0.0)


SCHEME = base.Scheme(
    summary="true clipped gradients, noise once at a trusted server; unit: example or client",
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
