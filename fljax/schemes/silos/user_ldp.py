"""UserLDP: silos train with clipped batch gradients; unit: a whole silo (local DP), or all items of
a subject.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617, Algorithm 3. Two batch gradients clipped to C can be 2C apart; the paper accounts
for C.
"""

import dataclasses
from typing import Literal

from fljax import _validate, accounting
from fljax.accounting import events
from fljax.accounting.subjects import printed
from fljax.data import parties
from fljax.data.facts import Facts
from fljax.local import user
from fljax.schemes import base
from fljax.schemes.silos import round as silos
from fljax.server.rounds import Performance
from fljax.types import LossFn
from fljax.upload import exact_noise

START = silos.START | {"scheme": {"num_parties": None}, "run": {"num_rounds": 100}}
ERRATA = ("E1", "E7", "E8")
_SENSITIVITY = 2  # clip norms: two batch gradients may point in opposite directions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(silos.SubjectConfig):
    """As `SubjectConfig`, and whom the noise hides."""

    privacy_unit: Literal["client", "subject"] = "subject"
    """"client": any two data sets of a silo are neighbours; "subject": those that differ in one."""
    formula: Literal["sound", "paper"] = "sound"
    """"paper": the same training, and the paper's claim beside what holds of its noise."""
    # The noise is divided by nothing. What is left is to sample so little that it can be small: of
    # few items with one of each subject, in many small steps.
    item_sampling_prob: float = 0.01
    max_items_per_subject: int = 1
    num_local_steps: int = 10
    l2_clip_norm: float = 0.2
    noise_multiplier: float | None = None
    """Standard deviation of the noise on a batch gradient / twice l2_clip_norm, by which the data
    of a unit move it. none: calibrated for the target epsilon.
    """
    local_learning_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(("client", "subject"), privacy_unit=self.privacy_unit)
        _validate.one_of(("sound", "paper"), formula=self.formula)


def silo(config: Config, loss: LossFn, performance: Performance) -> silos.Silo:
    """The gradient of the mean loss of a Poisson sample, clipped as a whole."""
    grid = silos.grid_of(config, norms_moved=_SENSITIVITY)
    items = silos.items(config, performance, grid, exact_noise.total)
    query = user.clipped_batch_gradient(loss, **items)
    cap = config.max_items_per_subject if config.privacy_unit == "subject" else None
    return silos.Silo(query, 1.0, _SENSITIVITY * silos.stddev(config), cap, grid)


def fitted(config: Config, facts: Facts) -> Config:
    """`config` with num_parties from the data. A claim about whole silos is true of any data there.

    Raises:
      PrivacyPreconditionError: num_parties is not the number of clients; or, of a claim about
        subjects, examples carry none, or a subject lies in more silos than assumed.
    """
    of_unit = silos.fitted_subjects if config.privacy_unit == "subject" else parties.fitted
    found: Config = of_unit(config, facts)
    return found


step = silos.present_step


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one unit's data. Raises ValueError if noise_multiplier is None."""
    if config.privacy_unit == "subject":
        return silos.subject_event(config, step(config))
    whole = events.Gaussian(silos.least_noise(config))
    return events.PrivacyEvent(
        mechanism=events.SelfComposed(whole, config.num_local_steps),
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation.REPLACE_ONE,
    )


def claimed_epsilon(config: Config, *, num_rounds: int, delta: float) -> float:
    """What the paper would claim of a run: no sampling, sensitivity C; NOT certified, see
    `ERRATA`.
    """
    claimed = events.Gaussian(_SENSITIVITY * silos.least_noise(config))
    num_silos = config.holders if config.privacy_unit == "subject" else 1
    run = printed.run(claimed, config.num_local_steps, num_rounds, num_silos)
    return accounting.epsilon(run, delta=delta, method="gdp")


def as_printed(config: Config, *, num_rounds: int, epsilon: float, delta: float) -> Config:
    """The config with the noise that the paper would choose for `epsilon`; NOT certified, see
    `ERRATA`.
    """
    found = printed.with_noise(
        config, claimed_epsilon, num_rounds=num_rounds, epsilon=epsilon, delta=delta
    )
    assert found.noise_multiplier is not None
    least = printed.least_noise(epsilon, delta) / _SENSITIVITY
    return dataclasses.replace(found, noise_multiplier=max(found.noise_multiplier, least))


SCHEME = silos.subject_scheme(
    summary=(
        "silos clip each batch gradient as a whole, local Gaussian noise; unit: client (silo) "
        "or subject"
    ),
    Config=Config,
    make=silos.maker(silo),
    event=event,
    fitted=fitted,
    start=START,
    as_printed=base.AsPrinted(
        errata=printed.errata(*ERRATA),
        claimed_epsilon=claimed_epsilon,
        with_noise=as_printed,
    ),
)
make, non_private = SCHEME.make, SCHEME.non_private
