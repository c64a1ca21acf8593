"""The host loop: feeds data, checkpoints, reports."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.simulation import allocator as allocator
    from fljax.simulation import attack_figures as attack_figures
    from fljax.simulation import baseline as baseline
    from fljax.simulation import books as books
    from fljax.simulation import checkpoint as checkpoint
    from fljax.simulation import clients as clients
    from fljax.simulation import compare as compare
    from fljax.simulation import compare_report as compare_report
    from fljax.simulation import config as config
    from fljax.simulation import feed as feed
    from fljax.simulation import figures as figures
    from fljax.simulation import fingerprint as fingerprint
    from fljax.simulation import folder as folder
    from fljax.simulation import memory as memory
    from fljax.simulation import mesh as mesh
    from fljax.simulation import nats as nats
    from fljax.simulation import printed as printed
    from fljax.simulation import processes as processes
    from fljax.simulation import progress as progress
    from fljax.simulation import remarks as remarks
    from fljax.simulation import report as report
    from fljax.simulation import run as run
    from fljax.simulation import seeds as seeds
    from fljax.simulation import spending as spending
    from fljax.simulation import subject_claims as subject_claims
    from fljax.simulation import task as task
    from fljax.simulation import watchers as watchers
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
