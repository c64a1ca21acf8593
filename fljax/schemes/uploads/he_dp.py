"""Threshold homomorphic encryption with distributed noise: an ideal secure sum at 128 times the bytes.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience",
reference 14 there; 32-bit numbers become 4096-bit ciphertexts, and decryption takes another message round.
"""

from fljax.schemes import base
from fljax.schemes.uploads import ideal_sums
from fljax.schemes.uploads import round as uploads
from fljax.server import costs as costs_lib

LINKS: ideal_sums.Links = "server"
Config = ideal_sums.Config
event = ideal_sums.event
fitted, non_private = uploads.fitted, uploads.non_private
make = ideal_sums.maker(LINKS)
views = ideal_sums.viewer(LINKS)


def costs(config: Config, num_params: int) -> costs_lib.Costs:
    """One client's round."""
    return costs_lib.homomorphic(num_params)


SCHEME = base.Scheme(
    summary="secure sum by homomorphic encryption (idealised), distributed noise; unit: client",
    promise="epsilon",
    Config=Config,
    make=make,
    event=event,
    fitted=fitted,
    non_private=non_private,
    noise_at="client",
    start=uploads.START,
    population=uploads.population,
    views=views,
    costs=costs,
)
