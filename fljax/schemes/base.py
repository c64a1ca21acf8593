"""What every scheme is: the contract between a scheme and all that runs, accounts, attacks and
reports it.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import jax
import optax

from fljax import _validate
from fljax.accounting import events
from fljax.accounting.events import PrivacyEvent
from fljax.data.facts import Facts
from fljax.data.parties import Parties
from fljax.schemes import exact
from fljax.server import optimizers
from fljax.server.rounds import FederatedAlgorithm as FederatedAlgorithm
from fljax.server.rounds import Performance as Performance
from fljax.server.rounds import RoundInfo as RoundInfo
from fljax.server.rounds import State as State
from fljax.types import LossFn, Params

if TYPE_CHECKING:
    from fljax.accounting.information.spent import Spent
    from fljax.accounting.shared_noise.adversaries import UploadNoise, Views
    from fljax.server.costs import Costs

Promise = Literal["epsilon", "nats", "none"]
NoiseAt = Literal["server", "silo", "client"]
Apply = Callable[[Params, Any], jax.Array]
# Above the norm of any update that training survives, and far from float32's overflow.
NEVER_CLIPS = 1e30


class Make(Protocol):
    """How a scheme builds its algorithm.

    Args:
      config: its noise_multiplier must be set.
      loss: `loss(params, example) -> []`, or `loss(params, example, key)` for one that draws: see
        `fljax.local.keyed`.
      num_units: protected units in the population, a public constant.
      performance: what only speed and memory depend on.
      server_optimizer: any optax optimizer in place of SGD with the configured rate and momentum.
      local_optimizer: any optax transformation in place of a client's plain steps of the configured
        rate. Its state starts anew in every round. What is clipped, or noised, stays so: a claim
        does not depend on it.

    Raises:
      ValueError: noise_multiplier is None, num_units < 1, the loss is none of one example, or a
        local_optimizer is given to a scheme whose clients take one gradient and no step.
    """

    def __call__(
        self,
        config: Any,
        loss: LossFn,
        *,
        num_units: int,
        performance: Performance = ...,
        server_optimizer: optax.GradientTransformation | None = None,
        local_optimizer: optax.GradientTransformation | None = None,
    ) -> FederatedAlgorithm: ...


class Given(NamedTuple):
    """What `Make` is given beside config and loss. server_optimizer: the configured one where none
    was given.
    """

    num_units: int
    performance: Performance
    server_optimizer: optax.GradientTransformation
    local_optimizer: optax.GradientTransformation | None


def given(
    config: Any,
    num_units: int,
    performance: Performance,
    server_optimizer: optax.GradientTransformation | None,
    local_optimizer: optax.GradientTransformation | None,
) -> Given:
    """What `Make` was given. Raises ValueError where num_units < 1."""
    _validate.positive_int(num_units=num_units)
    steps = server_optimizer or optimizers.server_optimizer(config)
    return Given(num_units, performance, steps, local_optimizer)


def maker(build: Callable[[Any, LossFn, Given], FederatedAlgorithm]) -> Make:
    """`make` from a function that finds its arguments checked; its docstring is that function's."""

    def make(
        config: Any,
        loss: LossFn,
        *,
        num_units: int,
        performance: Performance = Performance(),
        server_optimizer: optax.GradientTransformation | None = None,
        local_optimizer: optax.GradientTransformation | None = None,
    ) -> FederatedAlgorithm:
        options = given(config, num_units, performance, server_optimizer, local_optimizer)
        return build(config, loss, options)

    make.__module__, make.__qualname__ = build.__module__, build.__qualname__
    make.__doc__ = build.__doc__
    return make


class Population(NamedTuple):
    """How the units of a scheme lie on clients, as far as its config says. Attacks build their
    worlds from it.

    num_clients: clients, all of which join every round; None: any number, or one that the data
      still decide.
    places: examples for which each client has room; None: any number.
    subject_clients: most clients that hold examples of one subject; None: all of them.
    subject_examples: most examples of one subject that one of these clients uses.
    """

    num_clients: int | None = None
    places: int | None = None
    subject_clients: int | None = None
    subject_examples: int = 1


def any_population(config: Any) -> Population:
    """The population of a scheme that samples its clients and caps nothing."""
    del config
    return Population()


class Claimed(Protocol):
    """What a paper would say of a run: `(config, *, num_rounds, delta) -> epsilon`."""

    def __call__(self, config: Any, *, num_rounds: int, delta: float) -> float: ...


class Printed(Protocol):
    """The config with the noise that a paper would choose: `(config, *, num_rounds, epsilon, delta)
    -> config`.
    """

    def __call__(self, config: Any, *, num_rounds: int, epsilon: float, delta: float) -> Any: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsPrinted:
    """A paper's own formulas where they differ from what holds: for comparison, never for
    protection.

    errata: the gaps that its claim rests on, name -> sentence. claimed_epsilon: what the paper
      would say of a run.
    with_noise: the config with the noise that the paper would choose. asked: whether a config asks
      for the formulas, by its `formula` where nothing else is said.
    """

    errata: Mapping[str, str]
    claimed_epsilon: Claimed
    with_noise: Printed
    asked: Callable[[Any], bool] = lambda config: bool(config.formula == "paper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseConfig(_validate.Checked):
    """Public numbers of clipping and noise, a part of configs; each may be published.

    Raises:
      ValueError: a number is out of its range.
    """

    l2_clip_norm: float = 0.5
    """Bound on a client's update, in the unit of the parameters."""
    noise_multiplier: float | None = None
    """Noise standard deviation / bound, of the whole round. None: calibrated for the target
    epsilon.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(l2_clip_norm=self.l2_clip_norm)
        if self.noise_multiplier is not None:
            _validate.non_negative(noise_multiplier=self.noise_multiplier)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scheme:
    """All that the library asks of a scheme: the host loop, accountants, attacks, reports and the
    command line.

    What a scheme does not have is None. A config `Any` below is an instance of its `Config`.

    Attributes:
      summary: one line for a table.
      promise: "epsilon": `event` has accountants that prove one. "nats": what one use of a record
        tells, as the Config's fields `nats` and `data_model` say; `inputs` gives the `channel`,
        `spent` the error that is left. "none": nothing.
      Config: frozen dataclass of plain public numbers, each with a default, checked in
        `__post_init__`. One is `noise_multiplier`, None where it is still to be calibrated.
      make: the algorithm: see `Make`; it takes what `inputs` gives, too.
      event: what one round releases, for the accountants. Raises ValueError where noise_multiplier
        is None.
      fitted: the config for data of these counts: those left None are filled in. Raises
        PrivacyPreconditionError, with both numbers, where the data contradict what `event` rests
        on.
      non_private: the config of the same training without clipping or noise.
      noise_at: who adds the noise. "server" is trusted; else it need not be.
      start: section of a run's config -> values that `fljax simulate` starts from. Its
        data.num_clients counts where data are dealt and nothing else says to how many; a scheme for
        few clients names its delta here. start_of_lora: the same where a model is fine-tuned by
        small matrices, as far as it differs.
      population: how units lie on clients.
      inputs: `(config, task) -> dict`, keyword arguments for `make` that come from a run's data or
        model.
      check_network: `(config, apply, params, example)` raises ValueError for networks without a
        round.
      views: `(config, key, num_rounds)`, who saw what in a run; None: it cannot be told.
      exposure: who can learn what about whom, in words: rows of three.
      spent: `(config, task, inputs, num_rounds)`, what a run told about records in nats; None:
        nothing to tell.
      released: `state -> tree`, what is released of a state beside its params; None: nothing.
      normals: `(config, num_params)`, of how many normals one Gaussian mechanism of `event` is
        made, towards those from whom it hides; None, of it or for it: not told. Their end adds to
        delta: see `fljax.accounting.float32_tail`.
      uploads_seen: the promise holds towards whoever sees each client's upload of its own, not the
        model alone; the noise of each is drawn by its client alone. Audits then look at uploads.
      upload_noise: what hides one upload from a server that sees them all; audits play against it.
      costs: `(config, num_params)`, one client's round in bytes and operations.
      needs_network: `make` takes losses of networks only, so that no audit runs its rounds.
      as_printed: the paper's own formulas.

    Raises:
      ValueError: a member is not what it must be; the message names it.
    """

    summary: str
    promise: Promise
    Config: type[Any]
    make: Callable[..., FederatedAlgorithm]
    event: Callable[[Any], PrivacyEvent]
    fitted: Callable[[Any, Facts], Any]
    non_private: Callable[[Any], Any]
    noise_at: NoiseAt = "server"
    start: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    population: Callable[[Any], Population] = any_population
    inputs: Callable[[Any, Any], dict[str, Any]] | None = None
    check_network: Callable[[Any, Apply, Params, Any], None] | None = None
    views: "Callable[[Any, jax.Array, int], Views | None] | None" = None
    exposure: Callable[[Any], list[tuple[str, str, str]]] | None = None
    spent: "Callable[[Any, Any, dict[str, Any], int], Spent | None] | None" = None
    released: Callable[[Any], Any] | None = None
    uploads_seen: bool = False
    upload_noise: "Callable[[Any], UploadNoise] | None" = None
    costs: "Callable[[Any, int], Costs] | None" = None
    needs_network: bool = False
    as_printed: AsPrinted | None = None
    start_of_lora: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    normals: Callable[[Any, int], int | None] | None = None
    uses: Callable[[Any, int], int] | None = None

    def run_event(self, config: Any, num_rounds: int) -> PrivacyEvent:
        """What `num_rounds` rounds do to one unit's data: the event, as often as `uses` says."""
        count = num_rounds if self.uses is None else self.uses(config, num_rounds)
        return self.event(config).repeat(count)

    def num_normals(self, config: Any, num_params: int) -> int | None:
        """`normals`. Where a server or silo draws them, usually one for each parameter, and one
        more for a count beside the sum.
        """
        if self.normals is not None:
            return self.normals(config, num_params)
        usual = self.noise_at != "client" and self.released is None
        return num_params + 1 if usual else None

    def __post_init__(self) -> None:
        _validate.one_of(typing.get_args(Promise), promise=self.promise)
        _validate.one_of(typing.get_args(NoiseAt), noise_at=self.noise_at)
        if not (isinstance(self.summary, str) and self.summary):
            raise ValueError(
                f"Expected summary to be a line of text, got summary={self.summary!r}."
            )
        needed = (self.make, self.event, self.fitted, self.non_private)
        for name, member in zip(("make", "event", "fitted", "non_private"), needed, strict=True):
            if not callable(member):
                raise ValueError(f"Expected {name} to be a function, got {name}={member!r}.")
        if not (isinstance(self.Config, type) and dataclasses.is_dataclass(self.Config)):
            raise ValueError(
                f"Expected Config to be a frozen dataclass, got Config={self.Config!r}."
            )
        fields = {field.name for field in dataclasses.fields(self.Config)}
        wanted = {"noise_multiplier"} | (
            {"nats", "data_model"} if self.promise == "nats" else set()
        )
        if wanted - fields:
            raise ValueError(
                f"Expected Config to have the fields {sorted(wanted)}, got {sorted(fields)}."
            )
        if self.uploads_seen and self.noise_at == "server":
            raise ValueError(
                "Expected uploads_seen=False with noise_at='server', whose noise is not in the "
                "uploads, got True."
            )
        if self.promise == "nats" and (self.inputs is None or self.spent is None):
            raise ValueError("Expected inputs and spent with promise='nats', got None.")


def noise_multiplier(config: Any) -> float:
    """The configured noise multiplier. Raises ValueError if it is still to be calibrated."""
    if config.noise_multiplier is None:
        raise ValueError(
            "Expected noise_multiplier to be a number, got noise_multiplier=None: calibrate it "
            "first (fljax.accounting.calibrate)."
        )
    return float(config.noise_multiplier)


def fitted(config: Any, facts: Facts) -> Any:
    """`config` as it is: clients or their examples are sampled, and any data of theirs are within
    the claim.
    """
    del facts
    return config


def non_private(config: Any) -> Any:
    """The same training with a clip that never binds and no noise, in floating point: a grid would
    be as wide as the clip.
    """
    if exact.asked(config):
        config = dataclasses.replace(config, noise="float32")
    return dataclasses.replace(config, l2_clip_norm=NEVER_CLIPS, noise_multiplier=0.0)


def all_join(config: Parties) -> Population:
    """The population of a scheme whose clients all join every round."""
    return Population(num_clients=config.num_parties)


def no_local_steps(local_optimizer: optax.GradientTransformation | None) -> None:
    """Raises ValueError for an optimizer of clients that take no step of their own."""
    if local_optimizer is not None:
        raise ValueError(
            "Expected local_optimizer=None, since clients of this scheme send one gradient and "
            "take no steps, got one: server_optimizer takes the step."
        )


def no_guarantee(unit: Any) -> events.PrivacyEvent:
    """A round that protects nobody: its epsilon is infinite."""
    return events.PrivacyEvent(
        mechanism=events.NonPrivate(),
        privacy_unit=unit,
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
