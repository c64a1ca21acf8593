"""What a reader of a run must not miss, in sentences: for terminal and report."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fljax.data import targets
from fljax.simulation import budget
from fljax.simulation.outcome import Outcome

_LEAST_GAIN = 0.2  # of the way from chance to 1; what stays below has learned next to nothing


def chance(labels: np.ndarray, task: str = "classes") -> float:
    """Accuracy of always answering the most frequent of the held-out `labels`, for each label by
    itself where there are several.
    """
    if task == "multi_label":
        often = labels.mean(axis=0)
        return float(np.maximum(often, 1 - often).mean())
    counted = labels[labels != targets.PADDING]
    return float(np.unique(counted, return_counts=True)[1].max() / counted.size)


def near_chance(accuracy: float, level: float) -> bool:
    """Whether a model has gone less than a fifth of the way from `level` to 1."""
    return not accuracy >= level + _LEAST_GAIN * (1 - level)


def _near_the_mean(loss: float, y: np.ndarray) -> list[str]:
    """A sentence where a loss is hardly below that of always answering the mean of `y`."""
    level = float(np.square(y - y.mean(axis=0)).reshape(len(y), -1).sum(axis=1).mean() / 2)
    if loss < (1 - _LEAST_GAIN) * level:
        return []
    return [
        f"Held-out loss {loss:.4g} is hardly below {level:.4g}, which the mean of the targets "
        "alone gives. The model has learned next to nothing."
    ]


def num_lost(records: Sequence[dict[str, Any]]) -> int:
    """Rounds of metrics.jsonl that were lost."""
    return sum(record.get("lost", False) for record in records)


def remarks(outcome: Outcome) -> list[str]:
    """What a model of another run owes to that one, lost rounds, accuracy near chance, and notes on
    how epsilon was found; empty where there is nothing to say.
    """
    found, last = [], outcome.records[-1]
    if isinstance(outcome.plan.origin, dict):  # else the model was drawn, or is public
        found.append(budget.of_origin(outcome.plan, outcome.rounds))
    if outcome.plan.search is not None:
        found.append(
            f"This is the best try of a search, by its held-out {outcome.plan.search.score}, which "
            f"is a little too good therefore. {budget.of_search(outcome.plan)}"
        )
    if outcome.canaries is not None:
        found.append(
            f"{outcome.canaries.included.size} canaries were planted among the training "
            "data, to audit this run. They hold the model back: it is not the one to release."
        )
    lost = num_lost(outcome.records)
    if lost:
        found.append(
            f"{lost} of {outcome.rounds} rounds were lost: too few clients could be used, and the "
            "model stayed as it was. Epsilon counts these rounds like the others."
        )
    test = outcome.task.dataset
    if test.task == "regression" and outcome.config.model.loss == "squared":
        found += _near_the_mean(last["test_loss"], np.asarray(test.test["y"]))
    # The symbol that comes next is seldom told, also by a model that has learned much.
    if "test_accuracy" in last and test.task != "tokens":
        level = chance(np.asarray(test.test["y"]), test.task)
        if near_chance(last["test_accuracy"], level):
            plain = last.get("baseline_test_accuracy")
            why = ""
            if plain is not None and near_chance(plain, level):
                why = (
                    " Nor has the non-private model: the task needs more rounds, or another model."
                )
            elif plain is not None:
                why = f" The non-private model reaches {plain:.1%}."
            found.append(
                f"Held-out accuracy {last['test_accuracy']:.1%} is near chance: the most frequent "
                f"label alone gives {level:.1%}. The model has learned next to nothing.{why}"
            )
    return [*found, *outcome.plan.notes]
