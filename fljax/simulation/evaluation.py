"""What a model is worth: loss, accuracy and own metrics, on held-out examples and client by
client.
"""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from fljax import models
from fljax.data import ClientData, store
from fljax.models import tasks
from fljax.models.functions import Apply
from fljax.simulation import client_values
from fljax.simulation.client_values import ClientValues, OfBatch, OwnModels
from fljax.types import Batch, LossFn, Params

Metric = Callable[[Params, Apply, Batch], jax.Array]
RESERVED = ("loss", "accuracy")  # what every run has, or has where there are classes


@functools.lru_cache(maxsize=64)
def right(apply: Apply, task: str = "classes") -> OfBatch:
    """How well the model meets each example by itself, in the first number of its task: `(params,
    {"x", "y"} [n, ...]) -> [n]`; of classes, whether it gives the label.
    """
    of_one = tasks.TASKS[task].of_one
    return jax.jit(
        lambda params, batch: jax.vmap(of_one)(
            jax.vmap(apply, (None, 0))(params, batch["x"]), batch["y"]
        )
    )


@functools.lru_cache(maxsize=64)
def _losses(loss: LossFn) -> OfBatch:
    return jax.jit(jax.vmap(loss, (None, 0)))


@functools.lru_cache(maxsize=64)
def _metric(metric: Metric, apply: Apply) -> OfBatch:
    return jax.jit(lambda params, batch: metric(params, apply, batch))


def check_metrics(
    metrics: Mapping[str, Metric],
    params: Params,
    apply: Apply,
    examples: Batch,
    taken: tuple[str, ...] = RESERVED,
) -> frozenset[str]:
    """Names of the metrics that give a number for each example; the others give one for all.

    Args:
      metrics: name -> `metric(params, apply, examples)`.
      params, apply: of the model.
      examples: name -> shapes `[M, ...]`.
      taken: names that a run has already.

    Raises:
      ValueError: a name is none or taken, or a metric fails on these shapes or gives neither `[]`
        nor `[M]`.
    """
    each = set()
    (count,) = {leaf.shape[0] for leaf in jax.tree.leaves(examples)}
    for name, metric in metrics.items():
        if not (isinstance(name, str) and name.isidentifier()) or name in taken:
            raise ValueError(
                f"Expected names of metrics to be identifiers other than {taken}, got {name!r}."
            )
        try:
            out = jax.eval_shape(_metric(metric, apply), params, examples)
        except Exception as reason:  # whatever somebody else's function raises
            what = first_line(reason)
            raise ValueError(
                f"Expected metric {name!r} to take (params, apply, examples): {what}"
            ) from reason
        shape = getattr(out, "shape", None)
        if shape not in ((), (count,)):
            raise ValueError(
                f"Expected metric {name!r} to be one number, or one for each of {count} examples, "
                f"got {out}."
            )
        if shape:
            each.add(name)
    return frozenset(each)


def first_line(reason: BaseException) -> str:
    """An exception in one line."""
    return f"{type(reason).__name__}: {(str(reason).strip().splitlines() or [''])[0][:300]}"


class Measures(NamedTuple):
    """What is asked of the models of a run.

    task: whose numbers are measured, a name of `models.tasks`; None: of no task, only the loss.
    per_example: the metrics that give a number for each example.
    """

    apply: Apply
    loss: LossFn
    task: str | None
    metrics: Mapping[str, Metric] = {}
    per_example: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the numbers that the task has, beside the loss."""
        return () if self.task is None else tasks.TASKS[self.task].names


def held_out(
    measures: Measures,
    params: Params,
    test: Batch,
    own: OwnModels | None = None,
    num_clients: int = 0,
) -> dict[str, float]:
    """The "loss", the numbers of the task, such as the "accuracy", and each metric, on `test`,
    arrays `[M, ...]`.

    Where clients have models of their `own`, the means over up to 20 of them, spread over all.
    """
    if own is None:
        return _held_out(measures, params, test)
    found = [
        _held_out(measures, own(int(client)), test)
        for client in client_values.spread(num_clients, 20)
    ]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def _held_out(measures: Measures, params: Params, test: Batch) -> dict[str, float]:
    apply, loss = measures.apply, measures.loss
    found: dict[str, float] = {}
    rows = np.arange(jax.tree.leaves(test)[0].shape[0])
    named = isinstance(loss, models.NetworkLoss) and loss == models.LOSSES[loss.kind](loss.apply)
    if isinstance(loss, models.NetworkLoss) and named and measures.task == "classes":
        both = models.evaluate(apply, params, test, kind=loss.kind)
        found["loss"], found["accuracy"] = (float(value) for value in both)
    elif isinstance(loss, models.NetworkLoss) and named and measures.task is not None:
        found |= tasks.measure(apply, params, test, task=measures.task, kind=loss.kind)
    else:
        found["loss"] = float(client_values.of_rows(_losses(loss), params, test, rows).mean())
        if measures.task is not None:
            found |= tasks.measure(apply, params, test, task=measures.task)
    for name, metric in measures.metrics.items():
        fun = _metric(metric, apply)
        if name in measures.per_example:
            found[name] = float(client_values.of_rows(fun, params, test, rows).mean())
        else:
            found[name] = float(fun(params, test))
    return found


def of_clients(
    measures: Measures,
    params: Params,
    client_data: ClientData | store.Store,
    own: OwnModels | None = None,
) -> dict[str, ClientValues]:
    """Each metric on clients' own examples, by their own models if any; exact, hence not
    private.
    """
    found = {}
    for name, metric in measures.metrics.items():
        of = client_values.means if name in measures.per_example else client_values.wholes
        found[name] = of(_metric(metric, measures.apply), params, client_data, own)
    return found
