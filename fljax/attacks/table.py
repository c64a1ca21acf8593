"""Certified against measured, one row a scheme: what it promises, and what the attack it defends
against gets.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, schemes
from fljax.accounting import words
from fljax.accounting.events import PrivacyEvent
from fljax.attacks import noisy_records, noisy_uploads, reconstruction, rounds
from fljax.data.sources import fields

# The five papers of this library, each by one of its schemes.
PAPERS = {
    "higradavg": "Subject granular privacy, arXiv:2206.03617",
    "lightdp": "Pair noise and stragglers, LightDP-FL",
    "gsgd_dp": "Noise of sampling, arXiv:2405.04551",
    "natural_channel": "Information channels, arXiv:2403.01268",
    "bidirectional": "Privacy in both directions, MP-Server and DDP-Client",
}
VERDICTS = {True: "holds", False: "violated", None: "cannot tell"}
_KNOWN, _SIDE = 4000, 8  # images that a channel is solved from
_SEEN = 4.0  # a channel holds where the attack would have seen noise this many times too little


class Settings(NamedTuple):
    """How hard to attack. noise_multiplier: of schemes with an epsilon; nats: of channels. trials:
    in each world.

    attack: the game to play; None: all that fit.
    """

    noise_multiplier: float = 1.0
    nats: float = 8.0
    trials: int = 10_000
    delta: float = 0.05
    confidence: float = 0.99
    num_rounds: int = 1
    attack: str | None = None


class Row(NamedTuple):
    """quantity: of `certified` and `measured`, in words. bound: which side of it attacks have to
    stay on.

    holds: whether they did, beyond what chance explains at the stated confidence; None where no
    data could have said no, since so many trials prove at most `ceiling`, or where noise far too
    little was not seen, or would not have been, or where a law of noise alone was seen to hold
    (`law_alone`), and not the scheme's rounds. standing: of the certified number. event, scores:
    of the game and view that proved most, with the unit and without it; None where there was none.
    scores_of_law: that game is one of a law of noise alone. diverged:
    reconstructions that ended nowhere, and count as the best guess of who has seen nothing.
    seen_from: by which factor a channel's noise (its variance) could have been too little and the
    attack would have seen it; None where that was not asked. control: what the same attack proves
    of the scheme with half its noise; None where that was not asked. undefended: what it gets
    without noise; None where the scheme cannot be without.
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
    seen_from: float | None = None
    control: float | None = None
    law_alone: bool = False
    scores_of_law: bool = False
    undefended: float | None = None

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        return VERDICTS[self.holds]


def cannot_tell(ceiling: float | None, control: float | None, law_alone: bool = False) -> str:
    """Why an audit of an epsilon cannot tell, in words."""
    if law_alone:
        return (
            "the law of uploads holds, but nothing here has seen the scheme's rounds draw such "
            "noise, see --replay"
        )
    if control is not None:
        return f"with half the noise the attack proves epsilon {words.at_least(control, 3)} only"
    return f"so many trials prove at most epsilon {ceiling:.3g}"


def epsilon_row(name: str, key: jax.Array, settings: Settings, config: Any = None) -> Row:
    """A scheme with an epsilon: the likelihood-ratio test of one unit, thousands of rounds.

    Of several games the one that proves most counts, all of them at a confidence that is split
    between them. The bound holds only where one of them that runs the scheme's rounds gets past it
    on its control, the scheme with half its noise.
    """
    if config is None:
        config = rounds.config(name, noise_multiplier=1.0)
    config = dataclasses.replace(config, noise_multiplier=settings.noise_multiplier)
    games = rounds.games(name, config, num_rounds=settings.num_rounds, attack=settings.attack)
    confidence = 1 - (1 - settings.confidence) / len(games)
    played = [
        (
            game,
            *rounds.audited(
                game,
                jax.random.fold_in(key, place),
                num_trials=settings.trials,
                delta=settings.delta,
                confidence=confidence,
            ),
        )
        for place, game in enumerate(games)
    ]
    game, found, scores = max(played, key=lambda one: one[1].measured)
    broken = any(one.holds is False for _, one, _ in played)
    held = {each.law_alone for each, one, _ in played if one.holds}
    controls = [one.control for _, one, _ in played if one.control is not None]
    bare = rounds.undefended(
        name,
        config,
        jax.random.fold_in(key, len(games)),
        num_trials=settings.trials,
        num_rounds=settings.num_rounds,
        attack=settings.attack,
        delta=settings.delta,
        confidence=confidence,
    )
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
        holds=False if broken else True if False in held else None,
        standing="certified"
        if found.certified < np.inf
        else "not certified: no accountant proves an epsilon",
        ceiling=found.ceiling,
        event=game.event,
        scores=scores,
        control=max(controls, default=None),
        law_alone=held == {True},
        scores_of_law=game.law_alone,
        undefended=None if bare is None else bare[0].measured,
    )


def mse_row(name: str, key: jax.Array, settings: Settings, config: None = None) -> Row:
    """A channel: the noisy records that a linear model's update holds, and the best estimates from
    them.

    The images are Gaussian fields, declared so: there the bound on reconstruction is certified.
    Where the noise is on uploads they are independent normals, of which such noise hides least.
    Where the nats that were told are proved to be more than those declared, the row is about nats;
    else about the error. One use of each record; trials and delta mean nothing here.

    Raises:
      ValueError: num_rounds is not 1.
    """
    if settings.num_rounds != 1:
        raise ValueError(
            f"Expected num_rounds=1 for the channel {name!r}, whose bound is of one use, "
            f"got num_rounds={settings.num_rounds}."
        )
    on_uploads = schemes.get(name).uploads_seen
    if on_uploads:
        known = noisy_uploads.records(_SIDE)
    else:
        known = fields.make(np.random.default_rng(0), num_train=_KNOWN, num_test=_KNOWN, side=_SIDE)
    config = reconstruction.config(name, nats=settings.nats, data_model="gaussian")
    seen = reconstruction.Seen(known, data.ClientData(known.train, jnp.zeros((1, 1), jnp.int32)))
    inputs, spent = reconstruction.of_channel(name, config, seen)
    if on_uploads:
        played = noisy_uploads.worlds(name, config, key, known)
    else:
        played = noisy_records.worlds(name, config, inputs, key, known)
    claims = {"mse": float(spent.mse[0]), "nats": float(spent.nats[0]) - spent.label_nats}
    found = noisy_records.judge(played, **claims, confidence=settings.confidence)
    held = found.error_holds and found.nats_hold
    seen_from = noisy_records.seen_from(played, **claims, confidence=settings.confidence)
    about_error = found.nats_hold or not found.error_holds
    certified, reason = (
        (spent.mse_certified, spent.mse_reason) if about_error else (spent.certified, spent.reason)
    )
    return Row(
        scheme=name,
        unit="example",
        relation=f"{settings.nats:g} nats a use",
        attack=f"{sum(len(world.x) for world in played)} noisy records read off updates of a "
        "linear model; from half "
        "of them the attacker learns the noise, of the others it takes the posterior mean"
        + (
            f"; {found.unread} updates told no record and count as the mean image"
            if found.unread
            else ""
        ),
        sees="the model before and after, the label, the law of the data, and half of the records",
        quantity="squared error per pixel after 1 use" if about_error else "nats told by 1 use",
        bound="at least" if about_error else "at most",
        certified=claims["mse" if about_error else "nats"],
        measured=found.error if about_error else found.nats,
        holds=(True if seen_from <= _SEEN else None) if held else False,
        standing="certified" if certified else f"not certified: {reason}",
        diverged=found.unread,
        seen_from=seen_from,
        undefended=_bare(played, claims, settings.confidence, about_error),
    )


def _bare(
    played: tuple[noisy_records.World, ...],
    claims: dict[str, float],
    confidence: float,
    about_error: bool,
) -> float:
    """What the attack on a channel gets where noise is next to none."""
    worlds = tuple(noisy_records.with_less_noise(world, 1e6) for world in played)
    found = noisy_records.judge(worlds, **claims, confidence=confidence)
    return found.error if about_error else found.nats


def linear_estimate(found: np.ndarray, known: Any) -> np.ndarray:
    """The linear estimate with least error of records from noisy ones `[T, ...]`, for noise of
    unknown strength.

    The attacker takes the covariance from `known` records and the noise's variance from what it
    found. A record that is not finite tells nothing: its estimate is the mean.
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


# By what a scheme promises.
ROWS: dict[str, Callable[[str, jax.Array, Settings, Any], Row]] = {
    "epsilon": epsilon_row,
    "nats": mse_row,
}


def row(
    name: str,
    key: jax.Array,
    settings: Settings = Settings(),  # noqa: B008
    config: Any = None,
) -> Row:
    """The row of one registered scheme.

    Args:
      config: of a scheme with an epsilon, for a small world; its noise multiplier is that of
        `settings`. None: `rounds.config`.

    Raises:
      ValueError: no such scheme, or it promises nothing.
    """
    rounds.check_name(scheme=name, attack=settings.attack)
    return ROWS[schemes.get(name).promise](name, key, settings, config)
