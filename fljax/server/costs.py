"""What a round moves over which links: byte counts and a time model, one table for the schemes that
hide uploads.

Counts are of idealised protocols at 4 bytes a parameter; headers, retries and arithmetic on
ciphertexts are left out.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", Table I and Figure 4, for the link model and the ciphertext expansion; where it gives
no count, ours is said to be so.
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
    """The model down, an upload up: local noise, or an ideal secure sum whose own price is not
    modelled.
    """
    _validate.positive_int(num_params=num_params)
    return Costs(_FLOAT * num_params, _FLOAT * num_params)


def pair_noise(num_params: int, num_clients: int, degree: int) -> Costs:
    """As `plain`, after one exchange of public keys; `degree` neighbours' noises are drawn each
    round.
    """
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative_int(degree=degree)
    return plain(num_params)._replace(
        setup_upload_bytes=_KEY,
        setup_download_bytes=_KEY * degree,
        pair_normals=degree * num_params,
    )


def homomorphic(num_params: int) -> Costs:
    """Threshold encryption, 32-bit numbers in 4096-bit ciphertexts, one number each.

    The upload is encrypted; then the encrypted sum comes down and a decryption share of the same
    size goes up.
    """
    base = plain(num_params)
    return base._replace(
        upload_bytes=2 * CIPHERTEXT_EXPANSION * base.upload_bytes,
        download_bytes=base.download_bytes * (1 + CIPHERTEXT_EXPANSION),
        message_rounds=2,
    )


def secure_aggregation(num_params: int, num_clients: int) -> Costs:
    """Pairwise masks with secret-shared seeds: two shares to every peer, an unmasking round (our
    count).
    """
    _validate.positive_int(num_clients=num_clients)
    peers, base = num_clients - 1, plain(num_params)
    return base._replace(
        upload_bytes=base.upload_bytes
        + _KEY * peers,  # the unmasking round returns one share for every peer
        peer_bytes=2 * _KEY * peers,
        message_rounds=2,
        peer_links=num_clients * peers,
        setup_upload_bytes=_KEY,
        setup_download_bytes=_KEY * peers,
    )


def coded_aggregation(
    num_params: int, num_clients: int, max_colluders: int, max_stragglers: int
) -> Costs:
    """Updates cut into N - C - S parts and ramp-shared: one coded part to every peer, one to the
    server (our count).

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
      costs: of one client; all clients work side by side, so the slowest responder decides: give
        that one's numbers.
      compute_seconds: local training. bandwidth: bytes a second, > 0. latency_seconds: for each
        message round.
      seconds_per_normal: of drawing noise shared with peers.
      completed_prob: chance that a round is not lost, independent over rounds; 0 gives infinity.
    """
    _validate.non_negative(compute_seconds=compute_seconds, latency_seconds=latency_seconds)
    _validate.non_negative(seconds_per_normal=seconds_per_normal, completed_prob=completed_prob)
    _validate.positive(bandwidth=bandwidth)
    if not completed_prob <= 1:
        raise ValueError(
            f"Expected completed_prob in [0, 1], got completed_prob={completed_prob!r}."
        )
    moved = costs.upload_bytes + costs.download_bytes + costs.peer_bytes
    drawn = costs.pair_normals * seconds_per_normal
    once = compute_seconds + drawn + moved / bandwidth + costs.message_rounds * latency_seconds
    return once / completed_prob if completed_prob else float("inf")


class Reported(NamedTuple):
    """A paper's own figure: on its machine, not measured here.

    Attributes:
      model, method: as it calls them. clients: K of a round.
      seconds_to_target, fedavg_seconds_to_target: until its target accuracy, of the method and of
        its FedAvg.
    """

    model: str
    method: str
    clients: int
    seconds_to_target: float
    fedavg_seconds_to_target: float


_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
# Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
# Bidirectional Privacy- Preservation in Federated Learning", Table I: ResNet20 on CIFAR10 to 65 %,
# ResNet56 on CIFAR100 to 40 %.
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


PARTS = ("perturb", "recover", "aggregate", "decrypt", "keys", "train", "encrypt", "noise")


class ReportedParts(NamedTuple):
    """A paper's own seconds of one epoch, part by part: on its machine, not measured here.

    Attributes:
      model, method: as it calls them. clients: K of a round.
      seconds: of each of `PARTS`; None: the method has no such part.
      total: as printed; None: no total is printed.
    """

    model: str
    method: str
    clients: int
    seconds: tuple[float | None, ...]
    total: float | None

    @property
    def adds_up(self) -> bool:
        """Whether the printed total is that of the printed parts, each rounded to a hundredth."""
        parts = [part for part in self.seconds if part is not None]
        return self.total is None or abs(sum(parts) - self.total) <= 0.005 * (len(parts) + 1) + 1e-9


_COLUMNS = {
    "FedAvg": ("aggregate", "train"),
    "TP-SMC": ("aggregate", "decrypt", "keys", "train", "encrypt", "noise"),
    "HybridAlpha": ("aggregate", "decrypt", "keys", "train", "encrypt", "noise"),
    "PILE": ("perturb", "recover", "aggregate", "decrypt", "keys", "train", "encrypt"),
    "its own": ("perturb", "recover", "aggregate", "train", "noise"),
}
# Of the same paper, Table V; which columns a method leaves empty is inferred from the sums that do
# add up.
REPORTED_PARTS = tuple(
    ReportedParts(
        model,
        method,
        clients,
        tuple(dict(zip(_COLUMNS[method], parts, strict=True)).get(part) for part in PARTS),
        total,
    )
    for model, clients, method, parts, total in (
        ("CIFAR10", 5, "FedAvg", (0.05, 1.32), None),
        ("CIFAR10", 5, "TP-SMC", (0.81, 5.48, 0.23, 1.53, 23.15, 4.70), 34.37),
        ("CIFAR10", 5, "HybridAlpha", (358.74, 550.51, 0.61, 1.33, 132.65, 303.35), 1350.18),
        ("CIFAR10", 5, "PILE", (0.01, 0.02, 896.47, 2227.14, 5.56, 1.49, 502.17), 3635.48),
        ("CIFAR10", 5, "its own", (0.01, 0.01, 0.05, 1.51, 0.68), 2.19),
        ("CIFAR10", 100, "FedAvg", (0.07, 1.40), None),
        ("CIFAR10", 100, "TP-SMC", (35.82, 5.75, 0.31, 1.46, 28.29, 5.02), 76.65),
        ("CIFAR10", 100, "HybridAlpha", (3581.74, 1021.16, 40.38, 1.24, 137.60, 308.87), 5077.49),
        ("CIFAR10", 100, "PILE", (0.01, 0.19, 6485.76, 3659.73, 120.50, 1.41, 539.25), 10802.59),
        ("CIFAR10", 100, "its own", (0.01, 0.17, 0.08, 1.41, 0.77), 2.44),
        ("CIFAR100", 5, "FedAvg", (0.25, 5.36), None),
        ("CIFAR100", 5, "TP-SMC", (3.35, 11.82, 0.32, 5.82, 50.96, 27.46), 68.74),
        ("CIFAR100", 5, "HybridAlpha", (1906.74, 1730.26, 0.69, 5.40, 564.85, 808.13), 5100.72),
        ("CIFAR100", 5, "PILE", (0.02, 0.01, 2762.33, 4077.67, 5.65, 5.73, 1455.40), 8306.81),
        ("CIFAR100", 5, "its own", (0.02, 0.01, 0.28, 5.77, 0.59), 6.67),
        ("CIFAR100", 100, "FedAvg", (0.54, 5.38), None),
        ("CIFAR100", 100, "TP-SMC", (69.21, 12.17, 0.38, 5.33, 54.73, 21.48), 163.30),
        (
            "CIFAR100",
            100,
            "HybridAlpha",
            (13989.87, 1417.68, 112.93, 5.25, 576.01, 836.78),
            16938.52,
        ),
        ("CIFAR100", 100, "PILE", (0.03, 0.18, 18729.23, 4275.51, 356.89, 5.06, 1492.73), 24859.63),
        ("CIFAR100", 100, "its own", (0.02, 0.17, 0.53, 5.93, 0.52), 7.18),
    )
)


def perturbed_model(
    plan: Plan, *, degree: int, triples: bool = True, compact: bool = True
) -> Costs:
    """A disguised model down, gradient, Psi and Phi up.

    Args:
      plan: of the network.
      degree: neighbours whose noise is drawn for every number that is sent.
      triples: False where the additive vector is 0, and the gradient is all that is sent.
      compact: count of the last layer's Psi only the row that all its parts share, and not its Phi,
        which is 0; False: (2 + n_L) P numbers, as if none of this were known.
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
