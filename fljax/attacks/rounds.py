"""One privacy unit against a whole scheme: rounds of the scheme itself, thousands of times, with
the unit and without.

The attacker chose all data (a worst case that the guarantee covers), sees the models before and
after, and does not know one thing: whether the unit was there, or which of two contents it had. Its
score is how far the model moved along the unit's gradient. That is the likelihood-ratio test, or a
monotone function of it, where all that the server sees is the new model; a server that sees more is
a game of its own (`uploads`), for which nothing but the noise law of the uploads is played: that
the scheme's rounds add this noise and clip is what `one_unit` sees, where it can play them. Which
games a scheme is in for is said by its module, see `kinds`.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _keys, _validate, accounting, attacks, schemes
from fljax.accounting.events import NeighboringRelation, PrivacyEvent
from fljax.accounting.renyi import conversion
from fljax.accounting.shared_noise import exact as view
from fljax.attacks import audit
from fljax.data.cohorts import ClientData, cohort
from fljax.data.subjects import SUBJECT
from fljax.errors import UnsupportedEventError
from fljax.schemes.base import Population, Scheme
from fljax.upload import pair_noise

# A small world with others, colluders and two silos: what a scheme's Config is given where it has
# the field.
SMALL: dict[str, Any] = {
    "batch_size": 4,
    "buffer_size": 2,
    "expected_items": 2.0,
    "expected_subjects": 2.0,
    "item_sampling_prob": 0.5,
    "max_colluders": 1,
    "max_items_per_subject": 2,
    "max_stragglers": 0,
    "min_separation": 2,
    "num_local_epochs": 1,
    "num_local_steps": 1,
    "num_parties": 4,
    "records_per_client": 4,
    "rounds_per_start": 1,
    "sampling_prob": 0.7,
    "straggler_law": "fixed",
}
SILOS = {"num_parties": 2}  # in place of it, where clients are silos
_EPSILONS = np.concatenate([np.linspace(0, 4, 17), np.geomspace(5, 20_000, 30)])
_DIM = 3
_LONG = 1e3  # times whatever is clipped to: a canary that counts fully


class Game(NamedTuple):
    """score: `(key, present []) -> []`, pure: one run of the mechanism, scored. event: what is
    certified of it.

    sees: what the attacker sees, in words.
    """

    score: Callable[[jax.Array, jax.Array], jax.Array]
    event: PrivacyEvent
    sees: str


class Attack(Protocol):
    """What `fljax.attacks.register` takes: a game against a scheme, or ValueError for one that it
    is not for.
    """

    def __call__(self, scheme: Scheme, config: Any, *, num_rounds: int = 1) -> Game: ...


def config(name: str, **changes: Any) -> Any:
    """The Config of scheme `name` for a small world; `changes` go before.

    Raises:
      ValueError: no such scheme, or a value out of range. TypeError: the Config has no field of
        that name.
    """
    scheme = schemes.get(name)
    return small(scheme.Config, sizes(scheme) | changes, required=changes)


def sizes(scheme: Scheme) -> dict[str, Any]:
    """Numbers of a small world for the scheme."""
    return SMALL | (SILOS if scheme.noise_at == "silo" else {})


def small(wanted: Any, values: dict[str, Any], *, required: dict[str, Any]) -> Any:
    """A Config from those of `values` that it has fields for, and all that are `required`; integers
    serve as floats.
    """
    fields = {field.name: field for field in dataclasses.fields(wanted)}
    kept = {name: value for name, value in values.items() if name in fields or name in required}
    for name, value in kept.items():
        if name in fields and isinstance(fields[name].default, float) and isinstance(value, int):
            kept[name] = float(value)
    return wanted(**kept)


def _loss(params: Any, example: Any) -> jax.Array:
    """Its gradient is the example."""
    return jnp.vdot(params["w"], example["x"])


def _tables(
    population: Population, event: PrivacyEvent, num_clients: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Examples `[2, M, ...]` and rows of clients `[2, N, K]`: the world without the unit, and with
    it.

    Everybody else's gradient is zero, which any attacker may know and subtract.
    """
    relation, unit = event.neighboring_relation, event.privacy_unit
    mine, holders = 1, 1
    if unit == "subject":
        mine, holders = population.subject_examples, population.subject_clients or num_clients
    # Where there are places for records they are full; elsewhere one other example keeps a client
    # from being empty.
    others = (population.places or 2) - 1 if unit == "example" else 1
    per_client = others + mine
    x = np.zeros((2, num_clients, per_client, _DIM), np.float32)
    x[1, :holders, others:, 0] = _LONG
    if relation == NeighboringRelation.REPLACE_ONE:
        x[0, :holders, others:, 0] = -_LONG
    rows = np.tile(
        np.arange(num_clients * per_client, dtype=np.int32).reshape(num_clients, per_client),
        (2, 1, 1),
    )
    rows[:, holders:, others:] = -1  # nobody else has anything of the unit
    if unit == "client":
        rows[:, :holders, :others] = -1  # it has nothing else
    if relation != NeighboringRelation.REPLACE_ONE:
        rows[0, :holders, others:] = -1
    # Padding stands at the end.
    rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=-1, kind="stable"), -1)
    subject = np.broadcast_to(np.arange(per_client) >= others, (2, num_clients, per_client)).astype(
        np.int32
    )
    subject = np.where(subject == 1, 0, 1 + np.arange(num_clients, dtype=np.int32)[:, None])
    flat = {"x": x.reshape(2, -1, _DIM), SUBJECT: subject.reshape(2, -1).astype(np.int32)}
    return flat, rows


def one_unit(scheme: Scheme, config: Any, *, num_rounds: int = 1) -> Game:
    """A game against rounds of any scheme, from what its event says about units and neighbours."""
    event = scheme.event(config)
    population = scheme.population(config)
    num_clients = population.num_clients or 2
    examples, rows = _tables(population, event, num_clients)
    num_units = examples["x"].shape[1] if event.privacy_unit == "example" else num_clients
    algorithm = scheme.make(config, _loss, num_units=num_units)
    prob, kept = algorithm.client_sampling_prob, algorithm.client_state
    removed = (
        event.privacy_unit == "client"
        and event.neighboring_relation == NeighboringRelation.ADD_OR_REMOVE_ONE
    )

    def score(key: jax.Array, present: jax.Array) -> jax.Array:
        pick = lambda pair: jnp.where(present, pair[1], pair[0])
        clients = ClientData(jax.tree.map(pick, examples), pick(rows))
        coin_key, round_key = jax.random.split(key)

        start = algorithm.init({"w": jnp.zeros(_DIM)})
        # Clients keep what they keep; the score is of what is released.
        first = () if kept is None else kept.init(start.params)
        everybody = jax.tree.map(
            lambda leaf: jnp.tile(leaf, (num_clients, *[1] * leaf.ndim)), first
        )

        def one_round(carry: Any, index: jax.Array) -> tuple[Any, None]:
            state, clients_keep = carry
            joins = _keys.coins(jax.random.fold_in(coin_key, index), (num_clients,), prob)
            if removed:
                joins &= present | (jnp.arange(num_clients) > 0)
            here = cohort(clients, jnp.where(joins, jnp.arange(num_clients), -1))
            state, info = algorithm.round(state, here._replace(kept=clients_keep), round_key)
            return (state, clients_keep if kept is None else info.kept), None

        (end, _), _ = jax.lax.scan(one_round, (start, everybody), jnp.arange(num_rounds))
        return -end.params["w"][0]

    return Game(
        score,
        scheme.run_event(config, num_rounds),
        "the model before and after, and who could have joined",
    )


def uploads(scheme: Scheme, config: Any, *, num_rounds: int = 1) -> Game:
    """A game against a scheme with `upload_noise`, whose server sees every upload and pools all
    colluders allowed.

    The uploads of the two worlds are as far apart as clipping allows, and differ in one number; the
    noise is drawn by the code that draws it in the scheme. The scheme's `make` is not run: an error
    in its rounds, where they clip or how much noise they ask for, is not seen here (`games` adds
    `one_unit` where that takes the scheme). Who straggles does not help hiding. The score is the
    likelihood ratio of all honest uploads together, less the pair noise that colluders know.
    """
    if scheme.upload_noise is None:
        raise ValueError("Expected a scheme with upload_noise, got one without.")
    edges, num, num_colluders, own, ratio, move = scheme.upload_noise(config)
    pair = np.full(len(edges), own * ratio**0.5)
    colluders = np.arange(num) >= num - num_colluders
    known = np.where(colluders[edges].any(1), pair, 0.0)
    graph = view.PairGraph(np.full(num, own**2), edges, pair**2)
    honest = np.flatnonzero(~colluders)
    covariance = np.asarray(view.covariance(graph, colluders=colluders))[np.ix_(honest, honest)]
    # In units of own noise: covariances of tiny numbers would lose their digits.
    direction, _ = audit.directions(covariance / own**2, move / own * (honest == 0))
    noise = pair_noise.cohort_noise(edges, num_clients=num, own_stddev=own, pair_stddev=pair)
    told = pair_noise.cohort_noise(edges, num_clients=num, own_stddev=0.0, pair_stddev=known)

    def score(key: jax.Array, present: jax.Array) -> jax.Array:
        def one_round(total: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
            seen = noise(key, index, jnp.zeros(())) - told(key, index, jnp.zeros(()))
            seen = seen.at[0].add(jnp.where(present, move, 0.0))
            return total + jnp.vdot(jnp.asarray(direction, jnp.float32), seen[honest] / own), None

        return jax.lax.scan(one_round, jnp.zeros(()), jnp.arange(num_rounds))[0]

    sees = (
        f"every upload; {num_colluders} of {num} clients tell it their pair noise "
        "(the noise law of uploads, not the scheme's rounds)"
    )
    return Game(score, scheme.run_event(config, num_rounds), sees)


def kinds(scheme: Scheme) -> tuple[Attack, ...]:
    """The games here that can be played against a scheme, the sharpest first: what its module says
    of itself.
    """
    hidden = () if scheme.upload_noise is None else (uploads,)
    # `one_unit` has no network to offer.
    return hidden if scheme.needs_network else (*hidden, one_unit)


def _compared(scheme: Scheme) -> bool:
    # With a trusted server and rounds that take networks only, no game here fits an epsilon.
    return scheme.promise == "nats" or (scheme.promise == "epsilon" and bool(kinds(scheme)))


def promising() -> list[str]:
    """Schemes that promise what an attack here can be compared with; those of others that fail to
    load are left out.
    """

    def fits(name: str) -> bool:
        try:
            return _compared(schemes.get(name))
        except ValueError as reason:
            if name in schemes.NAMES:
                raise
            warnings.warn(f"The scheme {name!r} cannot be loaded: {reason}", stacklevel=2)
            return False  # somebody else's: no reason to refuse the others

    return [name for name in schemes.names() if fits(name)]


def check_name(*, attack: str | None = None, **given: str) -> None:
    """Raises ValueError, with the argument's name, unless the scheme is known and promises
    something to attack.

    Args:
      attack: the name of a game, which needs an epsilon to be compared with. None: all that fit.
    """
    for argument, name in given.items():
        scheme = schemes.get(name)
        if attack is not None:
            attacks.check_name(attack=attack)
            if scheme.promise != "epsilon":
                raise ValueError(
                    f"Expected {argument} that promises an epsilon with attack={attack!r}, got "
                    f"{name!r}."
                )
        elif not _compared(scheme):
            _validate.one_of(promising(), **{argument: name})


def game(name: str, config: Any, *, num_rounds: int = 1) -> Game:
    """The sharpest game here against the registered scheme `name`.

    Raises:
      ValueError: no such scheme, none of `kinds` fits it, its noise multiplier is None, or
        num_rounds < 1.
    """
    return _made(name, config, num_rounds, most=1)[0]


def games(
    name: str, config: Any, *, num_rounds: int = 1, attack: str | None = None
) -> tuple[Game, ...]:
    """Every game here against the registered scheme `name`, the sharpest first; or the one that
    `attack` names.

    A game about uploads does not run the scheme's rounds, so that `one_unit` goes with it where
    that plays them.

    Raises:
      As `game`; or the attack is not known, or not for this scheme.
    """
    if attack is None:
        return _made(name, config, num_rounds)
    _validate.positive_int(num_rounds=num_rounds)
    return (attacks.get(attack)(schemes.get(name), config, num_rounds=num_rounds),)


def _made(name: str, config: Any, num_rounds: int, most: int | None = None) -> tuple[Game, ...]:
    _validate.positive_int(num_rounds=num_rounds)
    scheme = schemes.get(name)
    fitting = kinds(scheme)[:most]
    if not fitting:
        raise ValueError(
            f"Expected a scheme whose uploads or rounds can be played here, got scheme={name!r}."
        )
    return tuple(kind(scheme, config, num_rounds=num_rounds) for kind in fitting)


def play(
    game: Game, key: jax.Array, num_trials: int, *, at_once: int = 1024
) -> tuple[np.ndarray, np.ndarray]:
    """Scores `[num_trials]` with the unit and without it, all trials in one program.

    Args:
      at_once: trials side by side; only speed and memory depend on it.

    Raises:
      ValueError: the key is no typed key, or num_trials < 1.
    """
    _validate.stream_key(key=key)
    _validate.positive_int(num_trials=num_trials, at_once=at_once)

    @jax.jit
    def run(keys: jax.Array) -> jax.Array:
        one = lambda pair: game.score(*pair)
        return jax.lax.map(
            one,
            (keys, jnp.arange(2 * num_trials) < num_trials),
            batch_size=min(at_once, num_trials),
        )

    found = np.asarray(run(jax.random.split(key, 2 * num_trials)), np.float64)
    return found[:num_trials], found[num_trials:]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """Certified against measured, at one delta.

    certified, measured: epsilon, the first an upper and the second a lower bound with the stated
    confidence; measured is by counting, whatever the shape of the trade-off curve. gaussian: the
    lower bound of an attacker who knows that the curve is Gaussian. ceiling: the most that so many
    trials can prove, of any scores. holds: measured <= certified; None where ceiling <= certified,
    so that no scores could have said no.
    """

    certified: float
    measured: float
    gaussian: float
    delta: float
    confidence: float
    trials: int
    ceiling: float
    holds: bool | None


def verdict(
    game: Game,
    key: jax.Array,
    *,
    num_trials: int = 10_000,
    delta: float = 0.01,
    confidence: float = 0.99,
    certified: float | None = None,
) -> Verdict:
    """Plays, and compares what was measured with what the game's event certifies: `judge` of fresh
    scores.
    """
    scores = play(game, key, num_trials)
    return judge(game.event, scores, delta=delta, confidence=confidence, certified=certified)


def judge(
    event: PrivacyEvent,
    scores: tuple[np.ndarray, np.ndarray],
    *,
    delta: float,
    confidence: float,
    certified: float | None = None,
) -> Verdict:
    """Compares what scores prove with what `event` certifies.

    Args:
      scores: of `play`.
      delta: large enough to be counted in so many trials; a certificate at one delta comes with one
        at any other.
      certified: an epsilon to compare with in place of the event's.

    Raises:
      ValueError: a number is out of range.
    """
    if certified is None:
        certified = certified_epsilon(event, delta)
    found = audit.two_worlds(*scores, delta=delta, confidence=confidence)
    measured = float(found.epsilon)
    ceiling = audit.ceiling(scores[0].size, delta=delta, confidence=confidence)
    return Verdict(
        certified=certified,
        measured=measured,
        gaussian=float(found.gdp_epsilon),
        delta=delta,
        confidence=confidence,
        trials=scores[0].size,
        ceiling=ceiling,
        holds=measured <= certified if certified < ceiling else None,
    )


def certified_epsilon(event: PrivacyEvent, delta: float) -> float:
    """The smallest epsilon that an accountant of ours proves for the event."""
    found = [
        row["epsilon_upper"] for row in accounting.table(event, delta=delta) if row["certified"]
    ]
    return min((float(str(value)) for value in found), default=math.inf)


def certified_delta(event: PrivacyEvent, epsilon: float) -> float:
    """The smallest delta that `quick_method` proves for the event at `epsilon`; 1 if it proves
    none.
    """
    try:
        spent = accounting.spent(event, epsilon=epsilon, method=quick_method(event))
    except UnsupportedEventError:
        return 1.0
    return min(1.0, spent.delta_upper) if spent.certified else 1.0


def quick_method(event: PrivacyEvent) -> Literal["gdp", "rdp"]:
    """The accountant "gdp", which is exact, for compositions of unsampled Gaussian mechanisms; else
    "rdp".
    """
    try:
        accounting.epsilon(event, delta=0.5, method="gdp")
    except UnsupportedEventError:
        return "rdp"
    return "gdp"


def certified_curve(event: PrivacyEvent, fpr: np.ndarray) -> np.ndarray:
    """Least false-negative rate of any test at `fpr` `[...]`, from proved (epsilon, delta) pairs on
    a grid.
    """
    best = np.zeros(np.shape(fpr))
    for epsilon in _EPSILONS:
        best = np.maximum(
            best,
            conversion.epsilon_delta_trade_off(
                float(epsilon), certified_delta(event, float(epsilon)), fpr
            ),
        )
    return best
