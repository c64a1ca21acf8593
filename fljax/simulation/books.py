"""What a run writes, and reads back when it goes on. Of several processes the first alone writes."""

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Protocol

from fljax import schemes
from fljax.simulation import checkpoint, folder, nats, printed, processes, spending
from fljax.simulation import config as config_lib
from fljax.simulation.config import Config
from fljax.simulation.task import Task
from fljax.types import PyTree


class Books(Protocol):
    """A run's books."""

    def states(self, initial: PyTree) -> PyTree:
        """The states of the newest checkpoint, or `initial` where there is none; once, before anything else."""

    def append(self, record: dict[str, Any]) -> None:
        """A line of metrics.jsonl."""

    def save(self, states: PyTree, done: int) -> None:
        """privacy.json and a checkpoint of `done` rounds, which may still be on its way to the disk."""


class Written:
    """The books of the process that owns `run_dir`. inputs: what the scheme's `make` was given beside the loss."""

    def __init__(
        self, run_dir: pathlib.Path, config: Config, plan: spending.Plan, task: Task, inputs: dict[str, Any]
    ) -> None:
        self._run_dir, self._config, self._plan, self._task, self._inputs = run_dir, config, plan, task, inputs
        self._checkpoints = checkpoint.Checkpoints(run_dir, config_lib.digest(config))

    def states(self, initial: PyTree) -> PyTree:
        """As `Books.states`.

        Raises:
          CheckpointError: the newest checkpoint is damaged, foreign, or has another ledger than its config implies.
        """
        saved = self._checkpoints.restore(initial)
        if saved is not None and saved.ledger != spending.claim(self._plan, int(saved.state[0].round)):
            raise checkpoint.CheckpointError(
                f"Expected the newest checkpoint in {self._checkpoints.path} to have the ledger that its config "
                "implies, got another one: it was written by another version of fljax."
            )
        self._metrics = folder.Metrics(self._run_dir, 0 if saved is None else saved.metrics_length)
        return initial if saved is None else saved.state

    def append(self, record: dict[str, Any]) -> None:
        """As `Books.append`. Raises DiskFullError."""
        self._metrics.append(json.dumps(record, allow_nan=False))

    def save(self, states: PyTree, done: int) -> None:
        """As `Books.save`. Raises DiskFullError; earlier checkpoints are whole."""
        claim = spending.claim(self._plan, done)
        # Before the checkpoint: what privacy.json claims may be more than the newest checkpoint spent, never less.
        scheme, scheme_config = schemes.get(self._config.scheme), self._plan.scheme_config
        paper = printed.claim(scheme, scheme_config, done, self._plan.delta)
        shown = claim | ({"as_printed": paper} if paper else {})
        told = nats.spent(scheme, scheme_config, self._task, self._inputs, done)
        shown |= {"information": nats.claim(told)} if told is not None else {}
        text = json.dumps(shown, sort_keys=True, allow_nan=False, indent=2)
        folder.write_atomically(self._run_dir / folder.PRIVACY, text + "\n")
        self._checkpoints.save(done, checkpoint.Saved(states, claim, self._metrics.length))

    def close(self) -> None:
        """Ends what is open. Raises DiskFullError if a checkpoint that was on its way found no room."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._checkpoints.close)
            if hasattr(self, "_metrics"):
                stack.callback(self._metrics.close)


class Elsewhere:
    """The books of a process that writes nothing."""

    def states(self, initial: PyTree) -> PyTree:
        """`initial`: the first process has read others, maybe."""
        return initial

    def append(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def save(self, states: PyTree, done: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@contextlib.contextmanager
def opened(
    run_dir: pathlib.Path, config: Config, plan: spending.Plan, task: Task, inputs: dict[str, Any]
) -> Iterator[Books]:
    """The books of this process, closed at the end."""
    first = processes.first()
    with contextlib.closing(Written(run_dir, config, plan, task, inputs) if first else Elsewhere()) as books:
        yield books
