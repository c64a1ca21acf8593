"""What clients keep between rounds, in one file of the run folder: a row for each client.

A round reads and writes the rows of its cohort, whatever the number of clients; the rows of small
populations stay in the memory of the operating system. A row that was never written is a hole in
the file. Before a row is overwritten for the first time since a checkpoint, what it held goes into
a journal that is named by that checkpoint's round, and is on the disk first: a run that goes on
from a checkpoint puts back the rows of all journals since. The file is the clients' own data: it
is for its owner alone, and no part of what is published.
"""

import contextlib
import os
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from fljax.errors import CorruptDataError
from fljax.simulation.record import folder
from fljax.types import PyTree

CLIENTS = "clients.secret"
_ROWS, _JOURNAL = "rows.bin", "before-{}.bin"
_HEADER = struct.Struct(
    "<QI"
)  # round that wrote the row, from 1, and the CRC-32 of the rest; 0: none
_ENTRY = struct.Struct("<QI")  # client, CRC-32 of the row with its header


class _Kind(NamedTuple):
    """Of a leaf of a client's tree."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Rows:
    """The rows of a run, to be read. `first`: the tree of a client that has not been in any
    round.
    """

    def __init__(self, run_dir: pathlib.Path, first: PyTree, flags: int = os.O_RDONLY) -> None:
        """Opens the file."""
        leaves, self._structure = jax.tree.flatten(first)
        self._first = [np.asarray(leaf) for leaf in leaves]
        self._kinds = [_Kind(leaf.shape, leaf.dtype) for leaf in self._first]
        self._size = _HEADER.size + sum(kind.size for kind in self._kinds)
        self._path = run_dir / CLIENTS
        self._rows = os.open(self._path / _ROWS, flags, 0o600)

    def read(self, client_ids: np.ndarray) -> PyTree:
        """The trees of clients `[C]`, as one of `[C, ...]`; of -1, what a new client has.

        Raises:
          CorruptDataError: a row is damaged.
        """
        columns = [np.empty((len(client_ids), *kind.shape), kind.dtype) for kind in self._kinds]
        for place, client in enumerate(client_ids):
            row = b"" if client < 0 else self._row(int(client))
            values = self._first
            if any(row[: _HEADER.size]):
                values = self._parsed(int(client), row)
            for column, value in zip(columns, values, strict=True):
                column[place] = value
        return jax.tree.unflatten(self._structure, columns)

    def one(self, client: int) -> PyTree:
        """What one client kept."""
        return jax.tree.map(lambda leaf: leaf[0], self.read(np.asarray([client])))

    def close(self) -> None:
        """Closes the file."""
        os.close(self._rows)

    def _row(self, client: int) -> bytes:
        return os.pread(self._rows, self._size, client * self._size)

    def _parsed(self, client: int, row: bytes) -> list[np.ndarray]:
        _, digest = _HEADER.unpack_from(row)
        if len(row) != self._size or zlib.crc32(row[_HEADER.size :]) != digest:
            raise CorruptDataError(
                f"Expected what client {client} kept in {self._path} to match its digest, it does "
                "not."
            )
        values, at = [], _HEADER.size
        for kind in self._kinds:
            flat = np.frombuffer(row, kind.dtype, kind.size // kind.dtype.itemsize, at)
            values.append(flat.reshape(kind.shape))
            at += kind.size
        return values


class ClientStates(Rows):
    """The rows of a run that goes on."""

    def __init__(self, run_dir: pathlib.Path, first: PyTree, done: int) -> None:
        """Opens the rows as they were when `done` rounds had been run; at 0 they may not exist yet.

        Raises:
          ValueError: they cannot be had as of that round.
          DiskFullError: no room.
        """
        (run_dir / CLIENTS).mkdir(mode=0o700, exist_ok=True)
        super().__init__(run_dir, first, os.O_RDWR | os.O_CREAT)
        self._journal = -1
        try:
            self._go_back(done)
            self._begin(done)
        except BaseException:
            self.close()
            raise

    def write(self, done: int, client_ids: np.ndarray, kept: PyTree) -> None:
        """Puts the trees `[C, ...]` of the clients `[C]` into their rows; -1 is nobody.

        Raises:
          DiskFullError: no room; rows are as of the newest checkpoint once the run goes on.
        """
        columns = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(kept)]
        mine = [(place, int(client)) for place, client in enumerate(client_ids) if client >= 0]
        with folder.disk_full_in_one_line(self._path):
            new = [client for _, client in mine if client not in self._saved]
            entries = []
            for client in new:
                row = self._row(client).ljust(self._size, b"\0")
                entries.append(_ENTRY.pack(client, zlib.crc32(row)) + row)
            if entries:
                _write_all(self._journal, b"".join(entries), None)
                os.fdatasync(self._journal)
            self._saved.update(new)
            for place, client in mine:
                values = b"".join(column[place].tobytes() for column in columns)
                header = _HEADER.pack(done, zlib.crc32(values))
                _write_all(self._rows, header + values, client * self._size)

    def checkpoint(self, done: int, oldest: int) -> None:
        """Before a checkpoint of `done` rounds: all rows are on the disk, and a new journal begins.

        oldest: rounds of the oldest checkpoint that is kept; what leads back before it goes.
        """
        with folder.disk_full_in_one_line(self._path):
            os.fdatasync(self._rows)
            self._begin(done)
        for begun, path in self._journals():
            if begun < oldest:
                path.unlink()

    def close(self) -> None:
        """Closes the files."""
        super().close()
        if self._journal >= 0:
            os.close(self._journal)

    def _journals(self) -> list[tuple[int, pathlib.Path]]:
        """(round at which it began, path), newest first."""
        found = self._path.glob(_JOURNAL.format("*"))
        return sorted(((int(path.stem.rpartition("-")[2]), path) for path in found), reverse=True)

    def _begin(self, done: int) -> None:
        """A journal for what is overwritten after `done` rounds."""
        if self._journal >= 0:
            os.close(self._journal)
        path = self._path / _JOURNAL.format(done)
        self._journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._saved: set[int] = set()

    def _go_back(self, done: int) -> None:
        """Puts back what rows held after `done` rounds."""
        journals = self._journals()
        if not journals and done == 0 and os.fstat(self._rows).st_size == 0:
            return
        if done not in [begun for begun, _ in journals]:
            raise ValueError(
                f"Expected {self._path} to have what clients kept after {done} rounds, got nothing "
                "that leads back there: begin the run anew."
            )
        with folder.disk_full_in_one_line(self._path):
            for begun, path in journals:
                if begun >= done:
                    for client, row in self._entries(path):
                        _write_all(self._rows, row, client * self._size)
            os.fdatasync(
                self._rows
            )  # before the first journal goes: a kill in between goes back again
        for begun, path in journals:
            if begun > done:
                path.unlink()

    def _entries(self, path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
        """The rows of a journal; a last one that was cut off had not been overwritten yet."""
        with path.open("rb") as file:
            while len(head := file.read(_ENTRY.size)) == _ENTRY.size:
                client, digest = _ENTRY.unpack(head)
                row = file.read(self._size)
                if len(row) != self._size or zlib.crc32(row) != digest:
                    return
                yield client, row


def _write_all(file: int, data: bytes, at: int | None) -> None:
    """All of `data`, at a place of the file or at its end: one call may write less."""
    left = memoryview(data)
    while left:
        written = os.write(file, left) if at is None else os.pwrite(file, left, at)
        left = left[written:]
        at = None if at is None else at + written


def of_client(run_dir: pathlib.Path, first: PyTree, client: int) -> PyTree:
    """What one client keeps, after the last round of a run that nobody writes."""
    with contextlib.closing(Rows(run_dir, first)) as rows:
        return rows.one(client)
