"""The mechanisms that a privacy-loss distribution can be built for, as arrays.

A *group* is K mechanisms of one kind with their parameters as arrays, so that K different sampling
rates are one vmap:
 - "mixture": P = w0 N(0, 1) + sum_j weights_j N(shifts_j, 1) against N(0, 1); `weights`, `shifts`
   `[K, J]`, shift = sensitivity / stddev > 0, weight 0 = padding. The Gaussian mechanism is one
   weight 1, Poisson sampling one weight q.
 - "laplace": `scale` `[K]` = b / sensitivity, `prob` `[K]`, the chance of being sampled.
 - "discrete_gaussian": `stddev`, `sensitivity` `[K]`.
 - "sampled_discrete_gaussian": the same and `prob` `[K]`; see `sampled_atoms`.
 - "replaced": `prob`, `shift` `[K]`; see `two_sided`.
 - "truncated": `cut`, and `prob` and `shift` of either case, `[K]` each; see `two_sided`.
 - "pair": P and Q on J outcomes; `p`, `q` `[K, J]`, both 0 = padding. Mass of P where Q has none is
   an infinite loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fljax.accounting._arrays import add_at, jax, jnp, logsumexp, put, vmap
from fljax.accounting.pld import discretise, pair_masses, sampled_atoms, two_sided
from fljax.accounting.pld.window import LOG_NEGLIGIBLE, Nodes

NODES = 512
ATOMS = sampled_atoms.ATOMS
SNAP = 1e-9  # in steps of the lattice
# how far the two sums of a pair may be from 1 together, hence its losses from the true ones
PAIR_SUM = 2e-13

Params = tuple[Any, ...]


def _reach(log_budget: jax.Array) -> jax.Array:
    """The z with P(N > z) <= e^-log_budget."""
    return jnp.sqrt(2.0 * jnp.maximum(log_budget, 1.0))


def _mixture_range(
    params: Params, sign: jax.Array, log_budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    weights, shifts = params
    z = _reach(log_budget)
    parts = jnp.where(
        weights > 0,
        shifts + _reach(log_budget + jnp.log(jnp.where(weights > 0, weights, 1.0))),
        0.0,
    )
    return -z, jnp.where(sign > 0, jnp.maximum(z, jnp.max(parts)), z)


def _mixture_nodes(
    params: Params, sign: jax.Array, log_budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    low, high = _mixture_range(params, sign, log_budget)
    z = low + (high - low) * (pair_masses.steps(NODES) + 0.5) / NODES
    ratio = pair_masses.mixture_log_ratio(z, *params)
    return -0.5 * z**2 + jnp.where(sign > 0, ratio, 0.0), sign * ratio


def _laplace_nodes(
    params: Params, sign: jax.Array, log_budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    scale, prob = params
    x = (pair_masses.steps(NODES - 2) + 0.5) / (NODES - 2)
    width = -jnp.log(2.0 * scale * (NODES - 2))
    half = jnp.full((1,), jnp.log(0.5))
    far = half - 1.0 / scale
    moved = jnp.concatenate([far, width - (1.0 - x) / scale, half])
    alone = jnp.concatenate([half, width - x / scale, far])
    unsampled = jnp.concatenate([-1.0 / scale[None], (2.0 * x - 1.0) / scale, 1.0 / scale[None]])
    both = jnp.logaddexp(jnp.log1p(-prob) + alone, jnp.log(prob) + moved)
    return jnp.where(sign > 0, both, alone), sign * sampled_atoms.losses(unsampled, prob)


def _discrete_range(params: Params, sign: jax.Array, log_budget: jax.Array) -> jax.Array:
    return jnp.ceil(params[0] * _reach(log_budget + 3.0)) + 1.0


def _discrete_nodes(
    params: Params, sign: jax.Array, log_budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    stddev, sensitivity = params
    reach = _discrete_range(params, sign, log_budget)
    middle = NODES // 2
    # True atoms where they fit, the continuous Gaussian where stddev is large enough to be one.
    x = (pair_masses.steps(NODES) - middle) * jnp.maximum(reach / middle, 1.0)
    return -0.5 * (x / stddev) ** 2, sensitivity * (2.0 * x + sensitivity) / (2.0 * stddev**2)


def _sampled_discrete_ends(params: Params, log_budget: jax.Array) -> jax.Array:
    """`[2]`: outcomes between which nearly all lies."""
    stddev, sensitivity, _ = params
    reach = _discrete_range((stddev, sensitivity), stddev, log_budget)
    return jnp.stack([-reach, reach + sensitivity])


def _sampled_discrete_nodes(
    params: Params, sign: jax.Array, log_budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    stddev, sensitivity, prob = params
    low, high = _sampled_discrete_ends(params, log_budget)
    y = low + pair_masses.steps(NODES) * jnp.maximum((high - low) / (NODES - 1), 1.0)
    alone, there, unsampled = sampled_atoms.logs(y, stddev, sensitivity)
    both = jnp.logaddexp(jnp.log1p(-prob) + alone, jnp.log(prob) + there)
    return jnp.where(sign > 0, both, alone), sign * sampled_atoms.losses(unsampled, prob)


def _replaced_nodes(
    params: Params, sign: jax.Array, log_budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    prob, shift = params
    return two_sided.replaced_nodes(prob, shift, sign, _reach(log_budget), NODES)


def _truncated_nodes(
    params: Params, sign: jax.Array, log_budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    cut, prob, shift, full_prob, full_shift = params
    z = (pair_masses.steps(NODES // 2) + 0.5) / (NODES // 2)
    low, high = _mixture_range((prob[None], shift[None]), sign, log_budget)
    ratio = pair_masses.mixture_log_ratio(low + (high - low) * z, prob[None], shift[None])
    plain = -0.5 * (low + (high - low) * z) ** 2 + jnp.where(sign > 0, ratio, 0.0)
    reach = _reach(log_budget)
    full, loss = two_sided.replaced_nodes(full_prob, full_shift, sign, reach, NODES // 2)
    spacing = jnp.log(high - low), jnp.log(full_shift + 2 * reach)
    parts = plain + jnp.log1p(-cut) + spacing[0], full + jnp.log(cut) + spacing[1]
    return jnp.concatenate(parts), jnp.concatenate([sign * ratio, loss])


def _pair_losses(params: Params, sign: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`[J]` each: mass under the first measure of the direction, its loss (0 where that is
    infinite), is it finite?
    """
    p, q = params
    mass = jnp.where(sign > 0, p, q)
    finite = (p > 0) & (q > 0)
    ratio = jnp.log(jnp.where(finite, p, 1.0)) - jnp.log(jnp.where(finite, q, 1.0))
    return mass, sign * ratio, finite


def _pair_nodes(
    params: Params, sign: jax.Array, log_budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    mass, loss, finite = _pair_losses(params, sign)
    rest = NODES - mass.shape[0]
    logs = jnp.where(finite, jnp.log(jnp.where(finite, mass, 1.0)), -jnp.inf)
    # A pair of disjoint supports has no finite loss at all: any one node keeps the plan finite.
    logs = put(logs, 0, jnp.where(jnp.any(finite), logs[0], 0.0))
    return jnp.pad(logs, (0, rest), constant_values=-jnp.inf), jnp.pad(loss, (0, rest))


def nodes(kind: str, params: Params, sign: jax.Array, log_budget: jax.Array) -> Nodes:
    """`[K, NODES]` log P-masses and losses of a group."""
    make = {
        "mixture": _mixture_nodes,
        "laplace": _laplace_nodes,
        "discrete_gaussian": _discrete_nodes,
        "sampled_discrete_gaussian": _sampled_discrete_nodes,
        "replaced": _replaced_nodes,
        "truncated": _truncated_nodes,
        "pair": _pair_nodes,
    }[kind]
    return Nodes(*vmap(lambda *p: make(p, sign, log_budget))(*params))


def log_budget(times: jax.Array, log_delta: jax.Array) -> jax.Array:
    """-log of the one-step mass that may become an infinite loss."""
    return jnp.maximum(jnp.log(jnp.sum(times)) - log_delta + LOG_NEGLIGIBLE, 1.0)


def loss_range(
    kind: str, params: Params, sign: jax.Array, budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`[K]` each: losses between which all but a negligible P-mass lies."""

    def mixture(weights: jax.Array, shifts: jax.Array) -> tuple[jax.Array, jax.Array]:
        ends = jnp.stack(_mixture_range((weights, shifts), sign, budget))
        ratio = pair_masses.mixture_log_ratio(ends, weights, shifts)
        return jnp.where(sign > 0, ratio[0], -ratio[1]), jnp.where(sign > 0, ratio[1], -ratio[0])

    def laplace(scale: jax.Array, prob: jax.Array) -> tuple[jax.Array, jax.Array]:
        return between(jnp.stack([-1.0 / scale, 1.0 / scale]), prob)

    def between(unsampled: jax.Array, prob: jax.Array) -> tuple[jax.Array, jax.Array]:
        ends = sampled_atoms.losses(unsampled, prob)
        return jnp.where(sign > 0, ends[0], -ends[1]), jnp.where(sign > 0, ends[1], -ends[0])

    def sampled_discrete(*params: jax.Array) -> tuple[jax.Array, jax.Array]:
        ends = _sampled_discrete_ends(params, budget)
        return between(sampled_atoms.logs(ends, *params[:2])[2], params[2])

    def replaced(prob: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
        return two_sided.replaced_range(prob, shift, sign, _reach(budget))

    def truncated(
        cut: jax.Array,
        prob: jax.Array,
        shift: jax.Array,
        full_prob: jax.Array,
        full_shift: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        plain, full = mixture(prob[None], shift[None]), replaced(full_prob, full_shift)
        return jnp.minimum(plain[0], full[0]), jnp.maximum(plain[1], full[1])

    def discrete(stddev: jax.Array, sensitivity: jax.Array) -> tuple[jax.Array, jax.Array]:
        reach = _discrete_range((stddev, sensitivity), sign, budget)
        middle, half = sensitivity**2 / (2 * stddev**2), reach * sensitivity / stddev**2
        return middle - half, middle + half

    def pair(p: jax.Array, q: jax.Array) -> tuple[jax.Array, jax.Array]:
        _, loss, finite = _pair_losses((p, q), sign)
        low, high = (jnp.where(finite, loss, fill) for fill in (jnp.inf, -jnp.inf))
        some = jnp.any(finite)
        return jnp.where(some, jnp.min(low), 0.0), jnp.where(some, jnp.max(high), 0.0)

    kinds: dict[str, Callable[..., tuple[jax.Array, jax.Array]]]
    kinds = {
        "mixture": mixture,
        "laplace": laplace,
        "discrete_gaussian": discrete,
        "sampled_discrete_gaussian": sampled_discrete,
        "replaced": replaced,
        "truncated": truncated,
        "pair": pair,
    }
    return vmap(kinds[kind])(*params)


def edge(kind: str, params: Params, sign: jax.Array) -> jax.Array:
    """`[K]`: the loss beyond which there is none, where mass piles up: log w0 in the direction
    "remove", -log w0 in "add".
    """
    if kind != "mixture":
        return jnp.full(params[0].shape[:1], jnp.inf)
    moved = jnp.minimum(jnp.sum(params[0], axis=1), 1.0)
    return sign * jnp.log1p(-moved)


def atom(kind: str, params: Params) -> jax.Array:
    """`[K]`: the loss of an atom that must lie on the lattice, inf if there is none."""
    if kind == "discrete_gaussian":
        return params[1] ** 2 / (2.0 * params[0] ** 2)
    return jnp.full(params[0].shape[:1], jnp.inf)


def _discrete_lattice(
    stddev: jax.Array,
    sensitivity: jax.Array,
    h: jax.Array,
    first: jax.Array,
    offset: jax.Array,
    n: int,
) -> discretise.Lattice:
    """Atoms at integers x, of loss sensitivity (2 x + sensitivity) / (2 stddev^2): exact where they
    are lattice points.

    Both directions are the same by symmetry.
    """
    x = pair_masses.steps(ATOMS) - ATOMS // 2
    logs = -0.5 * (x / stddev) ** 2
    # 2 sum_{x > 4096 / 2} is below 1e-300 of the whole for stddev <= 50: `solve` refuses a larger
    # one.
    masses = jnp.exp(logs - logsumexp(logs))
    error = masses * (64 + jnp.abs(logs) * 4) * pair_masses.UNIT
    loss = sensitivity * (2.0 * x + sensitivity) / (2.0 * stddev**2)
    return _atoms(masses, error, loss, jnp.zeros((), masses.dtype), 0.0, h, first, offset, n)


def _pair_lattice(
    p: jax.Array,
    q: jax.Array,
    sign: jax.Array,
    h: jax.Array,
    first: jax.Array,
    offset: jax.Array,
    n: int,
) -> discretise.Lattice:
    """One atom for each outcome; what the masses lack to 1 counts as an infinite loss."""
    mass, loss, finite = _pair_losses((p, q), sign)
    # Chances that were rounded one by one may sum to a little less than 1: the error of each is in
    # its mass below.
    missing = 1.0 - jnp.sum(mass)
    missing = jnp.where(missing > PAIR_SUM, missing, 0.0)
    infinite = jnp.sum(jnp.where(finite, 0.0, mass)) * (1 + 64 * pair_masses.UNIT) + missing
    masses = jnp.where(finite, mass, 0.0)
    return _atoms(
        masses,
        (8 * pair_masses.UNIT + PAIR_SUM) * masses,
        loss,
        infinite,
        PAIR_SUM,
        h,
        first,
        offset,
        n,
    )


def _atoms(
    masses: jax.Array,
    error: jax.Array,
    loss: jax.Array,
    infinite: jax.Array,
    slack: float,
    h: jax.Array,
    first: jax.Array,
    offset: jax.Array,
    n: int,
) -> discretise.Lattice:
    """Atoms `[J]` of masses known up to `error`, losses up to `slack`, on the lattice; beside them
    the mass `infinite`.

    Those between lattice points are split upward (by connecting the dots) and moved down.
    """
    place = (loss - offset) / h - first
    # In steps: rounding of places.
    snap = SNAP + (slack + 8 * pair_masses.UNIT * (jnp.max(jnp.abs(loss)) + jnp.abs(offset))) / h
    left = jnp.floor(place + snap)
    share = jnp.clip(place - left, 0.0, 1.0)
    share = jnp.where(share <= snap, 0.0, share)
    index = left.astype(jnp.int32)
    inside = (index >= 0) & (index < n - 1)
    at = jnp.clip(index, 0, n - 2)
    heavy = masses + error
    to_right = jnp.where(inside, heavy * jnp.expm1(-share * h) / jnp.expm1(-h), 0.0)
    zeros = jnp.zeros((n,), masses.dtype)
    upper = add_at(zeros, at, jnp.where(inside, heavy - to_right, 0.0))
    upper = add_at(upper, at + 1, to_right)
    upper = add_at(upper, 0, jnp.sum(jnp.where(index < 0, heavy, 0.0)))
    infinite = infinite + jnp.sum(jnp.where(index >= n - 1, heavy, 0.0)) + 1e-300
    lower = add_at(zeros, at, jnp.where(inside, masses - error, 0.0))
    snap = 2 * snap * h
    return discretise.Lattice(
        masses=jnp.stack([upper, lower]),
        offsets=jnp.stack([offset + snap, offset - snap]),
        infinite=jnp.stack([infinite, jnp.zeros_like(infinite)]),
    )


def cut(
    kind: str,
    params: Params,
    sign: jax.Array,
    h: jax.Array,
    first: jax.Array,
    offset: jax.Array,
    n: int,
) -> pair_masses.Cells | discretise.Lattice:
    """The cells of each mechanism of a group; of one with atoms of its own, both lattice
    distributions at once.

    first, offset `[K]`; leaves get a leading axis K.
    """

    def one(
        first: jax.Array, offset: jax.Array, *params: jax.Array
    ) -> pair_masses.Cells | discretise.Lattice:
        if kind == "discrete_gaussian":
            return _discrete_lattice(params[0], params[1], h, first, offset, n)
        if kind == "pair":
            return _pair_lattice(params[0], params[1], sign, h, first, offset, n)
        kinds: dict[str, Callable[..., pair_masses.Cells]]
        kinds = {
            "mixture": pair_masses.mixture_cells,
            "laplace": pair_masses.laplace_cells,
            "sampled_discrete_gaussian": sampled_atoms.cells,
            "replaced": two_sided.replaced_cells,
            "truncated": two_sided.truncated_cells,
        }
        return kinds[kind](*params, sign, h, first, offset, n)

    found: pair_masses.Cells | discretise.Lattice = vmap(one)(first, offset, *params)
    return found
