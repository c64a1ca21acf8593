"""Who watches a run: progress on a terminal, trackers."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.simulation.observers import progress as progress
    from fljax.simulation.observers import trackers as trackers
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
