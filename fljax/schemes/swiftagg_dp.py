"""Coded secure aggregation with distributed noise: a client needs its links to all others.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience",
reference 8 there, with its link model: a client counts if none of its N links failed.
"""

from fljax.schemes import _secure_sum, _uploads
from fljax.server import costs as costs_lib

SUMMARY = "coded secure aggregation (idealised), distributed noise; unit: client"
PROMISE = "epsilon"
NOISE_AT = "client"
SIMULATION = _uploads.SIMULATION
LINKS: _secure_sum.Links = "peers"
Config = _secure_sum.Config
event = _secure_sum.event
fitted, non_private = _uploads.fitted, _uploads.non_private
make = _secure_sum.maker(LINKS)
views = _secure_sum.viewer(LINKS)


def costs(config: Config, num_params: int) -> costs_lib.Costs:
    """One client's round."""
    return costs_lib.coded_aggregation(num_params, config.parties, config.max_colluders, config.max_stragglers)
