"""What does a key of 256 bits cost: draws under ChaCha20, beside threefry's?

    python -m bench.kernels.generators [--quick] [--numbers 67108864]

A million words, uniform numbers and normals of one key, in one run: by `jax.random` with ChaCha20
and with threefry, as JAX draws it, and by fljax, which writes threefry's cipher out. Normals are
`add_gaussian_noise`'s. The target is at most 1.5 times threefry's time. On an accelerator ChaCha20
is drawn by its kernel, whose words are held against XLA's form before the clock starts.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bench import _harness, _tables
from fljax_kernels import _threefry, add_gaussian_noise, chacha20

COLUMNS = ("what", "form", "min_ms", "cpu_ms", "spread", "ratio", "ratio_min", "ratio_cpu")
CHACHA20, JAX, WRITTEN_OUT = "chacha20", "threefry of jax.random", "threefry, written out"


def draws(size: int) -> dict[str, dict[str, Callable[[jax.Array], jax.Array]]]:
    """By what is drawn and by form: key -> draws `[size]`."""
    noise = lambda key: add_gaussian_noise(key, jnp.zeros(size), 1.0)
    bits = lambda key: jax.random.bits(key, (size,))
    uniform = lambda key: jax.random.uniform(key, (size,))
    normal = lambda key: jax.random.normal(key, (size,))
    return {
        "words": {
            CHACHA20: bits,
            JAX: bits,
            WRITTEN_OUT: lambda key: _threefry.uint32s(key, size),
        },
        "uniform numbers": {CHACHA20: uniform, JAX: uniform},
        "normals": {CHACHA20: noise, JAX: normal, WRITTEN_OUT: noise},
    }


def measured(size: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each form; `ratio`: ChaCha20's time over this form's."""
    on_cpu = jax.default_backend() == "cpu"
    ours = jax.random.key(0, impl=chacha20.IMPL if on_cpu else chacha20.PALLAS_IMPL)
    if not on_cpu:
        data = jax.random.key_data(ours)
        by_loop = jax.random.bits(jax.random.wrap_key_data(data, impl=chacha20.IMPL), (size,))
        assert bool((by_loop == jax.random.bits(ours, (size,))).all())
    keys = {CHACHA20: ours}
    threefry = jax.random.key(0, impl="threefry2x32")
    rows = []
    for what, forms in draws(size).items():
        steps = {
            form: _harness.compile_step(fun, keys.get(form, threefry))
            for form, fun in forms.items()
        }
        timings = _harness.interleaved(
            {form: step.run for form, step in steps.items()}, repeats=repeats, budget_s=60.0
        )
        base = timings[CHACHA20]
        rows += [
            {
                "what": what,
                "form": form,
                "numbers": size,
                **step.row(),
                **timings[form].row(),
                "ratio": round(_harness.paired_ratio(base, timings[form]), 3),
                "ratio_min": round(base.min_ms / timings[form].min_ms, 3),
                "ratio_cpu": round(base.cpu_ms / timings[form].cpu_ms, 3),
            }
            for form, step in steps.items()
        ]
    return rows


def table(rows: _tables.Rows) -> str:
    """ChaCha20's time over each other form's."""
    body = [
        [row["what"], row["form"], f"{row['cpu_ms']:.1f} ms", f"{row['ratio_cpu']:.2f}x"]
        for row in rows
    ]
    return _tables.markdown(["a million", "by", "CPU time", "ChaCha20's over it"], body)


def gpu_table(rows: _tables.Rows) -> str:
    """The same on a GPU, by the clock."""
    body = [
        [row["what"], row["form"], f"{row['median_ms']:.2f} ms", f"{row['ratio']:.2f}x"]
        for row in rows
    ]
    return _tables.markdown(["64 Mi", "by", "time", "ChaCha20's over it"], body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the numbers")
    parser.add_argument("--numbers", type=int, default=2**20, help="of each draw")
    options = parser.parse_args(arguments)
    rows = measured(options.numbers // (16 if options.quick else 1), 5 if options.quick else 41)
    print(_harness.table(rows, COLUMNS))
    path = _harness.write("generators_quick" if options.quick else "generators", rows)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
