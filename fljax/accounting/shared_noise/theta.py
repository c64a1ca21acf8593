"""What pair noise on a graph gives in the joint view, in the numbers of the bidirectional scheme and of GOPA.

A round of uploads x_k + eta_k + sum_v Delta_kv, Gaussian, is exactly mu-GDP with mu^2 = S^2 theta, theta the largest
diagonal entry of the inverse covariance sigma_Delta^2 Laplacian + sigma_eta^2 I, and S how far one neighbour moves an
upload. It holds for a server that knows its multipliers, since they do not depend on the round's data, if everything
that is sent carries the noise. It is no local DP: with all others colluding theta is 1 / sigma_eta^2.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure Bidirectional
Privacy-Preservation in Federated Learning", Theorems 10 and 11 and equation (23), after Sabater, Bellet, Ramon, "An
Accurate, Scalable and Verifiable Protocol for Federated Differentially Private Averaging", arXiv:2006.07218.
"""

import math
import warnings
from typing import Any, Literal

import numpy as np

from fljax import _validate
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise.graph import PairGraph
from fljax.errors import NoGuaranteeError, PrivacyPreconditionError
from fljax_kernels.pair_noise import graphs

Unit = Literal["client_addremove", "client_replace", "record_replace"]
NOISE_MODES = ("paper", "upload_gaussian", "r0_gaussian", "oracle_clip")
WITHOUT_GUARANTEE = {
    "paper": "the server knows its multipliers; given them the noise is uniform, hence bounded, and one coordinate "
    "moved by d gives itself away with chance d / (2 sqrt(2) sigma R), whatever epsilon; Psi and Phi carry no noise",
    "oracle_clip": "no client can clip a gradient that only the server can recover; Psi and Phi carry no noise",
}


def sensitivity(unit: Unit, l2_clip_norm: float, batch_size: int = 1) -> float:
    """How far one neighbour moves an upload, S.

    Args:
      unit: a client's data against none, or against any others; or one record against another, in a mean over the
        constant `batch_size` of records clipped one by one.
      l2_clip_norm: of an upload, or of a record's part of it.
      batch_size: records in a batch, for "record_replace".
    """
    _validate.one_of(("client_addremove", "client_replace", "record_replace"), unit=unit)
    _validate.positive(l2_clip_norm=l2_clip_norm)
    _validate.positive_int(batch_size=batch_size)
    return {
        "client_addremove": l2_clip_norm,
        "client_replace": 2 * l2_clip_norm,
        "record_replace": 2 * l2_clip_norm / batch_size,
    }[unit]


def theta(edges: Any, num_clients: int, own_stddev: float, pair_stddev: float, *, colluders: Any = None) -> float:
    """The exact theta of the worst placed honest client.

    Args:
      edges: `[E, 2]` pairs of clients, each once, in either order; any graph, connected or not.
      num_clients: K.
      own_stddev, pair_stddev: sigma_eta, sigma_Delta >= 0, absolute.
      colluders: bool `[K]`, who pools what it knows with the server; None: nobody.

    Returns:
      mu^2 of a round for sensitivity 1; infinite where nothing hides some client.

    Raises:
      ValueError: an argument out of range, a loop, a pair given twice, or nobody honest: there is no one to protect.
    """
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative(own_stddev=own_stddev, pair_stddev=pair_stddev)
    edges = graphs.checked_pairs(edges, num_clients)
    if colluders is not None:
        view.check_mask(num_clients, colluders=colluders)
        if np.all(colluders):
            raise ValueError(f"Expected an honest client, got colluders with all {num_clients} clients.")
    graph = PairGraph(np.full(num_clients, own_stddev**2), edges, np.full(len(edges), pair_stddev**2))
    return float(np.nanmax(view.exact_mu(graph, colluders=colluders)) ** 2)


def complete_theta(num_clients: int, own_stddev: Any, pair_stddev: Any) -> np.ndarray:
    """`theta` of the complete graph, in closed form; arrays broadcast."""
    _validate.positive_int(num_clients=num_clients)
    _validate.each(_validate.non_negative, own_stddev=own_stddev, pair_stddev=pair_stddev)
    own, pair = np.asarray(own_stddev, np.float64) ** 2, np.asarray(pair_stddev, np.float64) ** 2
    return np.asarray(view.complete_mu(own, pair, num_seen=num_clients)) ** 2


def theorem_10(num_clients: int, own_stddev: float, pair_stddev: float, *, formula: str = "sound") -> float:
    """An upper bound on `complete_theta`.

    Args:
      num_clients: K. own_stddev, pair_stddev: > 0.
      formula: "sound"; or "paper", which forgets to square the standard deviations, hence too small below 1.
    """
    _validate.one_of(("sound", "paper"), formula=formula)
    _validate.positive(own_stddev=own_stddev, pair_stddev=pair_stddev)
    _validate.positive_int(num_clients=num_clients)
    if formula == "paper":
        warnings.warn("Theorem 10 as printed lacks squares: it is too small for noise below 1.", stacklevel=2)
        return (1 / own_stddev + 1 / pair_stddev) / num_clients
    return (1 / own_stddev**2 + 1 / pair_stddev**2) / num_clients


def theorem_11_conditions(num_clients: int, delta: float) -> tuple[float, float, float]:
    """The three lower bounds on the out-degree n."""
    _validate.positive_int(num_clients=num_clients)
    _validate.open_unit(delta=delta)
    return (
        4 * math.log(2 * num_clients / (3 * delta)),
        6 * math.log(num_clients / 3),
        1.5 + 9 / 4 * math.log(2 * math.e / delta),
    )


def theorem_11(
    num_clients: int, out_degree: int, own_stddev: float, pair_stddev: float, delta: float
) -> tuple[float, float]:
    """(theta, 3 delta): a bound on `theta` of a random n-out graph, up to a chance counted in delta.

    Raises:
      PrivacyPreconditionError: K < 81, or n is below one of the theorem's bounds. `theta` knows no such conditions.
    """
    _validate.positive(own_stddev=own_stddev, pair_stddev=pair_stddev)
    _validate.positive_int(out_degree=out_degree)
    least = max(theorem_11_conditions(num_clients, delta))
    if num_clients < 81 or not out_degree >= least or (out_degree - 1) // 3 < 2:
        raise PrivacyPreconditionError(
            f"Expected num_clients >= 81 and out_degree >= {math.ceil(max(least, 7))} for Theorem 11, "
            f"got num_clients={num_clients} and out_degree={out_degree}: use the exact theta of the graph."
        )
    edges_part = 1 / ((out_degree - 1) // 3 - 1) + (12 + 6 * math.log(num_clients)) / num_clients
    return 1 / (num_clients * own_stddev**2) + edges_part / pair_stddev**2, 3 * delta


def expected_degree(num_clients: int, out_degree: int) -> float:
    """Neighbours of a client in a random n-out graph, on average: 2 n - n^2 / (K - 1)."""
    _validate.positive_int(num_clients=num_clients, out_degree=out_degree)
    if not out_degree < num_clients:
        raise ValueError(f"Expected out_degree < {num_clients} clients, got out_degree={out_degree}.")
    return 2 * out_degree - out_degree**2 / (num_clients - 1)


def _tail(delta: Any) -> np.ndarray:
    _validate.each(_validate.open_unit, delta=delta)
    return np.maximum(1.0, np.sqrt(np.maximum(0, 2 * np.log(2 / (np.asarray(delta) * math.sqrt(2 * math.pi))))))


def printed_epsilon(theta: Any, delta: Any) -> np.ndarray:
    """Equation (23) solved for epsilon: theta / 2 + c sqrt(theta). Sound, and never below `gaussian.mu_to_epsilon`."""
    theta = np.asarray(theta, np.float64)
    # Infinite is what no noise gives, and stays so.
    _validate.each(_validate.non_negative, theta=np.where(np.isposinf(theta), 0.0, theta))
    return theta / 2 + _tail(delta) * np.sqrt(theta)


def printed_theta(epsilon: Any, delta: Any) -> np.ndarray:
    """The largest theta that equation (23) allows for epsilon, delta."""
    _validate.each(_validate.non_negative, epsilon=epsilon)
    c = _tail(delta)
    return (np.sqrt(c**2 + 2 * np.asarray(epsilon, np.float64)) - c) ** 2


def classical_noise_multiplier(epsilon: float, delta: float) -> float:
    """The textbook sqrt(2 ln(1.25 / delta)) / epsilon.

    Raises:
      PrivacyPreconditionError: epsilon >= 1, where it proves nothing (the paper uses it at 1 and 3).
    """
    _validate.positive(epsilon=epsilon)
    _validate.open_unit(delta=delta)
    if not epsilon < 1:
        raise PrivacyPreconditionError(f"Expected epsilon < 1 for the classical formula, got epsilon={epsilon!r}.")
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def own_stddev_for(theta: float, num_clients: int) -> float:
    """The least sigma_eta that reaches `theta` over K clients, with pair noise without bound: 1 / sqrt(K theta)."""
    _validate.positive(theta=theta)
    _validate.positive_int(num_clients=num_clients)
    return 1 / math.sqrt(num_clients * theta)


def upload_gain(additive_norm: float, multiplier_second_moment: float = 1.0) -> float:
    """Variance of a hidden parameter's recovered noise, times K / sigma_eta^2, where the whole triple carries noise.

    Args:
      additive_norm: ||r||. multiplier_second_moment: E[R^2]; 1.5 under equation (13).
    """
    _validate.non_negative(additive_norm=additive_norm, multiplier_second_moment=multiplier_second_moment)
    v = additive_norm**2
    return multiplier_second_moment * (1 + v + v**2)


def bounded_noise_delta(shift: float, stddev: float, multiplier: float = 1.0) -> float:
    """Least delta, at any epsilon, of uniform noise DN(stddev, 1) times a known multiplier, one coordinate moved."""
    _validate.positive(stddev=stddev, multiplier=multiplier)
    _validate.non_negative(shift=abs(shift))
    return min(1.0, abs(shift) / (2 * math.sqrt(2) * stddev * multiplier))


def check_mode(noise: str) -> None:
    """Raises NoGuaranteeError, with the reason, for a noise mode that no accountant stands behind."""
    _validate.one_of(NOISE_MODES, noise=noise)
    if noise in WITHOUT_GUARANTEE:
        raise NoGuaranteeError(
            f"Expected a noise mode with a guarantee, got noise={noise!r}: {WITHOUT_GUARANTEE[noise]}."
        )
