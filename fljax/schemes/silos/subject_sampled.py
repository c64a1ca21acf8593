"""Sampled subjects: silos draw subjects, not items, and clip the mean gradient of each; unit:
subject.

A subject is in a batch with the chance that is chosen, however many items it owns: more items make
it no likelier to be there.

Source: Charles et al. (2024), "Fine-Tuning Large Language Models with User-Level Differential
Privacy", arXiv:2407.07737, user-level sampling; in the silos of Marathe et al. (2022),
arXiv:2206.03617.
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
class Config(silos.SubjectCaps, silos.NoisyConfig):
    """Public numbers of the scheme; each may be published.

    Raises:
      ValueError: a number is out of its range.
    """

    max_items_per_subject: int = 4
    """Most items of one subject in one batch of a silo, drawn at random; the noise does not depend
    on it.
    """
    item_sampling_prob: float = 0.1
    """Chance of each subject to be in the batch of one local step, all its items by one coin, in
    (0, 1].
    """
    expected_subjects: float = 20.0
    """Public guess of the subjects in one batch; the sum is divided by it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(expected_subjects=self.expected_subjects)


def silo(config: Config, loss: LossFn, performance: Performance) -> silos.Silo:
    """The sum over sampled subjects of their clipped mean gradients."""
    query = subject.sampled_subjects(
        loss,
        subject_sampling_prob=config.item_sampling_prob,
        items_per_subject=config.max_items_per_subject,
        l2_clip_norm=config.l2_clip_norm,
        batch_size=performance.microbatch_size,
    )
    return silos.Silo(query, config.expected_subjects, silos.stddev(config))


def step(config: Config, num_items: int | None = None) -> subjects.Step:
    """What one local step does to a subject in a silo, however many items it has, for a noise
    multiplier.
    """
    del num_items
    return subjects.present(1, config.item_sampling_prob)


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one subject's data. Raises ValueError if noise_multiplier is None."""
    return silos.subject_event(config, step(config))


# As where items are drawn. In the data of a run by name, items and subjects of a silo are as many.
_START = silos.subject_start("expected_subjects")
SCHEME = silos.subject_scheme(
    summary="silos draw subjects and clip the mean gradient of each, local Gaussian noise; unit: "
    "subject",
    Config=Config,
    make=silos.maker(silo),
    event=event,
    start=_START,
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
