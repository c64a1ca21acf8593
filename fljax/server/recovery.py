"""The true mean gradient from the mean of what clients computed on a perturbed model.

With e the residual of the perturbed output, the true loss c ||e||^2 - 2 c alpha r.e + c v alpha^2
is a polynomial of what clients can compute, so gradient - sum_c r_c Psi_c + v Phi, times the
parameters' multipliers, is its gradient.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", Theorems 1, 4 and 13 and Algorithm 3,
with Psi of shape [n_L, ...].
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.models import scaling
from fljax.models.scaling import Plan, Triple
from fljax.server import perturbation
from fljax.server.perturbation import Secrets
from fljax.types import Params
from fljax_kernels.pairwise import graphs

LOST_DIGITS = 1e4  # float32 has seven digits; beyond this fewer than three are left


def recover(plan: Plan, secrets: Secrets, mean: Triple) -> Params:
    """The gradient of the true loss at the true parameters, where `mean` is a mean of clients'
    triples.

    Guarantee: exact over the reals for every weighted mean, if all parts of a client's triple have
    the same weight, and for triples multiplied by a clipping factor; noise in `mean` comes out
    multiplied by the parameters' multipliers.

    Args:
      plan: of the network.
      secrets: of the round. mean: of the triples; without Psi and Phi where the additive vector is
        0.
    """
    multipliers = perturbation.multipliers(plan, secrets)
    leaves = jax.tree.leaves(_combined(plan, secrets, mean))
    scaled = [
        leaf * factor.astype(leaf.dtype) for leaf, factor in zip(leaves, multipliers, strict=True)
    ]
    return jax.tree.unflatten(plan.structure, scaled)


def _combined(plan: Plan, secrets: Secrets, mean: Triple) -> Params:
    if not len(mean.psi) and not len(mean.psi_head):
        return scaling.join(plan, mean.body, mean.head)
    v = jnp.sum(jnp.square(secrets.additive))

    def hidden(gradient: jax.Array, psi: jax.Array, phi: jax.Array) -> jax.Array:
        r = secrets.additive.astype(gradient.dtype)
        return gradient - jnp.tensordot(r, psi, axes=1) + v.astype(gradient.dtype) * phi

    body = [hidden(*parts) for parts in zip(mean.body, mean.psi, mean.phi, strict=True)]
    rows = [mean.psi_head.reshape(-1)[plan.leaves[plan.head[0]].hidden]]
    if plan.has_bias:
        rows.append(mean.psi_bias)
    head = []
    for k, gradient, row in zip(plan.head, mean.head, rows, strict=True):
        r = secrets.additive[plan.leaves[k].classes].astype(gradient.dtype)
        head.append(gradient - (r * row if row.ndim else r * row[None]))
    return scaling.join(plan, body, head)


def lost_digits(plan: Plan, secrets: Secrets, mean: Triple) -> jax.Array:
    """By how much numbers cancel in recovery: v ||Phi|| / ||gradient - sum_c r_c Psi_c + v Phi||,
    `[]`.

    0 without Phi, or where it is 0. For `warn_of_lost_digits`, once a round, outside of jit.
    """
    if not len(mean.psi):
        return jnp.zeros(())
    phi, left = _norm(mean.phi), _norm(_combined(plan, secrets, mean))
    cancelled = jnp.sum(jnp.square(secrets.additive)).astype(phi.dtype) * phi
    return jnp.where(cancelled == 0, 0, cancelled / left)


def warn_of_lost_digits(ratio: Any) -> None:
    """Warns where `lost_digits` leaves too few of float32: use a shorter additive vector, or
    float64.
    """
    if not float(ratio) <= LOST_DIGITS:
        warnings.warn(
            f"Recovery cancels numbers {float(ratio):.2g} times as large as the gradient; float32 "
            "has seven digits: use a smaller additive_norm, or float64.",
            stacklevel=2,
        )


def check_present(edges: Any, present: Any) -> None:
    """Raises ValueError if a client that shares noise with another one is missing: the noise would
    stay in the mean.

    Args:
      edges: `[E, 2]`, each pair once; else ValueError. present: bool `[K]`.
    """
    present = np.asarray(present, bool)
    low, high = graphs.checked_pairs(edges, present.size).T
    broken = np.flatnonzero(present[low] != present[high])
    if broken.size:
        edge = (int(low[broken[0]]), int(high[broken[0]]))
        raise ValueError(
            f"Expected both ends of every edge to be present, got one end only of edge {edge}."
        )


def left_over_variance(edges: Any, present: Any, *, pair_stddev: float) -> float:
    """Variance, per coordinate, that missing clients leave in the mean of the present ones'
    uploads.

    Args:
      edges: `[E, 2]`, each pair once; else ValueError. present: bool `[K]`, at least one.
        pair_stddev: of one pair's noise.
    """
    present = np.asarray(present, bool)
    low, high = graphs.checked_pairs(edges, present.size).T
    return float(
        np.sum(present[low] != present[high]) * pair_stddev**2 / max(1, present.sum()) ** 2
    )


def _norm(tree: Any) -> jax.Array:
    leaves = jax.tree.leaves(tree)
    zero = jnp.zeros((), leaves[0].dtype)
    return jnp.sqrt(sum((jnp.sum(jnp.square(leaf)) for leaf in leaves), start=zero))
