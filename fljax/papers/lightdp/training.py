"""Training with 50 clients at one epsilon: LightDP-FL, noise of each client alone, a secure sum.

Two ways to size the noise. "paper": condition (14) and Proposition 3, rounds by the square root of
their number, for all three alike; what that truly spends is in the result. "sound": the exact view,
all rounds together.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", section on experiments.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, data, models, schemes
from fljax.accounting import gaussian
from fljax.accounting.shared_noise import least_noise, printed
from fljax.server import stragglers

NUM_CLIENTS = 50
METHODS = ("paper", "sound")
SCHEMES = {
    "local noise": "local_dp",
    "LightDP-FL": "lightdp",
    "secure sum": "smpc_dp",
    "HE + DP": "he_dp",
    "SecAgg + DP": "secagg_dp",
    "SwiftAgg+ + DP": "swiftagg_dp",
    "Dordis": "fljax.papers.lightdp.dordis.SCHEME",
}
LINK_FAILURE = 0.05  # of each link in a round, where links fail


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One cell: who, how its noise is sized, epsilon at `delta`, C, S, rounds; whether links fail
    by themselves, instead of up to S clients.
    """

    name: str
    method: str
    epsilon: float
    delta: float
    colluders: int
    stragglers: int
    rounds: int
    links_fail: bool = False


def config_of(case: Case) -> tuple[Any, float]:
    """The scheme's config with its noise, and the epsilon that it truly spends.

    Raises:
      ValueError: nobody is left to hide a client's upload.
    """
    scheme = schemes.get(SCHEMES[case.name])
    numbers: dict[str, Any] = {
        "num_parties": NUM_CLIENTS,
        "max_colluders": case.colluders,
        "max_stragglers": case.stragglers,
    }
    if case.links_fail:
        numbers |= {"straggler_law": "bernoulli", "link_failure_prob": LINK_FAILURE}
    pair = case.name == "LightDP-FL"
    if pair:
        numbers["draw"] = "joint_law"  # the same law of the average
    if case.method == "sound":
        config = scheme.Config(**numbers)
        noise = accounting.calibrate(
            lambda z: scheme.event(dataclasses.replace(config, noise_multiplier=z)).repeat(
                case.rounds
            ),
            epsilon=case.epsilon,
            delta=case.delta,
            method="gdp",
        )
        return dataclasses.replace(config, noise_multiplier=noise), case.epsilon
    if pair:
        found = least_noise.pair_calibration(
            NUM_CLIENTS,
            case.colluders,
            stragglers.uniform(case.stragglers),
            epsilon=case.epsilon,
            delta=case.delta,
            num_rounds=case.rounds,
            formula="paper",
        )
        numbers["pair_variance_ratio"] = found.ratio
        mu = found.mu
    else:
        least = printed.largest_variance(case.epsilon, case.delta)
        mu = math.sqrt(least / math.sqrt(case.rounds))
    with accounting.x64():
        true = float(gaussian.mu_to_epsilon(mu * math.sqrt(case.rounds), case.delta))
    return scheme.Config(**numbers, noise_multiplier=1 / mu), true


class Runs(NamedTuple):
    """Held-out accuracy `[seeds, rounds]`; how many rounds changed the model `[seeds]`."""

    accuracies: np.ndarray
    counted: np.ndarray
    noise_multiplier: float
    true_epsilon: float
    num_params: int


def runs(case: Case, *, seeds: Sequence[int], model: str, dataset: data.Dataset) -> Runs:
    """Trains one cell.

    Labels are spread unevenly: Dirichlet, 0.5. Seeds set split, initial model, noise and
    stragglers, the same for all cases, so that differences are taken seed by seed.
    """
    config, true = config_of(case)
    examples = jax.tree.map(jnp.asarray, dataset.train)
    tables = [
        data.partition.dirichlet(
            dataset.train["y"], NUM_CLIENTS, np.random.default_rng(seed), alpha=0.5
        )
        for seed in seeds
    ]
    width = max(table.shape[1] for table in tables)  # one program for all seeds
    starts = [
        models.create(
            model,
            example_shape=dataset.train["x"].shape[1:],
            num_classes=dataset.num_classes,
            key=jax.random.key(seed),
        )
        for seed in seeds
    ]
    start = starts[0]
    scheme = schemes.get(SCHEMES[case.name])
    algorithm = scheme.make(
        config, models.softmax_cross_entropy(start.apply), num_units=NUM_CLIENTS
    )
    test = jax.tree.map(jnp.asarray, dataset.test)

    @jax.jit
    def one_round(state: Any, cohort: data.Cohort, key: jax.Array) -> Any:
        after, _ = algorithm.round(state, cohort, key)
        same = jax.tree.map(jnp.array_equal, state.params, after.params)
        counted = ~jnp.all(jnp.stack(jax.tree.leaves(same)))
        return after, models.evaluate(start.apply, after.params, test)[1], counted

    found, counted = np.zeros((len(seeds), case.rounds)), np.zeros(len(seeds), int)
    for place, (seed, table) in enumerate(zip(seeds, tables, strict=True)):
        padded = np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1)
        clients = data.ClientData(examples, jnp.asarray(padded))
        cohort = data.cohort(clients, jnp.arange(NUM_CLIENTS))
        state = algorithm.init(starts[place].params)
        for number in range(case.rounds):
            state, accuracy, moved = one_round(state, cohort, jax.random.key(seed))
            found[place, number] = float(accuracy)
            counted[place] += bool(moved)
    size = sum(leaf.size for leaf in jax.tree.leaves(start.params))
    return Runs(found, counted, float(config.noise_multiplier), true, size)
