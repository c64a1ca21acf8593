"""Machines that are compiled for without being there, and what is read from a compiled program.

Everything here runs in an environment of the target's own, which `make aot` makes.
"""

import math
import re
from typing import Any

import jax
import jax.extend
import numpy as np
from jax.experimental import topologies

from bench.aot import programs
from fljax.server.aggregate import CLIENTS, MODEL

# What XLA asks of a device that is not there: a text proto of the H200's properties.
_H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "H200"
"""
_TPU_TOPOLOGIES = {1: "v5e:2x2", 4: "v5e:2x2", 256: "v5e:16x16"}
DEVICE = {"tpu": "TPU v5e", "cuda": "H200"}

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4}
_BYTES |= {"s64": 8, "u64": 8, "f64": 8}
_COLLECTIVE = re.compile(
    r"= (\(.*?\)|\S+) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)"
    r"(?:-start)?\("
)
_CALLS = re.compile(
    r"(?:calls|to_apply|body|condition|select|scatter|true_computation|false_computation|"
    r"branch_computations|called_computations|async_wrapped)=(\{[^}]*\}|%?[\w.\-]+)"
)
_RESULT = re.compile(r"%?([\w.\-]+) = (\(.*?\)|\S+) [\w\-]+\(")
_CUSTOM = re.compile(r" = (\(.*?\)|\S+) custom-call\((.*?)\), ")
_LOOP = re.compile(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_LIMIT = re.compile(r" = s32\[\]\S* constant\((\d+)\)")
_TRIPS = re.compile(r'known_trip_count"?:\{"n":"(\d+)"')
# Passes over a matrix unit of bfloat16 that a float32 product takes, by what it asks for.
_PASSES = {"default": 1, "high": 3, "highest": 6}


def devices(target: str, count: int) -> list[Any]:
    """The first `count` devices of the target's smallest topology that has them."""
    if target == "tpu":
        found = topologies.get_topology_desc(platform="tpu", topology_name=_TPU_TOPOLOGIES[count])
    else:
        found = topologies.get_topology_desc(
            platform="cuda", topology=f"1x1x{count}", target_config=_H200
        )
    return list(found.devices)[:count]


def compiled(target: str, count: int, program: programs.Program) -> tuple[Any, Any]:
    """(traced, compiled); arguments that have no sharding are the same on all devices."""
    fun, arguments = program.fun, program.arguments
    found = devices(target, count)
    auto = jax.sharding.AxisType.Auto
    sizes, names = (count, 1, 1), (CLIENTS, "copies", MODEL)
    if program.mesh is not None:
        sizes, names = program.mesh.axis_sizes, program.mesh.axis_names
    mesh = jax.sharding.Mesh(np.array(found).reshape(sizes), names, axis_types=(auto,) * 3)
    whole: Any = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    if count == 1:
        whole = jax.sharding.SingleDeviceSharding(found[0])

    def placed(x: Any) -> Any:
        at = getattr(x, "sharding", None)
        spec = at.spec if isinstance(at, jax.sharding.NamedSharding) else None
        here = whole if spec is None or count == 1 else jax.sharding.NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)

    there = jax.tree.map(placed, arguments)
    if count == 1:
        traced = jax.jit(fun, donate_argnums=program.donated).trace(*there)
        return traced, traced.lower().compile()
    results = jax.tree.map(lambda spec: jax.sharding.NamedSharding(mesh, spec), program.results)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        traced = jax.jit(fun, out_shardings=results).trace(*there)
        return traced, traced.lower().compile()


def cost(target: str, traced: Any, program: Any) -> dict[str, Any]:
    """What one device moves, holds, sends and multiplies; a loop's body counts once, but for the
    bytes of a whole run.
    """
    memory, text = program.memory_analysis(), program.as_text()
    moved = _analysis(target, program)["bytes accessed"]
    collectives = [_size(found[1]) for found in _COLLECTIVE.finditer(text)]
    return {
        "bytes_accessed": float(moved),
        "bytes_of_run": float(moved) + of_further_trips(text),
        "temp_bytes": int(memory.temp_size_in_bytes),
        "argument_bytes": int(memory.argument_size_in_bytes),
        "output_bytes": int(memory.output_size_in_bytes),
        "collectives": len(collectives),
        "collective_bytes": sum(collectives),
        **products(traced.jaxpr, target),
    }


def _analysis(target: str, program: Any) -> dict[str, float]:
    if target == "tpu":
        found = program.cost_analysis()
        return found[0] if isinstance(found, list) else found
    # The CUDA plugin says nothing; the same analysis of the fused module does.
    return _counted(program.runtime_executable().hlo_modules()[0])


def _counted(module: Any) -> dict[str, float]:
    from jax._src.lib import xla_client

    client = jax.devices("cpu")[0].client
    counted: dict[str, float] = xla_client._xla.hlo_module_cost_analysis(client, module)
    return counted | {"bytes accessed": counted["bytes accessed"] + of_calls(module.to_string())}


def of_calls(text: str) -> float:
    """Bytes of what a module's custom calls read and write, and 1 for each: XLA knows neither, of
    cuDNN's convolutions, cuBLAS's products and kernels alike, and counts each as -1 byte.
    """
    total = 0.0
    for block in _computations(text)[0].values():
        results = dict(_RESULT.findall(block))
        for found in _CUSTOM.finditer(block):
            names = re.findall(r"%?([\w.\-]+)(?:, |$)", found[2])
            total += 1 + _size(found[1]) + sum(_size(results.get(name, "")) for name in names)
    return total


def of_further_trips(text: str) -> float:
    """Bytes that a compiled program's loops move after their first trips; `text` is its HLO.

    A loop that does not say how often it runs counts once. Those of a TPU say it by the number that
    their counter, which JAX starts at 0, is compared with.
    """
    parts, entry = _computations(text)

    def further(name: str) -> float:
        total = 0.0
        for line in "\n".join(parts[n] for n in _called(name, parts, loops=False)).splitlines():
            if loop := _LOOP.search(line):
                told, once = _TRIPS.search(line), _moved(loop[2], parts)
                limits = _LIMIT.findall(parts[loop[1]]) if "direction=LT" in parts[loop[1]] else []
                trips = int(told[1]) if told else int(limits[0]) if len(limits) == 1 else 1
                total += trips * (once + further(loop[2])) - once
        return total

    return further(entry)


def _computations(text: str) -> tuple[dict[str, str], str]:
    """Name -> text of each computation, callees first; and the name of the one that runs."""
    parts, entry = {}, ""
    for block in re.split(r"\n\n+", text.strip())[1:]:
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) ", block):
            parts[head[2]] = block.removeprefix("ENTRY ")
            entry = head[2] if head[1] else entry
    return parts, entry


def _called(name: str, parts: dict[str, str], *, loops: bool) -> set[str]:
    """What a computation calls, itself included; `loops`: their bodies too."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        here = todo.pop()
        if here in seen or here not in parts:
            continue
        seen.add(here)
        lines = [line for line in parts[here].splitlines() if loops or " while(" not in line]
        todo += re.findall(r"[\w.\-]+", " ".join(_CALLS.findall("\n".join(lines))))
    return seen


def _moved(name: str, parts: dict[str, str]) -> float:
    """Bytes that one run of a computation accesses, by XLA's analysis."""
    from jaxlib import _hlo

    needed = _called(name, parts, loops=True)
    texts = [("ENTRY " if n == name else "") + text for n, text in parts.items() if n in needed]
    module = _hlo.hlo_module_from_text("\n\n".join(["HloModule part", *texts]))
    return _counted(module)["bytes accessed"]


def _size(shapes: str) -> int:
    found = re.findall(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]", shapes)
    return sum(
        _BYTES[dtype] * math.prod(int(n) for n in shape.split(",") if n)
        for dtype, shape in found
        if dtype in _BYTES
    )


def products(closed: Any, target: str) -> dict[str, float]:
    """Multiply-adds of matrix products and convolutions, of all devices together, in all and by the
    passes they take; `passes_of_run` has those of a scan in each of its trips.
    """
    counted, of_run = ({name: 0.0 for name in _PASSES} for _ in range(2))
    _count(closed.jaxpr, target, counted, of_run, 1)
    passes, passes_of_run = (
        sum(_PASSES[name] * work for name, work in found.items()) for found in (counted, of_run)
    )
    return {f"multiply_adds_{name}": work for name, work in counted.items()} | {
        "multiply_adds_passes": passes,
        "passes_of_run": passes_of_run,
    }


def _count(
    jaxpr: Any, target: str, counted: dict[str, float], of_run: dict[str, float], trips: int
) -> None:
    """Adds to `counted` each product once, and to `of_run` as often as the scans around it run."""
    for eqn in jaxpr.eqns:
        inside = trips * eqn.params["length"] if eqn.primitive.name == "scan" else trips
        if (of_branches := eqn.params.get("branches_platforms")) is not None:
            taken = next(k for k, names in enumerate(of_branches) if not names or target in names)
            _count(eqn.params["branches"][taken].jaxpr, target, counted, of_run, trips)
            continue
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            _count(inner, target, counted, of_run, inside)
        work = _multiply_adds(eqn)
        if work:
            counted[_precision(eqn)] += work
            of_run[_precision(eqn)] += trips * work


def _multiply_adds(eqn: Any) -> float:
    shapes = [atom.aval.shape for atom in eqn.invars]
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        summed = math.prod(shapes[0][axis] for axis in contracted)
        return float(math.prod(eqn.outvars[0].aval.shape) * summed)
    if eqn.primitive.name in ("squares_of_conv_rows", "sum_of_conv_rows"):
        window, channels = eqn.params["window"].kernel, shapes[0][-1]
        return float(math.prod(shapes[1]) * math.prod(window) * channels)
    if eqn.primitive.name == "sum_of_outer_rows":
        return float(math.prod(shapes[0]) * shapes[1][-1])
    if eqn.primitive.name == "conv_general_dilated":
        kernel, numbers = shapes[1], eqn.params["dimension_numbers"]
        each = math.prod(kernel) / kernel[numbers.rhs_spec[0]]
        return float(math.prod(eqn.outvars[0].aval.shape) * each)
    return 0.0


def _precision(eqn: Any) -> str:
    if any(atom.aval.dtype.itemsize < 4 for atom in eqn.invars[:2]):
        return "default"
    if "exact" in eqn.params:  # the kernel of a convolution's rows
        return "highest" if eqn.params["exact"] else "default"
    if eqn.primitive.name == "sum_of_outer_rows":  # of thirds of operands, six products
        return "highest"
    asked = eqn.params["precision"]
    asked = asked if isinstance(asked, tuple) else (asked,)
    order = list(_PASSES)
    names = [str(one).lower().removeprefix("precision.") for one in asked if one is not None]
    return max((name for name in names if name in order), key=order.index, default="default")
