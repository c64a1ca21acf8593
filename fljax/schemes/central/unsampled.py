"""Noise that is correlated over rounds where nobody is sampled: clients take turns, or all of them
are in every round.

What one client moves of all rounds together is known before the run, and is one Gaussian mechanism.

Source: Kairouz et al. (2021), arXiv:2103.00039, with restarts; several epochs: arXiv:2306.08153.
"""

import dataclasses
import typing
from typing import Any, Literal

from fljax import _validate
from fljax.accounting import correlated, events
from fljax.schemes import base
from fljax_kernels.correlated import Strategy

Correlation = Literal["none", "banded", "buffered", "dense_banded", "tree"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnsConfig(_validate.Checked):
    """How noise is correlated and who has a turn: a part of configs; public numbers.

    Raises:
      ValueError: a number is out of its range.
    """

    min_separation: int = 1
    """Rounds of a cycle: each client is in one of so many that follow each other."""
    correlation: Correlation = "none"
    """How noise is correlated over rounds: "none", "banded" (no more bands than min_separation are
    best), "dense_banded" (bands of each round's own), "buffered" or "tree"."""
    bands: int = 4
    """Bands, or buffers, of the correlation; a tree needs no number."""
    rounds_per_start: int = 32
    """Rounds after which correlation begins anew, and the claim counts once more. Best: those of
    the run.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(
            min_separation=self.min_separation,
            bands=self.bands,
            rounds_per_start=self.rounds_per_start,
        )
        _validate.one_of(typing.get_args(Correlation), correlation=self.correlation)


def strategy(config: Any) -> Strategy:
    """The matrix C of the configured correlation; one band where there is none."""
    count = config.rounds_per_start
    if config.correlation == "tree":
        return correlated.tree(count)
    if config.correlation == "buffered":
        separation = min(config.min_separation, count)
        return correlated.buffered(count, config.bands, min_separation=separation, error="mean")
    if config.correlation == "dense_banded":
        return correlated.dense_banded(count, config.bands)
    return correlated.banded(count, 1 if config.correlation == "none" else config.bands)


def event(config: Any) -> events.PrivacyEvent:
    """What `rounds_per_start` rounds do to one client's data.

    Raises:
      ValueError: noise_multiplier is None.
    """
    chosen = strategy(config)
    return events.PrivacyEvent(
        mechanism=events.CorrelatedGaussian(
            base.noise_multiplier(config),
            chosen.kind,
            chosen.coefs,
            chosen.num_rounds,
            config.min_separation,
            cyclic=True,
        ),
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation(config.neighboring_relation),
    )


def uses(config: Any, num_rounds: int) -> int:
    """How often correlation begins in `num_rounds` rounds."""
    return -(-num_rounds // int(config.rounds_per_start))
