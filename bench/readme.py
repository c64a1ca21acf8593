"""The README tables of measured numbers, from the committed JSON: `python -m bench.readme` rewrites them in place."""

import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any

from bench import _harness


def _rows(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    found = json.loads((_harness.RESULTS / f"{name}-cpu.json").read_text())
    return found["rows"], found["environment"]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def demo() -> str:
    """What the main job reaches, seed by seed."""
    rows, where = _rows("demo")
    body = [
        [
            str(row["seed"]),
            f"{row['accuracy']:.1%}",
            f"{row['accuracy_non_private']:.1%}",
            f"{row['epsilon']:.3f}",
            f"{math.ceil(row['delta'] * 1e5) / 1e5:.5f}",
            f"{row['wall_s']:.0f} s",
        ]
        for row in rows
    ]
    head = ["seed", "accuracy, private", "accuracy, non-private", "epsilon", "delta", f"wall, {where['cores']} cores"]
    return _table(head, body)


def round_() -> str:
    """Clients a second."""
    rows, _ = _rows("round")
    body = [
        [
            row["peer"],
            f"{row['clients_per_s']:.0f}",
            f"{row['speed_to_plain_scan']:.2f}x",
            "" if row.get("temp_mib") is None else f"{row['temp_mib']:.1f} MiB",
        ]
        for row in rows
        if row.get("clients_per_s")
    ]
    return _table(["1,000 clients, one round", "clients/s", "against plain scan", "XLA temporary memory"], body)


def accounting() -> str:
    """Speed of the accountants."""
    rows, _ = _rows("accounting")
    names = {
        "sweep_1000": "1,000 configurations, at its own orders",
        "one": "one epsilon",
        "calibrate": "noise for one epsilon",
        "calibrate_grid_1000": "noise for 1,000 targets in one program",
        "ledger_round": "epsilon after one more round",
    }
    body = [[names[row["case"]], f"{row['speedup']:.0f}x"] for row in rows if row.get("speedup")]
    return _table(["Renyi accounting", "against dp-accounting 0.6.0"], body)


def per_example() -> str:
    """Private gradients beside the gradient without privacy and the quickest peer."""
    rows, _ = _rows("per_example")
    body = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        timed = {row["peer"]: row for row in rows if row["workload"] == workload and row.get("median_ms")}
        ours = timed["ours_auto"]
        private = [name for name in timed if not any(word in name for word in ("non_private", "ours", "noise"))]
        peers = {name: timed[name]["median_ms"] for name in private}
        best = min(peers, key=peers.__getitem__)
        body.append(
            [
                ours["title"],
                f"{ours['ratio']:.2f}x",
                f"{ours['median_ms']:.1f} ms",
                f"{peers[best]:.1f} ms ({best})",
                f"{ours['temp_ratio']:.2f}x",
            ]
        )
    head = ["workload", "private / non-private", "ours", "quickest peer", "memory, private / non-private"]
    return _table(head, body)


def accounting_pld() -> str:
    """Speed of certified privacy-loss distributions."""
    rows, _ = _rows("accounting_pld")
    names = {
        "one": "one epsilon",
        "one_equal_error": "one epsilon, equal error",
        "calibrate_A": "noise for epsilon 2, 10,000 steps",
        "calibrate_B": "noise for epsilon 1, 100,000 steps",
        "heterogeneous_20": "20 different rates",
        "sweep_1000": "1,000 configurations",
    }
    ours = {row["case"]: row["median_ms"] for row in rows if row["peer"] == "ours"}
    body = [
        [
            names[row["case"]],
            f"{ours[row['case']]:,.0f} ms",
            row["peer"].replace("_", " "),
            f"{row['ours_faster']:.0f}x",
        ]
        for row in rows
        if row.get("ours_faster")
    ]
    return _table(["certified to a thousandth", "ours", "peer", "ours is faster"], body)


def subject_steps() -> str:
    """Hierarchical averages beside item clipping; silos in one program beside a loop."""
    rows, _ = _rows("subject_steps")
    body = [
        [f"{row['case']}: hierarchical average over item sum", f"{row['ratio']:.2f}x the time"]
        for row in rows
        if row["what"] == "hierarchical average"
    ]
    body += [
        [f"{row['case']}: one program over a loop of jitted steps", f"{row['loop / this']:.1f}x as fast"]
        for row in rows
        if row["what"] == "one program"
    ]
    return _table(["subject-level training", ""], body)


def pair_noise() -> str:
    """Noise that pairs share, beside plain normals and beside its joint law."""
    rows, _ = _rows("pair_noise")
    ours = {row["case"].split()[0]: row for row in rows if row["form"] == "ours"}
    titles = {
        "cohort": "{case}: time of all rows over as many plain normals",
        "client": "{case}: time of a client's own row over as many plain normals",
        "joint_law": "{case}: time pair by pair over time of the joint law",
        "memory": "{case}: XLA's memory over the result's",
    }
    body = []
    for name, title in titles.items():
        row = ours[name]
        case = row["case"].removeprefix(f"{name} ")
        body.append([title.format(case=case), f"{row.get('ratio') or row['memory_over_result']:.2f}x"])
    return _table(["pair noise (N clients, k neighbours, D parameters)", ""], body)


def wfna() -> str:
    """Water filling beside its definition and beside isotropic noise."""
    rows, _ = _rows("wfna")
    body = [
        [
            f"{row['case'].split()[0]}, {row['k']:,} parameters, {row['records']:,} records",
            f"{row['median_ms']:.0f} ms",
            f"{row['over_gd_dp']:.1f}x",
            f"{row['dense_over_ours']:,.0f}x",
            f"{row['temp_mib']:.0f} MiB",
        ]
        for row in rows
        if row.get("over_gd_dp")
    ]
    head = ["water filling, one client, one core", "ours", "against isotropic noise", "dense eigensystem", "memory"]
    return _table(head, body)


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo,
    "round": round_,
    "per_example": per_example,
    "accounting": accounting,
    "accounting_pld": accounting_pld,
    "subject_steps": subject_steps,
    "pair_noise": pair_noise,
    "wfna": wfna,
}


def tables() -> dict[str, str]:
    """The tables whose JSON is committed."""
    return {name: make() for name, make in TABLES.items() if (_harness.RESULTS / f"{name}-cpu.json").exists()}


def main() -> int:
    """Rewrites what stands between the markers in README.md."""
    path = _harness.ROOT / "README.md"
    text = path.read_text()
    for name, table in tables().items():
        block = f"<!-- {name} -->\n{table}\n<!-- end -->"
        text = re.sub(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, block=block: block, text, flags=re.DOTALL)
    path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
