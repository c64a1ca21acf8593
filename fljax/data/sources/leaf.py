"""Reads federated datasets in the LEAF JSON format from local files: FEMNIST images and Shakespeare
lines.

A LEAF file is an object with "users" (names), "num_samples" (a count for each) and "user_data"
(name -> {"x", "y"}). A user is a subject here: how subjects fall into silos is for
`fljax.data.subjects` to say.

Source: Caldas et al. (2018), "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097.
"""

import functools
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate
from fljax.data.dataset import TEST_FRACTION, Dataset, fixed_rng, stratified_split
from fljax.data.subjects import SUBJECT

TASKS = ("femnist", "shakespeare")
FEMNIST_CLASSES = 62
_SIDE = 28
# Sorted by code point; 80 symbols, as in LEAF's language task.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


class LeafData(NamedTuple):
    """What some LEAF files hold.

    examples: `{"x", "y": int32 [n], "subject": int32 [n]}`; x is float32 `[n, 28, 28, 1]` in [0, 1]
      for FEMNIST and int32 `[n, window]`, positions in `ALPHABET`, for Shakespeare.
    subjects: the users' names; a subject id is a position in it.
    num_classes: labels are in `[0, num_classes)`.
    """

    examples: dict[str, np.ndarray]
    subjects: tuple[str, ...]
    num_classes: int


def read(
    paths: Iterable[str | pathlib.Path],
    *,
    task: str,
    subjects: tuple[str, ...] | None = None,
    window: int = 80,
) -> LeafData:
    """Reads LEAF files. A user met in several files is one subject, so that no part of a person is
    forgotten.

    Args:
      paths: the JSON files, at least one.
      task: "femnist" or "shakespeare".
      subjects: names that fix the ids, e.g. those of the training files when the test files are
        read; users that are not among them are an error. None: the sorted names of the users found.
      window: characters in each x (shakespeare). >= 1.

    Returns:
      A `LeafData`, subjects in the order of their ids.

    Raises:
      ValueError: a file is not LEAF JSON of this task; one line with the path, the user and what is
        wrong.
      OSError: a file cannot be read.
    """
    _validate.one_of(TASKS, task=task)
    _validate.positive_int(window=window)
    files = [pathlib.Path(path) for path in paths]
    if not files:
        raise ValueError("Expected paths to name at least one LEAF file, got none.")
    convert: Callable[[Any, Any], tuple[np.ndarray, np.ndarray]]
    convert = _femnist if task == "femnist" else lambda x, y: _shakespeare(x, y, window)
    pieces: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for path in files:
        for user, x, y in _users(path):
            if subjects is not None and user not in subjects:
                raise ValueError(
                    f"Expected users of {path} to be among the {len(subjects)} subjects, got "
                    f"{user!r}."
                )
            try:
                if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
                    raise ValueError("Expected x and y to be lists of the same length")
                if x:
                    pieces.setdefault(user, []).append(convert(x, y))
            except ValueError as reason:
                raise ValueError(f"{reason}, in user {user!r} of {path}.") from None
    if not pieces:
        raise ValueError(
            f"Expected at least one example in {', '.join(map(str, files))}, got none."
        )
    names = tuple(sorted(pieces)) if subjects is None else tuple(subjects)
    found = [(i, piece) for i, name in enumerate(names) for piece in pieces.get(name, [])]
    examples = {
        "x": np.concatenate([x for _, (x, _) in found]),
        "y": np.concatenate([y for _, (_, y) in found]),
        SUBJECT: np.repeat([i for i, _ in found], [len(y) for _, (_, y) in found]).astype(np.int32),
    }
    return LeafData(examples, names, FEMNIST_CLASSES if task == "femnist" else len(ALPHABET))


def load(name: str, task: str | None = None) -> Dataset:
    """LEAF files in `FOLDER/train` and `FOLDER/test`, or in FOLDER, of which a fifth is held out.

    Args:
      name: of the folder.
      task: "femnist" or "shakespeare". None: text where the first example is text.

    Raises:
      ValueError: no such folder or files; or as for `read`.
    """
    folder = pathlib.Path(name).expanduser()
    apart = all((folder / part).is_dir() for part in ("train", "test"))
    parts = [folder / "train", folder / "test"] if apart else [folder]
    files = [sorted(part.glob("*.json")) for part in parts]
    if not all(files):
        raise ValueError(
            f"Expected JSON files of LEAF in {' and '.join(map(str, parts))}, got none."
        )
    window = 80
    first = next((x for path in files[0] for _, x, _ in _users(path) if x), None)
    if first is not None and isinstance(first[0], str):
        task, window = task or "shakespeare", len(first[0])
    read_all = functools.partial(read, task=task or "femnist", window=window)
    found = [read_all(paths) for paths in files]
    names = tuple(sorted({name for part in found for name in part.subjects}))
    train, *rest = (_renumbered(part, names) for part in found)
    if rest:
        return Dataset(train, rest[0], found[0].num_classes, folder.name)
    kept, held_out = stratified_split(train["y"], TEST_FRACTION, fixed_rng())
    both = [{key: leaf[rows] for key, leaf in train.items()} for rows in (kept, held_out)]
    return Dataset(both[0], both[1], found[0].num_classes, folder.name)


def _renumbered(part: LeafData, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The examples with subjects as places in `names`."""
    places = np.asarray([names.index(name) for name in part.subjects], np.int32)
    return {**part.examples, SUBJECT: places[part.examples[SUBJECT]]}


def _users(path: pathlib.Path) -> Iterable[tuple[str, Any, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as reason:
        raise ValueError(
            f"Expected {path} to be JSON, got: {str(reason).splitlines()[0]}."
        ) from None
    if not isinstance(content, dict):
        raise ValueError(f"Expected {path} to hold a JSON object, got a {type(content).__name__}.")
    for field, kind in (("users", list), ("num_samples", list), ("user_data", dict)):
        if not isinstance(content.get(field), kind):
            found = type(content[field]).__name__ if field in content else "nothing"
            raise ValueError(f"Expected {path} to have a {kind.__name__} {field!r}, got {found}.")
    users, sizes, user_data = content["users"], content["num_samples"], content["user_data"]
    if len(users) != len(sizes):
        raise ValueError(
            f"Expected num_samples for each of {len(users)} users in {path}, got {len(sizes)}."
        )
    if extra := sorted(set(user_data) - set(map(str, users))):
        raise ValueError(
            f"Expected every user in user_data of {path} to be listed in users, got {extra[0]!r}."
        )
    for user, size in zip(users, sizes, strict=True):
        data = user_data.get(user) if isinstance(user, str) else None
        if not isinstance(data, dict) or not {"x", "y"} <= set(data):
            raise ValueError(
                f"Expected user_data of {path} to hold x and y of user {user!r}, got none."
            )
        if not isinstance(data["y"], list) or len(data["y"]) != size:
            shown = len(data["y"]) if isinstance(data["y"], list) else type(data["y"]).__name__
            raise ValueError(
                f"Expected num_samples={size!r} labels of user {user!r} in {path}, got {shown}."
            )
        yield user, data["x"], data["y"]


def _femnist(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        images = np.asarray(x, np.float32)
        labels = np.asarray(y)
    except (ValueError, TypeError):
        raise ValueError(f"Expected every x to be {_SIDE * _SIDE} numbers") from None
    if images.ndim != 2 or images.shape[1] != _SIDE * _SIDE:
        raise ValueError(
            f"Expected every x to be {_SIDE * _SIDE} numbers, got an array of shape "
            f"{list(images.shape)}"
        )
    bad = ~((images >= 0) & (images <= 1))  # catches NaN too
    if bad.any():
        raise ValueError(f"Expected pixels in [0, 1], got {images[bad][0]}")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ValueError(f"Expected integer labels y, got {y[0]!r}")
    if ((labels < 0) | (labels >= FEMNIST_CLASSES)).any():
        wrong = labels[(labels < 0) | (labels >= FEMNIST_CLASSES)][0]
        raise ValueError(f"Expected labels in [0, {FEMNIST_CLASSES}), got {wrong}")
    return images.reshape(-1, _SIDE, _SIDE, 1), labels.astype(np.int32)


def _shakespeare(x: Any, y: Any, window: int) -> tuple[np.ndarray, np.ndarray]:
    def checked(text: Any, length: int, name: str) -> Any:
        if not isinstance(text, str) or len(text) != length:
            shown = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
            raise ValueError(f"Expected {name} to be text of {length} characters, got {shown}")
        return text

    pairs = zip(x, y, strict=True)
    text = "".join(
        checked(line, window, "every x") + checked(symbol, 1, "every y") for line, symbol in pairs
    )
    place = {symbol: i for i, symbol in enumerate(ALPHABET)}
    if unknown := sorted(set(text) - set(ALPHABET)):
        raise ValueError(
            f"Expected characters of the {len(ALPHABET)}-symbol alphabet, got {unknown[0]!r}"
        )
    codes = np.fromiter((place[symbol] for symbol in text), np.int32, len(text)).reshape(
        len(x), window + 1
    )
    return codes[:, :-1], codes[:, -1]
