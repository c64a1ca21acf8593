"""What a person sees while a run goes on: a live bar on a terminal, plain lines anywhere else."""

import math
import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from fljax.accounting.words import at_most, rounded_up
from fljax.simulation.budget import Plan, delta_warning, shown_epsilon

_LOST = "too few clients could be used; the model stayed as it was"


def _number(value: Any, digits: int) -> str:
    return value if isinstance(value, str) else f"{value:.{digits}f}"


def time_left(seconds: float) -> str:
    """A time to wait, in words."""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


def describe(record: dict[str, Any], between: str = "  (non-private {})", budget: str = "") -> str:
    """The numbers of one line of metrics.jsonl that a person looks at; `budget` follows epsilon.

    Loss and accuracy are held out: the clients' own loss, in their last local epoch, says how well
    they fit themselves.
    """
    parts = []
    if "test_loss" in record:
        parts.append(f"loss {_number(record['test_loss'], 3)}")
        plain = record.get("baseline_test_loss")
        if plain is not None and "test_accuracy" not in record:
            parts[-1] += between.format(_number(plain, 3))
    if "test_accuracy" in record:
        accuracy = f"accuracy {record['test_accuracy']:.1%}"
        if "baseline_test_accuracy" in record:
            accuracy += between.format(f"{record['baseline_test_accuracy']:.1%}")
        parts.append(accuracy)
    if not isinstance(record["epsilon"], str):  # else it is infinite, which nobody claims
        parts.append(f"epsilon {shown_epsilon(record['epsilon'])}{budget}")
    return "  ".join(parts)


class _Rate(ProgressColumn):
    """Rounds per second, as rich estimates them."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s", style="cyan")


class Terminal:
    """A bar in 80 columns: rounds, rounds/s, loss, accuracy (private/non-private), epsilon, time
    left.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("round", table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            _Rate(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
        )
        self._evaluated: dict[str, Any] = {}
        self._lost = 0
        self._budget = ""

    def start(self, plan: Plan, rounds_done: int) -> None:
        """Shows the bar, under a warning where the delta is large."""
        target = plan.target_epsilon
        self._budget = "" if target is None else f"/{at_most(target)}"
        if (warning := delta_warning(plan)) is not None:
            self._progress.console.print(f"warning: {warning}", markup=False, highlight=False)
        self._task = self._progress.add_task(
            "", total=plan.num_rounds, completed=rounds_done, numbers="compiling"
        )
        self._progress.start()

    def round(self, record: dict[str, Any]) -> None:
        """Moves the bar. Between evaluations it keeps showing the last one's numbers."""
        self._evaluated |= {name: record[name] for name in record if "test_" in name}
        numbers = describe(self._evaluated | record, "/{}", self._budget)
        self._lost += record.get("lost", False)
        if self._lost:
            numbers += f"  lost {self._lost}"
        self._progress.update(self._task, completed=record["round"], numbers=numbers)

    def stop(self) -> None:
        """Leaves the bar as it stands."""
        self._progress.stop()


class Lines:
    """One plain line per evaluation, flushed, for pipes and log files."""

    def start(self, plan: Plan, rounds_done: int) -> None:
        """Says what is about to run."""
        self._total, self._last, self._since = plan.num_rounds, rounds_done, time.monotonic()
        self._first = rounds_done + 1
        self._lost = 0
        budget = (
            "no budget"
            if plan.target_epsilon is None
            else f"budget epsilon {at_most(plan.target_epsilon)}"
        )
        self._budget = "" if plan.target_epsilon is None else f" of {at_most(plan.target_epsilon)}"
        claimed = f"{budget}, delta {rounded_up(plan.delta, 3)}"
        if not math.isfinite(plan.epsilons[-1]):
            claimed = "nats are claimed, no epsilon" if plan.in_nats else "no epsilon is claimed"
        print(f"rounds {rounds_done} to {plan.num_rounds}, {claimed}", flush=True)
        if (warning := delta_warning(plan)) is not None:
            print(f"warning: {warning}", flush=True)

    def round(self, record: dict[str, Any]) -> None:
        """Prints a line where the record holds an evaluation, and one for the first round that is
        lost.
        """
        if record.get("lost", False):
            self._lost += 1
            if self._lost == 1:
                print(f"round {record['round']}/{self._total}  LOST: {_LOST}", flush=True)
        if "test_loss" not in record:
            return
        now = time.monotonic()
        took = max(now - self._since, 1e-9)
        rate = (record["round"] - self._last) / took
        self._last, self._since = record["round"], now
        numbers = describe(record, budget=self._budget)
        numbers += f"  {self._lost} rounds lost" if self._lost else ""
        togo = self._total - record["round"]
        pace = f"{rate:.1f} rounds/s"
        if togo and rate > 0:
            pace += f"  {time_left(togo / rate)}"
        if record["round"] == self._first and togo:  # it was compiled: others do not take as long
            pace = f"{took:.0f} s with compiling"
        print(f"round {record['round']}/{self._total}  {numbers}  {pace}", flush=True)

    def stop(self) -> None:
        """Nothing is buffered."""


def observer(console: Console) -> Terminal | Lines:
    """The bar if `console` is a terminal, else lines."""
    return Terminal(console) if console.is_terminal else Lines()
