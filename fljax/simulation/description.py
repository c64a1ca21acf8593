"""What a run's model takes and gives, in a file of the run's folder: so that it can be used without
the data it was trained on.
"""

import json
import pathlib
from typing import Any

from fljax.data import text
from fljax.simulation import own
from fljax.simulation.config import Config
from fljax.simulation.record import folder
from fljax.simulation.task import Task, outputs_of

_FORMAT = 1


def of(config: Config, task: Task, has_own_models: bool) -> dict[str, Any]:
    """Plain data for JSON: the model's and the loss's names, the shape of one example, the outputs,
    and whether clients use models of their own, of which the released one is a part.

    Names of classes and features are public, as their number is: they are the configuration's.
    """
    dataset, vocabulary = task.dataset, config.data.vocabulary
    x = dataset.train.get("x")
    return {
        "format": _FORMAT,
        "model": config.model.model,
        "options": config.model.options,
        "lora": config.model.lora,
        "base": None if task.base is None else own.digest_of(task.base),
        "loss": config.model.loss,
        "dataset": config.data.dataset,
        "example": None if x is None else {"shape": list(x.shape[1:]), "dtype": str(x.dtype)},
        "task": dataset.task,
        "num_classes": dataset.num_classes,
        "num_outputs": outputs_of(dataset),
        "class_names": list(dataset.class_names),
        "feature_names": list(dataset.feature_names),
        "feature_columns": config.data.feature_columns,
        "missing_value": config.data.missing_value,
        "label_column": config.data.label_column,
        "sequence_length": config.data.sequence_length,
        "vocabulary": vocabulary,
        "vocabulary_digest": None if vocabulary is None else text.digest(vocabulary),
        "clients_have_own_models": has_own_models,
    }


def write(run_dir: pathlib.Path, found: dict[str, Any]) -> None:
    """Writes the description. Raises DiskFullError."""
    folder.write_atomically(run_dir / folder.MODEL, json.dumps(found, indent=1) + "\n")


def read(run_dir: pathlib.Path) -> dict[str, Any]:
    """The description in a run folder.

    Raises:
      ValueError: there is none, or the file is not one of this format.
    """
    path = run_dir / folder.MODEL
    if not path.is_file():
        raise ValueError(
            f"Expected {run_dir} to be the folder of a run of `fljax simulate`, with a "
            f"{folder.MODEL}, got none there."
        )
    try:
        found: dict[str, Any] = json.loads(folder.read_text(path))
        if found["format"] == _FORMAT:
            return found
    except (json.JSONDecodeError, KeyError, TypeError):
        pass
    raise ValueError(f"Expected {path} to describe a model in format {_FORMAT}, it does not.")
