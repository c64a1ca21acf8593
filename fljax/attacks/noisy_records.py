"""Channels attacked at their sharpest: noisy records read off updates, and what anybody can make of
them.

The first gradient of a linear model that starts at zero is the noisy record itself, whatever the
noise: nobody sees more of a channel. The attacker knows the law of records, and half of the
records, from which it learns the noise as it is and not as it was declared; the others it estimates
by their posterior mean. Two numbers come of it. The squared error must not be below what the
channel certifies. And the log-ratio of a record's posterior density to its prior one is on average
at most what its noisy copy tells about it, in nats, whatever posterior is used, and equal to it for
the true one; it must not be above what the channel declares.

Source: Barber, Agakov (2003), The IM algorithm: a variational approach to information maximization.
"""

import bisect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fljax import models, schemes
from fljax.attacks import analytic, reconstruction
from fljax.data import Dataset
from fljax.data.channel import RecordNoise

_RECORDS = 1600
_FACTORS = 1.1 ** np.arange(1, 146)  # up to a million


class World(NamedTuple):
    """Records `[T, d]` of one law: as they are, as updates tell them, and as updates without any
    noise tell them.

    covariance: `[d, d]` of the law, a Gaussian one of mean 0; or None, where records' numbers are
    independent and either end of `value_range`. directions: orthonormal columns `[d, d]` along
    which noise was declared independent. sent: `[d]`, those along which records are sent at all;
      None: all.
    """

    x: np.ndarray
    noisy: np.ndarray
    bare: np.ndarray
    covariance: np.ndarray | None
    value_range: tuple[float, float] | None
    directions: np.ndarray
    sent: np.ndarray | None = None


class Verdict(NamedTuple):
    """What the attack got. error: mean squared error per number of Gaussian records. nats: told at
    least. unread: updates that told no record. error_holds, nats_hold: what is certified of them,
    up to chance.
    """

    error: float
    nats: float
    unread: int
    error_holds: bool
    nats_hold: bool


def read(moved: Any) -> np.ndarray:
    """Records float64 `[T, d]` from updates {"kernel": `[T, d, k]`, "bias": `[T, k]`}; NaN where
    one tells none.
    """
    return np.asarray(jax.vmap(analytic.first_dense)(moved["kernel"], moved["bias"]), np.float64)


def worlds(
    name: str, config: Any, inputs: dict[str, Any], key: jax.Array, dataset: Dataset
) -> tuple[World, ...]:
    """Rounds of a channel, each with one record, of the laws that it tells most about.

    Those are Gaussian fields: no law of the same covariance has more to tell. And where the channel
    clips to a range of values and counts on nothing else, the ends of that range: fields hide there
    in noise for much larger records.

    Args:
      name, config, inputs: the scheme, and what its `inputs` gives, with a `channel`.
      key: of the rounds.
      dataset: fields; the first held-out ones are the records.
    """
    noise: RecordNoise = inputs["channel"].noise
    x, y = dataset.test["x"][:_RECORDS], dataset.test["y"][:_RECORDS]
    ends_key, *keys = jax.random.split(key, 3)
    parts = [x]
    if noise.value_range is not None:
        low, high = (np.float32(end) for end in noise.value_range)
        parts.append(np.where(np.asarray(jax.random.bernoulli(ends_key, 0.5, x.shape)), high, low))
    together = np.concatenate(parts)
    examples = {"x": jnp.asarray(together), "y": jnp.asarray(np.tile(y, len(parts)))}
    params = {
        "kernel": jnp.zeros((x[0].size, dataset.num_classes)),
        "bias": jnp.zeros(dataset.num_classes),
    }
    loss = models.softmax_cross_entropy(
        lambda params, x: x.reshape(-1) @ params["kernel"] + params["bias"]
    )

    def told(played: Any, key: jax.Array) -> np.ndarray:
        every = jax.random.split(key, len(together))
        return read(reconstruction.updates(name, played, loss, params, examples, every, dataset))

    noisy, bare = told(config, keys[0]), told(schemes.get(name).non_private(config), keys[1])
    flat = together.astype(np.float64).reshape(len(together), -1)
    spread = np.broadcast_to(np.asarray(noise.weights, np.float64), flat.shape[1])
    factor = (
        np.zeros((flat.shape[1], 0))
        if noise.factor is None
        else np.asarray(noise.factor, np.float64)
    )
    declared, directions = np.linalg.eigh(np.diag(spread) + factor @ factor.T)
    sent = None if noise.centre is None else declared > 0.5  # a projection: 0 or 1
    laws = ((dataset.covariance, None), (None, noise.value_range))

    def world(at: int) -> World:
        here = slice(at * len(x), (at + 1) * len(x))
        covariance, value_range = laws[at]
        return World(flat[here], noisy[here], bare[here], covariance, value_range, directions, sent)

    return tuple(world(at) for at in range(len(parts)))


def with_less_noise(world: World, factor: float) -> World:
    """The same records, with noise whose variance is `factor` times less."""
    return world._replace(noisy=world.bare + (world.noisy - world.bare) / np.sqrt(factor))


def judge(found: tuple[World, ...], *, mse: float, nats: float, confidence: float) -> Verdict:
    """Whether a channel's certified error `mse` (of Gaussian records) and declared `nats` survive
    the attack.

    Each verdict is wrong with chance at most 1 - confidence, all of them together, as far as means
    over many records have Student's law.
    """
    alike = 1 - (1 - confidence) / (1 + len(found))
    error, told, unread, above = np.nan, 0.0, 0, True
    for world in found:
        errors, ratios = _attacked(world)
        quantile = stats.t.ppf(alike, len(errors) - 1) / len(errors) ** 0.5
        told = max(told, float(ratios.mean() - quantile * ratios.std(ddof=1)))
        unread += int(reconstruction.diverged(world.noisy).sum())
        if world.covariance is not None:
            error = float(errors.mean())
            above = bool(error + quantile * errors.std(ddof=1) >= mse)
    return Verdict(error, told, unread, above, told <= nats)


def seen_from(found: tuple[World, ...], **claims: float) -> float:
    """The least factor on a grid by which noise could be too little (as a variance) and `judge`
    would see it.

    Infinite where a millionth of it would not be seen: then a verdict that all is well means
    nothing.
    """

    def seen(factor: float) -> bool:
        verdict = judge(tuple(with_less_noise(world, factor) for world in found), **claims)
        return not (verdict.error_holds and verdict.nats_hold)

    place = bisect.bisect_left(_FACTORS, True, key=seen)
    return float(_FACTORS[place]) if place < len(_FACTORS) else float(np.inf)


def _attacked(world: World) -> tuple[np.ndarray, np.ndarray]:
    """Squared errors per number, and log-ratios of posterior to prior density, `[T / 2]` each, of
    the records that the attacker does not know. Where an update told nothing it guesses the mean,
    and the ratio is 1.
    """
    half, read = len(world.x) // 2, ~reconstruction.diverged(world.noisy)
    residual = (world.noisy - world.x)[:half][read[:half]] @ world.directions
    x, y, told = world.x[half:], world.noisy[half:], read[half:]
    low, high = world.value_range or (0.0, 0.0)
    centre, reach = (low + high) / 2, (high - low) / 2
    estimate, ratios = np.full(x.shape, centre), np.zeros(len(x))
    if len(residual) and told.any():
        shift, variances = (
            residual.mean(0),
            np.maximum(residual.var(0), 1e-12 * np.square(world.x).mean()),
        )
        if world.sent is not None:  # elsewhere an update says nothing, whatever stands there
            nothing = 1e12 * np.square(world.x).mean()
            shift, variances = shift * world.sent, np.where(world.sent, variances, nothing)
        x, y = x[told], y[told] - world.directions @ shift
        if world.covariance is None:
            # Numbers are independent, and so is declared to be their noise.
            odds = 2 * reach * (y - centre) / (world.directions**2 @ variances)
            estimate[told] = centre + reach * np.tanh(odds / 2)
            ratios[told] = (np.log(2) - np.logaddexp(0, -np.sign(x - centre) * odds)).sum(1)
        else:
            prior = np.linalg.inv(world.covariance)
            noise = (world.directions / variances) @ world.directions.T
            estimate[told] = np.linalg.solve(prior + noise, noise @ y.T).T
            gain = np.linalg.slogdet(prior + noise)[1] - np.linalg.slogdet(prior)[1]
            away = x - estimate[told]
            ratios[told] = 0.5 * (
                gain + ((x @ prior) * x).sum(1) - ((away @ (prior + noise)) * away).sum(1)
            )
    return np.square(estimate - world.x[half:]).mean(1), ratios
