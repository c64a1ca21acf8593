"""Local training: each client of a chunk takes its own steps of stochastic gradient descent from
the server's model.

A client's steps are a loop: on a CPU `loop_friendly` takes the convolutions out of it, where XLA is
slow at them, and on a GPU out of a chunk of clients side by side, each with weights of its own. The
loss is rewritten before it is differentiated, so that its gradient reads the patches that the loss
has made.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import fljax_kernels
from fljax import _validate
from fljax.data.cohorts import map_clients
from fljax.local import keyed
from fljax.types import Batch, ClientUpdate, LossFn, Params
from fljax_kernels import _meshes, _threefry  # the bits of jax.random, without its loops on a CPU
from fljax_kernels.per_example import one_example


class LocalResult(NamedTuple):
    """update: params-like, server_params - client_params. loss: `[]`, mean over the examples seen
    in the last epoch.
    """

    update: ClientUpdate
    loss: jax.Array


def take_examples(examples: Batch, rows: jax.Array) -> Batch:
    """Rows `[B]` of `examples`; padding (-1) repeats one of the real rows, and is zero where there
    is none.

    Not zero otherwise: a loss may have no gradient there, and 0 * NaN is NaN. Not a row of another
    client: its value must not reach a gradient.
    """
    rows = jnp.where(rows >= 0, rows, jnp.max(rows))

    def take(leaf: jax.Array) -> jax.Array:
        taken = jnp.take(leaf, jnp.maximum(rows, 0), axis=0)
        present = (rows >= 0).reshape(rows.shape + (1,) * (taken.ndim - rows.ndim))
        return jnp.where(present, taken, jnp.zeros((), taken.dtype))

    return jax.tree.map(take, examples)


def masked_mean_loss(loss: LossFn) -> Callable[[Params, Batch, jax.Array], jax.Array]:
    """`(params, batch, mask [B]) -> []`: mean loss over the rows where mask is True, 0 where there
    is none.

    The batch is as `keyed.drawing` makes it.

    Raises:
      ValueError: `loss` is none of ONE example, `loss(params, example) -> []`, or normalises over a
        batch.
    """
    loss = keyed.of_one(loss)

    def mean_loss(params: Params, batch: Batch, mask: jax.Array) -> jax.Array:
        one_example.check(loss, params, batch)
        losses = jax.vmap(loss, in_axes=(None, 0))(params, batch)
        total = jnp.sum(jnp.where(mask, losses, jnp.zeros((), losses.dtype)))
        return total / jnp.maximum(1, jnp.sum(mask)).astype(losses.dtype)

    return mean_loss


def _value_and_grad(loss: Callable[..., jax.Array], alone: bool) -> Callable[..., Any]:
    """Of the loss as it suits the platform; `alone`: no other client is trained beside this one."""
    return jax.value_and_grad(
        fljax_kernels.loop_friendly(loss, inside_loop=True, side_by_side=not alone)
    )


View = Callable[[Batch, jax.Array, Any, jax.Array], Batch]
_Carry = tuple[
    Params, Any, jax.Array
]  # a client's parameters, its optimizer's state, losses of the epoch


def local_sgd(
    loss: LossFn,
    *,
    learning_rate: float,
    batch_size: int,
    num_epochs: int,
    proximal: float = 0.0,
    view: View | None = None,
    start: Callable[[Params, Any], Params] | None = None,
    correct: Callable[[Params, Any], Params] | None = None,
    optimizer: optax.GradientTransformation | None = None,
) -> Callable[..., LocalResult]:
    """SGD on each client's examples, reshuffled every epoch, with as many steps as the client's
    data needs.

    Nothing here is private: clip the update before anything leaves the client.

    Args:
      loss: `loss(params, example) -> []`, or with a key: see `fljax.local.keyed`.
      learning_rate: > 0.
      batch_size: examples a step. The last batch of an epoch may be smaller; its mean is over what
        it holds.
      num_epochs: passes over the client's examples.
      proximal: mu >= 0; the loss gets mu / 2 times the squared distance from the server's model.
      view: `(batch, places [B], own, epoch []) -> batch`: what training sees of a batch in place of
        the examples themselves; `places` are theirs in the client's row of `indices`, the same in
        every round and wherever the pool lies, `own` is what the client was given for it. None: the
        examples.
      start: `(params, own) -> params`, the model that a client starts from. None: `params`.
      correct: `(gradient, own) -> gradient`, of each step. None: as it is.
      optimizer: any optax transformation in place of plain steps of `learning_rate`. Its state
        starts anew in every call, and counts the client's own steps.

    Returns:
      `fun(params, examples, indices, keys, own=None) -> LocalResult` with a leading axis K, one row
      a client of the
      chunk: `examples` is a pool `[M, ...]` that clients share, `indices` `[K, N]` each client's
      rows of it, -1 as padding, `keys` `[K]` typed, `own` a tree of `[K, ...]` for the three
      functions above. A client without examples returns a zero update.

    Raises:
      ValueError: an argument is out of range.

    Source: McMahan et al. (2017), "Communication-Efficient Learning of Deep Networks from
      Decentralized Data", arXiv:1602.05629, Algorithm 1, ClientUpdate; proximal: Li et al. (2018),
      arXiv:1812.06127, Algorithm 2.
    """
    _validate.positive(learning_rate=learning_rate)
    _validate.non_negative(proximal=proximal)
    _validate.positive_int(batch_size=batch_size, num_epochs=num_epochs)
    mean_loss = masked_mean_loss(loss)

    def shuffled(indices: jax.Array, key: jax.Array) -> jax.Array:
        """Places of the real rows in random order, -1 behind them, padded to whole batches: `[S,
        batch_size]`.
        """
        (capacity,) = indices.shape
        position = jnp.where(indices >= 0, _threefry.uniform(key, capacity), jnp.inf)
        order = jnp.argsort(position).astype(jnp.int32)
        order = jnp.where(indices[order] >= 0, order, -1)
        return jnp.pad(order, (0, -capacity % batch_size), constant_values=-1).reshape(
            -1, batch_size
        )

    def move(params: Params, grads: Params, memory: Any) -> tuple[Params, Any]:
        """One step, and the optimizer's next state."""
        if optimizer is None:
            return jax.tree.map(
                lambda p, g: p - jnp.asarray(learning_rate, p.dtype) * g, params, grads
            ), memory
        updates, memory = optimizer.update(grads, memory, params)
        return optax.apply_updates(params, updates), memory

    def train(
        params: Params,
        examples: Batch,
        indices: jax.Array,
        key: jax.Array,
        own: Any,
        num_steps: jax.Array,
        alone: bool,
    ) -> LocalResult:
        """One client; `num_steps` is the chunk's, `alone` says that the chunk is this client."""
        params = params if start is None else start(params, own)
        value_and_grad = _value_and_grad(mean_loss, alone)
        # A last batch of few examples is computed at half size, which saves some per cent of a
        # round. Not where
        # it is the last batch of other clients too: a client's bits must not depend on how many
        # examples they have.
        half = batch_size // 2 if alone else 0
        in_last = jnp.sum(indices >= 0) - (num_steps - 1) * batch_size
        num_whole = jnp.where(in_last > half, num_steps, num_steps - 1)

        def epoch(e: jax.Array, carry: _Carry) -> _Carry:
            batches = shuffled(indices, _threefry.fold_in(key, e))

            def step(size: int, s: jax.Array, carry: _Carry) -> _Carry:
                client_params, memory, loss_sum = carry
                mask = batches[s, :size] >= 0
                places = jnp.where(mask, batches[s, :size], 0)
                batch = take_examples(examples, indices[places])
                if view is not None:
                    batch = view(batch, places, own, e)
                batch = keyed.drawing(
                    loss, batch, key, e, places
                )  # an example is in one step of an epoch
                value, grads = value_and_grad(client_params, batch, mask)
                if correct is not None:
                    grads = correct(grads, own)
                if proximal:
                    grads = jax.tree.map(
                        lambda g, p, server: g + jnp.asarray(proximal, p.dtype) * (p - server),
                        grads,
                        client_params,
                        params,
                    )
                # where, not a zero gradient: a client that is done must not move even if its loss
                # overflows, or what it sends would depend on who else is in its chunk.
                working = mask[0]
                moved = move(client_params, grads, memory)
                client_params, memory = jax.tree.map(
                    lambda new, old: jnp.where(working, new, old), moved, (client_params, memory)
                )
                seen = value.astype(jnp.float32) * jnp.sum(mask).astype(jnp.float32)
                return client_params, memory, jnp.where(working, loss_sum + seen, loss_sum)

            begun = (*carry[:2], jnp.zeros((), jnp.float32))
            if not half:
                return _meshes.fori_loop(0, num_steps, functools.partial(step, batch_size), begun)
            then = _meshes.fori_loop(0, num_whole, functools.partial(step, batch_size), begun)
            return _meshes.fori_loop(num_whole, num_steps, functools.partial(step, half), then)

        memory = () if optimizer is None else optimizer.init(params)
        first = (params, memory, jnp.zeros((), jnp.float32))
        client_params, _, loss_sum = jax.lax.fori_loop(0, num_epochs, epoch, first)
        num_examples = jnp.maximum(1, jnp.sum(indices >= 0)).astype(jnp.float32)
        return LocalResult(
            jax.tree.map(jnp.subtract, params, client_params), loss_sum / num_examples
        )

    def fun(
        params: Params, examples: Batch, indices: jax.Array, keys: jax.Array, own: Any = None
    ) -> LocalResult:
        # The longest client of the chunk decides how many steps run: no step is spent on padding
        # alone. One number for
        # the chunk: a loop whose length differs between clients would select all parameters in each
        # step.
        longest = jnp.max(jnp.sum(indices >= 0, axis=1))
        num_steps = (longest + batch_size - 1) // batch_size
        # Mapped as a whole: taking a chunk of one apart in each step costs a fifth of the time.
        one = functools.partial(train, alone=len(indices) == 1)
        return map_clients(one, (None, None, 0, 0, 0, None))(
            params, examples, indices, keys, own, num_steps
        )

    return fljax_kernels.loop_friendly(fun)


def local_gradient(
    loss: LossFn, *, batch_size: int
) -> Callable[[Params, Batch, jax.Array, jax.Array], LocalResult]:
    """The gradient of the client's mean loss at the server's model, accumulated over batches:
    FedSGD's client.

    Same arguments and result as `local_sgd`'s function; `keys` serve a loss that draws, and nothing
    else.

    Raises:
      ValueError: `batch_size` is not an integer >= 1.

    Source: McMahan et al. (2017), arXiv:1602.05629, Section 2 (FedSGD).
    """
    _validate.positive_int(batch_size=batch_size)
    one = keyed.of_one(loss)

    def loss_sum(params: Params, batch: Batch, mask: jax.Array) -> jax.Array:
        one_example.check(one, params, batch)
        losses = jax.vmap(one, in_axes=(None, 0))(params, batch)
        return jnp.sum(jnp.where(mask, losses, jnp.zeros((), losses.dtype)))

    def one_batch(
        params: Params,
        total: Params,
        value: jax.Array,
        examples: Batch,
        rows: jax.Array,
        places: jax.Array,
        key: jax.Array,
        alone: bool,
    ) -> tuple[Params, jax.Array]:
        mask = rows >= 0
        batch = keyed.drawing(loss, take_examples(examples, rows), key, 0, places)
        batch_value, grads = _value_and_grad(loss_sum, alone)(params, batch, mask)
        working = mask[0]  # as in local_sgd: nothing of a batch of padding may count
        total = jax.tree.map(lambda t, g: jnp.where(working, t + g, t), total, grads)
        return total, jnp.where(working, value + batch_value.astype(jnp.float32), value)

    def fun(params: Params, examples: Batch, indices: jax.Array, keys: jax.Array) -> LocalResult:
        num_clients, capacity = indices.shape
        num_examples = jnp.sum(indices >= 0, axis=1)

        def in_batches(values: jax.Array) -> jax.Array:
            padded = jnp.pad(values, ((0, 0), (0, -capacity % batch_size)), constant_values=-1)
            return padded.reshape(num_clients, -1, batch_size)

        # Real rows first, so that the loop below may end early.
        order = jnp.argsort(indices < 0, axis=1, stable=True)
        batches, places = in_batches(jnp.take_along_axis(indices, order, axis=1)), in_batches(order)

        def step(s: jax.Array, carry: tuple[Params, jax.Array]) -> tuple[Params, jax.Array]:
            here = [
                jax.lax.dynamic_index_in_dim(b, s, axis=1, keepdims=False)
                for b in (batches, places)
            ]
            one = functools.partial(one_batch, alone=num_clients == 1)
            return map_clients(one, (None, 0, 0, None, 0, 0, 0))(
                params, *carry, examples, *here, keys
            )

        zero = jax.tree.map(lambda p: jnp.zeros((num_clients, *p.shape), p.dtype), params)
        num_steps = (jnp.max(num_examples) + batch_size - 1) // batch_size
        total, value = _meshes.fori_loop(
            0, num_steps, step, (zero, jnp.zeros((num_clients,), jnp.float32))
        )
        count = jnp.maximum(1, num_examples).astype(jnp.float32)

        def mean(leaf: jax.Array) -> jax.Array:
            return leaf / count.reshape((-1,) + (1,) * (leaf.ndim - 1)).astype(leaf.dtype)

        return LocalResult(jax.tree.map(mean, total), value / count)

    return fljax_kernels.loop_friendly(fun)
