"""From one item to a person, and from one silo to all: conversions in closed form, float64 on the
host.

Where a mechanism's own noise is known, its event is tighter: direct sensitivity (`events.Gaussian`
at noise / k) or the law of the person's items in a batch (`events.MixtureOfGaussians`). Conversions
are for guarantees without either.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617, of which the "paper" forms are; Vadhan (2017), "The Complexity of Differential
Privacy", Lemma 2.2, for groups.
"""

import math
from typing import Literal

from fljax import _validate
from fljax.errors import NoGuaranteeError

Form = Literal["tight", "paper", "vadhan"]
FORMS = ("tight", "paper", "vadhan")


def _log_factor(epsilon: float, size: int, form: Form) -> float:
    """Logarithm of what delta grows by for `size` items at `epsilon` each."""
    _validate.non_negative(epsilon=epsilon)
    _validate.positive_int(size=size)
    _validate.one_of(FORMS, form=form)
    if form == "paper":
        return math.log(size) + (size - 1) * epsilon
    if form == "vadhan":
        return math.log(size) + size * epsilon
    if size == 1 or epsilon == 0:
        return math.log(size)
    # (e^(k eps) - 1) / (e^eps - 1) without overflow.
    return (
        (size - 1) * epsilon
        + math.log(-math.expm1(-size * epsilon))
        - math.log(-math.expm1(-epsilon))
    )


def group_delta(epsilon: float, delta: float, size: int, *, form: Form = "tight") -> float:
    """What an (epsilon, delta) guarantee for one item is for `size` items: (size * epsilon, the
    result).

    Do not combine it with amplification by sampling items, unless `size` counts all items the
    person has in the data.

    Args:
      epsilon, delta: of one item; >= 0 and in [0, 1).
      size: items of the group, >= 1.
      form: "tight" sums e^(i epsilon) over i < size; "paper" and "vadhan" are looser closed forms
        in print.

    Returns:
      delta', at most 1; at 1 the guarantee says nothing.

    Raises:
      ValueError: an argument is out of range.
    """
    log_factor = _log_factor(epsilon, size, form)
    _validate.below_one(delta=delta)
    # One item's delta has no digits to lose in a logarithm.
    return (
        delta if delta == 0 or log_factor == 0 else math.exp(min(0.0, math.log(delta) + log_factor))
    )


def split_budget(
    epsilon: float, delta: float, size: int, *, form: Form = "tight"
) -> tuple[float, float]:
    """The guarantee for one item that gives `size` items (epsilon, delta): the inverse of
    `group_delta`.

    Args, Raises: as `group_delta`, with epsilon and delta those of the group.

    Returns:
      epsilon and delta of one item.
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.positive_int(size=size)
    _validate.below_one(delta=delta)
    return epsilon / size, delta * math.exp(-_log_factor(epsilon / size, size, form))


def rounds_within(
    num_rounds: int,
    silos_per_subject: int,
    *,
    law: Literal["linear", "paper_sqrt"] = "linear",
    allow_unsound: bool = False,
) -> int:
    """Rounds that fit the budget of `num_rounds` rounds of one silo when a person's items lie in
    several silos.

    Each silo composes, so that h silos spend h rounds' budget in one round.

    Args:
      num_rounds: that the noise was calibrated for, with one silo. >= 1.
      silos_per_subject: h >= 1, silos in a round that hold items of one person.
      law: "linear": num_rounds / h, rounded down. "paper_sqrt": num_rounds / sqrt(h) as printed,
        which overspends: at 16 silos and 100 rounds a claimed epsilon of 4 is 9.07 in truth.
      allow_unsound: must be True for "paper_sqrt".

    Returns:
      rounds; 0 if not one fits.

    Raises:
      ValueError: a number is out of range.
      NoGuaranteeError: "paper_sqrt" without `allow_unsound`.
    """
    _validate.positive_int(num_rounds=num_rounds, silos_per_subject=silos_per_subject)
    _validate.one_of(("linear", "paper_sqrt"), law=law)
    if law == "linear":
        return num_rounds // silos_per_subject
    if not allow_unsound:
        raise NoGuaranteeError(
            "Expected law='linear', got law='paper_sqrt', which overspends: see allow_unsound."
        )
    return int(num_rounds / math.sqrt(silos_per_subject) + 1e-9)
