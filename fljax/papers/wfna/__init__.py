"""Privacy from the sum's own randomness: errata, training, tables and figures."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.papers.wfna import blocks as blocks
    from fljax.papers.wfna import claims as claims
    from fljax.papers.wfna import errata as errata
    from fljax.papers.wfna import items as items
    from fljax.papers.wfna import paper as paper
    from fljax.papers.wfna import training as training
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
