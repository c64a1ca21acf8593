"""The two measures of a neighbouring pair, cut into cells along a lattice of privacy losses.

A pair is P = w0 * Q + U: with chance `w0` the unit took no part, else it moved the output. `q` and
`u` are the masses of Q and U in a cell; keeping U apart means that P / Q - 1, which is of order 1 -
w0, is never a difference of two numbers near 1. Cells are cut at losses `(i0 + j / 2 - 1 / 2) * h +
offset`, so lattice points and mid points are both cuts.

Each mass comes with a bound on its rounding error. `erfc` is good to 3 (1 + z^2) units of 2^-52
(tests/accounting/test_pld.py
measures it against mpmath); the bounds below allow 4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fljax.accounting._arrays import erfc, folded, fori_loop, jax, jnp, logsumexp

UNIT = 2.0**-52
TINY = 1e-305  # covers masses that underflow
NEWTON_STEPS = 8


class Cells(NamedTuple):
    """Masses of `2 n + 2` cells in the order of ascending loss; the first and the last reach to
    infinity.

    q, u: `[2 n + 2]`. q_error, u_error: bounds on their absolute errors. slack: `[]`, how far (in
    units of loss) a cut may lie from its place. moved: `[]`, 1 - w0.
    """

    q: jax.Array
    u: jax.Array
    q_error: jax.Array
    u_error: jax.Array
    slack: jax.Array
    moved: jax.Array


def steps(n: int) -> jax.Array:
    """0, 1, ..., n - 1 in float64."""
    return jnp.arange(n, dtype=jnp.float64)


def _tail(z: jax.Array, argument_error: jax.Array | float) -> tuple[jax.Array, jax.Array]:
    """P(N > |z|) and a bound on its error, given the absolute error of z."""
    size = jnp.minimum(jnp.abs(z), 1e3)
    tail = 0.5 * erfc(size / np.sqrt(2.0))
    relative = 4.0 * (1.0 + size**2) * UNIT + (1.0 + size) * argument_error
    return tail, tail * relative + TINY


def between(z: jax.Array, argument_error: jax.Array | float) -> tuple[jax.Array, jax.Array]:
    """Normal masses between neighbouring cuts (ascending or descending), with error bounds."""
    tail, error = _tail(z, argument_error)
    first, second = tail[:-1], tail[1:]
    straddles = (z[:-1] < 0) != (z[1:] < 0)
    mass = jnp.where(straddles, 1.0 - first - second, jnp.abs(first - second))
    return mass, error[:-1] + error[1:] + jnp.where(straddles, 2 * UNIT, 0.0)


def cuts(h: jax.Array, first: jax.Array, offset: jax.Array, n: int) -> jax.Array:
    """The losses `[2 n + 1]` between the cells."""
    return (first + 0.5 * steps(2 * n + 1) - 0.5) * h + offset


def mixture_log_ratio(z: jax.Array, weights: jax.Array, shifts: jax.Array) -> jax.Array:
    """The log of dP/dQ at z `[...]`: P = w0 N(0, 1) + sum_j weights_j N(shifts_j, 1), Q = N(0, 1);
    the rest `[J]`.
    """
    moved = jnp.sum(weights)
    exponents = shifts * z[..., None] - 0.5 * shifts**2
    # Near z = 0 the sum of w_j (e^x - 1) keeps its digits when the weights are tiny; elsewhere
    # log-space does.
    near = jnp.log1p(
        jnp.maximum(jnp.sum(weights * jnp.expm1(jnp.minimum(exponents, 1.0)), axis=-1), -moved)
    )
    stay = jnp.log1p(-jnp.minimum(moved, 1.0))
    far = jnp.logaddexp(stay, logsumexp(exponents + jnp.log(weights), axis=-1))
    return jnp.where((jnp.max(exponents, axis=-1) < 1.0) & (moved < 0.5), near, far)


def _log_moved_ratio(loss: jax.Array, stay: jax.Array) -> jax.Array:
    """The log of dU/dQ where log dP/dQ is `loss`: log(e^loss - e^stay); -inf where there is no such
    point.

    In this form an error of the logarithm is one of a few units of |loss| + |stay| in the loss,
    also next to `stay`.
    """
    return jnp.where(
        loss > stay, loss + jnp.log(-jnp.expm1(jnp.minimum(stay - loss, -1e-300))), -jnp.inf
    )


def _mixture_inverse(
    loss: jax.Array, weights: jax.Array, shifts: jax.Array, moved: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The z where the log ratio is `loss` (-inf below its range), and a bound on how far off its
    ratio at z is.
    """
    stay = jnp.log1p(-moved)
    target = _log_moved_ratio(loss, stay)
    log_weights = jnp.log(weights)
    # Every single term bounds the root from above; from there Newton descends monotonically, as the
    # function is convex.
    single = (target[:, None] - jnp.where(weights > 0, log_weights, 0.0)) / shifts + 0.5 * shifts
    z = jnp.min(jnp.where(weights > 0, single, jnp.inf), axis=1)
    finite = jnp.isfinite(z)
    # An error in log dU/dQ is one in the loss times U / P.
    part = jnp.where(finite, -jnp.expm1(jnp.minimum(stay - loss, 0.0)), 0.0)

    def rounding(z: jax.Array) -> jax.Array:
        spread = jnp.where(
            weights > 0, shifts * jnp.abs(z)[:, None] + 0.5 * shifts**2 + jnp.abs(log_weights), 0.0
        )
        exponent = jnp.where(finite, jnp.abs(target), 0.0) + jnp.max(spread, axis=1)
        known = jnp.abs(loss) + jnp.where(moved < 1, jnp.abs(stay), 0.0)
        return 8 * UNIT * (known + part * exponent)

    if weights.shape[0] == 1:
        return z, jnp.max(jnp.where(finite, rounding(jnp.where(finite, z, 0.0)), 0.0))
    start = jnp.where(finite, z, 0.0)

    def value(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        exponents = shifts * z[:, None] - 0.5 * shifts**2 + log_weights
        total = logsumexp(exponents, axis=1)
        return total, jnp.sum(jnp.exp(exponents - total[:, None]) * shifts, axis=1)

    def step(_: int, z: jax.Array) -> jax.Array:
        total, slope = value(z)
        return z - (total - target) / slope

    start = fori_loop(0, NEWTON_STEPS, step, jnp.where(finite, start, 0.0))
    missed = part * jnp.where(finite, jnp.abs(value(start)[0] - target), 0.0)
    return jnp.where(finite, start, z), jnp.max(jnp.where(finite, missed + rounding(start), 0.0))


def mixture_cells(
    weights: jax.Array,
    shifts: jax.Array,
    sign: jax.Array,
    h: jax.Array,
    first: jax.Array,
    offset: jax.Array,
    n: int,
) -> Cells:
    """Cells of P = w0 N(0, 1) + sum_j weights_j N(shifts_j, 1), Q = N(0, 1): `weights`, `shifts`
    `[J]`, shifts > 0.

    `sign` +1: the loss is log dP/dQ (remove). -1: it is log dQ/dP (add), and the lattice is one of
    that loss. A weight of 0 is padding. The cut of the two-point mixture is in closed form, that of
    a longer one by Newton's method.
    """
    moved = jnp.minimum(jnp.sum(weights), 1.0)
    end = sign * jnp.full((1,), jnp.inf)
    z, slack = _mixture_inverse(sign * cuts(h, first, offset, n), weights, shifts, moved)
    z = jnp.concatenate([-end, z, end])
    q, q_error = between(z, 0.0)

    def part(
        carry: tuple[jax.Array, jax.Array], column: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        weight, shift = column
        mass, error = between(z - shift, UNIT * (jnp.minimum(jnp.abs(z), 1e3) + shift))
        return (carry[0] + weight * mass, carry[1] + weight * (error + 2 * UNIT * mass))

    u, u_error = folded(part, (jnp.zeros_like(q), jnp.zeros_like(q)), (weights, shifts))
    return Cells(q=q, u=u, q_error=q_error, u_error=u_error, slack=slack, moved=moved)


def laplace_cells(
    scale: jax.Array,
    prob: jax.Array,
    sign: jax.Array,
    h: jax.Array,
    first: jax.Array,
    offset: jax.Array,
    n: int,
) -> Cells:
    """Cells of P = (1 - prob) Q + prob Laplace(1, scale) against Q = Laplace(0, scale), scale = b /
    sensitivity.

    The two ends of the range of the loss, those of x <= 0 and of x >= 1, are atoms.
    """
    stay = jnp.log1p(-prob)
    loss = _log_moved_ratio(sign * cuts(h, first, offset, n), stay) - jnp.log(prob)
    end = sign * jnp.full((1,), jnp.inf)
    # A cut within rounding of an atom must not split it: the atom then counts as lying on the cut.
    x = jnp.where(
        loss < -1 / scale,
        -jnp.inf,
        jnp.where(loss >= 1 / scale, jnp.inf, 0.5 * (loss * scale + 1.0)),
    )
    x = jnp.concatenate([-end, x, end])

    def mass(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        tail = 0.5 * jnp.exp(-jnp.abs(y) / scale)
        first, second = tail[:-1], tail[1:]
        straddles = (y[:-1] < 0) != (y[1:] < 0)
        between = jnp.where(straddles, 1.0 - first - second, jnp.abs(first - second))
        # exp is good to 2 units; its argument, of size |y| / scale, to one unit of itself.
        error = 4 * UNIT * (first + second) * (1.0 + 1.0 / scale) + jnp.where(
            straddles, 2 * UNIT, 0.0
        )
        return between, error + 16 * UNIT * (first + second) + TINY

    q, q_error = mass(x)
    u, u_error = mass(x - 1.0)
    # An error in log dU/dQ is one in the loss times U / P, at most the share at the upper end.
    odds = jnp.exp(jnp.minimum(jnp.log(prob) + 1 / scale - stay, 700.0))
    share = jnp.where(prob < 1, odds / (1.0 + odds), 1.0)
    known = jnp.where(prob < 1, jnp.abs(jnp.where(prob < 1, stay, 0.0)), 0.0)
    slack = known + share * (1.0 + 1 / scale + jnp.abs(jnp.log(prob)))
    return Cells(
        q=q,
        u=prob * u,
        q_error=q_error,
        u_error=prob * u_error + jnp.where(prob < 1, 2 * UNIT * prob * u, 0.0),
        slack=16 * UNIT * slack,
        moved=prob,
    )
