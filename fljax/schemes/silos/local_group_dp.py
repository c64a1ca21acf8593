"""LocalGroupDP: silos train with item-clipped gradients and noise for groups of Z items; unit:
subject.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617, Algorithm 1. The paper reads the group size from each private batch and adds group
privacy to amplification by sampling items. By default here Z is public and enforced, and group
privacy takes its tightest form: a group of Z items moves the sum by Z clip norms, or by nothing if
the subject is not in the batch. `item_sum_cap` is the same training with the exact law of a
subject's items in a batch, which needs less noise.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from fljax import _validate, accounting
from fljax.accounting import events, groups
from fljax.accounting.subjects import printed
from fljax.accounting.subjects import rounds as subjects
from fljax.local import subject
from fljax.local.silo import Number
from fljax.schemes import base
from fljax.schemes.silos import round as silos
from fljax.server.rounds import Performance
from fljax.types import LossFn

ERRATA = ("E1", "E2", "E3")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(silos.SubjectConfig):
    """As `SubjectConfig`, and a cap on a subject's items in one batch."""

    items_per_subject: int = 2
    """Most items of one subject in one batch, >= 1; surplus ones are dropped."""
    expected_items: float = 75.0
    """Public guess of the items in one batch; the sum is divided by it."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise on a silo's sum / what a group of items_per_subject items (of
    max_items_per_subject, where that is less) moves it by, as many times l2_clip_norm. none:
    calibrated for the target epsilon.
    """
    formula: Literal["sound", "paper"] = "sound"
    """"paper": the noise of a step follows the largest group of its batch; there is no
    guarantee.
    """
    group_noise: tuple[float, ...] = ()
    """For formula "paper": standard deviations / l2_clip_norm for groups of 1, 2, ...
    max_items_per_subject items.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(items_per_subject=self.items_per_subject)
        _validate.positive(expected_items=self.expected_items)
        _validate.one_of(("sound", "paper"), formula=self.formula)
        object.__setattr__(self, "group_noise", tuple(self.group_noise))
        for value in self.group_noise:
            _validate.non_negative(group_noise=value)
        if self.group_noise and (
            self.formula != "paper" or len(self.group_noise) != self.max_items_per_subject
        ):
            raise ValueError(
                "Expected group_noise with formula='paper' only, one number for each of "
                f"max_items_per_subject={self.max_items_per_subject}, got formula={self.formula!r} "
                f"and {len(self.group_noise)} numbers."
            )


def silo(config: Config, loss: LossFn, performance: Performance) -> silos.Silo:
    """The sum of clipped gradients, at most Z of a subject; as printed: all of them, and noise by
    the largest group.
    """
    paper = config.formula == "paper"
    grid = silos.grid_of(config, norms_moved=sensitivity(config))
    query = subject.item_sum(
        loss,
        items_per_subject=None if paper else config.items_per_subject,
        **silos.items(config, performance, grid),
    )
    stddev: Number = sensitivity(config) * silos.stddev(config)
    if paper:
        scales = jnp.asarray(_group_noise(config), jnp.float32) * jnp.float32(config.l2_clip_norm)
        stddev = lambda answer: scales[jnp.maximum(answer.largest_group, 1) - 1]
    return silos.Silo(query, config.expected_items, stddev, config.max_items_per_subject, grid)


def sensitivity(config: Config) -> int:
    """Clip norms by which a subject moves a silo's sum, at most."""
    return min(config.items_per_subject, config.max_items_per_subject)


def step(config: Config, num_items: int | None = None) -> subjects.Step:
    """What one local step does to a subject of `num_items` items in a silo, None: the most, for a
    noise multiplier.
    """
    most = num_items or config.max_items_per_subject
    move = min(config.items_per_subject, most) / sensitivity(config)
    return subjects.present(most, config.item_sampling_prob, move=move)


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one subject's data. Raises ValueError if noise_multiplier is None."""
    if config.formula == "paper":
        return base.no_guarantee("subject")
    return silos.subject_event(config, step(config))


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    sound = dataclasses.replace(config, formula="sound", group_noise=())
    found: Config = base.non_private(sound)
    return found


def claimed_epsilon(config: Config, *, num_rounds: int, delta: float) -> float:
    """What the paper would claim of a run, the largest over all group sizes; NOT certified, see
    `ERRATA`.

    Raises:
      ValueError: group_noise is empty, or bad numbers.
    """
    return max(
        printed.group_epsilon(_items(config, noise, num_rounds), delta, size)
        for size, noise in enumerate(_group_noise(config), start=1)
    )


def as_printed(config: Config, *, num_rounds: int, epsilon: float, delta: float) -> Config:
    """The config with the noise that the paper would choose for `epsilon`; NOT certified, see
    `ERRATA`.
    """
    scales = []
    for size in range(1, config.max_items_per_subject + 1):
        one_epsilon, one_delta = groups.split_budget(epsilon, delta, size, form="paper")
        scales.append(
            accounting.calibrate(
                lambda v: _items(config, v, num_rounds), epsilon=one_epsilon, delta=one_delta
            )
        )
    return dataclasses.replace(
        config, formula="paper", group_noise=tuple(scales), noise_multiplier=scales[0]
    )


def _items(config: Config, noise: float, num_rounds: int) -> events.PrivacyEvent:
    """What the run is for one item, in the paper's count of rounds."""
    noise *= min(config.silo_noise, default=1.0)
    claimed = events.PoissonSampled(config.item_sampling_prob, events.Gaussian(noise))
    return printed.run(claimed, config.num_local_steps, num_rounds, config.holders)


def _group_noise(config: Config) -> tuple[float, ...]:
    base.noise_multiplier(config)
    if not config.group_noise:
        raise ValueError(
            "Expected group_noise for formula='paper', got none: see local_group_dp.as_printed."
        )
    return config.group_noise


SCHEME = silos.subject_scheme(
    summary=(
        "silos sum clipped gradients with noise for groups of Z items of a subject; unit: subject"
    ),
    Config=Config,
    make=silos.maker(silo),
    event=event,
    start=silos.subject_start("expected_items"),
    non_private=non_private,
    as_printed=base.AsPrinted(
        errata=printed.errata(*ERRATA),
        claimed_epsilon=claimed_epsilon,
        with_noise=as_printed,
    ),
)
make, fitted = SCHEME.make, SCHEME.fitted
