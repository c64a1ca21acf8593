"""The accounting of arXiv:2206.03617 as printed: for comparison with what holds, never for
protection.

A scheme with `formula="paper"` offers, beside `event(config)`, which always is the truth,

- `ERRATA`: the gaps that its claim rests on, keys of `ERRATA` here;
- `claimed_epsilon(config, num_rounds=, delta=)`: what the paper would say of a run;
- `as_printed(config, num_rounds=, epsilon=, delta=)`: the config with the noise that the paper
  would choose.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
  arXiv:2206.03617.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeVar

from fljax import _validate
from fljax.accounting import accountant, events, groups, search

Config = TypeVar("Config")

ERRATA = {
    "E1": "counts the rounds of s silos as sqrt(s) times as many, where they spend s times as much",
    "E2": "applies group privacy for the items in a batch on top of sampling items of a data set",
    "E3": "scales noise by the largest group of the batch, which is private",
    "E4": "divides by the realised number of subjects, which is private",
    "E6": "takes items times sampling rate for the chance that a subject is in the batch",
    "E7": "takes C for the sensitivity of a clipped gradient; two of them can be 2 C apart",
    "E8": "asks for a least noise whose proof is void",
}


def errata(*names: str) -> dict[str, str]:
    """The gaps of these names, with their sentences."""
    return {name: ERRATA[name] for name in names}


def square_root_rounds(num_rounds: int, num_silos: int) -> int:
    """What the paper counts for `num_rounds` rounds of `num_silos` silos: times sqrt(silos),
    rounded up: erratum E1.

    Raises:
      ValueError: a number is no integer >= 1.
    """
    _validate.positive_int(num_rounds=num_rounds, num_silos=num_silos)
    return math.isqrt(num_rounds**2 * num_silos - 1) + 1


def run(
    step: events.Mechanism, num_steps: int, num_rounds: int, num_silos: int
) -> events.PrivacyEvent:
    """What the paper takes `num_rounds` rounds of `num_steps` steps to be for a subject in
    `num_silos` silos.
    """
    _validate.positive_int(num_rounds=num_rounds)
    steps = num_steps * square_root_rounds(num_rounds, num_silos)
    return events.PrivacyEvent(
        mechanism=events.SelfComposed(step, steps),
        privacy_unit="subject",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def group_epsilon(event: events.PrivacyEvent, delta: float, size: int) -> float:
    """The least E that group privacy in the paper's form gives `size` items at `delta`, by
    bisection.
    """

    def share(total: float) -> float:
        one, one_delta = groups.split_budget(total, delta, size, form="paper")
        return accountant.epsilon(event, delta=one_delta) / one

    if not math.isfinite(accountant.epsilon(event, delta=delta)):
        return math.inf
    return search.within(share, 1.0, of="epsilon of an item / its budget")


def least_noise(epsilon: float, delta: float) -> float:
    """The noise multiplier that Theorem 3.11 asks of UserLDP on top: neither needed nor enough
    (erratum E8).

    Raises:
      ValueError: epsilon is not > 0, or delta not in (0, 1).
    """
    _validate.positive(epsilon=epsilon)
    _validate.open_unit(delta=delta)
    return math.exp(-epsilon) / (math.sqrt(2 * math.pi) * epsilon * delta)


def with_noise(
    config: Config, claim: Callable[..., float], *, num_rounds: int, epsilon: float, delta: float
) -> Config:
    """`config` with formula="paper" and the least noise for which `claim` is at most `epsilon`, to
    six digits.
    """
    _validate.positive(epsilon=epsilon)

    def claimed(noise: float) -> float:
        return claim(
            dataclasses.replace(config, noise_multiplier=noise),  # type: ignore[type-var]
            num_rounds=num_rounds,
            delta=delta,
        )

    noise = search.within(claimed, epsilon, of="claimed epsilon")
    changes: dict[str, Any] = {"noise_multiplier": noise, "formula": "paper"}
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]
