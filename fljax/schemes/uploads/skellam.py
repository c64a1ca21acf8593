"""The distributed Skellam mechanism: integers, noised by clients, summed modulo 2**bits.

Source: Agarwal, Kairouz, Liu (2021), "The Skellam Mechanism for Differentially Private Federated
Learning", arXiv:2110.04995.
"""

from fljax.accounting import events
from fljax.schemes.uploads import modular
from fljax_kernels import discrete

Config = modular.Config


def _mechanism(stddev: float, honest: int, l2: float, l1: float) -> events.Mechanism:
    return events.Skellam(honest * stddev**2, l2, l1)


NOISE = modular.Noise(
    law="skellam",
    parameter=lambda stddev: stddev**2,
    draw=discrete.skellam_noise,
    mechanism=_mechanism,
)
SCHEME = modular.scheme(
    "integers with clients' Skellam noise, summed in a ring; unit: client", NOISE
)
make, event, fitted, non_private = SCHEME.make, SCHEME.event, SCHEME.fitted, SCHEME.non_private
