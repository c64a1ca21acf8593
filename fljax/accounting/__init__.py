"""What a run costs: events in, epsilon out.

Host functions (`epsilon`, `delta`, `interval`, `spent`, `calibrate`, `statement`, `Ledger`) take events. The pure
functions below them (`rdp`, `gaussian`, `conversion`, `calibration`) take arrays; transform them within `x64()`.
"""

from typing import TYPE_CHECKING

from fljax import _rooms
from fljax.accounting import calibration, conversion, events, gaussian, mixture, pld, rdp, view
from fljax.accounting._x64 import x64
from fljax.accounting.accountant import METHODS, Spent, calibrate, delta, epsilon, interval, spent
from fljax.accounting.conversion import OrderWarning
from fljax.accounting.events import NeighboringRelation, PrivacyEvent, compose
from fljax.accounting.interop import from_dp_event, to_dp_event
from fljax.accounting.ledger import Ledger
from fljax.accounting.mechanisms import Pair, register
from fljax.accounting.words import NOT_COVERED, statement, table

__all__ = [
    "METHODS",
    "NOT_COVERED",
    "Ledger",
    "NeighboringRelation",
    "OrderWarning",
    "Pair",
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
    "register",
    "spent",
    "statement",
    "table",
    "to_dp_event",
    "view",
    "x64",
]

if TYPE_CHECKING:
    from fljax.accounting import accountant as accountant
    from fljax.accounting import bidirectional as bidirectional
    from fljax.accounting import convergence as convergence
    from fljax.accounting import gaussian_pair as gaussian_pair
    from fljax.accounting import groups as groups
    from fljax.accounting import information as information
    from fljax.accounting import interop as interop
    from fljax.accounting import kov as kov
    from fljax.accounting import ledger as ledger
    from fljax.accounting import mechanisms as mechanisms
    from fljax.accounting import replaced_record as replaced_record
    from fljax.accounting import sampled_pld as sampled_pld
    from fljax.accounting import sensitivity as sensitivity
    from fljax.accounting import span as span
    from fljax.accounting import spectrum as spectrum
    from fljax.accounting import view_calibration as view_calibration
    from fljax.accounting import view_design as view_design
    from fljax.accounting import view_paper as view_paper
    from fljax.accounting import view_sparse as view_sparse
    from fljax.accounting import wfna as wfna
    from fljax.accounting import wfna_curves as wfna_curves
    from fljax.accounting import wfna_rounds as wfna_rounds
    from fljax.accounting import words as words
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
