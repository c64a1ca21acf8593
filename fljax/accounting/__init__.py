"""What a run costs: events in, epsilon out.

Host functions (`epsilon`, `delta`, `interval`, `spent`, `calibrate`, `statement`, `Ledger`) take
events. The pure functions below them (`rdp`, `gaussian`, `conversion`, `calibration`) take arrays;
transform them within `x64()`.
"""

from typing import TYPE_CHECKING

from fljax import _rooms
from fljax.accounting import events, gaussian, mixture, pld
from fljax.accounting._x64 import x64
from fljax.accounting.accountant import (
    ACCOUNTANTS,
    METHODS,
    Spent,
    calibrate,
    delta,
    epsilon,
    interval,
    spent,
)
from fljax.accounting.events import NeighboringRelation, PrivacyEvent, compose
from fljax.accounting.interop import from_dp_event, to_dp_event
from fljax.accounting.ledger import Ledger
from fljax.accounting.mechanisms import Pair, register
from fljax.accounting.renyi import conversion, rdp
from fljax.accounting.renyi.conversion import OrderWarning
from fljax.accounting.words import NOT_COVERED, statement, table

__all__ = [
    "ACCOUNTANTS",
    "METHODS",
    "NOT_COVERED",
    "Ledger",
    "NeighboringRelation",
    "OrderWarning",
    "Pair",
    "PrivacyEvent",
    "Spent",
    "bidirectional",
    "calibrate",
    "calibration",
    "compose",
    "conversion",
    "correlated",
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
    "view_calibration",
    "wfna_rounds",
    "x64",
]

# Short names of modules that lie a floor deeper.
_MOVED = {
    "bidirectional": "shared_noise.theta",
    "calibration": "renyi.noise_grid",
    "conversion": "renyi.conversion",
    "gaussian_pair": "renyi.gaussian_pair",
    "kov": "renyi.kov",
    "rdp": "renyi.rdp",
    "span": "weighted_sums.span",
    "view": "shared_noise.exact",
    "view_calibration": "shared_noise.least_noise",
    "wfna_rounds": "weighted_sums.rounds",
}

if TYPE_CHECKING:
    from fljax.accounting import accountant as accountant
    from fljax.accounting import correlated as correlated
    from fljax.accounting import dp_accountants as dp_accountants
    from fljax.accounting import events as events
    from fljax.accounting import finite_pairs as finite_pairs
    from fljax.accounting import float32_tail as float32_tail
    from fljax.accounting import gaussian as gaussian
    from fljax.accounting import groups as groups
    from fljax.accounting import information as information
    from fljax.accounting import interop as interop
    from fljax.accounting import ledger as ledger
    from fljax.accounting import mechanisms as mechanisms
    from fljax.accounting import mixture as mixture
    from fljax.accounting import monte_carlo as monte_carlo
    from fljax.accounting import pld as pld
    from fljax.accounting import pure as pure
    from fljax.accounting import renyi as renyi
    from fljax.accounting import renyi_of_mechanism as renyi_of_mechanism
    from fljax.accounting import risk as risk
    from fljax.accounting import rounding as rounding
    from fljax.accounting import search as search
    from fljax.accounting import shared_noise as shared_noise
    from fljax.accounting import subjects as subjects
    from fljax.accounting import weighted_sums as weighted_sums
    from fljax.accounting import words as words
    from fljax.accounting.renyi import conversion as conversion
    from fljax.accounting.renyi import gaussian_pair as gaussian_pair
    from fljax.accounting.renyi import kov as kov
    from fljax.accounting.renyi import noise_grid as calibration
    from fljax.accounting.renyi import rdp as rdp
    from fljax.accounting.shared_noise import exact as view
    from fljax.accounting.shared_noise import least_noise as view_calibration
    from fljax.accounting.shared_noise import theta as bidirectional
    from fljax.accounting.weighted_sums import rounds as wfna_rounds
    from fljax.accounting.weighted_sums import span as span
else:
    __getattr__, __dir__ = _rooms.doors(__name__, _MOVED)
