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
import dataclasses
import json
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import accounting, data, models
from fljax.data import partition
from fljax.data.sources import idx, standins
from fljax.local import gaussian_sampling
from fljax.schemes.weighted import gd_dp, gsgd_dp, sgd_dp
from fljax.schemes.weighted import round as weighted
from fljax_kernels import spectral

NUM_CLIENTS, EPOCHS, DELTA = 50, 100, 1e-4
EPSILONS = (1.0, 4.0, 10.0)
TUNING_SEEDS = (1000, 1001)
# Scheme, and the accountant that sizes its noise. GD-DP comes first: the others are compared with
# it.
SCHEMES: dict[str, tuple[Any, Any]] = {
    "GD-DP": (gd_dp, "gdp"),
    "SGD-DP": (sgd_dp, "pld"),
    "GSGD-DP": (gsgd_dp, "rdp"),
    "SGD-DP, Renyi": (sgd_dp, "rdp"),
}
LADDER = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
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
    name: str, dataset: data.Dataset, batch_size: int, epsilon: float, most_records: int = 10**9
) -> tuple[Any, int]:
    """The config whose noise spends `epsilon` in all rounds, and the number of rounds."""
    scheme, method = SCHEMES[name]
    num_records = min(len(dataset.train["y"]) // NUM_CLIENTS, most_records)
    rounds = EPOCHS * (math.ceil(num_records / batch_size) if scheme is sgd_dp else 1)
    config = scheme.Config(
        num_parties=NUM_CLIENTS,
        records_per_client=num_records,
        batch_size=batch_size,
        l2_clip_norm=1.0 if dataset.train["x"].shape[1] == 8 else 10.0,
    )
    noise = accounting.calibrate(
        lambda z: scheme.event(dataclasses.replace(config, noise_multiplier=z)).repeat(rounds),
        epsilon=epsilon,
        delta=DELTA,
        method=method,
    )
    return dataclasses.replace(config, noise_multiplier=noise), rounds


def cohort_of(dataset: data.Dataset, num_records: int, seed: int) -> data.Cohort:
    """All clients, each with up to `num_records` records, dealt at random."""
    table = partition.iid(dataset.train["y"], NUM_CLIENTS, np.random.default_rng(seed))[
        :, :num_records
    ]
    examples = jax.tree.map(jnp.asarray, dataset.train)
    return data.Cohort(examples, jnp.asarray(table), jnp.arange(NUM_CLIENTS, dtype=jnp.int32))


class Trainer:
    """Compiles one scheme on one model once; the learning rate is an argument of the compiled
    round.
    """

    def __init__(self, scheme: Any, config: Any, rounds: int, model: str, dataset: data.Dataset):
        import optax

        self.rounds, self.model, self.dataset = rounds, model, dataset
        self.num_records = config.records_per_client
        apply = self.initial(0).apply
        # A step of size one along the mean gradient, so that the rate can be applied to it outside.
        unit = scheme.make(
            config,
            models.softmax_cross_entropy(apply),
            num_units=1,
            server_optimizer=optax.sgd(1.0),
        )

        @jax.jit
        def step(state: Any, cohort: data.Cohort, key: jax.Array, rate: jax.Array) -> Any:
            there, info = unit.round(state, cohort, key)
            scaled = jax.tree.map(lambda a, b: a + rate * (b - a), state.params, there.params)
            return there._replace(params=scaled), info

        self.init, self.step, self.apply = unit.init, step, apply

    def initial(self, seed: int) -> models.Functional:
        """The model before training."""
        shape = self.dataset.train["x"].shape[1:]
        key = jax.random.key(seed, impl="threefry2x32")
        return models.create(
            self.model, example_shape=shape, num_classes=self.dataset.num_classes, key=key
        )

    def accuracy(self, rate: float, seed: int) -> float:
        """Held-out accuracy after all rounds."""
        cohort = cohort_of(self.dataset, self.num_records, seed)
        state, key = (
            self.init(self.initial(seed).params),
            jax.random.key(seed + 1, impl="threefry2x32"),
        )
        for _ in range(self.rounds):
            state, _ = self.step(state, cohort, key, jnp.float32(rate))
        return float(models.evaluate(self.apply, state.params, self.dataset.test)[1])


def saved(trainer: Trainer, config: Any) -> float:
    """Mean over clients of the share of K sigma^2 that water filling does not add at the initial
    model.
    """
    functional = trainer.initial(0)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(functional.params))
    values = spectra(functional, trainer.dataset, config)
    floor = weighted.client_stddev(config, config.records_per_client) ** 2
    return float(np.minimum(values, floor).sum(axis=1).mean() / (num_params * floor))


def spectra(functional: models.Functional, dataset: data.Dataset, config: Any) -> np.ndarray:
    """Eigenvalues `[N, D]` of each client's sampling covariance at `functional.params`,
    ascending.
    """
    loss = models.softmax_cross_entropy(functional.apply)
    gradients = gaussian_sampling.clipped_gradients(loss, l2_clip_norm=config.l2_clip_norm)
    cohort = cohort_of(dataset, config.records_per_client, 0)
    scale = 1 / (config.batch_size * config.records_per_client)

    @jax.jit
    def values(rows: jax.Array) -> jax.Array:
        return spectral.spectrum(
            gradients(functional.params, cohort.examples, rows, jax.random.key(0)).gram(), scale
        ).values

    return np.stack([np.asarray(values(rows)) for rows in cohort.indices])


def neighbours(rate: float) -> tuple[float, float]:
    """The next lower and the next higher rate of 1, 3, 10, ... and 0.3, 0.1, ..."""
    place = LADDER.index(rate)
    return LADDER[place - 1], LADDER[place + 1]


def train(
    dataset: data.Dataset, model: str, batch_size: int, options: argparse.Namespace
) -> list[Any]:
    """One row for each scheme and epsilon."""
    rows = []
    for epsilon in options.epsilons:
        plain: list[float] = []
        for name, (scheme, method) in SCHEMES.items():
            if name == "SGD-DP, Renyi" and (model, dataset.name) != ("softmax", "digits"):
                continue
            config, rounds = config_of(name, dataset, batch_size, epsilon, options.records)
            trainer = Trainer(scheme, config, rounds, model, dataset)
            rate, tried = 0.3, {}
            if dataset.name == "digits":
                rate, scores_of = _harness.best_rate(
                    lambda r, trainer=trainer: float(
                        np.mean([trainer.accuracy(r, seed) for seed in TUNING_SEEDS])
                    ),
                    START[model],
                    neighbours,
                )
                tried = {f"{r:g}": round(score, 4) for r, score in sorted(scores_of.items())}
            start = time.perf_counter()
            scores = [trainer.accuracy(rate, seed) for seed in range(options.seeds)]
            row = {
                "dataset": dataset.name,
                "model": model,
                "epsilon": epsilon,
                "scheme": name,
                "accountant": method,
                "records_per_client": config.records_per_client,
                "rounds": rounds,
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
            if scheme is gsgd_dp:
                row["saved"] = round(saved(trainer, config), 4)
            rows.append(row)
            print(row, flush=True)
    return rows


def plot_spectra(path: str, dataset: data.Dataset) -> None:
    """Figure 4: one client's spectrum, lifted, and with isotropic noise instead."""
    from matplotlib.figure import Figure

    config, _ = config_of("GSGD-DP", dataset, 8, 10.0)
    key = jax.random.key(0, impl="threefry2x32")
    shape = dataset.train["x"].shape[1:]
    functional = models.create(
        "softmax", example_shape=shape, num_classes=dataset.num_classes, key=key
    )
    num_params = sum(leaf.size for leaf in jax.tree.leaves(functional.params))
    values = np.zeros(num_params)
    found = spectra(functional, dataset, config)[0][::-1]
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
