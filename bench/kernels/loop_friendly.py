"""Is `loop_friendly` worth it inside loops, and what does it cost outside?

    python -m bench.kernels.loop_friendly [--rounds 5] [--quick]

- sgd5_scan: 5 SGD steps of the FEMNIST CNN, batch 20, in one `lax.scan`: plain, unrolled, and
  rewritten
- gradient_...: one gradient of the mean loss outside any loop

`loop_friendly(program)` leaves what lies outside loops native; with inside_loop=True (here: of a
loss that is called in a loop, or outside of any) everything is rewritten.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from bench import _harness
from bench.kernels import workloads
from fljax_kernels import loop_friendly

STEPS, BATCH_SIZE, LEARNING_RATE = 5, 20, 0.1
Loss = Callable[[Any, Any], jax.Array]


def mean_gradient(loss: Loss) -> Callable[[Any, Any], Any]:
    """`(params, batch) -> tree`."""
    return lambda params, batch: jax.grad(lambda p: jax.vmap(loss, (None, 0))(p, batch).mean())(
        params
    )


def sgd(loss: Loss, unroll: int = 1) -> Callable[[Any, Any], Any]:
    """STEPS steps over STEPS * BATCH_SIZE examples in a scan."""
    gradient = mean_gradient(loss)

    def run(params: Any, batch: Any) -> Any:
        batches = jax.tree.map(lambda x: x.reshape(STEPS, BATCH_SIZE, *x.shape[1:]), batch)

        def step(params: Any, batch: Any) -> tuple[Any, None]:
            return jax.tree.map(
                lambda p, g: p - LEARNING_RATE * g, params, gradient(params, batch)
            ), None

        return lax.scan(step, params, batches, unroll=unroll)[0]

    return run


def compare(
    case: str, forms: dict[str, Callable[[Any, Any], Any]], task: workloads.Workload, rounds: int
) -> list[dict[str, Any]]:
    """One row a form; the first form is the denominator."""
    steps = {
        name: _harness.compile_step(form, task.params, task.batch) for name, form in forms.items()
    }
    plain, *others = steps
    expected = steps[plain].run()
    rows: dict[str, dict[str, Any]] = {
        name: {"case": case, "form": name, **step.row()} for name, step in steps.items()
    }
    for name in others:
        # 20 layers of GroupNorm carry a float32 rounding of the first to 1e-4 of the last.
        rows[name]["distance"] = _harness.check(
            f"{case} {name}", steps[name].run(), expected, rtol=1e-3
        )
    timings = _harness.interleaved(
        {n: s.run for n, s in steps.items()}, repeats=rounds, budget_s=25.0
    )
    for name, timing in timings.items():
        rows[name] |= timing.row()
        rows[name]["ratio"] = round(_harness.paired_ratio(timing, timings[plain]), 3)
        rows[name]["ratio_cpu"] = round(timing.cpu_ms / timings[plain].cpu_ms, 3)
    return list(rows.values())


COLUMNS = (
    "case",
    "form",
    "median_ms",
    "min_ms",
    "cpu_ms",
    "spread",
    "ratio",
    "ratio_cpu",
    "temp_mib",
    "compile_s",
)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="at least 5")
    parser.add_argument("--quick", action="store_true", help="FEMNIST only")
    options = parser.parse_args(arguments)
    key = jax.random.key(0)
    task = workloads.femnist(key, STEPS * BATCH_SIZE)
    forms = {
        "plain": sgd(task.loss),
        "plain, unrolled": sgd(task.loss, STEPS),
        "loop_friendly(program)": loop_friendly(sgd(task.loss)),
        "inside_loop(loss)": sgd(loop_friendly(task.loss, inside_loop=True)),
    }
    rows = compare("sgd5_scan", forms, task, options.rounds)
    outside = {"femnist_20": workloads.femnist(key, BATCH_SIZE)}
    if not options.quick:
        outside |= {"cifar_64": workloads.cifar(key, 64), "resnet_64": workloads.resnet20(key, 64)}
    for name, task in outside.items():
        forms = {
            "plain": mean_gradient(task.loss),
            "loop_friendly(program)": loop_friendly(mean_gradient(task.loss)),
            "inside_loop(loss)": mean_gradient(loop_friendly(task.loss, inside_loop=True)),
        }
        rows += compare(f"gradient_{name}", forms, task, options.rounds)
    print(_harness.table(rows, COLUMNS))
    path = _harness.write("loop_friendly", rows)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
