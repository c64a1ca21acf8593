"""What a run costs: events in, epsilon out.

Host functions (`epsilon`, `delta`, `interval`, `spent`, `calibrate`, `statement`, `Ledger`) take events. The pure
functions below them (`rdp`, `gaussian`, `conversion`, `calibration`) take arrays; transform them within `x64()`.
"""

from fljax.accounting import calibration, conversion, events, gaussian, mixture, pld, rdp, view
from fljax.accounting._x64 import x64
from fljax.accounting.accountant import METHODS, Spent, calibrate, delta, epsilon, interval, spent
from fljax.accounting.conversion import OrderWarning
from fljax.accounting.events import NeighboringRelation, PrivacyEvent, compose
from fljax.accounting.interop import from_dp_event, to_dp_event
from fljax.accounting.ledger import Ledger
from fljax.accounting.words import NOT_COVERED, statement, table

__all__ = [
    "METHODS",
    "NOT_COVERED",
    "Ledger",
    "NeighboringRelation",
    "OrderWarning",
    "PrivacyEvent",
    "Spent",
    "calibrate",
    "calibration",
    "compose",
    "conversion",
    "delta",
    "epsilon",
    "events",
    "from_dp_event",
    "gaussian",
    "interval",
    "mixture",
    "pld",
    "rdp",
    "spent",
    "statement",
    "table",
    "to_dp_event",
    "view",
    "x64",
]
