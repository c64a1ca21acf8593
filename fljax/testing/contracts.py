"""The contracts that every scheme keeps, as checks that its author runs."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import typing
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate, accounting, errors
from fljax.attacks import replay, rounds, worlds
from fljax.data.cohorts import Cohort
from fljax.schemes.base import Scheme
from fljax.testing import _worlds

Outcome = Literal["passed", "failed", "skipped"]
_TRIALS = 4000  # runs in each of two worlds: five standard errors of a difference of rates are 0.06
_REPLAYS = 16  # keys with which each neighbour is replayed
_DRAWS = 16  # keys, and rounds: votes of few clients may be the same for two of them
_STANDARD_ERRORS = 5.0
_ROUNDING = 1e-4  # of float32 sums in another order, relative to the largest parameter


class Check(NamedTuple):
    """One contract. told: what was found, or why nothing could be asked."""

    name: str
    outcome: Outcome
    told: str


class SchemeReport(NamedTuple):
    """What `check_scheme` found, check by check."""

    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.outcome == "failed")

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the checks that had nothing to ask."""
        return tuple(check.name for check in self.checks if check.outcome == "skipped")

    def __str__(self) -> str:
        """One line for each check."""
        return "\n".join(
            f"{check.name:<12} {check.outcome:<8} {check.told}" for check in self.checks
        )


class _Broken(Exception):
    """A contract is broken; its message says how."""


class _NothingToAsk(Exception):
    """The contract does not apply; the message says why."""


class _Subject:
    """What is checked: a scheme in an ordinary world, and against one unit."""

    def __init__(self, scheme: Scheme, config: Any) -> None:
        if not isinstance(scheme, Scheme):
            raise ValueError(f"Expected scheme to be a fljax.Scheme, got {type(scheme).__name__}.")
        if config is not None and not isinstance(config, scheme.Config):
            got = type(config).__name__
            raise ValueError(f"Expected config to be the scheme's Config, got {got}.")
        ours = _worlds.small_config(scheme) if config is None else _worlds.with_noise(config)
        self.scheme, self.world = scheme, _worlds.ordinary(scheme, ours)
        self._given = config
        self._compiled = jax.jit(self.world.algorithm.round, donate_argnums=0)

    def start(self) -> Any:
        """A state before the first round that shares no array with the world's parameters."""
        return self.world.algorithm.init(jax.tree.map(jnp.copy, self.world.params))

    def round(self, state: Any, cohort: Cohort, key: jax.Array) -> Any:
        """The next state. It is written where `state` was, as far as the device can do that."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not every buffer of a state has a use for its place
            try:
                return self._compiled(state, cohort, key)[0]
            except jax.errors.JaxRuntimeError as reason:
                raise _Broken(f"a state cannot be given away: {reason}") from reason

    def model(self, cohort: Cohort, key: jax.Array) -> Any:
        """The model after one round, on the host."""
        return jax.tree.map(np.array, self.round(self.start(), cohort, key).params)

    @functools.cached_property
    def plain(self) -> Any:
        """The model after a round of everybody."""
        return self.model(self.world.cohort, _key())

    @functools.cached_property
    def eager(self) -> Any:
        """The same, operation by operation, from a state that is kept."""
        state, _ = self.world.algorithm.round(self.start(), self.world.cohort, _key())
        return jax.tree.map(np.array, state.params)

    @functools.cached_property
    def config(self) -> Any:
        """Of the world with one unit that is there or not."""
        return self.world.config if self._given is not None else replay.least_config(self.scheme)

    @functools.cached_property
    def played(self) -> "_Played":
        """Rounds with and without the unit; one program for all: compiling it takes longest."""
        pair = worlds.Neighbours(self.scheme, self.config)
        event = self.scheme.event(self.config)
        population = self.scheme.population(self.config)
        anybody = event.privacy_unit != "subject" or population.subject_clients == 1
        clients = np.arange(pair.num_clients) if anybody else np.zeros(1, int)
        shift = np.repeat(clients, _REPLAYS)
        keys = jax.random.split(_key(2), shift.size + 2 * _TRIALS)
        replayed, count = shift.size, 2 * shift.size + 2 * _TRIALS
        given = (
            jnp.concatenate([keys[:replayed], keys]),
            np.repeat([False, True, False, True], [replayed, replayed, _TRIALS, _TRIALS]),
            np.concatenate([shift, shift, np.zeros(2 * _TRIALS, int)]),
            np.arange(count) < 2 * replayed,
        )
        run = jax.jit(lambda *each: jax.lax.map(lambda one: pair.model(*one)[: worlds.DIM], each))
        steps = np.asarray(run(*map(jnp.asarray, given)), np.float64)
        parts = np.split(steps, [replayed, 2 * replayed, 2 * replayed + _TRIALS])
        return _Played(shift, *parts)


class _Played(NamedTuple):
    """Steps of rounds. client: `[R]`, who has the unit in a replay; without, with_it: `[R, 3]`, by
    one key each; absent, present: `[T, 3]`, each by a key of its own.
    """

    client: np.ndarray
    without: np.ndarray
    with_it: np.ndarray
    absent: np.ndarray
    present: np.ndarray


def check_scheme(
    scheme: Scheme, config: Any = None, *, checks: Iterable[str] | None = None
) -> SchemeReport:
    """Runs the contracts of a scheme on small data, and says which one is broken.

    Guarantee: none. A check can refute a scheme, and proves nothing. Its data are as bad as we know
    how to make them, its statistics leave five standard errors, so that a sound scheme fails one
    time in a million at most. Keys are fixed: the same scheme gets the same answer.

    The checks, by name:
      fields: every field of the Config has a sentence below it, for `--help`.
      toml: a config comes back from config.toml as it was.
      neighbours: one unit, removed or replaced with equal keys, moves the model by no more than the
        noise in it allows for. Asked of Gaussian events, of each client in turn.
      event: an attacker tells two neighbours apart no better than the event allows, sampling
        included. Asked wherever an accountant knows the event.
      order: clients in another order give the same model.
      padding: records that belong to nobody do not matter, whatever they hold.
      absent: a client that is masked out adds nothing, whatever it holds.
      jit: a round gives the same compiled and operation by operation.
      donation: a round may overwrite its state.
      devices: as many devices as there are, up to 8, give what one gives.
      keys: a key gives the same bits twice; another key, and another round, give other noise.
      execution: an ideal sum and a protocol release the same bits under one key. Asked of a Config
        with that field.

    Args:
      scheme: to be checked.
      config: of a population as small as it can be: noise of others hides mistakes. A
        noise_multiplier of None becomes 1. None: the Config's defaults, with a few small numbers
        where it has fields of the usual names (num_parties, sampling_prob, ..).
      checks: names of those to be run. None: all of `CHECKS`.

    Returns:
      `SchemeReport`, in which nothing has failed.

    Raises:
      SchemeError: a contract is broken; the message has all that are, `.report` has all checks.
      ValueError: no such check, or the scheme refuses the config or small data.
    """
    wanted = tuple(CHECKS) if checks is None else tuple(checks)
    for name in wanted:
        _validate.one_of(CHECKS, checks=name)
    with jax.debug_key_reuse(False):  # replays use a key again on purpose
        subject = _Subject(scheme, config)
        report = SchemeReport(tuple(_checked(name, subject) for name in wanted))
    if report.failed:
        told = "; ".join(f"{c.name}: {c.told}" for c in report.checks if c.outcome == "failed")
        raise errors.SchemeError(
            f"Expected {scheme.summary!r} to keep its contracts, {told}", report
        )
    return report


def _checked(name: str, subject: _Subject) -> Check:
    try:
        return Check(name, "passed", CHECKS[name](subject))
    except _Broken as reason:
        return Check(name, "failed", str(reason))
    except _NothingToAsk as reason:
        return Check(name, "skipped", str(reason))


def _key(number: int = 0) -> jax.Array:
    return jax.random.key(20261124 + number)


def _distance(one: Any, other: Any) -> float:
    """The largest difference of two trees, relative to their largest number; infinite for NaN."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    gaps = [float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs]
    size = max(float(np.max(np.abs(a), initial=0.0)) for a, _ in pairs)
    gap = max(gaps, key=lambda gap: np.inf if np.isnan(gap) else gap)
    return float("inf") if np.isnan(gap) else gap / max(size, 1e-30)


def _same(one: Any, other: Any, what: str, *, most: float = _ROUNDING) -> str:
    gap = _distance(one, other)
    if not gap <= most:
        raise _Broken(f"{what} differ by {gap:.3g} of the model, expected at most {most:g}")
    return f"{what} differ by {gap:.2g} of the model"


def _fields(subject: _Subject) -> str:
    config = subject.scheme.Config
    try:
        sentences = {name for base in config.__mro__ for name in _told(base)}
    except (OSError, TypeError) as reason:
        raise _NothingToAsk(f"the source of {config.__name__} cannot be read: {reason}") from reason
    silent = [field.name for field in dataclasses.fields(config) if field.name not in sentences]
    if silent:
        raise _Broken(f"expected a sentence below each field of Config, got none for {silent}")
    return f"{len(dataclasses.fields(config))} fields have a sentence"


def _told(cls: type) -> Iterable[str]:
    """Fields below whose declaration, in this very class, stands a string."""
    if not dataclasses.is_dataclass(cls):
        return
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                if text.strip():
                    yield name


def _toml(subject: _Subject) -> str:
    from fljax.simulation import config as config_lib  # slow to import, and TOML is of an extra

    mine = config_lib.Config(
        scheme=f"{config_lib.OWN}check_scheme",
        scheme_config=subject.world.config,
        scheme_object=subject.scheme,
    )
    try:
        text = config_lib.to_toml(mine)
    except ImportError as reason:
        raise _NothingToAsk(f"{reason}: pip install 'fljax[sim]'") from reason
    except TypeError as reason:
        raise _Broken(
            f"expected a Config of plain numbers, got one that is no TOML: {reason}"
        ) from reason
    try:
        back = config_lib.from_sections(config_lib.from_toml(text), subject.scheme).scheme_config
    except ValueError as reason:
        raise _Broken(f"a config does not come back from TOML: {reason}") from reason
    if back != subject.world.config:
        raise _Broken(f"expected {subject.world.config} back from TOML, got {back}")
    return "a config comes back from TOML as it was"


def _neighbours(subject: _Subject) -> str:
    _promises_an_epsilon(subject)
    declared = replay.mu_of(subject.scheme.event(subject.config).mechanism)
    if declared is None or not np.isfinite(declared):
        raise _NothingToAsk("the event is no Gaussian mechanism, or has no noise")
    played = subject.played
    apart = np.linalg.norm(played.with_it - played.without, axis=1)
    # Data lie along the first parameter; along the others a round shows its noise alone.
    noise = played.absent[:, 1:]
    stddev = float(np.sqrt(np.mean(np.square(noise))))
    # A sample variance of n Gaussian numbers has the relative standard error sqrt(2 / n).
    slack = _STANDARD_ERRORS / np.sqrt(2 * noise.size)
    worst = int(np.argmax(np.where(np.isfinite(apart), apart, np.inf)))
    measured = float(apart[worst]) / max(stddev, 1e-30)
    told = (
        f"a unit of client {played.client[worst]} moves the model by {measured:.3g} standard "
        f"deviations of its noise, the event allows {declared:.3g}"
    )
    if not measured <= declared * (1 + slack):
        raise _Broken(told)
    return told


def _promises_an_epsilon(subject: _Subject) -> None:
    if subject.scheme.promise != "epsilon":
        raise _NothingToAsk("the scheme promises no epsilon")


def _event(subject: _Subject) -> str:
    _promises_an_epsilon(subject)
    event = subject.scheme.event(subject.config)
    try:
        allowed = accounting.delta(event, epsilon=0.0, method="auto")
    except errors.UnsupportedEventError as reason:
        raise _NothingToAsk(f"no accountant knows the event: {reason}") from reason
    if not allowed < 1:
        raise _NothingToAsk("the event promises nothing")
    played = subject.played
    seen = [("the model", played.present[:, 0], played.absent[:, 0])]
    if subject.scheme.upload_noise is not None:
        game = rounds.uploads(subject.scheme, subject.config)
        seen.append(("all uploads", *rounds.play(game, _key(3), _TRIALS)))
    told = []
    for what, present, absent in seen:
        advantage, error = _advantage(present, absent)
        told.append(
            f"whoever sees {what} tells neighbours apart by {advantage:.3f} (hits less false "
            f"alarms), the event allows {allowed:.3f}"
        )
        if not advantage <= allowed + _STANDARD_ERRORS * error:
            raise _Broken(told[-1])
    return "; ".join(told)


def _advantage(present: np.ndarray, absent: np.ndarray) -> tuple[float, float]:
    """Hits less false alarms of the best threshold, and their standard error.

    A quarter of the runs chooses threshold and side, the others are counted.
    """
    first = len(present) // 4
    grid = np.quantile(
        np.concatenate([present[:first], absent[:first]]), np.linspace(0.01, 0.99, 99)
    )

    def rates(part: slice, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        above = [np.mean(world[part, None] > at, axis=0) for world in (present, absent)]
        return above[0], above[1]

    hits, alarms = rates(slice(first), grid)
    best = int(np.argmax(np.abs(hits - alarms)))
    side = 1.0 if hits[best] >= alarms[best] else -1.0
    hit, alarm = rates(slice(first, None), grid[best : best + 1])
    count = len(present) - first
    error = float(np.sqrt((hit * (1 - hit) + alarm * (1 - alarm))[0] / count))
    return side * float(hit[0] - alarm[0]), max(error, 1 / count)


def _order(subject: _Subject) -> str:
    cohort = subject.world.cohort
    turned = cohort._replace(indices=cohort.indices[::-1], client_ids=cohort.client_ids[::-1])
    return _same(subject.plain, subject.model(turned, _key()), "two orders of the clients")


def _padding(subject: _Subject) -> str:
    world = subject.world
    nobody = np.setdiff1d(np.arange(len(world.cohort.examples["x"])), world.owned)
    for value, what in (("other", "other numbers"), ("nan", "NaN")):
        found = subject.model(_worlds.changed(world, nobody, value), _key())
        _same(subject.plain, found, f"models with and without {what} in rows of nobody", most=0.0)
    return "rows of nobody do not matter"


def _absent(subject: _Subject) -> str:
    world = subject.world
    # Not every client's update need be taken in a round: the first one whose absence is seen.
    for client in range(len(world.cohort.client_ids)):
        # The rows stay: the mask alone says that the client is not there.
        ids = world.cohort.client_ids.at[client].set(-1)
        without = subject.model(world.cohort._replace(client_ids=ids), _key())
        if _distance(subject.plain, without) > 0:
            break
    else:
        raise _Broken("no client adds anything where it is present")
    mine = np.asarray(world.cohort.indices[client])
    for value, what in (("other", "other numbers"), ("nan", "NaN")):
        other = _worlds.changed(world, mine[mine >= 0], value)._replace(client_ids=ids)
        found = subject.model(other, _key())
        _same(without, found, f"models with and without {what} of an absent client", most=0.0)
    return "a client that is masked out adds nothing"


def _jit(subject: _Subject) -> str:
    return _same(subject.plain, subject.eager, "compiled and eager rounds")


def _donation(subject: _Subject) -> str:
    return _same(subject.plain, subject.eager, "rounds that overwrite and that keep their state")


def _devices(subject: _Subject) -> str:
    from fljax.simulation.devices import mesh

    count = max(n for n in (1, 2, 4, 8) if n <= jax.device_count())
    if count == 1:
        raise _NothingToAsk("one device only: set jax_num_cpu_devices to 8 before JAX starts")
    world = subject.world
    with mesh.over(mesh.client_mesh(count, groups=_worlds.GROUPS)):
        state, _ = jax.jit(world.algorithm.round)(subject.start(), world.cohort, _key())
        found = jax.tree.map(np.array, state.params)
    return _same(subject.plain, found, f"rounds on 1 and on {count} devices")


def _steps(subject: _Subject, cohort: Cohort) -> list[Any]:
    """How far rounds in a row, with the run's key, move the model."""
    models, state = [subject.start().params], subject.start()
    for _ in range(_DRAWS):
        state = subject.round(state, cohort, _key())
        models.append(jax.tree.map(np.array, state.params))
    return [jax.tree.map(np.subtract, *pair) for pair in itertools.pairwise(models)]


def _none(step: Any) -> Any:
    return jax.tree.map(np.zeros_like, step)


def _keys(subject: _Subject) -> str:
    world = subject.world
    again = subject.model(world.cohort, _key())
    _same(subject.plain, again, "two rounds with one key", most=0.0)
    if subject.scheme.promise == "none":
        raise _NothingToAsk("one key gives the same bits; no noise is promised")
    others = (subject.model(world.cohort, _key(1 + i)) for i in range(_DRAWS))
    if all(_distance(subject.plain, other) == 0 for other in others):
        raise _Broken("all keys give the same model: the key is not used")
    x = jnp.zeros_like(world.cohort.examples["x"])
    silent = world.cohort._replace(examples=world.cohort.examples | {"x": x})
    # Without clients the server's noise alone moves the model, if the server adds any.
    nobody = world.cohort._replace(client_ids=jnp.full_like(world.cohort.client_ids, -1))
    for cohort in (silent, nobody):
        steps = _steps(subject, cohort)
        moves = cohort is silent or any(_distance(step, _none(step)) > _ROUNDING for step in steps)
        if moves and all(_distance(steps[0], step) <= _ROUNDING for step in steps):
            raise _Broken("all rounds with the run's key take the same step: noise is drawn again")
    return "one key gives the same bits; another key or round gives other noise"


def _execution(subject: _Subject) -> str:
    names = {field.name for field in dataclasses.fields(subject.scheme.Config)}
    ways = typing.get_type_hints(subject.scheme.Config).get("execution")
    if "ideal" not in typing.get_args(ways):
        raise _NothingToAsk("the Config has no ideal execution: sums are taken in one way")
    more = {"noise": "exact"} if "noise" in names else {}  # protocols sum whole numbers
    models = []
    for execution in ("ideal", "protocol"):
        config = dataclasses.replace(subject.world.config, execution=execution, **more)
        world = _worlds.ordinary(subject.scheme, config)
        state, _ = jax.jit(world.algorithm.round)(subject.start(), world.cohort, _key())
        models.append(jax.tree.map(np.array, state.params))
    if _distance(models[0], jax.tree.map(np.array, subject.start().params)) == 0:
        raise _Broken("a round of an ideal sum does not move the model")
    return _same(models[0], models[1], "models of an ideal sum and of a protocol", most=0.0)


CHECKS: dict[str, Callable[[_Subject], str]] = {
    "fields": _fields,
    "toml": _toml,
    "neighbours": _neighbours,
    "event": _event,
    "order": _order,
    "padding": _padding,
    "absent": _absent,
    "jit": _jit,
    "donation": _donation,
    "devices": _devices,
    "keys": _keys,
    "execution": _execution,
}
