"""A search for hyper-parameters that is paid for: the best of a random number of private runs.

python examples/search.py
"""

import math

import numpy as np

from fljax import accounting
from fljax.accounting import events

NUM_CLIENTS = 2_000
DIM = 8
NUM_ROUNDS = 30
SAMPLING_PROB = 0.1
NOISE_MULTIPLIER = 2.0
L2_CLIP_NORM = 1.0
LEARNING_RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
MEAN_RUNS = 6.0
SHAPE = 1.0  # a geometric number of runs: after each, stop with chance 1 / MEAN_RUNS
SCORE_NOISE = 30.0  # noise stddev of a run's score, a count of clients
DELTA = 1e-5


def one_run() -> accounting.PrivacyEvent:
    """Rounds of clipped sums with Gaussian noise, then how many clients the model serves, with
    noise of its own: the choice looks at that number only.
    """
    rounds = events.SelfComposed(
        events.PoissonSampled(SAMPLING_PROB, events.Gaussian(NOISE_MULTIPLIER)), NUM_ROUNDS
    )
    return accounting.PrivacyEvent(
        mechanism=events.Composed((rounds, events.Gaussian(SCORE_NOISE))),
        privacy_unit="client",
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def train(
    x: np.ndarray, y: np.ndarray, learning_rate: float, rng: np.random.Generator
) -> tuple[float, np.ndarray]:
    """Logistic regression, a client an example: the noisy share of clients it serves, its
    weights.
    """
    weights = np.zeros(DIM)
    for _ in range(NUM_ROUNDS):
        there = rng.random(NUM_CLIENTS) < SAMPLING_PROB
        gradient = -(y / (1 + np.exp(y * (x @ weights))))[there, None] * x[there]
        norms = np.linalg.norm(gradient, axis=1, keepdims=True)
        gradient *= np.minimum(1.0, L2_CLIP_NORM / np.maximum(norms, 1e-12))
        noise = NOISE_MULTIPLIER * L2_CLIP_NORM * rng.normal(size=DIM)
        weights -= learning_rate * (gradient.sum(0) + noise) / (SAMPLING_PROB * NUM_CLIENTS)
    served = np.sum(y * (x @ weights) > 0) + SCORE_NOISE * rng.normal()
    return float(served / NUM_CLIENTS), weights


def main() -> None:
    """Searches, and prints what one run, the search, and a search of fixed length cost."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_CLIENTS, DIM))
    y = np.where(x @ rng.normal(size=DIM) + 0.5 * rng.normal(size=NUM_CLIENTS) > 0, 1.0, -1.0)

    best, chosen, runs = -math.inf, 0.0, 0
    while True:
        runs += 1
        learning_rate = float(rng.choice(LEARNING_RATES))
        score, _ = train(x, y, learning_rate, rng)
        best, chosen = max((best, chosen), (score, learning_rate))
        if rng.random() < 1 / MEAN_RUNS:
            break
    print(f"{runs} runs; the best has accuracy {best:.1%} at learning rate {chosen:g}.")

    run = one_run()
    search = accounting.PrivacyEvent(
        mechanism=events.RepeatAndSelect(run.mechanism, MEAN_RUNS, SHAPE),
        privacy_unit=run.privacy_unit,
        neighboring_relation=run.neighboring_relation,
    )
    print(accounting.statement(search, delta=DELTA))
    for what, event in (
        ("one run", run),
        (f"the best of {MEAN_RUNS:g} in the mean", search),
        (f"all of {MEAN_RUNS:g}", run.repeat(round(MEAN_RUNS))),
        (f"all of {10 * MEAN_RUNS:g}", run.repeat(round(10 * MEAN_RUNS))),
    ):
        print(
            f"  {what:24} epsilon {accounting.epsilon(event, delta=DELTA):.3f} at delta {DELTA:g}"
        )


if __name__ == "__main__":
    main()
