"""What every scheme is: the contract between a scheme and all that runs, accounts, attacks and reports it."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from fljax import _validate
from fljax.accounting import events
from fljax.accounting.events import PrivacyEvent
from fljax.data.cohorts import Cohort
from fljax.data.facts import Facts
from fljax.errors import PrivacyPreconditionError
from fljax.types import LossFn, Params

Promise = Literal["epsilon", "nats", "none"]
SERVER_OPTIMIZERS = ("sgd", "adam", "yogi")
NEVER_CLIPS = 1e30  # above the norm of any update that training survives, and far from float32's overflow


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


def check_round(cohort: Cohort, key: jax.Array) -> None:
    """Shapes and dtypes of a round's arguments; they are static, so this costs nothing under jit."""
    _validate.threefry_key(key=key)
    if cohort.client_ids.ndim != 1 or cohort.client_ids.shape[0] < 1:
        raise ValueError(f"Expected cohort.client_ids of shape [C], C >= 1, got shape {cohort.client_ids.shape}.")
    if cohort.indices.ndim != 2 or cohort.indices.shape[0] != cohort.client_ids.shape[0]:
        raise ValueError(
            f"Expected cohort.indices of shape [C, N] with C = {cohort.client_ids.shape[0]}, "
            f"got shape {cohort.indices.shape}."
        )


def averages(sums: jax.Array, count: jax.Array) -> list[jax.Array]:
    """`sums / max(1, count)`, each apart: one division of them all XLA may make a product, on some devices and not on
    others, and that is rounded otherwise.
    """
    divisor = jnp.maximum(1, count).astype(sums.dtype)
    return [total / divisor for total in sums]


def noise_multiplier(config: Any) -> float:
    """The configured noise multiplier. Raises ValueError if it is still to be calibrated."""
    if config.noise_multiplier is None:
        raise ValueError(
            "Expected noise_multiplier to be a number, got noise_multiplier=None: calibrate it first "
            "(fljax.accounting.calibrate)."
        )
    return float(config.noise_multiplier)


def known(config: Any, name: str) -> int:
    """The count `name` of a config. Raises ValueError where it is still to be taken from the data."""
    value: int | None = getattr(config, name)
    if value is None:
        raise ValueError(
            f"Expected {name} to be a number, got {name}=None: the scheme's `fitted` takes it from the data."
        )
    return value


def fitted_clients(config: Any, facts: Facts, name: str) -> Any:
    """`config` with as many clients under `name` as there are.

    Raises:
      PrivacyPreconditionError: it has another number.
    """
    given = getattr(config, name)
    if given is None:
        return dataclasses.replace(config, **{name: facts.num_clients})
    if given != facts.num_clients:
        raise PrivacyPreconditionError(
            f"Expected {name} to be num_clients={facts.num_clients}, since all clients of the data join every round, "
            f"got {name}={given}."
        )
    return config


def fitted(config: Any, facts: Facts) -> Any:
    """`config` as it is: clients or their examples are sampled, and any data of theirs are within the claim."""
    del facts
    return config


def server_optimizer(config: Any) -> optax.GradientTransformation:
    """The configured one: "sgd" (with momentum: FedAvgM), "adam" or "yogi", on the mean update. Post-processing only.

    The adaptive ones take server_momentum for the first moment, 0.99 for the second, and 1e-3 for the degree of
    adaptivity: updates are smaller than gradients, and noise alone would be blown up with less.

    Source: Reddi et al. (2020), "Adaptive Federated Optimization", arXiv:2003.00295, Algorithm 2; momentum: Hsu et al.
    (2019), arXiv:1909.06335.
    """
    kind = getattr(config, "server_optimizer", "sgd")
    if kind == "sgd":
        return optax.sgd(config.server_learning_rate, momentum=config.server_momentum or None)
    maker = {"adam": optax.adam, "yogi": optax.yogi}[kind]
    return maker(config.server_learning_rate, b1=config.server_momentum, b2=0.99, eps=1e-3)


def no_guarantee(unit: Any) -> events.PrivacyEvent:
    """A round that protects nobody: its epsilon is infinite."""
    return events.PrivacyEvent(
        mechanism=events.NonPrivate(),
        privacy_unit=unit,
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
