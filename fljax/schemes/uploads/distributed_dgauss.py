"""The distributed discrete Gaussian mechanism: integers, noised by clients, summed modulo 2**bits.

Source: Kairouz, Liu, Steinke (2021), "The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation", arXiv:2102.06387.
"""

from fljax.accounting import events
from fljax.schemes.uploads import modular
from fljax_kernels import discrete

Config = modular.Config
NOISE = modular.Noise(
    law="discrete_gaussian",
    parameter=lambda stddev: stddev,
    draw=discrete.discrete_gaussian_noise,
    mechanism=events.DiscreteGaussianSum,
)
SCHEME = modular.scheme(
    "integers with clients' discrete Gaussian noise, summed in a ring; unit: client", NOISE
)
make, event, fitted, non_private = SCHEME.make, SCHEME.event, SCHEME.fitted, SCHEME.non_private
