"""What a run writes: its folder, checkpoints and record."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.simulation.record import chain as chain
    from fljax.simulation.record import checkpoint as checkpoint
    from fljax.simulation.record import client_states as client_states
    from fljax.simulation.record import folder as folder
    from fljax.simulation.record import provenance as provenance
    from fljax.simulation.record import run_record as run_record
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
