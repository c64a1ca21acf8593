"""How many clients train side by side within a memory budget: XLA is asked, not guessed."""

import re
from collections.abc import Callable
from typing import Any

import jax

_UNITS = {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


def parse(memory: str) -> int:
    """Bytes of an amount such as "4GiB" or "500MB".

    Raises:
      ValueError: it is no positive number with one of these units.
    """
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*", str(memory))
    if found is None or found[2] not in _UNITS or not float(found[1]) > 0:
        raise ValueError(
            f"Expected memory like 4GiB, a number > 0 with one of {list(_UNITS)}, got "
            f"memory={memory!r}."
        )
    return int(float(found[1]) * _UNITS[found[2]])


def program_bytes(lowered: jax.stages.Lowered) -> int:
    """What a program needs on a device: arguments, results and scratch, without what results share
    with arguments.
    """
    found: Any = lowered.compile().memory_analysis()
    if found is None:
        raise ValueError(
            f"Expected a backend that says what a program needs, got {jax.default_backend()}."
        )
    needed = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return int(needed - found.alias_size_in_bytes)


def chunk_size(
    memory: str, largest: int, lower: Callable[[int | None], jax.stages.Lowered]
) -> int | None:
    """None if the program fits into `memory` as it is; else the largest of `largest`, its half, ..,
    1 that fits.

    Args:
      memory: as for `parse`, of one device.
      largest: clients in a chunk to begin with.
      lower: the round's program with chunks of so many clients; with None, of as many as are
        fastest.

    Raises:
      ValueError: not even one client at a time fits; says what that needs.
    """
    budget = parse(memory)
    if program_bytes(lower(None)) <= budget:
        return None
    size = largest
    while True:
        needed = program_bytes(lower(size))
        if needed <= budget:
            return size
        if size == 1:
            raise ValueError(
                f"Expected memory >= {-(-needed // 2**20)}MiB, which a round needs in its smallest "
                f"chunks, got memory={memory!r}."
            )
        size //= 2
