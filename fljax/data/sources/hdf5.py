"""Federated data in HDF5, as TensorFlow Federated keeps it: a group of arrays for each client."""

import functools
import pathlib
from typing import Any

import numpy as np

from fljax.data import targets, text
from fljax.data.dataset import TEST_FRACTION, Dataset, fixed_rng, stratified_split
from fljax.data.sources import tables
from fljax.data.sources.leaf import ALPHABET
from fljax.data.subjects import SUBJECT

_FIELDS = {"pixels": "x", "image": "x", "x": "x", "label": "y", "y": "y"}
_WINDOW = 80  # characters, after which the next one is to be told


def load(name: str, columns: tables.Columns = tables.NO_COLUMNS) -> Dataset:
    """Images with labels (EMNIST, CIFAR-100), or text (Shakespeare, StackOverflow): every client is
    a subject.

    Held out is the file whose name has "test" where this one has "train"; without it a fifth of
    each class.

    Args:
      name: of a file with a group "examples" of one group for each client, which holds "pixels" or
        "image" and "label", or "snippets" of text, or "tokens", words apart by spaces.
      columns: task, and for "tokens" what a sentence becomes: see `fljax.data.text`.

    Returns:
      A `Dataset` that carries "subject". Of images x is float32, bytes divided by 255; snippets are
      cut into windows of 80 characters and the one that follows; a sentence is one example.

    Raises:
      ValueError: no such file, other fields, or a link to another file; names the client.
      ImportError: h5py is not installed (extra `hdf5`).
    """
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"Expected {path} to be a file, got none there.")
    symbols = text.symbols(columns.vocabulary) if columns.task == "tokens" else ()
    read = functools.partial(_read, symbols=symbols, columns=columns)
    train, names = read(path, ())
    beside = path.with_name(path.name.replace("train", "test"))
    if beside != path and beside.is_file():
        test, _ = read(beside, names)
    else:
        by = train["y"] if train["y"].ndim == 1 else np.zeros(len(train["y"]), np.int32)
        kept, held_out = stratified_split(by, TEST_FRACTION, fixed_rng())
        train, test = (
            {key: leaf[rows] for key, leaf in train.items()} for rows in (kept, held_out)
        )
    if train["y"].ndim == 2:
        found = Dataset(train, test, len(symbols), path.name, class_names=symbols)
        return targets.settled(found, "tokens")
    letters = train["x"].dtype.kind == "i"
    count = len(ALPHABET) if letters else int(max(train["y"].max(), test["y"].max())) + 1
    return Dataset(train, test, count, path.name)


def _read(
    path: pathlib.Path, known: tuple[str, ...], symbols: tuple[str, ...], columns: tables.Columns
) -> tuple[dict[str, np.ndarray], Any]:
    """(examples, names of clients by their ids); ids of `known` clients are theirs."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            if "examples" not in file:
                raise ValueError(
                    f"Expected {path} to have a group 'examples', got {sorted(file)[:10]}."
                )
            clients = file["examples"]
            names = (*known, *sorted(set(clients) - set(known)))
            found = [
                (number, _client(path, name, clients[name], symbols, columns))
                for number, name in enumerate(names)
                if name in clients
            ]
    except OSError as reason:
        first = str(reason).splitlines()[0]
        raise ValueError(f"Expected {path} to be a whole HDF5 file, got: {first}.") from reason
    found = [(number, part) for number, part in found if len(part["y"])]
    if not found:
        raise ValueError(f"Expected {path} to hold examples, got none.")
    shapes = {part["x"].shape[1:] for _, part in found}
    if len(shapes) > 1:
        raise ValueError(f"Expected all clients of {path} to hold one shape, got {sorted(shapes)}.")
    pool = {name: np.concatenate([part[name] for _, part in found]) for name in ("x", "y")}
    sizes = [len(part["y"]) for _, part in found]
    pool[SUBJECT] = np.repeat([number for number, _ in found], sizes).astype(np.int32)
    return pool, names


def _client(
    path: pathlib.Path, name: str, group: Any, symbols: tuple[str, ...], columns: tables.Columns
) -> dict[str, np.ndarray]:
    if "tokens" in group:
        if not symbols:
            raise ValueError(
                f"Expected client {name!r} of {path} to have pixels (or image) and label, or "
                f"snippets, or else task='tokens' for its sentences, got {sorted(group)}."
            )
        sentences = [_text(line) for line in _values(path, name, group["tokens"])]
        where = [f"sentence {row} of client {name!r} in {path}" for row in range(len(sentences))]
        x, y = text.encode(sentences, symbols, columns.length, where, columns.vocabulary)
        return {"x": x, "y": y}
    if "snippets" in group:
        lines = _values(path, name, group["snippets"])
        return _windows(path, name, [_text(line) for line in lines])
    found = {
        _FIELDS[field]: _values(path, name, group[field]) for field in group if field in _FIELDS
    }
    if set(found) != {"x", "y"}:
        raise ValueError(
            f"Expected client {name!r} of {path} to have pixels (or image) and label, snippets, "
            f"or tokens, got {sorted(group)}."
        )
    x = found["x"]
    x = x.astype(np.float32) / np.float32(255 if x.dtype == np.uint8 else 1)
    x = x[..., None] if x.ndim == 3 else x  # one channel
    return {"x": x, "y": found["y"].astype(np.int32).reshape(len(x))}


def _values(path: pathlib.Path, name: str, field: Any) -> Any:
    """An array of the file itself: HDF5 can take the bytes of any other file of this machine."""
    if field.file.filename != str(path) or field.external or field.is_virtual:
        raise ValueError(
            f"Expected client {name!r} of {path} to hold its arrays in that file, got a link to "
            "another one."
        )
    return field[()]


def _text(line: Any) -> str:
    return line.decode("utf-8") if isinstance(line, bytes) else str(line)


def _windows(path: pathlib.Path, name: str, lines: list[str]) -> dict[str, np.ndarray]:
    places = {symbol: place for place, symbol in enumerate(ALPHABET)}
    x, y = [], []
    for line in lines:
        unknown = sorted(set(line) - set(ALPHABET))
        if unknown:
            raise ValueError(
                f"Expected text of the {len(ALPHABET)} symbols of LEAF's alphabet, got "
                f"{unknown[0]!r} of client {name!r} in {path}."
            )
        codes = [places[symbol] for symbol in line]
        for start in range(0, len(codes) - _WINDOW, _WINDOW):
            x.append(codes[start : start + _WINDOW])
            y.append(codes[start + _WINDOW])
    shape = (len(x), _WINDOW)
    return {"x": np.asarray(x, np.int32).reshape(shape), "y": np.asarray(y, np.int32)}
