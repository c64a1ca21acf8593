"""What does a key of 256 bits cost: normals under ChaCha20, beside threefry's?

    python -m bench.kernels.generators [--quick]

A million float32 normals of one key, in one run: `gaussian_noise` with ChaCha20 and with threefry,
whose cipher fljax writes out, and `jax.random.normal` with threefry, as JAX draws it. The target is
at most 1.5 times threefry's time.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp

from bench import _harness, _tables
from fljax_kernels import add_gaussian_noise, chacha20

KINDS = {"chacha20": chacha20.IMPL, "threefry": "threefry2x32"}
COLUMNS = ("form", "normals", "min_ms", "cpu_ms", "spread", "ratio", "ratio_min", "ratio_cpu")


def measured(size: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each form; `ratio`: ChaCha20's time over this form's."""
    forms = {
        name: (lambda key: add_gaussian_noise(key, jnp.zeros(size), 1.0), kind)
        for name, kind in KINDS.items()
    }
    forms["threefry of jax.random"] = (lambda key: jax.random.normal(key, (size,)), "threefry2x32")
    steps = {
        name: _harness.compile_step(fun, jax.random.key(0, impl=kind))
        for name, (fun, kind) in forms.items()
    }
    timings = _harness.interleaved(
        {name: step.run for name, step in steps.items()}, repeats=repeats, budget_s=60.0
    )
    ours = timings["chacha20"]
    return [
        {
            "form": name,
            "normals": size,
            **step.row(),
            **timings[name].row(),
            "ratio": round(_harness.paired_ratio(ours, timings[name]), 3),
            "ratio_min": round(ours.min_ms / timings[name].min_ms, 3),
            "ratio_cpu": round(ours.cpu_ms / timings[name].cpu_ms, 3),
        }
        for name, step in steps.items()
    ]


def table(rows: _tables.Rows) -> str:
    """ChaCha20's time over each other form's."""
    body = [[row["form"], f"{row['cpu_ms']:.1f} ms", f"{row['ratio_cpu']:.2f}x"] for row in rows]
    return _tables.markdown(["a million normals", "CPU time", "ChaCha20's over it"], body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the normals")
    options = parser.parse_args(arguments)
    rows = measured(2**20 // (16 if options.quick else 1), 5 if options.quick else 41)
    print(_harness.table(rows, COLUMNS))
    path = _harness.write("generators_quick" if options.quick else "generators", rows)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
