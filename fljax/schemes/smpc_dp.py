"""Secure multi-party sum with distributed noise, as an ideal functionality over the links to the server alone.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience"; its
baseline with noise sized for N - C - S contributors.
"""

from fljax.schemes import _secure_sum, _uploads
from fljax.server import costs as costs_lib

SUMMARY = "ideal secure sum, distributed noise; unit: client"
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
    """One client's round; the price of a particular protocol is not modelled."""
    return costs_lib.plain(num_params)
