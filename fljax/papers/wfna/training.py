"""Training with 50 clients at equal epsilon: all records, subsets, Gaussian weights.

Every run has 100 passes over the data, unless others are asked for: 100 rounds of GD-DP and
GSGD-DP, 100 ceil(D / B) of SGD-DP. Seeds set partition, initial model, samples and noise, and are
the same for all schemes, so that differences are taken seed by seed.

Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When
is it Possible?", arXiv:2405.04551, section 6.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fljax import accounting, data, models
from fljax.accounting.weighted_sums import rounds as weighted_rounds
from fljax.accounting.weighted_sums.setups import Noise, Sampling, Setup
from fljax.data import partition
from fljax.local import gaussian_sampling
from fljax.schemes.weighted import gd_dp, gsgd_dp, sgd_dp
from fljax.schemes.weighted import round as weighted
from fljax_kernels import spectral

NUM_CLIENTS, EPOCHS, DELTA = 50, 100, 1e-4
EPSILONS = (1.0, 4.0, 10.0)

# Scheme; the sharpest sound accountant there is for it; its cell of the paper's Table 1. GD-DP
# comes first: the others are compared with it.
SCHEMES: dict[str, tuple[Any, Literal["gdp", "pld", "rdp"], Sampling, Noise]] = {
    "GD-DP": (gd_dp, "gdp", "none", "isotropic"),
    "SGD-DP": (sgd_dp, "pld", "subset", "isotropic"),
    "GSGD-DP": (gsgd_dp, "rdp", "gaussian", "water_filling"),
}
LADDER = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
TUNING_SEEDS = (1000, 1001)


def rounds_of(name: str, num_records: int, batch_size: int, epochs: int) -> int:
    """Rounds of so many passes over the data."""
    return epochs * (math.ceil(num_records / batch_size) if name == "SGD-DP" else 1)


def config_of(
    name: str,
    dataset: data.Dataset,
    *,
    batch_size: int,
    epsilon: float,
    epochs: int,
    l2_clip_norm: float,
    method: Literal["sound", "paper", "gdp", "pld", "rdp"] = "sound",
    most_records: int = 10**9,
) -> Any:
    """The config whose noise spends `epsilon` in all rounds.

    Args:
      epochs: passes over the data.
      method: "sound", by the sharpest accountant there is; the name of another; or "paper": the
        bounds of Table 1 and Theorem 4, composed as Kairouz, Oh and Viswanath do.
      most_records: of each client.
    """
    scheme, sharpest, sampling, noise = SCHEMES[name]
    num_records = min(len(dataset.train["y"]) // NUM_CLIENTS, most_records)
    rounds = rounds_of(name, num_records, batch_size, epochs)
    config = scheme.Config(
        num_parties=NUM_CLIENTS,
        records_per_client=num_records,
        batch_size=batch_size,
        l2_clip_norm=l2_clip_norm,
        noise_multiplier=1.0,
    )
    if method == "paper":
        divisor = batch_size if name == "SGD-DP" else num_records
        one = weighted.client_stddev(config, divisor)
        setup = Setup(
            num_clients=NUM_CLIENTS,
            num_records=num_records,
            batch_size=batch_size,
            l2_clip_norm=l2_clip_norm,
            noise_stddev=one,
        )
        stddev = weighted_rounds.least_noise_stddev(
            sampling,
            noise,
            setup,
            target_epsilon=epsilon,
            num_rounds=rounds,
            delta=DELTA,
            composition="kov",
            formula="paper",
            tolerance=1e-3,
        )
        return dataclasses.replace(config, noise_multiplier=stddev / one)
    multiplier = accounting.calibrate(
        lambda z: scheme.event(dataclasses.replace(config, noise_multiplier=z)).repeat(rounds),
        epsilon=epsilon,
        delta=DELTA,
        method=sharpest if method == "sound" else method,
    )
    return dataclasses.replace(config, noise_multiplier=multiplier)


def cohort_of(dataset: data.Dataset, num_records: int, seed: int) -> data.Cohort:
    """All clients, each with up to `num_records` records, dealt at random."""
    table = partition.iid(dataset.train["y"], NUM_CLIENTS, np.random.default_rng(seed))
    examples = jax.tree.map(jnp.asarray, dataset.train)
    ids = jnp.arange(NUM_CLIENTS, dtype=jnp.int32)
    return data.Cohort(examples, jnp.asarray(table[:, :num_records]), ids)


class Trainer:
    """Compiles one scheme on one model once; learning rate and noise are arguments of nothing else:
    a config of other noise is another trainer.
    """

    def __init__(
        self, name: str, config: Any, model: str, dataset: data.Dataset, epochs: int
    ) -> None:
        self.model, self.dataset = model, dataset
        self.num_records = config.records_per_client
        self.rounds = rounds_of(name, self.num_records, int(config.batch_size), epochs)
        apply = self.initial(0).apply
        # A step of size one along the mean gradient, so that the rate can be applied to it outside.
        unit = SCHEMES[name][0].make(
            config,
            models.softmax_cross_entropy(apply),
            num_units=1,
            server_optimizer=optax.sgd(1.0),
        )

        @jax.jit
        def step(state: Any, cohort: data.Cohort, key: jax.Array, rate: jax.Array) -> Any:
            there, _ = unit.round(state, cohort, key)
            scaled = jax.tree.map(lambda a, b: a + rate * (b - a), state.params, there.params)
            return there._replace(params=scaled)

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
        state = self.init(self.initial(seed).params)
        key = jax.random.key(seed + 1, impl="threefry2x32")
        for _ in range(self.rounds):
            state = self.step(state, cohort, key, jnp.float32(rate))
        return float(models.evaluate(self.apply, state.params, self.dataset.test)[1])

    def best_rate(self, first: float) -> tuple[float, dict[str, float]]:
        """The rate of `LADDER` with the highest accuracy on the tuning seeds, walking from `first`
        until both neighbours are worse; and all that were tried.
        """
        score: Callable[[int], float] = lambda place: float(
            np.mean([self.accuracy(LADDER[place], seed) for seed in TUNING_SEEDS])
        )
        best = LADDER.index(first)
        tried: dict[int, float] = {}
        while True:
            near = [place for place in (best - 1, best, best + 1) if 0 <= place < len(LADDER)]
            tried |= {place: score(place) for place in near if place not in tried}
            top = max(tried, key=lambda place: tried[place])
            if top == best:
                shown = {f"{LADDER[p]:g}": round(tried[p], 4) for p in sorted(tried)}
                return LADDER[best], shown
            best = top


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


def gradients(functional: models.Functional, dataset: data.Dataset, config: Any) -> np.ndarray:
    """Clipped gradients `[D, K]`, float64, of the first client of seed 0 at `functional.params`."""
    loss = models.softmax_cross_entropy(functional.apply)
    cohort = cohort_of(dataset, config.records_per_client, 0)
    rows = cohort.indices[0][cohort.indices[0] >= 0]
    batch = jax.tree.map(lambda leaf: leaf[rows], cohort.examples)
    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(functional.params, batch)
    found = np.concatenate(
        [np.asarray(leaf, np.float64).reshape(len(rows), -1) for leaf in jax.tree.leaves(each)],
        axis=1,
    )
    norms = np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(found * np.minimum(1, config.l2_clip_norm / np.maximum(norms, 1e-12)))


def saved(trainer: Trainer, config: Any) -> float:
    """Mean over clients of the share of K sigma^2 that water filling does not add at the initial
    model.
    """
    functional = trainer.initial(0)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(functional.params))
    values = spectra(functional, trainer.dataset, config)
    floor = weighted.client_stddev(config, config.records_per_client) ** 2
    return float(np.minimum(values, floor).sum(axis=1).mean() / (num_params * floor))
