"""Checkpoints of a run with orbax: all or nothing, three kept, every byte checked when one is read
back.
"""

import contextlib
import hashlib
import json
import pathlib
import shutil
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import fljax_kernels
from fljax.simulation.record import folder
from fljax.types import PyTree

KEPT = 3
_FORMAT = 3
_OLDER = {
    1: " Format 1 kept nothing to tell its data by: begin that run anew.",
    2: " Format 2 kept no hash chain: begin that run anew.",
}
_MEND = " Remove that folder to go back to the checkpoint before it."
_SLACK = 2**18  # bytes that orbax's own two dozen small files take at most, in blocks of 4 KiB


class CheckpointError(ValueError):
    """A checkpoint is damaged, or belongs to another run."""


class Saved(NamedTuple):
    """state: pytree of arrays and typed keys. ledger: plain data for JSON. metrics_length,
    metrics_digest: bytes of metrics.jsonl, and their SHA-256. chain_length, chain_head: bytes of
    chain.jsonl, and its last link. digest: of all that, of one that was read back.
    """

    state: PyTree
    ledger: dict[str, Any]
    metrics_length: int
    metrics_digest: str = ""
    chain_length: int = 0
    chain_head: str = ""
    digest: str = ""


def _is_key(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _data(leaf: jax.Array) -> np.ndarray:
    """The bytes of a leaf: a typed key is its data."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _without_keys(state: PyTree) -> PyTree:
    """Typed keys as their data: orbax reads back those of JAX's own generators only."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)


def _with_keys(state: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(
        lambda leaf, typed: (
            jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(typed))
            if _is_key(typed)
            else leaf
        ),
        state,
        like,
    )


def _is_unbound(leaf: Any) -> bool:
    """Whether JAX may move it to another device: of states that are bound to theirs it compiles
    another program than of those that a run begins with.
    """
    return isinstance(leaf, jax.Array) and not leaf.committed


def structure(state: PyTree) -> list[str]:
    """Path, dtype and shape of each leaf, by which models that are alike are told."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return [
        f"{jax.tree_util.keystr(path)} {leaf.dtype} {list(leaf.shape)}" for path, leaf in leaves
    ]


def _digest(state: PyTree, meta: dict[str, Any]) -> str:
    """SHA-256 over all arrays, in the order of their places' names, and the plain data beside them,
    but for the digest itself.
    """
    plain = {name: value for name, value in meta.items() if name != "digest"}
    sha = hashlib.sha256(json.dumps(plain, sort_keys=True, allow_nan=False).encode())
    # By names, since a state that is read back without its types has them, and another order.
    named = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    ]
    for name, leaf in sorted(named, key=lambda pair: pair[0]):
        sha.update(f"{name}\n".encode())
        sha.update(_data(leaf).tobytes())
    return sha.hexdigest()


def _checksums(where: pathlib.Path) -> dict[str, str]:
    """SHA-256 of every file below `where`."""
    files = sorted(
        path for path in where.rglob("*") if path.is_file() and path != where / folder.CHECKSUMS
    )
    return {
        str(path.relative_to(where)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def _environment() -> str:
    """What decides, beside the config, which bits a round computes."""
    ours = f"fljax {fljax_kernels.__version__}"
    return f"{ours} with jax {jax.__version__} on {jax.default_backend()}"


class Checkpoints:
    """The checkpoints of one run folder. A step is the number of rounds done.

    Orbax writes each into a temporary folder and renames that when all of it is there: a checkpoint
    either bears its final name and is whole, or was never committed and is ignored.
    """

    def __init__(self, run_dir: pathlib.Path, config_digest: str, fingerprint: str = "") -> None:
        """Opens `run_dir/checkpoints`, made if needed; left-overs of a write that was cut off are
        removed.

        Args:
          fingerprint: of the run's seed and data, in whatever words.
        """
        self.path = (run_dir / folder.CHECKPOINTS).absolute()
        self._config_digest, self._fingerprint = config_digest, fingerprint
        self._remove_torn()
        self._pending: int | None = None
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, enable_async_checkpointing=True)
        if jax.process_count() > 1:  # orbax would wait for the other processes, which write nothing
            mine = jax.process_index()
            options.multiprocessing_options = ocp.options.MultiprocessingOptions(mine, {mine})
            options.create = False
        with folder.disk_full_in_one_line(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(self.path, options=options)

    def _remove_torn(self) -> None:
        """Removes writes that were cut off, which would only take room; orbax's own cleaning stops
        at a lock file.
        """
        for _ in range(100):
            torn = list(self.path.glob("*.orbax-checkpoint-tmp*"))
            if not torn:
                return
            for path in torn:
                shutil.rmtree(
                    path, ignore_errors=True
                )  # a thread of a failed write may still be in there
            time.sleep(0.02)

    def steps(self) -> list[int]:
        """Committed checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, saved: Saved) -> str:
        """Copies the state and lets a thread write the checkpoint, after the one before; `finish`
        waits for it. Gives the checkpoint's digest.

        Saving the newest step again does nothing, and gives "".

        Raises:
          DiskFullError: no room, for this one or the one before; earlier checkpoints are as they
            were.
        """
        self.finish()
        if step in self._manager.all_steps():
            return ""
        meta = {
            "format": _FORMAT,
            "config": self._config_digest,
            "fingerprint": self._fingerprint,
            "structure": structure(saved.state),
            "environment": _environment(),
            "metrics_length": saved.metrics_length,
            "metrics_digest": saved.metrics_digest,
            "chain_length": saved.chain_length,
            "chain_head": saved.chain_head,
            "ledger": saved.ledger,
        }
        digest = _digest(saved.state, meta)
        meta["digest"] = digest
        try:
            with folder.disk_full_in_one_line(self.path):
                # Asked first, because a write that fails half-way leaves tensorstore's threads
                # complaining for pages.
                folder.ensure_room(
                    self.path,
                    sum(_data(leaf).nbytes for leaf in jax.tree.leaves(saved.state)) + _SLACK,
                )
                items = ocp.args.Composite(
                    state=ocp.args.StandardSave(_without_keys(saved.state)),
                    meta=ocp.args.JsonSave(meta),
                )
                self._manager.save(step, args=items)
                self._pending = step
        except folder.DiskFullError:
            self._remove_torn()
            raise
        return digest

    def finish(self) -> None:
        """Waits until the checkpoint that is being written is committed.

        Raises:
          DiskFullError: it found no room; earlier checkpoints are as before.
        """
        step, self._pending = self._pending, None
        if step is None:
            return
        try:
            with folder.disk_full_in_one_line(self.path):
                self._manager.wait_until_finished()
                where = self.path / str(step)
                folder.write_atomically(where / folder.CHECKSUMS, json.dumps(_checksums(where)))
        except folder.DiskFullError:
            self._remove_torn()
            raise

    def restore(self, like: PyTree) -> Saved | None:
        """The newest committed checkpoint, or None where there is none.

        Args:
          like: a state of the same structure, shapes and dtypes.

        Raises:
          CheckpointError: the checkpoint is damaged, or was written by a run with another
            configuration. An older one is not taken in its place: a committed checkpoint does not
            get damaged by a crash, so this wants a human.
        """
        steps = self.steps()
        if not steps:
            return None
        step = steps[-1]
        where = self.path / str(step)
        with _in_one_line(where):
            _check_files(where)
            meta = self._manager.restore(
                step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
            )["meta"]
            _check_format(meta, where)
            if meta["config"] != self._config_digest or meta["structure"] != structure(like):
                raise CheckpointError(
                    f"Expected checkpoint {where} to be of the config of its run, got one of "
                    "another config."
                )
            if meta["fingerprint"] != self._fingerprint:
                raise CheckpointError(
                    f"Expected checkpoint {where} to be of the seed and the data of its run, got "
                    "one of others."
                )
            if meta["environment"] != _environment():
                raise CheckpointError(
                    f"Expected checkpoint {where} to be of {_environment()}, got one of "
                    f"{meta['environment']}: with "
                    "another version or backend the run would not go on to the same bits."
                )
            plain = _without_keys(like)
            # Read to the devices that the state is on, or to the host: orbax binds what it places.
            target = jax.tree.map(
                lambda leaf: np.empty(leaf.shape, leaf.dtype) if _is_unbound(leaf) else leaf, plain
            )
            items = ocp.args.Composite(state=ocp.args.StandardRestore(target))
            restored = jax.tree.map(
                lambda leaf, first: jnp.array(leaf) if _is_unbound(first) else leaf,
                self._manager.restore(step, args=items)["state"],
                plain,
            )
            state = _with_keys(restored, like)
            _check_digest(state, meta, where)
            return Saved(
                state,
                meta["ledger"],
                int(meta["metrics_length"]),
                meta["metrics_digest"],
                int(meta["chain_length"]),
                meta["chain_head"],
                meta["digest"],
            )

    def close(self) -> None:
        """Finishes, and releases orbax's threads. Raises DiskFullError as `finish` does."""
        try:
            self.finish()
        finally:
            self._manager.close()


def _check_files(where: pathlib.Path) -> None:
    """Before orbax reads anything: what it says about damaged files fills pages. A kill between its
    commit and the writing of the checksums leaves none; the digest then has to do.
    """
    path = where / folder.CHECKSUMS
    if path.exists() and json.loads(path.read_text()) != _checksums(where):
        raise CheckpointError(
            f"Expected checkpoint {where} to be whole, got files with other checksums.{_MEND}"
        )


def _check_format(meta: Any, where: pathlib.Path) -> None:
    got: Any = meta.get("format", "none") if isinstance(meta, dict) else "none"
    if got != _FORMAT:
        raise CheckpointError(
            f"Expected checkpoint {where} to be one of fljax, format {_FORMAT}, got format "
            f"{got}.{_OLDER.get(got, '')}"
        )


def _check_digest(state: PyTree, meta: dict[str, Any], where: pathlib.Path) -> None:
    if _digest(state, meta) != meta["digest"]:
        raise CheckpointError(
            f"Expected checkpoint {where} to be whole, got one with another digest.{_MEND}"
        )


def committed(run_dir: pathlib.Path) -> list[int]:
    """The checkpoints of a run folder, oldest first; the folder is only read."""
    path = run_dir / folder.CHECKPOINTS
    return sorted(int(entry.name) for entry in path.glob("*") if entry.name.isdecimal())


def read(run_dir: pathlib.Path, step: int) -> tuple[PyTree, dict[str, Any]]:
    """(the state as plain containers, the plain data beside it) of a checkpoint, every byte checked
    against its digests.

    Nothing but the folder is asked: no data, no code of the model. Nothing in it is changed, so
    that whoever is writing it is not disturbed.

    Raises:
      CheckpointError: it is damaged.
    """
    where = (run_dir / folder.CHECKPOINTS / str(step)).absolute()
    with _in_one_line(where):
        _check_files(where)
        meta = json.loads((where / "meta" / "metadata").read_text())
        _check_format(meta, where)
        state = read_tree(where / "state")
        _check_digest(state, meta, where)
        return state, meta


def read_model(run_dir: pathlib.Path) -> tuple[PyTree, int, dict[str, Any]]:
    """(the private model, the rounds that trained it, its ledger) of a run's newest checkpoint, as
    `read` does.

    Raises:
      CheckpointError: there is none, or it is damaged.
    """
    steps = committed(run_dir)
    if not steps:
        path = (run_dir / folder.CHECKPOINTS).absolute()
        raise CheckpointError(f"Expected a checkpoint in {path}, got none: nothing is trained yet.")
    state, meta = read(run_dir, steps[-1])
    return jax.tree.map(np.asarray, state[0]["params"]), steps[-1], meta["ledger"]


def write_tree(path: pathlib.Path, tree: PyTree) -> None:
    """A pytree of arrays as a checkpoint of orbax's own, in the folder `path`."""
    with ocp.StandardCheckpointer() as writer:
        writer.save(path.absolute(), tree)


def read_tree(path: pathlib.Path) -> PyTree:
    """What `write_tree` wrote."""
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(path.absolute())


@contextlib.contextmanager
def _in_one_line(where: pathlib.Path) -> Iterator[None]:
    """Whatever orbax raises on damaged files becomes one CheckpointError that names the
    checkpoint.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as reason:
        first = (str(reason).strip().splitlines() or [""])[0][:200]
        raise CheckpointError(
            f"Expected checkpoint {where} to be whole and of this run, got "
            f"{type(reason).__name__}: {first}.{_MEND}"
        ) from reason
