"""Tables of measured numbers in README and docs, from the committed JSON: `python -m bench.readme` rewrites them."""

import math
import re
import statistics
import sys
from collections.abc import Callable
from typing import Any

from bench import (
    _harness,
    _tables,
    noise_in_average,
    overhead,
    pairwise_time,
    pairwise_training,
    subject_levels,
    wfna_noise,
    wfna_training,
)


def demo() -> str:
    """What the main job reaches, seed by seed."""
    rows, where = _tables.rows("demo")
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
    return _tables.markdown(head, body)


def round_() -> str:
    """Clients a second, and the same number over plain scan's: both by medians, so that a reader can divide."""
    rows, _ = _tables.rows("round")
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
    head = ["1,000 clients, one round", "clients/s, median", "against plain scan", "XLA temporary memory"]
    return _tables.markdown(head, body)


def accounting() -> str:
    """Speed of the accountants."""
    rows, _ = _tables.rows("accounting")
    names = {
        "sweep_1000": "1,000 configurations, at its own orders",
        "one": "one epsilon",
        "calibrate": "noise for one epsilon",
        "calibrate_grid_1000": "noise for 1,000 targets in one program",
        "ledger_round": "epsilon after one more round",
    }
    body = [[names[row["case"]], f"{row['speedup']:.0f}x"] for row in rows if row.get("speedup")]
    return _tables.markdown(["Renyi accounting", "against dp-accounting 0.6.0"], body)


def per_example() -> str:
    """Private gradients beside the gradient without privacy and the quickest peer."""
    rows, _ = _tables.rows("per_example")
    body = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        timed = {row["peer"]: row for row in rows if row["workload"] == workload and "median_ms" in row}
        ours = timed["ours_auto"]
        private = [name for name in timed if not any(w in name for w in ("non_private", "ours", "noise"))]
        peers = {name: timed[name]["median_ms"] for name in private}
        best = min(peers, key=peers.__getitem__)
        body.append(
            [
                ours["title"],
                f"{ours['ratio']:.2f}x ({ours['ratio_cpu']:.2f}x)",
                f"{ours['median_ms']:.1f} ms",
                f"{timed['ours_devices']['median_ms']:.1f} ms" if "ours_devices" in timed else "",
                f"{peers[best]:.1f} ms ({best})",
                f"{timed['torch_non_private']['median_ms']:.1f} ms" if "torch_non_private" in timed else "",
                f"{ours['temp_ratio']:.2f}x",
            ]
        )
    head = [
        "workload",
        "private / non-private (CPU time)",
        "ours",
        "ours, a device a core",
        "quickest peer",
        "plain gradient in torch",
        "memory, private / non-private",
    ]
    return _tables.markdown(head, body)


def per_example_large() -> str:
    """Milliseconds of one private gradient, by form: medians, and least times in brackets."""
    rows, _ = _tables.rows("per_example")
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
        cells = [f"{timed[f]['median_ms']:,.0f} ({timed[f]['min_ms']:,.0f})" if f in timed else "" for f in forms]
        body.append([title, *cells])
    return _tables.markdown(["model", *forms.values()], body)


def accounting_pld() -> str:
    """Speed of certified privacy-loss distributions."""
    rows, _ = _tables.rows("accounting_pld")
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
    return _tables.markdown(["certified to a thousandth", "ours", "peer", "ours is faster"], body)


def subject_steps() -> str:
    """Hierarchical averages beside item clipping; silos in one program beside a loop."""
    rows, _ = _tables.rows("subject_steps")
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
    return _tables.markdown(["subject-level training", ""], body)


def pair_noise() -> str:
    """Noise that pairs share, beside plain normals and beside its joint law."""
    rows, _ = _tables.rows("pair_noise")
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
    return _tables.markdown(["pair noise (N clients, k neighbours, D parameters)", ""], body)


def wfna() -> str:
    """Water filling beside its definition and beside isotropic noise."""
    rows, _ = _tables.rows("wfna")
    body = [
        [
            f"{row['case'].split()[0]}, {row['k']:,} parameters, {row['records']:,} records",
            f"{row['noise_multiplier']:g}",
            f"{row['above']:,}",
            f"{row['cpu_ms']:,.{1 if row['cpu_ms'] < 100 else 0}f} ms",
            f"{row['over_gd_dp']:.1f}x",
            f"{row['dense_over_ours']:,.0f}x",
            f"{row['temp_mib']:.0f} MiB",
        ]
        for row in rows
        if row.get("over_gd_dp")
    ]
    head = ["water filling, one client, one core", "noise multiplier", "eigenvalues above the floor", "CPU time"]
    return _tables.markdown([*head, "against isotropic noise", "dense eigensystem", "memory"], body)


def channel() -> str:
    """A training step on noisy records, and through DP-SGD, beside the plain one."""
    rows, _ = _tables.rows("channel")
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
    head = ["step, 64 images 32 x 32 x 3", "against plain, paired", "of least times", "reported", "50,000 records"]
    return _tables.markdown(head, body)


def channel_figures() -> str:
    """Accuracy and attacks, defence by defence: each at the least and the greatest budget that the paper gives it."""
    rows, _ = _tables.rows("channel_figures")
    body = []
    for row in rows:
        if row["figure"] != "trade_off" or row["defence"] == "dp_psac" or row.get("reading") == "printed":
            continue
        per_pixel = (row["kappa"] or 0) / {"digits": 64, "fields": 256}.get(row["dataset"], 3072)
        budgets = (500, 1500) if row["defence"] in ("white", "personalized") else (0, 50, 300)
        if not any(abs(per_pixel * 3072 / budget - 1) < 1e-2 if budget else not per_pixel for budget in budgets):
            continue
        name = row["defence"] + (f", {row['reading'].replace('_', ' ')}" if row.get("reading") else "")
        gradient = row.get("gradient_mse")
        body.append(
            [
                f"{row['dataset']}: {name}",
                "" if row["kappa"] is None else f"{row['kappa']:.2f}",
                "" if row["nats"] is None else f"{row['nats']:.1f}",
                f"{row['accuracy']:.1%}",
                "" if gradient is None else f"{gradient:.4f}",
                f"{row['one_use']['bound_mse']:.4f}" if row.get("one_use", {}).get("nats") else "",
                f"{row['inversion_mse']:.3f}",
                f"{row['auc']:.3f}",
                f"{row['gdc']:.2f}",
            ]
        )
    head = [
        "defence",
        "nats a use",
        "after 13",
        "accuracy",
        "gradient inversion",
        "bound",
        "model inversion",
        "AUC",
        "GDC",
    ]
    return _tables.markdown(head, body)


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


def attacks() -> str:
    """64 of a kind in one program, beside one after the other."""
    rows, _ = _tables.rows("attacks")
    names = {"python loop": "a jitted step called from Python", "scan each": "a jitted search each"}
    body = [
        [row["case"], names[kind], f"{row['times']:.1f}x"]
        for row in rows
        for kind in names
        if row["form"].startswith(kind)
    ]
    return _tables.markdown(["64 in one program", "against one after the other by", "faster"], body)


def bidirectional() -> str:
    """Rounds of the bidirectional scheme in units of FedAvg's."""
    rows, _ = _tables.rows("bidirectional")
    rounds, cpu = [row for row in rows if "limit" in row], {}
    for row in rounds:
        if row["mode"] == "fedavg":
            cpu[row["model"]] = row["cpu_ms"]
    body = [
        [
            row["model"],
            row["mode"],
            f"{row['times fedavg']:.2f}x",
            f"{row['cpu_ms'] / cpu[row['model']]:.2f}x",
            "" if row["limit"] is None else f"{row['limit']:g}x",
        ]
        for row in rounds
        if row["mode"] != "fedavg"
    ]
    return _tables.markdown(["10 clients of 64 digits", "round", "of FedAvg's time", "of its CPU time", "asked"], body)


def bidirectional_time() -> str:
    """Time to the target accuracy: ours measured, the paper's peers as the paper reports them."""
    rows, _ = _tables.rows("bidirectional")
    body = [
        [
            row["model"],
            row["mode"],
            str(row.get("rounds", "")),
            f"{row['times fedavg']:,.{0 if row['times fedavg'] >= 100 else 2}f}x",
            row["source"],
        ]
        for row in rows
        if row.get("seconds")
    ]
    head = ["model or data", "method", "rounds", "of FedAvg's time to the target accuracy", "here or in the paper"]
    return _tables.markdown(head, body)


def _parts(part: str, name: str = "scale") -> list[dict[str, Any]]:
    return [row for row in _tables.rows(name)[0] if row["part"] == part]


def scale() -> str:
    """What a client costs in cohorts of any size."""
    body = [
        [
            row["model"],
            f"{row['clients']:,}",
            f"{row['us_per_client']:.1f} us",
            f"{row['us_per_client_min']:.1f} us",
            f"{row['to_largest']:.2f}x",
            f"{row['temp_kib']:,.0f} KiB",
            str(row["traces"]),
        ]
        for name in ("scale_large", "scale")
        for row in _parts("cohort", name)
    ]
    head = [
        "MLP",
        "clients in a round",
        "a client, median",
        "least",
        "to the largest, paired",
        "XLA temporary memory",
        "traces",
    ]
    return _tables.markdown(head, body)


def scale_disk() -> str:
    """Rounds on clients on disk, and what grows with the population."""
    body = []
    for row in _parts("disk"):
        trace = "" if row["host_share_trace"] is None else f"{row['host_share_trace']:.1%}"
        body.append(
            [
                f"{row['epochs']}",
                f"{row['round_ms']:.0f} ms ({row['round_min_ms']:.0f} to {row['round_max_ms']:.0f})",
                f"{row['clients_per_s']:,.0f}",
                f"{row['host_share']:.1%}",
                trace,
                f"{row['read_ms']:.0f} ms",
                f"{row['bytes_read'] / 1e6:.1f} MB",
            ]
        )
    head = [
        "local epochs",
        "a round, median and range",
        "clients/s",
        "host, by the clock",
        "by the trace",
        "reading alone",
        "bytes",
    ]
    return _tables.markdown(head, body)


def scale_index() -> str:
    """What a larger population costs before and in a round."""
    samples = {row["clients"]: row for row in _parts("sampling")}
    body = [
        [
            f"{row['clients']:,}",
            f"{1e3 * samples[row['clients']]['median_ms']:.0f} us",
            f"{row['read_ms']:.1f} ms",
            f"{row['index_bytes'] / 1e6:,.1f} MB",
            f"{row['open_ms']:,.1f} ms",
        ]
        for row in _parts("index")
    ]
    return _tables.markdown(["clients", "drawing a cohort of 1,000", "reading it", "index", "opening"], body)


def bidirectional_accuracy() -> str:
    """Held-out accuracy of each method at one true epsilon."""
    rows, _ = _tables.rows("bidirectional_accuracy")
    body = [
        [
            row["dataset"].replace("_", " "),
            f"{row['epsilon']:g}",
            row["method"],
            f"{row['accuracy']:.1%}",
            f"{row['stdev']:.1%}" if row["seeds"] > 1 else "",
            str(row["seeds"]),
            str(row["rounds"]),
            "yes" if row["guarantee"] else "no",
        ]
        for row in rows
        if row["method"] != "none"
    ]
    head = ["data", "epsilon", "method", "accuracy", "standard deviation of a run", "runs", "rounds", "guarantee"]
    plain = [f"{row['accuracy']:.1%} ({row['dataset'].replace('_', ' ')})" for row in rows if row["method"] == "none"]
    return _tables.markdown(head, body) + f"\n\nWithout noise: {', '.join(plain)}."


def bidirectional_parts() -> str:
    """Seconds of the parts of a round: ours measured, the paper's as it reports them."""
    rows, _ = _tables.rows("bidirectional_parts")

    def cell(row: dict[str, Any], seconds: float | None) -> str:
        if seconds is None:
            return ""
        return f"{seconds:.2g}" if row["source"] == "measured" else f"{seconds:,.2f}"

    body = [
        [
            f"{row['model']}, {row['clients']}",
            row["method"],
            *(cell(row, part) for part in row["seconds"]),
            cell(row, row["total"]) + ("" if row["adds up"] else " (*)"),
            row["source"],
        ]
        for row in rows
    ]
    names = ["perturb", "recover", "aggregate", "decrypt", "keys", "train", "encrypt", "noise"]
    return _tables.markdown(["model or data, K", "method", *names, "total", "here or in the paper"], body)


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return statistics.mean(row[name] for row in rows)


def bidirectional_attacks() -> str:
    """Both directions, mode by mode, under all of the noise."""
    rows, _ = _tables.rows("bidirectional_attacks")
    body = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        here = [row for row in rows if row["mode"] == mode and row.get("noise", 1) == 1]
        model, members, server = (
            [row for row in here if row["direction"] == who]
            for who in ("client learns of the model", "client learns of the members", "server learns of the data")
        )
        errors = [row["last layer's gradient, relative error"] for row in server]
        body.append(
            [
                f"`{mode}`",
                f"{_mean(model, 'before'):.1%} / {_mean(model, 'after'):.1%}",
                f"{_mean(members, 'before'):.1%} / {_mean(members, 'after'):.1%} ({_mean(members, 'true model'):.1%})",
                f"{_mean(server, 'search'):.1f} dB",
                f"{_mean(server, 'read'):.1f} dB",
                f"{_mean(server, 'input |cos|'):.2f}",
                "" if None in errors else f"{statistics.median(errors):.0e}",
            ]
        )
    head = [
        "mode",
        "client: agrees with the true model, as sent / corrected",
        "client: finds members, as sent / corrected (on the true model)",
        "server: search on the gradient",
        "server: input read off Phi, or off the gradient without one",
        "its mean abs cos",
        "last layer's gradient, relative error",
    ]
    return _tables.markdown(head, body)


def bidirectional_reconstruction() -> str:
    """What the server makes of one upload, by the share of noise on it."""
    rows, _ = _tables.rows("bidirectional_attacks")
    server = [row for row in rows if row["direction"] == "server learns of the data"]
    shares = list(dict.fromkeys(row["noise"] for row in server))
    body = []
    for mode in dict.fromkeys(row["mode"] for row in server):
        source = "off the gradient" if mode == "r0_gaussian" else "off Phi"
        for key, what in (("search", "search on the gradient"), ("read", f"read {source}")):
            cells = [[row for row in server if row["mode"] == mode and row["noise"] == share] for share in shares]
            body.append([f"`{mode}`", what, *(f"{_mean(cell, key):.1f}" for cell in cells)])
    body.append(["", "a blind guess: the mean digit", *[f"{_mean(server, 'blind'):.1f}"] * len(shares)])
    names = ["no noise" if share == 0 else f"{share:g}" for share in shares]
    return _tables.markdown(["PSNR in dB, by share of the noise", "attack", *names], body)


def bidirectional_tables() -> str:
    """Accuracy, reconstruction and membership method by method: measured here, then as the paper reports them."""
    rows, _ = _tables.rows("bidirectional_tables")
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["setting"], row["method"]), []).append(row)

    def mean(here: list[dict[str, Any]], name: str, form: str) -> str:
        values = [row[name] for row in here if row.get(name) is not None]
        return format(_mean(here, name), form) if len(values) == len(here) else ""

    def parts(here: list[dict[str, Any]], what: str) -> str:
        forms = {"psnr": ".1f", "mse": ".3f", "feature_mse": ".2g"}
        if here[0]["source"] != "measured":  # as they are printed
            forms = dict.fromkeys(forms, ".2f")
        return " / ".join(text for key, form in forms.items() if (text := mean(here, f"{what} {key}", form)))

    body = []
    for (setting, method), here in cells.items():
        share = ".1%" if here[0]["source"] == "measured" else ".2%"
        accuracy = mean(here, "accuracy", share)
        if here[0].get("ceiling") is not None:  # which rows with a guarantee have
            accuracy += f" ({here[0]['epsilon']:g})"
        elif here[0].get("epsilon") is not None:
            accuracy += f" (*, noise as for {here[0]['epsilon']:g})"
        elif here[0].get("accuracy of") == "none":
            accuracy += " (clipped, without noise)"
        agrees = " / ".join(text for key in ("as sent", "corrected") if (text := mean(here, f"agrees {key}", ".0%")))
        found = " / ".join(text for key in ("as sent", "corrected") if (text := mean(here, f"asr {key}", share)))
        body.append(
            [
                setting,
                method,
                accuracy,
                parts(here, "search"),
                parts(here, "read"),
                mean(here, "gradient off Psi and Phi", ".0e"),
                agrees,
                found,
                mean(here, "ceiling", ".1%"),
                here[0]["source"],
            ]
        )
    head = [
        "model, data",
        "method",
        "accuracy (epsilon)",
        "server, search on the gradient: PSNR / Test-MSE / Feat-MSE",
        "server, by Psi and Phi, or read off the gradient without them",
        "gradient off Psi and Phi, relative error",
        "client: agrees with the true model, as sent / corrected",
        "client finds members of a model trained without noise: as sent / corrected",
        "with the noise at most",
        "here or in the paper",
    ]
    return _tables.markdown(head, body)


def peers() -> str:
    """Clients a second of each framework, and how many times as fast fljax is in the same rounds."""
    rows, environment = _tables.rows("peers")
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
                body.append([title, row["peer"], row.get("error", "not measured"), "", "", "", "", ""])
                continue
            fewer = "" if row["clients"] == cohort else f" ({row['clients']} clients)"
            cells = [title, row["peer"] + fewer, f"{row['clients_per_s']:,.4g}"]
            ratios = [row.get("fljax_is_faster"), row.get("one_device_is_faster")]
            share = row.get("share_of_matmul_limit")
            cells += ["" if ratio is None else f"{ratio:.2f}x" for ratio in ratios]
            cells.append("" if share is None else f"{share:.0%}")
            # A row that was kept says itself when and where it was taken, if that is known.
            since = row if "date" in row else environment
            device = since.get("device", "").replace("(R)", "").replace(" Processor", "")
            body.append([*cells, f"{row['spread']:.0%}", f"{since['date'][5:16].replace('T', ' ')} {device}".strip()])
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


# The JSON of tables that are not called after theirs.
FILES = {
    "per_example_large": "per_example",
    "bidirectional_time": "bidirectional",
    "bidirectional_reconstruction": "bidirectional_attacks",
    "scale_disk": "scale",
    "scale_index": "scale",
    "subject_claims": "subject_levels",
}

# Pages beside README.md that hold tables.
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "docs/per_example.md": {"per_example_large": per_example_large},
    "docs/information.md": {"channel": channel, "channel_figures": channel_figures},
    "docs/attacks.md": {"attacks": attacks},
    "docs/rounds.md": {"peers": peers, "scale": scale, "scale_disk": scale_disk, "scale_index": scale_index},
    "docs/wfna_accounting.md": {"wfna_noise": wfna_noise.table},
    "docs/water_filling.md": {"wfna_training": wfna_training.table},
    "docs/view.md": {"noise_in_average": noise_in_average.table},
    "docs/pair_noise.md": {
        "overhead": overhead.table,
        "pairwise_time": pairwise_time.table,
        "pairwise_training": pairwise_training.table,
    },
    "docs/subject_level.md": {"subject_claims": subject_levels.claims_table, "subject_levels": subject_levels.table},
    "docs/bidirectional.md": {
        "bidirectional": bidirectional,
        "bidirectional_time": bidirectional_time,
        "bidirectional_accuracy": bidirectional_accuracy,
        "bidirectional_parts": bidirectional_parts,
        "bidirectional_attacks": bidirectional_attacks,
        "bidirectional_reconstruction": bidirectional_reconstruction,
        "bidirectional_tables": bidirectional_tables,
    },
}


def tables(page: str = "README.md") -> dict[str, str]:
    """The tables of a page whose JSON is committed."""
    makers = PAGES.get(page, TABLES)
    committed = {
        name: make for name, make in makers.items() if (_harness.RESULTS / f"{FILES.get(name, name)}-cpu.json").exists()
    }
    return {name: make() for name, make in committed.items()}


def main() -> int:
    """Rewrites what stands between the markers in README.md and in the other pages."""
    for page in ("README.md", *PAGES):
        path = _harness.ROOT / page
        text = path.read_text()
        for name, table in tables(page).items():
            block = f"<!-- {name} -->\n{table}\n<!-- end -->"
            text = re.sub(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, block=block: block, text, flags=re.DOTALL)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
