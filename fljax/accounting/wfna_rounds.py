"""Which of the six combinations of sampling and noise is private, and what rounds of it cost.

The default answers are sound. `formula="paper"` gives what Table 1 and Theorem 4 print where that is sound as well, and
`composition="kov"` the composition behind the paper's Figure 5: valid, and much looser than Renyi composition.

Source: Zhang et al. (2024), arXiv:2405.04551, Table 1, Theorems 2 to 4 and section 6.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting import accountant, conversion, events, gaussian, kov, sampled_pld, wfna
from fljax.accounting.events import NeighboringRelation, PrivacyEvent
from fljax.errors import NoGuaranteeError, PrivacyPreconditionError, UnsupportedEventError

Sampling = Literal["subset", "none", "gaussian"]
Noise = Literal["isotropic", "water_filling"]
Formula = Literal["sound", "paper"]
Composition = Literal["rdp", "pld", "kov"]
_SCAN, _NEAR, _ZOOMS = 400, 41, 9
_LEAST, _MOST = 1e-5, 1e8  # orders less 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """One round of secure summation.

    Attributes:
      num_clients: N, honest clients whose noise reaches the sum, the protected one included; subtract those that may
        drop out or collude.
      num_records: D, of each client.
      batch_size: B; with Gaussian weights any number > 0.
      l2_clip_norm: C, of one record's gradient.
      noise_stddev: of one client, in gradient units; the floor of water filling.
    """

    num_clients: int
    num_records: int
    batch_size: float
    l2_clip_norm: float
    noise_stddev: float

    def __post_init__(self) -> None:
        _validate.positive_int(num_clients=self.num_clients, num_records=self.num_records)
        _validate.positive(batch_size=self.batch_size, l2_clip_norm=self.l2_clip_norm, noise_stddev=self.noise_stddev)

    @property
    def floor(self) -> float:
        """Least variance of the noise in the sum."""
        return self.num_clients * self.noise_stddev**2

    @property
    def _weighted(self) -> dict[str, float]:
        return {
            "floor": self.floor,
            "l2_clip_norm": self.l2_clip_norm,
            "num_records": float(self.num_records),
            "batch_size": float(self.batch_size),
        }


class Curve(NamedTuple):
    """Renyi curve of one round with what may be said of it.

    Attributes:
      divergence: orders `[K]` -> nats `[K]`.
      largest_order: from here on the divergence is infinite.
      scope: "uniform": for every data set. "instance": for one data set; no privacy claim, and itself private.
      reason: what proves it.
    """

    divergence: Callable[[Any], Any]
    largest_order: float
    scope: Literal["uniform", "instance"]
    reason: str


def curve(
    sampling: Sampling,
    noise: Noise,
    setup: Setup,
    *,
    formula: Formula = "sound",
    protocol: Literal["fedsgd", "fedavg"] = "fedsgd",
) -> Curve:
    """Renyi curve of one round of one cell of Table 1.

    Args:
      sampling: "subset" (B of D records without replacement), "none" (all records) or "gaussian" (Gaussian weights).
      noise: "isotropic" or "water_filling".
      setup: sizes and noise.
      formula: "paper" for `wfna.isotropic_printed` and `wfna.theorem_4`. For subsets the unsampled curve, to be
        amplified after conversion (`amplify`); the sound one needs no curve here: `epsilon` accounts sampling exactly.
      protocol: "fedavg" is refused: several local steps are not Gaussian, and no theorem holds.

    Raises:
      NoGuaranteeError: a cell without any guarantee.
    """
    _check_cell(sampling, noise, formula, protocol)
    c, d = setup.l2_clip_norm, setup.num_records
    if sampling != "gaussian":
        # A replaced record moves a mean over B records by 2 C / B.
        divisor = float(setup.batch_size) if sampling == "subset" else float(d)
        fun = functools.partial(wfna.unsampled, floor=setup.floor, l2_clip_norm=c, num_records=divisor)
        return Curve(fun, math.inf, "uniform", "Gaussian mechanism, exact")
    lifted = noise == "water_filling"
    weighted = setup._weighted
    top = wfna.largest_order(**weighted, lifted=lifted)
    joint = functools.partial(wfna.joint, **weighted, lifted=lifted)
    if lifted:
        if formula == "paper":
            printed = functools.partial(wfna.theorem_4, **weighted)
            return Curve(printed, (top - 1) / math.sqrt(2), "uniform", "Theorem 4; its proof mended by the joint bound")
        return Curve(joint, top, "uniform", "joint bound, Frobenius change of the lift")
    printed = functools.partial(wfna.isotropic_printed, **weighted)
    if formula == "paper":
        return Curve(printed, top - 1, "uniform", "Table 1, Gaussian weights with isotropic noise")
    return Curve(lambda orders: np.minimum(joint(orders), printed(orders)), top, "uniform", "joint bound or Table 1")


def _check_cell(sampling: str, noise: str, formula: str, protocol: str) -> None:
    _validate.one_of(["subset", "none", "gaussian"], sampling=sampling)
    _validate.one_of(["isotropic", "water_filling"], noise=noise)
    _validate.one_of(["sound", "paper"], formula=formula)
    _validate.one_of(["fedsgd", "fedavg"], protocol=protocol)
    if protocol == "fedavg":
        raise NoGuaranteeError(
            'Expected protocol="fedsgd": several local steps are not Gaussian and no theorem covers them, '
            'got protocol="fedavg". Clip the whole update, add isotropic noise, use wfna.clipped_update.'
        )
    if noise == "water_filling" and sampling != "gaussian":
        raise NoGuaranteeError(
            'Expected sampling="gaussian" with noise="water_filling": in directions above the floor nothing is added, '
            f"got sampling={sampling!r}."
        )


def noiseless(
    *,
    least_eigenvalues: Any,
    l2_clip_norm: float,
    num_records: int,
    batch_size: float,
    scope: Literal["uniform", "instance"],
    formula: Formula = "sound",
    subspace_dimension: int | None = None,
    subspace_is_public: bool = False,
) -> Curve:
    """Renyi curve of Gaussian-weighted sums without added noise: Theorems 2 and 3.

    Args:
      least_eigenvalues: `[N]`, least eigenvalue of sum_j g_j g_j^T / D of each client; in a subspace, of the
        coordinates there. See `span.least_eigenvalue`.
      l2_clip_norm, num_records, batch_size: C, D, B.
      scope: "uniform" if these are lower bounds for EVERY data set, else "instance".
      formula: "paper" for the printed bound alone; "sound" takes the smaller of it and the joint bound. Both are sound.
      subspace_dimension: K* of Theorem 3; None: the gradients span everything.
      subspace_is_public: the subspace does not depend on private data and holds the gradient of every admissible
        record. A subspace found from the data does not qualify.

    Raises:
      NoGuaranteeError: a subspace that is not public.
      PrivacyPreconditionError: an eigenvalue that is not positive, or too small a sum: C^2 / D >= L.
    """
    _validate.positive(l2_clip_norm=l2_clip_norm, batch_size=batch_size)
    _validate.positive_int(num_records=num_records)
    _validate.one_of(["uniform", "instance"], scope=scope)
    _validate.one_of(["sound", "paper"], formula=formula)
    values = np.atleast_1d(np.asarray(least_eigenvalues, np.float64))
    if subspace_dimension is not None:
        _validate.positive_int(subspace_dimension=subspace_dimension)
        if not subspace_is_public:
            raise NoGuaranteeError(
                "Expected subspace_is_public=True for Theorem 3: a subspace found from private gradients tells of "
                "them, got subspace_is_public=False."
            )
        if subspace_dimension > num_records:
            raise PrivacyPreconditionError(
                f"Expected subspace_dimension <= num_records={num_records}, else no client's gradients span it, "
                f"got subspace_dimension={subspace_dimension}."
            )
    if not np.all(values > 0):
        raise PrivacyPreconditionError(
            f"Expected least_eigenvalues > 0: every client's gradients must span all directions, got {values.min()!r}."
        )
    total = float(values.sum())
    if not l2_clip_norm**2 / num_records < total:
        raise PrivacyPreconditionError(
            f"Expected sum of least_eigenvalues > l2_clip_norm^2 / num_records = {l2_clip_norm**2 / num_records:.6g}, "
            f"got {total:.6g}: the divergence is infinite at every order."
        )
    sizes = {"l2_clip_norm": l2_clip_norm, "num_records": float(num_records), "batch_size": float(batch_size)}
    printed = functools.partial(wfna.theorem_2, least_eigenvalue=total, **sizes)
    top = num_records * total / l2_clip_norm**2
    if formula == "paper":
        return Curve(printed, top, scope, "Theorem 2")
    joint = functools.partial(wfna.joint, floor=total / batch_size, **sizes, instance=scope == "instance")
    top = max(top, top + (scope == "uniform"))
    return Curve(lambda orders: np.minimum(joint(orders), printed(orders)), top, scope, "joint bound or Theorem 2")


def amplify(epsilon: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """(log(1 + rate (e^epsilon - 1)), rate delta): subsampling without replacement, one record replaced."""
    _validate.non_negative(epsilon=epsilon, delta=delta)
    _validate.probability(sampling_rate=sampling_rate)
    # log(1 - rate + rate e^eps), without overflow.
    grown = epsilon + math.log1p((1 - sampling_rate) / sampling_rate * math.exp(-epsilon)) + math.log(sampling_rate)
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
            'Expected a curve of scope="uniform", got scope="instance": what holds for one data set is no differential '
            "privacy, does not compose, and may not be published."
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
            f"Expected batch_size to be a whole number up to num_records={setup.num_records} for subsets, "
            f"got batch_size={setup.batch_size!r}."
        )
    return events.Gaussian(math.sqrt(setup.floor) * size / (2 * setup.l2_clip_norm))


def event(setup: Setup) -> PrivacyEvent:
    """One round of SGD-DP (subsets, isotropic noise): Gaussian noise on a sample without replacement, REPLACE_ONE."""
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
      composition: "rdp". "pld": by privacy-loss distributions, about half as much for subsets, exact without sampling;
        unknown for Gaussian weights. "kov" converts every round at delta / (2 num_rounds), by the paper's conversion,
        and composes with slack delta / 2; for subsets it amplifies in between, leaving its gain in delta unspent.

    Raises:
      NoGuaranteeError: a cell of Table 1 without any guarantee.
      ValueError: a number out of range.
    """
    _validate.one_of(["rdp", "pld", "kov"], composition=composition)
    _validate.positive_int(num_rounds=num_rounds)
    _validate.open_unit(delta=delta)
    _check_cell(sampling, noise, formula, "fedsgd")
    if composition == "pld":
        return _by_losses(sampling, setup, num_rounds, delta)
    if composition == "rdp":
        if sampling == "subset":
            if formula == "paper":
                raise NoGuaranteeError(
                    'Expected composition="kov" with formula="paper" for subsets: amplification by sampling is '
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
        return sampled_pld.epsilon(noise, setup.batch_size / setup.num_records, num_rounds, delta)
    if sampling == "none":
        mu = 2 * setup.l2_clip_norm / setup.num_records * math.sqrt(num_rounds / setup.floor)
        return float(gaussian.mu_to_epsilon(mu, delta))
    raise UnsupportedEventError(
        'Expected composition="rdp" or "kov" with sampling="gaussian": no dominating pair of Gaussians is known for '
        'its data-dependent covariance, got composition="pld".'
    )


def calibrate(
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
    """Least noise_stddev per client with `epsilon` at most `target_epsilon`; the search starts at that of `setup`.

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

    good = bad = setup.noise_stddev
    for _ in range(60):
        if cost(good) <= target_epsilon:
            break
        good, bad = 4 * good, good
    else:
        raise PrivacyPreconditionError(f"Expected a noise_stddev with epsilon <= {target_epsilon!r}, found none.")
    while bad >= good:
        bad = good / 4 if bad == good else bad
        if cost(bad) <= target_epsilon:
            good = bad
    while good > bad * (1 + tolerance):
        middle = math.sqrt(good * bad)
        if cost(middle) <= target_epsilon:
            good = middle
        else:
            bad = middle
    return good
