"""How a run ended."""

import pathlib
from typing import Any, NamedTuple

from fljax.simulation import budget, planted, task
from fljax.simulation.config import Config
from fljax.simulation.evaluation import OwnModels
from fljax.types import PyTree


class Outcome(NamedTuple):
    """How a run ended, with all that its report is made of.

    records: all of metrics.jsonl. params: the final private model; baseline_params: the non-private
    one, or None. inputs: what the scheme's `make` was given beside the loss. own_models: of clients
    that keep a part of theirs; None where all use the released one. canaries: what the model tells
    about those that were planted, if any.
    """

    run_dir: pathlib.Path
    config: Config
    plan: budget.Plan
    task: task.Task
    rounds: int
    records: list[dict[str, Any]]
    params: PyTree
    baseline_params: PyTree | None
    inputs: dict[str, Any]
    own_models: OwnModels | None = None
    canaries: planted.Scores | None = None
