"""Remakes papers: `run` does what is not done yet in a folder, and makes one page of it.

A paper is a `fljax.papers.paper.Paper`. One from outside the package is found by the entry-point
group `fljax.papers`, by `register`, or by its dotted path.
"""

import dataclasses
import hashlib
import html
import importlib.util
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fljax import _plugins, _validate
from fljax.papers import verdicts as judged
from fljax.papers.paper import (
    Conclusion,
    Found,
    Item,
    Paper,
    Picture,
    Piece,
    Settings,
    Table,
    Verdict,
)
from fljax.simulation.record import folder as record_folder
from fljax.simulation.report import picture, run_page

SETTINGS, RESULTS, PAGE = "settings.json", "results.json", "index.html"


class Outcome(NamedTuple):
    """page: the HTML. verdicts: of all conclusions, in order. found: by item and piece."""

    page: pathlib.Path
    verdicts: list[tuple[Conclusion, Verdict]]
    found: dict[str, dict[str, dict[str, Any]]]


def _check(name: str, thing: Any) -> Paper:
    if not isinstance(thing, Paper):
        raise ValueError(
            f"Expected {name} of fljax.papers to be a fljax.papers.paper.Paper, got "
            f"{type(thing).__name__}."
        )
    return thing


_OWN = {
    "subject-dp": "fljax.papers.subject_dp.paper.PAPER",
    "lightdp": "fljax.papers.lightdp.paper.PAPER",
    "wfna": "fljax.papers.wfna.paper.PAPER",
    "channel": "fljax.papers.channel.paper.PAPER",
    "bidirectional": "fljax.papers.bidirectional.paper.PAPER",
}
NAMES = tuple(_OWN)
_registry: "_plugins.Registry[Paper]" = _plugins.Registry("papers", "paper", _OWN, _check)


def register(name: str, paper: Paper) -> None:
    """Makes a paper known by a name. Raises ValueError for a name that is taken, or no `Paper`."""
    _registry.register(name, paper, where=name)


def names() -> tuple[str, ...]:
    """Papers that can be remade: fljax's own, then those that others brought."""
    return _registry.names()


def get(name: str) -> Paper:
    """The paper of that name, or at that dotted path. Raises ValueError for an unknown one."""
    return _registry.get(name)


def seconds(paper: Paper, settings: Settings, items: Sequence[str] = ()) -> float:
    """About how long `run` takes on two cores."""
    pieces = (piece for item in _chosen(paper, items) for piece in item.pieces(settings))
    return sum(_expected(piece, settings) for piece in pieces)


def _expected(piece: Piece, settings: Settings) -> float:
    """As if all of it were rounds of training, where there are more of them."""
    return piece.seconds * max(1.0, settings.length)


def run(
    name: str,
    settings: Settings,
    folder: pathlib.Path,
    *,
    items: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Does what is not done yet in `folder`, and writes the page, its pictures and results.json.

    Args:
      name: of the paper.
      settings: those of the folder, where it has been begun.
      folder: made if need be; its pieces are kept one by one.
      items: names; empty: all. A conclusion that rests on an item without pieces in `folder` is
        open.
      say: told a line after each piece, with the time that is left.

    Raises:
      ValueError: no such paper or item; or the folder holds other settings, another thing, or a
        piece that is not as it was written.
      ImportError: an item that is not made yet needs a package that is missing; nothing is made.
    """
    paper = get(name)
    chosen = _chosen(paper, items)
    _check_packages(
        [
            item
            for item in chosen
            if not all(_kept(folder, item, piece).is_file() for piece in item.pieces(settings))
        ]
    )
    _begin(folder, {"paper": name, **dataclasses.asdict(settings)})
    left = seconds(paper, settings, items)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for item in paper.items:
        for piece in item.pieces(settings):
            path = _kept(folder, item, piece)
            if item in chosen and not path.is_file():
                began = time.monotonic()
                result = piece.compute()
                path.parent.mkdir(parents=True, exist_ok=True)
                kept = {"sha256": _digest(result), "found": result}
                record_folder.write_atomically(path, _json(kept))
                took = time.monotonic() - began
                left -= _expected(piece, settings)
                say(f"{item.name}: {piece.name}, {took:.0f} s{_left(left)}")
            elif item in chosen:
                left -= _expected(piece, settings)
            if path.is_file():
                found.setdefault(item.name, {})[piece.name] = _read_piece(path)
    verdicts = [(one, _verdict(one, paper, settings, found)) for one in paper.conclusions]
    page = _write(folder, paper, settings, found, verdicts)
    return Outcome(page, verdicts, found)


def _chosen(paper: Paper, items: Sequence[str]) -> list[Item]:
    known = [item.name for item in paper.items]
    for item in items:
        _validate.one_of(known, item=item)
    return [item for item in paper.items if not items or item.name in items]


def _kept(folder: pathlib.Path, item: Item, piece: Piece) -> pathlib.Path:
    """The file of what a piece found."""
    return folder / "pieces" / item.name / f"{piece.name}.json"


def _check_packages(items: Sequence[Item]) -> None:
    """Raises ImportError, which names the items, the packages they miss, and what has those."""
    missing = [
        (item.name, package, where)
        for item in items
        for package, where in item.packages.items()
        if importlib.util.find_spec(package) is None
    ]
    if missing:
        names, packages, places = map(dict.fromkeys, zip(*missing, strict=True))
        install = " ".join(f"'{place}'" for place in places)
        raise ImportError(
            f"{', '.join(names)} of this paper: missing {', '.join(packages)}: pip install "
            f"{install}. --item chooses others."
        )


def _begin(folder: pathlib.Path, settings: dict[str, Any]) -> None:
    """Writes the settings, or holds them against those that are there."""
    path = folder / SETTINGS
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"Expected {folder} to be empty or a reproduction, got other files.")
        folder.mkdir(parents=True, exist_ok=True)
        record_folder.write_atomically(path, _json(settings))
        return
    before = _read(path)
    for field, value in settings.items():
        # A field that is newer than the folder was what it is by default.
        known = before.get(field, getattr(Settings, field, None))
        if known != value:
            raise ValueError(
                f"Expected {field}={known!r}, as {folder} was begun, got {field}={value!r}."
            )


def _read(path: pathlib.Path) -> dict[str, Any]:
    """What `_json` wrote. Raises ValueError that names the file, where it is none of that."""
    try:
        found = json.loads(path.read_text())
    except ValueError as reason:
        raise ValueError(f"Expected {path} to be JSON: {reason}.") from reason
    if not isinstance(found, dict):
        raise ValueError(f"Expected {path} to hold an object, got {type(found).__name__}.")
    return found


def _read_piece(path: pathlib.Path) -> dict[str, Any]:
    """What a piece found. Raises ValueError that names the file, where it is not as it was
    written.
    """
    kept = _read(path)
    found = kept.get("found")
    if not isinstance(found, dict) or kept.get("sha256") != _digest(found):
        raise ValueError(
            f"Expected {path} to be as it was written, got another content: remove it, and it is "
            "made again."
        )
    return found


def _digest(found: Mapping[str, Any]) -> str:
    return hashlib.sha256(_json(found).encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _left(left: float) -> str:
    if left < 1:
        return ""
    return f"; about {left:.0f} s left" if left < 100 else f"; about {left / 60:.0f} min left"


def _whole(item: Item, settings: Settings, found: Mapping[str, Found]) -> bool:
    """Whether all pieces of an item are there."""
    pieces = item.pieces(settings)
    return bool(pieces) and all(piece.name in found.get(item.name, {}) for piece in pieces)


def _verdict(
    conclusion: Conclusion, paper: Paper, settings: Settings, found: Mapping[str, Found]
) -> Verdict:
    items = {item.name: item for item in paper.items}
    missing = [name for name in conclusion.items if not _whole(items[name], settings, found)]
    if missing:
        return Verdict("open", f"not made: {', '.join(missing)}")
    return judged.judge(paper, conclusion, found)


def _write(
    folder: pathlib.Path,
    paper: Paper,
    settings: Settings,
    found: Mapping[str, Found],
    verdicts: Sequence[tuple[Conclusion, Verdict]],
) -> pathlib.Path:
    rows = [(one.where, one.statement, *verdict) for one, verdict in verdicts]
    parts = [
        run_page.section(
            "What the paper concludes, and how it stands",
            _rows(("where", "conclusion", "verdict", "because"), rows),
        )
    ]
    results = []
    for item in paper.items:
        shown: Sequence[Table | Picture] = ()
        if _whole(item, settings, found):
            shown = item.show(settings, found[item.name])
        why = item.why or ("" if shown else "not made in this reproduction")
        parts.append(_item(folder, item, shown, why))
        results.append({"item": item.name, "title": item.title, "why_not": why})
    what = {
        "paper": paper.title,
        "source": paper.source,
        "settings": dataclasses.asdict(settings),
        "verdicts": [
            {"where": where, "conclusion": statement, "standing": standing, "because": because}
            for where, statement, standing, because in rows
        ],
        "items": results,
        "found": found,
    }
    record_folder.write_atomically(folder / RESULTS, _json(what))
    seeds = f"{settings.seeds} seed{'s' * (settings.seeds != 1)} or a multiple"
    on = f"Data of {settings.data}." if settings.data else paper.stand_ins.get(settings.scale, "")
    if settings.length != 1:
        seeds += f", trainings of {settings.length:g} times the rounds"
    sub = " ".join(
        f"{paper.source}. Scale {settings.scale}, {seeds}. {on} Written by fljax.".split()
    )
    page = folder / PAGE
    record_folder.write_atomically(page, run_page.page(paper.title, sub, "".join(parts)))
    return page


def _item(folder: pathlib.Path, item: Item, shown: Sequence[Table | Picture], why: str) -> str:
    """A section of the page; its pictures are written beside it, as SVG and PNG."""
    body = ""
    for number, one in enumerate(shown, 1):
        body += f"<h3>{html.escape(one.title)}</h3>" if one.title else ""
        if isinstance(one, Table):
            body += _rows(one.head, one.rows)
        else:
            body += picture.with_numbers(one.figure)
            name = f"{item.name}-{number}" if len(shown) > 1 else item.name
            one.figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            one.figure.savefig(folder / f"{name}.png", dpi=144)
        body += f'<p class="note">{html.escape(one.note)}</p>' if one.note else ""
    return run_page.section(item.title, body, "" if shown else why[0].upper() + why[1:] + ".")


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<table class="numbers words">{run_page.head(*head)}{body}</table>'
