"""A client's part under model perturbation: gradient, Psi and Phi of its batch, from one backward
pass.

With h the last layer's input, alpha = sum h (+ 1 for a bias) and e = yhat - ybar, the three are the
gradients of the batch means of c ||e||^2, of 2 c alpha e_k for each output k, and of c alpha^2. All
of them reach the parameters through h alone, so one forward pass serves n_L + 2 cotangents of h,
pulled back side by side; of the last layer, Psi is one vector and Phi is zero.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", Theorems 1, 4 and 13, for c = 1/2.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _validate
from fljax.models import scaling
from fljax.models.scaling import Plan, Triple
from fljax.types import Batch, Params
from fljax_kernels import _platforms

_CACHED = (
    2**20
)  # numbers of a batch's activations, beyond which cotangents side by side only wait for memory
OfOutput = Callable[[jax.Array, jax.Array], jax.Array]
# (perturbed params, transition, batch, mask [B]) -> ...
TripleFun = Callable[[Params, jax.Array | None, Batch, jax.Array], tuple[Triple, jax.Array]]


class _Forward(NamedTuple):
    """hidden `[B, ...]`, outputs `[B, n_L]` and alpha `[B]` of a batch; jacobian: outputs by
    hidden; weights `[B]`.
    """

    hidden: jax.Array
    outputs: jax.Array
    alpha: jax.Array
    jacobian: jax.Array
    weights: jax.Array
    pull: Any
    head: list[jax.Array]


def _targets(batch: Batch, like: jax.Array) -> jax.Array:
    """Labels as one-hot rows; rows of numbers as they are."""
    targets = batch["y"]
    if jnp.issubdtype(targets.dtype, jnp.integer):
        targets = jax.nn.one_hot(targets, like.shape[1], dtype=like.dtype)
    return targets.reshape(like.shape).astype(like.dtype)


def _padding_filled(fun: TripleFun) -> TripleFun:
    """`fun` on a batch whose padding repeats a real example; without one, zeros. A network or loss
    may have no gradient at what padding holds, and 0 * NaN is NaN.
    """

    def filled(
        params: Params, transition: jax.Array | None, batch: Batch, mask: jax.Array
    ) -> tuple[Triple, jax.Array]:
        rows = jnp.where(mask, jnp.arange(mask.shape[0]), jnp.argmax(mask))
        answer = fun(params, transition, {"x": batch["x"][rows], "y": batch["y"][rows]}, mask)
        return jax.tree.map(
            lambda leaf: jnp.where(jnp.any(mask), leaf, jnp.zeros((), leaf.dtype)), answer
        )

    return filled


def _forward(
    plan: Plan, params: Params, transition: Any, batch: Batch, mask: jax.Array, divisor: Any
) -> _Forward:
    body, head = scaling.split(plan, params)

    def features(body: list[jax.Array]) -> jax.Array:
        return jax.vmap(lambda x: scaling.hidden(plan, body, transition, x))(batch["x"])

    # A round is a loop over clients, where XLA's convolutions are slow on a CPU, their gradients
    # included.
    hidden, pull = jax.vjp(fljax_kernels.loop_friendly(features, inside_loop=True), body)
    outputs = jax.vmap(lambda h: scaling.outputs(plan, head, h))(hidden)
    zero = jnp.zeros(plan.hidden_shape, hidden.dtype)
    jacobian = jax.jacrev(lambda h: scaling.outputs(plan, head, h))(zero)
    alpha = jnp.sum(hidden, axis=tuple(range(1, hidden.ndim))) + jnp.asarray(
        float(plan.has_bias), hidden.dtype
    )
    count = (
        jnp.maximum(1, jnp.sum(mask)).astype(hidden.dtype)
        if divisor is None
        else jnp.asarray(divisor, hidden.dtype)
    )
    weights = mask.astype(hidden.dtype) / count
    return _Forward(hidden, outputs, alpha, jacobian, weights, pull, head)


def _spread(vector: jax.Array, like: jax.Array) -> jax.Array:
    """`[..., B]` with as many trailing axes as `like` `[B, ...]` has behind B."""
    return vector.reshape(vector.shape + (1,) * (like.ndim - 1))


def _pull_all(plan: Plan, f: _Forward, cotangents: jax.Array) -> list[jax.Array]:
    """Gradients `[N, ...]` of the body for cotangents `[N, B, ...]` of the last layer's input; one
    forward pass.

    Side by side; on a CPU one after the other where the batch's activations alone fill its cache: a
    group-normalised ResNet20 on 64 images of 8 x 8 takes 5.3 times the CPU time of FedAvg's round
    so.
    """
    outputs = [v.aval.size for k in plan.body_equations for v in plan.jaxpr.eqns[k].outvars]
    side_by_side = jax.vmap(f.pull)
    if sum(outputs) * f.hidden.shape[0] <= _CACHED:
        return list(side_by_side(cotangents)[0])
    in_turn = functools.partial(jax.lax.map, f.pull)
    return list(_platforms.choose(cotangents, cpu=in_turn, default=side_by_side)[0])


def _head_gradient(plan: Plan, f: _Forward, cotangent: jax.Array) -> list[jax.Array]:
    _, pull = jax.vjp(
        lambda head: jax.vmap(lambda h: scaling.outputs(plan, head, h))(f.hidden), f.head
    )
    (gradient,) = pull(cotangent)
    return list(gradient)


def triples(plan: Plan, *, loss_scale: float = 0.5, divisor: float | None = None) -> TripleFun:
    """The client's function.

    Args:
      plan: of the network.
      loss_scale: c of the loss c ||yhat - ybar||^2, > 0; 1/2 in the paper.
      divisor: of the sum over the batch. None: its number of examples.

    Returns:
      `(perturbed params, transition, batch, mask) -> (Triple, loss)`: batch `{"x": [B, ...], "y":
      labels [B] or targets [B, n_L]}`, mask bool `[B]`; loss `[]` is the client's own, on the
      perturbed model. Safe under jit and vmap over clients. A batch without examples gives zeros.

    Raises:
      ValueError: `loss_scale` or `divisor` is not > 0.
    """
    _validate.positive(loss_scale=loss_scale)

    def fun(
        params: Params, transition: jax.Array | None, batch: Batch, mask: jax.Array
    ) -> tuple[Triple, jax.Array]:
        f = _forward(plan, params, transition, batch, mask, divisor)
        scaled = 2 * loss_scale * f.weights
        e, alpha = f.outputs - _targets(batch, f.outputs), f.alpha
        weighted = scaled[:, None] * e
        to_gradient = jnp.tensordot(weighted, f.jacobian, axes=1)[None]
        # `[n_L, B, ...]`: alpha times the output's row, and e_k times the ones of alpha.
        to_psi = f.jacobian[:, None] * _spread(scaled * alpha, f.hidden)[None] + _spread(
            weighted.T, f.hidden
        )
        to_phi = jnp.broadcast_to(_spread(scaled * alpha, f.hidden), f.hidden.shape)[None]
        pulled = _pull_all(plan, f, jnp.concatenate([to_gradient, to_psi, to_phi]))
        body = [leaf[0] for leaf in pulled]
        psi = [leaf[1:-1] for leaf in pulled]
        phi = [leaf[-1] for leaf in pulled]
        psi_head = jnp.tensordot(scaled * alpha, f.hidden, axes=1)
        psi_bias = jnp.sum(scaled * alpha) if plan.has_bias else ()
        loss = loss_scale * jnp.sum(f.weights * jnp.sum(e**2, axis=1))
        return Triple(body, _head_gradient(plan, f, weighted), psi, phi, psi_head, psi_bias), loss

    return _padding_filled(fun)


def gradients(plan: Plan, of_output: OfOutput) -> TripleFun:
    """As `triples`, of the gradient alone: what clients send where the additive vector is 0, for
    any loss.

    Args:
      plan: of the network.
      of_output: `(outputs [n_L], label) -> []`, the loss of one example.
    """

    def fun(
        params: Params, transition: jax.Array | None, batch: Batch, mask: jax.Array
    ) -> tuple[Triple, jax.Array]:
        f = _forward(plan, params, transition, batch, mask, None)
        values, cotangents = jax.vmap(jax.value_and_grad(of_output))(f.outputs, batch["y"])
        weighted = f.weights[:, None] * cotangents
        (body,) = f.pull(jnp.tensordot(weighted, f.jacobian, axes=1))
        return Triple(list(body), _head_gradient(plan, f, weighted)), jnp.sum(f.weights * values)

    return _padding_filled(fun)


def combined(
    plan: Plan, additive: jax.Array, *, loss_scale: float = 0.5, divisor: float | None = None
) -> TripleFun:
    """Gradient - sum_c r_c Psi_c + v Phi of a batch by one pass, for simulation: no client knows r.

    The loss is the true one. The result has no Psi and no Phi, and recovers as it is.
    """
    _validate.positive(loss_scale=loss_scale)

    def fun(
        params: Params, transition: jax.Array | None, batch: Batch, mask: jax.Array
    ) -> tuple[Triple, jax.Array]:
        f = _forward(plan, params, transition, batch, mask, divisor)
        r = additive.astype(f.outputs.dtype)
        true = (
            f.outputs - _targets(batch, f.outputs) - f.alpha[:, None] * r[None]
        )  # the residual of the true model
        weighted = 2 * loss_scale * f.weights[:, None] * true
        to_hidden = jnp.tensordot(weighted, f.jacobian, axes=1) - _spread(weighted @ r, f.hidden)
        (body,) = f.pull(to_hidden)
        loss = loss_scale * jnp.sum(f.weights * jnp.sum(true**2, axis=1))
        return Triple(list(body), _head_gradient(plan, f, weighted)), loss

    return _padding_filled(fun)


def clip(triple: Triple, l2_clip_norm: float | jax.Array) -> tuple[Triple, jax.Array]:
    """(the whole triple times min(1, l2_clip_norm / its norm), its norm), over every number that is
    sent.

    Guarantee: the result's norm is at most `l2_clip_norm` (to rounding); a triple that is not
      finite becomes zero.
    """
    row = jax.tree.map(lambda leaf: leaf[None], triple)
    # "reference": under vmap over records the other form pays for both.
    clipped, (norm,) = fljax_kernels.clip_and_sum(row, l2_clip_norm, implementation="reference")
    return jax.tree.map(lambda new, leaf: new.astype(leaf.dtype), clipped, triple), norm


def clipped_records(
    fun: TripleFun, l2_clip_norm: float, *, batch_size: int, microbatch_size: int = 8
) -> TripleFun:
    """As `fun`, each example's triple clipped for itself, and the sum divided by the constant
    `batch_size`.

    Guarantee: exchanging one example moves the result by at most 2 l2_clip_norm / batch_size.
    Memory: the triples of `microbatch_size` examples.

    Args:
      fun: of `triples`, with the divisor 1.
      l2_clip_norm: > 0. batch_size: at least the rows of a batch that are not masked.
        microbatch_size: speed only.

    Returns:
      a function like `fun`, whose second result is `[mean loss, clipped fraction]`.

    Raises:
      ValueError: a number is out of range.
    """
    _validate.positive(l2_clip_norm=l2_clip_norm)
    _validate.positive_int(batch_size=batch_size, microbatch_size=microbatch_size)

    def records(
        params: Params, transition: Any, batch: Batch, mask: jax.Array
    ) -> tuple[Triple, jax.Array]:
        def one(row: tuple[Batch, jax.Array]) -> tuple[Triple, jax.Array]:
            example, here = row
            found, loss = fun(
                params, transition, jax.tree.map(lambda leaf: leaf[None], example), here[None]
            )
            clipped, norm = clip(found, l2_clip_norm)
            return clipped, jnp.stack([loss, (~(norm <= l2_clip_norm)).astype(loss.dtype)])

        rows = {"x": batch["x"], "y": batch["y"]}, mask
        size = min(microbatch_size, mask.shape[0])
        pad = -mask.shape[0] % size
        rows = jax.tree.map(
            lambda leaf: jnp.concatenate([leaf, jnp.zeros((pad, *leaf.shape[1:]), leaf.dtype)]),
            rows,
        )
        parts = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), rows)

        def add(total: Any, part: Any) -> tuple[Any, None]:
            found = jax.vmap(one)(part)
            return jax.tree.map(lambda a, b: a + b.sum(axis=0), total, found), None

        like = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0, 0], parts))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        (total, stats), _ = jax.lax.scan(add, zero, parts)
        count = jnp.maximum(1, jnp.sum(mask)).astype(stats.dtype)
        return jax.tree.map(lambda leaf: leaf / batch_size, total), stats / count

    return records


def clipped_gradients(
    plan: Plan, of_output: OfOutput, l2_clip_norm: float, *, batch_size: int
) -> TripleFun:
    """As `clipped_records` of `gradients`, by the implicit gradient matrix: no example's gradient
    is ever held.

    Guarantee, Raises: as there.

    Args:
      plan: of the network.
      of_output: as in `gradients`. l2_clip_norm, batch_size: as in `clipped_records`.
    """
    _validate.positive(l2_clip_norm=l2_clip_norm)
    _validate.positive_int(batch_size=batch_size)

    def fun(
        params: Params, transition: Any, batch: Batch, mask: jax.Array
    ) -> tuple[Triple, jax.Array]:
        def loss(leaves: tuple[list[jax.Array], list[jax.Array]], example: Batch) -> jax.Array:
            body, head = leaves
            return of_output(
                scaling.outputs(plan, head, scaling.hidden(plan, body, transition, example["x"])),
                example["y"],
            )

        rows = fljax_kernels.per_example_grads(loss)(
            scaling.split(plan, params), {"x": batch["x"], "y": batch["y"]}
        )
        norms, values = rows.row_norms(), rows.values()
        # A row that is not finite gets weight 0, which `rmatvec` leaves out.
        keep = mask & jnp.isfinite(norms)
        weights = (
            jnp.where(keep, jnp.minimum(1, l2_clip_norm / jnp.maximum(norms, 1e-30)), 0)
            / batch_size
        )
        body, head = rows.rmatvec(weights)
        count = jnp.maximum(1, jnp.sum(mask)).astype(values.dtype)
        stats = [
            jnp.sum(jnp.where(keep, values, 0)) / count,
            jnp.sum(mask & ~(norms <= l2_clip_norm)).astype(count.dtype) / count,
        ]
        return Triple(body, head), jnp.stack(stats)

    return fun
