"""Noise for a budget of nats per use: the channels of the paper and three more, solved and checked
on the host.

What the attacker sees of a record D is D + noise, or less, so no attack on what is sent gets more
than the capacity of that channel, whatever server, model and number of local steps. Conditions of
every certificate here: each quantity that leaves the client or steers training is computed from
noisy records (statistics of normalisation layers, losses, early stopping too); the noise does not
depend on the records, so neither may the covariance it is made from.

Source: Tan et al. (2024), arXiv:2403.01268, sections 4.2-4.4.
"""

import dataclasses
import math
from typing import Any, Literal

import numpy as np

from fljax import _validate
from fljax.accounting.information import _kernels
from fljax.accounting.information.results import (
    Claim,
    CovarianceSource,
    Leakage,
    check_source,
    inherit,
    plain,
    positive_array,
    proof,
)
from fljax.errors import PrivacyPreconditionError

# Below, exp(log_noise_var) is no normal float32, which is what noise is drawn in.
LOG_TINY = math.log(np.finfo(np.float32).tiny)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Channel(Claim):
    """A noise shape with its strength: one use tells (copies / 2) sum ln(1 + values / noise_var)
    nats at most.

    Attributes:
      kind: which function made it.
      values: `[..., r]`, eigenvalues of the data's covariance relative to the noise's shape.
      copies: how many directions stand behind each value; for noise on an upload, its parameters.
      log_noise_var: `[...]`, the factor of the noise's shape, as a natural logarithm.
      nats: `[...]`, per use.
      dimension: coordinates of a record, also where the noise is on an upload.
      noise_values: `[..., d]`, noise variances per direction of the shape, where they are not all
        the same; else None.
      floor: `[...]`, variance that a white shape was lifted by in every direction.
      space: "data", or "parameters" for noise on an upload: its uses add up linearly only.
    """

    kind: str
    values: np.ndarray
    log_noise_var: Any
    nats: Any
    dimension: int
    copies: int = 1
    noise_values: np.ndarray | None = None
    floor: Any = 0.0
    space: Literal["data", "parameters"] = "data"

    @property
    def noise_var(self) -> Any:
        """`[...]`, exp(log_noise_var).

        Raises:
          PrivacyPreconditionError: it underflows in float32: the noise would be drawn as zeros. Ask
            for fewer nats.
        """
        if np.any(np.asarray(self.log_noise_var) < LOG_TINY):
            raise PrivacyPreconditionError(
                "Expected a noise variance that float32 can hold, log_noise_var >= "
                f"{LOG_TINY:.1f}, got log_noise_var={self.log_noise_var!r}."
            )
        return plain(np.exp(self.log_noise_var))

    def one_use(self) -> Leakage:
        """The nats of a single use, as a claim."""
        return Leakage(
            nats=self.nats, dimension=self.dimension, mode="one_use", **inherit(self, self.reason)
        )


def natural(
    values: Any,
    *,
    nats: Any,
    covariance_source: CovarianceSource,
    estimated_from: int | None = None,
) -> Channel:
    """Equal noise in every coordinate: capacity(values, noise_var) = nats (Eq. 18).

    Args:
      values: `[..., d]`, eigenvalues of the covariance of a record, clients first; or of any
        covariance above it.
      nats: `[...]` or a number, per record and use. > 0.
      covariance_source: where the covariance comes from.
      estimated_from: how many public records the covariance was estimated from, if it was: then
        nothing is certified, unless covariance_source is "declared".

    Returns:
      A Channel of kind "natural": add noise_var * I.

    Raises:
      ValueError: an argument is out of range, or a spectrum is all zero.
    """
    values = spectrum(values)
    log_noise_var, nats = _solved(values, nats)
    return Channel(
        kind="natural",
        values=values,
        log_noise_var=log_noise_var,
        nats=nats,
        dimension=values.shape[-1],
        **proof(covariance_source, "capacity of the data-space channel", estimated_from),
    )


def white(
    values: Any,
    *,
    nats: Any,
    covariance_source: CovarianceSource,
    floor: float | None = None,
    estimated_from: int | None = None,
) -> Channel:
    """Noise of the covariance's own shape: the same signal-to-noise ratio everywhere (Eq. 19).

    A direction without variance would get no noise, and a later record with energy there would be
    sent in clear, so the shape is lifted by `floor`: covariance + floor * I, which the noise must
    be drawn with.

    Args:
      values: `[..., d]`, eigenvalues of the covariance. nats: `[...]` or a number, > 0.
      floor: `[...]` or a number >= 0, variance added in every direction; None takes 1e-4 of the
        mean eigenvalue.
      covariance_source, estimated_from: as in `natural`.

    Returns:
      A Channel of kind "white": add noise_var * (covariance + its floor * I), noise_var = 1 /
      expm1(2 nats / d).

    Raises:
      ValueError: as `natural`.
      PrivacyPreconditionError: floor = 0 and a direction has no variance.
    """
    values = spectrum(values)
    mean = values.mean(-1)
    lift = (
        1e-4 * mean if floor is None else np.broadcast_to(np.asarray(floor, np.float64), mean.shape)
    )
    if not np.all((lift >= 0) & np.isfinite(lift)):
        raise ValueError(f"Expected floor >= 0 and finite, got floor={floor!r}.")
    d = values.shape[-1]
    flat = (values <= d * np.finfo(np.float64).eps * values.max(-1, keepdims=True)).any(-1)
    if np.any(flat & (lift == 0)):
        raise PrivacyPreconditionError(
            "Expected floor > 0 where a direction has no variance, else it gets no noise, got "
            "floor=0."
        )
    nats = _budget(nats, mean.shape)
    log_noise_var = plain(-_kernels.log_expm1(2 * nats / d))
    shape = values + lift[..., None]
    return Channel(
        kind="white",
        values=np.ones((*mean.shape, 1)),
        copies=d,
        log_noise_var=log_noise_var,
        nats=plain(nats),
        dimension=d,
        noise_values=shape * np.exp(np.asarray(log_noise_var))[..., None],
        floor=plain(lift),
        **proof(
            covariance_source,
            "capacity of the data-space channel, counted for the lifted covariance",
            estimated_from,
        ),
    )


def personalized(
    covariance: Any,
    weights: Any,
    *,
    nats: float,
    covariance_source: CovarianceSource,
    method: Literal["exact", "theorem3"] = "exact",
    estimated_from: int | None = None,
) -> Channel:
    """Noise of variances noise_var * weights: more where a coordinate is to be protected more (Eq.
    20, corrected).

    Args:
      covariance: `[d, d]`, of a record. weights: `[d]`, > 0; larger means more noise. nats: > 0.
      covariance_source, estimated_from: as in `natural`.
      method: "exact", one eigenvalue problem; "theorem3", the paper's bound with its errata mended,
        which adds more noise than needed and wants a positive definite covariance.

    Returns:
      A Channel of kind "personalized". Its `nats` is the exact capacity, below the budget for
      "theorem3".

    Raises:
      ValueError: an argument is out of range, or the covariance is not one.
      PrivacyPreconditionError: "theorem3" and the covariance is singular.
    """
    cov = checked_covariance(covariance)
    weights = np.asarray(weights, np.float64)
    if weights.shape != cov.shape[:1]:
        raise ValueError(f"Expected weights of shape {cov.shape[:1]}, got shape {weights.shape}.")
    positive_array(weights=weights)
    _validate.positive(nats=nats)
    _validate.one_of(["exact", "theorem3"], method=method)
    values = np.asarray(_kernels.personalized(cov, weights))
    if method == "exact":
        log_noise_var = float(_kernels.solve(values, nats))
    else:
        log_noise_var = float(_kernels.solve_hadamard(cov, weights, nats))
        if not math.isfinite(log_noise_var):
            raise PrivacyPreconditionError(
                "Expected a positive definite covariance for method='theorem3': add a floor."
            )
    return Channel(
        kind="personalized",
        values=values,
        log_noise_var=log_noise_var,
        nats=plain(_kernels.capacity(values, log_noise_var)),
        dimension=cov.shape[0],
        noise_values=weights * math.exp(log_noise_var),
        **proof(covariance_source, "capacity of the data-space channel", estimated_from),
    )


def range_certified(low: float, high: float, *, dimension: int, nats: float) -> Channel:
    """Noise that needs nothing but the range of a coordinate: no variance in [low, high] exceeds
    (high - low)^2 / 4.

    Args:
      low, high: least and greatest value, enforced by clamping *before* the noise. dimension: d.
        nats: > 0.

    Returns:
      A Channel of kind "range": add noise_var * I. Certified for any distribution of records.

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.positive_int(dimension=dimension)
    _validate.positive(nats=nats)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"Expected low < high, both finite, got low={low!r}, high={high!r}.")
    variance = (high - low) ** 2 / 4
    return Channel(
        kind="range",
        values=np.array([variance]),
        copies=dimension,
        log_noise_var=math.log(variance) - float(_kernels.log_expm1(2 * nats / dimension)),
        nats=float(nats),
        dimension=dimension,
        **proof("public", "greatest variance that the range allows, and Hadamard's inequality"),
    )


def min_power(
    values: Any,
    *,
    nats: Any,
    covariance_source: CovarianceSource,
    estimated_from: int | None = None,
) -> Channel:
    """Least total noise variance for the budget, different in each eigendirection.

    Args:
      values, nats, covariance_source, estimated_from: as in `natural`; every direction needs
        variance, else add a floor to `values` (the result then holds for the lifted covariance,
        which is above the true one).

    Returns:
      A Channel of kind "min_power": add noise of variances `noise_values` along the eigenvectors;
      log_noise_var is 0.

    Raises:
      ValueError: as `natural`.
      PrivacyPreconditionError: a direction has no variance.
    """
    values = spectrum(values)
    if np.any(
        values <= values.shape[-1] * np.finfo(np.float64).eps * values.max(-1, keepdims=True)
    ):
        raise PrivacyPreconditionError(
            "Expected values > 0: a direction without variance would get no noise."
        )
    nats = _budget(nats, values.shape[:-1])
    noise = np.asarray(_kernels.min_power(values, nats))
    if np.any(noise < np.finfo(np.float32).tiny):
        raise PrivacyPreconditionError(
            "Expected noise variances that float32 can hold: ask for fewer nats."
        )
    return Channel(
        kind="min_power",
        values=values / noise,
        log_noise_var=plain(np.zeros(values.shape[:-1])),
        nats=plain(nats),
        dimension=values.shape[-1],
        noise_values=noise,
        **proof(covariance_source, "capacity of the data-space channel", estimated_from),
    )


def clipped_upload(
    *,
    l2_clip_norm: float,
    num_params: int,
    record_dimension: int,
    nats: float,
    num_local_steps: int = 1,
    learning_rate: float | None = None,
    space: Literal["gradient", "params"] = "params",
) -> Channel:
    """Noise on an upload whose covariance has a trace that clipping proves: no estimate, under any
    history.

    The mean of clipped gradients has a covariance of trace <= l2_clip_norm^2 whatever the records
    and their dependence; `num_local_steps` steps of plain SGD move the parameters by at most that
    norm times steps times learning rate. Momentum, Adam and weight decay are not plain SGD.

    Args:
      l2_clip_norm: S, bound on each example's gradient. num_params: K. nats: > 0, per upload.
      record_dimension: d, coordinates of a record, which the error bounds divide by; the noise does
        not depend on it.
      num_local_steps, learning_rate: E and eta; the latter is needed when space = "params".
      space: what the noise is added to: the gradient (E = 1 only), or the parameters that are sent.

    Returns:
      A Channel of kind "clipped" in the space "parameters": add noise_var * I to the upload, fresh
      each time.

    Raises:
      ValueError: an argument is out of range.
      PrivacyPreconditionError: several local steps with space = "gradient".
    """
    _validate.positive(l2_clip_norm=l2_clip_norm, nats=nats)
    _validate.positive_int(
        num_params=num_params, record_dimension=record_dimension, num_local_steps=num_local_steps
    )
    _validate.one_of(["gradient", "params"], space=space)
    reach = l2_clip_norm
    if space == "params":
        _validate.positive(learning_rate=learning_rate)
        reach *= num_local_steps * float(learning_rate or 0)
    elif num_local_steps > 1:
        raise PrivacyPreconditionError(
            f"Expected space='params' for {num_local_steps} local steps, got 'gradient'."
        )
    variance = reach**2 / num_params
    return Channel(
        kind="clipped",
        values=np.array([variance]),
        copies=num_params,
        log_noise_var=math.log(variance) - float(_kernels.log_expm1(2 * nats / num_params)),
        nats=float(nats),
        dimension=record_dimension,
        space="parameters",
        **proof("public", "the trace that clipping allows, under any posterior"),
    )


def without_noise(values: Any, *, covariance_source: CovarianceSource) -> Channel:
    """Records sent, or trained on, as they are: infinite nats if any direction varies (Eq. 10)."""
    values = np.asarray(values, np.float64)
    if not np.all(values >= -1e-6 * np.abs(values).max(-1, keepdims=True)):
        raise ValueError(f"Expected values >= 0, got values={values!r}.")
    check_source(covariance_source)
    shape = values.shape[:-1]
    return Channel(
        kind="none",
        values=values,
        log_noise_var=plain(np.full(shape, -np.inf)),
        nats=plain(np.where((values > 0).any(-1), np.inf, 0.0)),
        dimension=values.shape[-1],
        **proof(covariance_source, "a continuous record sent without noise"),
    )


def spectrum(values: Any) -> np.ndarray:
    """`[..., d]` eigenvalues as float64, with what rounding left below 0 set to 0.

    Raises:
      ValueError: not finite, below -1e-6 of the largest, or all zero.
    """
    values = np.asarray(values, np.float64)
    if values.ndim < 1 or values.shape[-1] < 1:
        raise ValueError(f"Expected values of shape [..., d], d >= 1, got shape {values.shape}.")
    if not np.all(np.isfinite(values)):
        raise ValueError("Expected finite eigenvalues, got NaN or an infinity among values.")
    top = values.max(-1, keepdims=True)
    if np.any(values < -1e-6 * np.abs(top)) or np.any(top < 0):
        raise ValueError(
            f"Expected a positive semidefinite covariance, got the eigenvalue {values.min():g}."
        )
    if np.any(top == 0):
        raise ValueError(
            "Expected a covariance that is not all zero: its capacity is 0 whatever the noise."
        )
    return np.maximum(values, 0)


def checked_covariance(covariance: Any) -> np.ndarray:
    """`[d, d]` as float64, symmetric.

    Raises:
      ValueError: not square, not finite, not symmetric to 1e-6 of its largest entry, or as
        `spectrum`.
    """
    cov = np.asarray(covariance, np.float64)
    if cov.ndim != 2 or cov.shape[0] != cov.shape[1] or cov.shape[0] < 1:
        raise ValueError(f"Expected a covariance of shape [d, d], got shape {cov.shape}.")
    if not np.all(np.isfinite(cov)):
        raise ValueError("Expected a finite covariance, got NaN or an infinity in it.")
    if np.abs(cov - cov.T).max() > 1e-6 * np.abs(cov).max():
        raise ValueError("Expected a symmetric covariance.")
    cov = (cov + cov.T) / 2
    spectrum(np.linalg.eigvalsh(cov))
    return cov


def _budget(nats: Any, shape: tuple[int, ...]) -> np.ndarray:
    positive_array(nats=nats)
    return np.broadcast_to(np.asarray(nats, np.float64), shape)


def _solved(values: np.ndarray, nats: Any) -> tuple[Any, Any]:
    nats = _budget(nats, values.shape[:-1])
    return plain(_kernels.solve(values, nats)), plain(nats)
