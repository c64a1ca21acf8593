"""Every scheme against the attacks that fit it, at one budget.

    python -m bench.papers.scheme_attacks

All is what `fljax attack` says, as a user calls it: a game about one unit (what the promise's
adversary sees, one round), a LiRA on models trained by the scheme, and an inversion with a prior of
one record that is alone in a round. Each without noise, as the control that has to succeed, and
with the noise that spends EPSILON at DELTA, or NATS a use.
"""

import argparse
import contextlib
import io
import json
import pathlib
import tempfile
from typing import Any

from bench import _harness, _tables
from bench.rounds import defaults
from fljax import attacks, schemes
from fljax.attacks import rounds
from fljax.cli import attack as command

EPSILON, DELTA, NATS = 4.0, 1e-3, 8.0
FLAGS = {
    "uploads": ["--trials", "10000"],
    "one_unit": ["--trials", "10000"],
    "lira": ["--shadows", "64", "--pool", "640", "--num-rounds", "1000"],
    "inversion_gauss_newton": ["--targets", "10", "--repeats", "1", "--iterations", "400"],
}


def fitting(name: str) -> list[str]:
    """The attacks that `fljax attack` makes on the scheme."""
    scheme = schemes.get(name)
    if scheme.promise == "none" or scheme.needs_network:
        return []
    if scheme.promise == "nats":  # of noise on uploads see `fljax audit`
        return [] if scheme.uploads_seen else ["inversion_gauss_newton"]
    found = [kind.__name__ for kind in rounds.kinds(scheme)][:1] + ["inversion_gauss_newton"]
    unit = scheme.event(rounds.config(name, noise_multiplier=1.0)).privacy_unit
    return found if unit == "client" else [*found, "lira"]


def attacked(scheme: str, attack: str) -> list[dict[str, Any]]:
    """The command's rows: without noise, and with it."""
    nats = schemes.get(scheme).promise == "nats"
    budget = ["--budgets", str(NATS if nats else EPSILON), "--delta", str(DELTA)]
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder) / "attack"
        flags = ["--scheme", scheme, "--attack", attack, *budget, *FLAGS[attack]]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = command.main([*flags, "--run-dir", str(where)])
        if code:
            raise RuntimeError(f"fljax attack {' '.join(flags)} ended with {code}.")
        found: list[dict[str, Any]] = json.loads((where / "attack.json").read_text())["rows"]
    return found


def row(name: str) -> dict[str, Any]:
    """Of one scheme: by attack, what it gets without noise and with it."""
    scheme = schemes.get(name)
    found: dict[str, Any] = {"scheme": name, "promise": scheme.promise}
    for attack in fitting(name):
        plain, noisy = attacked(name, attack)
        if attack in attacks.MEMBERSHIP:
            keep = ("auc", "bound", "rates", "noise", "holds")
        elif attack in attacks.INVERSIONS:
            keep = ("psnr", "ssim", "picked", "bound", "noise", "holds")
        else:
            keep = ("measured", "bound", "rates", "largest_tpr", "noise", "holds")
        found[attack] = {
            "without": {key: plain[key] for key in keep},
            "with": {key: noisy[key] for key in keep},
        }
    return found


def table(rows: _tables.Rows) -> str:
    """A line for each scheme; what has no such attack has a dash."""
    body = []
    for row in sorted(rows, key=lambda row: (row["promise"], row["scheme"])):
        game = row.get("uploads") or row.get("one_unit")
        cells = [f"`{row['scheme']}`"]
        if game is None:
            cells += ["-"] * 4
        else:
            told, rate = game["with"], game["with"]["rates"][0]
            cells += [
                f"{told['measured']:.2f} / {told['bound']:.2f}",
                f"{game['without']['measured']:.1f}",
                f"{100 * rate['tpr']:.0f} % / {100 * told['largest_tpr']:.0f} %",
                f"{100 * game['without']['rates'][0]['tpr']:.0f} %",
            ]
        lira, image = row.get("lira"), row.get("inversion_gauss_newton")
        cells += (
            ["-"] * 2
            if lira is None
            else [
                f"{lira[how]['auc']:.2f}, {_at_one_percent(lira[how]['rates'])}"
                for how in ("with", "without")
            ]
        )
        cells += (
            ["-"] * 2
            if image is None
            else [f"{image[how]['psnr']:.1f}" for how in ("with", "without")]
        )
        body.append(cells)
    head = [
        "scheme",
        "epsilon, audited / certified",
        "audited without noise",
        "one unit: TPR at 1 % FPR / most",
        "without noise",
        "LiRA: AUC, TPR at 1 % FPR",
        "without noise",
        "an image: dB",
        "without noise",
    ]
    return _tables.markdown(head, body)


def _at_one_percent(rates: list[dict[str, float]]) -> str:
    rate = next(rate for rate in rates if rate["fpr"] == 0.01)
    return f"{100 * rate['tpr']:.0f} % ({100 * rate['low']:.0f} to {100 * rate['high']:.0f})"


def plot(rows: _tables.Rows, path: str) -> None:
    """What attacks get of each scheme, without noise, with it, and what is certified."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = sorted(rows, key=lambda row: (row["promise"], row["scheme"]), reverse=True)
    figure = Figure(figsize=(9, 8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row["scheme"] for row in rows]
    marks = {"without noise": "x", "with noise": "o", "at most": "|"}
    for axes, series in (
        (left, {mark: [_game(row, mark) for row in rows] for mark in marks}),
        (right, {mark: [_decibels(row, mark) for row in rows] for mark in list(marks)[:2]}),
    ):
        for mark, values in series.items():
            axes.plot(values, range(len(names)), marks[mark], label=mark)
        axes.grid(axis="y", alpha=0.3)
    left.set_yticks(range(len(names)), names)
    left.set_xlabel(f"epsilon at delta {DELTA:g}, audited and certified")
    right.set_xlabel("PSNR in dB of an image by the sharpest inversion")
    left.legend()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fljax"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _game(row: dict[str, Any], mark: str) -> float:
    found = row.get("uploads") or row.get("one_unit")
    if found is None:
        return float("nan")
    if mark == "at most":
        return float(found["with"]["bound"])
    return float(found["without" if mark == "without noise" else "with"]["measured"])


def _decibels(row: dict[str, Any], mark: str) -> float:
    found = row.get("inversion_gauss_newton")
    how = "without" if mark == "without noise" else "with"
    return float("nan") if found is None else float(found[how]["psnr"])


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two schemes, no JSON: does it run?")
    parser.add_argument("--only", nargs="*", default=[], help="schemes; other rows stay")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw from the results and stop")
    options = parser.parse_args()
    if options.plot:
        plot(_tables.rows("scheme_attacks"), options.plot)
        return
    rows = {}
    for name in ["dp_sgd", "white_channel"] if options.quick else schemes.names():
        alias = name in defaults.WHOLE_NUMBERS  # the same sums: the same rounds
        if alias or (options.only and name not in options.only):
            continue
        if not fitting(name):
            continue
        rows[name] = row(name)
        print(json.dumps(rows[name]), flush=True)
    for name, other in defaults.WHOLE_NUMBERS.items():
        if other in rows:
            rows[name] = rows[other] | {"scheme": name}
    found = [rows[name] for name in sorted(rows)]
    print(table(found))
    if options.only:
        print(_harness.amend("scheme_attacks", found, keys=("scheme",)))
    elif not options.quick:
        note = f"epsilon {EPSILON:g} at delta {DELTA:g} for a game's round, a training and an image"
        print(_harness.write("scheme_attacks", found, note=f"{note}; channels {NATS:g} nats a use"))


if __name__ == "__main__":
    main()
