"""Own data from one file, without Python: arrays in an .npz, or a table in a .csv.

Held-out examples are the file's own where it has some; else `TEST_FRACTION` of every class, or of
all where there are none, by the fixed rule of the bundled data. Features are taken as they are:
scale them beforehand, by numbers that do not come from private records.
"""

import csv
import pathlib
import zipfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TextIO

import numpy as np

from fljax import _near
from fljax.data import arrays, client_ids, targets
from fljax.data import text as text_lib
from fljax.data.dataset import TEST_FRACTION, Dataset, fixed_rng, stratified_split
from fljax.data.sources import features as features_lib
from fljax.data.subjects import SUBJECT

_MOST = 2**20  # classes or subjects: an id is no count, and a model has a row for each class
_HELD_OUT = "_test"  # behind the name of an array of held-out examples in an .npz


class Columns(NamedTuple):
    """Which fields are not features, None: there is no such field; and what is learned.

    label: of the target; of a table also several, apart by commas, where a task has several.
    client: whose an example is. subject: which person an example is about. task: a name of
    `data.targets`. length: symbols of a text that count. vocabulary: file of words, or
    of tokenizers; None: bytes.
    features: of a table, apart by commas, each as `sources.features.of` reads it; None: all others,
    as they are. Of an .npz: the array x. missing: number that stands for an empty cell among
    features; None: none is empty.
    """

    label: str | None = None
    client: str | None = None
    subject: str | None = None
    task: str = "classes"
    length: int = 80
    vocabulary: str | None = None
    features: str | None = None
    missing: float | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of the columns of clients and subjects."""
        return tuple(name for name in (self.client, self.subject) if name is not None)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the columns of the target."""
        usual = "text" if self.task == "tokens" else "label"
        several = self.task in ("multi_label", "regression")
        return tuple((self.label or usual).split(",")) if several else (self.label or usual,)


NO_COLUMNS = Columns()


def _path(name: str) -> pathlib.Path:
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"Expected {path} to be a file, got none there.")
    return path


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz. Raises ValueError where it is none, or wants to be executed."""
    try:
        # Opened here: NumPy leaves a file open that turns out to be no archive.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {field: file[field] for field in file.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, AttributeError) as reason:
        raise ValueError(
            f"Expected {path} to be a whole .npz file of plain arrays, got {reason}."
        ) from reason


def _as_floats(x: np.ndarray) -> np.ndarray:
    """Bytes as numbers in [0, 1], float64 as float32; anything else as it is."""
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    return x.astype(np.float32) if x.dtype == np.float64 else x


def _with_x(
    path: pathlib.Path, found: dict[str, np.ndarray], features: str | None
) -> dict[str, np.ndarray]:
    """The arrays, that of features as "x", and the held-out one as "x_test"."""
    named = features or "x"
    if named not in found:
        raise ValueError(
            f"Expected {path} to have {named!r}, or feature_columns to name another array, got "
            f"{sorted(found)}.{_near.did_you_mean(named, found)}"
        )
    renamed = {named: "x", f"{named}{_HELD_OUT}": f"x{_HELD_OUT}"}
    return {renamed.get(field, field): values for field, values in found.items()}


def load_npz(name: str, columns: Columns = NO_COLUMNS) -> Dataset:
    """Arrays x and y, other fields that examples carry, and perhaps x_test, y_test and the like.

    Args:
      name: path of a file that `numpy.savez` wrote: x `[M, ...]` of numbers, y as the task wants
        it: integers in `[0, num_classes)` or any strings for classes. Nothing in it is executed.
      columns: the names of y, of the array of clients, and of that of subjects, where they differ.

    Returns:
      A `Dataset`: x float32 (integers as they are, bytes divided by 255), y as `data.targets` says.

    Raises:
      ValueError: not such a file, or not such arrays; names the file, the array and the row.
    """
    path = _path(name)
    found = _with_x(path, _arrays(path), columns.features)
    _has(path, found, () if columns.task == "tokens" else (columns.label or "y",))
    parts: list[dict[str, np.ndarray]] = [{}, {}]
    for field, values in found.items():
        held_out = field.endswith(_HELD_OUT) and field.removesuffix(_HELD_OUT) in found
        parts[held_out][field.removesuffix(_HELD_OUT) if held_out else field] = values
    for part in parts:
        if "x" in part:
            part["x"] = _as_floats(part["x"])
    return dataset(path, parts[0], parts[1] or None, columns)


def load_csv(name: str, columns: Columns = NO_COLUMNS) -> Dataset:
    """A table with a header: columns of the target, perhaps one of clients and one of subjects; all
    others are features. Of tokens the target is a column of text, and others are passed over.

    Args:
      name: path of a file in UTF-8, its values apart by commas (or by semicolons, or tabs), the
        first row their names.
      columns: label: of classes, numbers or text, of numbers, or of 0 and 1; None: "label", of
        tokens "text". client, subject: ids, integers or text.

    Returns:
      A `Dataset`: x float32 `[M, features]`, or int32 `[M, length]` of tokens.

    Raises:
      ValueError: no such columns, or a row that is too short, too long or holds no number where one
        belongs; names the file, the line, the column and the value.
    """
    path, texts = _path(name), columns.task == "tokens"
    ids = list(dict.fromkeys((*columns.labels, *columns.ids)))
    values: dict[str, list[str]] = {}
    rows: list[list[float]] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, _dialect(file), strict=True)
            header = next(reader, [])
            _named(path, header, columns)
            features = () if texts else _features(path, header, ids, columns)
            values = {column: [] for column in ids}
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ValueError(
                        f"Expected {path} to hold {len(header)} values a line, got {len(row)} in "
                        f"line {reader.line_num}."
                    )
                cells = dict(zip(header, row, strict=True))
                for column, held in values.items():
                    if not texts and not cells[column].strip():
                        raise ValueError(
                            f"Expected a value in line {reader.line_num} of {path}, column "
                            f"{column!r}, got none: leave such lines out."
                        )
                    held.append(cells[column])
                lines.append(reader.line_num)
                if not texts:
                    place = f"line {reader.line_num} of {path}"
                    rows.append(features_lib.numbers(features, cells, columns.missing, place))
    except (UnicodeDecodeError, csv.Error) as reason:
        raise ValueError(
            f"Expected {path} to be a table in UTF-8, its values apart by commas, got {reason}."
        ) from reason
    if not lines:
        raise ValueError(f"Expected {path} to hold at least one line below its header, got none.")
    where = [f"line {line} of {path}" for line in lines]
    part = {column: _ids(values[column]) for column in columns.ids}
    if texts:
        return of_texts(path, part, values[columns.labels[0]], where, None, columns)
    part["x"] = np.asarray(rows, np.float32)
    if columns.task in ("classes", "binary"):
        (label,) = columns.labels
        found = dataset(
            path, {label: _ids(values[label]), **part}, None, columns._replace(label=label)
        )
    else:
        part["y"] = _targets(path, columns, values, lines)
        found = dataset(path, part, None, columns._replace(label="y"))
        if columns.task == "multi_label":
            found = found._replace(class_names=columns.labels)
    return found._replace(feature_names=tuple(feature.name for feature in features))


def _dialect(file: TextIO) -> type[csv.Dialect]:
    """What parts the values of a table: a comma, or the semicolon or tab that its header has."""
    header = file.readline()
    file.seek(0)

    class Apart(csv.excel):
        delimiter = max(",;\t", key=header.count)  # of equally many the comma, which is first

    return Apart


def _named(path: pathlib.Path, header: Sequence[str], columns: Columns) -> None:
    """Raises ValueError unless each column has a name of its own, and those that are named are
    there.
    """
    for column in columns.labels if columns.label is None else ():
        if column not in header:
            raise ValueError(
                f"Expected {path} to have {column!r}, or label_column to name another column, got "
                f"{sorted(header)}."
            )
    for column in (*columns.labels, *columns.ids):
        features_lib.has_column(header, column, str(path))
    if len(set(header)) != len(header):
        twice = next(column for column in header if header.count(column) > 1)
        raise ValueError(f"Expected {path} to name each column once, got {twice!r} twice.")


def _features(
    path: pathlib.Path, header: Sequence[str], ids: Sequence[str], columns: Columns
) -> tuple[features_lib.Feature, ...]:
    """Those that are named, or else all columns that are nothing else."""
    if columns.features is not None:
        found = features_lib.of(columns.features.split(","), header, str(path))
        for feature in found:
            if feature.column in ids:
                raise ValueError(
                    f"Expected features other than {sorted(ids)}, got {feature.column!r}."
                )
        return found
    names = [column for column in header if column not in ids]
    if not names:
        raise ValueError(f"Expected {path} to have a column of features, got {list(header)}.")
    if "" in names:  # the index of a data frame, which is no feature
        raise ValueError(
            f"Expected {path} to name its columns, or feature_columns to name those that are "
            f"features, got none for column {names.index('') + 1} (an index of pandas?)."
        )
    return tuple(features_lib.Feature(name, name) for name in names)


def _targets(
    path: pathlib.Path, columns: Columns, values: dict[str, list[str]], lines: list[int]
) -> np.ndarray:
    """Numbers `[M, targets]`, or `[M]` of one column, checked line by line."""
    found = np.empty((len(lines), len(columns.labels)), np.float32)
    for place, column in enumerate(columns.labels):
        for row, (line, cell) in enumerate(zip(lines, values[column], strict=True)):
            found[row, place] = features_lib.number(cell, column, f"line {line} of {path}")
            if columns.task == "multi_label" and found[row, place] not in (0, 1):
                raise ValueError(
                    f"Expected {path} to hold 0 or 1 in line {line}, column {column!r}, for "
                    f"task='multi_label', got {cell!r}."
                )
    if columns.task == "regression":
        return found[:, 0] if len(columns.labels) == 1 else found
    return found.astype(np.int32)


def of_texts(
    path: pathlib.Path,
    train: dict[str, np.ndarray],
    texts: Sequence[str],
    where: Sequence[str],
    test: tuple[dict[str, np.ndarray], Sequence[str]] | None,
    columns: Columns,
) -> Dataset:
    """Texts as a data set of tokens: beside ids, their symbols and what comes next.

    Args:
      path: of the data. train: ids `[M]` of `texts`. where: of each text, for errors.
      test: the same of held-out texts. None: a fifth of all.
      columns: what a text becomes.
    """
    names = text_lib.symbols(columns.vocabulary)
    x, y = text_lib.encode(texts, names, columns.length, where, columns.vocabulary)
    held_out = None
    if test is not None:
        ids, others = test
        rows = [f"held-out row {row} of {path}" for row in range(len(others))]
        moved, told = text_lib.encode(others, names, columns.length, rows, columns.vocabulary)
        held_out = {**ids, "x": moved, "y": told}
    return dataset(path, {**train, "x": x, "y": y}, held_out, columns._replace(label=None), names)


def read_features(
    name: str,
    features: Sequence[str],
    label: str,
    class_names: Sequence[str] | None,
    missing: float | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """These columns of a table, by name, and its labels where it has some.

    Args:
      name: path of a file as for `load_csv`; further columns are passed over.
      features: as `Dataset.feature_names` has them.
      label: the column of classes; or columns of numbers, apart by commas.
      class_names: what class i is called. None: labels are numbers.
      missing: as of `Columns`.

    Returns:
      (x float32 `[M, features]`, labels or None: int32 `[M]` of classes, else float32, `[M]` of one
      column and `[M, columns]` of several).

    Raises:
      ValueError: a column is missing, or a value is no number or no class; names file, line,
        column and value.
    """
    path = _path(name)
    rows, texts = [], []
    numbered: list[list[float]] = []
    columns = label.split(",") if class_names is None else [label]
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, dialect=_dialect(file), strict=True)
            header = list(reader.fieldnames or [])
            wanted = features_lib.of(features, header, str(path))
            for row in reader:
                cells = {column: row[column] or "" for column in header}
                where = f"line {reader.line_num} of {path}"
                rows.append(features_lib.numbers(wanted, cells, missing, where))
                if class_names is not None:
                    texts.append(cells.get(label, ""))
                elif set(columns) <= set(header):
                    told = [features_lib.number(cells[column], column, where) for column in columns]
                    numbered.append(told)
    except (UnicodeDecodeError, csv.Error) as reason:
        raise ValueError(
            f"Expected {path} to be a table in UTF-8, its values apart by commas, got {reason}."
        ) from reason
    if not rows:
        raise ValueError(f"Expected {path} to hold at least one line below its header, got none.")
    x = np.asarray(rows, np.float32)
    if not set(columns) <= set(header):
        return x, None
    if class_names is not None:
        return x, _as_classes(path, texts, class_names)
    y = np.asarray(numbered, np.float32)
    return x, y[:, 0] if len(columns) == 1 else y


def read_texts(name: str, column: str) -> list[str]:
    """A column of a table.

    Raises:
      ValueError: no such file or column, or it is no table.
    """
    path = _path(name)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, dialect=_dialect(file), strict=True)
            features_lib.has_column(list(reader.fieldnames or []), column, str(path))
            return [row[column] or "" for row in reader]
    except (UnicodeDecodeError, csv.Error) as reason:
        raise ValueError(
            f"Expected {path} to be a table in UTF-8, its values apart by commas, got {reason}."
        ) from reason


def read_x(
    name: str, label: str, class_names: Sequence[str] | None, features: str | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The array x of a file as for `load_npz`, and its labels where it has some: class_names says
    what class i is called, None that they are numbers. features: the name of x.

    Raises:
      ValueError: no such file, no x in it, or a label that is no class.
    """
    path = _path(name)
    found = _with_x(path, _arrays(path), features)
    x = _as_floats(found["x"])
    if label not in found:
        return x, None
    if class_names is None:
        return x, found[label]
    texts = [str(text) for text in found[label].tolist()]
    return x, _as_classes(path, texts, class_names)


def _as_classes(path: pathlib.Path, texts: list[str], class_names: Sequence[str]) -> np.ndarray:
    places = {name: place for place, name in enumerate(class_names)}
    for row, text in enumerate(texts):
        if text not in places:
            raise ValueError(
                f"Expected labels of {path} to be among {list(class_names)[:20]}, as in training, "
                f"got {text!r} in row {row}."
            )
    return np.asarray([places[text] for text in texts], np.int32)


def _has(path: pathlib.Path, found: Iterable[str], wanted: Iterable[str]) -> None:
    for column in wanted:
        if column not in found:
            hint = _near.did_you_mean(column, found)
            raise ValueError(f"Expected {path} to have {column!r}, got {sorted(found)}.{hint}")


def _ids(texts: list[str]) -> np.ndarray:
    """Integers where all texts are such, else the texts."""
    try:
        return np.asarray([int(text) for text in texts], np.int64)
    except (ValueError, OverflowError):
        return np.asarray(texts)


def dataset(
    path: pathlib.Path,
    train: dict[str, np.ndarray],
    test: dict[str, np.ndarray] | None,
    columns: Columns,
    symbols: tuple[str, ...] = (),
) -> Dataset:
    """The data set of columns, text of classes numbered in the order of the alphabet.

    Args:
      path: what it is called in errors.
      train, test: "x" and the columns, by name. None: a fifth of each class is held out.
      columns: label: "y" where it is None.
      symbols: what those of tokens are called; (): they are numbers.

    Raises:
      ValueError: they do not go together.
    """
    parts = [train] if test is None else [train, test]
    task, class_names = columns.task, symbols
    if task in ("classes", "binary"):
        class_names = _number_names(path, parts, columns.label or "y", "y")
        if task == "binary" and len(class_names) != 2:
            raise ValueError(
                f"Expected labels of {path} to have two values for task='binary', got "
                f"{list(class_names)[:10]}."
            )
    elif task != "tokens" or columns.label is not None:
        for part in parts:
            _has(path, part, [columns.label or "y"])
            part["y"] = part.pop(columns.label or "y")
    num_classes = len(class_names)
    if columns.subject is not None:
        _number_names(path, parts, columns.subject, SUBJECT)
    if columns.client is not None:
        _has(path, train, [columns.client])
    for part in parts:
        for name, values in part.items():
            if np.shape(values)[:1] != np.shape(part.get("y", part["x"]))[:1]:
                raise ValueError(
                    f"Expected {name!r} of {path} to have {len(part.get('y', part['x']))} rows, as "
                    f"the labels have, got shape {list(np.shape(values))}."
                )
    if task not in ("classes", "binary"):  # before they are split, so that rows are the file's
        for part, which in zip(parts, ("", "held-out examples of "), strict=False):
            targets.settled(Dataset(part, part, num_classes, f"{which}{path}"), task)
    if test is None:
        by = train["y"] if task in ("classes", "binary") else np.zeros(len(train["x"]), np.int32)
        kept, held_out = stratified_split(by, TEST_FRACTION, fixed_rng())
        if not held_out.size:
            raise ValueError(
                f"Expected {path} to hold 3 examples of some class, to hold one out, got "
                f"{by.size} of {max(1, num_classes)} classes."
            )
        train, test = (
            {name: values[rows] for name, values in train.items()} for rows in (kept, held_out)
        )
    try:
        found, _ = arrays.dataset(
            train,
            test,
            num_classes=num_classes if task in ("classes", "binary") else None,
            column=columns.client,
        )
    except ValueError as reason:
        raise ValueError(f"Expected {path} to hold examples that go together: {reason}") from reason
    found = found._replace(name=path.name, class_names=class_names)
    return targets.settled(found._replace(num_classes=num_classes), task)


def _number_names(
    path: pathlib.Path, parts: list[dict[str, np.ndarray]], column: str, name: str
) -> tuple[str, ...]:
    """Puts `column` of each part under `name`, as integers; returns what each of them is called.

    Integers stay, so that what they mean elsewhere holds; text is numbered.
    """
    for part in parts:
        _has(path, part, [column])
    held = [client_ids.plain_ids(part.pop(column), name=f"{column!r} of {path}") for part in parts]
    together = np.concatenate(held)
    names = np.unique(together)
    if together.dtype.kind in "iu":
        least, most = (int(names[0]), int(names[-1])) if names.size else (0, 0)
        if not 0 <= least <= most < _MOST:
            raise ValueError(
                f"Expected {column!r} of {path} to be integers in [0, {_MOST}) or text, got "
                f"{least if least < 0 else most}."
            )
        numbered, called = held, tuple(str(number) for number in range(most + 1))
    else:
        called = tuple(str(name) for name in names)
        numbered = [np.searchsorted(names, values) for values in held]
    for part, values in zip(parts, numbered, strict=True):
        part[name] = values.astype(np.int32)
    return called
