"""In a target's own environment: `target` as argument, "name form devices" a line, JSON a line.

The parent is `python -m bench.aot`.
"""

import os
import sys
import time
from typing import Any

from bench import _child


def main() -> None:
    """Compiles what it is asked for until there is no more."""
    target = sys.argv[1]
    os.environ["JAX_PLATFORMS"] = "cpu"  # the target is compiled for, not run on
    say = _child.speaker()

    import jax

    from bench.aot import programs, targets

    def measured(name: str, form: str, count: int) -> dict[str, Any]:
        start = time.perf_counter()
        program = programs.PROGRAMS[name](count)[form]()
        traced, done = targets.compiled(target, count, program)
        row = targets.cost(target, traced, done)
        return row | {"compile_s": round(time.perf_counter() - start, 1)}

    say({"jax": jax.__version__, "device": targets.DEVICE[target]})
    for line in sys.stdin:
        name, form, count = line.split()
        try:
            say(measured(name, form, int(count)))
        except Exception as error:
            say({"failed": _child.error_text(error)})


if __name__ == "__main__":
    main()
