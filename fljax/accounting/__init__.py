"""What a run costs: events in, epsilon out. Pure curves live in `rdp` and `conversion`."""

from fljax.accounting import conversion, events, rdp
from fljax.accounting._x64 import x64
from fljax.accounting.accountant import METHODS, Spent, calibrate, delta, epsilon, spent
from fljax.accounting.conversion import OrderWarning
from fljax.accounting.events import NeighboringRelation, PrivacyEvent, compose
from fljax.accounting.ledger import Ledger

__all__ = [
    "METHODS",
    "Ledger",
    "NeighboringRelation",
    "OrderWarning",
    "PrivacyEvent",
    "Spent",
    "calibrate",
    "compose",
    "conversion",
    "delta",
    "epsilon",
    "events",
    "rdp",
    "spent",
    "x64",
]
