"""Noise of local size straight on perturbed gradients: what the bidirectional paper compares itself
with.

Noise that the server multiplies by its scales is as large as they are: unusable where they spread
widely. The true gradient is clipped inside the simulator, as the paper's figures need; no client
could do that, so nothing is claimed.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", equation (7).
"""

import dataclasses

from fljax.accounting import events
from fljax.schemes import base
from fljax.schemes.disguised import round as disguised

START = disguised.START | {
    "scheme": disguised.START["scheme"] | {"server_learning_rate": 1.0},
    "privacy": {"target_epsilon": None},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(disguised.Config):
    """As `disguised.round.Config`; noise_multiplier has a number, since there is nothing to
    calibrate it for.
    """

    noise_multiplier: float | None = 0.5


def hiding(config: Config) -> disguised.Uploads:
    """Noise of local size on perturbed gradients. Guarantee: none."""
    return disguised.Uploads("naive", disguised.stddev(config))


def event(config: Config) -> events.PrivacyEvent:
    """No guarantee, whatever the noise. Raises ValueError if noise_multiplier is None."""
    base.noise_multiplier(config)
    return disguised.claim(config, events.NonPrivate())


def exposure(config: Config) -> list[tuple[str, str, str]]:
    """(who, about what, what it can learn) in both directions."""
    return disguised.exposure(config, "naive")


SCHEME = disguised.scheme(
    summary="full local noise on gradients of a disguised model, for comparison; no guarantee",
    promise="none",
    Config=Config,
    make=disguised.maker(hiding),
    event=event,
    noise_at="client",
    start=START,
    exposure=exposure,
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
