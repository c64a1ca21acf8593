"""Runs of a scheme with `formula="paper"`: trained with the paper's noise, booked with what holds
of it.
"""

import dataclasses
import math
from typing import Any

from fljax.data.facts import Facts
from fljax.schemes.base import AsPrinted, Scheme
from fljax.simulation.config import Config, delta_of


def asked(scheme: Scheme, scheme_config: Any) -> AsPrinted | None:
    """The paper's formulas, where the config asks the scheme to do what its paper prints."""
    paper = scheme.as_printed
    return paper if paper is not None and paper.asked(scheme_config) else None


def prepared(config: Config, scheme: Scheme, facts: Facts) -> Config:
    """`config` with the paper's noise, if that is still open, and without a budget: the claim is no
    measure of one.

    Args:
      config: as the user gave it.
      scheme: of the config.
      facts: of the data.

    Raises:
      ValueError: the paper's formulas have no value there.
    """
    paper = asked(scheme, config.scheme_config)
    if paper is None:
        return config
    privacy, scheme_config = config.privacy, config.scheme_config
    unit = scheme.event(dataclasses.replace(scheme_config, noise_multiplier=1.0)).privacy_unit
    delta = delta_of(config, facts.num_units(unit))
    if privacy.target_epsilon is not None and scheme_config.noise_multiplier is None:
        scheme_config = paper.with_noise(
            scheme_config,
            num_rounds=config.run.num_rounds,
            epsilon=privacy.target_epsilon,
            delta=delta,
        )
    privacy = dataclasses.replace(privacy, target_epsilon=None, target_delta=delta)
    return dataclasses.replace(config, scheme_config=scheme_config, privacy=privacy)


def printed_claim(scheme: Scheme, scheme_config: Any, rounds: int, delta: float) -> dict[str, Any]:
    """What the paper would say of `rounds` rounds, and why it is not certified; empty for sound
    formulas.
    """
    paper = asked(scheme, scheme_config)
    if paper is None:
        return {}
    epsilon = (
        paper.claimed_epsilon(scheme_config, num_rounds=rounds, delta=delta) if rounds else 0.0
    )
    return {
        "certified": False,
        "claimed_epsilon": epsilon if math.isfinite(epsilon) else str(epsilon),
        "errata": dict(paper.errata),
    }
