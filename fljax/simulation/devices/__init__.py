"""Meshes, processes, memory: what a run computes on."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.simulation.devices import allocator as allocator
    from fljax.simulation.devices import memory as memory
    from fljax.simulation.devices import mesh as mesh
    from fljax.simulation.devices import processes as processes
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
