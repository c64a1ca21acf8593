"""The loss of one example, and the evaluation of a whole set."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from fljax import _validate
from fljax.models.functions import Apply
from fljax.types import Batch, Example, Params
from fljax_kernels.per_example.reference import wide


def _cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    # In float32 whatever the model computes in. A mask, not a gather: its transpose would be a
    # scatter, which is slow
    # in loops. `where`, not multiply: a logit of another class may be -inf.
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.where(
        jnp.arange(logits.shape[-1]) == jnp.asarray(label, jnp.int32), log_probs, 0
    ).sum()


def _half_squared_error(outputs: jax.Array, label: jax.Array) -> jax.Array:
    targets = label
    if jnp.issubdtype(label.dtype, jnp.integer):
        targets = (
            jnp.arange(outputs.shape[-1], dtype=jnp.int32) == label.astype(jnp.int32)
        ).astype(outputs.dtype)
    return jnp.sum(jnp.square(outputs - targets.reshape(outputs.shape).astype(outputs.dtype))) / 2


def _binary_cross_entropy(outputs: jax.Array, label: jax.Array) -> jax.Array:
    # softplus(o) - o y is -log sigmoid(o) where y is 1, and -log(1 - sigmoid(o)) where it is 0.
    logits = outputs.reshape(label.shape).astype(jnp.float32)
    return jnp.mean(jax.nn.softplus(logits) - logits * label.astype(jnp.float32))


def _next_token(logits: jax.Array, label: jax.Array) -> jax.Array:
    if logits.ndim != 2 or logits.shape[:1] != label.shape:
        raise ValueError(
            f"Expected outputs [T, symbols] for y of shape {list(label.shape)}, got shape "
            f"{list(logits.shape)}."
        )
    log_probs = jax.nn.log_softmax(logits.astype(wide(logits.dtype)))
    # As in _cross_entropy; a place of padding, -1, is no symbol and adds nothing.
    symbols = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    meant = symbols[None] == label.astype(jnp.int32)[:, None]
    count = jnp.maximum((label >= 0).sum(), 1).astype(log_probs.dtype)
    return -jnp.where(meant, log_probs, 0).sum() / count


@dataclasses.dataclass(frozen=True)
class NetworkLoss:
    """The loss `of_output(apply(params, x), y)` of one example; schemes that need the network
    itself find it here.

    apply: `(params, x) -> outputs`. of_output: `(outputs, y) -> []`. kind: its name in LOSSES.

    Raises:
      ValueError: kind is "squared" and of_output is not what `squared_error` sets, for which alone
        gradients come back from a perturbed model.
    """

    apply: Apply
    of_output: Callable[[jax.Array, jax.Array], jax.Array]
    kind: str

    def __post_init__(self) -> None:
        if self.kind == "squared" and self.of_output is not _half_squared_error:
            raise ValueError(
                "Expected kind='squared' with the half squared error of models.squared_error, got "
                f"{self.of_output!r}."
            )

    def __call__(self, params: Params, example: Example) -> jax.Array:
        return self.of_output(self.apply(params, example["x"]), example["y"])


def softmax_cross_entropy(apply: Apply) -> NetworkLoss:
    """The loss `-log softmax(apply(params, x))[y]` of one example `{"x": [...], "y": []}`, a
    float32 scalar.

    `y` must be in `[0, num_classes)`: outside, the loss and its gradient are zero.
    `data.check_examples` refuses it.
    """
    return NetworkLoss(apply, _cross_entropy, "cross_entropy")


def squared_error(apply: Apply) -> NetworkLoss:
    """The loss ||apply(params, x) - y||^2 / 2 of one example, y a label, taken for its one-hot row,
    or a row itself.
    """
    return NetworkLoss(apply, _half_squared_error, "squared")


def binary_cross_entropy(apply: Apply) -> NetworkLoss:
    """The mean of -log of the probability that `sigmoid(apply(params, x))` gives to each label of
    one example `{"x": [...], "y": [] or [labels]}`, 0 or 1: a float32 scalar.
    """
    return NetworkLoss(apply, _binary_cross_entropy, "binary_cross_entropy")


def next_token(apply: Apply) -> NetworkLoss:
    """The mean cross-entropy of the symbols y `[T]` that `apply(params, x)`, `[T, symbols]`, is to
    tell, over those that are no padding (-1): nats, a scalar of float32 at least.
    """
    return NetworkLoss(apply, _next_token, "next_token")


LOSSES = {
    "cross_entropy": softmax_cross_entropy,
    "squared": squared_error,
    "binary_cross_entropy": binary_cross_entropy,
    "next_token": next_token,
}
_OF_OUTPUT = {
    "cross_entropy": _cross_entropy,
    "squared": _half_squared_error,
    "binary_cross_entropy": _binary_cross_entropy,
    "next_token": _next_token,
}


def of_output(kind: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """`(outputs, y) -> []` of the loss of this name, for one example."""
    return _OF_OUTPUT[kind]


@partial(jax.jit, static_argnums=(0, 4, 5))
def _totals(
    apply: Apply, params: Params, examples: Batch, start: jax.Array, size: int, kind: str
) -> jax.Array:
    """`[2]`: summed loss and number of hits of the rows `start, ..., start + size - 1`, as far as
    they exist.
    """
    last = examples["y"].shape[0] - 1
    rows = start + jnp.arange(size)
    batch = jax.tree.map(
        lambda leaf: leaf[jnp.minimum(rows, last)], {"x": examples["x"], "y": examples["y"]}
    )
    logits = jax.vmap(apply, (None, 0))(params, batch["x"])
    losses = jax.vmap(_OF_OUTPUT[kind])(logits, batch["y"]).astype(jnp.float32)
    hits = (logits.argmax(-1) == batch["y"].astype(jnp.int32)).astype(jnp.float32)
    return jnp.where((rows <= last)[None], jnp.stack([losses, hits]), 0).sum(axis=1)


def evaluate(
    apply: Apply,
    params: Params,
    examples: Batch,
    *,
    microbatch_size: int = 1024,
    kind: str = "cross_entropy",
) -> tuple[jax.Array, jax.Array]:
    """Mean loss and accuracy on a set. One compilation per set size; memory follows
    `microbatch_size`.

    Args:
      apply: `apply(params, x) -> logits [num_classes]` of one example.
      params: of the model.
      examples: `{"x": [M, ...], "y": integers [M]}`, M >= 1.
      microbatch_size: how many examples are computed at a time. >= 1.
      kind: of the loss: one of LOSSES whose y is a class; `models.tasks.measure` has the others.

    Returns:
      `(mean loss, accuracy)`, float32 `[]`. Not private where the examples are not public.

    Raises:
      ValueError: no examples, microbatch_size out of range, or no such loss.
    """
    _validate.positive_int(microbatch_size=microbatch_size)
    _validate.one_of(tuple(LOSSES), kind=kind)
    total = int(examples["y"].shape[0])
    if not total:
        raise ValueError("Expected examples to hold at least one row, got 0 rows.")
    size = min(microbatch_size, total)
    # A host loop rather than a scan: XLA's CPU backend is slow at convolutions inside loops.
    parts = [
        _totals(apply, params, examples, jnp.int32(start), size, kind)
        for start in range(0, total, size)
    ]
    loss, hits = jnp.stack(parts).sum(axis=0) / total
    return loss, hits
