"""The run folder: who may write it, and how a file in it is either whole or not there."""

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

CONFIG, METRICS, PRIVACY, REPORT, CHECKPOINTS = (
    "config.toml",
    "metrics.jsonl",
    "privacy.json",
    "report.html",
    "checkpoints",
)
MODEL = "model.json"
BASE = "base.safetensors"  # frozen weights, beside which LoRA was trained
CANARIES = "canaries.json"
SESSIONS = "sessions.jsonl"
CHAIN = "chain.jsonl"
CHECKSUMS = "checksums.json"  # in a checkpoint's folder, and written last
SEED, FINGERPRINT = (
    "seed.secret",
    "fingerprint.json",
)  # for their owner alone; no part of what is published
LOCK = ".lock"
_DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# What tensorstore and orbax say instead of an errno.
_DISK_IS_FULL_TEXTS = ("No space left on device", "Disk quota exceeded", "File too large")


class DiskFullError(OSError):
    """A file of the run could not be written for lack of space; checkpoints written earlier are
    whole.
    """


def is_disk_full(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, says that the disk is full, over quota, or the file
    over its limit.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_IS_FULL:
            return True
        if any(text in str(error) for text in _DISK_IS_FULL_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def disk_full_in_one_line(path: pathlib.Path) -> Iterator[None]:
    """Turns any exception that means "disk full" into a `DiskFullError` that names `path`."""
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise DiskFullError(
                f"Expected room to write {path}, got a full disk or file size limit; "
                "what was written before is intact: free some space, then resume a run, or start "
                "anything else again."
            ) from error
        raise


def ensure_room(where: pathlib.Path, size: int) -> None:
    """Reserves `size` bytes in a file in the folder `where`, and gives them back.

    Raises:
      OSError: there is no room for them.
    """
    probe = where / ".room"
    try:
        with probe.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.write(bytes(size))
    finally:
        probe.unlink(missing_ok=True)


def _temporary(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f".{path.name}.tmp")


def write_atomically(path: pathlib.Path, text: str | bytes, *, mode: int = 0o666) -> None:
    """Writes beside `path`, then renames: a reader, or a killed writer, sees the old file or the
    new one.

    Args:
      mode: of the file, less the process's mask, from its first byte on.

    Raises:
      DiskFullError: no room. `path` is as before.
    """
    temporary = _temporary(path)
    with disk_full_in_one_line(path):
        try:
            temporary.unlink(missing_ok=True)  # whose mode may be another
            opener = functools.partial(os.open, mode=mode)
            with open(temporary, "xb", opener=opener) as file:
                file.write(text.encode() if isinstance(text, str) else text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def locked(run_dir: pathlib.Path) -> Iterator[None]:
    """Holds the run folder for this process; the lock goes with the process, however that ends.

    Raises:
      ValueError: another process holds it.
    """
    with (run_dir / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as reason:
            raise ValueError(
                f"Expected run folder {run_dir} to be free, got one that another process writes."
            ) from reason
        yield


def new(run_dir: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a new run.

    Raises:
      ValueError: it exists and holds something, or is not a folder.
    """
    check_free(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    return run_dir


def check_free(run_dir: pathlib.Path) -> None:
    """Raises ValueError where a new run cannot have the folder: it holds something, or is none."""
    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"Expected run_dir to be a folder, got run_dir={run_dir}, a file.")
    # What a process that was killed before its first round may leave.
    ours = {LOCK, SEED, *(_temporary(run_dir / name).name for name in (SEED, CONFIG))}
    if run_dir.exists() and any(entry.name not in ours for entry in run_dir.iterdir()):
        raise ValueError(
            f"Expected run_dir to be empty or new, got run_dir={run_dir} with files in "
            f"it{_go_on(run_dir)}"
        )


def _go_on(run_dir: pathlib.Path) -> str:
    """What can be done with the folder: of an attack, an audit or a comparison nothing, they do not
    go on.
    """
    try:
        found = tomllib.loads((run_dir / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f", but no {CONFIG} that --resume could go on from."
    if of_another_command(found):
        return ", of an attack or an audit, which do not go on."
    return f"; to go on with that run: fljax simulate --resume {run_dir}"


def of_another_command(config: Mapping[str, Any]) -> bool:
    """Whether a parsed config.toml is of an attack or an audit, which have no sections."""
    return bool(config) and not any(isinstance(value, Mapping) for value in config.values())


def begin(run_dir: pathlib.Path, config: str, seed: str | None = None) -> None:
    """Makes the folder of a new run and writes its config: from here on the run can be resumed.

    Args:
      seed: the run's secret, written before its config, for its owner alone. What a process that
        was killed between the two has left there is replaced: no round has used it.

    Raises:
      ValueError: as for `new`. DiskFullError: no room.
    """
    new(run_dir)
    if seed is None:
        (run_dir / SEED).unlink(missing_ok=True)
    else:
        write_secret(run_dir / SEED, seed)
    try:
        write_atomically(run_dir / CONFIG, config)
    except Exception:
        (run_dir / SEED).unlink(missing_ok=True)  # of no use, and a secret
        raise


def write_secret(path: pathlib.Path, text: str) -> None:
    """Writes a file for its owner alone.

    Raises:
      ValueError: the file system does not keep such files. DiskFullError: no room.
    """
    write_atomically(path, text, mode=0o600)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.unlink()
        raise ValueError(
            f"Expected the file system of {path.parent} to keep a file for its owner alone (mode "
            "0600), it does not: choose a folder elsewhere, or a fixed seed for an experiment."
        )


def discard(run_dir: pathlib.Path) -> None:
    """Removes the folder of a run that did not get to its first round: nothing in it is worth
    resuming.
    """
    for name in (CONFIG, SEED, LOCK):
        (run_dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it may be a mount point
        run_dir.rmdir()


def slug(text: str) -> str:
    """`text` as part of a file's name on any system: of [a-z0-9._-], its last 100 characters, no
    dot or dash first.
    """
    return re.sub(r"[^a-z0-9._]+", "-", text.lower())[-100:].lstrip(".-").rstrip("-") or "run"


def next_free(parent: pathlib.Path, stem: str) -> pathlib.Path:
    """Makes and returns `parent/STEM-NNN`, STEM the slug of `stem`, with the first free number,
    also when several processes ask at once.
    """
    parent.mkdir(parents=True, exist_ok=True)
    stem = slug(stem)
    number = 1
    while True:
        candidate = parent / f"{stem}-{number:03d}"
        try:
            candidate.mkdir()
        except FileExistsError:
            number += 1
        else:
            return candidate


def read_text(path: pathlib.Path) -> str:
    """The text of a file. Raises ValueError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as reason:
        raise ValueError(f"Expected {path} to be text in UTF-8, got other bytes.") from reason


def read_json(path: pathlib.Path) -> Any:
    """What a file of JSON holds. Raises ValueError as `from_json`, or if it is not UTF-8."""
    return from_json(read_text(path))


def from_json(text: str) -> Any:
    """What a text of JSON holds.

    Raises:
      ValueError: it is no JSON, or a name stands twice in one object: programs differ in which of
        two values they read, so that it could tell each something else.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"Expected every name once in an object of JSON, got {twice!r} twice.")
        return found

    return json.loads(text, object_pairs_hook=once)


def read_metrics(run_dir: pathlib.Path) -> list[dict[str, Any]]:
    """All records of `metrics.jsonl`. Raises ValueError if a line is not JSON."""
    path = run_dir / METRICS
    records = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as reason:
            raise ValueError(f"Expected line {number} of {path} to be JSON: {reason}.") from reason
    return records


class Metrics:
    """`metrics.jsonl`, open for appending: one JSON line a round, flushed, so that a killed run
    loses no whole line.
    """

    def __init__(self, run_dir: pathlib.Path, length: int, digest: str = "") -> None:
        """Opens the file and cuts it to its first `length` bytes: what a checkpoint knows of, whose
        `digest` it has.

        Raises:
          ValueError: the file is shorter than that, or these bytes have another digest.
        """
        self.path = run_dir / METRICS
        self._file = self.path.open("ab")
        have = self._file.tell()
        if have < length:
            self._file.close()
            raise ValueError(
                f"Expected {self.path} to hold the {length} bytes its checkpoint knows of, got "
                f"{have}."
            )
        with self.path.open("rb") as known:
            self._sha = hashlib.sha256(known.read(length))
        if digest and digest != self.digest:
            self._file.close()
            raise ValueError(
                f"Expected {self.path} to begin as its checkpoint knows it, got lines that were "
                "changed."
            )
        self._file.truncate(length)
        self._file.seek(length)  # truncating does not move the position, which `length` reports

    def append(self, line: str) -> None:
        """Writes one line. Raises DiskFullError if there is no room."""
        data = line.encode() + b"\n"
        with disk_full_in_one_line(self.path):
            self._file.write(data)
            self._file.flush()
        self._sha.update(data)

    @property
    def length(self) -> int:
        """Bytes in the file."""
        return self._file.tell()

    @property
    def digest(self) -> str:
        """SHA-256 of them."""
        return self._sha.hexdigest()

    def close(self) -> None:
        """Closes the file. Raises DiskFullError if what is buffered finds no room."""
        with disk_full_in_one_line(self.path):
            self._file.close()
