"""From cells to two lattice distributions of the privacy loss: one above the truth, one below.

Upper: connect the dots (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter Discrete
Approximations of
Privacy Loss Distributions", arXiv:2207.04380): each cell between two lattice points moves its mass to these points so
that the
masses of P and of Q both stay; in the curve of delta against e^epsilon this joins lattice values by chords.

Lower: each cell around a lattice point becomes one atom. Merging is post-processing, so it can only lower delta. The
atom's
loss log(P / Q) differs from the lattice point by O(h^2); it is brought onto the point by merging it with a small piece
of the next atom above or below, which is post-processing again. Where that is impossible the atom moves down to a
lattice point.

Both errors are O(h^2) in the loss. Roundings are pushed outward: masses and losses up in the upper distribution, down
in the lower one.
All statements read a distribution as P-masses at losses: delta grows with each mass and with each loss, also after
composition.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from fljax.accounting.pld.cells import UNIT, Cells, steps

SWEEPS = 5
LARGEST_SHARE = 0.95  # of an atom that its neighbours may take
LEEWAY = 1e-14  # loss per composition that pays for the rounding of the transfers


class Lattice(NamedTuple):
    """Both bounds of one mechanism on the losses `(first + k) * h + offset`, k = 0 .. n-1.

    masses: `[2, n]`, upper then lower. offsets: `[2]`. infinite: `[2]`, mass of an infinite loss (0 in the lower
    bound).
    """

    masses: jax.Array
    offsets: jax.Array
    infinite: jax.Array


def _coefficients(sign: jax.Array, rho: jax.Array, moved: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(a, b) such that P - (1 + rho) Q of the pair in this direction is `a u + b q`."""
    remove = sign > 0
    a = jnp.where(remove, 1.0, -(1.0 + rho))
    b = jnp.where(remove, -(rho + moved), moved - (1.0 - moved) * rho)
    return a, b


def _upper(cells: Cells, sign: jax.Array, loss: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
    remove = sign > 0

    def total(u: jax.Array, q: jax.Array) -> jax.Array:
        return jnp.where(remove, u + (1.0 - cells.moved) * q, q)

    mass = total(cells.u + cells.u_error, cells.q + cells.q_error)
    ends = mass[0] + mass[1], mass[-1] + mass[-2]

    def pairs(x: jax.Array) -> jax.Array:
        return jnp.sum(x[2:-2].reshape(-1, 2), axis=1)

    a, b = _coefficients(sign, jnp.expm1(loss[:-1]), cells.moved)
    mass = pairs(mass)
    excess = a * pairs(cells.u) + b * pairs(cells.q)
    u_error, q_error = pairs(cells.u_error + 8 * UNIT * cells.u), pairs(cells.q_error + 8 * UNIT * cells.q)
    excess += jnp.abs(a) * u_error + jnp.abs(b) * q_error + cells.slack * mass
    to_top = jnp.clip(excess / -jnp.expm1(-h), 0.0, mass)
    zero = jnp.zeros((1,), mass.dtype)
    masses = jnp.concatenate([mass - to_top, zero]) + jnp.concatenate([zero, to_top])
    return masses.at[0].add(ends[0]), ends[1]


def _above(x: jax.Array) -> jax.Array:
    return jnp.concatenate([x[1:], jnp.zeros((1,), x.dtype)])


def _below(x: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.zeros((1,), x.dtype), x[:-1]])


def _merged(
    q: jax.Array, u: jax.Array, share: jax.Array, sign: jax.Array, moved: jax.Array, points: jax.Array, h: jax.Array
) -> jax.Array:
    """Moves the atoms onto `points`, one to each cell, by merging and by moving down; returns the P-masses there.

    Each atom is known up to a factor between 1 - share and 1 + share, whatever helps least.
    """
    a, b = _coefficients(sign, jnp.expm1(points), moved)
    excess = a * u + b * q  # negative: the atom lies below its point
    excess -= share * jnp.abs(excess)
    gain_above = jnp.maximum(a * _above(u) + b * _above(q), 0.0) * (1.0 - _above(share))
    gain_below = jnp.maximum(-(a * _below(u) + b * _below(q)), 0.0) * (1.0 + _below(share))
    wants_above = jnp.where(gain_above > 0, jnp.maximum(-excess, 0.0) / jnp.where(gain_above > 0, gain_above, 1.0), 0.0)
    wants_below = jnp.where(gain_below > 0, jnp.maximum(excess, 0.0) / jnp.where(gain_below > 0, gain_below, 1.0), 0.0)

    def shares(kept: jax.Array) -> tuple[jax.Array, jax.Array]:
        from_above, from_below = kept * wants_above, kept * wants_below
        asked = _below(from_above) + _above(from_below)
        allowed = LARGEST_SHARE / jnp.maximum(asked, LARGEST_SHARE)
        return from_above * _above(allowed), from_below * _below(allowed)

    def sweep(_: int, kept: jax.Array) -> jax.Array:
        from_above, from_below = shares(kept)
        return 1.0 - _below(from_above) - _above(from_below)

    from_above, from_below = shares(jax.lax.fori_loop(0, SWEEPS, sweep, jnp.ones_like(q)))
    kept = 1.0 - _below(from_above) - _above(from_below)  # what is given is what is taken, converged or not
    # Of an atom below its point, that part is lifted which the piece from above pays for; the rest moves down by one
    # point.
    needed = kept * jnp.maximum(-excess, 0.0)
    lifted = jnp.where(
        needed > 0, jnp.minimum((1.0 - 1e-12) * from_above * gain_above / jnp.where(needed > 0, needed, 1.0), 1.0), 1.0
    )
    # Of an atom above its point, no more is taken from below than it can carry.
    spare = kept * jnp.maximum(excess, 0.0) * (1.0 - 1e-12)
    from_below_used = jnp.minimum(
        from_below, jnp.where(gain_below > 0, spare / jnp.where(gain_below > 0, gain_below, 1.0), 0.0)
    )
    unused = _above(from_below - from_below_used)  # stays with its owner, one point down: safe wherever it lay

    p = (1.0 - share) * jnp.maximum(jnp.where(sign > 0, u + (1.0 - moved) * q, q), 0.0)
    at_point = lifted * kept * p + from_above * _above(p) + from_below_used * _below(p)
    # Rounding may have moved a light atom far down: then it is dropped rather than moved by one point.
    a, b = _coefficients(sign, jnp.expm1(points - h), moved)
    down = ((1.0 - lifted) * kept + unused) * jnp.where(a * u + b * q >= 0, p, 0.0)
    return at_point + _above(down)


def _lower(cells: Cells, sign: jax.Array, loss: jax.Array, tilt: jax.Array) -> tuple[jax.Array, jax.Array]:
    remove, moved = sign > 0, cells.moved

    def pairs(x: jax.Array) -> jax.Array:
        return jnp.sum(x[1:-1].reshape(-1, 2), axis=1)

    q, u, q_error, u_error = pairs(cells.q), pairs(cells.u), pairs(cells.q_error), pairs(cells.u_error)
    keep = q > 8 * q_error
    q = jnp.where(keep, q, 1.0)
    # An error common to P and Q only scales the atom (by `share`); the rest is a shift of its loss, taken out of or
    # put into u.
    share = q_error / q
    shift = u_error + jnp.abs(u) * share + cells.slack * (u + q)
    u = jnp.where(remove, u - shift, u + shift)
    p = jnp.where(remove, u + (1.0 - moved) * q, q)
    keep &= p > 0
    u, q, p, share = (jnp.where(keep, x, 0.0) for x in (u, q, p, share))
    own = sign * jnp.log1p(jnp.where(keep, (u - moved * q) / jnp.where(keep, q, 1.0), 0.0))

    # The lattice may be shifted. Where an atom is a narrow heap, it should lie on a point; beyond the last atom there
    # is nothing
    # to merge with, so the last one should. Try the heaviest atom, the outermost one that matters, and the middle.
    weight = jnp.where(keep, jnp.log(jnp.where(keep, p, 1.0)) + tilt * loss, -jnp.inf)
    h = loss[1] - loss[0]
    light = jnp.log(jnp.minimum(0.01 * h * (1.0 + jnp.maximum(tilt, 0.0)), 0.5))
    heavy = (weight - logsumexp(weight) > light) | (weight == jnp.max(weight))
    outermost = jnp.where(remove, jnp.argmax(heavy), q.shape[0] - 1 - jnp.argmax(heavy[::-1]))
    steps_tried = jnp.stack([own[i] - loss[i] for i in (jnp.argmax(weight), outermost)])
    steps_tried = jnp.append(steps_tried, 0.5 * jnp.sum(steps_tried)) - LEEWAY

    tried = jax.vmap(lambda step: _merged(q, u, share, sign, moved, loss + step, h))(steps_tried)
    merit = (tilt + 0.5) * (loss + steps_tried[:, None])
    merit = logsumexp(jnp.where(tried > 0, jnp.log(jnp.where(tried > 0, tried, 1.0)) + merit, -jnp.inf), axis=1)
    best = jnp.argmax(merit)
    return tried[best], steps_tried[best]


def bracket(
    cells: Cells, sign: jax.Array, h: jax.Array, first: jax.Array, last: jax.Array, offset: jax.Array, tilt: jax.Array
) -> Lattice:
    """The upper and the lower lattice distribution of a pair.

    Mass beyond the lattice point `last` counts as an infinite loss in the upper one, as no mass in the lower one.
    `tilt` only
    says which losses matter most.
    """
    n = cells.q.shape[0] // 2 - 1
    loss = (first + steps(n)) * h + offset
    upper, infinite = _upper(cells, sign, loss, h)
    lower, step = _lower(cells, sign, loss, tilt)
    beyond = steps(n) > last - first
    return Lattice(
        masses=jnp.where(beyond, 0.0, jnp.stack([upper, lower])),
        offsets=jnp.stack([offset, offset + step]),
        infinite=jnp.stack([infinite + jnp.sum(jnp.where(beyond, upper, 0.0)), jnp.zeros_like(infinite)]),
    )
