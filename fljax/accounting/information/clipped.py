"""Nats of differentially private SGD: what clipping and noise on a sum of gradients tell about the
batch.

Source: Tan et al. (2024), arXiv:2403.01268, Theorem 4, which lost a factor 1/2 and needs
independent records for its factor B; both forms of it are here.
"""

import math
from typing import Any, Literal

from fljax import _validate
from fljax.accounting.information import _kernels
from fljax.accounting.information.results import Formula, Leakage, proof
from fljax.errors import PrivacyPreconditionError

Target = Literal["record", "batch", "batch_mean"]


def private_sgd_nats(
    *,
    noise_multiplier: float,
    batch_size: int,
    target: Target,
    record_dimension: int,
    num_params: int | None = None,
    assume_iid: bool,
    side_info: Literal["none", "rest_of_batch"] = "none",
    formula: Formula = "sound",
) -> Leakage:
    """Nats of one noisy sum of clipped gradients: (K/2) ln(1 + B / (K z^2)), at most B / (2 z^2).

    Guarantee: per step, for gradients of L2 norm <= S and noise of standard deviation z S on their
    *sum* (real-valued noise). Steps that use a record again add up, and with `assume_iid` only
    while no record comes twice: after a release the records are not independent any more for
    whoever saw it. A larger batch tells *less* about each record, and more about the batch and its
    mean.

    Args:
      noise_multiplier: z. > 0. batch_size: B.
      target: "record", "batch" (all its coordinates, dimension B d), or "batch_mean" (dimension d).
      record_dimension: d, so that `theorem1` divides by the right number of coordinates.
      num_params: K; None takes the limit of many.
      assume_iid: records of a batch are independent, and for target "record" identically
        distributed too: independent ones share the joint nats, but only of records that can be
        exchanged has each one the same share. Where they come from different laws (one record
        varies, the others hardly do) declare False. False takes B^2 for B.
      side_info: "rest_of_batch" is an attacker who knows the other records; only for target
        "record".
      formula: "paper" gives B / z^2, twice the proved value in its limit; not certified, so that
        nobody mixes them up.

    Raises:
      ValueError: an argument is out of range.
      PrivacyPreconditionError: side information with another target than a record.
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.positive_int(batch_size=batch_size, record_dimension=record_dimension)
    _validate.one_of(["record", "batch", "batch_mean"], target=target)
    _validate.one_of(["none", "rest_of_batch"], side_info=side_info)
    _validate.one_of(["sound", "paper"], formula=formula)
    if num_params is not None:
        _validate.positive_int(num_params=num_params)
    if side_info == "rest_of_batch" and target != "record":
        raise PrivacyPreconditionError(
            f"Expected target='record' with side_info={side_info!r}, got {target!r}."
        )
    joint, alone = (
        float(
            _kernels.clipped_capacity(
                count, noise_multiplier**2, num_params, iid=assume_iid, paper=formula == "paper"
            )
        )
        for count in (batch_size, 1)
    )
    why = "capacity of a clipped sum" + (", for independent records" if assume_iid else "")
    nats = joint
    if target == "record":
        if side_info == "rest_of_batch":
            nats, why = (
                alone,
                "capacity of one clipped gradient, beyond what the rest of the batch tells",
            )
        elif assume_iid:
            # independent: shares add up to no more than the joint nats; identically distributed:
            #   shares are equal
            nats = joint / batch_size
            why = (
                "capacity of a clipped sum, an equal share of it for independent, identically "
                "distributed records"
            )
    fields: dict[str, Any] = proof("public", why)
    if formula == "paper":
        fields |= {
            "certified": False,
            "reason": "the printed form, without the factor 1/2",
            "formula": "paper",
        }
    return Leakage(
        nats=nats,
        dimension=batch_size * record_dimension if target == "batch" else record_dimension,
        target=target,
        mode="one_use",
        **fields,
    )


def private_sgd_nats_from_epsilon(
    epsilon: float, delta: float, *, calibration: Literal["classical"], **options: Any
) -> Leakage:
    """`private_sgd_nats` of the noise that the classical calibration gives: z = sqrt(2 ln(1.25 /
    delta)) / epsilon.

    An (epsilon, delta) claim alone fixes no noise: the analytic calibration adds less for the same
    claim, and tells more. Where the noise is known, use it.

    Args:
      epsilon, delta: of one step, with respect to adding or removing one record. 0 < epsilon < 1, 0
        < delta < 1.
      calibration: "classical", to be said aloud.
      options: the other arguments of `private_sgd_nats`.

    Raises:
      PrivacyPreconditionError: outside these ranges, where the classical calibration is not
        (epsilon, delta)-DP.
    """
    if calibration != "classical":
        raise PrivacyPreconditionError(
            f"Expected calibration='classical', got {calibration!r}: compute from the noise."
        )
    if not (0 < epsilon < 1 and 0 < delta < 1):
        raise PrivacyPreconditionError(
            "Expected 0 < epsilon < 1 and 0 < delta < 1 for the classical calibration, got "
            f"epsilon={epsilon!r}, delta={delta!r}: compute from the noise."
        )
    return private_sgd_nats(
        noise_multiplier=math.sqrt(2 * math.log(1.25 / delta)) / epsilon, **options
    )
