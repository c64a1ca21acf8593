"""Columns of a table as numbers: as they are, between public bounds, or as one of public values.

What a column becomes depends on its own row and on what is written here, never on other rows: a
mean or a list of values that is taken from private records would be a release of its own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fljax import _near

_EMPTY = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))  # in small letters


class Feature(NamedTuple):
    """One number of an example.

    name: as it is written, "age", "age=0..100" or "smoker=yes". column: of the table. bounds: what
    becomes 0 and 1; a number beyond is moved to the nearer. value: the text for which the number is
    1, and 0 for others.
    """

    name: str
    column: str
    bounds: tuple[float, float] | None = None
    value: str | None = None


def of(written: Sequence[str], header: Sequence[str], file: str) -> tuple[Feature, ...]:
    """The features that `written` names: "COLUMN", "COLUMN=LOW..HIGH" or "COLUMN=VALUE|VALUE".

    Args:
      written: of several values, one feature each.
      header: columns of the table.
      file: what it is called in errors.

    Raises:
      ValueError: no such column, bounds that are none, or a feature twice.
    """
    found: list[Feature] = []
    for part in written:
        if part in header:
            found.append(Feature(part, part))
            continue
        column, _, law = part.rpartition("=")
        has_column(header, column or part, file)
        if ".." in law:
            found.append(Feature(part, column, _bounds(part, law)))
        else:
            found += [Feature(f"{column}={text}", column, None, text) for text in law.split("|")]
    names = [feature.name for feature in found]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"Expected each feature once, got {twice!r} twice.")
    return tuple(found)


def has_column(header: Sequence[str], column: str, file: str) -> None:
    """Raises ValueError where there is no such column, with the one that was perhaps meant."""
    if column not in header:
        hint = _near.did_you_mean(column, header)
        raise ValueError(f"Expected {file} to have {column!r}, got {sorted(header)}.{hint}")


def _bounds(part: str, law: str) -> tuple[float, float]:
    try:
        low, high = map(float, law.split(".."))
    except ValueError:
        low = high = math.nan
    if not (low < high and math.isfinite(high - low)):
        raise ValueError(f"Expected COLUMN=LOW..HIGH with LOW < HIGH, got {part!r}.")
    return low, high


def numbers(
    features: Sequence[Feature], cells: Mapping[str, str], missing: float | None, where: str
) -> list[float]:
    """The features of one row.

    Args:
      cells: text by column.
      missing: what stands for an empty cell; None: there may be none.
      where: the file and the line, for errors.

    Raises:
      ValueError: a cell is no finite number, is none of the values, or is empty.
    """
    return [
        _number(feature, features, cells[feature.column], missing, where) for feature in features
    ]


def _number(
    feature: Feature, features: Sequence[Feature], text: str, missing: float | None, where: str
) -> float:
    if feature.value is not None:
        values = [other.value for other in features if other.column == feature.column]
        if text in values:
            return float(text == feature.value)
        if missing is not None and text.strip().lower() in _EMPTY:
            return 0.0
        raise ValueError(
            f"Expected one of {values} in {where}, column {feature.column!r}, got {text!r}."
        )
    if missing is not None and text.strip().lower() in _EMPTY:
        return missing
    value = number(text, feature.column, where)
    if feature.bounds is None:
        return value
    low, high = feature.bounds
    return (min(max(value, low), high) - low) / (high - low)


def number(text: str, column: str, where: str) -> float:
    """A cell that must be a number. Raises ValueError, with what may be done about it."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if abs(value) < 3.4e38:  # what float32 holds; NaN is not
        return value
    advice = ""
    if text.strip().lower() in _EMPTY:
        advice = " missing_value says what stands for an empty cell of a feature."
    elif not text.strip().lstrip("+-.").lower().startswith((*"0123456789", "inf")):
        advice = (
            " feature_columns names those columns that are features, and the values of text: "
            f"'{column}={text}|..'."
        )
    raise ValueError(
        f"Expected a finite number in {where}, column {column!r}, got {text!r}.{advice}"
    )
