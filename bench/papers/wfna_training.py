"""Accuracy at equal epsilon: GD-DP, GSGD-DP and SGD-DP with 50 users (Figure 5 of
arXiv:2405.04551), and Figure 4.

    # linear and CNN on real digits, 15 min
    python -m bench.papers.wfna_training
    # 12,800 of 60,000 images of 28 x 28, linear
    python -m bench.papers.wfna_training --data writers28 --records 256
    # all of them, D = 1,200: 20 minutes
    python -m bench.papers.wfna_training --data writers28 --epsilons 4 --seeds 1
    # MNIST: the folder with its four IDX files
    python -m bench.papers.wfna_training --data FOLDER
    # Figure 5, from its JSON
    python -m bench.papers.wfna_training --plot-accuracy docs/images/water_filling.svg
    # Figure 4, one client's update
    python -m bench.papers.wfna_training --plot-spectra docs/images/water_filling_spectra.svg

Every run has 100 passes over the data: 100 rounds of GD-DP and GSGD-DP, 100 ceil(D / B) of SGD-DP.
Each scheme gets the noise that spends epsilon by the sharpest sound accountant there is for it:
GD-DP exactly, SGD-DP by privacy-loss distributions of samples without replacement, GSGD-DP by the
joint bound for water filling and Renyi composition. The clip norm is the paper's 10 for images of
28 x 28, 1 for 8 x 8. Each has the best learning rate on two seeds that are
not reported: the search starts with three rates and goes on until the best one has worse neighbours
on both sides (0.3 for images of 28 x 28). Seeds set partition, initial model, samples and noise,
and are the same for all schemes, so that
differences are taken seed by seed: `over_gd` is the mean of a scheme's accuracy less GD-DP's and
`over_gd_ci95` half its 95 % Student interval; `ci95` is that of the accuracy itself. "SGD-DP,
Renyi" is SGD-DP with the noise that Renyi composition asks of it, on the linear model. `saved` is
the share of K sigma^2 that water filling does not add, mean over clients at the initial model.
"""

import argparse
import json
import time
from typing import Any

import jax
import numpy as np

from bench import _harness, _tables
from fljax import data, models
from fljax.data.sources import idx, standins
from fljax.papers.wfna import training
from fljax.papers.wfna.training import EPSILONS, Trainer
from fljax.schemes.weighted import round as weighted

# Name -> scheme, and the accountant that sizes its noise. GD-DP comes first: the others are
# compared with it.
SCHEMES: dict[str, tuple[str, Any]] = {
    "GD-DP": ("GD-DP", "gdp"),
    "SGD-DP": ("SGD-DP", "pld"),
    "GSGD-DP": ("GSGD-DP", "rdp"),
    "SGD-DP, Renyi": ("SGD-DP", "rdp"),
}
START = {"softmax": 1.0, "cnn": 0.3}  # the rate where a search begins


def dataset_of(name: str) -> data.Dataset:
    """By the name on the command line."""
    if name == "digits":
        return data.load("digits")
    if name == "writers28":
        made = standins.writers(
            np.random.default_rng(5), num_subjects=400, mean_items=152.0, side=28
        )
        return made._replace(
            train={k: made.train[k] for k in "xy"}, test={k: made.test[k] for k in "xy"}
        )
    return idx.load(name)


def config_of(
    name: str, dataset: data.Dataset, batch_size: int, epsilon: float, **options: Any
) -> Any:
    """The config whose noise spends `epsilon` in all rounds."""
    scheme, method = SCHEMES[name]
    return training.config_of(
        scheme,
        dataset,
        batch_size=batch_size,
        epsilon=epsilon,
        epochs=training.EPOCHS,
        l2_clip_norm=1.0 if dataset.train["x"].shape[1] == 8 else 10.0,
        method=method,
        **options,
    )


def train(
    dataset: data.Dataset, model: str, batch_size: int, options: argparse.Namespace
) -> list[Any]:
    """One row for each scheme and epsilon."""
    rows = []
    for epsilon in options.epsilons:
        plain: list[float] = []
        for name, (_, method) in SCHEMES.items():
            if name == "SGD-DP, Renyi" and (model, dataset.name) != ("softmax", "digits"):
                continue
            config = config_of(name, dataset, batch_size, epsilon, most_records=options.records)
            trainer = Trainer(SCHEMES[name][0], config, model, dataset, training.EPOCHS)
            rate, tried = 0.3, {}
            if dataset.name == "digits":
                rate, tried = trainer.best_rate(START[model])
            start = time.perf_counter()
            scores = [trainer.accuracy(rate, seed) for seed in range(options.seeds)]
            row = {
                "dataset": dataset.name,
                "model": model,
                "epsilon": epsilon,
                "scheme": name,
                "accountant": method,
                "records_per_client": config.records_per_client,
                "rounds": trainer.rounds,
                "noise_multiplier": round(config.noise_multiplier, 4),
                "learning_rate": rate,
                "tuning": tried,
                "accuracy": round(float(np.mean(scores)), 4),
                "accuracies": [round(score, 4) for score in scores],
                "seconds_a_run": round((time.perf_counter() - start) / options.seeds, 2),
            }
            plain = plain or scores
            if len(scores) > 1:
                row["ci95"] = round(_harness.half_width(scores), 4)
                if name != "GD-DP":
                    over = [score - other for score, other in zip(scores, plain, strict=True)]
                    row |= {
                        "over_gd": round(float(np.mean(over)), 4),
                        "over_gd_ci95": round(_harness.half_width(over), 4),
                    }
            if name == "GSGD-DP":
                row["saved"] = round(training.saved(trainer, config), 4)
            rows.append(row)
            print(row, flush=True)
    return rows


def plot_spectra(path: str, dataset: data.Dataset) -> None:
    """Figure 4: one client's spectrum, lifted, and with isotropic noise instead."""
    from matplotlib.figure import Figure

    config = config_of("GSGD-DP", dataset, 8, 10.0)
    key = jax.random.key(0, impl="threefry2x32")
    shape = dataset.train["x"].shape[1:]
    functional = models.create(
        "softmax", example_shape=shape, num_classes=dataset.num_classes, key=key
    )
    num_params = sum(leaf.size for leaf in jax.tree.leaves(functional.params))
    values = np.zeros(num_params)
    found = training.spectra(functional, dataset, config)[0][::-1]
    values[: len(found)] = found
    floor = weighted.client_stddev(config, config.records_per_client) ** 2
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    place = np.arange(1, num_params + 1)
    axes.loglog(place, np.maximum(values, 1e-12), label="sampling noise alone")
    axes.loglog(place, np.maximum(values, floor), label="lifted by water filling")
    axes.loglog(place, values + floor, ":", label="with isotropic noise")
    axes.set(
        xlabel="direction",
        ylabel="variance",
        ylim=(floor / 100, None),
        title="One client's update, epsilon 10",
    )
    axes.legend()
    _save(figure, path)


def _save(figure: Any, path: str) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fljax"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def plot_accuracy(path: str) -> None:
    """Figure 5: accuracy over epsilon, from the results on real digits."""
    from matplotlib.figure import Figure

    rows = json.loads((_harness.RESULTS / "wfna_training-cpu.json").read_text())["rows"]
    found = sorted({row["model"] for row in rows}, reverse=True)
    figure = Figure(figsize=(4 * len(found), 3.5), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        for shift, (name, marker) in enumerate(zip(SCHEMES, "osvx", strict=True)):
            own = [row for row in rows if row["model"] == model and row["scheme"] == name]
            if not own:
                continue
            place = [
                row["epsilon"] * (0.96 + 0.04 * shift) for row in own
            ]  # side by side, so that all bars show
            bars = [row["ci95"] for row in own]
            axes.errorbar(
                place, [row["accuracy"] for row in own], bars, marker=marker, capsize=3, label=name
            )
        axes.set(xscale="log", xlabel="epsilon", ylabel="test accuracy", title=model)
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.minorticks_off()
    axes.legend()
    _save(figure, path)


def table(rows: _tables.Rows) -> str:
    """Accuracy at equal epsilon, and seed by seed against GD-DP."""
    body = [
        [
            row["model"],
            f"{row['epsilon']:g}",
            row["scheme"],
            _tables.up(row["noise_multiplier"], 4),
            f"{row['learning_rate']:g}",
            f"{row['accuracy']:.3f} +- {row['ci95']:.3f}",
            "" if "over_gd" not in row else f"{row['over_gd']:+.3f} +- {row['over_gd_ci95']:.3f}",
            "" if "saved" not in row else f"{row['saved']:.2%}",
            f"{row['seconds_a_run']:.1f}",
        ]
        for row in rows
    ]
    head = [
        "model",
        "epsilon",
        "scheme",
        "noise multiplier",
        "learning rate",
        "accuracy",
        "less GD-DP's, paired",
    ]
    return _tables.markdown([*head, "noise saved", "seconds a run"], body)


def main() -> None:
    """Runs what was asked for; writes results/wfna_training-<platform>.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default="digits", help="digits, writers28, or a folder of IDX files"
    )
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--records", type=int, default=10**9, help="at most so many of each client")
    parser.add_argument("--plot-spectra", metavar="FILE.svg", help="draw Figure 4 and stop")
    parser.add_argument(
        "--plot-accuracy", metavar="FILE.svg", help="draw Figure 5 from the results and stop"
    )
    options = parser.parse_args()
    if options.plot_accuracy:
        plot_accuracy(options.plot_accuracy)
        return
    dataset = dataset_of(options.data)
    if options.plot_spectra:
        plot_spectra(options.plot_spectra, dataset)
        return
    start = time.perf_counter()
    if options.data == "digits":
        rows = [row for model in START for row in train(dataset, model, 8, options)]
    else:
        rows = train(dataset, "softmax", 32, options)
    print(f"{time.perf_counter() - start:.0f} s in all")
    columns = [
        "model",
        "epsilon",
        "scheme",
        "rounds",
        "learning_rate",
        "accuracy",
        "ci95",
        "over_gd",
        "saved",
    ]
    print(_harness.table(rows, columns))
    name = "wfna_training" if options.data == "digits" else f"wfna_training_{dataset.name}"
    print(_harness.write(name, rows, note=__doc__.splitlines()[0]))


if __name__ == "__main__":
    main()
