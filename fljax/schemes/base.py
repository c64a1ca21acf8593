"""What every scheme is: the contract between a scheme and all that runs, accounts, attacks and reports it."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax

from fljax import _validate
from fljax.accounting.events import PrivacyEvent
from fljax.data.cohort import Cohort
from fljax.data.facts import Facts
from fljax.types import LossFn, Params

Promise = Literal["epsilon", "nats", "none"]


class RoundInfo(NamedTuple):
    """Diagnostics of one round, each `[]`. They are exact, hence NOT private: release none of them.

    loss: mean training loss; cohort_size: clients present; clipped_fraction: share of units that were clipped.
    lost_digits: by how much numbers cancel in the server's recovery of the gradient, for
    `fljax.server.recovery.warn_of_lost_digits`; 0 where nothing is recovered from Psi and Phi. lost: whether too few
    clients could be used, so that the round left the model as it was.
    """

    loss: jax.Array
    cohort_size: jax.Array
    clipped_fraction: jax.Array
    lost_digits: jax.Array | float = 0.0
    lost: jax.Array | bool = False


class State(Protocol):
    """What the host loop reads of a state, which else is the scheme's own: any pytree of arrays."""

    @property
    def params(self) -> Params:
        """The model that is released."""

    @property
    def round(self) -> jax.Array:
        """int32 `[]`, rounds done."""


class FederatedAlgorithm(NamedTuple):
    """A federated algorithm as pure functions.

    init: `params -> state`. round: `(state, cohort, key) -> (state, info)`, to be jitted by the caller; `key` is the
    run's key and the same in every round, since the round folds `state.round` into it. client_sampling_prob: with which
    chance each client must be put into each cohort, independently, for the scheme's event to be true.
    """

    init: Callable[[Params], Any]
    round: Callable[[Any, Cohort, jax.Array], tuple[Any, RoundInfo]]
    client_sampling_prob: float


class Scheme(Protocol):
    """A scheme: a module, or any object, with these members. `fljax.schemes` says what else it may have.

    SUMMARY: one line for a table. PROMISE: "epsilon" (`event` has accountants that prove one), "nats" or "none".
    Config: a frozen dataclass of plain public numbers, each with a default; one is `noise_multiplier`, None where it is
    still to be calibrated.
    """

    SUMMARY: str
    PROMISE: Promise
    Config: type

    def make(self, config: Any, loss: LossFn, *, num_units: int, groups: int | None = None) -> FederatedAlgorithm:
        """The algorithm. `loss(params, example) -> []`; `num_units` is the public number of protected units.

        `groups` is for `fljax.server.aggregate.sum_in_chunks`, which then gives the same bits on any number of devices.
        """

    def event(self, config: Any) -> PrivacyEvent:
        """What one round releases, for the accountants; config.noise_multiplier is a number."""

    def fitted(self, config: Any, facts: Facts) -> Any:
        """The config for data of these counts, or PrivacyPreconditionError where they contradict `event`."""

    def non_private(self, config: Any) -> Any:
        """The config of the same training without clipping or noise."""


def check(name: str, scheme: Any) -> None:
    """Raises ValueError unless `scheme` has the members of `Scheme`; the message names those that it lacks."""
    callables = ("make", "event", "fitted", "non_private")
    missing = [member for member in callables if not callable(getattr(scheme, member, None))]
    missing += [member for member in ("SUMMARY", "PROMISE", "Config") if getattr(scheme, member, None) is None]
    if missing:
        raise ValueError(
            f"Expected scheme {name!r} to have SUMMARY, PROMISE, Config, {', '.join(callables)} (fljax.Scheme), "
            f"got none of these: {', '.join(missing)}."
        )
    _validate.one_of(typing.get_args(Promise), PROMISE=scheme.PROMISE)
    if not (isinstance(scheme.Config, type) and dataclasses.is_dataclass(scheme.Config)):
        raise ValueError(f"Expected Config of scheme {name!r} to be a frozen dataclass, got Config={scheme.Config!r}.")
    if "noise_multiplier" not in {field.name for field in dataclasses.fields(scheme.Config)}:
        raise ValueError(f"Expected Config of scheme {name!r} to have a field noise_multiplier, got none.")
