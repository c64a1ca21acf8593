"""Other frameworks that carry our rounds: what they take of ours, and what ours takes of them."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.interop import flower as flower
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
