"""Noise that is correlated over rounds, and clients or examples that take turns: what schemes with
central noise share of it.

Who takes part in a round is of its turn: number modulo the length of a cycle. So a unit's rounds
are a whole cycle apart, and what it moves of C x is known before the run. Or each unit is in some
rounds of a cycle that are drawn for it, and nobody knows which. Where noise is correlated, too,
these are drawn once for all rounds of C.
"""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fljax import _keys, _validate
from fljax.accounting import correlated, events
from fljax.data.cohorts import Cohort
from fljax.schemes import base, exact
from fljax.schemes.central import round as central
from fljax.server.rounds import Clients, Release, Round, Sums, everybody
from fljax_kernels import correlated as kernel
from fljax_kernels.correlated import Strategy
from fljax_kernels.sampling import allocation

Correlation = Literal["none", "banded"]
Sampling = Literal["poisson", "allocation"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandedConfig(exact.ExactConfig):
    """How units are sampled, and whether noise is exact or correlated: a part of configs of schemes
    that sample; public numbers.

    Raises:
      ValueError: a number is out of its range, a unit would have to join its turn with a chance
        above 1, the bound adapts, sampling_prob is no whole number of allocation_rounds, or with
        banded noise not one of them.
    """

    sampling: Sampling = "poisson"
    """Who is in a round: "poisson": each unit by its own coin. "allocation": each unit is in
    sampling_prob of any `allocation_rounds` rounds, exactly, drawn at random for it. In one of
    them: balls in bins. With banded noise it is in that one of all cycles, until noise begins anew.
    """
    allocation_rounds: int = 20
    """Rounds of a cycle where sampling is "allocation": the claim counts once for each, or, with
    banded noise, for each `banded_for` rounds.
    """

    correlation: Correlation = "none"
    """Of noise over rounds: "none", or "banded": later rounds take back part of it. Units that are
    sampled by coins then take turns, and each joins one of any `bands` rounds at most, with chance
    sampling_prob * bands.
    """
    bands: int = 4
    """Rounds whose noise is correlated where it is "banded", and length of a cycle of turns."""
    banded_for: int = 64
    """Rounds of which banded noise leaves the least error in the mean. Any number may be run. Where
    sampling is "allocation", noise begins anew after them, and rounds are drawn anew.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(typing.get_args(Correlation), correlation=self.correlation)
        _validate.one_of(typing.get_args(Sampling), sampling=self.sampling)
        _validate.positive_int(
            bands=self.bands,
            banded_for=self.banded_for,
            allocation_rounds=self.allocation_rounds,
        )
        config: Any = self  # a part of a `SampledConfig` with a `ClippingConfig`
        if self.sampling == "allocation":
            times = config.sampling_prob * self.allocation_rounds
            if not (times >= 0.5 and abs(times - round(times)) <= 1e-6):
                raise ValueError(
                    "Expected sampling_prob * allocation_rounds to be a whole number >= 1 with "
                    f"sampling='allocation', got sampling_prob={config.sampling_prob!r} and "
                    f"allocation_rounds={self.allocation_rounds!r}."
                )
            if self.correlation == "banded" and round(times) != 1:
                raise ValueError(
                    "Expected sampling_prob * allocation_rounds to be 1 with sampling='allocation' "
                    "and correlation='banded', of whose units in several rounds of a cycle no "
                    f"chances are counted, got sampling_prob={config.sampling_prob!r} and "
                    f"allocation_rounds={self.allocation_rounds!r}."
                )
        if self.correlation == "none":
            return
        if self.sampling == "poisson" and not self.bands * config.sampling_prob <= 1:
            raise ValueError(
                "Expected sampling_prob * bands <= 1 with correlation='banded', got "
                f"sampling_prob={config.sampling_prob!r} and bands={self.bands!r}."
            )
        if config.target_quantile is not None:
            raise ValueError(
                "Expected target_quantile=None with correlation='banded', whose later rounds take "
                f"back noise of one bound, got target_quantile={config.target_quantile!r}."
            )


def cycle(config: BandedConfig) -> int:
    """Rounds of which a unit may join one, by a coin, where noise is banded; else 1."""
    return config.bands if config.correlation == "banded" and config.sampling == "poisson" else 1


def dealt_for(config: BandedConfig) -> int:
    """Rounds after which units are drawn into rounds anew, where sampling is "allocation"."""
    return config.allocation_rounds if config.correlation == "none" else config.banded_for


def bins_and_bands(config: BandedConfig) -> bool:
    """Whether units are dealt to bins once for all rounds of a strategy."""
    return config.sampling == "allocation" and config.correlation == "banded"


def join_prob(config: Any) -> float:
    """Chance that a unit's coin lets it join a round of its turn; 1 where none is tossed."""
    if config.sampling == "allocation":
        return 1.0
    return float(cycle(config) * config.sampling_prob)


def uses(config: BandedConfig, num_rounds: int) -> int:
    """Most of `num_rounds` rounds that are of one unit's turn, or how often they draw rounds."""
    length = dealt_for(config) if config.sampling == "allocation" else cycle(config)
    return -(-num_rounds // length)


def normals(config: BandedConfig, num_params: int) -> int:
    """As usual; where coins decide, a unit meets banded noise of all rounds of a cycle."""
    return cycle(config) * (num_params + 1)


def event(
    config: Any, *, privacy_unit: Literal["client", "example"] = "client"
) -> events.PrivacyEvent:
    """What a round of its turn, or all rounds that are drawn at once, do to one unit's data: a run
    is `uses` of them.

    Where coins decide, C has as many bands as a cycle has rounds. So rounds of one unit meet
    disjoint rows of it, and tell of the unit what so many Poisson-sampled Gaussian mechanisms do.
    Bins may be fewer than bands: `accounting.monte_carlo` counts their chances, other accountants
    take the unit's bin for known.

    Source: arXiv:2306.08153, Theorem 4; arXiv:2502.08202 for allocated rounds, arXiv:2410.06266
    for those with banded noise.
    """
    noise_multiplier = base.noise_multiplier(config)
    mechanism: events.Mechanism = events.PoissonSampled(
        join_prob(config), events.Gaussian(noise_multiplier)
    )
    if bins_and_bands(config):
        chosen, _ = strategy(config)
        mechanism = events.SampledCorrelatedGaussian(
            noise_multiplier,
            chosen.kind,
            chosen.coefs,
            chosen.num_rounds,
            config.allocation_rounds,
            "balls_in_bins",
        )
    elif config.sampling == "allocation":
        mechanism = events.RandomAllocation(
            config.allocation_rounds, times(config), noise_multiplier
        )
    return events.PrivacyEvent(
        mechanism=mechanism,
        privacy_unit=privacy_unit,
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def times(config: Any) -> int:
    """Rounds of a cycle that a unit is in, where sampling is "allocation"."""
    return round(config.sampling_prob * config.allocation_rounds)


def strategy(config: BandedConfig) -> tuple[Strategy, float]:
    """C of banded noise, and by how many times what a round moves its noise is scaled: with coins
    `noise_multiplier` is of a column of C, which is all that a round of a unit's turn moves.
    """
    if bins_and_bands(config):
        return correlated.banded(config.banded_for, config.bands), 1.0
    return correlated.endless_bands(config.banded_for, config.bands)


def noise(config: Any, expected_count: float) -> central.Noise:
    """As `central.noise`, exact, or banded: then `noise_multiplier` is that of a round of a unit's
    turn, or, where units are in bins, of what is drawn in a round over what one unit moves there.
    """
    if config.noise == "exact":
        return central.exact_sums(config, expected_count, config.clipping_style)
    if config.correlation == "none":
        return central.noise(config, expected_count)
    chosen, moved = strategy(config)
    stddev = base.noise_multiplier(config) * config.l2_clip_norm * moved
    return central.Noise(
        lambda params: kernel.init(chosen, params),
        lambda _: config.l2_clip_norm,
        None,
        release(chosen, stddev, expected_count),
    )


def release(strategy: Strategy, stddev: float, divisor: float) -> Callable[[Round, Sums], Release]:
    """Of a round's sums: with this round's row of stddev * C^-1 z on them; `state.clipping` is the
    noise's state.
    """

    def released(here: Round, sums: Sums) -> Release:
        key = here.server_key(_keys.Purpose.NOISE)
        noisy, after = kernel.add_noise(strategy, key, sums.total, stddev, here.state.clipping)
        return Release(noisy, divisor, clipping=after)

    return released


def has_turn(numbers: jax.Array, here: Round, length: int) -> jax.Array:
    """Whose turn of a cycle of so many rounds it is: bool, like `numbers`."""
    return numbers % length == here.state.round % length


def allocated(config: Any, here: Round, ids: jax.Array, places: jax.Array) -> jax.Array:
    """Whether units of `places` `[P]` of clients `ids` `[C]` are in this round: bool `[C, P]`.

    Drawn by each client's own key of a cycle, or of all cycles until noise begins anew: who is
    removed changes nobody else's rounds.
    """
    count, length = config.allocation_rounds, dealt_for(config)
    keys = _keys.client_keys(here.key, here.state.round // length, ids, _keys.Purpose.ALLOCATE)
    place = here.state.round % length % count
    of_client = lambda key: allocation.joins(
        key, place, places.astype(jnp.uint32), count, times(config)
    )
    found: jax.Array = jax.vmap(of_client)(keys)
    return found


def of_round(config: Any) -> Callable[[Round, Cohort], tuple[Round, Clients]]:
    """Which clients of a cohort work, as the config samples them."""
    if config.sampling == "allocation":
        one = jnp.zeros(1, jnp.int32)
        return _first(lambda here, ids: allocated(config, here, ids, one)[:, 0])
    return choose(cycle(config))


def choose(length: int, most: int | None = None) -> Callable[[Round, Cohort], Any]:
    """Clients of the cohort whose turn it is, first; room for `most` of them (None: for all)."""
    if length == 1:
        return everybody
    return _first(lambda here, ids: has_turn(ids, here, length), most)


def _first(
    joins: Callable[[Round, jax.Array], jax.Array], most: int | None = None
) -> Callable[[Round, Cohort], tuple[Round, Clients]]:
    def chosen(here: Round, cohort: Cohort) -> tuple[Round, Clients]:
        there = (cohort.client_ids >= 0) & joins(here, cohort.client_ids)
        places = jnp.argsort(~there, stable=True)[:most]
        present = there[places]
        rows = jnp.where(present[:, None], cohort.indices[places], -1)
        return here, Clients(cohort.client_ids[places], rows, present)

    return chosen
