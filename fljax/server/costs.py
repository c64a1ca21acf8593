"""What a round moves over which links: byte counts and a time model, one table for the schemes that hide uploads.

Counts are of idealised protocols at 4 bytes a parameter; headers, retries and arithmetic on ciphertexts are left out.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience", Table I
and Figure 4, for the link model and the ciphertext expansion; where it gives no count, ours is said to be so.
"""

import math
from typing import NamedTuple

from fljax import _validate
from fljax.models.scaling import Plan

_FLOAT, _KEY = 4, 32  # bytes of a parameter, and of an X25519 public key or a 256-bit secret
CIPHERTEXT_EXPANSION = 4096 // 32


class Costs(NamedTuple):
    """One client's round; `setup_*` once before the first round.

    Attributes:
      upload_bytes, download_bytes: between client and server.
      peer_bytes: sent to other clients.
      message_rounds: times that the server must hear from the clients before it has the average.
      peer_links: directed links between clients that a round of all clients needs.
      setup_upload_bytes, setup_download_bytes: keys, relayed by the server.
      pair_normals: normals drawn for noise shared with peers.
    """

    upload_bytes: float
    download_bytes: float
    peer_bytes: float = 0.0
    message_rounds: int = 1
    peer_links: int = 0
    setup_upload_bytes: float = 0.0
    setup_download_bytes: float = 0.0
    pair_normals: float = 0.0


def plain(num_params: int) -> Costs:
    """The model down, an upload up: local noise, or an ideal secure sum whose own price is not modelled."""
    _validate.positive_int(num_params=num_params)
    return Costs(_FLOAT * num_params, _FLOAT * num_params)


def pair_noise(num_params: int, num_clients: int, degree: int) -> Costs:
    """As `plain`, after one exchange of public keys; `degree` neighbours' noises are drawn each round."""
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative_int(degree=degree)
    return plain(num_params)._replace(
        setup_upload_bytes=_KEY, setup_download_bytes=_KEY * degree, pair_normals=degree * num_params
    )


def homomorphic(num_params: int) -> Costs:
    """Threshold encryption, 32-bit numbers in 4096-bit ciphertexts, one number each.

    The upload is encrypted; then the encrypted sum comes down and a decryption share of the same size goes up.
    """
    base = plain(num_params)
    return base._replace(
        upload_bytes=2 * CIPHERTEXT_EXPANSION * base.upload_bytes,
        download_bytes=base.download_bytes * (1 + CIPHERTEXT_EXPANSION),
        message_rounds=2,
    )


def secure_aggregation(num_params: int, num_clients: int) -> Costs:
    """Pairwise masks with secret-shared seeds: two shares to every peer, an unmasking round (our count)."""
    _validate.positive_int(num_clients=num_clients)
    peers, base = num_clients - 1, plain(num_params)
    return base._replace(
        upload_bytes=base.upload_bytes + _KEY * peers,  # the unmasking round returns one share for every peer
        peer_bytes=2 * _KEY * peers,
        message_rounds=2,
        peer_links=num_clients * peers,
        setup_upload_bytes=_KEY,
        setup_download_bytes=_KEY * peers,
    )


def coded_aggregation(num_params: int, num_clients: int, max_colluders: int, max_stragglers: int) -> Costs:
    """Updates cut into N - C - S parts and ramp-shared: one coded part to every peer, one to the server (our count).

    Any N - S coded parts give the sum, any C say nothing.

    Raises:
      ValueError: C + S >= N.
    """
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative_int(max_colluders=max_colluders, max_stragglers=max_stragglers)
    parts = num_clients - max_colluders - max_stragglers
    if not parts >= 1:
        raise ValueError(
            f"Expected max_colluders + max_stragglers < {num_clients} clients, got "
            f"max_colluders={max_colluders} and max_stragglers={max_stragglers}."
        )
    base = plain(num_params)
    return base._replace(
        upload_bytes=base.upload_bytes / parts,
        peer_bytes=base.upload_bytes / parts * (num_clients - 1),
        message_rounds=2,
        peer_links=num_clients * (num_clients - 1),
    )


def round_seconds(
    costs: Costs,
    *,
    compute_seconds: float,
    bandwidth: float,
    latency_seconds: float = 0.0,
    seconds_per_normal: float = 0.0,
    completed_prob: float = 1.0,
) -> float:
    """Expected seconds until a round is done: compute, noise, bytes, latencies; aborted ones again.

    Args:
      costs: of one client; all clients work side by side, so the slowest responder decides: give that one's numbers.
      compute_seconds: local training. bandwidth: bytes a second, > 0. latency_seconds: for each message round.
      seconds_per_normal: of drawing noise shared with peers.
      completed_prob: chance that a round is not lost, independent over rounds; 0 gives infinity.
    """
    _validate.non_negative(compute_seconds=compute_seconds, latency_seconds=latency_seconds)
    _validate.non_negative(seconds_per_normal=seconds_per_normal, completed_prob=completed_prob)
    _validate.positive(bandwidth=bandwidth)
    if not completed_prob <= 1:
        raise ValueError(f"Expected completed_prob in [0, 1], got completed_prob={completed_prob!r}.")
    moved = costs.upload_bytes + costs.download_bytes + costs.peer_bytes
    drawn = costs.pair_normals * seconds_per_normal
    once = compute_seconds + drawn + moved / bandwidth + costs.message_rounds * latency_seconds
    return once / completed_prob if completed_prob else float("inf")


class Reported(NamedTuple):
    """A paper's own figure: on its machine, not measured here.

    Attributes:
      model, method: as it calls them. clients: K of a round.
      seconds_to_target, fedavg_seconds_to_target: until its target accuracy, of the method and of its FedAvg.
    """

    model: str
    method: str
    clients: int
    seconds_to_target: float
    fedavg_seconds_to_target: float


_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
# Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure Bidirectional Privacy-
# Preservation in Federated Learning", Table I: ResNet20 on CIFAR10 to 65 %, ResNet56 on CIFAR100 to 40 %.
REPORTED_TIMES = tuple(
    Reported(model, method, clients, seconds, fedavg)
    for model, clients, fedavg, found in (
        ("CIFAR10", 5, 65.68, (40.40 * _HOUR, 36.69 * _MINUTE, 20.29 * _HOUR, 2.03 * _MINUTE)),
        ("CIFAR10", 100, 71.31, (5.54 * _DAY, 1.37 * _HOUR, 3.89 * _DAY, 2.46 * _MINUTE)),
        ("CIFAR100", 5, 218.44, (91.34 * _HOUR, 73.38 * _MINUTE, 76.34 * _HOUR, 5.43 * _MINUTE)),
        ("CIFAR100", 100, 237.06, (12.64 * _DAY, 2.73 * _HOUR, 10.90 * _DAY, 7.40 * _MINUTE)),
    )
    for method, seconds in zip(("PILE", "TP-SMC", "HybridAlpha", "its own"), found, strict=True)
)


def perturbed_model(plan: Plan, *, degree: int, triples: bool = True, compact: bool = True) -> Costs:
    """A disguised model down, gradient, Psi and Phi up.

    Args:
      plan: of the network.
      degree: neighbours whose noise is drawn for every number that is sent.
      triples: False where the additive vector is 0, and the gradient is all that is sent.
      compact: count of the last layer's Psi only the row that all its parts share, and not its Phi, which is 0; False:
        (2 + n_L) P numbers, as if none of this were known.
    """
    _validate.non_negative_int(degree=degree)
    body = sum(plan.sizes[k] for k in plan.body)
    num_params = body + sum(plan.sizes[k] for k in plan.head)
    numbers = num_params
    if triples and compact:
        numbers += (1 + plan.num_outputs) * body + math.prod(plan.hidden_shape) + plan.has_bias
    elif triples:
        numbers *= 2 + plan.num_outputs
    return Costs(
        _FLOAT * numbers,
        _FLOAT * (num_params + plan.num_branches),
        setup_upload_bytes=_KEY,
        setup_download_bytes=_KEY * degree,
        pair_normals=degree * numbers,
    )


def backward_passes(num_outputs: int, *, triples: bool = True) -> int:
    """Cotangents that a client pulls back in a round; FedAvg's one step takes one."""
    _validate.positive_int(num_outputs=num_outputs)
    return num_outputs + 2 if triples else 1
