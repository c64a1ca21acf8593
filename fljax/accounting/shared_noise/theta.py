"""What pair noise on a graph gives in the joint view, in the numbers of the bidirectional scheme
and of GOPA.

A round of uploads x_k + eta_k + sum_v Delta_kv, Gaussian, is exactly mu-GDP with mu^2 = S^2 theta,
theta the largest diagonal entry of the inverse covariance sigma_Delta^2 Laplacian + sigma_eta^2 I,
and S how far one neighbour moves an upload. It holds for a server that knows its multipliers, since
they do not depend on the round's data, if everything that is sent carries the noise. It is no local
DP: with all others colluding theta is 1 / sigma_eta^2.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", Theorems 10 and 11 and equation (23),
after Sabater, Bellet, Ramon, "An Accurate, Scalable and Verifiable Protocol for Federated
Differentially Private Averaging", arXiv:2006.07218.
"""

from typing import Any, Literal

import numpy as np

from fljax import _validate
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise.graph import PairGraph
from fljax.errors import NoGuaranteeError
from fljax_kernels.pairwise import graphs

Unit = Literal["client_addremove", "client_replace", "example_replace"]
NOISE_MODES = ("paper", "upload_gaussian", "r0_gaussian", "oracle_clip")
WITHOUT_GUARANTEE = {
    "paper": "the server knows its multipliers; given them the noise is uniform, hence bounded, "
    "and "
    "one coordinate "
    "moved by d gives itself away with chance d / (2 sqrt(2) sigma R), whatever epsilon; Psi and "
    "Phi carry no noise",
    "oracle_clip": (
        "no client can clip a gradient that only the server can recover; Psi and Phi carry no noise"
    ),
}


def sensitivity(unit: Unit, l2_clip_norm: float, batch_size: int = 1) -> float:
    """How far one neighbour moves an upload, S.

    Args:
      unit: a client's data against none, or against any others; or one record against another, in a
        mean over the constant `batch_size` of records clipped one by one.
      l2_clip_norm: of an upload, or of a record's part of it.
      batch_size: records in a batch, for "example_replace".
    """
    _validate.one_of(("client_addremove", "client_replace", "example_replace"), unit=unit)
    _validate.positive(l2_clip_norm=l2_clip_norm)
    _validate.positive_int(batch_size=batch_size)
    return {
        "client_addremove": l2_clip_norm,
        "client_replace": 2 * l2_clip_norm,
        "example_replace": 2 * l2_clip_norm / batch_size,
    }[unit]


def theta(
    edges: Any, num_clients: int, own_stddev: float, pair_stddev: float, *, colluders: Any = None
) -> float:
    """The exact theta of the worst placed honest client.

    Args:
      edges: `[E, 2]` pairs of clients, each once, in either order; any graph, connected or not.
      num_clients: K.
      own_stddev, pair_stddev: sigma_eta, sigma_Delta >= 0, absolute.
      colluders: bool `[K]`, who pools what it knows with the server; None: nobody.

    Returns:
      mu^2 of a round for sensitivity 1; infinite where nothing hides some client.

    Raises:
      ValueError: an argument out of range, a loop, a pair given twice, or nobody honest: there is
        no one to protect.
    """
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative(own_stddev=own_stddev, pair_stddev=pair_stddev)
    edges = graphs.checked_pairs(edges, num_clients)
    if colluders is not None:
        view.check_mask(num_clients, colluders=colluders)
        if np.all(colluders):
            raise ValueError(
                f"Expected an honest client, got colluders with all {num_clients} clients."
            )
    graph = PairGraph(
        np.full(num_clients, own_stddev**2), edges, np.full(len(edges), pair_stddev**2)
    )
    return float(np.nanmax(view.exact_mu(graph, colluders=colluders)) ** 2)


def upload_gain(additive_norm: float, multiplier_second_moment: float = 1.0) -> float:
    """Variance of a hidden parameter's recovered noise, times K / sigma_eta^2, where the whole
    triple carries noise.

    Args:
      additive_norm: ||r||. multiplier_second_moment: E[R^2]; 1.5 under equation (13).
    """
    _validate.non_negative(
        additive_norm=additive_norm, multiplier_second_moment=multiplier_second_moment
    )
    v = additive_norm**2
    return multiplier_second_moment * (1 + v + v**2)


def check_mode(noise: str) -> None:
    """Raises NoGuaranteeError, with the reason, for a noise mode that no accountant stands
    behind.
    """
    _validate.one_of(NOISE_MODES, noise=noise)
    if noise in WITHOUT_GUARANTEE:
        raise NoGuaranteeError(
            f"Expected a noise mode with a guarantee, got noise={noise!r}: "
            f"{WITHOUT_GUARANTEE[noise]}."
        )
