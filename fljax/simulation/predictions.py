"""What a trained model says of examples, in words where its classes have some."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fljax import data
from fljax.data import builtin
from fljax.data.sources import tables
from fljax.simulation import trained
from fljax.simulation.trained import Trained


class Predictions(NamedTuple):
    """Of M examples.

    outputs: `[M, ...]`, what the model gives. classes: int `[M]`, the greatest output; None where
    there are no classes. sure: `[M]`, the model's probability of that class; None where its outputs
    are no logits. names: of classes; () where they are only numbers.
    """

    outputs: np.ndarray
    classes: np.ndarray | None = None
    sure: np.ndarray | None = None
    names: tuple[str, ...] = ()

    def lines(self) -> Iterator[dict[str, Any]]:
        """One an example: "class" and "probability", or the outputs by number."""
        for row in range(len(self.outputs)):
            if self.classes is None:
                values = self.outputs[row].reshape(-1).tolist()
                yield {f"output_{place}": value for place, value in enumerate(values)}
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
    label = about["label_column"]
    names = tuple(about["class_names"])
    if name.startswith(builtin.CSV):
        features = about["feature_names"]
        if not features:
            raise ValueError(
                f"Expected data of {about['example']['shape']}, as the model was trained on, got a "
                "table: its columns have no names that the model knows."
            )
        path = name.removeprefix(builtin.CSV)
        return tables.read_features(path, features, label or "label", names)
    if name.startswith(builtin.NPZ):
        return tables.read_x(name.removeprefix(builtin.NPZ), label or "y", names)
    test = data.load(name).test
    if "x" not in test:
        raise ValueError(f"Expected data with the field x, got {sorted(test)} of {name!r}.")
    return test["x"], test.get("y")


def of(found: Trained, x: np.ndarray, model: str | None = None) -> Predictions:
    """What the model says of `x` `[M, ...]`. Arguments and errors as of `trained.outputs`."""
    outputs = trained.outputs(found, x, model)
    about = found.about
    if not about["num_classes"] or outputs.shape[1:] != (about["num_classes"],):
        return Predictions(outputs)
    sure = None
    if about["loss"] == "cross_entropy":
        odds = np.exp(outputs - outputs.max(-1, keepdims=True), dtype=np.float64)
        sure = odds.max(-1) / odds.sum(-1)
    return Predictions(outputs, outputs.argmax(-1), sure, tuple(about["class_names"]))


def met(said: Predictions, labels: np.ndarray | None) -> dict[str, float]:
    """How the predictions meet the labels, by name: "accuracy", or nothing without labels."""
    if labels is None or said.classes is None:
        return {}
    return {"accuracy": float(np.mean(said.classes == labels))}
