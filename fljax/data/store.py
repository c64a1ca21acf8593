"""Clients on disk: one writer, one reader, for data that memory cannot hold.

A folder holds `index.json`, `offsets.npy` (int64 `[C + 1]`), `digests.npy` (uint8 `[C, 16]`) and
for each field one file of raw numbers, clients one after the other. Reading a cohort touches the
bytes of its clients alone. Every client's bytes are held against their digest as they are read, so
that neither a damaged disk nor other bytes that somebody chose can change a model unnoticed.
"""

import hashlib
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate
from fljax.data.cohorts import ClientData
from fljax.errors import CorruptDataError

FORMAT = 2
_DIGEST_SIZE = 16  # bytes: 2**128 tries to find other data for a digest
_INDEX, _OFFSETS, _DIGESTS = "index.json", "offsets.npy", "digests.npy"


class Store(NamedTuple):
    """An open folder.

    fields: name -> `[M, ...]`, memory-mapped, read-only. offsets: int64 `[C + 1]`: client c holds
    rows offsets[c] to offsets[c + 1]. digests: uint8 `[C, 16]`: the first half of SHA-256 of a
    client's bytes, field after field in the order of names.
    """

    path: pathlib.Path
    fields: dict[str, np.ndarray]
    offsets: np.ndarray
    digests: np.ndarray

    @property
    def num_clients(self) -> int:
        """C."""
        return int(self.offsets.size - 1)

    @property
    def most_examples(self) -> int:
        """Of one client."""
        return int(np.diff(self.offsets).max(initial=0))


def write(path: str | pathlib.Path, clients: Iterable[Mapping[str, np.ndarray]]) -> Store:
    """Writes clients one by one, in the order of their ids, holding one of them at a time.

    The folder appears under its name when it is complete: a writer that is killed leaves
    `NAME.partial` behind.

    Args:
      path: a folder that does not exist yet.
      clients: for each client its examples, {"x": `[n, ...]`, "y": `[n]`, ..}, n >= 0; names,
        shapes and dtypes alike.

    Raises:
      ValueError: the folder exists, clients do not go together, there are none, or one holds NaN or
        infinity.
      OSError: the disk is full, or the folder cannot be written.
    """
    path = pathlib.Path(path)
    if path.exists():
        raise ValueError(
            f"Expected path to be a folder that does not exist yet, got {str(path)!r}."
        )
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    kinds: dict[str, tuple[str, tuple[int, ...]]] | None = None
    files: dict[str, Any] = {}
    offsets, digests = [0], bytearray()
    try:
        for number, client in enumerate(clients):
            arrays = {name: np.ascontiguousarray(client[name]) for name in sorted(client)}
            if not all(name.isidentifier() for name in arrays):
                raise ValueError(
                    f"Expected fields of client {number} to be identifiers, got {sorted(arrays)}."
                )
            for name, array in arrays.items():
                _check_dtype(name, array.dtype)
                if not _finite(array):
                    raise ValueError(
                        f"Expected {name} of client {number} to be finite, got NaN or infinity in "
                        "it."
                    )
            found = {name: (array.dtype.str, array.shape[1:]) for name, array in arrays.items()}
            if kinds is None:
                kinds = found
                files = {name: (partial / f"{name}.bin").open("wb") for name in kinds}
            sizes = {array.shape[0] for array in arrays.values() if array.ndim}
            if found != kinds or len(sizes) != 1:
                raise ValueError(
                    f"Expected client {number} to hold arrays like client 0's, {kinds}, got "
                    f"{found}."
                )
            for name, array in arrays.items():
                files[name].write(array.tobytes())
            offsets.append(offsets[-1] + sizes.pop())
            digests += digest(arrays.values())
        if kinds is None:
            raise ValueError("Expected at least one client, got none.")
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()
    np.save(partial / _OFFSETS, np.asarray(offsets, np.int64))
    np.save(partial / _DIGESTS, np.frombuffer(digests, np.uint8).reshape(-1, _DIGEST_SIZE))
    fields = {
        name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in kinds.items()
    }
    (partial / _INDEX).write_text(json.dumps({"format": FORMAT, "fields": fields}, indent=1) + "\n")
    partial.rename(path)
    return open_store(path)


def open_store(path: str | pathlib.Path) -> Store:
    """Opens a folder that `write` made; nothing but the index is read.

    Raises:
      CorruptDataError: a file is missing, truncated or foreign; one line with its name.
    """
    path = pathlib.Path(path)
    try:
        index = json.loads((path / _INDEX).read_text())
        if index["format"] != FORMAT:
            raise CorruptDataError(
                f"Expected {path / _INDEX} of format {FORMAT}, got {index['format']!r}: write the "
                "clients anew."
            )
        offsets, digests = (
            np.load(path / name, allow_pickle=False) for name in (_OFFSETS, _DIGESTS)
        )
        kinds = {
            name: (np.dtype(kind["dtype"]), tuple(kind["shape"]))
            for name, kind in index["fields"].items()
        }
        for name, (dtype, _) in kinds.items():
            _check_dtype(name, dtype)
        if not all(name.isidentifier() for name in kinds):
            raise CorruptDataError(
                f"Expected fields in {path / _INDEX} to be identifiers, got {sorted(kinds)}."
            )
    except CorruptDataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError) as reason:
        raise CorruptDataError(
            f"Expected {path} to be a folder of clients on disk: {reason}."
        ) from reason
    together = digests.dtype == np.uint8 and digests.shape == (offsets.size - 1, _DIGEST_SIZE)
    if offsets.ndim != 1 or offsets.size < 2 or not together or (np.diff(offsets) < 0).any():
        raise CorruptDataError(
            f"Expected {_OFFSETS} and {_DIGESTS} in {path} to go together, they do not."
        )
    fields: dict[str, np.ndarray] = {}
    for name, (dtype, shape) in kinds.items():
        file, count = path / f"{name}.bin", int(offsets[-1])
        wanted = count * dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        size = file.stat().st_size if file.is_file() else -1
        if size != wanted:
            raise CorruptDataError(
                f"Expected {file} to hold {wanted} bytes, got {'no file' if size < 0 else size}."
            )
        if wanted:
            # As a plain array on the same pages: a slice of a memmap costs ten times as much.
            fields[name] = np.asarray(np.memmap(file, dtype, "r", shape=(count, *shape)))
        else:
            fields[name] = np.zeros((count, *shape), dtype)
    return Store(path, fields, offsets, digests)


def digest(arrays: Iterable[np.ndarray]) -> bytes:
    """16 bytes that tell one client's arrays, in the order of their names, from all others."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return found.digest()[:_DIGEST_SIZE]


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _check_dtype(name: str, dtype: np.dtype) -> None:
    """ValueError unless raw bytes of this type mean the same to whoever reads them."""
    if dtype.kind not in "biuf" or dtype.name == "float128":
        raise ValueError(
            f"Expected fields of booleans, integers or floats that NumPy has, got {name} of "
            f"{dtype}."
        )


def read(
    store: Store, client_ids: np.ndarray, capacity: int, *, skip_corrupt: bool = False
) -> tuple[dict[str, np.ndarray], np.ndarray, list[int]]:
    """The examples of some clients, copied into memory and checked.

    Args:
      store: open.
      client_ids: integers `[K]`, -1 for an empty place.
      capacity: N, places for each client's examples; the most that a client has, for example.
      skip_corrupt: leave a client out whose bytes do not match their digest, instead of raising. To
        a private run that is a client without data: its claim stays true. Numbers that are not
        finite are handed on then: to leave their client out would move a sum by all of its records
        for the sake of one.

    Returns:
      `(examples, indices, skipped)`: name -> `[K * N, ...]`, int32 `[K, N]` (rows of it, -1 is
      padding), and the ids of clients that were left out.

    Raises:
      CorruptDataError: a client's bytes do not match, or (written by another program) hold NaN or
        infinity; one line that names the client.
      ValueError: an id is unknown, or a client has more examples than `capacity`.
    """
    _validate.positive_int(capacity=capacity)
    ids = np.asarray(client_ids)
    if ids.size and not (-1 <= ids.min() and ids.max() < store.num_clients):
        raise ValueError(
            f"Expected client_ids in [-1, {store.num_clients}), got {ids.min()} to {ids.max()}."
        )
    examples = {
        name: np.zeros((ids.size * capacity, *field.shape[1:]), field.dtype)
        for name, field in store.fields.items()
    }
    indices = np.full((ids.size, capacity), -1, np.int32)
    skipped: list[int] = []
    for place, client in enumerate(ids.tolist()):
        if client < 0:
            continue
        start, stop = int(store.offsets[client]), int(store.offsets[client + 1])
        if stop - start > capacity:
            raise ValueError(
                f"Expected capacity >= {stop - start}, client {client}'s examples, got "
                f"capacity={capacity}."
            )
        first, not_finite, mine = place * capacity, "", []
        for name in sorted(store.fields):
            mine.append(examples[name][first : first + stop - start])
            mine[-1][...] = store.fields[name][start:stop]
            if not skip_corrupt and not _finite(mine[-1]):
                not_finite = name
        if digest(mine) == store.digests[client].tobytes():
            if not_finite:
                raise CorruptDataError(
                    f"Expected {not_finite} of client {client} in {store.path} to be finite, got "
                    "NaN or infinity in it."
                )
            indices[place, : stop - start] = np.arange(first, first + stop - start)
            continue
        if not skip_corrupt:
            raise CorruptDataError(
                f"Expected the bytes of client {client} in {store.path} to match their digest, "
                "they do not: the disk or a copy has damaged them, or somebody has changed them."
            )
        for field in examples.values():
            field[first : first + stop - start] = 0
        skipped.append(client)
    return examples, indices, skipped


def damaged(store: Store) -> list[int]:
    """Ids of all clients whose bytes do not match their digest. Reads every byte."""
    fields, offsets = [store.fields[name] for name in sorted(store.fields)], store.offsets.tolist()
    held = (digest(field[a:b] for field in fields) for a, b in itertools.pairwise(offsets))
    return [client for client, found in enumerate(held) if found != store.digests[client].tobytes()]


def num_examples(client_data: ClientData | Store) -> np.ndarray:
    """Int `[C]`: examples of each client, in memory or on disk."""
    if isinstance(client_data, Store):
        return np.diff(client_data.offsets)
    return np.asarray((np.asarray(client_data.indices) >= 0).sum(axis=1))
