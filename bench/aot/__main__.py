"""What do our programs move, hold, send and multiply on a TPU v5e and an H200?

    python -m bench.aot [--targets tpu,cuda] [--programs NAME,...] [--forms reference,ours]

`make aot` makes the environments first: the compilers are those of libtpu and of JAX's CUDA wheels,
and no device is needed. A target without its environment is skipped. Bytes are XLA's own count of
what a compiled program accesses; what it hands to cuDNN, cuBLAS and kernels counts by operands and
results, for XLA counts nothing there. Of a loop that count has one trip: `bytes_of_run` has as many
as there are, and ratios are of these. No figure here is a time.

| form | what it is |
|---|---|
| reference | the mean gradient, the round without privacy, the sum without clipping |
| plain | the plain JAX form: `vmap(grad)`, norms, one product |
| two_pass | norms by `vmap(grad)`, the sum as the gradient of the weighted loss |
| ours | what the library does |

Rows that a run does not compile again are kept; each says of which commit it is.
"""

import argparse
import datetime
import functools
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from bench import _child, _harness, _tables
from bench.aot import pod, programs

MOVED = "bytes_of_run"
ENVIRONMENTS = _harness.ROOT / ".aot"
TARGETS = ("tpu", "cuda")


def python_of(target: str) -> pathlib.Path:
    """The interpreter of a target's environment."""
    return ENVIRONMENTS / target / "bin" / "python"


def measure(
    target: str, names: list[str], forms: list[str] | None, keep: Callable[[Any], Any]
) -> list[dict[str, Any]]:
    """One row for each program, form and number of devices; `keep` is told after each program."""
    child = _child.Child(
        "bench.aot.child",
        [target],
        python=str(python_of(target)),
        JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1",
        TPU_SKIP_MDS_QUERY="1",
    )
    rows: list[dict[str, Any]] = []
    try:
        where = child.answer()
        for name in names:
            for count in programs.devices(target, name):
                for form in programs.PROGRAMS[name](count):
                    if forms is not None and form not in forms:
                        continue
                    row = {"program": name, "form": form, "devices": count, **where}
                    row |= child.ask(f"{name} {form} {count}")
                    rows.append(row)
                    print(target, json.dumps(row), flush=True)
            keep(rows)
    finally:
        child.close()
    return rows


def environment() -> dict[str, Any]:
    """What a run is of; the device is the target's, not this machine's."""
    here = _harness.environment()
    return {key: here[key] for key in ("commit", "dirty", "python")}


def write(target: str, where: dict[str, Any], rows: list[dict[str, Any]]) -> pathlib.Path:
    """`results/aot-<target>.json`, with the rows that were not compiled again."""
    path = _harness.RESULTS / f"aot-{target}.json"
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    new = {(row["program"], row["form"], row["devices"]): row | where for row in rows}
    old = json.loads(path.read_text()) if path.exists() else {"environment": {}, "rows": []}
    for row in old["rows"]:
        new.setdefault((row["program"], row["form"], row["devices"]), old["environment"] | row)
    order = list(programs.PROGRAMS)
    found = sorted(new.values(), key=lambda row: (order.index(row["program"]), row["devices"]))
    content = {"note": "", "environment": where | {"date": date}, "rows": found}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def table(rows: _tables.Rows) -> str:
    """Bytes and memory of each program beside its reference and the plain form."""
    body = []
    for device in dict.fromkeys(row["device"] for row in rows):
        mine = [row for row in rows if row["device"] == device and "failed" not in row]
        for name, count in dict.fromkeys((row["program"], row["devices"]) for row in mine):
            forms = {
                row["form"]: row
                for row in mine
                if (row["program"], row["devices"]) == (name, count)
            }
            if programs.OURS not in forms or name.startswith("pod_"):
                continue
            ours, reference = forms[programs.OURS], forms.get(programs.REFERENCE)
            body.append(
                [
                    f"{device}, {count}" if count > 1 else device,
                    name,
                    _gb(reference),
                    _gb(forms.get(programs.PLAIN)),
                    _gb(forms.get("two_pass")),
                    _gb(ours) + _times(ours, reference),
                    f"{_mb(reference)} / {_mb(ours)}",
                    f"{ours['collectives']} ({ours['collective_bytes'] / 1e6:.1f} MB)",
                    _passes(ours, reference),
                ]
            )
    head = ["device", "program", "reference, GB", "plain", "two-pass", "ours"]
    head += ["temporaries, MB", "collectives", "matrix passes"]
    return _tables.markdown(head, body)


def dealt_table(rows: _tables.Rows) -> str:
    """What a device holds, accesses and sends in rounds of 100 clients a device."""
    titles = {"round_dealt": "MLP, 40 examples", "round_dealt_femnist": "FEMNIST CNN, 240 examples"}
    head = ["100 clients a device", "devices", "arguments, MB", "temporaries", "accessed"]
    body = [
        [
            f"{titles[row['program']]}, {row['device']}",
            str(row["devices"]),
            *(f"{row[f'{what}_bytes'] / 1e6:.2f}" for what in ("argument", "temp")),
            f"{row['bytes_accessed'] / 1e6:.2f}",
            f"{row['collectives']} ({row['collective_bytes'] / 1e6:.2f} MB)",
        ]
        for row in rows
        if row["program"] in titles and "failed" not in row
    ]
    return _tables.markdown([*head, "collectives"], body)


# Of one device, as its maker states them: bfloat16 products a second, bytes a second, bytes.
_PEAKS = {"TPU v5e": (197e12, 819e9, 16e9), "H200": (989e12, 4.8e12, 141e9)}


def pod_table(rows: _tables.Rows) -> str:
    """A step of a billion parameters, by form, beside the plain gradient; of one device."""
    titles = {"pod_lora": f"LoRA of rank {pod.RANK}", "pod_full": "all of it"}
    head = ["devices", "trained", "form", "memory, GB", "moved, GB", "matrix passes, 1e12"]
    head += ["operations a byte", "seconds at least"]
    body = []
    mine = [row for row in rows if row["program"] in titles]
    for row in mine:
        start = [f"{row['devices']} x {row['device']}", titles[row["program"]], row["form"]]
        if "failed" in row:
            body.append([*start, f"fails: {row['failed'][:60]}", *[""] * 4])
            continue
        same = [r for r in mine if all(r[k] == row[k] for k in ("program", "devices", "device"))]
        plain = next((r for r in same if r["form"] == programs.REFERENCE), None)
        passes = row["passes_of_run"] / row["devices"]
        product_rate, byte_rate, room = _PEAKS[row["device"]]
        held = sum(row[f"{what}_bytes"] for what in ("argument", "temp", "output"))
        seconds = max(2 * passes / product_rate, row[MOVED] / byte_rate)
        more = "" if plain is None or row is plain else " ({:.2f}x)"
        body.append(
            [
                *start,
                f"{held / 1e9:.1f} of {room / 1e9:.0f}",
                f"{row[MOVED] / 1e9:.0f}" + more.format(row[MOVED] / (plain or row)[MOVED]),
                f"{passes / 1e12:.1f}"
                + more.format(row["passes_of_run"] / (plain or row)["passes_of_run"]),
                f"{2 * passes / row[MOVED]:.0f}",
                f"{seconds:.2f}",
            ]
        )
    return _tables.markdown(head, body)


def _times(ours: Any, reference: Any) -> str:
    if reference is None or ours[MOVED] < 0:
        return ""
    return f" ({ours[MOVED] / reference[MOVED]:.2f}x)"


def _gb(row: Any) -> str:
    """Nothing of a kernel whose bytes the compiler does not tell."""
    return "" if row is None or row[MOVED] < 0 else f"{row[MOVED] / 1e9:.3f}"


def _mb(row: Any) -> str:
    return "-" if row is None else f"{row['temp_bytes'] / 1e6:.0f}"


def _passes(ours: Any, reference: Any) -> str:
    if reference is None or not reference["multiply_adds_passes"]:
        return ""
    # Products count once a loop, and a form may have in its loop what another has behind it.
    if any(row[MOVED] > 1.5 * row["bytes_accessed"] for row in (ours, reference)):
        return ""
    return f"{ours['multiply_adds_passes'] / reference['multiply_adds_passes']:.2f}x"


def main(arguments: list[str] | None = None) -> int:
    """Compiles, prints, writes the JSON. Returns how many targets had an environment but failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--programs", default=",".join(programs.PROGRAMS), help="comma-separated")
    parser.add_argument("--forms", default=None, help="comma-separated; all of them if left out")
    options = parser.parse_args(arguments)
    forms = None if options.forms is None else options.forms.split(",")
    failed = 0
    for target in options.targets.split(","):
        if not python_of(target).exists():
            print(f"{target}: skipped, no environment in {ENVIRONMENTS.name}/: run `make aot`")
            continue
        keep = functools.partial(write, target, environment())
        rows = measure(target, options.programs.split(","), forms, keep)
        failed += not rows
        print(f"wrote {keep(rows).relative_to(_harness.ROOT)}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
