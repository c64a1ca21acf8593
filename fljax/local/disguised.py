"""What a client of a disguised model sends: a batch's gradient, with or without Psi and Phi."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax.local import perturbed
from fljax.models import losses, scaling
from fljax.types import Batch, Params


def batch(key: jax.Array, rows: jax.Array, batch_size: int) -> jax.Array:
    """int32 `[min(batch_size, N)]`: so many of a client's rows, each set equally likely; -1 behind
    the last.
    """
    order = jnp.argsort(jnp.where(rows >= 0, jax.random.uniform(key, rows.shape), 2.0))
    return rows[order[: min(batch_size, rows.shape[0])]]


Client = Callable[[Params, Any, Batch, jax.Array], tuple[Any, jax.Array]]


def client(
    plan: scaling.Plan,
    network: losses.NetworkLoss,
    params: Params,
    additive: Any,
    *,
    noise: str,
    l2_clip_norm: float,
    batch_size: int | None,
    with_triple: bool,
) -> Client:
    """`(sent, transition, batch, mask) -> (upload, [loss, clipped])`.

    Args:
      plan, network: how the network is perturbed.
      params: the true model, on which only a simulator computes.
      additive: the server's secret vector, of which the mode "paper" combines what it needs.
      noise: the mode: of `fljax.upload.disguised`.
      l2_clip_norm: bound on what a client sends, or on what each example adds to it.
      batch_size: divisor of the sum over examples that are clipped one by one. None: a client's
        whole upload is clipped.
      with_triple: Psi and Phi are sent, too.
    """
    bound = l2_clip_norm
    if noise in ("oracle_clip", "naive", "central"):
        return _clipped_truth(network, params, bound, batch_size)
    if noise == "paper":
        whole = perturbed.triples(plan) if with_triple else perturbed.combined(plan, additive)
        if network.kind != "squared":
            whole = perturbed.gradients(plan, network.of_output)

        def unclipped(
            sent: Params, transition: Any, batch: Batch, mask: jax.Array
        ) -> tuple[Any, jax.Array]:
            found, loss = whole(sent, transition, batch, mask)
            return found, jnp.stack([loss, jnp.zeros_like(loss)])

        return unclipped
    if batch_size is not None and with_triple:
        each = perturbed.clipped_records(
            perturbed.triples(plan, divisor=1.0), bound, batch_size=batch_size
        )
    elif batch_size is not None:
        each = perturbed.clipped_gradients(plan, network.of_output, bound, batch_size=batch_size)
    else:
        whole = (
            perturbed.triples(plan) if with_triple else perturbed.gradients(plan, network.of_output)
        )

        def each(
            sent: Params, transition: Any, batch: Batch, mask: jax.Array
        ) -> tuple[Any, jax.Array]:
            found, loss = whole(sent, transition, batch, mask)
            clipped, norm = perturbed.clip(found, bound)
            return clipped, jnp.stack([loss, (~(norm <= bound)).astype(loss.dtype)])

    return each


def _clipped_truth(
    network: losses.NetworkLoss, params: Params, bound: float, batch_size: int | None
) -> Client:
    """The true gradient, clipped: what no client could do, and what a trusted server would."""

    def client(
        sent: Params, transition: Any, batch: Batch, mask: jax.Array
    ) -> tuple[Params, jax.Array]:
        if batch_size is not None:
            gradients = fljax_kernels.per_example_grads(network)(params, batch)
            norms, values = gradients.row_norms(), gradients.values()
            # A row that is not finite gets weight 0, which `rmatvec` leaves out.
            keep = mask & jnp.isfinite(norms)
            weights = (
                jnp.where(keep, jnp.minimum(1, bound / jnp.maximum(norms, 1e-30)), 0) / batch_size
            )
            here = jnp.maximum(1, jnp.sum(mask)).astype(values.dtype)
            stats = [
                jnp.sum(jnp.where(keep, values, 0)) / here,
                jnp.sum(mask & ~(norms <= bound)).astype(here.dtype) / here,
            ]
            return gradients.rmatvec(weights), jnp.stack(stats)

        def mean(params: Params) -> jax.Array:
            values = jax.vmap(network, (None, 0))(params, batch)
            return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(1, jnp.sum(mask)).astype(
                values.dtype
            )

        value, gradient = jax.value_and_grad(fljax_kernels.loop_friendly(mean, inside_loop=True))(
            params
        )
        clipped, norm = perturbed.clip(gradient, bound)
        return clipped, jnp.stack([value, (~(norm <= bound)).astype(value.dtype)])

    return client
