"""LocalItemDP: silos train with clipped gradients of single items; unit: one item, NOT all items of
a person.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617, section 3.1, the baseline; Abadi et al. (2016), arXiv:1607.00133, Algorithm 1.
"""

import dataclasses

from fljax import _validate
from fljax.accounting import events
from fljax.accounting.subjects import rounds as subjects
from fljax.local import subject
from fljax.schemes import base
from fljax.schemes.silos import round as silos
from fljax.server.rounds import Performance
from fljax.types import LossFn

START = silos.START | {
    # The noise of a step hides one item, and is small beside a silo's batch: longer steps.
    "scheme": silos.START["scheme"] | {"local_learning_rate": 4.0},
    "privacy": {"target_delta": 5e-6},  # there are more items than subjects
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(silos.SiloConfig):
    """As `SiloConfig`, and the divisor of a step's sum."""

    expected_items: float = 75.0
    """Public guess of the items in one batch; the sum is divided by it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(expected_items=self.expected_items)


def silo(config: Config, loss: LossFn, performance: Performance) -> silos.Silo:
    """The sum of clipped gradients of Poisson-sampled items.

    No cap on a subject's items: it would let one item push out another, which a claim about items
    does not allow for.
    """
    grid = silos.grid_of(config)
    query = subject.item_sum(loss, **silos.items(config, performance, grid))
    return silos.Silo(query, config.expected_items, silos.stddev(config), grid=grid)


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one item's data, which lies in one silo. Raises ValueError without a
    noise_multiplier.
    """
    step = events.PoissonSampled(
        config.item_sampling_prob, events.Gaussian(silos.least_noise(config))
    )
    return events.PrivacyEvent(
        mechanism=events.SelfComposed(step, config.num_local_steps),
        privacy_unit="example",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def subject_event(
    config: Config, *, max_items_per_subject: int, silos_per_subject: int
) -> events.PrivacyEvent:
    """What one round does to a subject's data, if nobody owns more items in a silo
    (`fljax.data.subjects.cap_items`).

    Raises:
      ValueError: a cap is not an integer >= 1, there are fewer silos, or noise_multiplier is None.
    """
    silos.check_holders(config, silos_per_subject)
    return subjects.event(
        subjects.counted(max_items_per_subject, config.item_sampling_prob),
        noise_multiplier=base.noise_multiplier(config),
        silo_noise=config.silo_noise,
        holders=silos.met(config, silos_per_subject),
        num_steps=config.num_local_steps,
    )


SCHEME = silos.scheme(
    summary="silos sum clipped gradients of examples, local Gaussian noise; unit: example",
    promise="epsilon",
    Config=Config,
    make=silos.maker(silo),
    event=event,
    start=START,
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
