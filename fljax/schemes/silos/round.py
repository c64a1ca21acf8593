"""The round that the subject-level schemes share: every silo trains for itself, the server takes
the plain mean.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fljax import _deprecation, _keys, _validate
from fljax.accounting import correlated, events
from fljax.accounting.subjects import rounds as subjects
from fljax.data import parties
from fljax.data.cohorts import Cohort
from fljax.data.facts import Facts
from fljax.data.subjects import SUBJECT
from fljax.errors import PrivacyPreconditionError
from fljax.local.silo import Number, noisy_steps
from fljax.local.silo_query import Query, within_cap
from fljax.schemes import base, exact
from fljax.server import aggregate, optimizers, rounds
from fljax.server.rounds import Clients, Performance, Release, Round, Sums
from fljax.types import LossFn, Params
from fljax.upload import exact_noise
from fljax_kernels import correlated as kernel
from fljax_kernels.correlated import Strategy

# What `fljax simulate` starts from where a scheme has silos: examples that carry subjects, spread
# over 16 silos. Steps are as bench/rounds/defaults.py found them to learn most.
START: dict[str, dict[str, Any]] = {
    "data": {"dataset": "writers", "num_clients": 16, "partition": "subject_uniform"},
    "model": {"model": "softmax"},
    "scheme": {"num_parties": None, "local_learning_rate": 1.0, "server_momentum": 0.9},
    "privacy": {"target_delta": 2e-4},
    "run": {"num_rounds": 30},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(optimizers.ServerSteps, parties.Parties, metaclass=_deprecation.OldFields):
    """Public numbers of training in silos, which are the parties.

    Raises:
      ValueError: a number is out of its range.
    """

    num_parties: int | None = 16
    """Silos. none: as many as the data have."""
    silos_per_round: int | None = None
    """Silos that the server draws for each round, evenly and anew. none: all of them."""
    item_sampling_prob: float = 0.1
    """Chance of each item to be in the batch of one local step, in (0, 1]."""
    num_local_steps: int = 2
    """Steps that a silo takes in one round."""
    local_learning_rate: float = 2.0
    """Step size of a silo, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(num_local_steps=self.num_local_steps)
        _validate.probability(item_sampling_prob=self.item_sampling_prob)
        _validate.positive(local_learning_rate=self.local_learning_rate)
        if self.silos_per_round is not None:
            _validate.positive_int(silos_per_round=self.silos_per_round)
            if self.num_parties is not None and self.silos_per_round > self.num_parties:
                raise ValueError(
                    f"Expected silos_per_round <= num_parties={self.num_parties}, got "
                    f"silos_per_round={self.silos_per_round}."
                )

    num_silos = _deprecation.alias("num_silos", "num_parties")
    silos = _deprecation.alias("silos", "parties")

    @property
    def noise_factors(self) -> tuple[float, ...]:
        """For each silo a factor on the noise, if there is any."""
        return (1.0,) * self.parties

    @property
    def cycle(self) -> int:
        """Steps of a silo of which each subject may be in one."""
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyConfig(TrainingConfig, base.NoiseConfig):
    """As `TrainingConfig`, and what makes a silo's steps private. Each number may be published."""

    l2_clip_norm: float = 0.5
    """Bound on what one privacy unit adds to a silo's sum, in the unit of a gradient."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise on a silo's sum / l2_clip_norm. none: calibrated for the
    target epsilon.
    """
    silo_noise: tuple[float, ...] = ()
    """For each silo a factor > 0 on its noise; empty: all 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "silo_noise", tuple(self.silo_noise))
        num, given = self.num_parties, len(self.silo_noise)
        if given and num is not None and given != num:
            raise ValueError(
                "Expected silo_noise to be empty or to hold one factor for each of "
                f"num_parties={num}, got {given} factors."
            )
        for factor in self.silo_noise:
            _validate.positive(silo_noise=factor)

    @property
    def noise_factors(self) -> tuple[float, ...]:
        """As there: `silo_noise`."""
        return self.silo_noise or super().noise_factors


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloConfig(NoisyConfig, exact.ExactConfig):
    """As `NoisyConfig`, and how noise is drawn."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubjectCaps(parties.Parties):
    """The two caps that a guarantee for subjects rests on."""

    max_items_per_subject: int = 4
    """Most items of one subject in one silo; a silo leaves surplus items out."""
    silos_per_subject: int | None = None
    """Most silos that hold items of one subject, which no silo can see for itself. none: all of
    them.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(max_items_per_subject=self.max_items_per_subject)
        if self.silos_per_subject is not None:
            check_holders(self, self.silos_per_subject)

    @property
    def holders(self) -> int:
        """Most silos that one subject meets. Raises ValueError where it is all of them, and
        num_parties is None.
        """
        return self.parties if self.silos_per_subject is None else self.silos_per_subject


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubjectConfig(SubjectCaps, SiloConfig):
    """As `SiloConfig`, with `SubjectCaps`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandedConfig(SubjectConfig):
    """As `SubjectConfig`, with noise that may be correlated over all steps of a silo."""

    correlation: Literal["none", "banded"] = "none"
    """Of a silo's noise over its steps: "none", or "banded": later steps, in later rounds too, take
    back part of it. Then subjects take turns: a subject may be in one of any `bands` steps, each of
    its items with chance item_sampling_prob * bands.
    """
    bands: int = 4
    """Steps whose noise is correlated, and length of a cycle of turns, where it is "banded"."""
    banded_for: int = 64
    """Steps of which banded noise leaves the least error in the mean. Any number may be run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(("none", "banded"), correlation=self.correlation)
        _validate.positive_int(bands=self.bands, banded_for=self.banded_for)
        if self.correlation == "banded" and self.silos_per_round is not None:
            raise ValueError(
                "Expected silos_per_round=None with correlation='banded', where silos take steps "
                f"in turn, got silos_per_round={self.silos_per_round}."
            )
        if not self.cycle * self.item_sampling_prob <= 1:
            raise ValueError(
                "Expected item_sampling_prob * bands <= 1 with correlation='banded', got "
                f"item_sampling_prob={self.item_sampling_prob!r} and bands={self.bands!r}."
            )

    @property
    def cycle(self) -> int:
        """As there: `bands` where noise is banded."""
        return self.bands if self.correlation == "banded" else 1


def check_holders(config: parties.Parties, silos_per_subject: int) -> None:
    """Raises ValueError where a subject would lie in no silo, or in more than there are."""
    _validate.positive_int(silos_per_subject=silos_per_subject)
    if config.num_parties is not None and silos_per_subject > config.num_parties:
        raise ValueError(
            f"Expected silos_per_subject <= num_parties={config.num_parties}, "
            f"got silos_per_subject={silos_per_subject}."
        )


def subject_population(config: SubjectCaps) -> base.Population:
    """As many clients as silos, and the two caps on a subject."""
    return base.Population(
        num_clients=config.num_parties,
        subject_clients=config.silos_per_subject,
        subject_examples=config.max_items_per_subject,
    )


def fitted_subjects(config: Any, facts: Facts) -> Any:
    """As `parties.fitted`, for a claim about subjects.

    A bound of None on a subject's silos stays: it means all of them. It is not taken from the data,
    since how many hold a subject is private. The cap on a subject's items is enforced in every
    round and needs no check.

    Raises:
      PrivacyPreconditionError: as there; or examples carry no subjects, or a subject lies in more
        silos than assumed.
    """
    config = parties.fitted(config, facts)
    if facts.most_clients_of_subject is None:
        raise PrivacyPreconditionError(
            f"Expected examples to carry the key {SUBJECT!r} for a claim about subjects, got none: "
            "subjects unknown."
        )
    if facts.most_clients_of_subject > config.holders:
        raise PrivacyPreconditionError(
            f"Expected silos_per_subject >= {facts.most_clients_of_subject}, the most silos in "
            f"which the data put one subject, got silos_per_subject={config.silos_per_subject}."
        )
    return config


class Silo(NamedTuple):
    """What a scheme makes a silo do in one local step.

    query: the sum before noise. divisor: of the noised sum. stddev: of the noise, before it is
    correlated. max_items_per_subject: rows of a subject beyond so many are left out; None: nobody's
    are. grid: that the query adds up on; None: in float32. strategy: how noise is correlated over
    all steps; subjects take turns as it has bands.
    """

    query: Query
    divisor: Number
    stddev: Number
    max_items_per_subject: int | None = None
    grid: exact_noise.Grid | None = None
    strategy: Strategy | None = None


def mean(here: Round, silos: Clients, sums: Sums) -> Release:
    """The plain mean of the silos that are there."""
    share = 1 / jnp.maximum(1, sums.num_present).astype(jnp.float32)
    return Release(
        jax.tree.map(lambda u, p: (u * share).astype(p.dtype), sums.total, here.state.params)
    )


def maker(silo: Callable[[Any, LossFn, Performance], Silo]) -> base.Make:
    """`make` of a scheme whose silos do what `silo(config, loss, performance)` says."""

    @base.maker
    def make(config: Any, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
        """Builds the algorithm: all silos, or those that the server draws, train from its model,
        and it steps along their mean update.

        Guarantee: one round is one `event(config)` of the scheme, for its privacy unit and
        relation, towards a server that sees every silo's update, if at most `silos_per_subject`
        silos hold items of one subject. The cap on a subject's items in a silo is enforced here,
        whatever the data: surplus items are left out, by an order that depends on the subject's own
        items alone. The server knows whom it draws, so that its draw hides nothing: a round counts
        as if it had drawn as many of a subject's silos as it can. Where noise is correlated, a run
        is `uses` such events: a subject is in the steps of its turn alone, by its number, and a
        silo keeps its noise between rounds.
        Averaging is post-processing; the number of silos is public.
        Idealisation: noise is drawn in float32 (in whole numbers where it is "exact") with the
        key's generator; threefry is no cryptographic source. RoundInfo is not private.

        Args, Raises: as `base.Make`; examples carry their subject where the unit is a subject.
        """
        return build(config, silo(config, loss, given.performance), given)

    return make


def build(
    config: Any,
    does: Silo,
    given: base.Given,
    release: Callable[[Any, Round, Clients, Sums], Release] = lambda _, *sums: mean(*sums),
) -> base.FederatedAlgorithm:
    """The rounds of silos that do what `does` says; release: `(config, round, silos, sums)`."""
    train = noisy_steps(
        does.query,
        num_steps=config.num_local_steps,
        learning_rate=config.local_learning_rate,
        stddev=does.stddev,
        divisor=does.divisor,
        optimizer=given.local_optimizer,
        strategy=does.strategy,
        noised=None if does.grid is None else functools.partial(exact_noise.noised, does.grid),
    )

    def of_silo(here: Round, client: Clients) -> Any:
        if does.grid is not None:
            exact_noise.check_rows(does.grid, client.rows.size)
        sample_key = here.client_keys(client.ids, _keys.Purpose.SAMPLE_EXAMPLES)
        noise_key = here.client_keys(client.ids, _keys.Purpose.NOISE)
        keys = (sample_key, noise_key)
        kept = () if does.strategy is None else (client.kept,)
        found = train(here.state.params, here.examples, client.rows, *keys, client.given, *kept)
        stats = jnp.stack([found.loss, found.clipped_fraction])
        return (found.update, stats, found.noise) if kept else (found.update, stats)

    return rounds.federated(
        rounds.each(of_silo),
        functools.partial(release, config),
        choose=functools.partial(_choose, config, does.max_items_per_subject),
        server_optimizer=given.server_optimizer,
        performance=given.performance,
        chunk_size=_silos_at_once,
        client_state=None if does.strategy is None else _kept(does.strategy),
        in_place=True,
    )


def _kept(strategy: Strategy) -> rounds.ClientState:
    """A silo keeps its noise to itself: who knew it would take it out of the next update."""

    def first(params: Params) -> kernel.State:
        wide = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
        return kernel.init(strategy, wide)

    return rounds.ClientState(first)


def _choose(
    config: TrainingConfig, max_items_per_subject: int | None, here: Round, cohort: Cohort
) -> tuple[Round, Clients]:
    """The silos of the cohort with the rows that count and the factor on their noise."""
    if cohort.client_ids.shape[0] > config.parties:
        raise ValueError(
            f"Expected at most num_parties={config.parties} silos in a round, got "
            f"{cohort.client_ids.shape[0]}."
        )
    here, silos = rounds.everybody(here, cohort)
    if config.silos_per_round is not None:
        draw = here.server_key(_keys.Purpose.CHOOSE_CLIENTS)
        order = jax.random.permutation(draw, config.parties)
        drawn = jnp.zeros(config.parties, bool).at[order[: config.silos_per_round]].set(True)
        present = silos.present & drawn[jnp.maximum(silos.ids, 0)]
        silos = silos._replace(present=present, rows=jnp.where(present[:, None], silos.rows, -1))
    if max_items_per_subject is not None:
        silos = silos._replace(rows=_capped(cohort.examples, silos.rows, max_items_per_subject))
    factors = jnp.asarray(config.noise_factors, jnp.float32)
    return here, silos._replace(given=factors[jnp.maximum(silos.ids, 0)])


def _silos_at_once(here: Round, silos: Clients, platform: str) -> int:
    """Equal chunks. On a CPU a silo's step is many small operations (samples, groups, noise), whose
    fixed cost side by side silos share: eight times as many of them as of clients with plain steps
    (bench/rounds/subject_steps.py).
    """
    most = aggregate.default_chunk_size(here.num_params, platform) * (8 if platform == "cpu" else 1)
    (num_silos,) = silos.ids.shape
    return -(-num_silos // -(-num_silos // most))


def _capped(examples: Any, rows: jax.Array, max_items: int) -> jax.Array:
    if not isinstance(examples, dict) or SUBJECT not in examples:
        raise ValueError(
            f"Expected examples to carry the key {SUBJECT!r}, got none: see fljax.data.subjects."
        )
    ids = jnp.take(examples[SUBJECT], jnp.maximum(rows, 0), axis=0).astype(jnp.int32)
    return jax.vmap(lambda r, i: within_cap(r, i, max_items))(rows, ids)


def items(
    config: NoisyConfig,
    performance: Performance,
    grid: exact_noise.Grid | None,
    add_up: Callable[..., Any] = exact_noise.total_of_gradients,
) -> dict[str, Any]:
    """The arguments that all queries over sampled items share; grid: of `grid_of`, with what adds
    up on it.
    """
    return {
        "item_sampling_prob": config.item_sampling_prob * config.cycle,
        "l2_clip_norm": config.l2_clip_norm,
        "batch_size": performance.microbatch_size,
        "add_up": None if grid is None else functools.partial(add_up, grid),
    }


def grid_of(
    config: SiloConfig, *, norms_moved: float = 1.0, most_parts: int = 1
) -> exact_noise.Grid | None:
    """What a silo rounds to where noise is exact; None where it is not.

    Args:
      norms_moved: the noise's standard deviation / (noise_multiplier * l2_clip_norm).
      most_parts: items that share one l2_clip_norm, at most.

    Raises:
      ValueError: as `exact_noise.grid`, or noise_multiplier is None.
    """
    if not exact.asked(config):
        return None
    return exact_noise.grid(
        base.noise_multiplier(config),
        l2_clip_norm=config.l2_clip_norm,
        most_rows=1,  # how many there are, a round sees: `exact_noise.check_rows`
        norms_moved=norms_moved,
        most_parts=most_parts,
        of_factors=True,
    )


def stddev(config: NoisyConfig) -> float:
    """Standard deviation of the noise on a silo's sum, before its factor and its correlation."""
    plain = base.noise_multiplier(config) * config.l2_clip_norm
    return plain if config.cycle == 1 else plain * _bands(config)[1]


def strategy(config: SiloConfig) -> Strategy | None:
    """How noise is correlated over all steps of a silo; None: it is not."""
    return None if config.cycle == 1 else _bands(config)[0]


def _bands(config: Any) -> tuple[Strategy, float]:
    """C, and how far a step of a subject's turn moves C x, in units of the step."""
    return correlated.endless_bands(config.banded_for, config.bands)


def uses(config: TrainingConfig, num_rounds: int) -> int:
    """Rounds, or where subjects take turns the most steps of one subject's turn in a silo."""
    if config.cycle == 1:
        return num_rounds
    return -(-num_rounds * config.num_local_steps // config.cycle)


def normals(config: TrainingConfig, num_params: int) -> int:
    """As usual; of banded noise a step of a subject's turn meets that of all steps of a cycle."""
    return config.cycle * (num_params + 1)


def subject_event(config: Any, step: subjects.Step) -> events.PrivacyEvent:
    """One round at subject level, or one step of its turn in each silo: of
    `accounting.subjects.rounds.event`.
    """
    return subjects.event(
        step,
        noise_multiplier=base.noise_multiplier(config),
        silo_noise=config.silo_noise,
        holders=met(config, config.holders),
        num_steps=config.num_local_steps if config.cycle == 1 else 1,
    )


def met(config: TrainingConfig, holders: int) -> int:
    """Most silos of one round that hold a subject, of which all rounds together hold `holders`."""
    return holders if config.silos_per_round is None else min(holders, config.silos_per_round)


def least_noise(config: NoisyConfig) -> float:
    """Noise multiplier of the silo with the least noise: what counts where a unit lies in one silo
    only.
    """
    return base.noise_multiplier(config) * min(config.silo_noise, default=1.0)


def present_step(config: SubjectConfig, num_items: int | None = None) -> subjects.Step:
    """What one local step does to a subject of `num_items` items in a silo, None: the most, for a
    noise multiplier. It moves the sum by the sensitivity if any of them is in the batch.
    """
    most = num_items or config.max_items_per_subject
    return subjects.present(most, config.item_sampling_prob * config.cycle)


# A scheme whose claim is about items, or about none; one about subjects.
scheme = functools.partial(
    base.Scheme,
    fitted=parties.fitted,
    non_private=base.non_private,
    noise_at="silo",
    uploads_seen=True,
    start=START,
    population=base.all_join,
)
subject_scheme = functools.partial(
    scheme, promise="epsilon", fitted=fitted_subjects, population=subject_population
)


# Of a model that is fine-tuned: few silos, one step a round without momentum, as little as moves
# small matrices beside weights that know the language already.
START_OF_LORA: dict[str, dict[str, Any]] = {
    "data": {"dataset": "roles", "num_clients": 4},
    "scheme": {
        "num_local_steps": 1,
        "item_sampling_prob": 0.3,
        "l2_clip_norm": 0.5,
        "local_learning_rate": 0.5,
        "server_momentum": 0.0,
    },
    "run": {"num_rounds": 20},
}


def subject_start(divisor: str) -> dict[str, dict[str, Any]]:
    """`START` for a claim about subjects, whose config divides a step's sum by `divisor`.

    One item of each subject in each silo is all that is used: its other items would add more noise
    than they teach. A random search found the rest at that.
    """
    found = {"max_items_per_subject": 1, "item_sampling_prob": 0.2, divisor: 150.0}
    steps = {"num_local_steps": 4, "l2_clip_norm": 0.33, "local_learning_rate": 5.0}
    return START | {"scheme": START["scheme"] | found | steps}


def lora_start(divisor: str) -> dict[str, dict[str, Any]]:
    """`START_OF_LORA`, with the same divisor's guess for it."""
    return START_OF_LORA | {"scheme": START_OF_LORA["scheme"] | {divisor: 40.0}}
