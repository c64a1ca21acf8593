"""Runs side by side on one page, or one of them as it goes; made of what their folders hold."""

import html
import json
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from fljax.accounting import words
from fljax.simulation import config as config_lib
from fljax.simulation.record import folder
from fljax.simulation.report import figures, run_page


class Run(NamedTuple):
    """What a run's folder holds: settings by section, the claim so far, the rounds so far."""

    path: pathlib.Path
    sections: dict[str, Any]
    claim: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def evaluated(self) -> dict[str, Any]:
        """The last round whose model was evaluated; empty where there is none."""
        return next((line for line in reversed(self.records) if "test_loss" in line), {})


def read(run_dir: pathlib.Path) -> Run:
    """A run, ended or not; a line that is still being written is left out.

    Raises:
      ValueError: no run of `fljax simulate` is there.
    """
    path = run_dir / folder.CONFIG
    if not path.is_file():
        raise ValueError(f"Expected {run_dir} to be the folder of a run, got none there.")
    sections = config_lib.from_toml(folder.read_text(path), source=str(path))
    if folder.of_another_command(sections):
        raise ValueError(
            f"Expected {run_dir} to be the folder of a run of `fljax simulate`, got an attack or "
            "an audit."
        )
    claim, metrics = run_dir / folder.PRIVACY, run_dir / folder.METRICS
    told = json.loads(folder.read_text(claim)) if claim.is_file() else {}
    text = folder.read_text(metrics) if metrics.is_file() else ""
    whole = text[: text.rfind("\n") + 1]
    return Run(run_dir, sections, told, [json.loads(line) for line in whole.splitlines()])


def row(run: Run) -> dict[str, Any]:
    """A run in a table: plain data."""
    last, claim = run.evaluated, run.claim
    return {
        "run": str(run.path),
        "scheme": run.sections["scheme"]["scheme"],
        "dataset": run.sections["data"]["dataset"],
        "rounds": len(run.records),
        "accuracy": last.get("test_accuracy"),
        "loss": last.get("test_loss"),
        "baseline_accuracy": last.get("baseline_test_accuracy"),
        "epsilon": claim.get("epsilon"),
        "delta": claim.get("delta"),
        "privacy_unit": claim.get("privacy_unit"),
        "neighboring_relation": claim.get("neighboring_relation"),
    }


HEAD = ("run", "scheme", "data", "rounds", "accuracy", "loss", "non-private", "epsilon", "unit")


def cells(run: Run) -> list[str]:
    """The same in words, under `HEAD`."""
    found = row(run)
    epsilon = "" if found["epsilon"] is None else "none"
    if found["epsilon"] is not None and math.isfinite(float(found["epsilon"])):
        shown = words.shown_epsilon(float(found["epsilon"]))
        epsilon = f"{shown} at delta {words.rounded_up(found['delta'], 3)}"

    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    loss = "" if found["loss"] is None else f"{float(found['loss']):.4g}"
    unit = f"{found['privacy_unit']}, {found['neighboring_relation']}" if run.claim else ""
    return [
        run.path.name,
        found["scheme"],
        found["dataset"],
        str(found["rounds"]),
        share(found["accuracy"]),
        loss,
        share(found["baseline_accuracy"]),
        epsilon,
        unit,
    ]


def compared(runs: Sequence[Run], where: pathlib.Path) -> str:
    """The page of several runs, to be written to `where`: a table, and their curves in one chart
    each.
    """
    rows = ""
    for run in runs:
        name, *rest = (html.escape(cell) for cell in cells(run))
        report = run.path / folder.REPORT
        if report.is_file():
            link = os.path.relpath(report.absolute(), where.absolute().parent)
            name = f'<a href="{html.escape(link)}">{name}</a>'
        rows += f'<tr><th scope="row">{name}</th>'
        rows += "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
    table = f'<table class="numbers">{run_page.head(*HEAD)}{rows}</table>'
    units = {(run.claim.get("privacy_unit"), run.claim.get("neighboring_relation")) for run in runs}
    note = "Epsilons of different units or relations are not to be compared." * (len(units) > 1)
    body = run_page.section("Runs", table, note) + _curves(runs)
    title = f"{len(runs)} runs" if len(runs) > 1 else runs[0].path.name
    return run_page.page(title, "Side by side. Written by fljax.", body)


def _curves(runs: Sequence[Run]) -> str:
    """Charts of what all runs have: accuracy, loss, epsilon."""
    parts = []
    kinds = (
        ("Accuracy over rounds", "test_accuracy", "round", "held-out accuracy"),
        ("Loss over rounds", "test_loss", "round", "held-out loss"),
        ("Privacy against utility", "test_accuracy", "epsilon", "held-out accuracy"),
        ("Privacy spent over rounds", "epsilon", "round", "epsilon"),
    )
    for title, name, against, label in kinds:
        series = {}
        for number, run in enumerate(runs):
            points = [
                (float(line[against]), float(line[name]))
                for line in run.records
                if name in line and math.isfinite(float(line[against]) + float(line[name]))
            ]
            if points:
                series[f"{number + 1}: {run.path.name}" if len(runs) > 1 else run.path.name] = (
                    points
                )
        if series:
            along = "epsilon spent" if against == "epsilon" else against
            percent = name == "test_accuracy"
            parts.append(run_page.section(title, figures.lines(series, along, label, percent)))
    return f'<div class="grid">{"".join(parts)}</div>'


def as_it_goes(run: Run, refresh_s: int) -> str:
    """The page of one run that may still go on; a browser asks again after so many seconds."""
    last, settings = run.evaluated, run.sections["run"]
    cards = [run_page.card(f"{len(run.records)} of {settings['num_rounds']}", "rounds")]
    if "test_accuracy" in last:
        cards.append(run_page.card(f"{last['test_accuracy']:.1%}", "held-out accuracy", "main"))
    elif last:
        cards.append(run_page.card(f"{float(last['test_loss']):.4g}", "held-out loss", "main"))
    if run.records and math.isfinite(float(run.records[-1]["epsilon"])):
        budget = run.sections["privacy"]["target_epsilon"]
        of = "" if budget == config_lib.NONE else f" of {words.at_most(float(budget))}"
        shown = words.shown_epsilon(float(run.records[-1]["epsilon"]))
        cards.append(run_page.card(shown, f"epsilon spent{of}", "main"))
    body = f'<div class="cards">{"".join(cards)}</div>{_curves([run])}'
    ended = (run.path / folder.REPORT).is_file()
    if ended:
        body += '<p><a href="/report.html">The report of the run, which has ended.</a></p>'
    text = run_page.page(run.path.name, "As it goes. Shown by fljax.", body)
    again = "" if ended else f'<meta http-equiv="refresh" content="{refresh_s}">'
    return text.replace("<title>", f"{again}<title>", 1)
