"""Noise once, by a trusted server, on the mean of true clipped gradients: the reference of the
bidirectional paper.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", section 6, "MP-CDP".
"""

from fljax.accounting import events
from fljax.schemes import base
from fljax.schemes.disguised import round as disguised

Config = disguised.Config


def hiding(config: Config) -> disguised.Uploads:
    """Noise once, on the mean of true gradients; the server, which sees them, is trusted."""
    return disguised.Uploads("central", disguised.stddev(config))


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one unit. Raises ValueError if noise_multiplier is None."""
    return disguised.claim(config, events.Gaussian(base.noise_multiplier(config)))


SCHEME = disguised.scheme(
    summary="true clipped gradients, noise once at a trusted server; unit: example or client",
    promise="epsilon",
    make=disguised.maker(hiding),
    event=event,
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
