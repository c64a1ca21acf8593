"""Are attacks faster together? 64 reconstructions in one program, 64 shadow models in one program.

    python -m bench.papers.attacks

The loop is how attacks are written elsewhere: a jitted step called from Python, one target (one
model) after the other. It is shown beside a jitted scan for each target (model), which leaves
Python out of the steps, and beside the one program, in which `vmap` puts all of them side by side.
The loop runs a few of the 64 in full, and is scaled: all of them cost the same.

What limits the one program: each target has a gradient of its own, and a step reads and writes it
many times (`step_mib`), which side by side is no less work than one by one. A loop loses its
dispatch, some 60 to 200 us a step: much where a step is small, little where it is not, as with
LeNet on a CPU.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import data
from fljax.attacks import gradient_inversion, shadow, victims
from fljax.models import Functional, softmax_cross_entropy

NUM = 64
SHAPE = (8, 8, 1)
ITERATIONS, STEPS, POOL, HIDDEN = 200, 200, 128, 16


def digits(count: int) -> tuple[jax.Array, jax.Array]:
    """So many real digits and their labels."""
    test = data.load("digits").train
    return jnp.asarray(test["x"][:count]), jnp.asarray(test["y"][:count])


def adam_step(value_and_grad: Callable[[Any], Any], signed: bool, clip: bool) -> Callable[..., Any]:
    """One jitted step, as a loop in Python calls it: (variables, moments, count) -> the same, and
    the value.
    """

    @jax.jit
    def step(
        variables: Any, first: Any, second: Any, count: jax.Array, rate: jax.Array, *rest: Any
    ) -> Any:
        value, grads = value_and_grad(variables, *rest)
        grads = jax.tree.map(jnp.sign, grads) if signed else grads
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
        scale = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        variables = jax.tree.map(
            lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), variables, first, second
        )
        return (
            jax.tree.map(lambda p: jnp.clip(p, 0, 1), variables) if clip else variables,
            first,
            second,
            value,
        )

    return step


def looped(step: Callable[..., Any], start: Any, rates: np.ndarray, *rest: Any) -> Any:
    """The loop in Python; the host does not wait for a step before it calls the next."""
    variables, first, second = start, *(jax.tree.map(jnp.zeros_like, start) for _ in range(2))
    for count, rate in enumerate(rates, start=1):
        variables, first, second, _ = step(
            variables, first, second, np.float32(count), np.float32(rate), *rest
        )
    return variables


def dense(key: jax.Array) -> Functional:
    """64-32-10 with tanh: a step of it is little more than its dispatch."""
    one, two = jax.random.split(key)
    params = {"a": jax.random.normal(one, (64, 32)) / 8, "b": jax.random.normal(two, (32, 10)) / 6}
    return Functional(params, lambda p, x: jnp.tanh(x.reshape(-1) @ p["a"]) @ p["b"])


def inversion(quick: bool, share: int, name: str, model: Functional) -> list[dict[str, Any]]:
    """Cosine distance, total variation, signed Adam; batch 1, native digits."""
    iterations = 20 if quick else ITERATIONS
    observe = gradient_inversion.gradient(gradient_inversion.soft_cross_entropy(model.apply))
    x, y = digits(NUM)
    x, y = x[:, None], jax.nn.one_hot(y, 10)[:, None]
    uploads = jax.jit(jax.vmap(observe, (None, 0, 0)))(model.params, x, y)
    settings = gradient_inversion.Settings(num_iterations=iterations, tv_weight=1e-3)
    keys = jax.random.key(1)

    def run(settings: Any) -> Callable[[Any, Any, Any], Any]:
        return lambda u, y, k: (
            gradient_inversion.invert(
                observe, model.params, u, y, k, shape=(1, *SHAPE), settings=settings
            ).x
        )

    one_target = jax.tree.map(lambda v: v[:1], (uploads, y))
    together = _harness.compile_step(run(settings), uploads, y, keys)
    alone = _harness.compile_step(run(settings), *one_target, keys)

    def objective(x: jax.Array, target: Any, y: jax.Array) -> jax.Array:
        """`invert`'s own objective, at one point."""
        found = observe(model.params, x, y)
        inner = sum(
            jnp.vdot(a, b)
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(target), strict=True)
        )
        norms = [
            jnp.sqrt(sum(jnp.vdot(v, v) for v in jax.tree.leaves(tree))) for tree in (found, target)
        ]
        return (
            1
            - inner / (norms[0] * norms[1])
            + settings.tv_weight * gradient_inversion.total_variation(x)
        )

    step = adam_step(jax.value_and_grad(objective), signed=True, clip=True)
    rates = settings.learning_rate * 0.1 ** np.searchsorted(
        (3 / 8, 5 / 8, 7 / 8), np.arange(iterations) / iterations, "right"
    )
    start = jax.random.uniform(jax.random.key(2), (1, *SHAPE))
    targets = [jax.tree.map(lambda v, at=at: v[at], (uploads, y)) for at in range(share)]

    def loop() -> Any:
        return [looped(step, start, rates, *target) for target in targets]

    def scans() -> Any:
        return [alone.run() for _ in range(share)]

    first = jax.block_until_ready(loop())
    errors = [float(jnp.mean(jnp.square(a - b[0]))) for a, b in zip(first, x, strict=False)]
    found = np.asarray(jax.block_until_ready(together.run()))
    whole = float(np.median(np.square(found[:, 0] - np.asarray(x[:, 0])).mean((1, 2, 3))))
    if not quick and not (whole < 0.05 and np.median(errors) < 0.05):
        raise AssertionError(
            f"inversion failed: median MSE {whole:.3g} together, {np.median(errors):.3g} in the "
            "loop"
        )
    forms = {"python loop": loop, "scan each": scans}
    rows_found = rows(f"64 inversions, batch 1, {name}", together, forms, share, iterations)
    # What one step of one target has to do: the limit of the one program is the traffic of
    # per-target gradients.
    cost = (
        jax.jit(jax.value_and_grad(objective)).lower(start, *targets[0]).compile().cost_analysis()
        or {}
    )
    costs = cost[0] if isinstance(cost, list) else cost
    rows_found[0] |= {
        "step_mflop": costs["flops"] / 1e6,
        "step_mib": costs["bytes accessed"] / _harness.MEBI,
    }
    return rows_found


def shadows(quick: bool, share: int) -> list[dict[str, Any]]:
    """Halves of a pool of digits, dense model of one hidden layer, minibatches of 32."""
    steps, hidden = 20 if quick else STEPS, HIDDEN
    x, y = digits(POOL)
    pool = {"x": x, "y": y}

    def init(key: jax.Array) -> Any:
        one, two = jax.random.split(key)
        draws = (
            jax.random.normal(one, (64, hidden)) / 8,
            jax.random.normal(two, (hidden, 10)) / hidden**0.5,
        )
        return {"a": draws[0], "c": jnp.zeros(hidden), "b": draws[1], "d": jnp.zeros(10)}

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(x.reshape(-1) @ params["a"] + params["c"]) @ params["b"] + params["d"]

    loss = softmax_cross_entropy(apply)
    included = shadow.halves(jax.random.key(3), NUM, POOL)
    keys = jax.random.split(jax.random.key(4), NUM)
    options = {"num_steps": steps, "batch_size": 32, "learning_rate": 1e-2}
    train = shadow.trainer(loss, init, **options)
    together = _harness.compile_step(train, pool, included, keys)
    in_turn = _harness.compile_step(
        shadow.trainer(loss, init, models_at_once=1, **options), pool, included, keys
    )
    alone = _harness.compile_step(train, pool, included[:1], keys[:1])

    def objective(params: Any, rows: jax.Array, members: jax.Array) -> jax.Array:
        taken, here = jax.tree.map(lambda v: v[rows], pool), members[rows]
        losses = jax.vmap(loss, (None, 0))(params, taken)
        return jnp.sum(jnp.where(here, losses, 0)) / jnp.maximum(1, jnp.sum(here)).astype(
            losses.dtype
        )

    step = adam_step(jax.value_and_grad(objective), signed=False, clip=False)
    rng = np.random.default_rng(5)
    batches = [rng.integers(0, POOL, (steps, 32)).astype(np.int32) for _ in range(share)]
    starts = [init(key) for key in jax.random.split(jax.random.key(6), share)]

    def loop() -> Any:
        out = []
        for start, rows_of, members in zip(starts, batches, included[:share], strict=True):
            variables, first, second = (
                start,
                *(jax.tree.map(jnp.zeros_like, start) for _ in range(2)),
            )
            for count, rows in enumerate(rows_of, start=1):
                variables, first, second, _ = step(
                    variables, first, second, np.float32(count), np.float32(1e-2), rows, members
                )
            out.append(variables)
        return out

    def scans() -> Any:
        return [alone.run() for _ in range(share)]

    accuracy = [
        float(np.mean(np.asarray(jax.vmap(apply, (None, 0))(p, x).argmax(-1) == y)[np.asarray(m)]))
        for p, m in zip(loop(), included, strict=False)
    ]
    params = together.run()
    ours = float(
        np.mean(
            np.asarray(jax.vmap(jax.vmap(apply, (None, 0)), (0, None))(params, x).argmax(-1) == y)[
                np.asarray(included)
            ]
        )
    )
    if not quick and not (min(ours, *accuracy) > 0.9):
        raise AssertionError(
            f"shadow models did not learn their members: {ours:.3f} together, {accuracy} in the "
            "loop"
        )
    cases = {"python loop": loop, "scan each": scans}
    found = rows("64 shadow models, dense 64-16-10", together, cases, share, steps)
    timing = _harness.interleaved({"in turn": in_turn.run}, repeats=5)["in turn"]
    found.append(
        {"case": found[0]["case"], "form": "one program, one by one", "min_ms": timing.min_ms}
    )
    return found


def rows(
    case: str, together: Any, others: dict[str, Callable[[], Any]], share: int, steps: int
) -> list[dict[str, Any]]:
    """One program against each other form, scaled from `share` of them to all 64."""
    timings = _harness.interleaved({"one program": together.run, **others}, repeats=5, budget_s=60)
    scale = NUM / share
    one = timings["one program"]
    found = [
        {
            "case": case,
            "form": "one program",
            "min_ms": one.min_ms,
            "median_ms": one.median_ms,
            "us_per_step": 1e3 * one.min_ms / (NUM * steps),
            **together.row(),
        }
    ]
    for name in others:
        timing = timings[name]
        found.append(
            {
                "case": case,
                "form": f"{name}, {share} of {NUM}, scaled",
                "min_ms": scale * timing.min_ms,
                "median_ms": scale * timing.median_ms,
                "us_per_step": 1e3 * timing.min_ms / (share * steps),
                "times": scale * _harness.paired_ratio(timing, one),
                "times_min": scale * timing.min_ms / one.min_ms,
            }
        )
    return found


def table(rows: _tables.Rows) -> str:
    """64 of a kind in one program, beside one after the other."""
    names = {"python loop": "a jitted step called from Python", "scan each": "a jitted search each"}
    body = [
        [row["case"], names[kind], f"{row['times']:.1f}x"]
        for row in rows
        for kind in names
        if row["form"].startswith(kind)
    ]
    return _tables.markdown(["64 in one program", "against one after the other by", "faster"], body)


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, no JSON: does it run?")
    parser.add_argument("--share", type=int, default=4, help="targets of the loop that run in full")
    options = parser.parse_args()
    found = []
    lenet = victims.smooth_lenet(example_shape=SHAPE, num_classes=10, key=jax.random.key(0))
    parts: list[Callable[[], list[dict[str, Any]]]] = [
        lambda: inversion(options.quick, options.share, "LeNet", lenet),
        lambda: inversion(options.quick, options.share, "dense 64-32-10", dense(jax.random.key(7))),
        lambda: shadows(options.quick, options.share),
    ]
    for part in parts:
        found += part()
        columns = [
            "case",
            "form",
            "min_ms",
            "us_per_step",
            "times",
            "times_min",
            "step_mflop",
            "step_mib",
        ]
        print(_harness.table(found, columns), flush=True)
    if not options.quick:
        path = _harness.write(
            "attacks", found, note="times: how much longer than the one program, all 64 each"
        )
        print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
