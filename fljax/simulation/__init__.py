"""The host loop: feeds data, checkpoints, reports."""

from typing import TYPE_CHECKING

from fljax import _rooms

# Short names of modules that lie a floor deeper.
_MOVED = {
    "allocator": "devices.allocator",
    "mesh": "devices.mesh",
}

if TYPE_CHECKING:
    from fljax.simulation import api as api
    from fljax.simulation import as_printed as as_printed
    from fljax.simulation import base_model as base_model
    from fljax.simulation import baseline as baseline
    from fljax.simulation import budget as budget
    from fljax.simulation import client_values as client_values
    from fljax.simulation import config as config
    from fljax.simulation import described as described
    from fljax.simulation import description as description
    from fljax.simulation import devices as devices
    from fljax.simulation import evaluation as evaluation
    from fljax.simulation import extend as extend
    from fljax.simulation import feed as feed
    from fljax.simulation import fingerprint as fingerprint
    from fljax.simulation import job as job
    from fljax.simulation import nats_spent as nats_spent
    from fljax.simulation import observers as observers
    from fljax.simulation import outcome as outcome
    from fljax.simulation import own as own
    from fljax.simulation import planted as planted
    from fljax.simulation import predictions as predictions
    from fljax.simulation import record as record
    from fljax.simulation import remarks as remarks
    from fljax.simulation import report as report
    from fljax.simulation import result as result
    from fljax.simulation import run as run
    from fljax.simulation import search as search
    from fljax.simulation import secret_file as secret_file
    from fljax.simulation import seeds as seeds
    from fljax.simulation import task as task
    from fljax.simulation import trained as trained
    from fljax.simulation import verify as verify
    from fljax.simulation import warm_start as warm_start
    from fljax.simulation.devices import allocator as allocator
    from fljax.simulation.devices import mesh as mesh
else:
    __getattr__, __dir__ = _rooms.doors(__name__, _MOVED)
