"""From nats to the error that every reconstruction makes: lower bounds on the expected squared
error per coordinate.

They average over records and noise: one image may be recovered better. At equal nats and for
Gaussian records, theorem1 <= projected <= distortion_rate <= linear_error, and the last is what the
best attacker reaches.

Source: Tan et al. (2024), arXiv:2403.01268, Theorem 1; the others are in the docstrings of
  `fljax_kernels.spectral`.
"""

import dataclasses
import math
from typing import Any, get_args

import numpy as np

from fljax import _validate
from fljax.accounting.information import _kernels
from fljax.accounting.information.budget import after_uses
from fljax.accounting.information.channels import Channel, checked_covariance, spectrum
from fljax.accounting.information.results import (
    CovarianceSource,
    DataModel,
    ErrorBound,
    Leakage,
    inherit,
    plain,
    proof,
)
from fljax.errors import PrivacyPreconditionError

_NOT_GAUSSIAN = "a Gaussian has more entropy than the records may have: the bound may be too high"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entropy:
    """A differential entropy `nats` `[...]` of an object of `dimension` coordinates; `certified`:
    may be relied on.
    """

    nats: Any
    dimension: int
    certified: bool
    reason: str
    covariance_source: CovarianceSource


def gaussian_entropy(
    values: Any,
    *,
    data_model: DataModel,
    covariance_source: CovarianceSource,
    estimated_from: int | None = None,
) -> Entropy:
    """Entropy of a Gaussian with these eigenvalues: an *upper* bound on that of records, which
    theorem1 wants below.

    Args:
      values: `[..., d]`, eigenvalues of the covariance; a zero among them gives -inf.
      data_model: "gaussian" declares that records are Gaussian; with "unknown" the result is not
        certified.
      covariance_source, estimated_from: as in `natural`.
    """
    _validate.one_of(get_args(DataModel), data_model=data_model)
    values = spectrum(values)
    fields = proof(covariance_source, "records declared Gaussian", estimated_from)
    if data_model != "gaussian":
        fields |= {"certified": False, "reason": _NOT_GAUSSIAN}
    d = values.shape[-1]
    with np.errstate(divide="ignore"):
        nats = np.log(values).sum(-1) / 2 + d / 2 * math.log(2 * math.pi * math.e)
    return Entropy(nats=plain(nats), dimension=d, **fields)


def theorem1(leakage: Leakage, *, entropy: Any) -> ErrorBound:
    """exp(2 (h - I) / d) / (2 pi e): for every distribution of records that has entropy h.

    Args:
      leakage: I, with its dimension d.
      entropy: h, of the object of which `leakage` speaks. An `Entropy`; or a number `[...]`, which
        you vouch for. -inf (constant pixels, discrete or dependent coordinates) gives 0. It has no
        default: the entropy of real images is unknown, and a Gaussian one is not on the safe side.

    Raises:
      ValueError: a NaN, entropy = +inf, negative nats, or entropy and leakage of different
        dimensions.
    """
    holds, why = True, "Theorem 1, at the entropy given"
    if isinstance(entropy, Entropy):
        if entropy.dimension != leakage.dimension:
            raise ValueError(
                f"Expected an entropy of dimension {leakage.dimension}, got {entropy.dimension}."
            )
        holds, why = entropy.certified, why if entropy.certified else entropy.reason
        entropy = entropy.nats
    h, nats = np.asarray(entropy, np.float64), _nats(leakage)
    if np.any(np.isnan(h)) or np.any(h == np.inf):
        raise ValueError(f"Expected entropy to be a number or -inf, got entropy={entropy!r}.")
    mse = _kernels.mse_entropy_bound(h, nats, leakage.dimension)
    return ErrorBound(mse=plain(mse), leakage=leakage, **inherit(leakage, why, holds=holds))


def projected(leakage: Leakage, *, entropies: Any) -> ErrorBound:
    """Theorem 1 for projections of the record on k of its d directions, at the best k; for every
    distribution.

    Args:
      leakage: about the record.
      entropies: `[d]`, differential entropy of the projection on the first k of an orthonormal
        basis, k = 1..d; -inf where there is none. You vouch for them.
    """
    h, nats, d = np.asarray(entropies, np.float64), _nats(leakage), leakage.dimension
    if h.shape != (d,) or np.any(np.isnan(h)) or np.any(h == np.inf):
        raise ValueError(
            f"Expected entropies of shape ({d},), numbers or -inf, got entropies={entropies!r}."
        )
    k = np.arange(1, d + 1)
    levels = (2 * h - 2 * nats[..., None]) / k - math.log(2 * math.pi * math.e)
    return ErrorBound(
        mse=plain((k / d * np.exp(levels)).max(-1)),
        leakage=leakage,
        **inherit(leakage, "Theorem 1 on projections, at the entropies given"),
    )


def gaussian_projected(
    leakage: Leakage,
    values: Any,
    *,
    data_model: DataModel,
    covariance_source: CovarianceSource | None = None,
    estimated_from: int | None = None,
) -> ErrorBound:
    """`projected` with the entropies of a Gaussian on its largest eigenvalues; arguments as in
    `distortion_rate`.
    """
    mse = _kernels.over_clients(_kernels.mse_projected, _fitting(leakage, values), _nats(leakage))
    return _gaussian(
        leakage, mse, data_model, "Theorem 1 on projections", covariance_source, estimated_from
    )


def distortion_rate(
    leakage: Leakage,
    values: Any,
    *,
    data_model: DataModel,
    covariance_source: CovarianceSource | None = None,
    estimated_from: int | None = None,
) -> ErrorBound:
    """The least error at which a Gaussian record can be described in so many nats; the tightest of
    the three.

    Args:
      leakage: about the record.
      values: `[..., d]`, eigenvalues of its covariance, or smaller ones. A covariance that is only
        an upper bound, with a floor in it say, is safe for the noise but not here.
      data_model: "gaussian" declares records Gaussian. Else the bound is not certified.
      covariance_source: of `values`, where it is not that of the channel, as for `range_certified`;
        None: the same.
      estimated_from: goes with `covariance_source`, and means what it does in `natural`.
    """
    mse = _kernels.over_clients(
        _kernels.mse_distortion_rate, _fitting(leakage, values), _nats(leakage)
    )
    return _gaussian(
        leakage, mse, data_model, "rate distortion of a Gaussian", covariance_source, estimated_from
    )


def linear_error(
    channel: Channel,
    *,
    data_model: DataModel,
    uses: Any = 1,
    values: Any = None,
    covariance: Any = None,
    covariance_source: CovarianceSource | None = None,
    estimated_from: int | None = None,
) -> ErrorBound:
    """Error of the best linear estimator that sees `uses` noisy copies of a record itself, and its
    noise's law.

    For Gaussian records no estimator does better, so a data-space channel leaves this error at
    least to whoever sees less. It speaks of noisy records alone: what a label tells beside them is
    not in it.

    Args:
      channel: in data space.
      data_model: "gaussian" declares records Gaussian; else other estimators may do better, and it
        is not certified.
      uses: `[...]`, > 0, independent draws.
      values: `[..., d]`, eigenvalues of the records' covariance, in the order that the channel was
        made with; or
      covariance: `[d, d]`, for noise that is independent by coordinate: natural, range,
        personalized.
      covariance_source, estimated_from: as in `distortion_rate`.

    Raises:
      ValueError: an argument is out of range; not just one of `values`, `covariance`.
      PrivacyPreconditionError: a channel in parameter space.
    """
    if channel.space != "data":
        raise PrivacyPreconditionError(
            "Expected a channel in data space: an upload is no noisy record."
        )
    if (values is None) == (covariance is None):
        raise ValueError("Expected one of values, covariance.")
    uses = np.asarray(uses, np.float64)
    if not np.all((uses > 0) & np.isfinite(uses)):
        raise ValueError(f"Expected uses > 0 and finite, got uses={uses!r}.")
    leakage = after_uses(channel, uses, label_nats=0.0)
    if values is not None:
        if channel.kind == "personalized":
            raise ValueError("Expected covariance, not values, for a personalized channel.")
        values = spectrum(values)
        noise = channel.noise_values
        if noise is None:
            noise = np.exp(np.asarray(channel.log_noise_var))[..., None]

        def error(values: np.ndarray, uses: np.ndarray) -> Any:
            of_mean = noise / uses[..., None]
            return _kernels.mse_linear(
                values, np.broadcast_to(of_mean, np.broadcast_shapes(values.shape, of_mean.shape))
            )

        mse = _kernels.over_clients(error, values, uses) if noise.ndim == 1 else error(values, uses)
    else:
        if (
            channel.kind not in ("natural", "range", "personalized")
            or uses.ndim
            or np.ndim(channel.log_noise_var)
        ):
            raise ValueError(
                f"Expected values, not covariance, for this channel of kind {channel.kind!r}."
            )
        cov = checked_covariance(covariance)
        noise = np.asarray(
            math.exp(channel.log_noise_var)
            if channel.noise_values is None
            else channel.noise_values
        )
        seen = cov + np.diag(np.broadcast_to(noise / uses, cov.shape[0]))
        mse = np.trace(cov - cov @ np.linalg.solve(seen, cov)) / cov.shape[0]
    why = "the conditional mean of a Gaussian is linear"
    return _gaussian(leakage, mse, data_model, why, covariance_source, estimated_from)


def _gaussian(
    leakage: Leakage,
    mse: Any,
    data_model: DataModel,
    why: str,
    covariance_source: CovarianceSource | None,
    estimated_from: int | None,
) -> ErrorBound:
    _validate.one_of(get_args(DataModel), data_model=data_model)
    holds = data_model == "gaussian"
    if not holds:
        why = "it is a bound for Gaussian records only, and records were not declared Gaussian"
    fields = inherit(leakage, why, holds=holds)
    if covariance_source is None and estimated_from is not None:
        raise ValueError(
            "Expected estimated_from with a covariance_source, got "
            f"estimated_from={estimated_from!r}."
        )
    if covariance_source is not None and leakage.covariance_source != "private":
        known = proof(covariance_source, fields["reason"], estimated_from)
        fields |= known | {"certified": known["certified"] and fields["certified"]}
    return ErrorBound(mse=plain(mse), leakage=leakage, **fields)


def _fitting(leakage: Leakage, values: Any) -> np.ndarray:
    values = spectrum(values)
    if values.shape[-1] != leakage.dimension:
        raise ValueError(
            f"Expected {leakage.dimension} eigenvalues, got values of shape {values.shape}."
        )
    if leakage.target != "record":
        raise ValueError(f"Expected leakage about a record, got target={leakage.target!r}.")
    return values


def _nats(leakage: Leakage) -> np.ndarray:
    nats = np.asarray(leakage.nats, np.float64)
    if not np.all(nats >= 0):
        raise ValueError(f"Expected nats >= 0, got nats={leakage.nats!r}.")
    return nats
