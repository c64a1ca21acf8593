"""Capped item sum: silos train with at most Z clipped gradients of each subject in a batch; unit:
subject.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617, Algorithm 1 (LocalGroupDP), with a public cap Z in place of the group size that
the paper reads from each private batch, one noise scale, and the exact mixture of counts in place
of group privacy (Ganesh 2024, arXiv:2401.10294).
"""

import dataclasses

from fljax import _validate
from fljax.accounting import events
from fljax.accounting.subjects import rounds as subjects
from fljax.local import subject
from fljax.schemes.silos import round as silos
from fljax.server.rounds import Performance
from fljax.types import LossFn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(silos.SubjectConfig):
    """As `SubjectConfig`, and a cap on a subject's items in one batch."""

    items_per_subject: int = 2
    """Most items of one subject in one batch, >= 1."""
    expected_items: float = 75.0
    """Public guess of the items in one batch; the sum is divided by it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(items_per_subject=self.items_per_subject)
        _validate.positive(expected_items=self.expected_items)


def silo(config: Config, loss: LossFn, performance: Performance) -> silos.Silo:
    """The sum of clipped gradients with at most Z items of a subject, the surplus dropped at
    random.
    """
    grid = silos.grid_of(config)
    query = subject.item_sum(
        loss, items_per_subject=config.items_per_subject, **silos.items(config, performance, grid)
    )
    return silos.Silo(
        query, config.expected_items, silos.stddev(config), config.max_items_per_subject, grid
    )


def step(config: Config, num_items: int | None = None) -> subjects.Step:
    """What one local step does to a subject of `num_items` items in a silo, None: the most, for a
    noise multiplier.
    """
    most = num_items or config.max_items_per_subject
    return subjects.counted(most, config.item_sampling_prob, cap=config.items_per_subject)


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one subject's data. Raises ValueError if noise_multiplier is None."""
    return silos.subject_event(config, step(config))


SCHEME = silos.subject_scheme(
    summary=(
        "silos sum clipped gradients, at most Z of each subject, local Gaussian noise; unit: "
        "subject"
    ),
    Config=Config,
    make=silos.maker(silo),
    event=event,
    start=silos.subject_start("expected_items"),
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
