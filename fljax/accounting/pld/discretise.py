"""From cells to two lattice distributions of the privacy loss: one above the truth, one below.

Upper: connect the dots (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter
Discrete Approximations of Privacy Loss Distributions", arXiv:2207.04380): each cell between two
lattice points moves its mass to these points so that the masses of P and of Q both stay; in the
curve of delta against e^epsilon this joins lattice values by chords.

Lower: each cell around a lattice point becomes one atom. Merging is post-processing, so it can only
lower delta. The atom's loss log(P / Q) differs from the lattice point by O(h^2); it is brought onto
the point by merging it with a small piece of the next atom above or below, which is post-processing
again. Where that is impossible the atom moves down to a lattice point.

Both errors are O(h^2) in the loss. Roundings are pushed outward: masses and losses up in the upper
distribution, down in the lower one. All statements read a distribution as P-masses at losses: delta
grows with each mass and with each loss, also after composition.
"""

from __future__ import annotations

from typing import NamedTuple

from fljax.accounting._arrays import add_at, fori_loop, jax, jnp, logsumexp, vmap
from fljax.accounting.pld.pair_masses import UNIT, Cells, steps

SWEEPS = 5
LARGEST_SHARE = 0.95  # of an atom that its neighbours may take
ROUNDING = 16 * UNIT  # relative, of a sum of a few products


class Lattice(NamedTuple):
    """Both bounds of one mechanism on the losses `(first + k) * h + offset`, k = 0 .. n-1.

    masses: `[2, n]`, upper then lower. offsets: `[2]`. infinite: `[2]`, mass of an infinite loss (0
    in the lower bound).
    """

    masses: jax.Array
    offsets: jax.Array
    infinite: jax.Array


class _Line(NamedTuple):
    """P - (1 + rho) Q of an atom (u, q) of the pair, in this direction, is `a u + b q`; `size` is
    what b is a sum of.

    Positive where the loss of the atom is above log(1 + rho).
    """

    a: jax.Array
    b: jax.Array
    size: jax.Array

    def __call__(self, u: jax.Array, q: jax.Array) -> jax.Array:
        return self.a * u + self.b * q

    def error(self, u: jax.Array, q: jax.Array) -> jax.Array:
        """Bound on the rounding error of a call: b may be a small difference, so its parts
        count.
        """
        return ROUNDING * (jnp.abs(self.a) * jnp.abs(u) + self.size * q)


def _line(sign: jax.Array, rho: jax.Array, moved: jax.Array) -> _Line:
    remove = sign > 0
    a = jnp.where(remove, 1.0, -(1.0 + rho))
    b = jnp.where(remove, -(rho + moved), moved - (1.0 - moved) * rho)
    return _Line(
        a, b, jnp.where(remove, jnp.abs(rho) + moved, moved + (1.0 - moved) * jnp.abs(rho))
    )


def _upper(
    cells: Cells, sign: jax.Array, loss: jax.Array, h: jax.Array, slack: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Masses at `loss + slack`, and the infinite one. A cut is within `slack` of its place.

    So a cell's losses are below its upper point plus `slack`, and less than 2 slack below its lower
    point plus `slack`, to which they are raised: that lowers e^loss Q by at most 2 slack P.
    """
    remove = sign > 0

    def total(u: jax.Array, q: jax.Array) -> jax.Array:
        return jnp.where(remove, u + (1.0 - cells.moved) * q, q)

    mass = total(cells.u + cells.u_error, cells.q + cells.q_error) * (1.0 + ROUNDING)
    ends = mass[0] + mass[1], mass[-1] + mass[-2]

    def pairs(x: jax.Array) -> jax.Array:
        return jnp.sum(x[2:-2].reshape(-1, 2), axis=1)

    line = _line(sign, jnp.expm1(loss[:-1]), cells.moved)
    mass, u, q = pairs(mass), pairs(cells.u), pairs(cells.q)
    rounding = line.error(u, q)
    excess = line(u, q) + rounding + 2.5 * slack * mass
    excess += jnp.abs(line.a) * pairs(cells.u_error) + jnp.abs(line.b) * pairs(cells.q_error)
    to_top = jnp.clip(excess / -jnp.expm1(-h), 0.0, mass)
    # What is computed twice may come out with two roundings: the lower point keeps what that could
    # lose.
    stays = (
        jnp.maximum(mass - to_top, 0.0)
        + jnp.minimum(rounding / -jnp.expm1(-h), mass)
        + ROUNDING * mass
    )
    zero = jnp.zeros((1,), mass.dtype)
    masses = jnp.concatenate([stays, zero]) + jnp.concatenate([zero, to_top])
    return add_at(masses, 0, ends[0]), ends[1]


def _above(x: jax.Array) -> jax.Array:
    return jnp.concatenate([x[1:], jnp.zeros((1,), x.dtype)])


def _below(x: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.zeros((1,), x.dtype), x[:-1]])


def _merged(
    q: jax.Array,
    u: jax.Array,
    p: jax.Array,
    sign: jax.Array,
    moved: jax.Array,
    points: jax.Array,
    h: jax.Array,
) -> jax.Array:
    """Moves the atoms onto `points`, one to each cell, by merging and by moving down; returns the
    P-masses there.

    `p` is the P-mass of the atom (u, q). Next to the ends there is nothing to merge with: the
    pieces are zero.
    """
    line = _line(sign, jnp.expm1(points), moved)
    excess = line(u, q) - line.error(u, q)  # negative: the atom lies below its point
    gain_above = jnp.maximum(line(_above(u), _above(q)) - line.error(_above(u), _above(q)), 0.0)
    gain_below = jnp.maximum(line.error(_below(u), _below(q)) - line(_below(u), _below(q)), 0.0)
    wants_above = jnp.where(
        gain_above > 0, jnp.maximum(-excess, 0.0) / jnp.where(gain_above > 0, gain_above, 1.0), 0.0
    )
    wants_below = jnp.where(
        gain_below > 0, jnp.maximum(excess, 0.0) / jnp.where(gain_below > 0, gain_below, 1.0), 0.0
    )

    def shares(kept: jax.Array) -> tuple[jax.Array, jax.Array]:
        from_above, from_below = kept * wants_above, kept * wants_below
        asked = _below(from_above) + _above(from_below)
        allowed = LARGEST_SHARE / jnp.maximum(asked, LARGEST_SHARE)
        return from_above * _above(allowed), from_below * _below(allowed)

    def sweep(_: int, kept: jax.Array) -> jax.Array:
        from_above, from_below = shares(kept)
        return 1.0 - _below(from_above) - _above(from_below)

    from_above, from_below = shares(fori_loop(0, SWEEPS, sweep, jnp.ones_like(q)))
    kept = (
        1.0 - _below(from_above) - _above(from_below)
    )  # what is given is what is taken, converged or not
    # Of an atom below its point, that part is lifted which the piece from above pays for; the rest
    # moves down by one point.
    needed = kept * jnp.maximum(-excess, 0.0)
    lifted = jnp.where(
        needed > 0,
        jnp.minimum(
            (1.0 - 1e-12) * from_above * gain_above / jnp.where(needed > 0, needed, 1.0), 1.0
        ),
        1.0,
    )
    # Of an atom above its point, no more is taken from below than it can carry.
    spare = kept * jnp.maximum(excess, 0.0) * (1.0 - 1e-12)
    from_below_used = jnp.minimum(
        from_below,
        jnp.where(gain_below > 0, spare / jnp.where(gain_below > 0, gain_below, 1.0), 0.0),
    )
    unused = _above(
        from_below - from_below_used
    )  # stays with its owner, one point down: safe wherever it lay

    at_point = lifted * kept * p + from_above * _above(p) + from_below_used * _below(p)
    # Rounding may have moved a light atom far down: then it is dropped rather than moved by one
    # point.
    line = _line(sign, jnp.expm1(points - h), moved)
    down = ((1.0 - lifted) * kept + unused) * jnp.where(line(u, q) >= line.error(u, q), p, 0.0)
    return (at_point + _above(down)) * (1.0 - ROUNDING)


def _lower(
    cells: Cells, sign: jax.Array, loss: jax.Array, tilt: jax.Array, leeway: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Masses at `loss + step`, and `step`. The points themselves are known up to `leeway`."""
    remove, moved = sign > 0, cells.moved

    def pairs(x: jax.Array) -> jax.Array:
        return jnp.sum(x[1:-1].reshape(-1, 2), axis=1)

    q, u, q_error, u_error = (
        pairs(cells.q),
        pairs(cells.u),
        pairs(cells.q_error),
        pairs(cells.u_error),
    )
    keep = q > 8 * q_error
    q = jnp.where(keep, q, 1.0)
    # The true q is q (1 + x), |x| <= share; the true u is within u_error. Then u / q is at least (u
    # - shift) / q and at most (u + shift) / q, and the P-mass at least 1 - share times that of the
    # atom with the worse of these two.
    share = q_error / q + ROUNDING
    shift = (u_error + u * share) / (1.0 - share) + ROUNDING * u
    u = jnp.where(remove, u - shift, u + shift)
    p = jnp.where(remove, u + (1.0 - moved) * q, q)
    keep &= p > 0
    u, q, p = (jnp.where(keep, x * (1.0 - share), 0.0) for x in (u, q, p))
    own = sign * jnp.log1p(jnp.where(keep, (u - moved * q) / jnp.where(keep, q, 1.0), 0.0))

    # The lattice may be shifted. Where an atom is a narrow heap, it should lie on a point; beyond
    # the last atom there is nothing to merge with, so the last one should. Try the heaviest atom,
    # the outermost one that matters, and the middle.
    weight = jnp.where(keep, jnp.log(jnp.where(keep, p, 1.0)) + tilt * loss, -jnp.inf)
    h = loss[1] - loss[0]
    light = jnp.log(jnp.minimum(0.01 * h * (1.0 + jnp.maximum(tilt, 0.0)), 0.5))
    heavy = (weight - logsumexp(weight) > light) | (weight == jnp.max(weight))
    outermost = jnp.where(remove, jnp.argmax(heavy), q.shape[0] - 1 - jnp.argmax(heavy[::-1]))
    steps_tried = jnp.stack([own[i] - loss[i] for i in (jnp.argmax(weight), outermost)])
    # Of an atom meant to lie on its point, rounding must not leave it just below.
    steps_tried = jnp.append(steps_tried, 0.5 * jnp.sum(steps_tried)) - 1e-14

    tried = vmap(lambda step: _merged(q, u, p, sign, moved, loss + step, h))(steps_tried)
    merit = (tilt + 0.5) * (loss + steps_tried[:, None])
    merit = logsumexp(
        jnp.where(tried > 0, jnp.log(jnp.where(tried > 0, tried, 1.0)) + merit, -jnp.inf), axis=1
    )
    best = jnp.argmax(merit)
    return tried[best], steps_tried[best] - leeway


def bracket(
    cells: Cells,
    sign: jax.Array,
    h: jax.Array,
    first: jax.Array,
    last: jax.Array,
    offset: jax.Array,
    tilt: jax.Array,
) -> Lattice:
    """The upper and the lower lattice distribution of a pair.

    Mass beyond the lattice point `last` counts as an infinite loss in the upper one, as no mass in
    the lower one. `tilt` only says which losses matter most.
    """
    n = cells.q.shape[0] // 2 - 1
    loss = (first + steps(n)) * h + offset
    # Composition takes the points to be exact multiples of h, plus the offset.
    rounding = 8 * UNIT * (jnp.max(jnp.abs(loss)) + jnp.abs(offset))
    slack = cells.slack + rounding
    upper, infinite = _upper(cells, sign, loss, h, slack)
    lower, step = _lower(cells, sign, loss, tilt, rounding)
    beyond = steps(n) > last - first
    return Lattice(
        masses=jnp.where(beyond, 0.0, jnp.stack([upper, lower])),
        offsets=jnp.stack([offset + slack, offset + step]),
        infinite=jnp.stack(
            [infinite + jnp.sum(jnp.where(beyond, upper, 0.0)), jnp.zeros_like(infinite)]
        ),
    )
