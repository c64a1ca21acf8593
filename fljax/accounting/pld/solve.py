"""Runs plan, discretisation and composition for many configurations, and refines the lattice until
the bounds are close.

Few configurations are computed by NumPy. For more the host chooses shapes (powers of two, so that
few programs are compiled), and everything else is two jitted, vmapped programs of the same lines. A
configuration is K mechanisms with counts; "remove" and "add" are two separate runs whose answers
meet only here, as a maximum.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import math
import operator
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fljax.accounting import _x64
from fljax.accounting._arrays import compiled, host, jax, jnp, on_host, tree_map, vmap
from fljax.accounting.pld import compose, discretise, mechanisms
from fljax.accounting.pld import window as plan

ACCURACY = 1e-3
ROUNDS = 6
SMALLEST_LATTICE, LARGEST_LATTICE = 2**10, 2**22
SOON_RUN = 2**14  # sizes that take a few milliseconds, however often they are asked for
LARGEST_LOSS = 600.0  # beyond, e^loss and masses of e^-loss leave float64
MOST_THREADS = 4
MOST_ON_HOST = 32  # configurations that do not repay a compilation
MOST_PLANS_AT_ONCE = 128
MOST_AT_ONCE = 16  # runs in one call; fewer than a quarter of that go one by one
CHUNK_ELEMENTS = 2**19  # per vmapped call: a few hundred MB of temporaries
# the direction that is expected to be the smaller one starts with this multiple of the accuracy
COARSE = 30.0
# Their atoms lie between lattice points, and lower bounds close in with h, not with h^2: steps
# shrink until the upper bound stays.
ATOMIC = ("pair", "sampled_discrete_gaussian")
LOG_DELTA_UNKNOWN = -400.0

Structure = tuple[str, ...]


class Batch(NamedTuple):
    """N configurations of one structure. params: a tuple of arrays `[N, K_g, ...]` per group;
    counts `[N, K]`, K over all groups in turn.
    """

    structure: Structure
    params: tuple[tuple[np.ndarray, ...], ...]
    counts: np.ndarray


def _concatenated(parts: list[Any]) -> Any:
    return tree_map(lambda *x: jnp.concatenate(x, axis=0), *parts)


def _nodes(structure: Structure, params: Any, sign: jax.Array, budget: jax.Array) -> plan.Nodes:
    return _concatenated(
        [mechanisms.nodes(k, p, sign, budget) for k, p in zip(structure, params, strict=True)]
    )


# A mixture of another number of terms has other shapes, and needs other programs: those that see
# its terms are kept apart from the long ones behind them, which compile for seconds.


@compiled(static_argnames="structure")
def _seen(
    structure: Structure, params: Any, counts: jax.Array, sign: jax.Array, log_delta: jax.Array
) -> tuple[plan.Nodes, jax.Array, jax.Array]:
    """Nodes of each mechanism, and the least and largest loss of its lattice; every argument has an
    axis N.
    """

    def one(
        params: Any, counts: jax.Array, sign: jax.Array, log_delta: jax.Array
    ) -> tuple[plan.Nodes, jax.Array, jax.Array]:
        budget = mechanisms.log_budget(
            counts.astype(log_delta.dtype), jnp.clip(log_delta, LOG_DELTA_UNKNOWN, 0.0)
        )
        parts = zip(structure, params, strict=True)
        low, high = _concatenated(
            [mechanisms.loss_range(kind, p, sign, budget) for kind, p in parts]
        )
        return _nodes(structure, params, sign, budget), low, high

    return vmap(one)(params, counts, sign, log_delta)


@compiled(static_argnames="for_delta")
def _found(
    nodes: plan.Nodes, counts: jax.Array, target: jax.Array, accuracy: Any, *, for_delta: bool
) -> plan.Plan:
    def one(nodes: plan.Nodes, counts: jax.Array, target: jax.Array) -> plan.Plan:
        return plan.find(nodes, counts.astype(target.dtype), target, for_delta, accuracy)

    return vmap(one)(nodes, counts, target)


def plans(
    structure: Structure,
    for_delta: bool,
    params: Any,
    counts: Any,
    sign: Any,
    target: Any,
    accuracy: float,
) -> tuple[plan.Plan, jax.Array, jax.Array]:
    """Plans, and the least and largest losses `[N, K]` of the lattices; every array has an axis
    N.
    """
    log_delta = np.full_like(target, LOG_DELTA_UNKNOWN) if for_delta else target
    found = _found(
        _seen(structure, params, counts, sign, log_delta)[0],
        counts,
        target,
        accuracy,
        for_delta=for_delta,
    )
    nodes, low, high = _seen(structure, params, counts, sign, found.log_delta)
    if for_delta:
        found = _found(nodes, counts, target, accuracy, for_delta=for_delta)
        _, low, high = _seen(structure, params, counts, sign, found.log_delta)
    return found, low, high


@compiled(static_argnames=("kind", "m"))
def _cut(
    kind: str,
    m: int,
    params: Any,
    sign: jax.Array,
    low: jax.Array,
    high: jax.Array,
    budget: jax.Array,
    tilt: jax.Array,
    h: jax.Array,
) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
    """Cells of R mechanisms of one kind, or the lattices of a kind without; the first and last
    point, and the offset.

    Every argument has an axis R.
    """

    def one(
        params: Any,
        sign: jax.Array,
        low: jax.Array,
        high: jax.Array,
        budget: jax.Array,
        tilt: jax.Array,
        h: jax.Array,
    ) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
        single = tuple(p[None] for p in params)
        nodes = mechanisms.nodes(kind, single, sign, budget)
        offset = plan.anchor(nodes, mechanisms.edge(kind, single, sign), tilt, h)
        atom = mechanisms.atom(kind, single)
        offset = jnp.where(jnp.isfinite(atom), atom, offset)
        first, last = jnp.floor((low - offset) / h) - 1.0, jnp.ceil((high - offset) / h) + 1.0
        found = mechanisms.cut(kind, single, sign, h, first, offset, m)
        return tree_map(lambda x: x[0], (found, first, last, offset))

    return vmap(one)(params, sign, low, high, budget, tilt, h)


_bracketed = compiled()(vmap(discretise.bracket))


def _lattices(
    kind: str, m: int, params: Any, sign: Any, low: Any, high: Any, budget: Any, tilt: Any, h: Any
) -> tuple[discretise.Lattice, jax.Array]:
    """Lattice distributions of R mechanisms of one kind, and the indices of their first points;
    arguments as `_cut`.
    """
    found, first, last, offset = _cut(kind, m, params, sign, low, high, budget, tilt, h)
    if not isinstance(found, discretise.Lattice):
        found = _bracketed(found, sign, h, first, last, offset, tilt)
    return found, first


@compiled(static_argnames="n")
def _composed(
    n: int,
    lattices: discretise.Lattice,
    first: jax.Array,
    counts: jax.Array,
    target: jax.Array,
    found: plan.Plan,
    h: jax.Array,
) -> jax.Array:
    """`[N, 4]`: lower and upper bound on epsilon if `target` is log delta, on log delta if it is
    epsilon. Axes of the
    rest: N, K.
    """

    def one(
        lattices: discretise.Lattice,
        first: jax.Array,
        counts: jax.Array,
        target: jax.Array,
        found: plan.Plan,
        h: jax.Array,
    ) -> jax.Array:
        curves = compose.compose(
            jnp.moveaxis(lattices.masses, 1, 0),
            lattices.offsets.T,
            lattices.infinite.T,
            first,
            counts,
            h,
            found.tilts,
            found.window,
            found.epsilon,
            n,
        )
        upper, lower = (tree_map(operator.itemgetter(i), curves) for i in (0, 1))
        return jnp.stack(
            [
                bound(curve, target, h, curve is upper)
                for bound in (compose.epsilon_of, compose.log_delta_of)
                for curve in (lower, upper)
            ]
        )

    return vmap(one)(lattices, first, counts, target, found, h)


def _power_of_two(x: np.ndarray, step: int = 1, at_least: int = 0) -> np.ndarray:
    """Powers of two from SMALLEST_LATTICE on: FFTs like them. Up to SOON_RUN they are `step` binary
    orders apart, and the first `at_least` are left out: few sizes, few programs.
    """
    orders = np.ceil(np.log2(np.maximum(x, SMALLEST_LATTICE) / SMALLEST_LATTICE))
    coarse = step * np.maximum(np.ceil(orders / step), float(at_least))
    orders = np.where(SMALLEST_LATTICE * 2.0**coarse <= SOON_RUN, coarse, orders)
    return (SMALLEST_LATTICE * 2.0**orders).astype(np.int64)


def _parts(members: np.ndarray, most: int) -> list[np.ndarray]:
    """`members` in pieces of one or of MOST_AT_ONCE (if `most` allows), the last one filled up by
    repeating its last.
    """
    several = len(members) > MOST_AT_ONCE // 4 and most >= MOST_AT_ONCE and not on_host()
    size = MOST_AT_ONCE if several else 1
    pieces = [members[i : i + size] for i in range(0, len(members), size)]
    return [np.append(p, np.repeat(p[-1], size - len(p))) for p in pieces]


def _largest_loss(batch: Batch, sign: float) -> tuple[np.ndarray, np.ndarray]:
    """`[N]` each: supremum of the finite composed losses in the direction `sign`, inf where there
    is none; log of the chance of an infinite loss, -inf where it is 0. For kinds of unbounded
    losses the latter is not looked at.
    """
    parts, kept = [], np.zeros(len(batch.counts))
    at = 0
    for kind, params in zip(batch.structure, batch.params, strict=True):
        counts = batch.counts[:, at : at + params[0].shape[1]]
        at += params[0].shape[1]
        if kind == "laplace":
            scale, prob = params
            odds = np.log(prob) + 1.0 / scale
            upper = np.where(
                prob < 1, np.logaddexp(np.log1p(-np.minimum(prob, 1 - 1e-16)), odds), 1.0 / scale
            )
            parts.append(upper if sign > 0 else -np.log1p(prob * np.expm1(-1.0 / scale)))
        elif kind == "mixture" and sign < 0:
            with np.errstate(divide="ignore"):
                parts.append(-np.log1p(-np.minimum(params[0].sum(axis=2), 1.0)))
        elif kind == "sampled_discrete_gaussian" and sign < 0:
            parts.append(-np.log1p(-params[2]))
        elif kind == "pair":
            p, q = params if sign > 0 else params[::-1]
            finite = (p > 0) & (q > 0)
            ratio = np.log(np.where(finite, p, 1.0)) - np.log(np.where(finite, q, 1.0))
            parts.append(
                np.where(finite, ratio + 1e-12 * np.abs(ratio) + mechanisms.PAIR_SUM, -np.inf).max(
                    axis=2
                )
            )
            missing = 1 - p.sum(axis=2)
            missing = np.where(missing > mechanisms.PAIR_SUM, missing, 0.0)
            infinite = np.minimum(
                (np.where(finite, 0.0, p).sum(axis=2) + missing) * (1 + 1e-14), 1.0
            )
            with np.errstate(divide="ignore"):
                kept += np.sum(np.log1p(-infinite) * counts, axis=1)
        else:
            parts.append(np.full(params[0].shape[:2], np.inf))
    with np.errstate(divide="ignore"):
        infinite = np.log(-np.expm1(kept))
    return np.sum(np.concatenate(parts, axis=1) * batch.counts, axis=1) * (1 + 1e-12), infinite


def _take(tree: Any, rows: np.ndarray) -> Any:
    return tree_map(lambda x: np.asarray(x)[rows], tree)


class _Run:
    """The directions of one batch: their plans, and the bounds found so far."""

    def __init__(
        self, batch: Batch, target: np.ndarray, for_delta: bool, signs: np.ndarray, accuracy: float
    ):
        self.batch, self.for_delta = batch, for_delta
        self.rows = np.tile(np.arange(len(target)), len(signs))
        self.sign = np.repeat(signs.astype(np.float64), len(target))
        self.target = target[self.rows]
        size = len(self.rows)
        at_once = min(2 * 8 ** math.ceil(math.log(max(size, 2) / 2, 8)), MOST_PLANS_AT_ONCE)
        at_once = size if on_host() else at_once
        pieces = []
        for start in range(0, size, at_once):
            take = np.minimum(np.arange(start, start + at_once), size - 1)
            params, counts = _take((batch.params, batch.counts), self.rows[take])
            found = plans(
                batch.structure,
                for_delta,
                params,
                counts,
                self.sign[take],
                self.target[take],
                accuracy,
            )
            pieces.append(tree_map(np.array, found))
        joined = tree_map(lambda *x: np.concatenate(x)[:size], *pieces)
        self.plan, self.low, self.high = joined
        self.bounds = np.stack(
            [
                np.full(size, -np.inf if for_delta else 0.0),
                np.full(size, 0.0 if for_delta else np.inf),
            ],
            1,
        )
        self.h = np.full(size, np.nan)
        # Where the loss is bounded, so is epsilon, and delta beyond that is 0.
        largest, infinite = (
            np.concatenate(x) for x in zip(*(_largest_loss(batch, s) for s in signs), strict=True)
        )
        if for_delta:
            beyond = largest <= self.target
            self.bounds[beyond] = infinite[beyond, None]
        else:
            reached = infinite <= self.target
            self.bounds[reached, 1] = np.maximum(largest, 0.0)[reached]
            self.bounds[infinite > self.target + 1e-9, 0] = (
                np.inf
            )  # more than delta is told for certain

    def improve(self, which: np.ndarray, h: np.ndarray) -> np.ndarray:
        """Bounds with steps of at most `h` for the runs `which`; False where the lattice would be
        too large.
        """
        window = self.plan.window[which]
        span = np.maximum(window[:, 1] - window[:, 0], 1e-300)
        width = np.max(self.high[which] - self.low[which], axis=1)
        # What is asked for once must compile first, what is asked for a thousand times must run:
        # coarse or fine sizes.
        step = 2 if len(which) <= MOST_AT_ONCE and not on_host() else 1
        # Programs of a mixture serve few calls: both directions take one size.
        several = any(p[0].ndim == 3 and p[0].shape[2] > 1 for p in self.batch.params)
        n = _power_of_two(span / h + 4, step, int(several and step > 1))
        if self.batch.structure == ("discrete_gaussian",) and self.batch.counts.shape[1] == 1:
            # All losses on lattice points: nothing is rounded.
            stddev, sensitivity = (p[self.rows[which], 0] for p in self.batch.params[0])
            spacing = sensitivity / stddev**2
            h = spacing / np.ceil(spacing / h)
            n = _power_of_two(span / h + 4, step)
            m = _power_of_two(width / h + 6, step)
            m = m if on_host() else np.maximum(m, n // (8 // step))
        else:
            m = _power_of_two(width / h + 6, step, int(several and step > 1))
            m = m if on_host() else np.maximum(m, n // (8 // step))  # few proportions: few programs
            h = np.minimum(
                h, np.maximum(span / (n - 5.0), width / (m - 7.0))
            )  # as fine as the sizes allow
        possible = (n <= LARGEST_LATTICE) & (m <= LARGEST_LATTICE)
        self.h[which] = h
        work = []
        for m_, n_ in sorted(
            {(int(a), int(b)) for a, b, ok in zip(m, n, possible, strict=True) if ok}, reverse=True
        ):
            members = np.flatnonzero(possible & (m == m_) & (n == n_))
            size = CHUNK_ELEMENTS // (m_ * self.batch.counts.shape[1] + n_)
            work += [(m_, n_, part) for part in _parts(members, size)]

        def bounds(m: int, n: int, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            runs = which[part]
            lattices, first, counts, target, found = self._lattices(runs, h[part], m)
            composed = _composed(n, lattices, first, counts, target, found, h[part])
            return runs, np.asarray(composed)[:, 2 * self.for_delta :][:, :2]

        def in_scope(task: tuple[int, int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            with _x64.x64():  # which holds for one thread
                return bounds(*task)

        with contextlib.ExitStack() as stack:
            if on_host():
                results: Iterable[tuple[np.ndarray, np.ndarray]] = itertools.starmap(bounds, work)
            else:  # XLA runs these programs on one core each
                threads = min(os.cpu_count() or 1, MOST_THREADS)
                pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(threads))
                results = pool.map(in_scope, work)
            for runs, found in results:
                # Padding repeats a run, which does no harm here.
                self.bounds[runs, 0] = np.maximum(self.bounds[runs, 0], found[:, 0])
                self.bounds[runs, 1] = np.minimum(self.bounds[runs, 1], found[:, 1])
        return possible

    def _lattices(self, runs: np.ndarray, h: np.ndarray, m: int) -> tuple[Any, ...]:
        """The arguments of `_composed` between n and h, for `runs`."""
        batch, rows = self.batch, self.rows[runs]
        budget = np.log(batch.counts[rows].sum(1)) - self.plan.log_delta[runs] + plan.LOG_NEGLIGIBLE
        budget = np.clip(budget, 1.0, -LOG_DELTA_UNKNOWN)
        parts, at = [], 0
        for kind, params in zip(batch.structure, batch.params, strict=True):
            k = params[0].shape[1]
            # One row per mechanism of each run.
            flat = tree_map(lambda p: p[rows].reshape(-1, *p.shape[2:]), params)
            spread = [
                np.repeat(x, k) for x in (self.sign[runs], budget, self.plan.tilts.middle[runs], h)
            ]
            low, high = (x[runs, at : at + k].ravel() for x in (self.low, self.high))
            size = CHUNK_ELEMENTS // m
            pieces = [
                _lattices(kind, m, *_take((flat, spread[0], low, high, *spread[1:]), part))
                for part in _parts(np.arange(len(low)), size)
            ]
            joined = tree_map(lambda *x, n=low.shape[0]: jnp.concatenate(x)[:n], *pieces)
            parts.append(tree_map(lambda x, k=k: x.reshape(len(runs), k, *x.shape[1:]), joined))
            at += k
        lattices, first = tree_map(lambda *x: jnp.concatenate(x, axis=1), *parts)
        return lattices, first, batch.counts[rows], self.target[runs], _take(self.plan, runs)


def solve(
    batch: Batch, target: np.ndarray, *, for_delta: bool, symmetric: bool, accuracy: float
) -> np.ndarray:
    """`[N, 2]` certified lower and upper bounds: of epsilon at log delta = `target`, or of log
    delta at epsilon = `target`.

    accuracy: upper - lower <= accuracy * epsilon (or <= accuracy for log delta) is aimed at; where
    it is out of reach within the largest lattice, the bounds hold all the same and are wider.
    """
    with host() if len(target) <= MOST_ON_HOST else _x64.x64():
        run = _Run(
            batch, target, for_delta, np.array([1]) if symmetric else np.array([1, -1]), accuracy
        )
        size = len(target)
        if (
            not np.max(run.high, initial=0.0) <= LARGEST_LOSS
            or not np.min(run.low, initial=0.0) >= -LARGEST_LOSS
        ):
            raise ValueError(
                f"Expected one composition to have privacy losses <= {LARGEST_LOSS:g}, got "
                f"{np.max(run.high):.4g}: "
                "so little noise is out of reach of method='pld'; use 'rdp' or 'gdp'."
            )
        spread = np.maximum(run.plan.spread, 1e-300)
        if for_delta:
            wanted = accuracy / np.maximum(np.abs(run.plan.tilts.middle), 1.0 / spread)
        else:
            wanted = accuracy * np.maximum(run.plan.epsilon, 1e-3 * spread)
        wanted = wanted * np.where(run.sign < 0, COARSE, 1.0)
        h = np.minimum(np.sqrt(2.0 * wanted / run.plan.curvature), spread / 4.0)
        # Beyond the largest loss nothing is left to look for.
        active = np.flatnonzero(~(run.bounds[:, 1] <= run.bounds[:, 0]))
        atomic = any(kind in ATOMIC for kind in batch.structure)
        before = np.full(size, np.inf)
        for _ in range(ROUNDS):
            if len(active):
                h[active] = np.where(run.improve(active, h[active]), run.h[active], np.nan)
            both = run.bounds.reshape(-1, size, 2)
            lower, upper = both[..., 0].max(0), both[..., 1].max(0)
            aim = accuracy if for_delta else accuracy * np.maximum(upper, 0.0)
            with np.errstate(invalid="ignore"):
                # A direction matters as long as its upper bound is above what is already known to
                # be spent.
                excess = run.bounds[:, 1] - lower[run.rows]
                if atomic:
                    excess = np.minimum(excess, (before - upper)[run.rows])
                open_ = (
                    ~(excess <= np.broadcast_to(aim, (size,))[run.rows])
                    & np.isfinite(h)
                    & (run.bounds[:, 1] > lower[run.rows])
                )
            active = np.flatnonzero(open_)
            if not len(active):
                break
            before = upper
            own = run.bounds[active, 1] - run.bounds[active, 0]
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = np.sqrt(0.7 * np.broadcast_to(aim, (size,))[run.rows[active]] / own)
            h[active] *= np.clip(np.nan_to_num(ratio, nan=0.25), 0.1, 0.6)
    return np.stack([lower, np.maximum(upper, lower)], 1)
