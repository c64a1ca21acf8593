"""Threshold homomorphic encryption with distributed noise: an ideal secure sum at 128 times the bytes.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience",
reference 14 there; 32-bit numbers become 4096-bit ciphertexts, and decryption takes another message round.
"""

from fljax.schemes import _secure_sum, _uploads
from fljax.server import costs as costs_lib

SUMMARY = "secure sum by homomorphic encryption (idealised), distributed noise; unit: client"
PROMISE = "epsilon"
NOISE_AT = "client"
SIMULATION = _uploads.SIMULATION
LINKS: _secure_sum.Links = "server"
Config = _secure_sum.Config
event = _secure_sum.event
fitted, non_private = _uploads.fitted, _uploads.non_private
make = _secure_sum.maker(LINKS)
views = _secure_sum.viewer(LINKS)


def costs(config: Config, num_params: int) -> costs_lib.Costs:
    """One client's round."""
    return costs_lib.homomorphic(num_params)
