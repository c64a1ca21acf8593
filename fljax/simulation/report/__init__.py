"""The page about a run, and its figures."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.simulation.report import attack_figures as attack_figures
    from fljax.simulation.report import client_accuracy as client_accuracy
    from fljax.simulation.report import figures as figures
    from fljax.simulation.report import information as information
    from fljax.simulation.report import picture as picture
    from fljax.simulation.report import run_page as run_page
    from fljax.simulation.report import several as several
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
