"""What noise in the data costs a training step, beside DP-SGD, and 1,000 clients' channels solved
in one call.

    python -m bench.papers.channel                   # four networks and the solver: 6 minutes
    python -m bench.papers.channel --models lenet    # one of them

One step of SGD on a batch of 64 images 32 x 32 x 3, outside any loop:

- plain, plain_pools: no defence, as it is and with `loop_friendly(loss)`; the quicker is the
  denominator
- natural, personalized, white: that step on noisy records, each with new noise of its own
  (`fljax.data.channel`)
- white, white_1000: the same, its noise made from 100 and from 1,000 public records
- dp_sgd, dp_psac: clipped or adaptively scaled sum by `per_example_grads`, noise, one step

Every form is checked before it is timed: a channel against the plain step on the noisy records; DP
against a loop over single gradients with the same noise (VGG16: on 4 images). `epoch_s` is 782
steps, 50,000 records. `reported` is the ratio that Table 2 of arXiv:2403.01268 gives for GPUs,
Opacus as its DP-SGD: of another machine and other code, so only the order can be compared. The
solver's residual is |capacity / nats - 1|, in float64 at its answer.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import models
from fljax.data import channel
from fljax.types import Batch, LossFn, Params
from fljax_kernels import add_gaussian_noise, loop_friendly, per_example_grads, spectral
from fljax_kernels.spectral.channel import NEWTON_STEPS

BATCH, SHAPE, CLASSES, RECORDS = 64, (32, 32, 3), 10, 50_000
CLIP, NOISE, PSAC = 1.0, 0.8, 0.1
RATE = 1.0  # large, or float32 parameters round away what is compared of a step
FACTOR_RECORDS = {"white": 100, "white_1000": 1_000}
DP_FORMS = ("dp_sgd", "dp_psac")
FORMS = {
    "lenet": ("natural", "personalized", *FACTOR_RECORDS, *DP_FORMS),
    "resnet10": ("natural", "dp_sgd"),
    "alexnet": ("natural", "dp_sgd"),
    "vgg16": ("natural", "dp_sgd"),
}
# Table 2 of arXiv:2403.01268: seconds of 25 epochs over those of plain SGD.
REPORTED = {
    "lenet": {"natural": 1.1043, "dp_sgd": 1.5716},
    "resnet10": {"natural": 1.0433, "dp_sgd": 2.2385},
    "alexnet": {"natural": 1.0852, "dp_sgd": 2.7366},
    "vgg16": {"natural": 1.0538, "dp_sgd": 5.8485},
}
Step = Callable[[Params, Batch, jax.Array], Params]


def moved(params: Params, direction: Params) -> Params:
    """One step of SGD."""
    return jax.tree.map(lambda p, g: p - RATE * g, params, direction)


def plain(loss: LossFn) -> Step:
    """Without defence; the third argument is not used."""

    def step(params: Params, batch: Batch, use: jax.Array) -> Params:
        del use
        return moved(params, jax.grad(lambda p: jax.vmap(loss, (None, 0))(p, batch).mean())(params))

    return step


def noise_of(kind: str) -> channel.RecordNoise:
    """The noise of one client."""
    log_noise_var, one = jnp.float32(math.log(0.01)), jnp.float32(1.0)
    if kind == "personalized":
        return channel.RecordNoise(log_noise_var, jnp.asarray(channel.eye_mask(SHAPE), jnp.float32))
    if kind in FACTOR_RECORDS:
        records = (
            np.random.default_rng(0).uniform(size=(FACTOR_RECORDS[kind], *SHAPE)).astype(np.float32)
        )
        return channel.RecordNoise(
            jnp.float32(0.0), 1e-4 * one, jnp.asarray(channel.data_factor(records))
        )
    return channel.RecordNoise(log_noise_var, one)


def view(noise: channel.RecordNoise, batch: Batch, use: jax.Array) -> Batch:
    """What training sees of the batch."""
    client_key = channel.client_keys(
        jax.random.key(3, impl="threefry2x32"), jnp.zeros(1, jnp.int32)
    )[0]
    rows = jnp.arange(len(batch["x"]))
    return {
        **batch,
        "x": channel.noisy(noise, batch["x"], channel.record_keys(client_key, rows, use)),
    }


def with_noise(loss: LossFn, noise: channel.RecordNoise) -> Step:
    """The plain step on noisy records."""
    step = plain(loss)
    return lambda params, batch, use: step(params, view(noise, batch, use), use)


def factors(form: str) -> Callable[[jax.Array], jax.Array]:
    """Weights of gradients, from their norms."""
    if form == "dp_sgd":
        return lambda norms: jnp.minimum(1.0, CLIP / jnp.maximum(norms, 1e-12))
    return lambda norms: CLIP / (norms + PSAC / (norms + PSAC))


def private(loss: LossFn, form: str) -> Step:
    """DP-SGD or DP-PSAC through the implicit matrix of gradients."""
    grads = per_example_grads(loss)

    def step(params: Params, batch: Batch, use: jax.Array) -> Params:
        total, _ = grads(params, batch).weighted_sum(factors(form))
        key = jax.random.fold_in(jax.random.key(4, impl="threefry2x32"), use)
        noisy = add_gaussian_noise(key, total, NOISE * CLIP)
        return moved(params, jax.tree.map(lambda g: g / len(batch["x"]), noisy))

    return step


def private_by_loop(
    loss: LossFn, form: str, params: Params, batch: Batch, use: jax.Array
) -> Params:
    """The same by its definition: one gradient after the other."""

    @jax.jit
    def add(total: Params, example: Any) -> Params:
        gradient = jax.grad(loss)(params, example)
        norm = jnp.sqrt(
            sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient)), jnp.zeros(()))
        )
        return jax.tree.map(lambda t, g: t + factors(form)(norm) * g, total, gradient)

    total = jax.tree.map(jnp.zeros_like, params)
    for at in range(len(batch["x"])):
        total = add(total, {name: leaf[at] for name, leaf in batch.items()})
    key = jax.random.fold_in(jax.random.key(4, impl="threefry2x32"), use)
    noisy = add_gaussian_noise(key, total, NOISE * CLIP)
    return moved(params, jax.tree.map(lambda g: g / len(batch["x"]), noisy))


def change(after: Params, before: Params) -> Params:
    """How far the step went; the parameters themselves would hide a wrong step in a relative
    distance.
    """
    return jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), after, before)


def measure(name: str, rounds: int, budget_s: float) -> list[dict[str, Any]]:
    """One row a form of one network."""
    functional = models.create(
        name, example_shape=SHAPE, num_classes=CLASSES, key=jax.random.key(0)
    )
    params, loss = functional.params, models.softmax_cross_entropy(functional.apply)
    rng = np.random.default_rng(1)
    batch: Batch = {
        "x": jnp.asarray(rng.uniform(size=(BATCH, *SHAPE)), jnp.float32),
        "y": jnp.asarray(rng.integers(0, CLASSES, BATCH), jnp.int32),
    }
    use = jnp.int32(5)
    base = {
        "model": name,
        "params": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "batch": BATCH,
    }
    losses = {"plain": loss, "plain_pools": loop_friendly(loss)}
    steps = {
        form: _harness.compile_step(plain(fun), params, batch, use) for form, fun in losses.items()
    }
    distances = {
        "plain_pools": _harness.check(
            name, *(change(s.run(), params) for s in steps.values()), rtol=1e-3
        )
    }
    # The channels' step is the plain one that is the quicker of the two, and so is the denominator.
    best = quicker(steps)
    reference = jax.jit(plain(losses[best]))
    for form in FORMS[name]:
        if form in DP_FORMS:
            # Not of all images where 64 single gradients of 134 million numbers would take minutes.
            few = {key: leaf[: 4 if name == "vgg16" else BATCH] for key, leaf in batch.items()}
            steps[form] = _harness.compile_step(private(loss, form), params, batch, use)
            checked = (
                steps[form]
                if name != "vgg16"
                else _harness.compile_step(private(loss, form), params, few, use)
            )
            expected = change(private_by_loop(loss, form, params, few, use), params)
        else:
            noise = noise_of(form)
            checked = steps[form] = _harness.compile_step(
                with_noise(losses[best], noise), params, batch, use
            )
            expected = change(reference(params, jax.jit(view)(noise, batch, use), use), params)
        # Records that differ in their last bit turn a ReLU at its kink: 5e-3 of AlexNet's gradient,
        # measured.
        distances[form] = _harness.check(
            f"{name} {form}", change(checked.run(), params), expected, rtol=2e-2
        )
    print(f"{name}: checked, {best} is the quicker plain step", flush=True)
    timings = _harness.interleaved(
        {n: s.run for n, s in steps.items()}, repeats=rounds, budget_s=budget_s
    )
    denominator = min(("plain", "plain_pools"), key=lambda form: timings[form].min_ms)
    rows = []
    for form, timing in timings.items():
        row = {
            **base,
            "form": form,
            "of": denominator,
            "distance": distances.get(form),
            **steps[form].row(),
        }
        row |= timing.row()
        row["ratio"] = round(_harness.paired_ratio(timing, timings[denominator]), 3)
        row["ratio_min"] = round(timing.min_ms / timings[denominator].min_ms, 3)
        row["ratio_cpu"] = round(timing.cpu_ms / timings[denominator].cpu_ms, 3)
        row["reported"] = REPORTED[name].get(form)
        row["epoch_s"] = round(timing.min_ms / 1e3 * math.ceil(RECORDS / BATCH), 1)
        rows.append(row)
    return rows


def quicker(steps: dict[str, _harness.Step]) -> str:
    """The name of the step whose least time is the less, of up to 25 calls in turn within 3
    seconds.
    """
    least = dict.fromkeys(steps, math.inf)
    start = time.perf_counter()
    for call in range(25):
        if call > 1 and time.perf_counter() - start > 3:
            break
        for name, step in steps.items():
            before = time.perf_counter()
            jax.block_until_ready(step.run())
            least[name] = min(least[name], time.perf_counter() - before)
    return min(least, key=least.__getitem__)


def solver(rounds: int, num_clients: int = 1_000, size: int = 3_072) -> dict[str, Any]:
    """1,000 spectra 1 / i^a, a from 0 to 3, at budgets from 1e-3 to 1e4 nats."""
    powers = np.linspace(0.0, 3.0, num_clients)
    values = np.arange(1.0, size + 1)[None] ** -powers[:, None]
    nats = np.geomspace(1e-3, 1e4, num_clients)[np.random.default_rng(2).permutation(num_clients)]
    arguments = jnp.asarray(values, jnp.float32), jnp.asarray(nats, jnp.float32)
    step = _harness.compile_step(jax.vmap(spectral.solve_log_noise_var), *arguments)
    # In float64 on the same float32 values: what rounding them to float32 changes is not the
    # solver's.
    given, asked = (np.asarray(argument, np.float64) for argument in arguments)
    found = np.asarray(step.run(), np.float64)
    reached = 0.5 * np.logaddexp(0.0, np.log(given) - found[:, None]).sum(axis=1)
    worst = float(np.abs(reached / asked - 1).max())
    if not worst <= 1e-6:
        raise AssertionError(f"solver: relative residual {worst:.3g} > 1e-6")
    timing = _harness.interleaved({"solver": step.run}, repeats=rounds, budget_s=15.0)["solver"]
    row = {
        "model": "solver",
        "form": f"{num_clients} spectra of {size}",
        "iterations": NEWTON_STEPS,
    }
    return {**row, "worst_residual": worst, "nats": [1e-3, 1e4], **step.row(), **timing.row()}


COLUMNS = (
    "model",
    "form",
    "min_ms",
    "median_ms",
    "spread",
    "ratio",
    "ratio_min",
    "ratio_cpu",
    "reported",
    "epoch_s",
)


def table(rows: _tables.Rows) -> str:
    """A training step on noisy records, and through DP-SGD, beside the plain one."""
    words = {"natural": "noise in the data", "dp_sgd": "DP-SGD", "dp_psac": "DP-PSAC"}
    body = []
    for row in rows:
        if row.get("ratio") is None or row["form"].startswith("plain"):
            continue
        form = words.get(row["form"], row["form"].replace("white_1000", "white, 1,000 records"))
        reported = "" if row["reported"] is None else f"{row['reported']:.2f}x"
        body.append(
            [
                f"{row['model']}, {form}",
                f"{row['ratio']:.2f}x",
                f"{row['ratio_min']:.2f}x",
                reported,
                f"{row['epoch_s']:.0f} s",
            ]
        )
    head = [
        "step, 64 images 32 x 32 x 3",
        "against plain, paired",
        "of least times",
        "reported",
        "50,000 records",
    ]
    return _tables.markdown(head, body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(FORMS), help="names, comma-separated")
    parser.add_argument("--rounds", type=int, default=7, help="at least 5")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of timing a network")
    parser.add_argument("--name", default="channel", help="of the JSON file")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the file's rows of other networks: ratios are within one",
    )
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    kept = (
        json.loads((_harness.RESULTS / f"{options.name}-cpu.json").read_text())["rows"]
        if options.keep
        else []
    )
    rows = [row for row in kept if row["model"] not in options.models.split(",")] or [
        solver(options.rounds)
    ]
    print(
        _harness.table(rows, ("form", "min_ms", "spread", "iterations", "worst_residual")),
        flush=True,
    )
    for name in options.models.split(","):
        new = measure(name, options.rounds, options.budget)
        print(
            _harness.table(new, COLUMNS),
            f"{time.perf_counter() - start:.0f} s so far",
            sep="\n",
            flush=True,
        )
        rows += new
        jax.clear_caches()
        # After each network: a run that is cut short keeps what it has.
        path = _harness.write(
            options.name, rows, note="one training step; see bench/papers/channel.py"
        )
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
