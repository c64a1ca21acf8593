"""Rounds between real clients by Flower's Message API: what a `ClientApp` sends is protected as the
scheme says, and what a `ServerApp` does with it is the scheme's round, with a ledger and a budget.

Both sides build the same `Deployment`, whose numbers are public. A client wraps its own training by
`client_mod`; the server runs a `Strategy`. Training may be any code. Transport, processes, TLS and
who may connect are Flower's. Extra `flower`; the modules here import it when they are used.
"""

from typing import TYPE_CHECKING

from fljax import _rooms

__all__ = ["Deployment", "Party", "Strategy", "client_mod", "silo_train"]
__all__ += ["from_record", "to_record"]

if TYPE_CHECKING:
    from fljax.interop.flower import client as client
    from fljax.interop.flower import deployment as deployment
    from fljax.interop.flower import records as records
    from fljax.interop.flower import secure as secure
    from fljax.interop.flower import server as server
    from fljax.interop.flower.client import Party as Party
    from fljax.interop.flower.client import client_mod as client_mod
    from fljax.interop.flower.client import silo_train as silo_train
    from fljax.interop.flower.deployment import Deployment as Deployment
    from fljax.interop.flower.records import from_record as from_record
    from fljax.interop.flower.records import to_record as to_record
    from fljax.interop.flower.server import Strategy as Strategy
else:
    _WHERE = {
        "Deployment": "deployment",
        "Party": "client",
        "Strategy": "server",
        "client_mod": "client",
        "from_record": "records",
        "silo_train": "client",
        "to_record": "records",
    }
    __getattr__, __dir__ = _rooms.doors(
        __name__, lifted={name: f"{__name__}.{module}" for name, module in _WHERE.items()}
    )
