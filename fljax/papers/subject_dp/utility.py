"""How much accuracy noise costs a convex loss: bounds on the excess loss of the silo schemes, on
the host.

They hold for a convex, L-Lipschitz loss on a set of diameter M, gradient steps from its centre, and
the average iterate; where stability enters also for a smooth loss. They rank mechanisms; they
predict no accuracy.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
  arXiv:2206.03617, section
4. `paper_bounds` are its Theorems 4.8, 4.9 and 4.11 as printed; the noise term there takes a
multiplier for a standard deviation (erratum E12), that of UserLDP a group that its algorithm does
not use (E13), and that of HiGradAvg a step size that its algorithm does not have (E14).
"""

import math
from typing import Literal

from fljax import _validate
from fljax.errors import PrivacyPreconditionError


def excess_empirical(
    *,
    diameter: float,
    lipschitz: float,
    learning_rate: float,
    num_steps: int,
    num_params: int,
    noise_stddev: float,
    l2_clip_norm: float | None = None,
) -> float:
    """Bound on the expected excess training loss of noisy gradient steps: M^2/(2 eta T) + eta L^2/2
    + eta d nu^2/2.

    Args:
      diameter: M > 0.
      lipschitz: L > 0.
      learning_rate: eta > 0.
      num_steps: T >= 1.
      num_params: d >= 1.
      noise_stddev: nu >= 0, per coordinate of the step direction: stddev of the noise on the sum /
        its divisor.
      l2_clip_norm: where given, it must be at least L, or clipping would change the gradients.

    Raises:
      ValueError: an argument is out of range.
      PrivacyPreconditionError: l2_clip_norm < lipschitz.
    """
    _check(diameter, lipschitz, learning_rate, num_steps, num_params)
    _validate.non_negative(noise_stddev=noise_stddev)
    if l2_clip_norm is not None and not l2_clip_norm >= lipschitz:
        raise PrivacyPreconditionError(
            f"Expected l2_clip_norm >= lipschitz={lipschitz!r}, got l2_clip_norm={l2_clip_norm!r}: "
            "clipping would bind."
        )
    first = diameter**2 / (2 * learning_rate * num_steps)
    return (
        first + learning_rate * lipschitz**2 / 2 + learning_rate * num_params * noise_stddev**2 / 2
    )


def stability(
    *,
    lipschitz: float,
    learning_rate: float,
    num_steps: int,
    num_items: int,
    smoothness: float | None,
    items_per_subject: int = 1,
) -> float:
    """How far the expected loss moves when one subject's items change: L^2 (T + 1) eta
    items_per_subject / n.

    It bounds the gap between training and population loss if subjects (at `items_per_subject` 1:
    items) are drawn independently. For a worst case give the largest number of items of a subject.

    Raises:
      ValueError: an argument is out of range.
      PrivacyPreconditionError: smoothness is None, or learning_rate > 2 / smoothness: the bound is
        not proved there.

    Source: arXiv:2206.03617, Lemma 4.5, with the smoothness that it leaves out (erratum E11).
    """
    _check(1.0, lipschitz, learning_rate, num_steps, 1)
    _validate.positive_int(num_items=num_items, items_per_subject=items_per_subject)
    if smoothness is None:
        raise PrivacyPreconditionError(
            "Expected smoothness to be a number, got None: stability needs a smooth loss."
        )
    _validate.positive(smoothness=smoothness)
    if not learning_rate <= 2 / smoothness:
        raise PrivacyPreconditionError(
            f"Expected learning_rate <= 2 / smoothness = {2 / smoothness:.6g}, got "
            f"learning_rate={learning_rate!r}."
        )
    return lipschitz**2 * (num_steps + 1) * learning_rate * items_per_subject / num_items


def paper_bounds(
    scheme: Literal["local_group_dp", "higradavg", "user_ldp"],
    *,
    diameter: float,
    lipschitz: float,
    learning_rate: float,
    num_steps: int,
    num_params: int,
    group_size: int,
    item_sampling_prob: float,
    epsilon: float,
    delta: float,
    constant: float,
    num_items: int,
) -> float:
    """The excess population loss that Theorem 4.8, 4.9 or 4.11 prints; NOT a bound (errata E10 to
    E14), for comparison.

    Args:
      scheme: "local_group_dp" (Theorem 4.8), "user_ldp" (4.9: that of a group as large as the
        batch, without sampling) or "higradavg" (4.11).
      diameter, lipschitz, learning_rate, num_steps, num_params: as in `excess_empirical`.
      group_size: k >= 1, items of a subject; of user_ldp, items of a batch.
      item_sampling_prob: q in (0, 1]; 1 of user_ldp.
      epsilon, delta: the target; > 0 and in (0, 1).
      constant: c_2 of the moments accountant's law, which the paper leaves open. > 0.
      num_items: n >= 1.

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.one_of(("local_group_dp", "higradavg", "user_ldp"), scheme=scheme)
    _check(diameter, lipschitz, learning_rate, num_steps, num_params)
    _validate.positive_int(group_size=group_size, num_items=num_items)
    _validate.probability(item_sampling_prob=item_sampling_prob)
    if scheme == "user_ldp" and item_sampling_prob != 1:
        raise ValueError(
            "Expected item_sampling_prob=1 of user_ldp, whose claim counts no sampling, got "
            f"item_sampling_prob={item_sampling_prob!r}."
        )
    _validate.positive(epsilon=epsilon, constant=constant)
    _validate.open_unit(delta=delta)
    k, eta = group_size, learning_rate
    stretch, log_term = (
        (k, 0.0) if scheme == "higradavg" else (1, math.log(k) + (k - 1) * epsilon / k)
    )
    noise = eta * num_params * (constant * k * item_sampling_prob / epsilon) ** 2 * num_steps
    return (
        stretch * diameter**2 / (2 * eta * num_steps)
        + eta * lipschitz**2 / (2 * stretch)
        + noise * (log_term - math.log(delta))
        + lipschitz**2 * eta * (num_steps + 1) / num_items
    )


def scale_leak(ratio: float, num_params: int) -> float:
    """Nats that a change of the noise's variance tells about the data: KL(N(0, ratio I) || N(0,
    I)), d coordinates.

    What a noise scale (erratum E3) or a divisor (E4) chosen from private data gives away in one
    step.

    Raises:
      ValueError: ratio is not > 0, or num_params < 1.
    """
    _validate.positive(ratio=ratio)
    _validate.positive_int(num_params=num_params)
    return num_params / 2 * (ratio - 1 - math.log(ratio))


def _check(
    diameter: float, lipschitz: float, learning_rate: float, num_steps: int, num_params: int
) -> None:
    _validate.positive(diameter=diameter, lipschitz=lipschitz, learning_rate=learning_rate)
    _validate.positive_int(num_steps=num_steps, num_params=num_params)
