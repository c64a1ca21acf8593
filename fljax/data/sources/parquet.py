"""Tables of Apache Arrow: a folder as Hugging Face's `datasets` saves it, or Parquet."""

import io
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fljax.data import text
from fljax.data.dataset import Dataset
from fljax.data.sources import images, tables
from fljax.data.sources.tables import Columns

_HELD_OUT = ("test", "validation", "valid")


def load(name: str, columns: Columns = tables.NO_COLUMNS) -> Dataset:
    """What `Dataset.save_to_disk` wrote, or Parquet files; nothing in them is executed.

    Files whose name, or whose folder's, begins with "test" or "validation" are held out, the former
    where there are both; all others are trained on. The column of labels is `columns.label`, or
    "label", or "labels"; the others are one column of images or of equal lists of numbers, or
    numbers, one a feature. Of tokens it is a column of text, or of lists of numbers of symbols, and
    others are passed over.

    Raises:
      ValueError: no such files, or columns that are neither; names the file, the column and, where
        a value is missing, the row. ImportError: pyarrow is not installed (extra `parquet`).
    """
    folder = pathlib.Path(name).expanduser()
    if not folder.is_dir():
        raise ValueError(f"Expected {folder} to be a folder, got none there.")
    files = sorted(
        path
        for ending in ("*.parquet", "*.arrow")
        for path in folder.rglob(ending)
        if not path.name.startswith("cache-")
    )
    if not files:
        raise ValueError(f"Expected {folder} to hold .parquet or .arrow files, got none.")
    parts = {kind: [path for path in files if _kind(folder, path) == kind] for kind in _KINDS}
    held_out = next((parts[kind] for kind in _HELD_OUT if parts[kind]), [])
    if not parts["train"]:
        raise ValueError(f"Expected {folder} to hold files to train on, got held-out ones alone.")
    found = [_table(paths) for paths in (parts["train"], held_out) if paths]
    if columns.task == "tokens":
        return _tokens(folder, found, columns)
    label = columns.label or next(
        (name for name in ("label", "labels") if name in found[0].column_names), "label"
    )
    named = columns._replace(label=label)
    examples = [_examples(folder, table, named) for table in found]
    features, *_ = [part.pop("feature_names") for part in examples]
    test = examples[1] if len(examples) > 1 else None
    dataset = tables.dataset(folder, examples[0], test, named)._replace(feature_names=features)
    if columns.task == "multi_label" and len(columns.labels) > 1:
        return dataset._replace(class_names=columns.labels)
    names = _class_names(found[0], label)
    if columns.task != "classes" or len(names) < dataset.num_classes:
        return dataset
    return dataset._replace(num_classes=len(names), class_names=names)


def _tokens(folder: pathlib.Path, found: list[Any], columns: Columns) -> Dataset:
    (label,) = columns.labels
    parts: list[tuple[dict[str, Any], list[Any]]] = []
    for table in found:
        _check_columns(folder, table, (label, *columns.ids))
        ids = {name: _ids(table[name]) for name in columns.ids}
        parts.append((ids, table[label].to_pylist()))
    ids, held = parts[0]
    where = [f"row {row} of column {label!r} of {folder}" for row in range(len(held))]
    if held and isinstance(held[0], str):
        test = parts[1] if len(parts) > 1 else None
        return tables.of_texts(folder, ids, held, where, test, columns)
    padded = [
        {**names, "x": text.padded(lists, columns.length, where or [str(folder)] * len(lists))}
        for (names, lists), where in zip(parts, (where, None), strict=False)
    ]
    test_part = padded[1] if len(padded) > 1 else None
    return tables.dataset(folder, padded[0], test_part, columns._replace(label=None))


_KINDS = ("train", *_HELD_OUT)


def _kind(folder: pathlib.Path, path: pathlib.Path) -> str:
    """Which part a file belongs to, by its name or its folder's."""
    for part in (path.name, *(parent.name for parent in path.relative_to(folder).parents)):
        for kind in _HELD_OUT:
            if part.lower().startswith(kind):
                return kind
    return "train"


def _table(paths: list[pathlib.Path]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = []
    for path in paths:
        try:
            if path.suffix == ".parquet":
                found.append(pq.read_table(path))
                continue
            with pa.memory_map(str(path)) as file:
                try:
                    found.append(pa.ipc.open_stream(file).read_all())
                except pa.ArrowInvalid:
                    found.append(pa.ipc.open_file(file).read_all())
        except (pa.ArrowException, OSError) as reason:
            first = str(reason).splitlines()[0]
            raise ValueError(f"Expected {path} to be a whole file, got: {first}") from reason
        if found[-1].column_names != found[0].column_names:
            raise ValueError(
                f"Expected {path} to have the columns {found[0].column_names}, as {paths[0]} has, "
                f"got {found[-1].column_names}."
            )
    return pa.concat_tables(found, promote_options="permissive")


def _examples(folder: pathlib.Path, table: Any, columns: Columns) -> dict[str, Any]:
    """Fields of a table: ids as they are, the rest as x."""
    ids = list(dict.fromkeys((*columns.labels, *columns.ids)))
    _check_columns(folder, table, ids)
    found: dict[str, Any] = {name: _ids(table[name]) for name in columns.ids}
    if columns.task == "multi_label" or len(columns.labels) > 1:
        found[columns.label or ""] = _stacked(folder, table, columns.labels)
    else:
        found[columns.label or ""] = _ids(table[columns.labels[0]])
    rest = [name for name in table.column_names if name not in ids]
    numbers = [name for name in rest if _is_number(table[name].type)]
    if rest == numbers and rest:
        arrays = [table[name].to_numpy(zero_copy_only=False) for name in rest]
        found["x"] = np.stack(arrays, 1).astype(np.float32)
        return {**found, "feature_names": tuple(rest)}
    if len(rest) != 1:
        others = [name for name in rest if name not in numbers]
        raise ValueError(
            f"Expected {folder} to have numbers in all columns but labels and ids, or one column "
            f"of images or lists, got {others} beside {numbers}."
        )
    return {**found, "x": _whole(folder, rest[0], table[rest[0]]), "feature_names": ()}


def _check_columns(folder: pathlib.Path, table: Any, wanted: Sequence[str]) -> None:
    """Raises ValueError where a column is missing, or a value of one."""
    for name in wanted:
        if name not in table.column_names:
            raise ValueError(
                f"Expected {folder} to have the column {name!r}, got {table.column_names}."
            )
    for name in table.column_names:
        missing = table[name].is_null().to_numpy(zero_copy_only=False)
        if missing.any():
            raise ValueError(
                f"Expected {folder} to hold a value in each row, got none in column {name!r}, row "
                f"{int(missing.argmax())}."
            )


def _stacked(folder: pathlib.Path, table: Any, names: Sequence[str]) -> np.ndarray:
    """Numbers `[M, targets]` of a column each, or of one column of lists."""
    if len(names) == 1:
        try:
            return np.asarray(table[names[0]].to_pylist())
        except ValueError as reason:  # ragged
            raise ValueError(
                f"Expected column {names[0]!r} of {folder} to hold lists of one length: {reason}."
            ) from reason
    return np.stack([np.asarray(table[name].to_pylist()) for name in names], 1)


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _ids(column: Any) -> np.ndarray:
    values = np.asarray(column.to_pylist())
    return values.astype(np.int64) if values.dtype.kind in "b" else values


def _whole(folder: pathlib.Path, name: str, column: Any) -> np.ndarray:
    """X of a column of images, or of lists that are alike."""
    import pyarrow.types as types

    kind = column.type
    if types.is_struct(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        rows = column.to_pylist()
        bodies = [row.get("bytes") if isinstance(row, dict) else row for row in rows]
        if any(body is None for body in bodies):
            row = bodies.index(None)
            raise ValueError(
                f"Expected column {name!r} of {folder} to hold images themselves, got a path in "
                f"row {row}: save them with their bytes."
            )
        names = (f"row {row} of column {name!r} of {folder}" for row in range(len(bodies)))
        return images.read((io.BytesIO(body) for body in bodies if body is not None), names)
    try:
        values = np.asarray(column.to_pylist())
    except ValueError:  # ragged
        values = np.zeros(0, object)
    if values.dtype.kind not in "iufb" or values.ndim < 2:
        raise ValueError(
            f"Expected column {name!r} of {folder} to hold images, or lists of numbers of one "
            f"length, got {kind}."
        )
    return values if values.dtype.kind == "i" else values.astype(np.float32)


def _class_names(table: Any, label: str) -> tuple[str, ...]:
    """What `datasets` calls the numbers of a column; () where it does not say."""
    told = (table.schema.metadata or {}).get(b"huggingface")
    if told is None:
        return ()
    feature = json.loads(told).get("info", {}).get("features", {}).get(label, {})
    return tuple(feature.get("names") or ()) if isinstance(feature, dict) else ()
