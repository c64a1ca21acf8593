"""Coded secure aggregation with distributed noise: a client needs its links to all others.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience",
reference 8 there, with its link model: a client counts if none of its N links failed.
"""

from fljax.schemes import base
from fljax.schemes.uploads import ideal_sums
from fljax.schemes.uploads import round as uploads
from fljax.server import costs as costs_lib

LINKS: ideal_sums.Links = "peers"
Config = ideal_sums.Config
event = ideal_sums.event
fitted, non_private = uploads.fitted, uploads.non_private
make = ideal_sums.maker(LINKS)
views = ideal_sums.viewer(LINKS)


def costs(config: Config, num_params: int) -> costs_lib.Costs:
    """One client's round."""
    return costs_lib.coded_aggregation(num_params, config.parties, config.max_colluders, config.max_stragglers)


SCHEME = base.Scheme(
    summary="coded secure aggregation (idealised), distributed noise; unit: client",
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
