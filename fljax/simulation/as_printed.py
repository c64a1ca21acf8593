"""Runs of a scheme with `formula="paper"`: trained with the paper's noise, booked with what holds of it."""

import dataclasses
import math
from types import ModuleType
from typing import Any

from fljax.data.facts import Facts
from fljax.schemes.silos import printed
from fljax.simulation.config import Config, delta_of


def is_printed(scheme_config: Any) -> bool:
    """Whether the scheme is to do what its paper prints."""
    return getattr(scheme_config, "formula", "sound") == "paper"


def prepared(config: Config, scheme: ModuleType, facts: Facts) -> Config:
    """`config` with the paper's noise, if that is still open, and without a budget: the claim is no measure of one.

    Args:
      config: as the user gave it.
      scheme: its module.
      facts: of the data.

    Raises:
      ValueError: the paper's formulas have no value there.
    """
    if not is_printed(config.scheme_config):
        return config
    privacy, scheme_config = config.privacy, config.scheme_config
    unit = scheme.event(dataclasses.replace(scheme_config, noise_multiplier=1.0)).privacy_unit
    delta = delta_of(config, facts.num_units(unit))
    if privacy.target_epsilon is not None and scheme_config.noise_multiplier is None:
        scheme_config = scheme.as_printed(
            scheme_config, num_rounds=config.run.num_rounds, epsilon=privacy.target_epsilon, delta=delta
        )
    privacy = dataclasses.replace(privacy, target_epsilon=None, target_delta=delta)
    return dataclasses.replace(config, scheme_config=scheme_config, privacy=privacy)


def claim(scheme: ModuleType, scheme_config: Any, rounds: int, delta: float) -> dict[str, Any]:
    """What the paper would say of `rounds` rounds, and why it is not certified; empty for sound formulas."""
    if not is_printed(scheme_config):
        return {}
    epsilon = scheme.claimed_epsilon(scheme_config, num_rounds=rounds, delta=delta) if rounds else 0.0
    return {
        "certified": False,
        "claimed_epsilon": epsilon if math.isfinite(epsilon) else str(epsilon),
        "errata": scheme.ERRATA if isinstance(scheme.ERRATA, dict) else {e: printed.ERRATA[e] for e in scheme.ERRATA},
    }
