"""The noise of each line of `fljax attack`."""

import dataclasses
from typing import Any, NamedTuple

from fljax import accounting, schemes
from fljax.attacks import rounds


class Noisy(NamedTuple):
    """budget: an epsilon. noise: the multiplier that spends it. event: of all rounds with it."""

    budget: float
    noise: float
    event: accounting.PrivacyEvent


def noises(
    scheme: schemes.Scheme,
    start: Any,
    budgets: tuple[float, ...] | None,
    *,
    num_rounds: int,
    delta: float,
) -> list[Noisy]:
    """Noise calibrated for each budget; without budgets the noise of `start`, and what it spends.

    Raises:
      ValueError: a budget cannot be reached.
    """
    event = lambda noise: scheme.run_event(
        dataclasses.replace(start, noise_multiplier=noise), num_rounds
    )
    method = rounds.quick_method(event(1.0))
    if budgets is None:
        own = event(start.noise_multiplier)
        epsilon = accounting.epsilon(own, delta=delta, method=method)
        return [Noisy(float(epsilon), start.noise_multiplier, own)]
    found = []
    for budget in budgets:
        noise = float(accounting.calibrate(event, epsilon=budget, delta=delta, method=method))
        found.append(Noisy(budget, noise, event(noise)))
    return found
