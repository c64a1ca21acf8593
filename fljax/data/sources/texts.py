"""Text by client: a folder with a file of text, or a folder of such files, for each client."""

import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from fljax.data import targets, text
from fljax.data.dataset import TEST_FRACTION, Dataset
from fljax.data.sources.tables import NO_COLUMNS, Columns
from fljax.data.subjects import SUBJECT

_ENDINGS = {".md", ".text", ".txt"}


def load(name: str, columns: Columns = NO_COLUMNS) -> Dataset:
    """`FOLDER/CLIENT.txt` or `FOLDER/CLIENT/FILE.txt`; or the same in FOLDER/train and FOLDER/test.

    Every file is cut into pieces of `columns.length` symbols, of which each is one example and goes
    on where the last one ended. Without folders train and test the last fifth of each file's pieces
    is held out, rounded down: what follows is told from what stands before.

    Args:
      name: of the folder. Hidden files, and those that do not end in .txt, .text or .md, are passed
        over. The same client in train and test is one.
      columns: task, which is tokens; length of a piece; vocabulary, see `fljax.data.text`.

    Returns:
      A `Dataset` of tokens that carries "subject": clients in the order of their names.

    Raises:
      ValueError: no such folder, no text, another task, or a file that is not UTF-8; names it.
    """
    folder = pathlib.Path(name).expanduser()
    if columns.task != "tokens":
        raise ValueError(f"Expected task='tokens' for text in {folder}, got task={columns.task!r}.")
    if not folder.is_dir():
        raise ValueError(f"Expected {folder} to be a folder, got none there.")
    apart = all((folder / part).is_dir() for part in ("train", "test"))
    parts = [folder / "train", folder / "test"] if apart else [folder]
    files = [list(_files(part)) for part in parts]
    if not all(files):
        raise ValueError(
            f"Expected {' and '.join(map(str, parts))} to hold files of text (.txt), one or a "
            "folder of them for each client, got none."
        )
    clients = sorted({client for part in files for client, _ in part})
    symbols = text.symbols(columns.vocabulary)
    train: list[tuple[int, np.ndarray, np.ndarray]] = []
    test: list[tuple[int, np.ndarray, np.ndarray]] = []
    for place, part in enumerate(files):
        for client, path in part:
            x, y = text.pieces(_read(path), symbols, columns.length, columns.vocabulary)
            cut = len(x) - int(TEST_FRACTION * len(x))
            if apart:
                cut = 0 if place else len(x)
            number = clients.index(client)
            train.append((number, x[:cut], y[:cut]))
            test.append((number, x[cut:], y[cut:]))
    both = [_joined(found) for found in (train, test)]
    for examples, what in zip(both, ("to train on", "to hold out"), strict=True):
        if not len(examples["x"]):
            raise ValueError(
                f"Expected {folder} to hold text {what}, got none: a file of fewer than 5 pieces "
                f"of {columns.length} symbols has none to hold out."
            )
    found = Dataset(both[0], both[1], len(symbols), folder.name, class_names=symbols)
    return targets.settled(found._replace(task="tokens"), "tokens")


def _files(part: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """(client, file), in order."""
    for entry in sorted(part.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from ((entry.name, path) for path in sorted(entry.rglob("*")) if _is_text(path))
        elif _is_text(entry):
            yield entry.stem, entry


def _is_text(path: pathlib.Path) -> bool:
    return path.is_file() and path.suffix.lower() in _ENDINGS and not path.name.startswith(".")


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as reason:
        raise ValueError(f"Expected {path} to be text in UTF-8, got {reason}.") from reason


def _joined(found: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    numbers, x, y = zip(*found, strict=True)
    return {
        "x": np.concatenate(x),
        "y": np.concatenate(y),
        SUBJECT: np.repeat(numbers, [len(rows) for rows in x]).astype(np.int32),
    }
