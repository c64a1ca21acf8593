"""A client against model perturbation: the secret vector by least squares, from a few labelled
examples.

A disguised network computes y + alpha(x) r, where a client knows alpha(x): of the true network n_L
numbers are missing. With residuals of its own labelled examples, r = sum alpha e / sum alpha^2 up
to the true model's own errors.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fljax.models import scaling
from fljax.models.scaling import Plan
from fljax.types import Batch, Params


class Outputs(NamedTuple):
    """What a client computes: perturbed outputs `[m, n_L]` and alpha `[m]`."""

    outputs: jax.Array
    alpha: jax.Array


def client_outputs(plan: Plan, sent: Params, transition: jax.Array | None, x: jax.Array) -> Outputs:
    """Outputs and alpha of the examples `x` `[m, ...]` under what the server sent."""
    body, head = scaling.split(plan, sent)

    def one(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = scaling.hidden(plan, body, transition, x)
        return scaling.outputs(plan, head, hidden), jnp.sum(hidden) + float(plan.has_bias)

    return Outputs(*jax.vmap(one)(x))


def estimate_r(outputs: jax.Array, alpha: jax.Array, targets: jax.Array) -> jax.Array:
    """The least-squares estimate `[n_L]` of the additive vector.

    Args:
      outputs: `[m, n_L]`, perturbed. alpha: `[m]`. targets: `[m, n_L]`, one-hot or regression.
    """
    return alpha @ (outputs - targets) / jnp.sum(jnp.square(alpha))


def corrected(found: Outputs, r: jax.Array) -> jax.Array:
    """Outputs `[m, n_L]` with alpha r taken away."""
    return found.outputs - found.alpha[:, None] * r[None]


def attack(
    plan: Plan, sent: Params, transition: jax.Array | None, known: Batch, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(classes `[m]` that the disguised network says, classes that it says once corrected) for `x`
    `[m, ...]`.

    Args:
      plan: of the network, which is public. sent, transition: from the server.
      known: labelled examples of the client's own, `{"x": [k, ...], "y": integers [k]}`.
      x: whose classes are wanted.
    """
    own = client_outputs(plan, sent, transition, known["x"])
    targets = jax.nn.one_hot(known["y"], plan.num_outputs, dtype=own.outputs.dtype)
    r = estimate_r(own.outputs, own.alpha, targets)
    found = client_outputs(plan, sent, transition, x)
    return found.outputs.argmax(-1), corrected(found, r).argmax(-1)
