"""What a run began with, in digests: the noise of a round that is taken again must not meet other
data.

Examples in memory are digested client by client, and the rows that no client holds beside them; of
many clients, and of all other arrays, blocks of neighbours have a digest together. Of clients on
disk it is the digests that their store keeps of each client's bytes, in blocks of clients: whoever
changes a client has to change its digest, too, or the client is refused when it is read. A
fingerprint is of private data: under a secret seed it is keyed, and says nothing to who has not got
that.
"""

import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from fljax.data import store
from fljax.errors import CorruptDataError
from fljax.simulation import config as config_lib
from fljax.simulation import seeds
from fljax.simulation.config import Config
from fljax.simulation.record import folder
from fljax.simulation.task import Task

_FORMAT = 3
_BLOCKS = 256  # of an array, at most: what changed is named so finely, and the file stays small
READ_WHOLE = 2**30  # bytes; clients on disk that take more are not all read when a run goes on


def _hashed(array: np.ndarray, key: bytes) -> str:
    return hashlib.blake2b(np.asarray(array).tobytes(), digest_size=16, key=key).hexdigest()


def _blocks(array: np.ndarray, key: bytes) -> dict[str, Any]:
    each = max(1, -(-len(array) // _BLOCKS))
    return {
        "kind": f"{array.dtype} {list(array.shape)}",
        "rows": len(array),
        "each": each,
        "digests": [_hashed(array[at : at + each], key) for at in range(0, len(array), each)],
    }


def _of_clients(array: np.ndarray, table: np.ndarray, key: bytes) -> dict[str, Any]:
    """As `_blocks`, of the rows of `array` that each client holds, in the order of `table`."""
    found, each = np.asarray(array), max(1, -(-len(table) // _BLOCKS))
    held = [table[at : at + each] for at in range(0, len(table), each)]
    return {
        "kind": f"{array.dtype} {list(array.shape)} of {len(table)} clients",
        "rows": len(table),
        "each": each,
        "digests": [_hashed(found[rows[rows >= 0]], key) for rows in held],
    }


def of(
    task: Task, config: Config, seed: seeds.Seed, programs: dict[str, str] | None = None
) -> dict[str, Any]:
    """Plain data that are equal for runs of one config and seed on the same data, wherever those
    are kept.

    Where damaged clients are skipped, all bytes of all clients on disk are read: who is damaged is
    a part of the data.
    programs: digests of what a caller brought, whose code no name stands for.
    """
    key, data, damaged = seeds.digest_key(seed), task.client_data, None
    found = {
        f"held-out {name}": _blocks(array, key) for name, array in sorted(task.dataset.test.items())
    }
    if isinstance(data, store.Store):
        kinds = [
            f"{name} {field.dtype} {list(field.shape[1:])}"
            for name, field in sorted(data.fields.items())
        ]
        kind = f"{data.num_clients} clients of {', '.join(kinds)}"
        found["sizes of clients on disk"] = _blocks(np.diff(data.offsets), key)
        found["clients on disk"] = _blocks(data.digests, key) | {"kind": kind}
        if config.data.corrupt_clients == "skip":
            damaged = store.damaged(data)
    else:
        table = np.asarray(data.indices)
        found["partition over clients"] = _blocks(table, key)
        for name, array in sorted(task.dataset.train.items()):
            found[f"training {name} of clients"] = _of_clients(array, table, key)
            nobodys = np.setdiff1d(np.arange(len(array)), table)
            if nobodys.size:
                found[f"training {name} of nobody"] = _blocks(np.asarray(array)[nobodys], key)
    return {
        "format": _FORMAT,
        "config": config_lib.digest(config),
        "seed": seeds.name(seed),
        "data": found,
        "damaged": damaged,
        "own": programs or {},
    }


def check_bytes(task: Task, config: Config) -> None:
    """Clients on disk whose bytes are not those of their digests, found before a run goes on rather
    than in a round.

    Nothing is read of a store above `READ_WHOLE`, whose clients are checked as they are sampled.

    Raises:
      CorruptDataError: a client is damaged and damaged ones are not to be skipped; names the first.
    """
    data = task.client_data
    if not isinstance(data, store.Store) or config.data.corrupt_clients == "skip":
        return
    if sum(field.nbytes for field in data.fields.values()) <= READ_WHOLE:
        damaged = store.damaged(data)
        if damaged:
            raise CorruptDataError(
                f"Expected the bytes of client {damaged[0]} in {data.path} to match their digest, "
                f"they do not: {len(damaged)} of {data.num_clients} clients have changed since "
                "they were written."
            )


def digest(found: dict[str, Any]) -> str:
    """SHA-256 of a whole fingerprint."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In words, what is not as it was; nothing where all is."""
    if before["config"] != now["config"]:
        return ["config"]
    if before["seed"] != now["seed"]:
        return ["seed"]
    words = []
    for name in sorted({*before["data"], *now["data"]}):
        old, new = before["data"].get(name), now["data"].get(name)
        if old == new:
            continue
        if old is None or new is None or old["kind"] != new["kind"]:
            was, is_ = ("none" if part is None else part["kind"] for part in (old, new))
            words.append(f"{name} ({was} before, {is_} now)")
            continue
        bad = [
            at
            for at, (a, b) in enumerate(zip(old["digests"], new["digests"], strict=True))
            if a != b
        ]
        each, noun = new["each"], "client" if "clients" in name else "row"
        first, last = bad[0] * each, min(bad[0] * each + each, new["rows"]) - 1
        where = f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"
        words.append(
            f"{name} ({where}{f' and {len(bad) - 1} more places' if len(bad) > 1 else ''})"
        )
    for name in sorted({*before["own"], *now["own"]}):
        if before["own"].get(name) != now["own"].get(name):
            words.append(name)
    if before["damaged"] != now["damaged"]:
        words.append(f"damaged clients ({before['damaged']} before, {now['damaged']} now)")
    return words


def read(run_dir: pathlib.Path) -> dict[str, Any] | None:
    """The fingerprint in a run folder; None where there is none.

    Raises:
      ValueError: the file is not one of this format.
    """
    path = run_dir / folder.FINGERPRINT
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(folder.read_text(path))
        if found["format"] == _FORMAT and changed(found, found) == []:
            return found
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        pass
    raise ValueError(
        f"Expected {path} to be a fingerprint of format {_FORMAT}, got something else."
    )


def write(run_dir: pathlib.Path, found: dict[str, Any]) -> None:
    """Writes the fingerprint for its owner alone. Raises DiskFullError."""
    folder.write_atomically(
        run_dir / folder.FINGERPRINT, json.dumps(found, sort_keys=True) + "\n", mode=0o600
    )
