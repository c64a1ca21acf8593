"""What does a federated run cost, before it is run? Epsilon, noise, rounds, attacks, gradients.

python examples/accounting.py
"""

import jax
import numpy as np

from fljax import accounting
from fljax.accounting import events, gaussian, risk
from fljax.accounting.renyi import conversion, noise_grid, rdp

NUM_CLIENTS = 10_000
EXPECTED_COHORT_SIZE = 100
NUM_ROUNDS = 2_000
NOISE_MULTIPLIER = 0.9
TARGET_EPSILON = 2.0
DELTA = 1e-6
ORDERS = rdp.DEFAULT_ORDERS
METHODS = accounting.ACCOUNTANTS


def one_round(noise_multiplier: float) -> accounting.PrivacyEvent:
    """Each client joins by its own coin; the clipped sum gets Gaussian noise."""
    return accounting.PrivacyEvent(
        mechanism=events.PoissonSampled(
            EXPECTED_COHORT_SIZE / NUM_CLIENTS, events.Gaussian(noise_multiplier)
        ),
        privacy_unit="client",
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def main() -> None:
    """Prints each answer with the question."""
    run = one_round(NOISE_MULTIPLIER).repeat(NUM_ROUNDS)
    print(
        f"What does the run cost at delta {DELTA:g}?\n"
        + accounting.statement(run, delta=DELTA)
        + "\n"
    )

    print("What do the accountants say?")
    for row in accounting.table(run, delta=DELTA, methods=METHODS):
        upper = row["epsilon_upper"]
        print(
            f"  {row['method']:9}",
            f"epsilon <= {upper:.4f}" if isinstance(upper, float) else "has no bound for it",
        )

    noise = accounting.calibrate(
        lambda noise: one_round(noise).repeat(NUM_ROUNDS), epsilon=TARGET_EPSILON, delta=DELTA
    )
    rounds = accounting.calibrate(
        lambda count: one_round(NOISE_MULTIPLIER).repeat(int(count)),
        epsilon=TARGET_EPSILON,
        delta=DELTA,
        integer=True,
    )
    print(
        f"\nFor epsilon {TARGET_EPSILON:g}: noise multiplier {noise:.4f}, or {rounds} rounds at "
        f"{NOISE_MULTIPLIER:g}."
    )

    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE")
    event = one_round(NOISE_MULTIPLIER)
    while not ledger.would_exceed(event, target_epsilon=TARGET_EPSILON, delta=DELTA, count=100):
        ledger.append(event, 100)
    print(
        f"A ledger that asks before every 100 rounds stops at {ledger!r}, epsilon "
        f"{ledger.epsilon(delta=DELTA):.4f}."
    )

    cohorts = np.asarray([10, 30, 100, 300, 1000])
    grid = noise_grid.poisson_gaussian_noise(
        cohorts / NUM_CLIENTS, NUM_ROUNDS, epsilon=TARGET_EPSILON, delta=DELTA, orders=ORDERS
    )
    print(
        "\nNoise stddev / expected cohort size, which is the noise on the mean, all in one program:"
    )
    for cohort, value in zip(cohorts, grid, strict=True):
        print(
            f"  cohort {cohort:5d}: noise multiplier {value:7.4f}, on the mean {value / cohort:.5f}"
        )

    with accounting.x64():
        epsilon = jax.jit(
            jax.value_and_grad(
                lambda s: conversion.rdp_to_epsilon(
                    NUM_ROUNDS
                    * rdp.poisson_gaussian(s, EXPECTED_COHORT_SIZE / NUM_CLIENTS, ORDERS),
                    ORDERS,
                    DELTA,
                )
            )
        )
        value, slope = epsilon(NOISE_MULTIPLIER)
    print(f"\nEpsilon {value:.4f} changes by {slope:.3f} per unit of noise multiplier.")

    print(
        "\nThe best membership test of the run gains an advantage of "
        f"{risk.advantage(run):.1%}, and with 1 % false alarms finds "
        f"{risk.tpr_at_fpr(run, 0.01):.1%} at most."
    )

    mu = float(gaussian.epsilon_to_mu(TARGET_EPSILON, DELTA))
    success = conversion.reconstruction_bound(lambda a: gaussian.trade_off(mu, a), prior=0.001)
    found = float(gaussian.tpr_at_fpr(mu, 0.01))
    print(
        f"\nAn unsampled Gaussian release at epsilon {TARGET_EPSILON:g} is {mu:.4f}-GDP. A "
        "membership test with 1%"
        f"\nfalse alarms finds at most {found:.1%}; an attack that would guess a record with "
        "chance 0.1% reconstructs"
        f"\nit with chance {success:.2%} at most."
    )


if __name__ == "__main__":
    main()
