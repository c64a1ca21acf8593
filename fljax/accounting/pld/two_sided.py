"""Pairs whose two measures are both mixtures: a unit exchanged for another in a Poisson sample.

"replaced": P = (1 - q) N(0, 1) + q N(s, 1), Q = (1 - q) N(0, 1) + q N(-s, 1), with q the chance
that the unit is sampled and s = how far one unit moves the sum / noise stddev. It dominates all
exchanges of a sampled Gaussian mechanism, and is one of them. The loss is odd in z and grows with
it, so that cuts are in closed form.

"truncated": with chance t the sample is cut to its largest size, and the unit's place may be
another's, a "replaced" pair of twice the shift; else it is there or not, as in a plain sample. The
two cases count as seen, which only tells more. Both directions are composed apart.

Source: arXiv:2405.20769, section 5, for the first; arXiv:2508.15089 for the second.
"""

from __future__ import annotations

from fljax.accounting._arrays import jax, jnp
from fljax.accounting._cut_samples import TAIL_ERROR
from fljax.accounting.pld import pair_masses
from fljax.accounting.pld.pair_masses import UNIT, Cells


def log_ratio(z: jax.Array, prob: jax.Array, shift: jax.Array) -> jax.Array:
    """The loss of "replaced" at z `[...]`."""
    stay = jnp.log1p(-prob)
    part = jnp.log(prob) - 0.5 * shift**2
    return jnp.logaddexp(stay, part + shift * z) - jnp.logaddexp(stay, part - shift * z)


def inverse(loss: jax.Array, prob: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The z `[n]` where the loss is `loss` `[n]`, and a bound on how far off the losses there are.

    With y = e^(s |z|), w = 1 - q and c = q e^(-s^2 / 2), |loss| is that of a root of
    c y^2 - w (e^|loss| - 1) y - c e^|loss|.
    """
    size = jnp.abs(loss)
    part = jnp.log(prob) - 0.5 * shift**2
    small = jnp.log(jnp.expm1(jnp.minimum(size, 30.0)))
    growth = jnp.where(size < 30.0, small, size + jnp.log1p(-jnp.exp(-size)))
    middle = jnp.log1p(-prob) - part + growth
    log_y = jnp.logaddexp(middle, 0.5 * jnp.logaddexp(2 * middle, jnp.log(4.0) + size))
    log_y = log_y - jnp.log(2.0)
    # An error in log y is one in the loss times the shares that the shifted halves have.
    share = 1.0 / (1.0 + jnp.exp(jnp.minimum(jnp.log1p(-prob) - part - log_y, 700.0)))
    spread = jnp.abs(log_y) + jnp.abs(part) + size + 2.0
    spread += jnp.where(prob < 1, jnp.abs(jnp.log1p(-prob)), 0.0)
    return jnp.sign(loss) * log_y / shift, 16 * UNIT * jnp.max(size + 2 * share * spread)


def replaced_range(
    prob: jax.Array, shift: jax.Array, sign: jax.Array, reach: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The losses of z between -`reach` and shift + `reach`."""
    ends = log_ratio(jnp.stack([-reach, shift + reach]), prob, shift)
    return ends[0], ends[1]


def replaced_nodes(
    prob: jax.Array, shift: jax.Array, sign: jax.Array, reach: jax.Array, num: int
) -> tuple[jax.Array, jax.Array]:
    """`[num]` log P-masses (not normalised) and losses."""
    z = -reach + (shift + 2 * reach) * (pair_masses.steps(num) + 0.5) / num
    stay, part = jnp.log1p(-prob), jnp.log(prob) - 0.5 * shift**2
    return -0.5 * z**2 + jnp.logaddexp(stay, part + shift * z), log_ratio(z, prob, shift)


def replaced_cells(
    prob: jax.Array,
    shift: jax.Array,
    sign: jax.Array,
    h: jax.Array,
    first: jax.Array,
    offset: jax.Array,
    n: int,
) -> Cells:
    """Cells of "replaced"; the other direction has the same, by reflection."""
    cuts = pair_masses.cuts(h, first, offset, n)
    z, slack = inverse(cuts, prob, shift)
    end = jnp.full((1,), jnp.inf)
    z = jnp.concatenate([-end, z, end])
    middle, middle_error = pair_masses.between(z, 0.0)
    argument = UNIT * (jnp.minimum(jnp.abs(z), 1e3) + shift)
    right, right_error = pair_masses.between(z - shift, argument)
    left, left_error = pair_masses.between(z + shift, argument)
    error = (1 - prob) * (middle_error + 2 * UNIT * middle)
    one = jnp.ones((), middle.dtype)
    return Cells(
        q=(1 - prob) * middle + prob * left,
        u=(1 - prob) * middle + prob * right,
        q_error=error + prob * (left_error + 2 * UNIT * left),
        u_error=error + prob * (right_error + 2 * UNIT * right),
        slack=slack,
        moved=one,
    )


def truncated_cells(
    cut: jax.Array,
    prob: jax.Array,
    shift: jax.Array,
    full_prob: jax.Array,
    full_shift: jax.Array,
    sign: jax.Array,
    h: jax.Array,
    first: jax.Array,
    offset: jax.Array,
    n: int,
) -> Cells:
    """Cells of "truncated": `cut` is t; chance and shift of a plain sample, and of a full one."""
    one = pair_masses.mixture_cells(prob[None], shift[None], sign, h, first, offset, n)
    two = replaced_cells(full_prob, full_shift, sign, h, first, offset, n)
    # Of "replaced" the other direction is the same in the order of its own losses, with P and Q
    # exchanged; the cells below name by q what is under the second measure of "remove".
    two_q, two_u = (jnp.where(sign > 0, a, b) for a, b in ((two.q, two.u), (two.u, two.q)))
    error_q, error_u = (
        jnp.where(sign > 0, a, b)
        for a, b in ((two.q_error, two.u_error), (two.u_error, two.q_error))
    )
    stays = 1 - one.moved
    known = TAIL_ERROR * cut
    return Cells(
        q=(1 - cut) * one.q + cut * two_q,
        u=(1 - cut) * (stays * one.q + one.u) + cut * two_u,
        q_error=one.q_error + cut * error_q + known * (one.q + two_q),
        u_error=stays * one.q_error + one.u_error + cut * error_u + known * (one.q + one.u + two_u),
        slack=jnp.maximum(one.slack, two.slack),
        moved=jnp.ones((), one.q.dtype),
    )
