"""Mutual information that a sum without noise gives away about one client: an average, never a
privacy guarantee.
"""

import math

from fljax import _validate


def secure_sum_leakage(
    num_clients: int, dimension: int, *, batch_size: float, constant: float
) -> float:
    """Bound in nats per round on the information a sum of i.i.d. updates gives about one of them.

    It averages over records and says nothing of the worst one: no epsilon follows, and none may be
    reported from it.

    Args:
      num_clients: N >= 2. dimension: d. batch_size: B > 0.
      constant: the cited result leaves this factor unspecified, so it has no default. 0 gives the
        exact value for Gaussian updates, (d / 2) log(N / (N - 1)).

    Source: Elkordy et al. (2022), "How Much Privacy Does Federated Learning with Secure Aggregation
    Guarantee?", arXiv:2208.02304, as quoted by arXiv:2405.04551.
    """
    _validate.positive_int(num_clients=num_clients, dimension=dimension)
    _validate.positive(batch_size=batch_size)
    _validate.non_negative(constant=constant)
    if num_clients < 2:
        raise ValueError(
            f"Expected num_clients >= 2, else the sum is the update, got num_clients={num_clients}."
        )
    return constant * dimension / ((num_clients - 1) * batch_size) + dimension / 2 * math.log1p(
        1 / (num_clients - 1)
    )
