"""How many clients a second does one DP-FedAvg round train, and in how much memory?

    python -m bench.rounds.round [--clients 1000] [--repeats 7] [--peers fljax plain_scan
    fedjax_pad] [--quick]

1,000 clients with 20 to 100 examples each, MLP 784-256-128-10, one local epoch of batch 20, client
clipping, Gaussian noise on the sum. Everybody walks the same examples in the same order, so that
the sums agree to float rounding:

- fljax: our round with the chunk size it chooses by itself; fljax_chunk_K with K clients side by
  side
- plain_vmap: plain JAX, `vmap` over all clients of a `scan` over steps
- plain_scan: plain JAX, `scan` over clients of a `scan` over steps
- plain_loop: the same with the steps that each client's data needs, not those of the longest
- fedjax_pad: FedJAX's `for_each_client` on its padded batches; its jitted steps, a host loop over
  clients
- fedjax_var: the same with a short last batch, hence one compilation for each size

The plain peers get their data shuffled, padded to the longest client and on the device beforehand;
ours shuffles and gathers inside the round. Peak resident memory comes from a process of its own for
each peer (data included).
"""

import argparse
import functools
import json
import pathlib
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import _keys, data, models
from fljax.schemes.central import dp_fedavg
from fljax.server.rounds import Performance
from fljax.simulation.devices import mesh

HIDDEN = (256, 128)
BATCH_SIZE = 20
LEAST, MOST = 20, 100
CLIP, NOISE, LEARNING_RATE = 0.1, 1.0, 0.05
CHUNKS = (1, 2, 8, 32)


class Task(NamedTuple):
    """Everything that a peer starts from."""

    params: Any
    loss: Callable[[Any, Any], jax.Array]
    clients: data.ClientData
    ids: jax.Array
    key: jax.Array
    batch_size: int = BATCH_SIZE

    @property
    def num_clients(self) -> int:
        """C."""
        return self.clients.indices.shape[0]


def make_task(num_clients: int) -> Task:
    """Random images: speed does not depend on what the pixels mean."""
    model = models.create(
        "mlp", example_shape=(784,), num_classes=10, key=jax.random.key(1), hidden=HIDDEN
    )
    loss = models.softmax_cross_entropy(model.apply)
    clients = random_clients(num_clients, (784,), 10, LEAST, MOST)
    return Task(
        model.params, loss, clients, jnp.arange(num_clients, dtype=jnp.int32), jax.random.key(2)
    )


def random_clients(
    num_clients: int, shape: tuple[int, ...], num_classes: int, least: int, most: int
) -> data.ClientData:
    """Clients of `least` to `most` random examples; the first clients are the same whatever
    `num_clients`.
    """
    xs, ys = [], []
    table = np.full((num_clients, most), -1, np.int32)
    start = 0
    for client in range(num_clients):
        rng = np.random.default_rng((20261121, client))
        size = int(rng.integers(least, most + 1))
        xs.append(rng.random((size, *shape), dtype=np.float32))
        ys.append(rng.integers(0, num_classes, size, dtype=np.int32))
        table[client, :size] = np.arange(start, start + size)
        start += size
    examples = {"x": jnp.asarray(np.concatenate(xs)), "y": jnp.asarray(np.concatenate(ys))}
    return data.ClientData(examples, jnp.asarray(table))


def shuffled_tables(task: Task) -> np.ndarray:
    """The rows of each client in the order in which our round visits them, `[C, N]`."""
    keys = _keys.client_keys(task.key, 0, task.ids, _keys.Purpose.SHUFFLE)

    def order(indices: jax.Array, key: jax.Array) -> jax.Array:
        draw = jax.random.uniform(jax.random.fold_in(key, 0), indices.shape)
        return indices[jnp.argsort(jnp.where(indices >= 0, draw, jnp.inf))]

    return np.asarray(jax.jit(jax.vmap(order))(task.clients.indices, keys))


def masked_loss(task: Task) -> Callable[[Any, Any, jax.Array], jax.Array]:
    """Mean loss of the real rows of a padded batch."""

    def loss(params: Any, batch: Any, mask: jax.Array) -> jax.Array:
        losses = jax.vmap(task.loss, (None, 0))(params, batch)
        return jnp.where(mask, losses, 0.0).sum() / jnp.maximum(1, mask.sum()).astype(jnp.float32)

    return loss


def sgd_step(loss: Callable[..., jax.Array], params: Any, batch: Any, mask: jax.Array) -> Any:
    """One plain SGD step."""
    return jax.tree.map(
        lambda p, g: p - LEARNING_RATE * g, params, jax.grad(loss)(params, batch, mask)
    )


def clipped(server: Any, client: Any) -> Any:
    """`server - client`, scaled to norm `CLIP` where it is longer."""
    update = jax.tree.map(jnp.subtract, server, client)
    norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(update)))
    return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, CLIP / norm), update)


def server_step(params: Any, total: Any, key: jax.Array, noise: float, num_clients: int) -> Any:
    """Plain JAX: noise on the sum, divided by the number of clients."""
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + noise * CLIP * jax.random.normal(k, leaf.shape)
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.map(lambda p, t: p - t / num_clients, params, structure.unflatten(noisy))


def ours(task: Task, noise: float, chunk_size: int | None, devices: int = 1) -> _harness.Step:
    """One round of `dp_fedavg`, compiled, over the first `devices` devices, in twice as many groups
    if several.
    """
    config = dp_fedavg.Config(
        sampling_prob=1.0,
        l2_clip_norm=CLIP,
        noise_multiplier=noise,
        local_learning_rate=LEARNING_RATE,
        local_batch_size=task.batch_size,
        num_local_epochs=1,
        server_learning_rate=1.0,
        server_momentum=0.0,
    )
    groups = 2 * devices if devices > 1 else None
    performance = Performance(chunk_size=chunk_size, groups=groups)
    algorithm = dp_fedavg.make(
        config, task.loss, num_units=task.num_clients, performance=performance
    )

    def run(state: Any, clients: data.ClientData, ids: jax.Array, key: jax.Array) -> Any:
        return algorithm.round(state, data.cohort(clients, ids), key)[0].params

    over = mesh.client_mesh(devices)
    with mesh.over(over):
        given = mesh.everywhere(over, (algorithm.init(task.params), task.clients, task.ids))
        return _harness.compile_step(run, *given, task.key)


def plain(task: Task, noise: float, over_clients: str) -> _harness.Step:
    """Plain JAX on padded batches `[C, S, B, ...]`, S the steps of the longest client.

    `over_clients`: "vmap"; "scan"; or "loop", a scan in which each client takes only the steps that
      its data needs.
    """
    table = shuffled_tables(task)
    most = table.shape[1]
    steps = -(-most // task.batch_size)
    rows = np.pad(table, ((0, 0), (0, steps * task.batch_size - most)), constant_values=-1)
    rows = rows.reshape(task.num_clients, steps, task.batch_size)
    batches = jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf)[np.maximum(rows, 0)]), task.clients.examples
    )
    masks = jnp.asarray(rows >= 0)
    loss = masked_loss(task)

    def client(params: Any, batches: Any, masks: jax.Array) -> Any:
        def step(p: Any, batch_and_mask: Any) -> tuple[Any, None]:
            return sgd_step(loss, p, *batch_and_mask), None

        def numbered(s: jax.Array, p: Any) -> Any:
            return sgd_step(loss, p, *jax.tree.map(lambda leaf: leaf[s], (batches, masks)))

        if over_clients == "loop":
            return clipped(params, jax.lax.fori_loop(0, masks[:, 0].sum(), numbered, params))
        return clipped(params, jax.lax.scan(step, params, (batches, masks))[0])

    def run(params: Any, batches: Any, masks: jax.Array, key: jax.Array) -> Any:
        if over_clients == "vmap":
            updates = jax.vmap(client, (None, 0, 0))(params, batches, masks)
            total = jax.tree.map(lambda leaf: leaf.sum(axis=0), updates)
        else:

            def add(total: Any, client_data: Any) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, total, client(params, *client_data)), None

            total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (batches, masks))
        return server_step(params, total, key, noise, task.num_clients)

    return _harness.compile_step(run, task.params, batches, masks, task.key)


def fedjax_loop(task: Task, noise: float, pad: bool) -> Callable[[], Any]:
    """FedJAX's jit backend; its client datasets hold NumPy arrays, as they do in FedJAX."""
    import fedjax

    examples = jax.tree.map(np.asarray, task.clients.examples)
    datasets = []
    for client, row in enumerate(shuffled_tables(task)):
        taken = jax.tree.map(functools.partial(np.take, indices=row[row >= 0], axis=0), examples)
        datasets.append((b"%d" % client, fedjax.ClientDataset(taken), jax.random.key(client)))
    loss = masked_loss(task)

    def client_step(state: Any, batch: Any) -> Any:
        mask = batch.get(fedjax.EXAMPLE_MASK_KEY, jnp.ones(batch["y"].shape[0], bool))
        xy = {"x": batch["x"], "y": batch["y"]}
        return {"server": state["server"], "client": sgd_step(loss, state["client"], xy, mask)}

    train = fedjax.for_each_client(
        lambda server, _: {"server": server, "client": server},
        client_step,
        lambda _, state: clipped(state["server"], state["client"]),
    )
    add = jax.jit(functools.partial(jax.tree.map, jnp.add))
    finish = jax.jit(functools.partial(server_step, noise=noise, num_clients=task.num_clients))

    def run() -> Any:
        def clients() -> Any:
            for client, dataset, key in datasets:
                batches = (
                    dataset.padded_batch(batch_size=task.batch_size)
                    if pad
                    else dataset.batch(batch_size=task.batch_size)
                )
                yield client, batches, key

        total = None
        for _, update in train(task.params, clients()):
            total = update if total is None else add(total, update)
        return finish(task.params, total, key=task.key)

    return run


def peers() -> dict[str, Callable[[Task, float], Any]]:
    """Name -> `(task, noise multiplier) -> Step or function`."""
    chunked = {f"fljax_chunk_{size}": functools.partial(ours, chunk_size=size) for size in CHUNKS}
    return {
        "fljax": functools.partial(ours, chunk_size=None),
        **chunked,
        "plain_scan": functools.partial(plain, over_clients="scan"),
        "plain_loop": functools.partial(plain, over_clients="loop"),
        "plain_vmap": functools.partial(plain, over_clients="vmap"),
        "fedjax_pad": functools.partial(fedjax_loop, pad=True),
        "fedjax_var": functools.partial(fedjax_loop, pad=False),
    }


def peak_rss_mib(name: str, num_clients: int) -> float:
    """Peak resident memory of a fresh process that runs two rounds of one peer."""
    command = [
        sys.executable,
        "-m",
        "bench.rounds.round",
        "--only",
        name,
        "--clients",
        str(num_clients),
    ]
    out = subprocess.run(command, cwd=_harness.ROOT, capture_output=True, text=True, check=True)
    return float(json.loads(out.stdout.splitlines()[-1])["peak_rss_mib"])


def only(name: str, num_clients: int) -> None:
    """Two rounds of one peer, then its peak memory as JSON; "data" builds the task and runs
    nothing.
    """
    task = make_task(num_clients)
    if name != "data":
        built = peers()[name](task, NOISE)
        for _ in range(2):
            jax.block_until_ready((built.run if isinstance(built, _harness.Step) else built)())
    print(json.dumps({"peak_rss_mib": own_peak_rss_mib()}))


def own_peak_rss_mib() -> float:
    """Not `getrusage` where it can be helped: on Linux a child inherits the peak of the parent that
    started it.
    """
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        return (
            next(
                int(line.split()[1])
                for line in status.read_text().splitlines()
                if line.startswith("VmHWM")
            )
            / 1024
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        _harness.MEBI if sys.platform == "darwin" else 1024
    )


def measure(names: Sequence[str], num_clients: int, repeats: int) -> list[dict[str, Any]]:
    """Checks, then times, the peers (and `plain_scan`) in one process; then each peer's memory in
    its own.
    """
    names = ["plain_scan", *(name for name in names if name != "plain_scan")]
    rows: dict[str, dict[str, Any]] = {
        name: {"peer": name, "clients": num_clients} for name in names
    }
    small, task = make_task(min(40, num_clients)), make_task(num_clients)
    expected = None
    runs = {}
    for name in names:
        try:
            without_noise = peers()[name](small, 0.0)
            actual = (
                without_noise.run() if isinstance(without_noise, _harness.Step) else without_noise()
            )
            moved = jax.tree.map(jnp.subtract, actual, small.params)
            expected = moved if expected is None else expected
            rows[name]["error_of_update"] = _harness.check(name, moved, expected, rtol=1e-4)
            built = peers()[name](task, NOISE)
            if isinstance(built, _harness.Step):
                rows[name] |= built.row()
            runs[name] = built.run if isinstance(built, _harness.Step) else built
        except Exception as reason:  # a missing peer is a row of its own
            rows[name]["error"] = f"{type(reason).__name__}: {reason}"
    timings = _harness.interleaved(runs, repeats=repeats, budget_s=300.0)
    for name, timing in timings.items():
        rows[name] |= timing.row()
        rows[name]["clients_per_s"] = round(1e3 * num_clients / timing.min_ms, 1)
        rows[name]["speed_to_plain_scan"] = round(
            _harness.paired_ratio(timings["plain_scan"], timing), 3
        )
        if "fedjax_pad" in timings:
            rows[name]["speed_to_fedjax_pad"] = round(
                _harness.paired_ratio(timings["fedjax_pad"], timing), 3
            )
        rows[name]["peak_rss_mib"] = round(peak_rss_mib(name, num_clients))
    rows["data"] = {
        "peer": "data",
        "clients": num_clients,
        "peak_rss_mib": round(peak_rss_mib("data", num_clients)),
    }
    return list(rows.values())


def table(rows: _tables.Rows) -> str:
    """Clients a second, and the same number over plain scan's: both by medians, so that a reader
    can divide.
    """
    timed = {row["peer"]: row for row in rows if row.get("median_ms")}
    plain = timed["plain_scan"]["median_ms"]
    body = [
        [
            name,
            f"{1e3 * row['clients'] / row['median_ms']:.0f}",
            f"{plain / row['median_ms']:.2f}x",
            "" if row.get("temp_mib") is None else f"{row['temp_mib']:.1f} MiB",
        ]
        for name, row in timed.items()
    ]
    head = [
        "1,000 clients, one round",
        "clients/s, median",
        "against plain scan",
        "XLA temporary memory",
    ]
    return _tables.markdown(head, body)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--peers", nargs="+", choices=list(peers()), default=list(peers()))
    parser.add_argument(
        "--quick", action="store_true", help="60 clients, 5 rounds; nothing is written"
    )
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        only(arguments.only, arguments.clients)
        return
    clients, repeats = (60, 5) if arguments.quick else (arguments.clients, arguments.repeats)
    rows = measure(arguments.peers, clients, repeats)
    columns = (
        "peer",
        "clients_per_s",
        "min_ms",
        "median_ms",
        "speed_to_plain_scan",
        "speed_to_fedjax_pad",
        "temp_mib",
        "peak_rss_mib",
        "compile_s",
    )
    print(_harness.table(rows, columns))
    if not arguments.quick:
        print(
            _harness.write(
                "round", rows, note=f"one DP-FedAvg round, {clients} clients, MLP 784-256-128-10"
            )
        )


if __name__ == "__main__":
    main()
