"""What does the sum of clipped per-example gradients cost, beside the gradient without privacy?

    python -m bench.kernels.per_example [--workloads a,b,b256,c,d,e,f] [--peers quick|all|NAME,...]
    [--rounds 7] [--times 16] [--newcomer]

The private gradient is: forward, per-example norms, clip factors, weighted sum. Every form is
checked against `vmap(grad)` before it is timed, and all forms of a workload are timed in turn,
round by round: those in JAX in this process, those in torch in a child, so that two thread pools do
not fight over the cores. This process keeps freed memory, and is several devices.

What a newcomer gets is measured in two children of their own, in turn: a cold process with nothing
tuned ("as it comes: ..."), and one that keeps freed memory ("memory kept: ..."), which is all that
differs. `private` there is `fljax.clipped_grad` and `fljax.gaussian_privatizer` in one program,
noise included, `clipped_grad` the sum alone, `vmap_private` the private step by hand;
`as it comes: torch_non_private` runs beside them. Ratios are to `non_private` of the same child.
`--newcomer` measures these alone, and puts their rows into the JSON that is there.

- non_private: `jit(grad)` of the mean loss: the ratio's denominator
- ours_auto, ours_taps, ours_two_pass, ours_vmap, ours_mb16: `fljax_kernels.per_example_grads`, by
  method
- ours_devices: microbatches of 4 under `shard_map`, a device for each core; its memory is one
  device's
- vmap_grad: `jit(vmap(grad))`, then one tensordot
- scan_1, scan_16: the same, for 1 or 16 examples at a time in a `lax.scan`
- patches_16: scan_16 of the loss with convolutions as patches and products: by `loop_friendly`, as
  one would by hand
- jax_privacy, jax_privacy_16: `jax_privacy.clipped_grad`, whole batch or microbatches of 16
- opacus_hooks, opacus_ghost: Opacus' hooks and its fast gradient clipping, on the same weights and
  data
- torch_func: `torch.func.vmap(grad)`, on the same weights and data
- torch_func_kept: the same with `keep_freed_memory`, as all forms in JAX; the others have torch's
  defaults
- torch_non_private: the gradient of the mean loss in plain torch; `torch_ratio` is a torch peer's
  time over this

`ratio` is the median of the ratios within one round, `ratio_min` that of the least times,
`ratio_cpu` that of the least CPU times, which other processes disturb least; `auto_over_this` is
the same for ours_auto over the row. `compile_ratio` is the median over compilations in turn. Noise
and update are apart (`noise` rows): drawing the same number of normals with `jax.random.normal`,
and `add_gaussian_noise` plus one step of SGD. A peer that is not installed or fails leaves a row
that says so.

On a GPU all forms multiply in TF32, as XLA does by default and torch is told to, and are checked
against products of full precision; `XLA_PYTHON_CLIENT_PREALLOCATE=false` leaves torch its
memory.
"""

import argparse
import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bench import _child, _harness, _tables
from bench.kernels import _newcomer, workloads
from fljax.simulation.devices import allocator, mesh
from fljax_kernels import add_gaussian_noise, loop_friendly, per_example_grads

L2_CLIP_NORM = 1.0
OURS: dict[str, dict[str, Any]] = {
    "ours_auto": {"method": "auto"},
    "ours_taps": {"method": "taps"},
    "ours_two_pass": {"method": "two_pass"},
    "ours_vmap": {"method": "vmap"},
    "ours_mb16": {"method": "microbatch", "microbatch_size": 16},
    "ours_devices": {"method": "microbatch", "microbatch_size": 4},
}
DEVICES = "ours_devices"
RECORDS = "records"  # the mesh axis
KEPT = "_kept"
PRIVATE = _newcomer.PRIVATE
COMES, KEEPS = "as it comes: ", "memory kept: "  # how a newcomer's process treats freed memory
TORCH = ("opacus_hooks", "opacus_ghost", "torch_func")
TORCH_KEPT = ("torch_func" + KEPT,)
PLAIN_TORCH = "torch_non_private"
COMPILATIONS = 5
SCANS = ("scan_1", "scan_16", "patches_16")
ALL = (
    "non_private",
    *OURS,
    "vmap_grad",
    *SCANS,
    "jax_privacy",
    "jax_privacy_16",
    *TORCH,
    *TORCH_KEPT,
)
# The quickest form of each peer on each workload, as a run with `--peers all` finds them.
BEST_SCAN = {
    "a": "scan_1",
    "b": "scan_1",
    "b256": "scan_1",
    "c": "vmap_grad",
    "d": "scan_1",
    "e": "vmap_grad",
}
LARGE = ("c", "e", "f")  # where small batches on devices side by side may pay
CONVOLUTIONAL = ("b", "b256", "c", "f")
BEST_JAX_PRIVACY = {"c": "jax_privacy"}
# In float32 the reference itself is off by 7e-5 on (f), for 20 layers of GroupNorm carry a rounding
# on, and by 3e-3 on 16 examples of (c), where one may decide a max pool the other way.
ROUNDING = {"c": 1e-3, "f": 1e-3}
ROUNDING_TF32 = 2e-2
ON_GPU = ("non_private", "ours_auto", "ours_taps", "ours_two_pass", "vmap_grad")
ON_GPU += ("jax_privacy", "jax_privacy_16", *TORCH)
Gradient = Callable[[Any, Any], Any]


def quick_peers(workload: str) -> tuple[str, ...]:
    """Each peer in its best form only, and `vmap_grad`, except on the large batch, where it takes
    seconds a call.
    """
    best = (BEST_SCAN.get(workload, "vmap_grad"), BEST_JAX_PRIVACY.get(workload, "jax_privacy_16"))
    if jax.default_backend() == "gpu":
        return ON_GPU
    whole = () if workload == "b256" else ("vmap_grad",)
    patches = ("patches_16",) if workload in CONVOLUTIONAL else ()
    large = (DEVICES, *TORCH_KEPT) if workload in LARGE else ()
    names = (
        "non_private",
        "ours_auto",
        *whole,
        *best,
        *patches,
        "opacus_ghost",
        "torch_func",
        *large,
    )
    return tuple(dict.fromkeys(names))


def gradient(name: str, loss: Callable[[Any, Any], jax.Array]) -> Gradient:
    """`(params, batch) -> tree`: the mean gradient for "non_private", else the sum of clipped
    ones.
    """
    if name == "non_private":
        return lambda params, batch: jax.grad(lambda p: jax.vmap(loss, (None, 0))(p, batch).mean())(
            params
        )
    if name == DEVICES:
        return _over_devices(_ours(loss, OURS[name]))
    if name in OURS:
        return _ours(loss, OURS[name])
    if name == "vmap_grad":
        return lambda params, batch: _clipped_sum(
            jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        )
    if name.startswith("patches_"):
        return _scanned(loop_friendly(loss, inside_loop=True), int(name.removeprefix("patches_")))
    if name.startswith("scan_"):
        return _scanned(loss, int(name.removeprefix("scan_")))
    if name.startswith("jax_privacy"):
        return _jax_privacy(
            loss, int(name.removeprefix("jax_privacy_")) if name != "jax_privacy" else None
        )
    raise ValueError(f"Expected a peer of {', '.join(ALL)}, got {name!r}.")


def clip_factors(norms: jax.Array) -> jax.Array:
    """min(1, C / norm), 1 for a zero gradient."""
    return jnp.minimum(1.0, L2_CLIP_NORM / jnp.maximum(norms, 1e-12))


def _ours(loss: Callable[[Any, Any], jax.Array], options: dict[str, Any]) -> Gradient:
    grads = per_example_grads(loss, **options)
    return lambda params, batch: grads(params, batch).weighted_sum(clip_factors)[0]


def _mesh() -> jax.sharding.Mesh:
    return jax.make_mesh(
        (jax.device_count(),), (RECORDS,), axis_types=(jax.sharding.AxisType.Auto,)
    )


def _over_devices(local: Gradient) -> Gradient:
    """The sum over devices of each one's own records."""
    whole, dealt = jax.P(), jax.P(RECORDS)
    return jax.shard_map(
        lambda params, batch: lax.psum(local(params, batch), RECORDS),
        mesh=_mesh(),
        in_specs=(whole, dealt),
        out_specs=whole,
    )


def _arguments(name: str, workload: workloads.Workload) -> tuple[Any, Any]:
    """Parameters and batch where the form wants them: its clock does not run for moving them."""
    if name != DEVICES:
        return workload.params, workload.batch
    place = functools.partial(jax.sharding.NamedSharding, _mesh())
    return jax.device_put(workload.params, place(jax.P())), jax.device_put(
        workload.batch, place(jax.P(RECORDS))
    )


def _clipped_sum(rows: Any) -> Any:
    squares = [
        jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(rows)
    ]
    factors = clip_factors(jnp.sqrt(sum(squares)))
    return jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, 1), rows)


def _scanned(loss: Callable[[Any, Any], jax.Array], size: int) -> Gradient:
    def clipped(params: Any, batch: Any) -> Any:
        chunks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), batch)

        def step(total: Any, chunk: Any) -> tuple[Any, None]:
            part = _clipped_sum(jax.vmap(jax.grad(loss), (None, 0))(params, chunk))
            return jax.tree.map(jnp.add, total, part), None

        return lax.scan(step, jax.tree.map(jnp.zeros_like, params), chunks)[0]

    return clipped


def _jax_privacy(loss: Callable[[Any, Any], jax.Array], microbatch_size: int | None) -> Gradient:
    import jax_privacy  # type: ignore[import-not-found]

    return jax_privacy.clipped_grad(
        loss,
        l2_clip_norm=L2_CLIP_NORM,
        batch_argnums=1,
        keep_batch_dim=False,
        microbatch_size=microbatch_size,
    )


def measure(
    workload: workloads.Workload, times: int, peers: tuple[str, ...], rounds: int, budget_s: float
) -> list[dict[str, Any]]:
    """One row a peer; the checks come before the clock.

    Args:
      times: how many times as large the workload's batch is made.
    """
    reference = _reference(workload)
    base = _base(workload)
    rows: dict[str, dict[str, Any]] = {}
    steps: dict[str, _harness.Step] = {}
    for name in (peer for peer in peers if peer not in TORCH + TORCH_KEPT):
        row = rows[name] = {**base, "peer": name}
        try:
            step = _compiled(name, workload)
            output = step.run()
            if name != "non_private":
                on_cpu = jax.default_backend() == "cpu"
                rtol = ROUNDING.get(workload.name, 1e-4) if on_cpu else ROUNDING_TF32
                row["distance"] = _harness.check(
                    f"{workload.name} {name}", output, reference, rtol=rtol
                )
                row["l2_of_sum"] = round(_harness.l2(output), 4)
            row |= step.row()
            row["largest_array_over_batch_times_params"] = round(
                _harness.largest_array(step.text) / (base["batch"] * base["params"]), 4
            )
            steps[name] = step
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    # On a GPU XLA tunes each product anew: a minute for ten compilations.
    if {"ours_auto", "non_private"} <= steps.keys() and jax.default_backend() == "cpu":
        rows["ours_auto"]["compile_ratio"] = _compile_ratio(workload)
    cases: dict[str, _harness.Case] = {name: step.run for name, step in steps.items()}
    with contextlib.ExitStack() as stack:
        elsewhere: dict[str, _harness.Elsewhere] = {}
        for names in (TORCH, TORCH_KEPT):
            peers_there = [peer for peer in peers if peer in names]
            checked, timed = stack.enter_context(
                _torch(workload.name, times, peers_there, _harness.l2(reference))
            )
            rows |= {name: {**base, "peer": name, **row} for name, row in checked.items()}
            elsewhere |= timed
        timings = _timed(cases | elsewhere, rows, rounds, budget_s)
    for name, timing in timings.items():
        rows[name] |= timing.row()
        if "non_private" in steps:
            plain, cost = timings["non_private"], steps["non_private"]
            rows[name]["ratio"] = round(_harness.paired_ratio(timing, plain), 3)
            rows[name]["ratio_min"] = round(timing.min_ms / plain.min_ms, 3)
            rows[name]["ratio_cpu"] = round(timing.cpu_ms / plain.cpu_ms, 3)
            if name in steps:
                rows[name]["temp_ratio"] = round(
                    steps[name].temp_bytes / max(cost.temp_bytes, 1), 3
                )
        if name in elsewhere and PLAIN_TORCH in timings:
            rows[name]["torch_ratio"] = round(
                _harness.paired_ratio(timing, timings[PLAIN_TORCH]), 3
            )
        if "ours_auto" in timings:
            rows[name]["auto_over_this"] = round(
                _harness.paired_ratio(timings["ours_auto"], timing), 3
            )
    return list(rows.values())


def _reference(workload: workloads.Workload) -> Any:
    """The sum of clipped gradients by `vmap(grad)`, products in full precision; on the host."""
    with jax.default_matmul_precision("highest"):
        total = jax.jit(gradient("vmap_grad", workload.loss))(workload.params, workload.batch)
    return jax.device_get(total)


def _base(workload: workloads.Workload) -> dict[str, Any]:
    return {
        "workload": workload.name,
        "title": workload.title,
        "params": sum(leaf.size for leaf in jax.tree.leaves(workload.params)),
        "batch": jax.tree.leaves(workload.batch)[0].shape[0],
    }


def _compiled(name: str, workload: workloads.Workload) -> _harness.Step:
    return _harness.compile_step(gradient(name, workload.loss), *_arguments(name, workload))


def _compile_ratio(workload: workloads.Workload) -> float:
    """Of "ours_auto" over "non_private", each compiled anew in turn."""

    def compile_s(name: str) -> float:
        jax.clear_caches()
        return _compiled(name, workload).compile_s

    pairs = ((compile_s("ours_auto"), compile_s("non_private")) for _ in range(COMPILATIONS))
    return round(statistics.median(ours / plain for ours, plain in pairs), 3)


class _Failed(Exception):
    """A torch peer that fails while it is timed."""

    def __init__(self, peer: str, reason: Exception) -> None:
        super().__init__(str(reason))
        self.peer = peer


def _timed(
    cases: dict[str, _harness.Case], rows: dict[str, dict[str, Any]], rounds: int, budget_s: float
) -> dict[str, _harness.Timing]:
    """All cases in turn; without one that fails, from the start."""
    while True:
        try:
            return _harness.interleaved(cases, repeats=rounds, budget_s=budget_s)
        except _Failed as failed:
            rows[failed.peer]["error"] = str(failed)
            cases = {name: case for name, case in cases.items() if name != failed.peer}


@contextlib.contextmanager
def _torch(
    workload: str, times: int, peers: list[str], expected_l2: float
) -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, _harness.Elsewhere]]]:
    """What the child's checks found, a row a peer, and those that may be timed; norms of the sums
    are compared.
    """
    if not peers:
        yield {}, {}
        return
    kept = peers[0].endswith(KEPT)
    bare = {peer: peer.removesuffix(KEPT) for peer in peers}
    on_gpu = jax.default_backend() == "gpu"
    arguments = ["--workload", workload, "--peers", ",".join(bare.values()), "--times", str(times)]
    arguments += [*(["--keep"] if kept else []), *(["--device", "cuda"] if on_gpu else [])]
    child = _child.Child("bench.kernels._torch_peers", arguments, JAX_PLATFORMS="cpu")
    if not kept:
        bare[PLAIN_TORCH] = PLAIN_TORCH
    with _elsewhere(child, bare, expected_l2) as found:
        yield found


@contextlib.contextmanager
def _elsewhere(
    child: _child.Child, peers: dict[str, str], expected_l2: float
) -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, _harness.Elsewhere]]]:
    """As `_torch`, of a child that calls its peers by the values of `peers`; closes it."""

    def seconds(peer: str, calls: int) -> tuple[float, float]:
        try:
            wall, cpu = child.ask(f"{peers[peer]} {calls}")["seconds"]
        except (RuntimeError, OSError) as reason:
            raise _Failed(peer, reason) from reason
        return wall, cpu

    try:
        try:
            answer = child.answer()
            checked = {peer: answer[name] for peer, name in peers.items()}
        except RuntimeError as reason:
            checked = {peer: {"failed": str(reason)} for peer in peers}
        for row in checked.values():
            if "failed" in row:
                row["error"] = row.pop("failed")
            elif "l2_of_sum" in row and not abs(row["l2_of_sum"] / expected_l2 - 1) < (
                ROUNDING_TF32 if jax.default_backend() == "gpu" else 1e-3
            ):
                row["error"] = (
                    f"wrong: L2 of its clipped sum is {row['l2_of_sum']:.5g}, expected "
                    f"{expected_l2:.5g}"
                )
        timed = [peer for peer, row in checked.items() if "error" not in row]
        yield (
            checked,
            {peer: _harness.Elsewhere(functools.partial(seconds, peer)) for peer in timed},
        )
    finally:
        child.close()


def measure_newcomer(
    workload: workloads.Workload, times: int, rounds: int, budget_s: float
) -> list[dict[str, Any]]:
    """What a newcomer gets: in a cold process with nothing tuned, and in one that keeps freed
    memory.
    """
    base, expected_l2 = _base(workload), _harness.l2(_reference(workload))
    # Of the large batch rows take gigabytes, and seconds a call.
    peers = [p for p in _newcomer.PEERS if (workload.name, p) != ("b256", _newcomer.BY_HAND)]
    arguments = ["--workload", workload.name, "--times", str(times)]
    asked = [*arguments, "--peers", ",".join(peers)]
    with contextlib.ExitStack() as stack:
        # All begin at once, so that they compile side by side.
        children: dict[_child.Child, dict[str, str]] = {
            _child.Child("bench.kernels._newcomer", [*asked, *options], JAX_PLATFORMS="cpu"): {
                prefix + peer: peer for peer in peers
            }
            for prefix, options in ((COMES, []), (KEEPS, ["--keep"]))
        }
        torch = _child.Child(
            "bench.kernels._torch_peers", [*arguments, "--peers", ""], JAX_PLATFORMS="cpu"
        )
        children[torch] = {COMES + PLAIN_TORCH: PLAIN_TORCH}
        found = [
            stack.enter_context(_elsewhere(child, names, expected_l2))
            for child, names in children.items()
        ]
        rows = {p: {**base, "peer": p, **row} for checked, _ in found for p, row in checked.items()}
        timings = _timed(
            {p: case for _, timed in found for p, case in timed.items()}, rows, rounds, budget_s
        )
    for name, timing in timings.items():
        process = next(prefix for prefix in (COMES, KEEPS) if name.startswith(prefix))
        rows[name] |= timing.row()
        if plain := timings.get(process + _newcomer.PLAIN):
            rows[name]["ratio"] = round(_harness.paired_ratio(timing, plain), 3)
            rows[name]["ratio_min"] = round(timing.min_ms / plain.min_ms, 3)
            rows[name]["ratio_cpu"] = round(timing.cpu_ms / plain.cpu_ms, 3)
        if torch_plain := timings.get(COMES + PLAIN_TORCH):
            rows[name]["torch_ratio"] = round(_harness.paired_ratio(timing, torch_plain), 3)
        if private := timings.get(process + PRIVATE):
            rows[name]["private_over_this"] = round(_harness.paired_ratio(private, timing), 3)
    return list(rows.values())


def measure_noise(workload: workloads.Workload, rounds: int) -> list[dict[str, Any]]:
    """Drawing normals alone, and noise plus update."""
    stddev, learning_rate = L2_CLIP_NORM, 0.1

    def draw(key: jax.Array, params: Any) -> Any:
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(
            tree, [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
        )

    def noise_and_update(key: jax.Array, params: Any) -> Any:
        noisy = add_gaussian_noise(key, params, stddev)
        return jax.tree.map(lambda p, g: p - learning_rate * g, params, noisy)

    key = jax.random.key(1)
    functions = {"normals": draw, "noise_and_update": noise_and_update}
    steps = {
        name: _harness.compile_step(fun, key, workload.params) for name, fun in functions.items()
    }
    timings = _harness.interleaved(
        {n: s.run for n, s in steps.items()}, repeats=rounds, budget_s=5.0
    )
    return [
        {
            "workload": workload.name,
            "title": workload.title,
            "peer": f"noise: {name}",
            **steps[name].row(),
            **timing.row(),
            "ratio_to_normals": round(_harness.paired_ratio(timing, timings["normals"]), 3),
        }
        for name, timing in timings.items()
    ]


TIMES = (
    "median_ms",
    "min_ms",
    "cpu_ms",
    "spread",
    "ratio",
    "ratio_min",
    "ratio_cpu",
    "auto_over_this",
    "private_over_this",
)
COLUMNS = (
    "workload",
    "peer",
    *TIMES,
    "temp_mib",
    "temp_ratio",
    "compile_s",
    "compile_ratio",
    "torch_ratio",
    "ratio_to_normals",
    "error",
)


def table(rows: _tables.Rows) -> str:
    """Private gradients beside the gradient without privacy and the quickest peer."""
    body = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        timed = {
            row["peer"]: row for row in rows if row["workload"] == workload and "median_ms" in row
        }
        ours = timed["ours_auto"]
        private = [
            name for name in timed if not any(w in name for w in ("non_private", "ours", ": "))
        ]
        peers = {name: timed[name]["median_ms"] for name in private}
        best = min(peers, key=peers.__getitem__)
        body.append(
            [
                ours["title"],
                *(_step(timed.get(process + PRIVATE)) for process in (COMES, KEEPS)),
                f"{ours['ratio']:.2f}x ({ours['ratio_cpu']:.2f}x)",
                f"{ours['median_ms']:.1f} ms",
                f"{timed['ours_devices']['median_ms']:.1f} ms" if "ours_devices" in timed else "",
                f"{peers[best]:.1f} ms ({best})",
                f"{timed['torch_non_private']['median_ms']:.1f} ms"
                if "torch_non_private" in timed
                else "",
                f"{ours['temp_ratio']:.2f}x",
            ]
        )
    head = [
        "workload",
        "private step / mean gradient, as it comes",
        "the same, freed memory kept",
        "clipped sum alone, kept (CPU time)",
        "ours",
        "ours, a device a core",
        "quickest peer",
        "plain gradient in torch",
        "memory, private / non-private",
    ]
    return _tables.markdown(head, body)


def _step(row: Any) -> str:
    """Noise included; empty where it has not been measured."""
    return f"{row['ratio']:.2f}x ({row['median_ms']:.1f} ms)" if row else ""


def gpu_table(rows: _tables.Rows) -> str:
    """Milliseconds of one private gradient on a GPU, and over the mean gradient's, by form."""
    forms = {
        "ours_auto": "ours",
        "vmap_grad": "`vmap(grad)`",
        "jax_privacy": "jax_privacy",
        "opacus_hooks": "Opacus",
        "opacus_ghost": "Opacus ghost",
        "torch_func": "`torch.func`",
    }
    body = []
    for title in dict.fromkeys(row["title"] for row in rows):
        timed = {row["peer"]: row for row in rows if row["title"] == title and "median_ms" in row}
        cells = [
            f"{timed[form]['median_ms']:.2f} ({timed[form]['ratio']:.2f}x)" if form in timed else ""
            for form in forms
        ]
        plain = (f"{timed[name]['median_ms']:.2f}" for name in ("non_private", PLAIN_TORCH))
        body.append([title, *plain, *cells])
    head = ["ms, medians", "mean gradient, XLA", "the same, torch", *forms.values()]
    return _tables.markdown(head, body)


def large_table(rows: _tables.Rows) -> str:
    """Milliseconds of one private gradient, by form: medians, and least times in brackets."""
    forms = {
        "non_private": "plain gradient in XLA",
        "ours_auto": '`method="auto"`',
        "ours_devices": "`ours_devices`",
        "patches_16": "patches, `vmap(grad)`, 16 at a time",
        "torch_func": "`torch.func.vmap(grad)`",
        "torch_func_kept": "the same, freed memory kept",
        "opacus_ghost": "Opacus ghost",
        "torch_non_private": "plain gradient in torch",
    }
    body = []
    for title in dict.fromkeys(row["title"] for row in rows):
        timed = {row["peer"]: row for row in rows if row["title"] == title and "median_ms" in row}
        if "ours_devices" not in timed:
            continue
        cells = [
            f"{timed[f]['median_ms']:,.0f} ({timed[f]['min_ms']:,.0f})" if f in timed else ""
            for f in forms
        ]
        body.append([title, *cells])
    return _tables.markdown(["model", *forms.values()], body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workloads", default=",".join(workloads.MAKERS), help="letters, comma-separated"
    )
    parser.add_argument("--peers", default="quick", help="quick, all, or names, comma-separated")
    parser.add_argument("--rounds", type=int, default=7, help="at least 5")
    parser.add_argument("--budget", type=float, default=12.0, help="seconds of timing a workload")
    parser.add_argument(
        "--minutes", type=float, default=4.5, help="after which quick leaves slow peers out"
    )
    parser.add_argument("--times", type=int, default=1, help="batches so many times as large")
    parser.add_argument("--newcomer", action="store_true", help="what a newcomer gets, alone")
    parser.add_argument("--name", default="per_example", help="of the JSON file")
    options = parser.parse_args(arguments)
    if options.newcomer:
        _amend_newcomers(options)
        return
    mesh.as_devices(_harness.cores())  # all other forms run on the first
    kept = allocator.keep_freed_memory()
    rows = []
    start = time.perf_counter()
    for letter in options.workloads.split(","):
        workload = workloads.make(letter, options.times)
        named = {"quick": quick_peers(letter), "all": ALL}
        if time.perf_counter() - start > 60 * options.minutes:
            print(f"{letter}: past {options.minutes} minutes, without slow peers")
            named["quick"] = ("non_private", "ours_auto", "vmap_grad", "opacus_ghost", "torch_func")
        peers: tuple[str, ...] = named.get(options.peers) or (
            "non_private",
            *options.peers.split(","),
        )
        new = measure(
            workload, options.times, tuple(dict.fromkeys(peers)), options.rounds, options.budget
        )
        new += measure_noise(workload, options.rounds)
        if jax.default_backend() == "cpu":
            new += measure_newcomer(workload, options.times, options.rounds, options.budget)
        print(_harness.table(new, COLUMNS), flush=True)
        rows += new
        jax.clear_caches()  # the compiled programs of one workload are of no use to the next
    note = (
        f"--peers {options.peers} --rounds {options.rounds} --budget {options.budget:g} "
        f"--times {options.times}"
    )
    path = _harness.write(
        options.name, rows, note=note + ("" if kept else "; freed memory not kept")
    )
    print(f"wrote {path.relative_to(_harness.ROOT)}")


def _amend_newcomers(options: argparse.Namespace) -> None:
    rows = []
    for letter in options.workloads.split(","):
        workload = workloads.make(letter, options.times)
        new = measure_newcomer(workload, options.times, options.rounds, options.budget)
        print(_harness.table(new, COLUMNS), flush=True)
        rows += new
        jax.clear_caches()
    path = _harness.amend(options.name, rows, keys=("workload", "peer"))
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
