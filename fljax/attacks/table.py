"""Certified against measured, one row a scheme: what it promises, and what the attack it defends against gets."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fljax import _validate, data, models, schemes
from fljax.accounting import words
from fljax.accounting.events import PrivacyEvent
from fljax.attacks import gradient_inversion, reconstruction, rounds, victims
from fljax.data import fields

# The five papers of this library, each by one of its schemes.
PAPERS = {
    "higradavg": "Subject granular privacy, arXiv:2206.03617",
    "lightdp": "Pair noise and stragglers, LightDP-FL",
    "gsgd_dp": "Noise of sampling, arXiv:2405.04551",
    "natural_channel": "Information channels, arXiv:2403.01268",
    "bidirectional": "Privacy in both directions, MP-Server and DDP-Client",
}
HELD = {True: "yes", False: "NO", None: "cannot tell"}
_RECORDS, _ITERATIONS = 40, 300
_KNOWN, _SIDE = 4000, 8  # images that attacker and channel take the covariance from


class Settings(NamedTuple):
    """How hard to attack. noise_multiplier: of schemes with an epsilon; nats: of channels. trials: in each world."""

    noise_multiplier: float = 1.0
    nats: float = 8.0
    trials: int = 10_000
    delta: float = 0.05
    confidence: float = 0.99
    num_rounds: int = 1


class Row(NamedTuple):
    """quantity: of `certified` and `measured`, in words. bound: which side of it attacks have to stay on.

    holds: whether they did, beyond what chance explains at the stated confidence; None where no data could have said
    no, since so many trials prove at most `ceiling`. standing: of the certified number. event, scores: of the game that
    proved most, with the unit and without it; None where there was none. diverged: searches that ended nowhere, and
    count as the best guess of who has seen nothing.
    """

    scheme: str
    unit: str
    relation: str
    attack: str
    sees: str
    quantity: str
    bound: str
    certified: float
    measured: float
    holds: bool | None
    standing: str
    ceiling: float | None = None
    event: PrivacyEvent | None = None
    scores: tuple[np.ndarray, np.ndarray] | None = None
    diverged: int = 0


def epsilon_row(name: str, key: jax.Array, settings: Settings) -> Row:
    """A scheme with an epsilon: the likelihood-ratio test of one unit, thousands of rounds.

    Of several games the one that proves most counts, all of them at a confidence that is split between them.
    """
    config = rounds.config(name, noise_multiplier=settings.noise_multiplier)
    games = rounds.games(name, config, num_rounds=settings.num_rounds)
    confidence = 1 - (1 - settings.confidence) / len(games)
    played = []
    for place, each in enumerate(games):
        runs = rounds.play(each, jax.random.fold_in(key, place), settings.trials)
        played.append((each, runs, rounds.judge(each.event, runs, delta=settings.delta, confidence=confidence)))
    game, scores, found = max(played, key=lambda one: one[2].measured)
    return Row(
        scheme=name,
        unit=game.event.privacy_unit,
        relation=str(game.event.neighboring_relation),
        attack=f"membership of one unit, {settings.trials} runs in each world",
        sees=", or: ".join(each.sees for each in games),
        quantity=f"epsilon at delta {words.at_most(settings.delta)}",
        bound="at most",
        certified=found.certified,
        measured=found.measured,
        holds=found.holds,
        standing="certified" if found.certified < np.inf else "not certified: no accountant proves an epsilon",
        ceiling=found.ceiling,
        event=game.event,
        scores=scores,
    )


def mse_row(name: str, key: jax.Array, settings: Settings) -> Row:
    """A channel: gradient inversion of images through its noise, then the best linear estimate of the image.

    The images are Gaussian fields, declared so: there the bound on reconstruction is certified. One use of each record;
    trials and delta mean nothing here.

    Raises:
      ValueError: num_rounds is not 1.
    """
    if settings.num_rounds != 1:
        raise ValueError(
            f"Expected num_rounds=1 for the channel {name!r}, whose bound is of one use, "
            f"got num_rounds={settings.num_rounds}."
        )
    known = fields.make(np.random.default_rng(0), num_train=_KNOWN, num_test=_KNOWN, side=_SIDE)
    x, y = (jnp.asarray(known.test[part][:_RECORDS]) for part in ("x", "y"))
    shape = (x.shape[1], x.shape[2], x.shape[3])
    victim = victims.smooth_lenet(example_shape=shape, num_classes=known.num_classes, key=jax.random.key(0))
    config = reconstruction.config(name, nats=settings.nats, data_model="gaussian")
    update_key, start_key = jax.random.split(key)
    moved = reconstruction.updates(
        name,
        config,
        models.softmax_cross_entropy(victim.apply),
        victim.params,
        {"x": x, "y": y},
        jax.random.split(update_key, _RECORDS),
        known,
    )
    # Noise leaves the range of pixels: a box would only cost the attacker.
    search = gradient_inversion.Settings(num_iterations=_ITERATIONS, tv_weight=0.0, box=None)
    found = np.asarray(
        reconstruction.invert(victim.apply, victim.params, moved, y, start_key, shape=shape, settings=search)
    )
    estimate, diverged = linear_estimate(found, known.train["x"]), int(reconstruction.diverged(found).sum())
    errors = np.square(estimate - np.asarray(x, np.float64)).reshape(_RECORDS, -1).mean(1)
    scheme = schemes.get(name)
    seen = reconstruction.Seen(known, data.ClientData(known.train, jnp.zeros((1, 1), jnp.int32)))
    spent = scheme.spent(config, seen, scheme.inputs(config, seen), 1)
    certified = float(spent.mse[0])
    # One-sided: the mean of the errors, with Student's law for so many records.
    high = errors.mean() + stats.t.ppf(settings.confidence, _RECORDS - 1) * errors.std(ddof=1) / _RECORDS**0.5
    return Row(
        scheme=name,
        unit="example",
        relation=f"{words.at_most(settings.nats)} nats a use",
        attack=f"gradient inversion of {_RECORDS} Gaussian images, then the best linear estimate"
        + (f"; {diverged} searches diverged and count as the mean image" if diverged else ""),
        sees="the model before and after, label and covariance of the data",
        quantity="squared error per pixel after 1 use",
        bound="at least",
        certified=certified,
        measured=float(errors.mean()),
        holds=bool(high >= certified),
        standing="certified" if spent.mse_certified else f"not certified: {spent.mse_reason}",
        diverged=diverged,
    )


def linear_estimate(found: np.ndarray, known: Any) -> np.ndarray:
    """The linear estimate with least error of records from noisy ones `[T, ...]`, for noise of unknown strength.

    The attacker takes the covariance from `known` records and the noise's variance from what it found. A record that is
    not finite tells nothing: its estimate is the mean.
    """
    flat = np.asarray(known, np.float64).reshape(len(known), -1)
    mean, covariance = flat.mean(0), np.cov(flat, rowvar=False)
    kept = ~reconstruction.diverged(found)
    noisy = np.asarray(found, np.float64).reshape(len(found), -1)[kept]
    estimate = np.tile(mean, (len(found), 1))
    if len(noisy):
        noise = max(float(np.square(noisy - mean).mean() - np.trace(covariance) / mean.size), 0.0)
        gain = np.linalg.solve(covariance + (noise + 1e-9) * np.eye(mean.size), covariance)
        estimate[kept] += (noisy - mean) @ gain
    return estimate.reshape(found.shape)


# By what a scheme promises: its PROMISE.
ROWS: dict[str, Callable[[str, jax.Array, Settings], Row]] = {"epsilon": epsilon_row, "nats": mse_row}


def _compared(scheme: Any) -> bool:
    # With a trusted server and rounds that take networks only, no game here fits an epsilon.
    return scheme.PROMISE == "nats" or (scheme.PROMISE == "epsilon" and bool(rounds.kinds(scheme)))


def promising() -> list[str]:
    """Schemes that promise something which an attack here can be compared with."""
    return [name for name in schemes.names() if _compared(schemes.get(name))]


def check_name(**given: str) -> None:
    """Raises ValueError, with the argument's name, unless the scheme is known and promises something."""
    for argument, name in given.items():
        if not _compared(schemes.get(name)):
            _validate.one_of(promising(), **{argument: name})


def row(name: str, key: jax.Array, settings: Settings = Settings()) -> Row:  # noqa: B008
    """The row of one registered scheme.

    Raises:
      ValueError: no such scheme, or it promises nothing.
    """
    check_name(scheme=name)
    return ROWS[schemes.get(name).PROMISE](name, key, settings)
