"""Nats after many uses of one record, and how many uses a budget allows.

Counted is how often a *record* was exposed, not how many rounds ran: with batches of B out of N, m
= n B / N times. The joint accountant is the one to use: m independent draws of noise tell as much
as one draw of 1/m of the variance, which is far below m times the nats of one. It needs noises and
numbers of draws that depend neither on the data nor on what was sent; where they do, certify with a
cap on the precision that was fixed beforehand. Labels go out as they are, so their entropy is added
once per record unless they are public.

Noise that is kept costs once in the data alone, where all that is sent follows from one noisy
record. Two uploads with one noise differ by a function of the data without noise, which is worth
infinitely many nats: uploads add up linearly.

Source: Tan et al. (2024), arXiv:2403.01268, Eq. 9, as an inequality; per-record counts and the
  joint bound are ours.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting.information import _kernels
from fljax.accounting.information.channels import Channel, checked_covariance, spectrum
from fljax.accounting.information.results import CovarianceSource, Leakage, inherit, plain, proof
from fljax.errors import PrivacyPreconditionError

CountMode = Literal["joint", "linear", "once"]
# Relative; a number of uses that is an integer in exact arithmetic must not be one less.
_ROUNDING = 1e-9
_MOST_LOG_USES = 700.0  # near what a float holds


class CorrelatedRecordsWarning(UserWarning):
    """Records depend on one another, so what one tells about another was added."""


class Exposure(NamedTuple):
    """What the N records of a client went through; see `start` and `spend`.

    precision_sum: `[N]`, sum over draws of 1 / noise_var, of one noise shape. linear_nats: `[N]`,
    sum of the nats of each draw. uses: `[N]`, int64. noise: "fresh" for a new draw at each use,
    "once" for one that is kept. channel: one that records went through, for its noise shape, and
    the least certain of them; None before the first with noise.
    """

    precision_sum: np.ndarray
    linear_nats: np.ndarray
    uses: np.ndarray
    noise: str
    channel: Channel | None = None


def start(num_records: int, *, noise: Literal["fresh", "once"] = "fresh") -> Exposure:
    """Nothing spent yet."""
    _validate.positive_int(num_records=num_records)
    _validate.one_of(["fresh", "once"], noise=noise)
    return Exposure(
        np.zeros(num_records), np.zeros(num_records), np.zeros(num_records, np.int64), noise
    )


def spend(exposure: Exposure, record_ids: Any, channel: Channel) -> Exposure:
    """The exposure after the records `record_ids` (one entry per use) went through `channel` again.

    With noise "once" a further use of the same draw costs nothing.

    Raises:
      ValueError: an id is not one of the records, or the channel has client axes.
      PrivacyPreconditionError: the noise has another shape than before (use `mixed`, or an exposure
        for each and add up); it is kept, and a record that has its draw goes through a different
        channel, or the channel is on uploads.
    """
    ids = np.asarray(record_ids)
    if ids.size and (
        not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0 or ids.max() >= exposure.uses.size
    ):
        raise ValueError(
            f"Expected record_ids in 0..{exposure.uses.size - 1}, got record_ids={ids!r}."
        )
    return expose(
        exposure, np.bincount(ids.ravel().astype(np.int64), minlength=exposure.uses.size), channel
    )


def expose(exposure: Exposure, uses: Any, channel: Channel) -> Exposure:
    """`spend` by counts: `uses` `[N]` or a number, how often each record went through `channel`."""
    _one_client(channel)
    _check_space(channel, exposure.noise)
    # what is sent without noise has no shape, and tells infinitely many nats by any count
    known = (
        exposure.channel if channel.kind == "none" else _least_certain(exposure.channel, channel)
    )
    counts = np.broadcast_to(np.asarray(uses), exposure.uses.shape)
    if not np.issubdtype(counts.dtype, np.integer) or np.any(counts < 0):
        raise ValueError(f"Expected integer uses >= 0, got uses={uses!r}.")
    with np.errstate(over="ignore"):
        precision = float(np.exp(-np.float64(channel.log_noise_var)))
    if exposure.noise == "once":
        again = (exposure.uses > 0) & (counts > 0)
        if np.any(again & ~np.isclose(exposure.precision_sum, precision, rtol=1e-12, atol=0)):
            raise PrivacyPreconditionError(
                "Expected the noise that was drawn once: a second draw through another channel "
                "makes the noise fresh."
            )
        draws = (counts > 0) & (exposure.uses == 0)
    else:
        draws = counts
    # where: 0 uses of a channel without noise are 0 nats, not NaN
    more = np.where(draws > 0, np.where(draws > 0, draws, 1) * precision, 0.0)
    nats = np.where(draws > 0, np.where(draws > 0, draws, 1) * np.float64(channel.nats), 0.0)
    return Exposure(
        exposure.precision_sum + more,
        exposure.linear_nats + nats,
        exposure.uses + counts,
        exposure.noise,
        known,
    )


def total(
    exposure: Exposure,
    channel: Channel,
    *,
    label_nats: float,
    mode: CountMode | None = None,
    group_size: int = 1,
    adaptive: bool = False,
    precision_cap: float | None = None,
) -> Leakage:
    """Nats that all that was sent tells about each record.

    Args:
      exposure: what the records went through.
      channel: any channel of the shape that was spent (its `values` count, not its strength).
      label_nats: entropy of a label, once per record that was used: ln(classes) at most; 0.0
        declares labels public.
      mode: None takes the tightest that fits: "once" for kept noise, "linear" for a channel in
        parameter space, else "joint". "linear" adds the nats of each use.
      group_size: how many records may depend on one another (the same person, duplicates). Above 1
        each of the others adds the largest nats of any record, with a CorrelatedRecordsWarning.
      adaptive: strengths or numbers of uses may have depended on data or transcript (early stopping
        on what was seen).
      precision_cap: bound on precision_sum, fixed beforehand; nats are counted at it. Needed to
        certify `adaptive`.

    Returns:
      A Leakage with nats `[N]`.

    Raises:
      ValueError: an argument is out of range.
      PrivacyPreconditionError: the channel has another noise shape than records went through, mode
        and noise do not go together, uploads are not counted linearly, or the cap was passed.
    """
    _one_client(channel)
    _validate.non_negative(label_nats=label_nats)
    _validate.positive_int(group_size=group_size)
    mode = _default_mode(exposure, channel) if mode is None else mode
    _validate.one_of(["joint", "linear", "once"], mode=mode)
    if (mode == "once") != (exposure.noise == "once"):
        raise PrivacyPreconditionError(
            f"Expected mode='once' just for noise that is kept, got {mode!r} for "
            f"{exposure.noise!r}."
        )
    _check_space(channel, mode)
    used = exposure.uses > 0
    claim = _least_certain(exposure.channel, channel)
    holds, why = claim.certified, claim.reason
    if precision_cap is not None:
        _validate.positive(precision_cap=precision_cap)
        if mode != "joint":
            raise ValueError(f"Expected mode='joint' with a precision_cap, got mode={mode!r}.")
        if np.any(exposure.precision_sum > precision_cap * (1 + _ROUNDING)):
            raise PrivacyPreconditionError(
                f"Expected precision_sum <= precision_cap={precision_cap!r}, got "
                f"{exposure.precision_sum.max():g}."
            )
        nats = np.where(used, _composed(channel, np.array([precision_cap])), 0.0)
    elif mode == "joint":
        nats = _composed(channel, exposure.precision_sum)
    else:
        nats = exposure.linear_nats
    if adaptive and precision_cap is None:
        holds, why = (
            False,
            "noise or number of uses may depend on the data, and no cap was fixed beforehand",
        )
    nats = nats + np.where(used, label_nats, 0.0)
    if group_size > 1:
        warnings.warn(
            f"Records in groups of {group_size}: each record's nats have the others' added.",
            CorrelatedRecordsWarning,
            stacklevel=2,
        )
        nats = np.where(used, nats, 0.0) + (group_size - 1) * nats.max()
    fields = inherit(claim, why, holds=holds)
    return Leakage(nats=nats, dimension=channel.dimension, mode=mode, **fields)


def after_uses(
    channel: Channel, uses: Any, *, label_nats: float, mode: CountMode = "joint"
) -> Leakage:
    """`total` for many clients at once: each record of client c was used `uses[c]` times.

    Args:
      channel: with client axes `[...]`, or none. uses: `[...]` or a number, >= 0; may be fractional
        for a mean.
      label_nats, mode: as in `total`.

    Raises:
      ValueError: an argument is out of range.
      PrivacyPreconditionError: a channel on uploads, and another mode than "linear".
    """
    uses = np.asarray(uses, np.float64)
    if not np.all((uses >= 0) & np.isfinite(uses)):
        raise ValueError(f"Expected uses >= 0 and finite, got uses={uses!r}.")
    _validate.non_negative(label_nats=label_nats)
    _validate.one_of(["joint", "linear", "once"], mode=mode)
    _check_space(channel, mode)
    some = uses > 0
    if mode == "joint":
        with np.errstate(divide="ignore"):
            strength = np.where(some, np.asarray(channel.log_noise_var) - np.log(uses), np.inf)
        nats = channel.copies * _kernels.over_clients(_kernels.capacity, channel.values, strength)
    else:
        count = np.where(some, uses, 1.0) if mode == "linear" else 1.0
        nats = np.where(some, count * np.asarray(channel.nats), 0.0)
    return Leakage(
        nats=plain(nats + np.where(some, label_nats, 0.0)),
        dimension=channel.dimension,
        mode=mode,
        **inherit(channel, channel.reason),
    )


def paper_linear(channel: Channel, *, num_steps: int) -> Leakage:
    """The paper's n * kappa: of neither a record (it counts steps that do not touch it) nor the
    data set.
    """
    _validate.positive_int(num_steps=num_steps)
    fields = inherit(
        channel,
        "the paper's product of steps and nats counts neither a record nor the data set",
        holds=False,
    )
    return Leakage(
        nats=plain(num_steps * np.asarray(channel.nats)),
        dimension=channel.dimension,
        mode="paper_linear",
        **{**fields, "formula": "paper"},
    )


def mixed(
    covariance: Any,
    noise_covariances: Sequence[Any],
    uses: Sequence[int],
    *,
    label_nats: float,
    covariance_source: CovarianceSource,
    estimated_from: int | None = None,
) -> Leakage:
    """Joint nats of draws of different shapes: (1/2) ln det(I + covariance * sum uses_t
    noise_t^-1).

    Args:
      covariance: `[d, d]`. noise_covariances: each `[d, d]`, positive definite. uses: how often
        each was drawn.
      label_nats, covariance_source, estimated_from: as in `total` and `natural`.

    Raises:
      ValueError: an argument is out of range, or a noise covariance is singular.
    """
    cov = checked_covariance(covariance)
    _validate.non_negative(label_nats=label_nats)
    if len(noise_covariances) != len(uses):
        raise ValueError(
            f"Expected one number of uses per noise, got {len(uses)} for {len(noise_covariances)}."
        )
    precision = np.zeros_like(cov)
    for noise, count in zip(noise_covariances, uses, strict=True):
        _validate.non_negative_int(uses=count)
        noise = checked_covariance(noise)
        if noise.shape != cov.shape:
            raise ValueError(
                f"Expected noise_covariances of shape {cov.shape}, got shape {noise.shape}."
            )
        if np.linalg.eigvalsh(noise)[0] <= 0:
            raise ValueError(
                "Expected positive definite noise_covariances: a direction gets no noise."
            )
        precision += count * np.linalg.inv(noise)
    nats = 0.0
    if any(uses):
        nats = label_nats + float(
            _kernels.capacity(_kernels.precision_values(cov, (precision + precision.T) / 2), 0.0)
        )
    return Leakage(
        nats=nats,
        dimension=cov.shape[0],
        mode="joint",
        **proof(covariance_source, "joint capacity of draws of several shapes", estimated_from),
    )


def max_uses(
    channel: Channel, *, total_nats: float, label_nats: float, mode: CountMode = "joint"
) -> float:
    """How often a record may go through `channel` until `total_nats` are spent, to one part in 1e9;
    inf for "once".

    0 where one use is too many already; more than e^700 are given as so many.

    Raises:
      ValueError: an argument is out of range, or the channel has client axes.
      PrivacyPreconditionError: as in `after_uses`.
    """
    _one_client(channel)
    _validate.non_negative(total_nats=total_nats, label_nats=label_nats)
    _validate.one_of(["joint", "linear", "once"], mode=mode)
    _check_space(channel, mode)
    left = total_nats - label_nats
    if left < channel.nats * (1 - _ROUNDING):
        return 0
    if mode == "once" or channel.nats == 0:
        return math.inf
    if mode == "linear":
        log_uses = math.log(left) - math.log(channel.nats)
    else:
        log_uses = channel.log_noise_var - float(
            _kernels.solve(channel.values, left / channel.copies)
        )
    return math.floor(math.exp(min(log_uses, _MOST_LOG_USES)) * (1 + _ROUNDING))


def per_use(
    values: Any, *, total_nats: Any, uses: Any, mode: Literal["joint", "linear"] = "joint"
) -> Any:
    """The natural log noise variance per use with which `uses` uses spend `total_nats` (labels not
    counted).

    Args:
      values: `[..., d]`, eigenvalues. total_nats: `[...]`, > 0. uses: `[...]`, >= 1.
      mode: "joint" (uses times the variance of a single use of all nats), or "linear" (a share of
        nats for each).
    """
    _validate.one_of(["joint", "linear"], mode=mode)
    uses, total_nats = np.asarray(uses, np.float64), np.asarray(total_nats, np.float64)
    if not np.all((uses >= 1) & np.isfinite(uses)):
        raise ValueError(f"Expected uses >= 1 and finite, got uses={uses!r}.")
    if not np.all((total_nats > 0) & np.isfinite(total_nats)):
        raise ValueError(f"Expected total_nats > 0 and finite, got total_nats={total_nats!r}.")
    values = spectrum(values)
    if mode == "linear":
        return plain(_kernels.solve(values, total_nats / uses))
    return plain(np.log(uses) + np.asarray(_kernels.solve(values, total_nats)))


def paper_rounds(total_nats: float, nats: float) -> int:
    """The paper's number of steps for a budget: floor(total / kappa)."""
    _validate.positive(total_nats=total_nats, nats=nats)
    return math.floor(total_nats / nats)


def label_entropy(num_classes: int) -> float:
    """ln(num_classes): the most that a label can tell."""
    _validate.positive_int(num_classes=num_classes)
    return math.log(num_classes)


def _default_mode(exposure: Exposure, channel: Channel) -> CountMode:
    if exposure.noise == "once":
        return "once"
    return "joint" if channel.space == "data" else "linear"


def _check_space(channel: Channel, mode: str) -> None:
    if channel.space == "data" or mode in ("linear", "fresh"):
        return
    if mode == "once":
        raise PrivacyPreconditionError(
            "Expected fresh noise in parameter space: two uploads with one noise differ by the "
            "data alone, got 'once'."
        )
    raise PrivacyPreconditionError(
        "Expected mode='linear' in parameter space: an upload is no draw of one record."
    )


def _least_certain(spent: Channel | None, channel: Channel) -> Channel:
    """The channel of the two that is not certified, if one is not; raises unless their noises have
    one shape.

    Of uploads nothing but their nats is counted, so that they may differ in all but the records
    they are about.
    """
    if spent is None:
        return channel
    same = (spent.space, spent.dimension) == (channel.space, channel.dimension)
    if same and spent.space == "data":
        same = (spent.kind, spent.copies) == (channel.kind, channel.copies) and all(
            np.allclose(a, b, rtol=1e-9, atol=1e-9 * spent.values.max())
            for a, b in ((spent.values, channel.values), (spent.floor, channel.floor))
        )
        same = same and np.allclose(_log_form(spent), _log_form(channel), rtol=0, atol=1e-9)
    if not same:
        raise PrivacyPreconditionError(
            "Expected a channel of the noise shape that records went through, got a "
            f"{channel.kind!r} of {channel.dimension} coordinates for a {spent.kind!r} of "
            f"{spent.dimension}, or other values."
        )
    return channel if spent.certified else spent


def _log_form(channel: Channel) -> np.ndarray:
    """Logarithms of the noise variances of each direction at strength 1; `[1]` where they are all
    the same.
    """
    if channel.noise_values is None:
        return np.zeros(1)
    with np.errstate(divide="ignore"):
        return np.log(channel.noise_values) - np.asarray(channel.log_noise_var)


def _composed(channel: Channel, precision_sum: np.ndarray) -> np.ndarray:
    return channel.copies * _kernels.over_clients(_kernels.composed, channel.values, precision_sum)


def _one_client(channel: Channel) -> None:
    if np.ndim(channel.log_noise_var) != 0:
        raise ValueError(
            "Expected the channel of one client, got client axes "
            f"{np.shape(channel.log_noise_var)}."
        )
