"""One privacy unit against a whole scheme: rounds of the scheme itself, thousands of times, with
the unit and without.

The attacker chose all data (a worst case that the guarantee covers), sees what the one sees whom
the promise is made to, and does not know one thing: whether the unit was there, or which of two
contents it had. `one_unit` scores how far the model, or where each upload is seen the upload, moved
along the unit's gradient. That is the likelihood-ratio test, or a monotone function of it. A server
from which uploads hide in noise that clients share is a game of its own (`uploads`), for which
nothing but the noise law of the uploads is played: that the scheme's rounds add this noise and clip
is what `one_unit` sees. Which games a scheme is in for is said by its module, see `kinds`.

An attack that finds nothing says nothing, unless it would have found something: `games` come with a
control, the same mechanism with half the noise, and a bound "holds" only where the same attack
catches the control.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate, accounting, attacks, schemes
from fljax.accounting import correlated
from fljax.accounting.events import PrivacyEvent
from fljax.accounting.pld import WideIntervalWarning
from fljax.accounting.renyi import conversion
from fljax.accounting.shared_noise import exact as view
from fljax.attacks import audit, worlds
from fljax.attacks._blocks import in_blocks
from fljax.errors import UnsupportedEventError
from fljax.schemes.base import Scheme
from fljax.upload import pair_noise
from fljax_kernels import correlated as kernel
from fljax_kernels.correlated import Strategy

# A small world with others, two silos, and colluders where their view is played: what a scheme's
# Config is given where it has the field.
SMALL: dict[str, Any] = {
    "batch_size": 16,  # so many that the noise of Gaussian weights is small beside what is added
    "buffer_size": 4,  # of as many clients: the unit is in the release
    "expected_items": 2.0,
    "expected_subjects": 2.0,
    "item_sampling_prob": 0.5,
    "key_bits": 128,  # protocols show no less with small numbers
    "items_per_subject": 1,  # moves a sum by no less than group privacy charges for
    "max_colluders": 1,
    "max_items_per_subject": 2,
    "max_stragglers": 0,
    "min_separation": 1,
    "num_local_epochs": 1,
    "num_local_steps": 1,
    "num_parties": 4,
    "records_per_client": 4,
    "rounds_per_start": 1,
    "sampling_prob": 0.7,
    "straggler_law": "fixed",
}
SILOS = {"num_parties": 2}  # in place of it, where clients are silos
SUBSETS = {"batch_size": 4}  # where a batch is a part of a client's records
# What of a config says how many clients there are, and what has to fit that.
_POPULATION = (
    "buffer_size",
    "max_colluders",
    "max_stragglers",
    "min_separation",
    "num_parties",
    "silo_noise",
    "silos_per_round",
    "silos_per_subject",
    "straggler_law",
)
_MOST_CLIENTS = 4
_EPSILONS = np.concatenate([np.linspace(0, 4, 17), np.geomspace(5, 20_000, 30)])


Score = Callable[[jax.Array, jax.Array], jax.Array]


class Game(NamedTuple):
    """score: `(key, present []) -> []`, pure: one run of the mechanism, scored. Or `[A, F]`: A
    views, each of two neighbours of its own, of which the best counts at a confidence that is split
    between them; each of F numbers that say most together (`play` weighs them). event: what is
    certified of it.

    sees: what the attacker sees, in words. control: as score, for the same mechanism with half the
    noise; None: none is played, and nothing says that the attack would have found too little noise.

    law_alone: only a law of noise is played, so that nothing is said of the scheme's rounds.
    """

    score: Score
    event: PrivacyEvent
    sees: str
    control: Score | None = None
    law_alone: bool = False


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
    found = SMALL | (SILOS if scheme.noise_at == "silo" else {})
    if scheme.upload_noise is None:
        # What colluders know of the noise in a sum, `one_unit` does not take away.
        found |= {"max_colluders": 0}
    try:
        small(scheme.Config, found, required={})
    except ValueError:
        return found | SUBSETS
    return found


def shrunk(scheme: Scheme, config: Any) -> Any:
    """`config` for a small world: as many clients as there, and what has to fit their number
    (`_POPULATION`); all else as it is. A client has as many records as it had, of which a batch is
    a part.

    Raises:
      ValueError: what is left does not go together with so few clients, or how many records a
        client has is left to data and is in the event.
    """
    few = sizes(scheme)
    names = {field.name for field in dataclasses.fields(config)}
    if "records_per_client" in names and config.records_per_client is None:
        one, other = (
            dataclasses.replace(config, records_per_client=many, noise_multiplier=1.0)
            for many in (2**20, 2**21)
        )
        if scheme.event(one) != scheme.event(other):
            raise ValueError(
                "Expected records_per_client to be a number, of which a batch is a part, as a "
                "run's folder has it, got None."
            )
        config = dataclasses.replace(config, records_per_client=few["records_per_client"])
    changes = {
        field.name: few.get(field.name, field.default)
        for field in dataclasses.fields(config)
        if field.name in _POPULATION
    }
    return dataclasses.replace(config, **changes)


def fewest(scheme: Scheme, config: Any) -> Any:
    """`config` with as few clients as the scheme admits, of which none colludes: others add no
    noise, and hide no mistake.

    Raises:
      ValueError: the scheme refuses every small world.
    """
    fields = {field.name for field in dataclasses.fields(config)}
    for count in range(1, _MOST_CLIENTS + 1):
        sizes = {"max_colluders": 0, "num_parties": count, "buffer_size": count}
        try:
            found = dataclasses.replace(
                config, **{name: size for name, size in sizes.items() if name in fields}
            )
            jax.eval_shape(worlds.Neighbours(scheme, found).model, jax.random.key(0), True)
        except ValueError:
            if count == _MOST_CLIENTS:
                raise
            continue
        break
    return found


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


def one_unit(scheme: Scheme, config: Any, *, num_rounds: int = 1) -> Game:
    """A game against rounds of any scheme, from what its event says about units and neighbours.

    The attacker sees what the promise's adversary does: the model, and what else is released; where
    each upload is seen, those of the clients that have the unit, for each client that may be the
    first of them. Where clients share noise, which is not what hides a model, there are as few of
    them as the scheme admits: see `fewest`.
    """
    if scheme.upload_noise is not None:
        config = fewest(scheme, config)
    pair = worlds.Neighbours(scheme, config)
    firsts = np.arange(pair.num_clients if pair.holders < pair.num_clients else 1)
    seen = (firsts[:, None] + np.arange(pair.holders)) % pair.num_clients  # [A, F]

    def of_model(key: jax.Array, present: jax.Array) -> jax.Array:
        moved = pair.model(key, present, num_rounds=num_rounds)
        return -moved[0] if scheme.released is None else moved[None]

    def of_uploads(key: jax.Array, present: jax.Array) -> jax.Array:
        one = lambda against: pair.uploads(key, present, against, num_rounds=num_rounds)
        each = jax.vmap(one)(jnp.asarray([False, True]))[..., 0]
        return -each[:, seen].reshape(-1, pair.holders)

    score = of_uploads if scheme.uploads_seen else of_model
    return Game(score, scheme.run_event(config, num_rounds), worlds.seen_by(scheme))


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
    told_of = scheme.upload_noise(config)
    edges, num, num_colluders, own, ratio, move = told_of[:6]
    strategy = told_of.strategy or Strategy("banded", (1.0,), 1)
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

    # C times the uploads has independent noise, in which client 0 stands as C times its rounds.
    start, place = np.divmod(np.arange(num_rounds), strategy.num_rounds)
    short = dataclasses.replace(strategy, num_rounds=int(place.max()) + 1)
    matrix = correlated.encoder(short)[np.ix_(place, place)] * (start[:, None] == start)
    data = (np.arange(num_rounds) % told_of.min_separation == 0).astype(np.float32)
    weights = matrix.T @ (matrix @ data)

    def score(key: jax.Array, present: jax.Array) -> jax.Array:
        def one_round(state: Any, index: jax.Array) -> tuple[Any, jax.Array]:
            drawn = noise(key, index, jnp.zeros(())) - told(key, index, jnp.zeros(()))
            seen, state = kernel.correlate(strategy, drawn, state)
            seen = seen.at[0].add(jnp.where(present, move, 0.0) * jnp.asarray(data)[index])
            return state, jnp.vdot(jnp.asarray(direction, jnp.float32), seen[honest] / own)

        begin = kernel.init(strategy, jnp.zeros(num))
        _, found = jax.lax.scan(one_round, begin, jnp.arange(num_rounds))
        return jnp.vdot(jnp.asarray(weights, jnp.float32), found)

    sees = (
        f"every upload; {num_colluders} of {num} clients tell it their pair noise "
        "(the noise law of uploads, not the scheme's rounds)"
    )
    return Game(score, scheme.run_event(config, num_rounds), sees, law_alone=True)


def kinds(scheme: Scheme) -> tuple[Attack, ...]:
    """The games here that can be played against a scheme, the sharpest first: what its module says
    of itself.
    """
    return (one_unit,) if scheme.upload_noise is None else (uploads, one_unit)


def promising() -> list[str]:
    """Schemes that promise what an attack here can be compared with; those of others that fail to
    load are left out.
    """

    def fits(name: str) -> bool:
        try:
            return schemes.get(name).promise != "none"
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
        elif scheme.promise == "none":
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
    return (_with_control(attacks.get(attack), schemes.get(name), config, num_rounds),)


def _made(name: str, config: Any, num_rounds: int, most: int | None = None) -> tuple[Game, ...]:
    _validate.positive_int(num_rounds=num_rounds)
    scheme = schemes.get(name)
    return tuple(_with_control(kind, scheme, config, num_rounds) for kind in kinds(scheme)[:most])


def _with_control(attack: Attack, scheme: Scheme, config: Any, num_rounds: int) -> Game:
    """The game, with its control where there is noise to halve."""
    found = attack(scheme, config, num_rounds=num_rounds)
    if not config.noise_multiplier:
        return found
    half = with_half_the_noise(config)
    return found._replace(control=attack(scheme, half, num_rounds=num_rounds).score)


def with_half_the_noise(config: Any) -> Any:
    """The config of the control: what is certified of `config` is not true of it."""
    return dataclasses.replace(config, noise_multiplier=config.noise_multiplier / 2)


def play(
    game: Game, key: jax.Array, num_trials: int, *, at_once: int = 1024
) -> tuple[np.ndarray, np.ndarray]:
    """Scores `[num_trials]` with the unit and without it, all trials in one program; `[A,
    num_trials]` of a game with A views.

    A view of several numbers is scored by Fisher's linear discriminant, learnt from the runs that
    choose a threshold in `audit.two_worlds` and do not count there.

    Args:
      at_once: trials side by side; only speed and memory depend on it.

    Raises:
      ValueError: the key is no typed key, or num_trials < 1.
    """
    _validate.stream_key(key=key)
    _validate.positive_int(num_trials=num_trials, at_once=at_once)
    keys, present = jax.random.split(key, 2 * num_trials), np.arange(2 * num_trials) < num_trials
    run = in_blocks(lambda pair: game.score(*pair), at_once=min(at_once, num_trials))
    found = np.asarray(run((keys, present)), np.float64)
    if found.ndim == 1:
        return found[:num_trials], found[num_trials:]
    pairs = [audit.combined(view[:num_trials], view[num_trials:]) for view in found.swapaxes(0, 1)]
    return np.stack([pair[0] for pair in pairs]), np.stack([pair[1] for pair in pairs])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """Certified against measured, at one delta.

    certified, measured: epsilon, the first an upper and the second a lower bound with the stated
    confidence; measured is by counting, whatever the shape of the trade-off curve. gaussian: the
    lower bound of an attacker who knows that the curve is Gaussian. control: measured of the
    control; None where none was played. ceiling: the most that so many trials can prove, of any
    scores. best: which of several views proved most.
    """

    certified: float
    measured: float
    gaussian: float
    delta: float
    confidence: float
    trials: int
    ceiling: float
    control: float | None = None
    best: int = 0

    @property
    def holds(self) -> bool | None:
        """Whether measured <= certified. None, "cannot tell": no scores could have said no, since
        ceiling <= certified, or the control, which breaks the bound, was not caught.
        """
        if self.measured > self.certified:
            return False
        caught = self.control is None or self.control > self.certified
        return True if caught and self.ceiling > self.certified else None


def verdict(
    game: Game,
    key: jax.Array,
    *,
    num_trials: int = 10_000,
    delta: float = 0.01,
    confidence: float = 0.99,
    certified: float | None = None,
) -> Verdict:
    """Plays, the control too, and compares what was measured with what the game's event certifies:
    `judge` of fresh scores.
    """
    how: dict[str, Any] = {"num_trials": num_trials, "delta": delta, "confidence": confidence}
    return audited(game, key, certified=certified, **how)[0]


def audited(
    game: Game,
    key: jax.Array,
    *,
    num_trials: int,
    delta: float,
    confidence: float,
    certified: float | None = None,
) -> tuple[Verdict, tuple[np.ndarray, np.ndarray]]:
    """`verdict`, and the scores `[num_trials]` of the view that proved most, with the unit and
    without it.

    The control is played where the bound would hold without it.
    """
    scores = play(game, key, num_trials)
    judged = functools.partial(judge, game.event, delta=delta, confidence=confidence)
    found = judged(scores, certified=certified)
    present, absent = (np.atleast_2d(world)[found.best] for world in scores)
    if game.control is not None and found.holds:
        other = play(game._replace(score=game.control), jax.random.fold_in(key, 1), num_trials)
        control = judged(other, certified=found.certified).measured
        found = dataclasses.replace(found, control=control)
    return found, (present, absent)


NEXT_TO_NO_NOISE = 1e-2  # a noise multiplier that hides nothing; at 0 there is no law of noise


def undefended(
    name: str,
    config: Any,
    key: jax.Array,
    *,
    num_trials: int,
    delta: float,
    confidence: float,
    num_rounds: int = 1,
    attack: str | None = None,
) -> tuple[Verdict, tuple[np.ndarray, np.ndarray]] | None:
    """What the attack proves where nothing is hidden, and its scores, as `audited`: an attack that
    proves little here says little elsewhere. None where the scheme refuses next to no noise.

    Args:
      name, num_rounds, attack: as for `games`; of several games the sharpest.
      config: whose noise is taken away.
      key, num_trials, delta, confidence: as for `verdict`.

    Raises:
      As `games` for `config`.
    """
    games(name, config, num_rounds=num_rounds, attack=attack)
    try:
        bare = dataclasses.replace(config, noise_multiplier=NEXT_TO_NO_NOISE)
        game = games(name, bare, num_rounds=num_rounds, attack=attack)[0]
    except ValueError:
        return None
    how: dict[str, Any] = {"num_trials": num_trials, "delta": delta, "confidence": confidence}
    return audited(game._replace(control=None), key, certified=math.inf, **how)


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
    present, absent = (np.atleast_2d(world) for world in scores)
    each = 1 - (1 - confidence) / len(present)
    found = audit.two_worlds(present, absent, delta=delta, confidence=each)
    best = int(np.argmax(found.epsilon))
    return Verdict(
        certified=certified,
        measured=float(found.epsilon[best]),
        gaussian=float(found.gdp_epsilon[best]),
        delta=delta,
        confidence=confidence,
        trials=present.shape[1],
        ceiling=audit.ceiling(present.shape[1], delta=delta, confidence=each),
        best=best,
    )


def certified_epsilon(event: PrivacyEvent, delta: float) -> float:
    """The smallest epsilon that an accountant of ours proves for the event."""
    found = [
        row["epsilon_upper"] for row in accounting.table(event, delta=delta) if row["certified"]
    ]
    return min((float(str(value)) for value in found), default=math.inf)


def certified_delta(event: PrivacyEvent, epsilon: float, *, tight: bool = False) -> float:
    """The smallest delta that `quick_method` proves for the event at `epsilon`; 1 if it proves
    none.

    tight: by the accountant "auto" instead, which takes longer.
    """
    method: Literal["gdp", "rdp", "auto"] = "auto" if tight else quick_method(event)
    try:
        spent = accounting.spent(event, epsilon=epsilon, method=method)
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


def certified_curve(event: PrivacyEvent, fpr: np.ndarray, *, tight: bool = False) -> np.ndarray:
    """Least false-negative rate of any test at `fpr` `[...]`, from proved (epsilon, delta) pairs on
    a grid: of `certified_delta`.
    """
    best = np.zeros(np.shape(fpr))
    with warnings.catch_warnings():
        # A delta of 1e-260 that is ten times too large moves no rate.
        warnings.simplefilter("ignore", WideIntervalWarning)
        for epsilon in _EPSILONS:
            delta = certified_delta(event, float(epsilon), tight=tight)
            best = np.maximum(best, conversion.epsilon_delta_trade_off(float(epsilon), delta, fpr))
            if delta == 0:
                break
    return best


def reachable(event: PrivacyEvent, num_trials: int, *, delta: float, confidence: float) -> float:
    """The epsilon that so many trials prove of a mechanism that hides exactly as little as `event`
    certifies, to the best attack: what `measured` is to be compared with.

    Rates are taken as they are expected, so that an audit may be above it by chance.
    """
    fpr = np.unique(np.concatenate([np.geomspace(1e-4, 0.5, 60), np.linspace(0.5, 1, 40)[:-1]]))
    tpr = 1 - certified_curve(event, fpr, tight=True)
    counted, error = audit.counted(num_trials), (1 - confidence) / 2
    low, _ = audit.clopper_pearson(tpr * counted, counted, error)
    _, high = audit.clopper_pearson(fpr * counted, counted, error)
    return float(audit.epsilon_of_rates(low, high, delta).max())
