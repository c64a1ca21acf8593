"""Threshold homomorphic encryption with distributed noise: an ideal secure sum at 128 times the bytes.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience",
reference 14 there; 32-bit numbers become 4096-bit ciphertexts, and decryption takes another message round.
"""

import optax

from fljax.schemes import _round, _secure_sum, _uploads
from fljax.server import costs as costs_lib
from fljax.types import LossFn

SUMMARY = "secure sum by homomorphic encryption (idealised), distributed noise; unit: client"
NOISE_AT = "client"
SIMULATION = _uploads.SIMULATION
LINKS: _secure_sum.Links = "server"
Config = _secure_sum.Config
event = _secure_sum.event
non_private = _uploads.non_private


def make(
    config: Config,
    loss: LossFn,
    *,
    num_units: int,
    server_optimizer: optax.GradientTransformation | None = None,
    chunk_size: int | None = None,
) -> _round.FederatedAlgorithm:
    """Builds the algorithm; its guarantee is that of `_secure_sum.algorithm`.

    Args:
      config: its noise_multiplier must be set.
      loss: `loss(params, example) -> []`.
      num_units: clients in the population; must be `num_parties`.
      server_optimizer: any optax optimizer in place of SGD with the configured rate and momentum.
      chunk_size: clients that train side by side; only speed and memory depend on it. None: by backend and model.

    Raises:
      ValueError: noise_multiplier is None, num_units is not num_parties, or chunk_size < 1.
    """
    return _secure_sum.algorithm(
        config, loss, links=LINKS, num_units=num_units, server_optimizer=server_optimizer, chunk_size=chunk_size
    )


def costs(config: Config, num_params: int) -> costs_lib.Costs:
    """One client's round."""
    return costs_lib.homomorphic(num_params)
