"""What a caller brings in place of names: a module, a loss, metrics, an algorithm; whether they
fit.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from fljax import data, models
from fljax.data import check
from fljax.local import keyed
from fljax.models.functions import Apply, Functional
from fljax.simulation import evaluation
from fljax.simulation.evaluation import Metric
from fljax.types import LossFn, Params

MakeModel = Callable[[jax.Array, Mapping[str, np.ndarray], int], Functional]


class Own(NamedTuple):
    """What a caller brings in place of what a config names.

    dataset: examples on the host, checked. table: int32 `[num_clients, N]`, their rows by client;
    None: they are dealt as the config says, or go by its client_column. model: `(key, examples,
    num_classes)` -> the module's functional view. loss: `(params, example) -> []`. metrics: name ->
    `(params, apply, examples)`. given_params: whether the initial model is the caller's, too. base:
    frozen weights that a run has begun with, where it goes on.
    """

    dataset: data.Dataset | None = None
    table: np.ndarray | None = None
    model: MakeModel | None = None
    loss: LossFn | None = None
    metrics: Mapping[str, Metric] = {}
    given_params: bool | None = None
    base: Params | None = None

    def any(self) -> bool:
        """Whether anything at all is the caller's own."""
        return any(part is not None and part != {} for part in self._replace(base=None))


def model(given: Any) -> tuple[str, MakeModel]:
    """A name for the caller's model, and what makes its functional view.

    Raises:
      ValueError: it is no module, class of modules, or (params, apply).
    """
    if isinstance(given, tuple) and len(given) == 2 and callable(given[1]):
        params, apply = given
        return _name(apply), lambda key, examples, num_classes: Functional(
            jax.tree.map(jnp.asarray, params), apply
        )
    if isinstance(given, nnx.Module):
        return type(given).__name__, lambda key, examples, num_classes: models.functional(given)
    if isinstance(given, linen.Module):
        return type(given).__name__, lambda key, examples, num_classes: _linen(given, key, examples)
    if isinstance(given, type) and issubclass(given, nnx.Module):
        return given.__name__, lambda key, examples, num_classes: _nnx(
            given, key, examples, num_classes
        )
    if isinstance(given, type) and issubclass(given, linen.Module):
        return given.__name__, lambda key, examples, num_classes: _linen(given(), key, examples)
    raise ValueError(
        "Expected model to be a name, a flax nnx or linen module or class, or (params, apply), "
        f"got {type(given).__name__}."
    )


def _name(fun: Any) -> str:
    """What a function is called, for the config; a partial or an object has the name of its
    type.
    """
    return str(getattr(fun, "__name__", type(fun).__name__))


def _inputs(examples: Mapping[str, np.ndarray]) -> np.ndarray:
    if "x" not in examples:
        raise ValueError(
            "Expected examples with a field 'x' for a module to start from, got "
            f"{sorted(examples)}."
        )
    return examples["x"]


def _linen(module: linen.Module, key: jax.Array, examples: Mapping[str, np.ndarray]) -> Functional:
    variables = module.init(key, jnp.asarray(_inputs(examples)[:1]))
    return models.functional(module, variables=variables)


def _nnx(
    kind: type[nnx.Module], key: jax.Array, examples: Mapping[str, np.ndarray], num_classes: int
) -> Functional:
    if not num_classes:
        raise ValueError(
            f"Expected num_classes with a class for a model, {kind.__name__}, got none: pass a "
            "module."
        )
    make: Any = kind
    module = make(_inputs(examples).shape[1:], num_classes, rngs=nnx.Rngs(key))
    return models.functional(module, batched=False)


def loss(given: Any) -> tuple[str, LossFn]:
    """A name for the caller's loss, and the loss."""
    if not callable(given):
        raise ValueError(
            f"Expected loss to be one of {list(models.LOSSES)}, or loss(params, example), got "
            f"{given!r}."
        )
    return given.kind if isinstance(given, models.NetworkLoss) else _name(given), given


NOTHING = Own()


def classes(found: data.Dataset, named_loss: str | None) -> int:
    """How many classes the examples have: as was said, or as labels "y" say to a loss of labels.

    Raises:
      ValueError: the named loss wants labels and there are none.
    """
    if found.num_classes or named_loss is None:
        return found.num_classes
    if not {"x", "y"} <= set(found.train):
        raise ValueError(
            f"Expected data with the fields x and y for loss={named_loss!r}, got "
            f"{sorted(found.train)}."
        )
    y, held_out = found.train["y"], found.test["y"]
    if y.ndim == 1 and y.dtype.kind in "iu":
        return int(max(y.max(), held_out.max(), 0)) + 1
    if named_loss == "cross_entropy":
        raise ValueError(
            f"Expected integer labels y [M] for loss='cross_entropy', got y {y.dtype} of shape "
            f"{list(y.shape)}."
        )
    return 0


def check_fits(
    measures: evaluation.Measures, params: Params, found: data.Dataset
) -> evaluation.Measures:
    """The measures, once the model and the loss have been found to take one example of the data.

    Raises:
      ValueError: they do not, labels are beyond the model's outputs, or a metric is not what it
        must be.
    """
    example = _shapes(found.train, 1)
    shown = ", ".join(f"{name}: {leaf.dtype}{list(leaf.shape)}" for name, leaf in example.items())
    try:
        if isinstance(measures.loss, models.NetworkLoss):
            outputs = jax.eval_shape(measures.apply, params, example["x"])
        value = jax.eval_shape(measures.loss, params, example)
    except Exception as reason:  # whatever somebody else's function raises
        what = evaluation.first_line(reason)
        raise ValueError(
            f"Expected the loss and the model to take one example {{{shown}}}, got {what}"
        ) from reason
    scalar = isinstance(value, jax.ShapeDtypeStruct) and value.shape == ()
    if not scalar or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"Expected loss(params, example) to be one float, got {value}.")
    if measures.task == "classes" and isinstance(measures.loss, models.NetworkLoss):
        for name, arrays in (("data", found.train), ("test_data", found.test)):
            check.check_examples({"y": arrays["y"]}, num_classes=outputs.shape[-1], name=name)
    if measures.task is not None:
        _check_scores(measures, params, example)
    each = evaluation.check_metrics(
        measures.metrics,
        params,
        measures.apply,
        _shapes(found.test, 0),
        tuple(dict.fromkeys((*evaluation.RESERVED, *measures.names))),
    )
    return measures._replace(per_example=each)


def _check_scores(measures: evaluation.Measures, params: Params, example: Any) -> None:
    """Raises ValueError where outputs are not what the task is measured by."""
    assert measures.task is not None
    outputs = jax.eval_shape(measures.apply, params, example["x"])
    try:
        jax.eval_shape(models.tasks.TASKS[measures.task].scores, outputs, example["y"])
    except Exception as reason:  # shapes that do not go together, by whatever operation
        raise ValueError(
            f"Expected a model whose outputs fit y {list(example['y'].shape)} of "
            f"task={measures.task!r}, got {outputs}."
        ) from reason


def program(fun: Callable[..., Any], *shapes: Any) -> str:
    """SHA-256 of what `fun` computes at these shapes, constants included; nothing is compiled."""
    return hashlib.sha256(jax.jit(fun).lower(*shapes).as_text().encode()).hexdigest()


def digest_of(params: Params) -> str:
    """SHA-256 of a model's arrays and their names."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sha.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        sha.update(np.asarray(leaf).tobytes())
    return sha.hexdigest()


def programs(
    brought: Own, model: Functional, found: data.Dataset, *, outside: bool = False
) -> dict[str, str]:
    """Digests of the caller's loss, model and metrics, by what an error calls them. outside: the
    model is of another package, by its name.
    """
    example = _shapes(found.train, 1)
    digests = {}
    if brought.loss is not None:
        digests["loss"] = program(keyed.settled(brought.loss), model.params, example)
    if brought.model is not None or outside:
        sha = hashlib.sha256(digest_of(model.params).encode())
        if "x" in example:
            sha.update(program(model.apply, model.params, example["x"]).encode())
        digests["model"] = sha.hexdigest()
    for name, metric in brought.metrics.items():
        fun = functools.partial(_measured, metric, model.apply)
        digests[f"metric {name}"] = program(fun, model.params, _shapes(found.test, 0))
    return digests


def _measured(metric: Metric, apply: Apply, params: Params, examples: Any) -> jax.Array:
    return metric(params, apply, examples)


def _shapes(examples: Mapping[str, np.ndarray], axis: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Of the arrays from this axis on."""
    return {
        name: jax.ShapeDtypeStruct(field.shape[axis:], field.dtype)
        for name, field in examples.items()
    }
