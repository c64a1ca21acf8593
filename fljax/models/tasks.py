"""How well outputs meet targets, for each type of task: what a run measures beside its loss."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.models.functions import Apply
from fljax.models.losses import LOSSES, of_output
from fljax.types import Batch, Params

Numbers = Mapping[str, Any]


def _accuracy(outputs: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    return {"accuracy": outputs.argmax(-1) == y.astype(jnp.int32)}


def _bits(outputs: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    said, meant = outputs.reshape(y.shape) > 0, y > 0
    return {
        "accuracy": jnp.mean((said == meant).astype(jnp.float32)),
        "both": jnp.sum((said & meant).astype(jnp.float32)),
        "either": jnp.sum(said.astype(jnp.float32)) + jnp.sum(meant.astype(jnp.float32)),
    }


def _bits_score(mean: Numbers) -> dict[str, Any]:
    # F1 over all labels: 2 hits / (said + meant); 1 where nothing is said and nothing meant.
    either = mean["either"]
    f1 = np.where(either > 0, 2 * mean["both"] / np.maximum(either, 1e-30), 1.0)
    return {"accuracy": mean["accuracy"], "f1": float(f1)}


def _errors(outputs: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    error = outputs.reshape(y.shape).astype(jnp.float32) - y
    return {"absolute_error": jnp.mean(jnp.abs(error)), "square": jnp.mean(jnp.square(error))}


def _errors_score(mean: Numbers) -> dict[str, Any]:
    return {"absolute_error": mean["absolute_error"], "rmse": float(np.sqrt(mean["square"]))}


def _tokens(outputs: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    counts = (y >= 0).astype(jnp.float32)
    hits = (outputs.argmax(-1) == y.astype(jnp.int32)).astype(jnp.float32)
    number = counts.sum()
    return {
        "hits": (hits * counts).sum(),
        "nats": of_output("next_token")(outputs, y) * number,
        "number": number,
    }


def _tokens_score(mean: Numbers) -> dict[str, Any]:
    with np.errstate(over="ignore"):  # a loss that has grown beyond all bounds is shown as such
        perplexity = float(np.exp(np.float64(mean["nats"]) / mean["number"]))
    return {"accuracy": mean["hits"] / mean["number"], "perplexity": perplexity}


class Task(NamedTuple):
    """What is measured of a type of task.

    scores: `(outputs, y)` of one example -> numbers `[]`. score: their means over examples -> what
    is reported, by `names`. num_outputs: of a model, from `(y, num_classes)`.
    """

    scores: Callable[[jax.Array, jax.Array], dict[str, jax.Array]]
    score: Callable[[Numbers], dict[str, Any]]
    names: tuple[str, ...]
    num_outputs: Callable[[np.ndarray, int], int]

    def of_one(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The first of `names` for one example alone: float32 `[]`."""
        found = self.scores(outputs, y)
        value = found["hits"] / found["number"] if "hits" in found else found[self.names[0]]
        return value.astype(jnp.float32)


def _width(y: np.ndarray, num_classes: int) -> int:
    return 1 if y.ndim == 1 else int(y.shape[1])


TASKS: dict[str, Task] = {
    "classes": Task(_accuracy, dict, ("accuracy",), lambda y, num_classes: num_classes),
    "binary": Task(_bits, _bits_score, ("accuracy", "f1"), _width),
    "multi_label": Task(_bits, _bits_score, ("accuracy", "f1"), _width),
    "regression": Task(_errors, _errors_score, ("absolute_error", "rmse"), _width),
    "tokens": Task(
        _tokens, _tokens_score, ("accuracy", "perplexity"), lambda y, num_classes: num_classes
    ),
}


@partial(jax.jit, static_argnums=(0, 4, 5, 6))
def _sums(
    apply: Apply, params: Params, examples: Batch, start: jax.Array, size: int, task: str, kind: str
) -> dict[str, jax.Array]:
    """Sums of the scores, and of the loss, of the rows `start, ..`, as far as they exist."""
    last = examples["y"].shape[0] - 1
    rows = start + jnp.arange(size)

    def of_one(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        outputs = apply(params, x)
        found = TASKS[task].scores(outputs, y)
        return {**found, "loss": of_output(kind)(outputs, y)} if kind else found

    taken = jnp.minimum(rows, last)
    each = jax.vmap(of_one)(examples["x"][taken], examples["y"][taken])
    return jax.tree.map(
        lambda values: jnp.where(rows <= last, values.astype(jnp.float32), 0).sum(), each
    )


def measure(
    apply: Apply,
    params: Params,
    examples: Batch,
    *,
    task: str,
    kind: str | None = None,
    microbatch_size: int = 1024,
) -> dict[str, float]:
    """What a model reaches on a set, by name: `names` of its task, and the mean "loss".

    Args:
      apply: of one example.
      params: of the model.
      examples: `{"x": [M, ...], "y": [M, ...]}`, M >= 1, as `data.targets` says for the task.
      task: one of TASKS.
      kind: of the loss, one of LOSSES. None: no loss.
      microbatch_size: how many examples are computed at a time. >= 1.

    Returns:
      Numbers, which are not private where the examples are not public. "accuracy" of tokens is the
      share of symbols that are told right, "perplexity" exp of the mean nats of a symbol; of labels
      they are shares, and "f1" counts all labels together.

    Raises:
      ValueError: no examples, or an argument out of range.
    """
    _validate.one_of(tuple(TASKS), task=task)
    if kind is not None:
        _validate.one_of(tuple(LOSSES), kind=kind)
    _validate.positive_int(microbatch_size=microbatch_size)
    total = int(examples["y"].shape[0])
    if not total:
        raise ValueError("Expected examples to hold at least one row, got 0 rows.")
    size = min(microbatch_size, total)
    parts = [
        _sums(apply, params, examples, jnp.int32(start), size, task, kind or "")
        for start in range(0, total, size)
    ]
    mean = {name: sum(float(part[name]) for part in parts) / total for name in parts[0]}
    found = {name: float(value) for name, value in TASKS[task].score(mean).items()}
    found = {name: found[name] for name in TASKS[task].names}
    return {"loss": mean["loss"], **found} if kind else found
