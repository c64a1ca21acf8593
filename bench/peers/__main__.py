"""One federated round, the same for everybody: how many clients a second, beside FedJAX, pfl,
Flower, torch, JAX?

    python -m bench.peers [--workload i ii iii] [--peers fljax torch_loop pfl] [--quick]

- i: MLP 784-256-128-10; 1,000 clients x 20-100 examples, batch 20
- ii: FEMNIST CNN; 100 clients x 20-100 examples, batch 20
- iii: the CNN of pfl-research's CIFAR-10 benchmark, without dropout; 50 clients x 50 examples,
  batch 10

Each client takes one epoch of SGD, its update is clipped, the sum gets Gaussian noise. Everybody
walks the same generated examples in the same order. Before any timing a small round without noise
must give the same update as plain
JAX with `lax.conv`: relative L2 distance at most 1e-4 for the MLP (float32 sums in another order)
and 1e-3 for the CNNs (a rounding may decide a ReLU or a max pool the other way, among a million of
them a step). As
a control: the same examples in another order give 0.2 to 0.7, one client left out gives 0.06 to
  0.4.

- fljax: `dp_fedavg` with the settings it chooses by itself, as `fljax simulate` runs it: on a CPU a
  device a core
- fljax_one_device: the same on one device, as a program has it that did not ask for more before JAX
  started
- plain_scan: plain JAX, `scan` over clients of a `scan` over steps; plain_loop: only the steps that
  a client needs
- plain_vmap: plain JAX, `vmap` over clients of a `scan` over steps
- plain_patches: (ii, iii) plain_loop with convolutions as patches and matrix products, pools as
  reshapes
- fedjax_pad, fedjax_var: FedJAX's `for_each_client` on padded batches, and with a short last batch
- torch_loop: a plain loop in torch
- pfl: pfl-research: FederatedAveraging, SimulatedBackend, GaussianMechanism
- flwr: Flower's simulation: FedAvg, the torch loop's client in Ray actors, one a core; see its
  module
- flwr_nodes: (i) the same with a node a client, as in Flower's templates; 500 clients, as more take
  ever longer
- matmul_jax, matmul_torch: (i) no round: the matrix products of its SGD steps and nothing else
- matmul_devices: the same in JAX, a device a core with its share of the steps

Each peer has a process of its own. The processes of a group take turns, round by round, only one
working at a time, and
ours take part in each group: plain_vmap (memory) and Flower (Ray's own processes) have groups of
  their own. On ii and
iii plain_scan, plain_loop and plain_vmap get 6 clients: `lax.conv` in their loops takes about a
second a client. What is compared is clients a second; `fljax_is_faster` is the median over rounds
of the ratio within a round, and `one_device_is_faster` the same for fljax_one_device.
"""

import argparse
import json
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench import _child, _harness, _tables
from bench.peers import child, tasks

REFERENCE = "plain_scan"
TOLERANCE = {"i": 1e-4, "ii": 1e-3, "iii": 1e-3}
# Its clients have a thread each, and torch's own round on iii moves by 1.05e-3 from two threads to
# one.
TOLERANCE_OF_FLOWER = TOLERANCE | {"iii": 2e-3}
CHECK_CLIENTS = {"i": 40, "ii": 4, "iii": 4}
ALONE = ("plain_vmap", *child.FLOWER)
OURS = ("fljax", "fljax_one_device")
SLOW_CLIENTS = 6
MANY_NODES = 500  # 1,000 took nine minutes a round
QUICK_CLIENTS = {"i": 40, "ii": 6, "iii": 6}
LIMITS = ("matmul_jax", "matmul_devices", "matmul_torch")
SLOW_MS = 10_000.0


def start(peer: str, workload: str, clients: int, result: pathlib.Path | None) -> _child.Child:
    """A peer's process."""
    arguments = ["--peer", peer, "--workload", workload, "--clients", str(clients)]
    arguments += ["--check-clients", str(min(clients, CHECK_CLIENTS[workload]))]
    arguments += ["--result", str(result)] if result else []
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    return _child.Child("bench.peers.child", arguments, **quiet)


def applies(peer: str, workload: str) -> bool:
    """Whether this peer has something to do there."""
    return (
        workload == "i"
        if peer in (*LIMITS, "flwr_nodes")
        else peer != "plain_patches" or workload != "i"
    )


def cohort(peer: str, workload: str, quick: bool) -> int:
    """Clients of a peer's round."""
    clients = QUICK_CLIENTS[workload] if quick else tasks.SPECS[workload].clients
    if peer == "flwr_nodes":
        return min(clients, MANY_NODES)
    return min(clients, SLOW_CLIENTS) if workload != "i" and peer in child.PLAIN else clients


def moved(path: pathlib.Path, workload: str) -> list[np.ndarray]:
    """How far a small round took the weights."""
    import jax

    start = jax.tree.leaves(tasks.make(workload, 1).params)
    with np.load(path) as file:
        return [np.asarray(p) - file[name] for p, name in zip(start, file.files, strict=True)]


def measure(workload: str, peers: Sequence[str], repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Rows of one workload, fljax first."""
    peers = ["fljax", *(p for p in peers if p != "fljax" and applies(p, workload))]
    rows = {
        p: {"workload": workload, "peer": p, "clients": cohort(p, workload, quick)} for p in peers
    }
    with tempfile.TemporaryDirectory() as folder:
        reference = pathlib.Path(folder) / "reference.npz"
        first = start(REFERENCE, workload, CHECK_CLIENTS[workload], reference)
        try:
            first.answer()
        finally:
            first.close()
        expected = moved(reference, workload)
        together = [p for p in peers if p not in ALONE]
        ours = [p for p in peers if p in OURS]
        alone = [[*ours, p] for p in peers if p in ALONE]
        for group in alone if together == ours and alone else [together, *alone]:
            measure_group(workload, group, rows, expected, pathlib.Path(folder), repeats)
    limits = [rows[p]["median_ms"] for p in LIMITS if "median_ms" in rows.get(p, {})]
    for row in rows.values():
        if limits and "median_ms" in row and row["peer"] not in LIMITS:
            row["share_of_matmul_limit"] = round(min(limits) / row["median_ms"], 3)
    return list(rows.values())


def measure_group(
    workload: str,
    group: Sequence[str],
    rows: dict[str, dict[str, Any]],
    expected: list[np.ndarray],
    folder: pathlib.Path,
    repeats: int,
) -> None:
    """Starts the group, compares, times in turn, fills `rows`; our own rows are the first
    group's.
    """
    children: dict[str, _child.Child] = {}
    timings: dict[str, _harness.Timing] = {}
    filled = [peer for peer in OURS if "median_ms" in rows.get(peer, {})]
    try:
        for peer in group:
            result = None if peer in LIMITS else folder / f"{peer}.npz"
            print(f"{workload} {peer}: {rows[peer]['clients']} clients", end=" ", flush=True)
            one = start(peer, workload, rows[peer]["clients"], result)
            try:
                one.answer()
                if result:
                    tolerances = TOLERANCE_OF_FLOWER if peer in child.FLOWER else TOLERANCE
                    error = _harness.check(
                        peer, moved(result, workload), expected, rtol=tolerances[workload]
                    )
                    if peer not in filled:
                        rows[peer]["error_of_update"] = error
                ready = one.answer()["ready"]
                if peer not in filled:
                    rows[peer] |= ready
                children[peer] = one
                print(f"first round {ready['first_round_s']:.2f} s", flush=True)
            except (RuntimeError, AssertionError, OSError) as reason:
                rows[peer]["error"] = str(reason)
                print(f"failed: {reason}", flush=True)
                one.close()
        samples: dict[str, list[dict[str, Any]]] = {peer: [] for peer in children}
        for number in range(repeats):
            names = list(children)
            for peer in names[number % len(names) :] + names[: number % len(names)]:
                if number >= 3 and samples[peer][0]["wall_ms"] > SLOW_MS:
                    continue
                try:
                    samples[peer].append(children[peer].ask("go"))
                except (RuntimeError, OSError) as reason:
                    rows[peer]["error"] = str(reason)
                    children.pop(peer).close()
        for peer in children:
            wall = tuple(sample["wall_ms"] for sample in samples[peer])
            cpu = tuple(
                sample["cpu_ms"] for sample in samples[peer] if sample["cpu_ms"] is not None
            )
            timings[peer] = _harness.Timing(wall, cpu)
    finally:
        for peer, one in children.items():
            memory = one.close()
            if peer not in filled:
                rows[peer] |= memory
    for peer, timing in timings.items():
        if peer in filled:
            continue
        clients = rows[peer]["clients"]
        rows[peer] |= timing.row() | {"clients_per_s": round(1e3 * clients / timing.median_ms, 2)}
        for one, name in (
            ("fljax", "fljax_is_faster"),
            ("fljax_one_device", "one_device_is_faster"),
        ):
            if one in timings and peer != one:
                scale = rows[one]["clients"] / clients
                rows[peer][name] = round(scale * _harness.paired_ratio(timing, timings[one]), 3)


COLUMNS = (
    "workload",
    "peer",
    "clients",
    "clients_per_s",
    "fljax_is_faster",
    "one_device_is_faster",
    "share_of_matmul_limit",
    "median_ms",
    "min_ms",
    "spread",
    "first_round_s",
    "compile_s",
    "peak_rss_mib",
    "error_of_update",
)


def table(rows: _tables.Rows) -> str:
    """Clients a second of each framework, and how many times as fast fljax is in the same
    rounds.
    """
    names = {
        "i": "MLP 784-256-128-10, 1,000 clients",
        "ii": "FEMNIST CNN, 100 clients",
        "iii": "pfl-research's CIFAR-10 CNN, 50 clients",
    }
    body = []
    for workload, title in names.items():
        mine = [row for row in rows if row["workload"] == workload]
        cohort = max(row["clients"] for row in mine)
        for row in sorted(mine, key=lambda row: not row["peer"].startswith("fljax")):
            if "clients_per_s" not in row:
                body.append(
                    [title, row["peer"], row.get("error", "not measured"), "", "", "", "", ""]
                )
                continue
            fewer = "" if row["clients"] == cohort else f" ({row['clients']} clients)"
            cells = [title, row["peer"] + fewer, f"{row['clients_per_s']:,.4g}"]
            ratios = [row.get("fljax_is_faster"), row.get("one_device_is_faster")]
            share = row.get("share_of_matmul_limit")
            cells += ["" if ratio is None else f"{ratio:.2f}x" for ratio in ratios]
            cells.append("" if share is None else f"{share:.0%}")
            device = row.get("device", "").replace("(R)", "").replace(" Processor", "")
            body.append(
                [
                    *cells,
                    f"{row['spread']:.0%}",
                    f"{row['date'][5:16].replace('T', ' ')} {device}".strip(),
                ]
            )
    faster = ["fljax is faster by (paired)", "fljax_one_device is faster by (paired)"]
    head = [
        "model and cohort",
        "who",
        "clients/s",
        *faster,
        "of the matmul limit",
        "spread of rounds",
        "when and where",
    ]
    return _tables.markdown(head, body)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workload", nargs="+", choices=list(tasks.SPECS), default=list(tasks.SPECS)
    )
    parser.add_argument("--peers", nargs="+", choices=child.PEERS, default=list(child.PEERS))
    parser.add_argument(
        "--repeats", type=int, default=5, help="rounds; a round above 10 s is timed 3 times"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small cohorts, 3 rounds; nothing is written"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the committed rows of what is not measured now"
    )
    options = parser.parse_args()
    rows = []
    for workload in options.workload:
        rows += measure(
            workload, options.peers, 3 if options.quick else options.repeats, options.quick
        )
        print(
            _harness.table([row for row in rows if row["workload"] == workload], COLUMNS),
            flush=True,
        )
    best: dict[str, list[float]] = {}
    for row in rows:
        if "fljax_is_faster" in row and row["peer"] in (
            "fedjax_pad",
            "fedjax_var",
            "torch_loop",
            "pfl",
            *child.FLOWER,
        ):
            best.setdefault(row["workload"], []).append(row["fljax_is_faster"])
    for workload, ratios in best.items():
        print(
            f"{workload}: fljax is {min(ratios):.2f} times as fast as the fastest peer", flush=True
        )
    if not options.quick:
        new = {(row["workload"], row["peer"]) for row in rows}
        committed = _harness.RESULTS / "peers-cpu.json"
        if options.keep and committed.exists():
            earlier = json.loads(committed.read_text())
            if all(peer in ALONE + OURS for peer in options.peers) and not all(
                peer in OURS for peer in options.peers
            ):
                # Ours took part for their ratios; our rows stay those of the run with the other
                # peers.
                had = {(row["workload"], row["peer"]) for row in earlier["rows"]}
                rows = [
                    r
                    for r in rows
                    if r["peer"] not in OURS or (r["workload"], r["peer"]) not in had
                ]
                new = {(row["workload"], row["peer"]) for row in rows}
            since = {name: earlier["environment"][name] for name in ("commit", "date", "device")}
            kept = [row for row in earlier["rows"] if (row["workload"], row["peer"]) not in new]
            rows += [row if "date" in row else since | row for row in kept]
        print(
            _harness.write(
                "peers", rows, note="one federated round, equal work; python -m bench.peers"
            )
        )


if __name__ == "__main__":
    main()
