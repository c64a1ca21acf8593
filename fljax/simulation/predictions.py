"""What a trained model says of examples, in words where its classes have some."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data
from fljax.data import builtin, text
from fljax.data.sources import tables
from fljax.models import tasks
from fljax.simulation import trained
from fljax.simulation.trained import Trained

_TEXTS = 64  # at a time: their outputs are a number for each symbol at each place


class Predictions(NamedTuple):
    """Of M examples.

    outputs: `[M, ...]`, what the model gives. classes: int `[M]`, the greatest output; None where
    there are no classes. sure: `[M]`, the model's probability of that class; None where its outputs
    are no logits. names: of classes; () where they are only numbers. columns: what outputs are
    called; (): they go by number.
    """

    outputs: np.ndarray
    classes: np.ndarray | None = None
    sure: np.ndarray | None = None
    names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def lines(self) -> Iterator[dict[str, Any]]:
        """One an example: "class" and "probability", or the outputs by number."""
        for row in range(len(self.outputs)):
            if self.classes is None:
                values = self.outputs[row].reshape(-1).tolist()
                columns = self.columns or [f"output_{place}" for place in range(len(values))]
                yield dict(zip(columns, values, strict=True))
                continue
            found = int(self.classes[row])
            line: dict[str, Any] = {"class": self.names[found] if self.names else found}
            if self.sure is not None:
                line["probability"] = round(float(self.sure[row]), 6)
            yield line


def examples(name: str, about: dict[str, Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """(x `[M, ...]`, labels `[M]` as the model counts them, or None) of data by name.

    Args:
      name: "csv:FILE" with the feature columns of training, in any order, and perhaps labels;
        "npz:FILE" with x and perhaps y; or a name as for `data.load`, whose held-out examples are
        taken.
      about: of the model, as in model.json.

    Raises:
      ValueError: no such data, or a column that the model wants is missing.
    """
    label, task = about["label_column"], about.get("task", "classes")
    names = tuple(about["class_names"]) if task in ("classes", "binary") else None
    if task == "tokens":
        return _symbols(name, about)
    if name.startswith(builtin.CSV):
        features = about["feature_names"]
        if not features:
            raise ValueError(
                f"Expected data of {about['example']['shape']}, as the model was trained on, got a "
                "table: its columns have no names that the model knows."
            )
        path = name.removeprefix(builtin.CSV)
        missing = about.get("missing_value")
        return tables.read_features(path, features, label or "label", names, missing)
    if name.startswith(builtin.NPZ):
        array = about.get("feature_columns") if about["dataset"].startswith(builtin.NPZ) else None
        return tables.read_x(name.removeprefix(builtin.NPZ), label or "y", names, array)
    test = data.load(name, tables.Columns(label, task=task)).test
    if "x" not in test:
        raise ValueError(f"Expected data with the field x, got {sorted(test)} of {name!r}.")
    return test["x"], test.get("y")


def _symbols(name: str, about: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Sequences and what comes next in them: of a table all texts, else held-out examples."""
    names, length = tuple(about["class_names"]), about["example"]["shape"][0]
    column, vocabulary = about["label_column"] or "text", about["vocabulary"]
    if vocabulary is not None and text.digest(vocabulary) != about["vocabulary_digest"]:
        raise ValueError(
            f"Expected vocabulary {vocabulary} as the model was trained with it, got another."
        )
    if name.startswith(builtin.CSV):
        texts = tables.read_texts(name.removeprefix(builtin.CSV), column)
        if not names:
            raise ValueError(
                "Expected data of numbers of symbols, as the model was trained on, got a table of "
                "text."
            )
        where = [f"row {row}" for row in range(len(texts))]
        return text.encode(texts, names, length, where, vocabulary)
    columns = tables.Columns(
        about["label_column"],
        task="tokens",
        length=about["sequence_length"],
        vocabulary=vocabulary,
    )
    test = data.load(name, columns).test
    return test["x"], test["y"]


def of(
    found: Trained, x: np.ndarray, model: str | None = None, y: np.ndarray | None = None
) -> Predictions:
    """What the model says of `x` `[M, ...]`; of tokens, how well it tells `y` `[M, T]`. Other
    arguments and errors as of `trained.outputs`.
    """
    about = found.about
    task = about.get("task", "classes")
    if task == "tokens":
        assert y is not None  # `examples` has it
        return Predictions(_told(found, x, y, model), columns=("symbols", "right", "perplexity"))
    outputs = trained.outputs(found, x, model)
    if task == "regression":
        columns = tuple((about["label_column"] or "value").split(","))
        wide = outputs.reshape(len(outputs), -1)
        fitting = columns if len(columns) == wide.shape[1] else ()
        return Predictions(wide, columns=fitting)
    if task in ("binary", "multi_label"):
        odds = 1 / (1 + np.exp(-outputs.astype(np.float64)))
        if task == "multi_label":
            return Predictions(odds, columns=tuple(about["class_names"]))
        yes = odds.reshape(-1)
        sure = np.maximum(yes, 1 - yes)
        names = tuple(about["class_names"])
        return Predictions(outputs, (yes > 0.5).astype(np.int64), sure, names)
    if not about["num_classes"] or outputs.shape[1:] != (about["num_classes"],):
        return Predictions(outputs)
    certain = None
    if about["loss"] == "cross_entropy":
        odds = np.exp(outputs - outputs.max(-1, keepdims=True), dtype=np.float64)
        certain = odds.max(-1) / odds.sum(-1)
    return Predictions(outputs, outputs.argmax(-1), certain, tuple(about["class_names"]))


def _told(found: Trained, x: np.ndarray, y: np.ndarray, model: str | None) -> np.ndarray:
    """`[M, 3]`: symbols, the share of them that is told right, and the perplexity, of each text."""
    apply, scores = trained.apply_of(found, model), tasks.TASKS["tokens"].scores
    some = jax.jit(jax.vmap(lambda params, x, y: scores(apply(params, x), y), (None, 0, 0)))
    parts = []
    for start in range(0, len(x), _TEXTS):
        rows = np.minimum(np.arange(start, start + _TEXTS), len(x) - 1)
        got = some(found.params, jnp.asarray(x[rows]), jnp.asarray(y[rows]))
        parts.append(np.stack([np.asarray(got[name]) for name in ("number", "hits", "nats")], 1))
    number, hits, nats = np.concatenate(parts)[: len(x)].T.astype(np.float64)
    return np.stack([number, hits / number, np.exp(nats / number)], 1)


def met(
    said: Predictions, labels: np.ndarray | None, about: dict[str, Any] | None = None
) -> dict[str, float]:
    """How the predictions meet the labels, by name: "accuracy", or nothing without labels; of
    numbers the "absolute_error", of tokens the "perplexity", too. about: of the model.
    """
    task = "classes" if about is None else about.get("task", "classes")
    if labels is None:
        return {}
    if task == "tokens":
        number, right, perplexity = said.outputs.T
        share = number / number.sum()
        nats = float((share * np.log(perplexity)).sum())
        return {"accuracy": float((share * right).sum()), "perplexity": float(np.exp(nats))}
    if task == "regression":
        error = said.outputs.reshape(np.shape(labels)) - labels
        return {"absolute_error": float(np.abs(error).mean())}
    if task == "multi_label":
        return {"accuracy": float(np.mean((said.outputs > 0.5) == (labels > 0)))}
    if said.classes is None:
        return {}
    return {"accuracy": float(np.mean(said.classes == labels))}
