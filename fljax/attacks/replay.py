"""Grey-box replay of a scheme: one round again, with the same keys and one unit changed. Where an
event is of several rounds, all of them: noise may be correlated over them.

Noise and samples cancel, so that what is left is how far the unit moves what is seen. It must be no
more than the noise allows for, by the scheme's event. A replay is exact where an audit counts, and
it finds what it looks at only: a unit that moves too much, or noise that is too small; not noise of
another shape, nor a sampling that is not what the event says.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _sensitivity, _validate, errors
from fljax._sensitivity import SensitivityReport
from fljax.accounting import events, mechanisms
from fljax.attacks import rounds, worlds
from fljax.attacks._blocks import in_blocks
from fljax.schemes.base import Scheme

_KEYS = 16  # that each unit is replayed with
_MOST_ROUNDS = 16  # of one event that are replayed
_DRAWS = 4000  # of the noise, per number that is seen
_AT_ONCE = 256
_STANDARD_ERRORS = 5.0
# Of a small world whose noise is correlated over rounds: a unit comes back while its noise is still
# taken back, and rounds begin anew after as many as are replayed.
_CORRELATED: dict[str, Any] = {
    "bands": 2,
    "item_sampling_prob": 0.5,
    "max_items_per_subject": 1,
    "min_separation": 2,
    "rounds_per_start": 5,
    "sampling_prob": 0.5,
    "server_learning_rate": 1.0,
}


class Replay(NamedTuple):
    """declared: how far one unit may move what is seen, in standard deviations of its noise, by the
    event. report, control: `check_sensitivity` of the scheme, and of it with half its noise under
    the same declaration, in that unit.

    sees: what the adversary sees, in words.
    """

    declared: float
    report: SensitivityReport
    control: SensitivityReport
    sees: str

    @property
    def holds(self) -> bool | None:
        """Whether no unit moves more than declared; None, "cannot tell", where the control, which
        breaks its declaration, was not caught.
        """
        if not self.report.holds:
            return False
        return None if self.control.holds else True


def replay(scheme: Scheme, config: Any, key: jax.Array) -> Replay:
    """Replays a round of the scheme for each unit of a small world, or the rounds of one event (16
    of them at most), and once more with half the noise: the control that must fail.

    Guarantee: none. A replay can refute what the event says of the unit, and proves nothing. The
    noise is measured, so that a sound scheme fails one time in a million at most.

    Args:
      config: with its noise multiplier, above 0.
      key: typed; of noise, samples and cohorts.

    Raises:
      ValueError: the scheme promises no epsilon, the event is no Gaussian mechanism or one of
        integers, there is no noise, what is released beside the model has not the model's shape, or
        the scheme refuses its config.

    Source: the idea of replaying with recorded randomness, Re:cord-play, arXiv:2602.17454.
    """
    _validate.stream_key(key=key)
    if scheme.promise != "epsilon":
        raise ValueError("Expected a scheme that promises an epsilon, got one that does not.")
    declared = mu_of(scheme.event(config).mechanism)
    if declared is None or not math.isfinite(declared):
        raise ValueError(
            "Expected an event that is a Gaussian mechanism with noise, which alone has a "
            f"sensitivity in units of it, got {scheme.event(config).mechanism}."
        )
    if scheme.uses is not None:  # a round may be more than one event
        declared *= math.sqrt(scheme.uses(config, _rounds(scheme, config)))
    half = rounds.with_half_the_noise(config)
    with jax.debug_key_reuse(False):  # a replay uses its keys again on purpose
        report, control = (_checked(scheme, each, declared, key) for each in (config, half))
    return Replay(declared, report, control, worlds.seen_by(scheme))


def _checked(scheme: Scheme, config: Any, declared: float, key: jax.Array) -> SensitivityReport:
    """`check_sensitivity` of a round, in standard deviations of its own noise."""
    pair = worlds.Neighbours(scheme, config)
    units = max(1, pair.num_clients // pair.holders)
    draw_key, replay_key = jax.random.split(key)
    count = _rounds(scheme, config)

    def view(given: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        key, present, against = given
        holds = jnp.repeat(present, pair.holders, total_repeat_length=pair.num_clients)
        seen = pair.everybody(key, holds, against, num_rounds=count, each=True)
        steps = jnp.diff(seen, axis=1, prepend=jnp.zeros_like(seen[:, :1]))
        return jnp.moveaxis(steps, 1, 2)  # [V, 3, T]

    # Rounds of nobody; then, under each key of a replay, one of nobody and one of each unit alone.
    keys = jnp.repeat(jax.random.split(replay_key, _KEYS), 1 + units)
    alone = np.tile(np.eye(1 + units, units, -1, dtype=bool), (_KEYS, 1))
    against = np.repeat(np.arange(_KEYS) % 2 == 0, 1 + units)
    given = (
        jnp.concatenate([jax.random.split(draw_key, _DRAWS), keys]),
        np.concatenate([np.zeros((_DRAWS, units), bool), alone]),
        np.concatenate([np.zeros(_DRAWS, bool), against]),
    )
    views = np.asarray(in_blocks(view, at_once=_AT_ONCE)(given), np.float64)
    drawn, moved = views[:_DRAWS], views[_DRAWS:]
    # Data lie along the first parameter; along the others a round shows its noise alone.
    size = drawn.shape[-2]
    if size % worlds.DIM:
        raise ValueError(
            "Expected what is released beside the model to have its shape, which has "
            f"{worlds.DIM} numbers here, got {size - worlds.DIM} numbers."
        )
    # What is released beside the model has noise of its own: `[N, V, P, 2, T]`.
    parts = (size // worlds.DIM, worlds.DIM, count)
    noise = drawn.reshape(*drawn.shape[:2], *parts)[..., 1:, :]
    covariance = np.einsum("nvpdt,nvpds->vpts", noise, noise) / (len(noise) * (worlds.DIM - 1))
    covariance += 1e-60 * np.eye(count)  # where there is no noise at all
    # Rounds are told apart from each other's noise. Of a sample covariance of n draws of T numbers
    # the length that it gives any vector is a root of n / chi^2 of n - T + 1 too long.
    free = len(noise) * (worlds.DIM - 1) - count + 1
    slack = _STANDARD_ERRORS / math.sqrt(2 * free) + (count - 1) / (2 * free)
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    moved = moved.reshape(_KEYS, 1 + units, -1, *parts)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is reported below
        apart = jnp.asarray(np.einsum("vpts,kuvpds->kuvpdt", whiten, moved), jnp.float32)

    def seen(present: jax.Array, mask: jax.Array) -> jax.Array:
        """A row is one unit under one key: it moves what is seen under that key alone. No two are
        there at once.
        """
        del mask
        here = present.reshape(_KEYS, units)
        who = jnp.where(here.any(axis=1), 1 + here.argmax(axis=1), 0)
        return apart[jnp.arange(_KEYS), who]

    nothing = jnp.zeros(_KEYS * units, bool)
    try:
        return _sensitivity.check_sensitivity(
            seen,
            nothing,
            sensitivity=declared * (1 + slack),
            neighboring_relation="REPLACE_ONE",
            replacements=~nothing,
        )
    except errors.SensitivityError as reason:
        found: SensitivityReport = reason.report
        return found


def _rounds(scheme: Scheme, config: Any) -> int:
    """Rounds, one after the other, that are one event."""
    if scheme.uses is None:
        return 1
    uses = scheme.uses
    return next(
        (rounds - 1 for rounds in range(2, _MOST_ROUNDS + 1) if uses(config, rounds) > 1),
        _MOST_ROUNDS,
    )


def least_config(
    scheme: Scheme, *, noise_multiplier: float = 1.0, correlation: str | None = None
) -> Any:
    """A Config of the scheme for `rounds.fewest` clients, others of its numbers as in a small
    world.

    Args:
      correlation: how noise is correlated over the rounds of one event, of those that the Config
        knows; None: as the small world has it, of one round.

    Raises:
      As `rounds.fewest`; ValueError: the scheme's noise is not correlated so.
    """
    sizes = rounds.sizes(scheme)
    asked: dict[str, Any] = {"noise_multiplier": noise_multiplier}
    if correlation is not None:
        check_correlated(scheme, correlation)
        sizes |= _CORRELATED
        asked |= {"correlation": correlation}
    small = rounds.small(scheme.Config, sizes | asked, required=asked)
    return rounds.fewest(scheme, small)


def check_correlated(scheme: Scheme, correlation: str) -> None:
    """Raises ValueError where noise of a scheme's rounds cannot be correlated at all."""
    if "correlation" not in {field.name for field in dataclasses.fields(scheme.Config)}:
        raise ValueError(
            "Expected a scheme whose noise may be correlated over rounds, got one whose is not, "
            f"and correlation={correlation!r}."
        )


def mu_of(mechanism: Any) -> float | None:
    """Sensitivity / noise that a Gaussian mechanism declares, or one of integers, without sampling;
    None for others.
    """
    match mechanism:
        case events.DiscreteGaussianSum(stddev=stddev, count=count, l2_sensitivity=move):
            return move / (stddev * math.sqrt(count))
        case events.Skellam(variance=variance, l2_sensitivity=move):
            return move / math.sqrt(variance)
        case events.Gaussian(noise_multiplier=noise):
            return 1 / noise if noise else math.inf
        case events.CorrelatedGaussian() | events.SampledCorrelatedGaussian():
            one = mechanisms.effective_noise(mechanism)
            return 1 / one if one else math.inf
        case events.MixtureOfGaussians(stddev=stddev, sensitivities=moves):
            return max(moves) / stddev if stddev else math.inf
        case events.PoissonSampled(event=inner) | events.SampledWithoutReplacement(event=inner):
            return mu_of(inner)
        case events.SelfComposed(event=inner, count=count):
            found = mu_of(inner)
            return None if found is None else found * math.sqrt(count)
        case events.Composed(events=parts):
            each = [mu_of(part) for part in parts]
            return None if None in each else math.hypot(*[mu for mu in each if mu is not None])
    return None
