"""By which programs, when and how a run was made: one line a process, beside what it computed."""

import contextlib
import datetime
import json
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import time
from typing import Any

import jax

import fljax_kernels
from fljax.simulation.record import folder

_SEED = re.compile(r"(--seed[= ])\S+")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit that the running code was taken from; None outside a checkout of it, such as an
    environment that lies in another project's.
    """
    here = pathlib.Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    known = [*git, "ls-files", "--error-unmatch", here.name]
    described = [*git, "describe", "--always", "--dirty", "--abbrev=12"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for command in (known, described):
            said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return said.stdout.strip() or None
    return None


def command() -> str:
    """The command line of this process; a fixed seed, which removes the noise, is left out."""
    name = pathlib.Path(sys.argv[0]).name if sys.argv else "python"
    return _SEED.sub(r"\1FIXED", shlex.join([name, *sys.argv[1:]]))


class Session:
    """One process's work on a run, from its first round to its last."""

    def __init__(self, rounds_done: int) -> None:
        self._began, self._since, self._from = _now(), time.monotonic(), rounds_done

    def write(self, run_dir: pathlib.Path, rounds_done: int) -> None:
        """Adds a line to the run's folder, if a round was computed. Raises DiskFullError."""
        if rounds_done == self._from:
            return
        line = {
            "began": self._began,
            "ended": _now(),
            "wall_s": round(time.monotonic() - self._since, 1),
            "rounds": [self._from, rounds_done],
            "fljax": fljax_kernels.__version__,
            "commit": commit(),
            "jax": jax.__version__,
            "python": platform.python_version(),
            "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
            "command": command(),
        }
        with folder.disk_full_in_one_line(run_dir), (run_dir / folder.SESSIONS).open("a") as file:
            file.write(json.dumps(line) + "\n")


def sessions(run_dir: pathlib.Path) -> list[dict[str, Any]]:
    """All lines that are there; of a process that was killed there is none."""
    path = run_dir / folder.SESSIONS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def lines(run_dir: pathlib.Path) -> list[tuple[str, str]]:
    """(what, in words) for a report."""
    found = []
    for one in sessions(run_dir):
        first, last = one["rounds"]
        code = f"fljax {one['fljax']}" + (f" ({one['commit']})" if one["commit"] else "")
        found += [
            (
                f"rounds {first + 1} to {last}",
                f"{one['began']} to {one['ended']}, {one['wall_s']:g} s",
            ),
            ("command", one["command"]),
            ("with", f"{code}, jax {one['jax']}, Python {one['python']}, {one['device']}"),
        ]
    return found
