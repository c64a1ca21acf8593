"""A process that a bench asks for one line of JSON at a time, so that two thread pools do not fight
over the cores.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from bench import _harness

PATIENCE_S = 900.0


class Child:
    """`python -m module arguments`; the module prints with `speaker()`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        python: str = sys.executable,
        **environment: str,
    ) -> None:
        paths = [
            str(_harness.ROOT),
            str(_harness.ROOT / "kernels"),
            os.environ.get("PYTHONPATH", ""),
        ]
        self.errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  closed by `close`
        self.process = subprocess.Popen(
            [python, "-W", "ignore", "-m", module, *arguments],
            cwd=_harness.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            bufsize=1,
            env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    def answer(self) -> dict[str, Any]:
        """The next line. Raises RuntimeError where the child failed, ended or took too long."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.errors.seek(0)
            last = (self.errors.read().strip().splitlines() or ["nothing"])[-1]
            raise RuntimeError(
                f"no answer within {PATIENCE_S:.0f} s"
                if not ready
                else f"ended; its last words: {last}"
            )
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise RuntimeError(message["error"])
        return message

    def ask(self, line: str) -> dict[str, Any]:
        """Its answer to a line. Raises RuntimeError or OSError."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> dict[str, Any]:
        """Ends the child; what it says last, if anything."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            return self.answer()
        except (OSError, RuntimeError):
            return {}
        finally:
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self.errors.close()


def speaker() -> Callable[[dict[str, Any]], None]:
    """In the child: `message -> None`, a line to the parent. What libraries print goes to stderr
    from now on.
    """
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lambda message: print(json.dumps(message), file=lines, flush=True)


def error_text(error: Exception) -> str:
    """Its type and first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
