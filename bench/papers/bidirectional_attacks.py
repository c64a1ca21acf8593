"""What each side of the bidirectional scheme learns of the other, mode by mode, over seeds.

    python -m bench.papers.bidirectional_attacks [--quick]

`python -m fljax.papers.bidirectional.perturbation_leak`, for several seeds of secrets, noise and
members.
"""

import argparse
import statistics
import time
from typing import Any

from bench import _harness, _tables
from bench._tables import mean
from fljax.papers.bidirectional import perturbation_leak

SEEDS = 3


def table(rows: _tables.Rows) -> str:
    """Both directions, mode by mode, under all of the noise."""
    body = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        here = [row for row in rows if row["mode"] == mode and row.get("noise", 1) == 1]
        model, members, server = (
            [row for row in here if row["direction"] == who]
            for who in (
                "client learns of the model",
                "client learns of the members",
                "server learns of the data",
            )
        )
        errors = [row["last layer's gradient, relative error"] for row in server]
        body.append(
            [
                f"`{mode}`",
                f"{mean(model, 'before'):.1%} / {mean(model, 'after'):.1%}",
                f"{mean(members, 'before'):.1%} / {mean(members, 'after'):.1%} "
                f"({mean(members, 'true model'):.1%})",
                f"{mean(server, 'search'):.1f} dB",
                f"{mean(server, 'read'):.1f} dB",
                f"{mean(server, 'input |cos|'):.2f}",
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


def reconstruction_table(rows: _tables.Rows) -> str:
    """What the server makes of one upload, by the share of noise on it."""
    server = [row for row in rows if row["direction"] == "server learns of the data"]
    shares = list(dict.fromkeys(row["noise"] for row in server))
    body = []
    for mode in dict.fromkeys(row["mode"] for row in server):
        source = "off the gradient" if mode == "r0_gaussian" else "off Phi"
        for key, what in (("search", "search on the gradient"), ("read", f"read {source}")):
            cells = [
                [row for row in server if row["mode"] == mode and row["noise"] == share]
                for share in shares
            ]
            body.append([f"`{mode}`", what, *(f"{mean(cell, key):.1f}" for cell in cells)])
    body.append(
        ["", "a blind guess: the mean digit", *[f"{mean(server, 'blind'):.1f}"] * len(shares)]
    )
    names = ["no noise" if share == 0 else f"{share:g}" for share in shares]
    return _tables.markdown(["PSNR in dB, by share of the noise", "attack", *names], body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints the tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few victims")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for seed in range(1 if options.quick else SEEDS):
        start = time.perf_counter()
        found = perturbation_leak.run(seed=seed, victims=3 if options.quick else 10)
        seconds = round(time.perf_counter() - start, 1)
        print(f"seed {seed}, {seconds} s\n{perturbation_leak.text(found)}", flush=True)
        # NaN, where a mode has nothing to read, is no JSON.
        rows += [
            {"seed": seed, **{k: v if v == v else None for k, v in row.items()}} for row in found
        ]
        rows[-1]["seconds"] = seconds
    note = (
        "mlp 64-32-32-10 on digits, 5 clients, noise in units of that for epsilon 3; members "
        "of an mlp 64-64-64-10"
    )
    path = _harness.write(
        "bidirectional_attacks_quick" if options.quick else "bidirectional_attacks", rows, note=note
    )
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
