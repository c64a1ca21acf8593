"""HiGradAvg: silos train with clipped gradients averaged inside each subject; unit: all items of a
subject.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617, Algorithm 2. By default the divisor is public, the batch a Poisson sample, and the
chance that a subject is in it exact.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from fljax import _validate, accounting
from fljax.accounting import events
from fljax.accounting.subjects import printed
from fljax.local import subject
from fljax.schemes import base
from fljax.schemes.silos import round as silos
from fljax.server.rounds import Performance
from fljax.types import LossFn

ERRATA = ("E1", "E4", "E6")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(silos.BandedConfig):
    """As `BandedConfig`, and the divisor of a step's sum."""

    expected_subjects: float = 70.0
    """Public guess of the subjects in one batch; the sum is divided by it."""
    formula: Literal["sound", "paper"] = "sound"
    """"paper" divides by the realised number of subjects, and has no guarantee."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(expected_subjects=self.expected_subjects)
        _validate.one_of(("sound", "paper"), formula=self.formula)
        if self.formula == "paper":
            _validate.one_of(("none",), correlation=self.correlation)


def silo(config: Config, loss: LossFn, performance: Performance) -> silos.Silo:
    """The sum over subjects of the mean of their clipped gradients."""
    stddev, cap = silos.stddev(config), config.max_items_per_subject
    grid = silos.grid_of(config, most_parts=cap)
    query = subject.hierarchical_average(loss, **silos.items(config, performance, grid))
    if config.formula == "paper":
        return silos.Silo(query, lambda answer: jnp.maximum(1, answer.num_subjects), stddev, cap)
    return silos.Silo(query, config.expected_subjects, stddev, cap, grid, silos.strategy(config))


step = silos.present_step


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one subject's data; where noise is correlated, one step of its turn in
    each silo. Raises ValueError if noise_multiplier is None.
    """
    if config.formula == "paper":
        return base.no_guarantee("subject")
    return silos.subject_event(config, step(config))


def claimed_epsilon(config: Config, *, num_rounds: int, delta: float) -> float:
    """What the paper would claim of a run; NOT certified, see `ERRATA`.

    Raises:
      ValueError: items times sampling rate, which the paper takes for a probability, is above 1; or
        bad numbers.
    """
    _validate.probability(
        claimed_probability=config.max_items_per_subject * config.item_sampling_prob
    )
    claimed = events.PoissonSampled(
        config.max_items_per_subject * config.item_sampling_prob,
        events.Gaussian(silos.least_noise(config)),
    )
    run = printed.run(claimed, config.num_local_steps, num_rounds, config.holders)
    return accounting.epsilon(run, delta=delta)


def as_printed(config: Config, *, num_rounds: int, epsilon: float, delta: float) -> Config:
    """The config with the noise that the paper would choose for `epsilon`; NOT certified, see
    `ERRATA`.
    """
    return printed.with_noise(
        config, claimed_epsilon, num_rounds=num_rounds, epsilon=epsilon, delta=delta
    )


SCHEME = silos.subject_scheme(
    summary=(
        "silos average clipped gradients inside each subject, local Gaussian noise; unit: subject"
    ),
    Config=Config,
    make=silos.maker(silo),
    event=event,
    uses=silos.uses,
    normals=silos.normals,
    start=silos.subject_start("expected_subjects"),
    start_of_lora=silos.lora_start("expected_subjects"),
    as_printed=base.AsPrinted(
        errata=printed.errata(*ERRATA),
        claimed_epsilon=claimed_epsilon,
        with_noise=as_printed,
    ),
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
