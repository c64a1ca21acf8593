"""Secure multi-party sum with distributed noise, as an ideal functionality over the links to the server alone.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience"; its
baseline with noise sized for N - C - S contributors.
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
    """One client's round; the price of a particular protocol is not modelled."""
    return costs_lib.plain(num_params)


SCHEME = base.Scheme(
    summary="ideal secure sum, distributed noise; unit: client",
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
