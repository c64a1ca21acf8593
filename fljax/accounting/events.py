"""What a mechanism did, as data: frozen, hashable records that accountants turn into epsilon.

A *mechanism* record (`Gaussian`, `PoissonSampled`, ...) says what was computed and released. A
`PrivacyEvent` puts one mechanism under a claim: whose contribution is protected (`privacy_unit`)
and which data sets are neighbours (`neighboring_relation`). Accountants take privacy events only:
no epsilon is ever without its unit and relation.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from fljax import _near, _plugins, _validate
from fljax.errors import NoGuaranteeError

PRIVACY_UNITS = ("client", "example", "subject")
FORMAT = 1


class NeighboringRelation(enum.StrEnum):
    """Which pairs of data sets an adversary must not tell apart."""

    ADD_OR_REMOVE_ONE = "ADD_OR_REMOVE_ONE"  # one unit more or less
    REPLACE_ONE = "REPLACE_ONE"  # one unit exchanged for another; the number of units is public
    REPLACE_SPECIAL = "REPLACE_SPECIAL"  # one unit exchanged for a null unit that contributes zero


class Mechanism:
    """Base of all mechanism records; holds no data."""

    def __init_subclass__(cls) -> None:
        """Raises TypeError for a class that extends a record of this module: accountants go by the
        kind of a record, and would take it for that one, whatever else it does.
        """
        for base in cls.__mro__[1:]:
            if base.__module__ == __name__ and base is not Mechanism:
                raise TypeError(
                    f"Expected {cls.__qualname__} to extend events.Mechanism alone, got a kind of "
                    f"{base.__name__}, which accountants would take it for."
                )

    def __post_init__(self) -> None:
        """Checks the fields; each record extends it."""

    def repeat(self, count: int) -> Any:
        """Only a `PrivacyEvent` repeats. Raises ValueError, which says so."""
        raise ValueError(
            f"Expected repeat({count!r}) of a PrivacyEvent, got that of a mechanism: write "
            "PrivacyEvent(mechanism=..., privacy_unit=..., "
            f"neighboring_relation=...).repeat({count!r}), or SelfComposed({self!r}, {count!r})."
        )


_FROM_DP_EVENT = "accounting.from_dp_event(event, privacy_unit=..., neighboring_relation=...)"


def is_foreign(value: Any) -> bool:
    """Whether it is an event of dp_accounting, which need not be installed."""
    return any(base.__module__.partition(".")[0] == "dp_accounting" for base in type(value).__mro__)


def _is_mechanism(name: str, value: Any) -> None:
    if isinstance(value, Mechanism):
        return
    advice = "."
    if isinstance(value, PrivacyEvent):
        advice = ": write its .mechanism."
    elif is_foreign(value):
        advice = f": write {_FROM_DP_EVENT}.mechanism."
    raise ValueError(
        f"Expected {name} to be a mechanism record of fljax.accounting.events, got "
        f"{name}={value!r}{advice}"
    )


def check_event(name: str, value: Any) -> None:
    """Raises ValueError, with what to write instead, unless `value` is a `PrivacyEvent`."""
    if isinstance(value, PrivacyEvent):
        return
    advice = "."
    if isinstance(value, Mechanism):
        advice = ": write PrivacyEvent(mechanism=..., privacy_unit=..., neighboring_relation=...)."
    elif is_foreign(value):
        advice = f": write {_FROM_DP_EVENT}."
    elif isinstance(value, list | tuple):
        advice = ": write accounting.compose(events)."
    elif isinstance(value, type) or callable(value):
        advice = ": write what it returns, as in event(config)."
    raise ValueError(
        f"Expected {name} to be a PrivacyEvent (mechanism, unit, relation), got "
        f"{name}={value!r}{advice}"
    )


@dataclasses.dataclass(frozen=True)
class Gaussian(Mechanism):
    """Adds Gaussian noise.

    `noise_multiplier`: noise stddev / L2 sensitivity under the relation of the claim. >= 0; 0 is no
      noise.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.non_negative(noise_multiplier=self.noise_multiplier)


@dataclasses.dataclass(frozen=True)
class Laplace(Mechanism):
    """Adds Laplace noise.

    `noise_multiplier`: scale b / L1 sensitivity under the relation of the claim. >= 0; 0 is no
      noise.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.non_negative(noise_multiplier=self.noise_multiplier)


@dataclasses.dataclass(frozen=True)
class DiscreteGaussian(Mechanism):
    """Adds integer noise with mass proportional to exp(-x^2 / (2 stddev^2)) to an integer query.

    `stddev` is the parameter of that formula (> 0), `sensitivity` a positive integer: how far one
    unit moves the query.
    """

    stddev: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        _validate.positive(stddev=self.stddev)
        _validate.positive_int(sensitivity=self.sensitivity)


def _check_lengths(record: Any) -> None:
    _validate.grid_steps(l2_sensitivity=record.l2_sensitivity)
    if record.l1_sensitivity is not None:
        _validate.grid_steps(l1_sensitivity=record.l1_sensitivity)
    if record.dimension is not None:
        _validate.positive_int(dimension=record.dimension)


@dataclasses.dataclass(frozen=True)
class DiscreteGaussianSum(Mechanism):
    """Adds `count` independent discrete Gaussians, as of so many clients, to each coordinate of a
    vector of integers.

    `stddev`: the parameter of one of them, as in `DiscreteGaussian`, in [1e-100, 1e100]. `count`:
      an integer >= 1, of those that nobody knows.
    `l2_sensitivity`, `l1_sensitivity`: >= 1, how far one unit moves the vector, in whole steps
      after rounding, not in the unit of an update: integers move by a step at least, or not at all.
      None: integers have no more than the square of their L2 norm.
    `dimension`: coordinates, >= 1; None: any number.

    Source: Kairouz, Liu, Steinke (2021), arXiv:2102.06387.
    """

    stddev: float
    count: int
    l2_sensitivity: float
    l1_sensitivity: float | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        _validate.squarable(stddev=self.stddev)
        _validate.positive_int(count=self.count)
        _validate.squarable(count=self.count)
        _check_lengths(self)


@dataclasses.dataclass(frozen=True)
class Skellam(Mechanism):
    """Adds the difference of two Poisson counts of mean `variance` / 2 to each coordinate of a
    vector of integers.

    `variance`: in [1e-100, 1e100], of all clients' noise together that nobody knows: such noise
      adds up to such noise. The others: as in `DiscreteGaussianSum`.

    Source: Agarwal, Kairouz, Liu (2021), arXiv:2110.04995.
    """

    variance: float
    l2_sensitivity: float
    l1_sensitivity: float | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        _validate.squarable(variance=self.variance)
        _check_lengths(self)


@dataclasses.dataclass(frozen=True)
class DiscreteLaplace(Mechanism):
    """Adds integer noise with mass proportional to exp(-noise_parameter |x|) to integer queries.

    `noise_parameter`: >= 0; 0 is no noise. `sensitivity`: a positive integer: how far one unit
      moves all queries together (L1).
    """

    noise_parameter: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        _validate.non_negative(noise_parameter=self.noise_parameter)
        _validate.positive_int(sensitivity=self.sensitivity)


@dataclasses.dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """Each unit publishes its bucket; with chance `noise_parameter`, one drawn from all instead.

    `noise_parameter`: in [0, 1]; 0 is no noise. `num_buckets`: >= 1. A unit that is replaced by the
      null unit (REPLACE_SPECIAL) publishes a bucket drawn from all.
    """

    noise_parameter: float
    num_buckets: int = 2

    def __post_init__(self) -> None:
        _validate.closed_unit(noise_parameter=self.noise_parameter)
        _validate.positive_int(num_buckets=self.num_buckets)


@dataclasses.dataclass(frozen=True)
class Staircase(Mechanism):
    """Adds the staircase noise of least expected size to one real query.

    Its density falls by e^-epsilon at `gamma`, 1 + `gamma`, 2 + `gamma`, ... sensitivities from 0.
    `epsilon`: > 0. `gamma`: in (0, 1); None: 1 / (1 + e^(epsilon / 2)), the best for the expected
      size.

    Source: Geng, Viswanath (2012), arXiv:1212.1186.
    """

    epsilon: float
    gamma: float | None = None

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        if self.gamma is not None:
            _validate.open_unit(gamma=self.gamma)


@dataclasses.dataclass(frozen=True)
class NoisyMax(Mechanism):
    """Adds noise to each of some scores and publishes which is the largest.

    `noise_multiplier`: scale of the noise / how far one unit moves a score; >= 0, 0 is no noise.
    `noise`: "gumbel", which is the exponential mechanism; "exponential", which is permute and flip;
      or "laplace".
    `monotonic`: one unit moves all scores up, or all down, as it does counts.
    """

    noise_multiplier: float
    noise: Literal["gumbel", "exponential", "laplace"] = "gumbel"
    monotonic: bool = False

    def __post_init__(self) -> None:
        _validate.non_negative(noise_multiplier=self.noise_multiplier)
        _validate.one_of(("gumbel", "exponential", "laplace"), noise=self.noise)
        _validate.one_of((False, True), monotonic=self.monotonic)


@dataclasses.dataclass(frozen=True)
class SparseVector(Mechanism):
    """Says of one query after another whether it is above a threshold, until it was `most_above`
    times.

    Laplace noise is added to the threshold, once, and afresh to every query.
    `threshold_noise_multiplier`, `query_noise_multiplier`: scale of the noise / how far one unit
      moves a query; >= 0, 0 is no noise.
    `most_above`: >= 1. `monotonic`: one unit moves all queries up, or all down.

    Source: Lyu, Su, Li (2017), arXiv:1603.01699, Algorithm 7.
    """

    threshold_noise_multiplier: float
    query_noise_multiplier: float
    most_above: int = 1
    monotonic: bool = False

    def __post_init__(self) -> None:
        _validate.non_negative(
            threshold_noise_multiplier=self.threshold_noise_multiplier,
            query_noise_multiplier=self.query_noise_multiplier,
        )
        _validate.positive_int(most_above=self.most_above)
        _validate.one_of((False, True), monotonic=self.monotonic)


@dataclasses.dataclass(frozen=True)
class TreeAggregation(Mechanism):
    """Publishes sums of consecutive steps with Gaussian noise in the nodes of binary trees.

    A unit takes part in at most one step of all trees. `noise_multiplier`: noise stddev of a node /
      L2 sensitivity; >= 0. `step_counts`: steps of each tree, integers >= 1.

    Source: Kairouz et al. (2021), arXiv:2103.00039, appendix D.
    """

    noise_multiplier: float
    step_counts: tuple[int, ...]

    def __post_init__(self) -> None:
        _validate.non_negative(noise_multiplier=self.noise_multiplier)
        if not isinstance(self.step_counts, tuple) or not self.step_counts:
            raise ValueError(
                "Expected step_counts to be a tuple of at least one integer, got "
                f"step_counts={self.step_counts!r}."
            )
        for count in self.step_counts:
            _validate.positive_int(step_counts=count)


@dataclasses.dataclass(frozen=True)
class CorrelatedGaussian(Mechanism):
    """Publishes the sums of `num_rounds` rounds, each with Gaussian noise that is correlated with
    that of earlier rounds: stddev * C^-1 z, the matrix mechanism.

    A unit takes part in rounds at least `min_separation` apart; with `cyclic` in some of those that
    are multiples of it apart. Within `PoissonSampled` one draw decides for all rounds: of draws a
    round nothing is claimed here, and banded noise with turns is `PoissonSampled` `Gaussian`s.
    `noise_multiplier`: stddev of z / how far one unit moves one round's sum under the relation of
      the claim; >= 0. `kind`, `coefs`, `num_rounds`: C, as in `fljax_kernels.correlated.Strategy`.
    One record is all rounds of C; a run of fewer costs no more.

    Source: Denisov et al. (2022), arXiv:2202.08312: a later sum may depend on earlier releases.
    """

    noise_multiplier: float
    kind: str
    coefs: tuple[float, ...]
    num_rounds: int
    min_separation: int
    cyclic: bool = False

    def __post_init__(self) -> None:
        from fljax_kernels.correlated import Strategy  # which imports jax

        _validate.non_negative(noise_multiplier=self.noise_multiplier)
        _validate.positive_int(num_rounds=self.num_rounds, min_separation=self.min_separation)
        _validate.one_of((False, True), cyclic=self.cyclic)
        Strategy(self.kind, self.coefs, self.num_rounds)


@dataclasses.dataclass(frozen=True)
class SampledCorrelatedGaussian(Mechanism):
    """As `CorrelatedGaussian`, where chance decides in which of its rounds each unit is.

    `sampling`: "balls_in_bins": each unit is dealt once to one of `cycle` bins, as likely as any
      other, and is in all rounds that are its bin's number modulo `cycle`. "cyclic_poisson": each
      unit has a known turn, and joins each round that is its turn's number modulo `cycle` by a coin
      of its own.
    `sampling_prob`: of that coin, in [0, 1]; 1 for bins.
    Chances are counted by `fljax.accounting.monte_carlo` alone, under ADD_OR_REMOVE_ONE and
    REPLACE_SPECIAL. Other accountants take the unit's bin for known and its coins for won: an upper
    bound. Under REPLACE_ONE each unit must move a round by half of what noise is relative to, as in
    `PoissonSampled`.

    Source: Choquette-Choo et al. (2024), arXiv:2410.06266.
    """

    noise_multiplier: float
    kind: str
    coefs: tuple[float, ...]
    num_rounds: int
    cycle: int
    sampling: Literal["balls_in_bins", "cyclic_poisson"]
    sampling_prob: float = 1.0

    def __post_init__(self) -> None:
        from fljax_kernels.correlated import Strategy  # which imports jax

        _validate.non_negative(noise_multiplier=self.noise_multiplier)
        _validate.positive_int(num_rounds=self.num_rounds, cycle=self.cycle)
        _validate.one_of(("balls_in_bins", "cyclic_poisson"), sampling=self.sampling)
        _validate.closed_unit(sampling_prob=self.sampling_prob)
        if self.sampling == "balls_in_bins" and self.sampling_prob != 1:
            raise ValueError(
                "Expected sampling_prob=1 with sampling='balls_in_bins', got "
                f"sampling_prob={self.sampling_prob!r}."
            )
        Strategy(self.kind, self.coefs, self.num_rounds)


@dataclasses.dataclass(frozen=True)
class RepeatAndSelect(Mechanism):
    """Runs `event` a random number of times and publishes the best output alone.

    What is best may depend on the outputs, not on the data. The number of runs has the mean `mean`
    >= 1 and is logarithmic (`shape` 0), geometric (1), truncated negative binomial (other numbers
    > 0) or, where it may be 0, Poisson ("poisson").

    Source: Papernot, Steinke (2022), arXiv:2110.03620, Definition 1.
    """

    event: Mechanism
    mean: float
    shape: float | Literal["poisson"] = "poisson"

    def __post_init__(self) -> None:
        _is_mechanism("event", self.event)
        _validate.positive(mean=self.mean)
        if not (isinstance(self.shape, str) and self.shape == "poisson"):
            _validate.non_negative(shape=self.shape)
        if not self.mean >= 1:
            raise ValueError(f"Expected mean >= 1, got mean={self.mean!r}.")


@dataclasses.dataclass(frozen=True)
class MixtureOfGaussians(Mechanism):
    """Adds Gaussian noise of `stddev` to a sum; one unit adds `sensitivities[j]` with chance
    `sampling_probs[j]`.

    Sensitivities are distinct and >= 0; probabilities are > 0 and sum to 1.
    """

    stddev: float
    sensitivities: tuple[float, ...]
    sampling_probs: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("sensitivities", "sampling_probs"):
            if _validate.is_number(getattr(self, name)):
                raise ValueError(
                    f"Expected {name} to be a tuple of numbers, got {name}={getattr(self, name)!r}."
                )
        object.__setattr__(self, "sensitivities", tuple(self.sensitivities))
        object.__setattr__(self, "sampling_probs", tuple(self.sampling_probs))
        _validate.non_negative(stddev=self.stddev)
        if not self.sensitivities or len(self.sensitivities) != len(self.sampling_probs):
            raise ValueError(
                "Expected sensitivities and sampling_probs to be of one length >= 1, got "
                f"sensitivities={self.sensitivities!r} and sampling_probs={self.sampling_probs!r}."
            )
        for value in self.sensitivities:
            _validate.non_negative(sensitivities=value)
        for value in self.sampling_probs:
            _validate.probability(sampling_probs=value)
        if len(set(self.sensitivities)) != len(self.sensitivities):
            raise ValueError(
                f"Expected sensitivities to be distinct, got sensitivities={self.sensitivities!r}."
            )
        if not abs(sum(self.sampling_probs) - 1.0) <= 1e-9:
            raise ValueError(
                f"Expected sampling_probs to sum to 1, got sampling_probs={self.sampling_probs!r}."
            )


@dataclasses.dataclass(frozen=True)
class PoissonSampled(Mechanism):
    """Runs `event` on a sample that each unit joins by its own coin. `sampling_prob` in [0, 1].

    The coin is thrown once, for all of `event`: within it a `CorrelatedGaussian`, or a composition,
    is many rounds of one sample. A sample for each round is `SelfComposed` of `PoissonSampled`.
    Of a Gaussian `event` under REPLACE_ONE, each unit must move the sum by at most half of what the
    noise multiplier is relative to: one clipped to C, where an exchange moves the sum by 2 C.
    Privacy-loss distributions count on it, since a unit that joins while its neighbour stays out
    is told apart by its own norm.
    """

    sampling_prob: float
    event: Mechanism

    def __post_init__(self) -> None:
        _validate.closed_unit(sampling_prob=self.sampling_prob)
        _is_mechanism("event", self.event)


@dataclasses.dataclass(frozen=True)
class SampledWithoutReplacement(Mechanism):
    """Runs `event` on `sample_size` units drawn uniformly, without replacement, from `population`
    units.
    """

    population: int
    sample_size: int
    event: Mechanism

    def __post_init__(self) -> None:
        _validate.positive_int(population=self.population, sample_size=self.sample_size)
        if self.sample_size > self.population:
            raise ValueError(
                f"Expected sample_size <= population={self.population}, got "
                f"sample_size={self.sample_size}."
            )
        _is_mechanism("event", self.event)


@dataclasses.dataclass(frozen=True)
class SampledWithReplacement(Mechanism):
    """Runs `event` on `sample_size` draws from `population` units, each of all of them. No
    accountant has a bound for it.
    """

    population: int
    sample_size: int
    event: Mechanism

    def __post_init__(self) -> None:
        _validate.positive_int(population=self.population, sample_size=self.sample_size)
        _is_mechanism("event", self.event)


@dataclasses.dataclass(frozen=True)
class TruncatedPoissonGaussian(Mechanism):
    """Adds Gaussian noise to the sum of a Poisson sample of `population` units; of a sample larger
    than `most`, `most` units drawn from it are left.

    `sampling_prob`: of each unit, in [0, 1]. `noise_multiplier`: noise stddev / how far one unit
      moves the sum by being there; >= 0, 0 is no noise. `population`: those of the larger neighbour
      where one is added or removed: of n units one of whom may leave, n; whom one may join, n + 1.

    Source: arXiv:2508.15089.
    """

    population: int
    sampling_prob: float
    most: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.non_negative_int(population=self.population, most=self.most)
        _validate.closed_unit(sampling_prob=self.sampling_prob)
        _validate.non_negative(noise_multiplier=self.noise_multiplier)


@dataclasses.dataclass(frozen=True)
class RandomAllocation(Mechanism):
    """Adds Gaussian noise in each of `num_rounds` rounds, of which each unit is in exactly `times`,
    drawn at random for it: a whole run, not a round.

    `noise_multiplier`: noise stddev / how far one unit moves a round's sum by being there; >= 0, 0
      is no noise. `num_rounds`: >= 1. `times`: in [1, num_rounds].

    Source: Feldman, Shenfeld (2025), arXiv:2502.08202.
    """

    num_rounds: int
    times: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.positive_int(num_rounds=self.num_rounds, times=self.times)
        if self.times > self.num_rounds:
            raise ValueError(
                f"Expected times <= num_rounds={self.num_rounds}, got times={self.times}."
            )
        _validate.non_negative(noise_multiplier=self.noise_multiplier)


@dataclasses.dataclass(frozen=True)
class GaussianWeighted(Mechanism):
    """A sum of clipped rows with Gaussian weights, and Gaussian noise beside: its covariance
    depends on the data.

    The weights of a client with D rows are 1/D + xi / sqrt(B D), xi ~ N(0, I). `noise_multiplier`:
    root of the lowest variance of the added or lifted noise in the sum / how far one replaced row
    moves the mean, 2 C / D; >= 0.
    `sampling_rate`: B / D > 0. `lifted`: the noise is water filling, not isotropic.
    """

    noise_multiplier: float
    sampling_rate: float
    lifted: bool

    def __post_init__(self) -> None:
        _validate.non_negative(noise_multiplier=self.noise_multiplier)
        _validate.positive(sampling_rate=self.sampling_rate)
        _validate.one_of((False, True), lifted=self.lifted)


@dataclasses.dataclass(frozen=True)
class ZCdp(Mechanism):
    """Anything that is (xi, rho)-zCDP: Renyi divergence of every order a > 1 at most `xi + rho *
    a`.
    """

    rho: float
    xi: float = 0.0

    def __post_init__(self) -> None:
        _validate.non_negative(rho=self.rho, xi=self.xi)


@dataclasses.dataclass(frozen=True)
class EpsilonDelta(Mechanism):
    """Anything that is (epsilon, delta)-DP. `epsilon` >= 0, `delta` in [0, 1)."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        _validate.non_negative(epsilon=self.epsilon, delta=self.delta)
        if not self.delta < 1:
            raise ValueError(f"Expected delta in [0, 1), got delta={self.delta!r}.")


@dataclasses.dataclass(frozen=True)
class NonPrivate(Mechanism):
    """A release without any guarantee: epsilon is infinite."""


@dataclasses.dataclass(frozen=True)
class Composed(Mechanism):
    """Runs `events` one after another on the same data, later ones perhaps depending on earlier
    outputs.
    """

    events: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        if isinstance(self.events, Mechanism | PrivacyEvent):
            raise ValueError(
                f"Expected events to be a tuple of mechanism records, got events={self.events!r}."
            )
        object.__setattr__(self, "events", tuple(self.events))
        for event in self.events:
            _is_mechanism("events", event)


@dataclasses.dataclass(frozen=True)
class SelfComposed(Mechanism):
    """Runs `event` `count` times on the same data, with fresh randomness. `count` is an integer >=
    0.
    """

    event: Mechanism
    count: int

    def __post_init__(self) -> None:
        _is_mechanism("event", self.event)
        _validate.non_negative_int(count=self.count)
        object.__setattr__(self, "count", int(self.count))
        if self.count > 1e300:
            raise ValueError("Expected count <= 1e300, got one that no float holds.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyEvent:
    """One mechanism under one claim.

    Attributes:
      mechanism: what ran.
      privacy_unit: "client", "example" or "subject": what is added, removed or replaced.
      neighboring_relation: a `NeighboringRelation` or its name.

    Raises:
      ValueError: an unknown unit or relation, or `mechanism` is no mechanism record.
    """

    mechanism: Mechanism
    privacy_unit: Literal["client", "example", "subject"]
    neighboring_relation: NeighboringRelation

    def __new__(cls, *args: Any, **kwargs: Any) -> "PrivacyEvent":
        if args:
            raise TypeError(
                "Expected PrivacyEvent(mechanism=..., privacy_unit=..., "
                f"neighboring_relation=...), each by its name, got {len(args)} without a name."
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        _is_mechanism("mechanism", self.mechanism)
        _validate.one_of(PRIVACY_UNITS, privacy_unit=self.privacy_unit)
        _validate.one_of(
            [r.value for r in NeighboringRelation], neighboring_relation=self.neighboring_relation
        )
        object.__setattr__(
            self, "neighboring_relation", NeighboringRelation(self.neighboring_relation)
        )

    def repeat(self, count: int) -> "PrivacyEvent":
        """The event of running this one `count` times: `event(config).repeat(num_rounds)`."""
        return dataclasses.replace(self, mechanism=SelfComposed(self.mechanism, count))


def compose(events: Iterable[PrivacyEvent]) -> PrivacyEvent:
    """The event of running all of `events` on the same data.

    Raises:
      ValueError: there is no event.
      NoGuaranteeError: units or relations differ; their epsilons do not add up to anything.
    """
    if isinstance(events, PrivacyEvent | Mechanism) or is_foreign(events):
        raise ValueError(
            f"Expected events to be a list of events, got events={events!r}: write "
            "compose([event])."
        )
    events = list(events)
    if not events:
        raise ValueError("Expected events to hold at least one event, got events=[].")
    for event in events:
        check_event("events", event)
    claims = sorted({(e.privacy_unit, str(e.neighboring_relation)) for e in events})
    if len(claims) > 1:
        raise NoGuaranteeError(
            f"Expected events of one privacy_unit and neighboring_relation, got {claims}."
        )
    if len(events) == 1:
        return events[0]
    return dataclasses.replace(events[0], mechanism=Composed(tuple(e.mechanism for e in events)))


RECORDS: dict[str, type[Mechanism]] = {
    record.__name__: record
    for record in (
        Gaussian,
        Laplace,
        DiscreteGaussian,
        DiscreteGaussianSum,
        Skellam,
        DiscreteLaplace,
        RandomizedResponse,
        Staircase,
        NoisyMax,
        SparseVector,
        TreeAggregation,
        CorrelatedGaussian,
        SampledCorrelatedGaussian,
        RepeatAndSelect,
        MixtureOfGaussians,
        PoissonSampled,
        SampledWithoutReplacement,
        SampledWithReplacement,
        TruncatedPoissonGaussian,
        RandomAllocation,
        GaussianWeighted,
        ZCdp,
        EpsilonDelta,
        NonPrivate,
        Composed,
        SelfComposed,
    )
}


def mechanism_to_json(value: Any) -> Any:
    """The part of `to_json` below the claim."""
    if isinstance(value, Mechanism):
        fields = dataclasses.fields(value)  # type: ignore[arg-type]
        return {
            "type": type(value).__name__,
            **{f.name: mechanism_to_json(getattr(value, f.name)) for f in fields},
        }
    if isinstance(value, tuple):
        return [mechanism_to_json(v) for v in value]
    return (
        value.item() if hasattr(value, "item") else value
    )  # a NumPy scalar becomes a Python number


def exact_keys(what: str, found: Any, expected: set[str]) -> None:
    """Raises ValueError unless `found` is a mapping with just these keys."""
    if not isinstance(found, Mapping) or set(found) != expected:
        got = sorted(map(str, found)) if isinstance(found, Mapping) else found
        raise ValueError(f"Expected {what} to have the keys {sorted(expected)}, got {got!r}.")


def mechanism_from_json(value: Any) -> Any:
    """The part of `from_json` below the claim."""
    if isinstance(value, list):
        return tuple(mechanism_from_json(v) for v in value)
    if not isinstance(value, Mapping):
        return value
    name = value.get("type", "")
    failed = (
        [] if name in RECORDS else _plugins.load_all("mechanisms")
    )  # which register their records
    record = RECORDS.get(name)
    if record is None:
        hint = " ".join(["." + _near.did_you_mean(name, RECORDS), *failed])
        raise ValueError(
            f"Expected type to be one of {sorted(RECORDS)}, got type={value.get('type')!r}{hint}"
        )
    names = {f.name for f in dataclasses.fields(record)}  # type: ignore[arg-type]
    exact_keys(record.__name__, value, names | {"type"})
    return record(**{name: mechanism_from_json(value[name]) for name in names})


def to_json(event: PrivacyEvent) -> dict[str, Any]:
    """The event as a tree of dicts, lists, strings and numbers for `json.dumps`; floats come back
    bit for bit.
    """
    check_event("event", event)
    return {
        "format": FORMAT,
        "privacy_unit": event.privacy_unit,
        "neighboring_relation": str(event.neighboring_relation),
        "mechanism": mechanism_to_json(event.mechanism),
    }


def from_json(tree: Mapping[str, Any]) -> PrivacyEvent:
    """The inverse of `to_json`.

    Raises:
      ValueError: another format, an unknown record, a missing or surplus key, or a value out of
        range.
    """
    exact_keys(
        "a privacy event", tree, {"format", "privacy_unit", "neighboring_relation", "mechanism"}
    )
    _validate.one_of([FORMAT], format=tree["format"])
    return PrivacyEvent(
        mechanism=mechanism_from_json(tree["mechanism"]),
        privacy_unit=tree["privacy_unit"],
        neighboring_relation=tree["neighboring_relation"],
    )
