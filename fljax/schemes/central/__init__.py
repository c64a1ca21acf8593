"""Schemes with noise added once, by a trusted server: DP-FedAvg, DP-FedSGD, and their like."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.schemes.central import dp_fedavg as dp_fedavg
    from fljax.schemes.central import dp_fedbuff as dp_fedbuff
    from fljax.schemes.central import dp_fedper as dp_fedper
    from fljax.schemes.central import dp_fedsgd as dp_fedsgd
    from fljax.schemes.central import dp_ftrl as dp_ftrl
    from fljax.schemes.central import dp_scaffold as dp_scaffold
    from fljax.schemes.central import round as round
    from fljax.schemes.central import turns as turns
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
