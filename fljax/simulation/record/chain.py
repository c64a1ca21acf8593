"""A hash chain over all that a run wrote: `chain.jsonl`, a line for each link.

Each link is the SHA-256 of the link before it and of its own words: who changes a link has to
change all that follow, and with them the last one, the head. Links are of four kinds.

- "begin": config, fingerprint of data and seed, code, environment, and what one round does.
- "round": the round's line of metrics.jsonl, and the ledger and epsilon after it.
- "checkpoint": the state after so many rounds.
- "closed": every file, once the report is written.

The chain has no secret in it. Whoever redoes all of it is found by the head alone, if that was
published before.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import pathlib
import platform
from typing import Any, NamedTuple

import jax
import numpy as np

import fljax_kernels
from fljax.simulation.record import folder

CHAIN = folder.CHAIN
_FORMAT = 1
_FIRST = "0" * 64
_KINDS = ("begin", "round", "checkpoint", "closed")
_BESIDE = (folder.CONFIG, folder.METRICS, folder.PRIVACY, folder.REPORT, folder.MODEL)
_CLOSED = (*_BESIDE, folder.BASE, folder.CANARIES, folder.SESSIONS, folder.FINGERPRINT)


class ChainError(ValueError):
    """The chain of a run is damaged, or of another run."""


class Link(NamedTuple):
    """kind: one of four. body: plain data. head: the hash, which the next link begins with. end:
    bytes of the file up to and with this line.
    """

    kind: str
    body: dict[str, Any]
    head: str
    end: int


_text = json.JSONEncoder(sort_keys=True, allow_nan=False).encode


def _next(head: str, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
    """(the link after `head`, its line)"""
    text = _text({kind: body})
    link = hashlib.sha256(f"{head}\n{text}".encode()).hexdigest()
    return link, f'{text[:-1]}, "link": "{link}"}}\n'.encode()


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


@functools.cache
def code() -> str:
    """SHA-256 over every file of Python of fljax and its kernels."""
    sha = hashlib.sha256()
    for package in ("fljax", "fljax_kernels"):
        found = importlib.util.find_spec(package)
        assert found is not None and found.submodule_search_locations
        root = pathlib.Path(found.submodule_search_locations[0])
        for path in sorted(root.rglob("*.py")):
            sha.update(f"{package}/{path.relative_to(root).as_posix()}\n".encode())
            sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()


def environment() -> dict[str, str]:
    """Versions, and the kind of machine."""
    return {
        "fljax": fljax_kernels.__version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
    }


def begun(
    config: str, fingerprint: str, config_file: bytes, round_does: dict[str, Any]
) -> dict[str, Any]:
    """The body of the first link.

    Args:
      config: digest of all of the config that a run keeps for good.
      fingerprint: digest of data, seed and programs.
      config_file: bytes of config.toml, where how many rounds there are to be stands as well.
      round_does: what one round does, to whom and at which delta, as plain data.
    """
    return {
        "format": _FORMAT,
        "config": config,
        "fingerprint": fingerprint,
        "config_file": digest(config_file),
        "round_does": round_does,
        "code": code(),
        "environment": environment(),
    }


# What the links of one run have in common, and in which words.
_KEPT = {
    "config": "config",
    "fingerprint": "data or seed",
    "round_does": "ledger of a round",
    "code": "code of fljax",
}


def read(run_dir: pathlib.Path) -> list[Link]:
    """The links of a run's chain; a last line that was cut off, as by a kill, is none.

    Raises:
      ChainError: there is no chain, or a line does not follow from those before it; names the
        first.
    """
    path = run_dir / CHAIN
    if not path.is_file():
        raise ChainError(f"Expected {path} to hold the run's hash chain, got no such file.")
    links: list[Link] = []
    head, end = _FIRST, 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        end += len(line)
        try:
            found = json.loads(line)
            claimed = found.pop("link")
            ((kind, body),) = found.items()
            good = kind in _KINDS
            good = good and (number > 1 or (kind == "begin" and body["format"] == _FORMAT))
            head, right = _next(head, kind, body) if good else ("", b"")
            # Byte by byte: the same link in another text, a name in it twice, say, is not ours.
            head = head if right == line else ""
        except (ValueError, KeyError, TypeError, AttributeError):
            head = ""
        if not head or head != claimed:
            raise ChainError(
                f"Expected line {number} of {path} to follow from the lines before it, it does "
                "not: it, or one before it, was changed, moved, added or removed."
            )
        links.append(Link(kind, body, head, end))
    if not links:
        raise ChainError(f"Expected {path} to begin with what the run began with, got nothing.")
    return links


class Chain:
    """The chain of a run that goes on. head: the last link."""

    def __init__(
        self, run_dir: pathlib.Path, body: dict[str, Any], length: int = 0, head: str = ""
    ) -> None:
        """Opens the chain as the newest checkpoint knows it: its first `length` bytes, which end in
        `head`. Nothing is known of a run without a checkpoint, and what is there begins anew.

        What follows without being of a round, the checkpoint itself and a report, is kept.

        Raises:
          ChainError: the chain is damaged, or is not of this run; names what does not fit.
        """
        self._path = run_dir / CHAIN
        kept: list[Link] = []
        if length:
            links = read(run_dir)
            known = [link for link in links if link.end <= length]
            if not known or known[-1].end != length or known[-1].head != head:
                raise ChainError(
                    f"Expected {self._path} to begin as the newest checkpoint knows it, got a "
                    "chain of another run, or one that was made anew."
                )
            rest = itertools.takewhile(lambda link: link.kind != "round", links[len(known) :])
            kept = [*known, *rest]
            wrong = [words for name, words in _KEPT.items() if kept[0].body.get(name) != body[name]]
            if wrong:
                raise ChainError(
                    f"Expected the run in {run_dir} to go on as it began, got another "
                    f"{', '.join(wrong)} than in {CHAIN}: put that back, or begin another run with "
                    f"the model of this one, by init={str(run_dir)!r}."
                )
        self.head = kept[-1].head if kept else _FIRST
        states = [link.body for link in kept if link.kind == "checkpoint"]
        self._newest = states[-1] if states else None
        self._file = self._path.open("ab")
        self._file.truncate(kept[-1].end if kept else 0)
        self._file.seek(0, 2)
        begins = [link.body for link in kept if link.kind == "begin"]
        if not begins or begins[-1] != body:
            try:
                self._append("begin", body)
            except BaseException:
                self._file.close()
                raise

    def _append(self, kind: str, body: dict[str, Any]) -> None:
        self.head, line = _next(self.head, kind, body)
        with folder.disk_full_in_one_line(self._path):
            self._file.write(line)
            self._file.flush()

    def round(self, number: int, uses: int, epsilon: float | str, line: str) -> None:
        """A round: what the ledger holds after it, and its line of metrics.jsonl without the end of
        line. Raises DiskFullError.
        """
        told = {"round": number, "uses": uses, "epsilon": epsilon}
        self._append("round", told | {"metrics": digest(line.encode())})

    def checkpoint(self, step: int, state: str) -> None:
        """A checkpoint's digest, unless the link is there already. Raises DiskFullError."""
        body = {"step": step, "state": state}
        if body != self._newest:
            self._append("checkpoint", body)
            self._newest = body

    @property
    def length(self) -> int:
        """Bytes of the file."""
        return self._file.tell()

    def close(self) -> None:
        """Closes the file. Raises DiskFullError."""
        with folder.disk_full_in_one_line(self._path):
            self._file.close()


def files(run_dir: pathlib.Path) -> dict[str, str]:
    """SHA-256 of every file that a run that has ended is known by. The secret seed, which is to be
    deleted, is not one of them.
    """
    paths = [run_dir / name for name in _CLOSED]
    paths += sorted((run_dir / folder.CHECKPOINTS).glob(f"*/{folder.CHECKSUMS}"))
    return {
        path.relative_to(run_dir).as_posix(): digest(path.read_bytes())
        for path in paths
        if path.is_file()
    }


def close(run_dir: pathlib.Path, rounds: int) -> str:
    """The last link of a run whose report has been written, and its head; none is added where
    nothing has changed since.

    Raises:
      ChainError: the chain is damaged. DiskFullError: no room.
    """
    links = read(run_dir)
    body = {"rounds": rounds, "files": files(run_dir)}
    if (links[-1].kind, links[-1].body) == ("closed", body):
        return links[-1].head
    head, line = _next(links[-1].head, "closed", body)
    path = run_dir / CHAIN
    with folder.disk_full_in_one_line(path), path.open("ab") as file:
        file.write(line)
    return head
