"""What the target "y" of an example is, for each type of task, and what a run starts from there."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate
from fljax.data.dataset import Dataset

PADDING = -1  # in y of tokens: a place that does not count


class Target(NamedTuple):
    """y: what y `[M, ...]` holds, in words. losses: that fit, the usual one first. start: of the
    sections of a config. bad: `(y, num_classes)` -> which entries break the rule.
    """

    y: str
    losses: tuple[str, ...]
    bad: Callable[[np.ndarray, int], np.ndarray]
    start: Mapping[str, Mapping[str, Any]] = {}


def _start(loss: str, **model: str) -> dict[str, dict[str, Any]]:
    return {"data": {"partition": "iid"}, "model": {"loss": loss, **model}}


def _not_a_bit(y: np.ndarray, num_classes: int) -> np.ndarray:
    return (y != 0) & (y != 1)


def _not_below(y: np.ndarray, num_classes: int) -> np.ndarray:
    return (y < 0) | (y >= num_classes)


def _not_a_token(y: np.ndarray, num_classes: int) -> np.ndarray:
    bad = (y != PADDING) & _not_below(y, num_classes)
    return bad | (y == PADDING).all(axis=1, keepdims=True)


TARGETS: dict[str, Target] = {
    "classes": Target("integers [M]", ("cross_entropy", "squared"), _not_below),
    "binary": Target(
        "0 or 1 [M]",
        ("binary_cross_entropy",),
        _not_a_bit,
        {"model": {"loss": "binary_cross_entropy"}},
    ),
    "multi_label": Target(
        "0 or 1 [M, labels]",
        ("binary_cross_entropy",),
        _not_a_bit,
        _start("binary_cross_entropy"),
    ),
    "regression": Target(
        "finite numbers [M] or [M, targets]",
        ("squared",),
        lambda y, num_classes: ~np.isfinite(y),
        _start("squared"),
    ),
    "tokens": Target(
        f"symbols [M, T], {PADDING} beyond the last",
        ("next_token",),
        _not_a_token,
        _start("next_token", model="token_lstm"),
    ),
}
NAMES = tuple(TARGETS)
_AXES = {"classes": (1,), "binary": (1,), "multi_label": (2,), "regression": (1, 2), "tokens": (2,)}


def check(y: np.ndarray, task: str, num_classes: int, name: str) -> None:
    """Refuses targets that are not those of the task.

    Args:
      y: `[M, ...]`. task: one of NAMES. num_classes: labels and symbols are below it.
      name: what the data are called in errors.

    Raises:
      ValueError: names the data, the first bad row, its value and the rule.
    """
    _validate.one_of(NAMES, task=task)
    rule = TARGETS[task].y
    kinds = "f" if task == "regression" else "iu"
    if y.ndim not in _AXES[task] or y.dtype.kind not in kinds:
        raise ValueError(
            f"Expected y of {name} to hold {rule} for task={task!r}, got {y.dtype} of shape "
            f"{list(y.shape)}."
        )
    bad = TARGETS[task].bad(y, num_classes)
    if bad.any():
        row = int(np.flatnonzero(bad.reshape(len(y), -1).any(axis=1))[0])
        value = y[row][bad[row]].flat[0] if y.ndim > 1 else y[row]
        below = f" below {num_classes}" if task in ("classes", "tokens") else ""
        raise ValueError(
            f"Expected y of {name} to hold {rule}{below} for task={task!r}, got {value} in row "
            f"{row}."
        )


def check_symbols(x: np.ndarray, num_classes: int, name: str) -> None:
    """Refuses x `[M, T]` of "tokens" with a symbol that no table of `num_classes` rows has.

    Raises:
      ValueError: names the data, the first bad row, its symbol and the rule.
    """
    bad = _not_below(x, num_classes)
    if bad.any():
        row = int(np.flatnonzero(bad.reshape(len(x), -1).any(axis=1))[0])
        raise ValueError(
            f"Expected x of {name} to hold symbols in [0, {num_classes}) for task='tokens', got "
            f"{x[row][bad[row]].flat[0]} in row {row}."
        )


def settled(found: Dataset, task: str) -> Dataset:
    """The data set with the targets of this task.

    Two classes become the bits of "binary". Sequences x `[M, T]` become "tokens": y is x moved by
    one, and ends in the class of a window where there is one. Arrays of one's own, whose task
    nobody has said, become what their y can be.

    Raises:
      ValueError: they cannot be that; names the row and the rule.
    """
    _validate.one_of(NAMES, task=task)
    if task == found.task:
        return found
    if found.task != "classes" or (found.num_classes and task not in ("binary", "tokens")):
        raise ValueError(
            f"Expected task={found.task!r} for {found.name}, whose y is "
            f"{TARGETS[found.task].y}, got task={task!r}."
        )
    if task == "binary" and found.num_classes not in (0, 2):
        raise ValueError(
            f"Expected 2 classes for task='binary', got {found.num_classes} of {found.name}."
        )
    parts = [_with_target(part, task, found.name) for part in (found.train, found.test)]
    num_classes = {"binary": 2, "multi_label": 2}.get(task, 0)
    if task == "tokens":
        most = max(int(part[name].max()) for part in parts for name in ("x", "y"))
        num_classes = found.num_classes or most + 1
        for part in parts:
            part["x"] = np.maximum(part["x"], 0)  # padding reads as some symbol and does not count
    for part in parts:
        check(part["y"], task, num_classes, found.name)
        if task == "tokens":
            check_symbols(part["x"], num_classes, found.name)
    return found._replace(train=parts[0], test=parts[1], num_classes=num_classes, task=task)


def _with_target(part: Mapping[str, np.ndarray], task: str, name: str) -> dict[str, np.ndarray]:
    given = dict(part)
    if task == "tokens":
        x = given.get("x", np.zeros(0))
        if x.ndim != 2 or x.dtype.kind not in "iu" or x.shape[1] < 2:
            raise ValueError(
                f"Expected x of {name} to hold symbols [M, T] for task='tokens', got {x.dtype} of "
                f"shape {list(x.shape)}."
            )
        y = given.get("y")
        if y is None:
            x, y = x[:, :-1], x[:, 1:]
        elif y.ndim == 1:
            y = np.concatenate([x[:, 1:], y[:, None]], axis=1)
        if y.shape != x.shape:
            raise ValueError(
                f"Expected y of {name} to have a symbol for each of x, {list(x.shape)}, got shape "
                f"{list(y.shape)}."
            )
        return {**given, "x": x.astype(np.int32), "y": y.astype(np.int32)}
    if "y" not in given:
        raise ValueError(f"Expected a field y in {name} for task={task!r}, got {sorted(given)}.")
    y = given["y"]
    if task == "regression" and y.dtype.kind in "iubf":
        return {**given, "y": y.astype(np.float32)}
    bits = y.dtype.kind in "iubf" and not _not_a_bit(y, 2).any()
    return {**given, "y": y.astype(np.int32) if bits else y}


def counts(found: Dataset) -> dict[str, np.ndarray]:
    """How many training and held-out examples, or tokens, each class, label or symbol has: name ->
    int `[2]`; empty where y is numbers.
    """
    if not found.num_classes:
        return {}
    parts = (found.train, found.test)
    if found.task == "multi_label":
        both = np.stack([part["y"].sum(axis=0) for part in parts], 1)
    else:
        counted = [part["y"][part["y"] != PADDING] for part in parts]
        both = np.stack([np.bincount(y, minlength=found.num_classes) for y in counted], 1)
    names = found.class_names or tuple(map(str, range(len(both))))
    held = dict(zip(names, both, strict=True))
    if found.task == "tokens":  # a list of symbols may be long, and most of it unused
        return {name: counted for name, counted in held.items() if counted.any()}
    return held
