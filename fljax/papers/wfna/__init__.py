"""Privacy from the sum's own randomness: errata."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.papers.wfna import errata as errata
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
