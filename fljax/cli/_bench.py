"""What `fljax bench` measures: programs are compiled apart, warmed up, then timed in turn; medians
of blocked calls.
"""

import itertools
import math
import os
import pathlib
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import data
from fljax.local.item import clipped_grad
from fljax.schemes.central import dp_fedavg
from fljax.server import aggregate
from fljax.server.rounds import Performance

WIDTHS, QUICK_WIDTHS = (
    (784, 256, 128, 10),
    (784, 64, 10),
)  # of the MLP; compiling is most of what --quick takes
LEAST, MOST = 20, 100  # examples of a client
BATCH_SIZE, GRADIENT_BATCH = 20, 512
CLIP, LEARNING_RATE = 0.1, 0.05
REPEATS = 5
SIMULATED = 6  # rounds of the main job, the first of which compiles
# The main job in units of the quick round: what comes before and after its rounds, and one of them.
# Measured once on two cores; a guess within a third or so.
START_IN_COMPILATIONS, ROUND_IN_CLIENTS = 3.0, 80.0


class Program(NamedTuple):
    """A compiled function with its arguments. run: `() -> output`, not blocked on. compile_s: with
    tracing, seconds.
    """

    run: Callable[[], Any]
    compile_s: float


class Task(NamedTuple):
    """What a round starts from. widths: of the MLP. num_steps: SGD steps of all clients, without
    padding.
    """

    widths: tuple[int, ...]
    params: Any
    loss: Callable[[Any, Any], jax.Array]
    clients: data.ClientData
    num_steps: int

    @property
    def num_clients(self) -> int:
        """C."""
        return int(self.clients.indices.shape[0])

    @property
    def chunk_size(self) -> int:
        """What `dp_fedavg` chooses by itself for this model on this device."""
        return aggregate.default_chunk_size(sum(leaf.size for leaf in jax.tree.leaves(self.params)))


def compiled(fun: Callable[..., Any], *args: Any) -> Program:
    """`fun(*args)`, compiled; nothing is run."""
    start = time.perf_counter()
    program = jax.jit(fun).lower(*args).compile()
    return Program(lambda: program(*args), time.perf_counter() - start)


def in_turn(
    programs: Mapping[str, Program], *, repeats: int, least_s: float = 0.02
) -> dict[str, dict[str, float]]:
    """Times every program `repeats` times, one after the other, so that a busy moment slows all of
    them.

    A sample calls its program until it lasts about `least_s` seconds.

    Returns:
      name -> median_ms, min_ms, spread ((max - min) / median), repeats, compile_s.
    """
    calls, samples = {}, {}
    for name, program in programs.items():
        jax.block_until_ready(program.run())  # the first call pays for page faults and thread pools
        took = _seconds(program, 1)
        calls[name] = min(100, math.ceil(least_s / took))
        samples[name] = [took] if took >= least_s else []
    while any(len(values) < repeats for values in samples.values()):
        for name, program in programs.items():
            samples[name].append(_seconds(program, calls[name]))
    return {name: _row(values, programs[name].compile_s) for name, values in samples.items()}


def _seconds(program: Program, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(program.run())
    return max((time.perf_counter() - start) / calls, 1e-9)


def _row(seconds: list[float], compile_s: float) -> dict[str, float]:
    median = statistics.median(seconds)
    return {
        "median_ms": 1e3 * median,
        "min_ms": 1e3 * min(seconds),
        "spread": (max(seconds) - min(seconds)) / median,
        "repeats": len(seconds),
        "compile_s": compile_s,
    }


def machine() -> dict[str, Any]:
    """Device, cores and versions."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind if device.platform != "cpu" else _cpu_name(),
        "platform": device.platform,
        "num_devices": jax.device_count(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _loss(params: list[tuple[jax.Array, jax.Array]], example: dict[str, jax.Array]) -> jax.Array:
    """Cross-entropy of dense layers with ReLU, of one example."""
    x = example["x"]
    for kernel, bias in params[:-1]:
        x = jax.nn.relu(x @ kernel + bias)
    kernel, bias = params[-1]
    return -jax.nn.log_softmax(x @ kernel + bias)[example["y"]]


def make_task(
    widths: tuple[int, ...], num_clients: int, *, least: int = LEAST, most: int = MOST
) -> Task:
    """Random images: speed does not depend on what the pixels mean. From NumPy, as each eager JAX
    call compiles.
    """
    rng = np.random.default_rng(20261122)
    sizes = rng.integers(least, most + 1, num_clients)
    ends = np.cumsum(sizes)
    places = np.arange(most)
    table = np.where(places < sizes[:, None], (ends - sizes)[:, None] + places, -1).astype(np.int32)
    x, y = (
        rng.random((ends[-1], widths[0]), np.float32),
        rng.integers(0, widths[-1], ends[-1], np.int32),
    )
    clients = data.ClientData({"x": jnp.asarray(x), "y": jnp.asarray(y)}, jnp.asarray(table))
    params = [
        (_normals(rng, *pair) / pair[0] ** 0.5, _normals(rng, pair[1]) / 100)
        for pair in itertools.pairwise(widths)
    ]
    return Task(widths, params, _loss, clients, int((-(-sizes // BATCH_SIZE)).sum()))


def _normals(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape, np.float32))


def private_round(
    task: Task, *, noise_multiplier: float = 1.0, chunk_size: int | None = None
) -> Program:
    """One round of `dp_fedavg` with all clients, one epoch each: `() -> params`."""
    config = dp_fedavg.Config(
        sampling_prob=1.0,
        l2_clip_norm=CLIP,
        noise_multiplier=noise_multiplier,
        local_learning_rate=LEARNING_RATE,
        local_batch_size=BATCH_SIZE,
        num_local_epochs=1,
        server_learning_rate=1.0,
        server_momentum=0.0,
    )
    performance = Performance(chunk_size=chunk_size)
    algorithm = dp_fedavg.make(
        config, task.loss, num_units=task.num_clients, performance=performance
    )

    def run(state: Any, clients: data.ClientData, ids: jax.Array, key: jax.Array) -> Any:
        return algorithm.round(state, data.cohort(clients, ids), key)[0].params

    ids = jnp.arange(task.num_clients, dtype=jnp.int32)
    return compiled(
        run, algorithm.init(task.params), task.clients, ids, jax.random.key(2, impl="threefry2x32")
    )


def plain_scan(task: Task, *, noise_multiplier: float = 1.0) -> Program:
    """The same work in plain JAX: a scan over clients of a scan over steps, in the order in which
    examples lie.

    Every client takes as many steps as the longest has batches; a batch of padding alone moves
    nothing.
    """
    table = np.asarray(task.clients.indices)
    table = np.pad(table, ((0, 0), (0, -table.shape[1] % BATCH_SIZE)), constant_values=-1)
    batches = jnp.asarray(table.reshape(task.num_clients, -1, BATCH_SIZE))

    def mean_loss(params: Any, batch: Any, mask: jax.Array) -> jax.Array:
        losses = jnp.where(mask, jax.vmap(task.loss, (None, 0))(params, batch), 0.0)
        return losses.sum() / jnp.maximum(1, mask.sum()).astype(jnp.float32)

    def run(params: Any, examples: Any, batches: jax.Array, key: jax.Array) -> Any:
        def step(mine: Any, rows: jax.Array) -> tuple[Any, None]:
            batch = jax.tree.map(lambda leaf: leaf[jnp.maximum(rows, 0)], examples)
            grads = jax.grad(mean_loss)(mine, batch, rows >= 0)
            return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, mine, grads), None

        def client(total: Any, rows: jax.Array) -> tuple[Any, None]:
            update = jax.tree.map(jnp.subtract, params, jax.lax.scan(step, params, rows)[0])
            norm = jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(update)))
            factor = jnp.minimum(1.0, CLIP / jnp.maximum(norm, 1e-30))
            return jax.tree.map(lambda t, leaf: t + factor * leaf, total, update), None

        total, _ = jax.lax.scan(client, jax.tree.map(jnp.zeros_like, params), batches)
        # One draw for all leaves: each call of `normal` is another program to compile.
        flat, unflatten = jax.flatten_util.ravel_pytree(total)
        noisy = unflatten(flat + noise_multiplier * CLIP * jax.random.normal(key, flat.shape))
        return jax.tree.map(lambda p, t: p - t / task.num_clients, params, noisy)

    return compiled(run, task.params, task.clients.examples, batches, jax.random.key(2))


def products_only(task: Task) -> Program:
    """The matrix products of all SGD steps and nothing else: what no round can be quicker than.

    As many clients side by side as `dp_fedavg` chooses. Each product feeds a later one, and a step
    starts from the last one's result, so that the compiler can leave none of them out.
    """
    axes = () if task.chunk_size == 1 else (task.chunk_size,)
    rng = np.random.default_rng(3)
    weights = [
        _normals(rng, *axes, *pair) / pair[0] ** 0.5 for pair in itertools.pairwise(task.widths)
    ]
    turned = lambda leaf: jnp.swapaxes(leaf, -1, -2)

    def run(x: jax.Array, weights: list[jax.Array]) -> Any:
        def step(_: jax.Array, carry: Any) -> Any:
            x, _ = carry
            inputs = [x]
            for w in weights:
                inputs.append(inputs[-1] @ w)
            cotangent, gradients = inputs[-1], []
            for layer in reversed(range(len(weights))):
                gradients.append(turned(inputs[layer]) @ cotangent)
                if layer:
                    cotangent = cotangent @ turned(weights[layer])
            # Far below float32's resolution of x, and the compiler does not know that.
            return x + 1e-30 * gradients[-1][..., :1, :1], gradients

        zeros = [jnp.zeros_like(w) for w in reversed(weights)]
        return jax.lax.fori_loop(0, -(-task.num_steps // task.chunk_size), step, (x, zeros))

    return compiled(run, _normals(rng, *axes, BATCH_SIZE, task.widths[0]), weights)


def matmul(repeats: int) -> dict[str, float]:
    """A square product of float32, at JAX's default precision."""
    size = 1024 if jax.default_backend() == "cpu" else 8192
    a = _normals(np.random.default_rng(4), size, size)
    row = in_turn({"matmul": compiled(jnp.matmul, a, a)}, repeats=repeats)["matmul"]
    return {"size": size, "gflops_per_s": 2e-9 * size**3 / (1e-3 * row["median_ms"]), **row}


def noise(repeats: int) -> dict[str, float]:
    """2**20 normals for each of two clients, by the kernel."""
    count = 2**20
    like = jax.ShapeDtypeStruct((count,), jnp.float32)
    program = compiled(
        lambda keys: fljax_kernels.gaussian_noise(keys, like, 1.0),
        jax.random.split(jax.random.key(5)),
    )
    row = in_turn({"noise": program}, repeats=repeats)["noise"]
    return {"normals_per_s": 2 * count / (1e-3 * row["median_ms"]), **row}


def gradients(widths: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """The sum of clipped per-example gradients beside the gradient of the mean loss."""
    task = make_task(widths, 1, least=GRADIENT_BATCH, most=GRADIENT_BATCH)
    batch = task.clients.examples
    private = clipped_grad(task.loss, l2_clip_norm=1.0, keep_batch_dim=False)
    non_private = jax.grad(
        lambda params, batch: jax.vmap(task.loss, (None, 0))(params, batch).mean()
    )
    programs = {
        name: compiled(fun, task.params, batch)
        for name, fun in (("private", private), ("plain", non_private))
    }
    rows = in_turn(programs, repeats=repeats)
    ratio = rows["private"]["median_ms"] / rows["plain"]["median_ms"]
    return {
        "batch": GRADIENT_BATCH,
        "ratio": ratio,
        "private": rows["private"],
        "non_private": rows["plain"],
    }


def rounds(
    widths: tuple[int, ...], num_clients: int, beside: int, candidates: Sequence[int], repeats: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A round of `dp_fedavg` with `num_clients`, in turn with what stands beside it, each on
    `beside` of these clients.

    Returns:
      the round, the same in plain JAX, and its matrix products alone; clients a second by how many
      train side by side.
    """
    task, few = make_task(widths, num_clients), make_task(widths, beside)
    programs = {
        "dp_fedavg": private_round(task),
        "plain_scan": plain_scan(few),
        "products": products_only(few),
    }
    others = {size: f"chunk_{size}" for size in candidates if size != task.chunk_size}
    programs |= {name: private_round(few, chunk_size=size) for size, name in others.items()}
    rows: dict[str, Any] = in_turn(programs, repeats=repeats)
    for name, row in rows.items():
        row["clients"] = num_clients if name == "dp_fedavg" else beside
        row["clients_per_s"] = row["clients"] / (1e-3 * row["median_ms"])
    ours = rows["dp_fedavg"]
    ours["speed_to_plain_scan"] = ours["clients_per_s"] / rows["plain_scan"]["clients_per_s"]
    ours["share_of_matmul_limit"] = ours["clients_per_s"] / rows["products"]["clients_per_s"]
    speeds = {task.chunk_size: ours["clients_per_s"]}
    speeds |= {size: rows.pop(name)["clients_per_s"] for size, name in others.items()}
    chunks = {"fastest": max(speeds, key=speeds.__getitem__), "chosen": task.chunk_size}
    return rows, {**chunks, "clients_per_s": {str(size): speeds[size] for size in sorted(speeds)}}


class _Clock:
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def start(self, plan: Any, rounds_done: int) -> None:
        """Nothing."""

    def round(self, record: dict[str, Any]) -> None:
        """The time."""
        self.ends.append(time.perf_counter())

    def stop(self) -> None:
        """Nothing."""


def main_job() -> dict[str, Any]:
    """The first rounds of `fljax simulate` on one device, from imports to report; the whole is
    extrapolated.
    """
    start = time.perf_counter()
    from fljax.simulation import config, run
    from fljax.simulation.report import run_page

    clock, whole = _Clock(), config.RunConfig().num_rounds
    with tempfile.TemporaryDirectory() as folder:
        settings = config.Config(run=config.RunConfig(num_rounds=SIMULATED))
        run_page.write(run.start(settings, pathlib.Path(folder) / "run", clock))
    measured = time.perf_counter() - start
    # The mean, not the median: evaluations belong to it.
    round_s = (clock.ends[-1] - clock.ends[0]) / (SIMULATED - 1)
    return {
        "how": f"{SIMULATED} rounds, extrapolated",
        "rounds": whole,
        "round_ms": 1e3 * round_s,
        "estimated_s": measured + (whole - SIMULATED) * round_s,
    }


def main_job_guessed(one: Mapping[str, Any]) -> dict[str, Any]:
    """The same without a run, from how long our round took to compile and how fast it is."""
    from fljax.simulation.config import RunConfig

    whole, round_s = RunConfig().num_rounds, ROUND_IN_CLIENTS / one["clients_per_s"]
    estimated = START_IN_COMPILATIONS * one["compile_s"] + whole * round_s
    return {"how": "scaled", "rounds": whole, "round_ms": 1e3 * round_s, "estimated_s": estimated}


def measure(*, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """All of it; `say` is told what comes next."""
    start = time.perf_counter()
    found: dict[str, Any] = {"machine": machine(), "quick": quick}
    say("matrix products and noise")
    found |= {"matmul": matmul(REPEATS), "gaussian_noise": noise(REPEATS)}
    widths = QUICK_WIDTHS if quick else WIDTHS
    found["model"] = "MLP " + "-".join(map(str, widths))
    say("private gradients")
    found["private_gradient"] = gradients(widths, REPEATS)
    say("a federated round")
    # Multiples of each candidate, or the largest would look slow for its empty places.
    candidates, beside = (
        ((1, 8, 32), 128) if jax.default_backend() == "cpu" else ((16, 64, 256), 1024)
    )
    if quick:
        found["round"], found["chunk_size"] = rounds(widths, 100, 100, (), REPEATS)
    else:
        found["round"], found["chunk_size"] = rounds(widths, 1000, beside, candidates, REPEATS)
    say("fljax simulate")
    found["simulate"] = main_job_guessed(found["round"]["dp_fedavg"]) if quick else main_job()
    return {**found, "wall_s": time.perf_counter() - start}
