"""Norms by taps, sums as the gradient of sum_i c_i loss_i."""

from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels.loops.api import LoopFriendly, loop_friendly
from fljax_kernels.per_example.batches import Batch, fresh_keys, make_varying, varying_axes
from fljax_kernels.per_example.reference import wide
from fljax_kernels.per_example.taps import Plan, Taps


class TwoPass(Taps):
    """One more pass than `Taps`, forward and backward; it keeps nothing per example."""

    def __init__(self, loss: LoopFriendly, batch: Batch, plan: Plan | None = None):
        super().__init__(loss, batch, plan)
        self._loss = loss

    def weighted_sums(self, weights: list[jax.Array]) -> list[jax.Array]:
        if all(c is weights[0] for c in weights):
            return self._gradient(weights[0], range(len(weights)))
        sums: list[Any] = [None] * len(weights)
        for k, c in enumerate(weights):
            if sums[k] is None:
                same = [j for j, other in enumerate(weights) if other is c]
                for j, total in zip(same, self._gradient(c, same), strict=True):
                    sums[j] = total
        return sums

    def _gradient(self, weights: jax.Array, wanted: Any) -> list[jax.Array]:
        batch, wanted = self._batch, list(wanted)
        counts = weights != 0
        # A row of weight 0 may be NaN anywhere inside: it is computed from another row's data
        # instead.
        instead = jnp.where(counts, jnp.arange(batch.size), jnp.argmax(counts))
        examples = jax.tree.map(lambda x: x[instead], fresh_keys(batch.examples))

        def total(leaves: list[jax.Array]) -> jax.Array:
            full = list(batch.leaves)
            for k, leaf in zip(wanted, leaves, strict=True):
                full[k] = leaf
            losses = jax.vmap(lambda example: self._loss(full, example)[0], axis_size=batch.size)(
                examples
            )
            losses = losses.astype(wide(losses.dtype))
            return jnp.sum(weights.astype(losses.dtype) * losses)

        # Weights may differ between the devices of a shard_map where params and examples do not.
        axes = varying_axes(weights, *batch.leaves, *jax.tree.leaves(examples))
        grads = loop_friendly(jax.grad(total))(
            [make_varying(batch.leaves[k], axes) for k in wanted]
        )
        zero = [jnp.zeros((), wide(g.dtype)) for g in grads]
        return [
            jnp.where(jnp.any(counts), g.astype(z.dtype), z)
            for g, z in zip(grads, zero, strict=True)
        ]

    def explain(self) -> str:
        """As for taps, which gives the norms."""
        return (
            "two_pass: sums from the gradient of the weighted loss; norms by " + super().explain()
        )
