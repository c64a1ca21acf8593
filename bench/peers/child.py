"""One peer in a process of its own: runs a small round for comparison, then timed rounds, one for
each line it reads.

Prints JSON lines: {"checked": ...} once the weights after the small round without noise are in
`--result`, {"ready": ...} after a first full round, {"wall_ms", "cpu_ms"} for each line "go",
{"peak_rss_mib"} at the end of its input.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bench import _child, _harness
from bench.peers import tasks
from bench.rounds import round as one_round
from fljax.simulation.devices import mesh

# (number of clients, noise multiplier) -> (a round, what building it cost)
Make = Callable[[int, float], tuple[Callable[[], Any], dict[str, Any]]]
ToTree = Callable[[Any], Any]

PLAIN = ("plain_scan", "plain_loop", "plain_vmap")
JAX_PEERS = ("fljax", "fljax_one_device", *PLAIN, "plain_patches", "fedjax_pad", "fedjax_var")
FLOWER = ("flwr", "flwr_nodes")
PEERS = (*JAX_PEERS, "torch_loop", "pfl", *FLOWER, "matmul_jax", "matmul_devices", "matmul_torch")


def _jax_maker(peer: str, workload: str) -> Make:
    if peer in ("fljax", "matmul_devices"):
        mesh.as_devices(mesh.cores())

    def make(num_clients: int, noise: float) -> tuple[Callable[[], Any], dict[str, Any]]:
        task = tasks.make(workload, num_clients)
        name = peer
        if peer == "plain_patches":
            from bench.peers import plain_patches

            task, name = task._replace(loss=plain_patches.LOSSES[workload]), "plain_loop"
        built: Any
        if peer == "matmul_jax":
            from bench.peers import limit

            built = limit.in_jax(task)
        elif peer == "matmul_devices":
            from bench.peers import limit

            built = limit.in_jax(task, jax.device_count())
        elif peer == "matmul_torch":
            from bench.peers import limit

            built = limit.in_torch(task)
        elif peer == "fljax":
            many = jax.default_backend() == "cpu"
            built = one_round.ours(
                task, noise, None, min(mesh.cores(), jax.device_count()) if many else 1
            )
        elif peer == "fljax_one_device":
            built = one_round.ours(task, noise, None)
        else:
            built = one_round.peers()[name](task, noise)
        return (built.run, built.row()) if isinstance(built, _harness.Step) else (built, {})

    return make


def _torch_maker(peer: str, workload: str) -> Make:
    from bench.peers import torch_peers

    return lambda num_clients, noise: (
        torch_peers.PEERS[peer](workload, tasks.make(workload, num_clients), noise),
        {},
    )


def _tree_peak_rss_mib() -> float:
    """Peak resident memory of this process and of those it started, pages they share counted in
    each.
    """
    own = one_round.own_peak_rss_mib()
    parents: dict[int, int] = {}
    peaks: dict[int, float] = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(
                line.split(":", 1) for line in status.read_text().splitlines() if ":" in line
            )
        except OSError:
            continue
        pid = int(status.parent.name)
        parents[pid] = int(fields["PPid"])
        peaks[pid] = int(fields.get("VmHWM", "0 kB").split()[0]) / 1024

    def is_ours(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == os.getpid():
                return True
        return False

    return own + sum(peak for pid, peak in peaks.items() if is_ours(pid))


def _protocol(
    options: argparse.Namespace, say: Callable[[dict[str, Any]], None], make: Make, to_tree: ToTree
) -> None:
    if options.result:
        run, _ = make(options.check_clients, 0.0)
        leaves = jax.tree.leaves(to_tree(jax.block_until_ready(run())))
        np.savez(options.result, *[np.asarray(leaf) for leaf in leaves])
        del run, leaves
    say({"checked": bool(options.result)})
    start = time.perf_counter()
    run, row = make(options.clients, one_round.NOISE)
    built = time.perf_counter()
    jax.block_until_ready(run())
    first = time.perf_counter() - built
    say({"ready": {**row, "build_s": round(built - start, 2), "first_round_s": round(first, 3)}})
    for _ in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(run())
        wall, used = time.perf_counter() - start, time.process_time() - cpu
        say({"wall_ms": 1e3 * wall, "cpu_ms": None if options.peer in FLOWER else 1e3 * used})
    say({"peak_rss_mib": round(_tree_peak_rss_mib())})


def _flower(options: argparse.Namespace, say: Callable[[dict[str, Any]], None]) -> None:
    from bench.peers import flower, torch_peers

    task = tasks.make(options.workload, options.clients)
    net = torch_peers.network(options.workload, task)
    config = {"batch_size": task.batch_size, "learning_rate": one_round.LEARNING_RATE}
    weights = [p.detach().clone() for p in net.parameters()]

    def to_tree(arrays: Any) -> Any:
        return torch_peers.tree_of(options.workload, task.params, arrays)

    with tempfile.TemporaryDirectory() as folder:
        flower.save(pathlib.Path(folder), net, tasks.in_order(task))
        flower.serve(
            pathlib.Path(folder),
            weights,
            options.clients,
            config,
            one_round.CLIP,
            options.peer == "flwr_nodes",
            lambda make: _protocol(
                options, say, lambda clients, noise: (make(clients, noise), {}), to_tree
            ),
        )


def main() -> None:
    """Command line; the parent is `bench.peers.__main__`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--workload", required=True, choices=list(tasks.SPECS))
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--check-clients", type=int, default=8)
    parser.add_argument("--result", help="where the weights go; without it nothing is compared")
    options = parser.parse_args()
    say = _child.speaker()
    try:
        if options.peer in FLOWER:
            _flower(options, say)
        elif options.peer in ("torch_loop", "pfl"):
            from bench.peers import torch_peers

            params = tasks.make(options.workload, 1).params
            make = _torch_maker(options.peer, options.workload)
            _protocol(
                options, say, make, lambda out: torch_peers.tree_of(options.workload, params, out)
            )
        else:
            _protocol(options, say, _jax_maker(options.peer, options.workload), lambda out: out)
    except Exception as reason:
        say({"error": _child.error_text(reason)})
        raise


if __name__ == "__main__":
    main()
