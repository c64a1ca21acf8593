"""What rounds of secure sums with sampled gradients cost, and the noise that meets a target.

The default answers are sound. `formula="paper"` gives what Table 1 and Theorem 4 print where that
is sound as well, and `composition="kov"` the composition behind the paper's Figure 5: valid, and
much looser than Renyi composition.

Source: Zhang et al. (2024), arXiv:2405.04551, Table 1, Theorems 2 to 4 and section 6.
"""

import dataclasses
import math
from typing import Literal

import numpy as np

from fljax import _validate
from fljax.accounting import accountant, events, gaussian, search
from fljax.accounting.events import NeighboringRelation, PrivacyEvent
from fljax.accounting.pld import without_replacement
from fljax.accounting.renyi import conversion, kov
from fljax.accounting.weighted_sums.setups import (
    Curve,
    Formula,
    Noise,
    Sampling,
    Setup,
    check_cell,
    curve,
    noiseless,
)
from fljax.errors import NoGuaranteeError, UnsupportedEventError

__all__ = [
    "Curve",
    "Setup",
    "amplify",
    "best_epsilon",
    "curve",
    "epsilon",
    "event",
    "least_noise_stddev",
    "noiseless",
]

Composition = Literal["rdp", "pld", "kov"]
_SCAN, _NEAR, _ZOOMS = 400, 41, 9
_LEAST, _MOST = 1e-5, 1e8  # orders less 1


def amplify(epsilon: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """(log(1 + rate (e^epsilon - 1)), rate delta): subsampling without replacement, one record
    replaced.
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.closed_unit(delta=delta)
    _validate.probability(sampling_rate=sampling_rate)
    # log(1 - rate + rate e^eps), without overflow.
    grown = (
        epsilon
        + math.log1p((1 - sampling_rate) / sampling_rate * math.exp(-epsilon))
        + math.log(sampling_rate)
    )
    small = math.log1p(sampling_rate * math.expm1(epsilon)) if epsilon < 1 else grown
    return max(small, 0.0), sampling_rate * delta


def best_epsilon(
    curve: Curve, *, delta: float, num_rounds: int = 1, conversion_formula: Formula = "sound"
) -> tuple[float, float]:
    """(epsilon, order) of rounds of one curve by Renyi composition, least over all real orders.

    Args:
      curve: of one round.
      delta: in (0, 1).
      num_rounds: rounds that may depend on what came before; sizes and noise are public.
      conversion_formula: "paper" for epsilon(a) + log(1 / delta) / (a - 1).

    Raises:
      NoGuaranteeError: the curve holds for one data set only.
    """
    _validate.open_unit(delta=delta)
    _validate.positive_int(num_rounds=num_rounds)
    _validate.one_of(["sound", "paper"], conversion_formula=conversion_formula)
    if curve.scope == "instance":
        raise NoGuaranteeError(
            'Expected a curve of scope="uniform", got scope="instance": what holds for one data '
            "set is no differential privacy, does not compose, and may not be published."
        )

    def convert(log_excess: np.ndarray) -> np.ndarray:
        orders = 1 + np.exp(log_excess)
        values = num_rounds * np.asarray(curve.divergence(orders))
        if conversion_formula == "paper":
            return values + math.log(1 / delta) / (orders - 1)
        return np.asarray(conversion.rdp_to_epsilons(values, orders, delta))

    room = min(curve.largest_order - 1, _MOST)
    if not room > _LEAST:
        return math.inf, math.nan
    grid = np.linspace(math.log(_LEAST), math.log(room), _SCAN)
    for _ in range(_ZOOMS):
        found = convert(grid)
        place = int(np.argmin(found))
        best, order = float(found[place]), 1 + math.exp(grid[place])
        grid = np.linspace(grid[max(place - 1, 0)], grid[min(place + 1, grid.size - 1)], _NEAR)
    return best, order


def _step(setup: Setup) -> events.Gaussian:
    """The noise on a subset, whose mean moves by 2 C / B."""
    size = int(setup.batch_size)
    if size != setup.batch_size or not 1 <= size <= setup.num_records:
        raise ValueError(
            f"Expected batch_size to be a whole number up to num_records={setup.num_records} for "
            f"subsets, got batch_size={setup.batch_size!r}."
        )
    return events.Gaussian(math.sqrt(setup.floor) * size / (2 * setup.l2_clip_norm))


def event(setup: Setup) -> PrivacyEvent:
    """One round of SGD-DP (subsets, isotropic noise): Gaussian noise on a sample without
    replacement, REPLACE_ONE.
    """
    step = _step(setup)
    return PrivacyEvent(
        mechanism=events.SampledWithoutReplacement(setup.num_records, int(setup.batch_size), step),
        privacy_unit="example",
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )


def epsilon(
    sampling: Sampling,
    noise: Noise,
    setup: Setup,
    *,
    num_rounds: int,
    delta: float,
    composition: Composition = "rdp",
    formula: Formula = "sound",
) -> float:
    """Epsilon of `num_rounds` rounds at `delta`, for one replaced record.

    Args:
      sampling, noise, setup, formula: as in `curve`.
      num_rounds, delta: the whole run.
      composition: "rdp". "pld": by privacy-loss distributions, about half as much for subsets,
        exact without sampling; unknown for Gaussian weights. "kov" converts every round at delta /
        (2 num_rounds), by the paper's conversion, and composes with slack delta / 2; for subsets it
        amplifies in between, leaving its gain in delta unspent.

    Raises:
      NoGuaranteeError: a cell of Table 1 without any guarantee.
      ValueError: a number out of range.
    """
    _validate.one_of(["rdp", "pld", "kov"], composition=composition)
    _validate.positive_int(num_rounds=num_rounds)
    _validate.open_unit(delta=delta)
    check_cell(sampling, noise, formula, "fedsgd")
    if composition == "pld":
        return _by_losses(sampling, setup, num_rounds, delta)
    if composition == "rdp":
        if sampling == "subset":
            if formula == "paper":
                raise NoGuaranteeError(
                    'Expected composition="kov" with formula="paper" for subsets: amplification by '
                    "sampling is "
                    'printed for (epsilon, delta), not for Renyi curves, got composition="rdp".'
                )
            return accountant.epsilon(event(setup).repeat(num_rounds), delta=delta)
        one = curve(sampling, noise, setup, formula=formula)
        return best_epsilon(one, delta=delta, num_rounds=num_rounds, conversion_formula=formula)[0]
    one = curve(sampling, noise, setup, formula=formula)
    share = delta / (2 * num_rounds)
    each, _ = best_epsilon(one, delta=share, conversion_formula="paper")
    if sampling == "subset":
        _step(setup)  # a subset has a whole size
        each, _ = amplify(each, share, setup.batch_size / setup.num_records)
    return kov.grid(each, share, num_rounds, delta / 2)[0] if math.isfinite(each) else math.inf


def _by_losses(sampling: Sampling, setup: Setup, num_rounds: int, delta: float) -> float:
    if sampling == "subset":
        noise = _step(setup).noise_multiplier
        return without_replacement.sampled_epsilon(
            noise, setup.batch_size / setup.num_records, num_rounds, delta
        )
    if sampling == "none":
        mu = 2 * setup.l2_clip_norm / setup.num_records * math.sqrt(num_rounds / setup.floor)
        return float(gaussian.mu_to_epsilon(mu, delta))
    raise UnsupportedEventError(
        'Expected composition="rdp" or "kov" with sampling="gaussian": no dominating pair of '
        "Gaussians is known for "
        'its data-dependent covariance, got composition="pld".'
    )


def least_noise_stddev(
    sampling: Sampling,
    noise: Noise,
    setup: Setup,
    *,
    target_epsilon: float,
    num_rounds: int,
    delta: float,
    composition: Composition = "rdp",
    formula: Formula = "sound",
    tolerance: float = 1e-6,
) -> float:
    """Least noise_stddev per client with `epsilon` at most `target_epsilon`; the search starts at
    that of `setup`.

    Raises:
      PrivacyPreconditionError: no noise in reach does.
      As `epsilon`.
    """
    _validate.positive(target_epsilon=target_epsilon, tolerance=tolerance)

    def cost(stddev: float) -> float:
        return epsilon(
            sampling,
            noise,
            dataclasses.replace(setup, noise_stddev=stddev),
            num_rounds=num_rounds,
            delta=delta,
            composition=composition,
            formula=formula,
        )

    return search.within(
        cost, target_epsilon, of="epsilon", start=setup.noise_stddev, tolerance=tolerance
    )
