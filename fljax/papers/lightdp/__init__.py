"""LightDP-FL: its bound on convergence, its sensitivity, and what it is compared with."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.papers.lightdp import claims as claims
    from fljax.papers.lightdp import convergence as convergence
    from fljax.papers.lightdp import dordis as dordis
    from fljax.papers.lightdp import errata as errata
    from fljax.papers.lightdp import items as items
    from fljax.papers.lightdp import paper as paper
    from fljax.papers.lightdp import sensitivity as sensitivity
    from fljax.papers.lightdp import timing as timing
    from fljax.papers.lightdp import training as training
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
