"""What a run writes, and reads back when it goes on. Of several processes the first alone
writes.
"""

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Protocol

from fljax.accounting import events
from fljax.simulation import as_printed, budget, fingerprint, nats_spent
from fljax.simulation.config import Config
from fljax.simulation.devices import processes
from fljax.simulation.record import chain, checkpoint, folder
from fljax.simulation.record.client_states import ClientStates
from fljax.simulation.task import Task
from fljax.types import PyTree


class RunRecord(Protocol):
    """What a run writes, whoever writes it."""

    def states(self, initial: PyTree) -> PyTree:
        """The states of the newest checkpoint, or `initial` where there is none; once, before
        anything else.
        """

    def clients(self, first: PyTree, done: int) -> ClientStates | None:
        """What clients keep after `done` rounds, from now on a part of each `save`; `first` is what
        a client begins with. None where that is None.
        """

    def append(self, record: dict[str, Any]) -> None:
        """A line of metrics.jsonl."""

    def save(self, states: PyTree, done: int) -> None:
        """privacy.json and a checkpoint of `done` rounds, which may still be on its way to the
        disk.
        """


class Written:
    """Written by the process that owns `run_dir`. inputs: what `make` was given beside the loss."""

    def __init__(
        self,
        run_dir: pathlib.Path,
        config: Config,
        plan: budget.Plan,
        task: Task,
        inputs: dict[str, Any],
        began_with: dict[str, Any],
    ) -> None:
        self._run_dir, self._config, self._plan, self._task, self._inputs = (
            run_dir,
            config,
            plan,
            task,
            inputs,
        )
        self._began_with = began_with
        self._clients: ClientStates | None = None
        self._checkpoints = checkpoint.Checkpoints(
            run_dir, began_with["config"], fingerprint.digest(began_with)
        )

    def states(self, initial: PyTree) -> PyTree:
        """As `RunRecord.states`.

        Raises:
          CheckpointError: the newest checkpoint is damaged, foreign, or has another ledger than its
            config implies.
          ChainError: the hash chain is damaged, or is not of this run.
          ValueError: the run began with another seed or other data, or lines of its metrics.jsonl
            were changed.
        """
        before = fingerprint.read(self._run_dir)
        changed = [] if before is None else fingerprint.changed(before, self._began_with)
        if changed and changed != ["config"]:  # of which the checkpoint says more
            self._refuse(changed)
        saved = self._checkpoints.restore(initial)
        if changed:
            self._refuse(changed)
        if before is None:
            path = self._run_dir / folder.METRICS
            if saved is not None or (path.exists() and path.stat().st_size):
                raise ValueError(
                    f"Expected {self._run_dir / folder.FINGERPRINT} to tell the data that the run "
                    "began with, got no "
                    "such file: its noise might meet other data. Begin the run anew."
                )
            fingerprint.write(self._run_dir, self._began_with)
        if saved is not None and not budget.agree(
            self._plan, saved.ledger, int(saved.state[0].round)
        ):
            raise checkpoint.CheckpointError(
                f"Expected the newest checkpoint in {self._checkpoints.path} to have the ledger "
                "that its config "
                "implies, got another one: it was written by another version of fljax."
            )
        if saved is None:
            self._chain = chain.Chain(self._run_dir, self._begun())
            self._metrics = folder.Metrics(self._run_dir, 0)
            return initial
        try:
            self._metrics = folder.Metrics(
                self._run_dir, saved.metrics_length, saved.metrics_digest
            )
        except ValueError as reason:
            raise ValueError(f"{reason}{self._first_wrong_line(saved.metrics_length)}") from reason
        length, head = saved.chain_length, saved.chain_head
        self._chain = chain.Chain(self._run_dir, self._begun(), length, head)
        self._chain.checkpoint(
            int(saved.state[0].round), saved.digest
        )  # a kill may have cut it off
        return saved.state

    def _begun(self) -> dict[str, Any]:
        return chain.begun(
            self._began_with["config"],
            fingerprint.digest(self._began_with),
            (self._run_dir / folder.CONFIG).read_bytes(),
            {
                "event": events.to_json(self._plan.event),
                "search": None
                if self._plan.search is None
                else {"mean": self._plan.search.mean, "shape": self._plan.search.shape},
                "delta": self._plan.delta,
                "accountant": self._plan.accountant,
                "num_units": self._plan.num_units,
            },
        )

    def clients(self, first: PyTree, done: int) -> ClientStates | None:
        """As `RunRecord.clients`. Raises ValueError where those rounds cannot be gone back to."""
        if first is not None:
            self._clients = ClientStates(self._run_dir, first, done)
        return self._clients

    def _refuse(self, changed: list[str]) -> None:
        raise ValueError(
            f"Expected the run in {self._run_dir} to go on as it began, got another "
            f"{', '.join(changed)}: rounds that are taken again would meet it with the noise that "
            "they have drawn already. Put it back, or begin anew."
        )

    def _first_wrong_line(self, length: int) -> str:
        """Which line the ledger refutes, in a sentence; nothing where what was changed is not in
        the ledger.
        """
        with (self._run_dir / folder.METRICS).open("rb") as file:
            lines = file.read(length).splitlines()
        for number, line in enumerate(lines[: self._plan.num_rounds], start=1):
            wanted = {"round": number, "epsilon": budget.number(self._plan.epsilons[number])}
            try:
                found = json.loads(line)
                found = {name: found[name] for name in wanted}
            except (ValueError, KeyError, TypeError):
                return f" Line {number} is none of a run."
            for name, value in wanted.items():
                if found[name] != value:
                    return f" Line {number} has {name}={found[name]!r}, the ledger {value!r}."
        return ""

    def append(self, record: dict[str, Any]) -> None:
        """As `RunRecord.append`. Raises DiskFullError."""
        line = json.dumps(record, allow_nan=False)
        self._metrics.append(line)
        number = record["round"]
        self._chain.round(number, self._plan.times(number), record["epsilon"], line)

    def save(self, states: PyTree, done: int) -> None:
        """As `RunRecord.save`. Raises DiskFullError; earlier checkpoints are whole."""
        claim = budget.certified_claim(self._plan, done)
        # Before the checkpoint: what privacy.json claims may be more than the newest checkpoint
        # spent, never less.
        scheme, scheme_config = self._config.implementation, self._plan.scheme_config
        paper = as_printed.printed_claim(scheme, scheme_config, done, self._plan.delta)
        shown = claim | ({"as_printed": paper} if paper else {})
        told = nats_spent.spent(scheme, scheme_config, self._task, self._inputs, done)
        shown |= (
            {"information": nats_spent.nats_claim(told, self._plan)} if told is not None else {}
        )
        text = json.dumps(shown, sort_keys=True, allow_nan=False, indent=2)
        folder.write_atomically(self._run_dir / folder.PRIVACY, text + "\n")
        if self._clients is not None:
            # a checkpoint that might still be lost keeps what leads back
            self._checkpoints.finish()
            self._clients.checkpoint(done, min(self._checkpoints.steps(), default=0))
        known = (self._metrics.length, self._metrics.digest, self._chain.length, self._chain.head)
        digest = self._checkpoints.save(done, checkpoint.Saved(states, claim, *known))
        if digest:
            self._chain.checkpoint(done, digest)

    def close(self) -> None:
        """Ends what is open. Raises DiskFullError if a checkpoint that was on its way found no
        room.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._checkpoints.close)
            if self._clients is not None:
                stack.callback(self._clients.close)
            for opened in ("_metrics", "_chain"):
                if hasattr(self, opened):
                    stack.callback(getattr(self, opened).close)


class NoRecord:
    """Of a process that writes nothing."""

    def states(self, initial: PyTree) -> PyTree:
        """`initial`: the first process has read others, maybe."""
        return initial

    def clients(self, first: PyTree, done: int) -> ClientStates | None:
        """Nothing: several processes run no algorithm whose clients keep something."""

    def append(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def save(self, states: PyTree, done: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@contextlib.contextmanager
def opened(
    run_dir: pathlib.Path,
    config: Config,
    plan: budget.Plan,
    task: Task,
    inputs: dict[str, Any],
    began_with: dict[str, Any],
) -> Iterator[RunRecord]:
    """The record of this process, closed at the end. began_with: fingerprint of the run."""
    mine: Written | NoRecord = NoRecord()
    if processes.first():
        mine = Written(run_dir, config, plan, task, inputs, began_with)
    with contextlib.closing(mine) as record:
        yield record
