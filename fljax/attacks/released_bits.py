"""Attacks on the arithmetic of a scheme's own rounds: releases that one of two data sets could not
have led to.

As in `floating_point`, the attacker is right whenever it says which of two was meant, and counts
how often it can. It reads a release as a sum with noise, which the numbers of the small world
allow: all that divides or multiplies a sum there is a power of two, and rounds nothing.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.attacks import floating_point, rounds, worlds
from fljax.attacks._blocks import in_blocks
from fljax.attacks.floating_point import Told
from fljax.data.cohorts import ClientData, cohort
from fljax.data.subjects import SUBJECT
from fljax.schemes import exact
from fljax.schemes.base import Performance, Scheme

_NUMBERS: dict[str, Any] = {
    "control_scale": 1.0,
    "expected_items": 1.0,
    "expected_subjects": 1.0,
    "item_sampling_prob": 1.0,
    "l2_clip_norm": 1.0,
    "local_learning_rate": 1.0,
    "noise_multiplier": 1.0,
    "privacy_unit": "client",
    "sampling_prob": 1.0,
    "server_learning_rate": 1.0,
    "server_momentum": 0.0,
}
_ROWS = 64  # of the sum whose order is changed
_SMALL = 2.0**-26  # float32 loses it beside a 1
_LEAST_TRIALS, _MOST_TRIALS = 1000, 4000  # of fewer, the step of whole numbers is not known
_AT_ONCE = 256
# (keys `[T]`, world 0 or 1) -> releases `[T, P]`: the first number has the data, the next noise
_Released = Callable[[jax.Array, int], np.ndarray]


def play(scheme: Scheme, key: jax.Array, *, trials: int = _MOST_TRIALS) -> list[Told]:
    """Attacks on rounds with `noise="float32"` and with `"exact"`.

    - low bits: does a draw lead from the neighbouring data to what is released? Of whole numbers:
      is it one of the numbers that the neighbouring data lead to?
    - precision: is it finer than the neighbouring data allow? Whole numbers have no precision.
    - order of summation: the same rows in two orders, which float32 tells apart. Where clients add
      noise of their own, nobody else sees a sum without it, and it does not apply.

    Args:
      key: `[]` typed key. trials: rounds in each of two worlds; no fewer than 1000 and no
        more than 4000 are played.

    Returns:
      Six results, of each attack the one of float32 first: None where rounds in float32 are not
      what the attacker takes them for, the sum of a round without noise, with noise.

    Raises:
      ValueError: trials < 1, or the scheme draws noise in one way only.
    """
    _validate.stream_key(key=key)
    _validate.positive_int(trials=trials)
    exact.check_offered(scheme)
    trials = min(max(trials, _LEAST_TRIALS), _MOST_TRIALS)
    draws = floating_point.half_variance_normals()
    found = []
    worlds_of = {"low bits": _neighbours, "order of summation": _orders}
    for place, (attack, make) in enumerate(worlds_of.items()):
        of_clients = scheme.noise_at == "client" and make is _orders
        for noise in ("float32", "exact"):
            if of_clients:
                found.append(Told(attack, noise, None, trials))
                continue
            released = make(scheme, _config(scheme, make, noise=noise))
            keys = jax.random.split(jax.random.fold_in(key, place), 2 * trials).reshape(2, trials)
            seen = [released(each, world) for world, each in enumerate(keys)]
            if noise == "exact":
                told = [_off(_step(other[:, 0]), mine[:, 0]) for mine, other in _both(seen)]
                found.append(Told(attack, noise, float(np.mean(told)), trials))
                continue
            silent = make(scheme, _config(scheme, make, noise_multiplier=0.0))
            sums = [-silent(keys[world, :1], world)[0, 0] for world in (0, 1)]
            # Along other parameters there is noise alone, of a power of two.
            stddev = 2.0 ** round(math.log2(float(np.std([each[:, 1] for each in seen]))))
            noisy = [-each[:, 0] for each in seen]

            joined, low_bits = _told(noisy, sums, stddev, draws)
            found.append(Told(attack, noise, low_bits, trials))
            if make is _neighbours:
                fine = [
                    floating_point.too_fine(mine, float(other), stddev, joined=joined)
                    for mine, other in zip(noisy, reversed(sums), strict=True)
                ]
                told_by = None if low_bits is None else float(np.mean(fine))
                precision = Told("precision", noise, told_by, trials)
        if make is _neighbours:
            found += [precision, Told("precision", "exact", None, trials)]
    return found


def _told(
    noisy: list[np.ndarray], sums: list[np.floating], stddev: float, draws: np.ndarray
) -> tuple[bool, float | None]:
    """Whether the rounds join products and sums, see `floating_point.reach`, and the share of
    releases that no draw makes of the other world's sum; None where some are none of their own.
    """
    cannot_be = functools.partial(floating_point.cannot_be, stddev=stddev, draws=draws)
    for joined in (False, True):  # as the compiler likes
        # A compiler may add up a round with noise in another order than one without.
        mine = zip(noisy, sums, strict=True)
        if any(cannot_be(seen, float(x), joined=joined).any() for seen, x in mine):
            continue
        others = zip(noisy, reversed(sums), strict=True)
        told = [cannot_be(seen, float(x), joined=joined) for seen, x in others]
        return joined, float(np.mean(told))
    return False, None


def _both(seen: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(seen[0], seen[1]), (seen[1], seen[0])]


def _config(scheme: Scheme, make: Any, **changes: Any) -> Any:
    """With numbers that are powers of two, for the world that `make` makes."""
    found = rounds.sizes(scheme) | _NUMBERS | changes
    if make is _orders:
        count = 1 if scheme.noise_at == "silo" else _ROWS
        found |= {"num_parties": count, "buffer_size": count}
    return rounds.small(scheme.Config, found, required={})


def _neighbours(scheme: Scheme, config: Any) -> _Released:
    """A unit that is there or not, or is replaced: `worlds.Neighbours`, of the first client."""
    pair = worlds.Neighbours(scheme, config)

    def one(key: jax.Array, world: jax.Array) -> jax.Array:
        here = (jnp.arange(pair.num_clients) == 0) & (world == 1)
        return pair.everybody(key, here)[0, : worlds.DIM]

    return _mapped(one)


def _orders(scheme: Scheme, config: Any) -> _Released:
    """A long row and many that are short, one way round and the other."""
    x = np.zeros((_ROWS, worlds.DIM), np.float32)
    x[0, 0], x[1:, 0] = 1.0, _SMALL
    pool = {"x": jnp.asarray(x), SUBJECT: jnp.arange(_ROWS)}
    table = jnp.arange(_ROWS, dtype=jnp.int32)
    in_silo = scheme.noise_at == "silo"
    loss = lambda params, example: jnp.vdot(params["w"], example["x"])
    one_by_one = Performance(chunk_size=1, microbatch_size=1)
    num_units = 1 if in_silo else _ROWS
    algorithm = scheme.make(config, loss, num_units=num_units, performance=one_by_one)

    def one(key: jax.Array, world: jax.Array) -> jax.Array:
        rows = jnp.where(world == 1, table[::-1], table)
        if in_silo:
            here = cohort(ClientData(pool, rows[None]), jnp.zeros(1, jnp.int32))
        else:  # clients come with their numbers
            here = cohort(ClientData(pool, table[:, None]), rows)
        state, _ = algorithm.round(algorithm.init({"w": jnp.zeros(worlds.DIM)}), here, key)
        return state.params["w"]

    return _mapped(one)


def _mapped(one: Callable[[jax.Array, jax.Array], jax.Array]) -> _Released:
    run = in_blocks(one, at_once=_AT_ONCE)
    return lambda keys, world: np.asarray(run(keys, jnp.asarray(world)))


def _step(values: np.ndarray) -> float:
    """Of the multiples, rounded to float32, that the values are; of values that are none, of no
    meaning.
    """
    sizes = np.unique(np.abs(values.astype(np.float64)))
    step = float(np.min(np.diff(sizes), initial=np.inf))
    # Small multiples are known best, and find larger ones.
    for reach in (1e2, 1e3, 1e4, 1e5, 1e6):
        few = sizes[sizes < reach * step]
        count = np.round(few / step)
        if count.any():
            step = float(few @ count / (count @ count))
    return step


def _off(step: float, values: np.ndarray) -> np.ndarray:
    """Which values are no multiples of the step, but for a rounding to float32."""
    exact = values.astype(np.float64)
    return np.asarray(np.abs(exact - np.round(exact / step) * step) > 2.0**-22 * np.abs(exact))
