"""Who else may watch a run: a profiler, TensorBoard, Weights & Biases. None of them changes what a
run computes.
"""

import contextlib
import pathlib
import secrets
from collections.abc import Sequence
from typing import Any

import jax

from fljax.simulation.budget import Plan

TRACE, BOARD = "trace", "tensorboard"
_MISSING = "Expected {} to be installed for {}, found none: pip install 'fljax[trackers]'."
_PROFILED = 3  # rounds; a trace grows by megabytes a round


class Several:
    """Hands everything on to each of `observers`, in their order."""

    def __init__(self, observers: Sequence[Any]) -> None:
        self._observers = observers

    def start(self, plan: Plan, rounds_done: int) -> None:
        """To all; if one fails, those before it are stopped."""
        with contextlib.ExitStack() as started:
            for observer in self._observers:
                observer.start(plan, rounds_done)
                started.callback(observer.stop)
            started.pop_all()

    def round(self, record: dict[str, Any]) -> None:
        """To all."""
        for observer in self._observers:
            observer.round(record)

    def stop(self) -> None:
        """To all, the last one first, whether others fail or not."""
        with contextlib.ExitStack() as stack:
            for observer in self._observers:
                stack.callback(observer.stop)


class Profiler:
    """A trace of three rounds in `RUN/trace`, for xprof, TensorBoard or Perfetto; the first round,
    which compiles, is not among them.
    """

    def __init__(self, run_dir: pathlib.Path) -> None:
        self._folder, self._left, self._on = run_dir / TRACE, _PROFILED + 1, False

    def start(self, plan: Plan, rounds_done: int) -> None:
        """The trace starts after the first round of this process."""

    def round(self, record: dict[str, Any]) -> None:
        """Starts or ends the trace where it is time."""
        if self._left == _PROFILED + 1:
            jax.profiler.start_trace(str(self._folder))
            self._on = True
        self._left -= 1
        if self._left == 0:
            self.stop()

    def stop(self) -> None:
        """Ends a trace that is still being taken: a run may be shorter."""
        if self._on:
            jax.profiler.stop_trace()
            self._on = False


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """What of a line of metrics.jsonl is a finite number: infinities are words there."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and name != "round"
    }


class TensorBoard:
    """Writes each number of metrics.jsonl as a scalar into `RUN/tensorboard`; nothing before the
    run starts.

    Raises:
      ImportError: tensorboardX is not installed (extra `trackers`).
    """

    def __init__(self, run_dir: pathlib.Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as reason:
            raise ImportError(_MISSING.format("tensorboardX", "--tensorboard")) from reason
        self._open = lambda purge: SummaryWriter(str(run_dir / BOARD), purge_step=purge)

    def start(self, plan: Plan, rounds_done: int) -> None:
        """What an earlier process of this run wrote of later rounds counts no more."""
        self._writer = self._open(rounds_done + 1 if rounds_done else None)

    def round(self, record: dict[str, Any]) -> None:
        """One scalar a number."""
        for name, value in _numbers(record).items():
            self._writer.add_scalar(name, value, record["round"])

    def stop(self) -> None:
        """Flushes."""
        self._writer.close()


class WandB:
    """Logs each number of metrics.jsonl to a Weights & Biases project; a resumed run goes on under
    the same id, which stands in `RUN/wandb-id`.

    Diagnostics are exact, hence not private: a project that others see releases them.

    Raises:
      ImportError: wandb is not installed (extra `trackers`).
    """

    def __init__(self, run_dir: pathlib.Path, project: str) -> None:
        try:
            import wandb
        except ImportError as reason:
            raise ImportError(_MISSING.format("wandb", "--wandb")) from reason
        self._init, self._project, self._folder = wandb.init, project, run_dir

    def start(self, plan: Plan, rounds_done: int) -> None:
        """Opens the run there, with the numbers that a claim rests on."""
        path = self._folder / "wandb-id"
        if not path.is_file():
            path.write_text(secrets.token_hex(8))
        self._run = self._init(
            project=self._project,
            id=path.read_text(),
            name=self._folder.resolve().name,
            dir=str(self._folder),
            resume="allow",
        )
        self._run.config.update(
            {"delta": plan.delta, "num_units": plan.num_units}, allow_val_change=True
        )

    def round(self, record: dict[str, Any]) -> None:
        """One step."""
        self._run.log(_numbers(record), step=record["round"])

    def stop(self) -> None:
        """Closes the run there."""
        self._run.finish()
