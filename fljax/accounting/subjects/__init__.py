"""Privacy of all items of a subject, whose silos each take steps of their own."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.accounting.subjects import printed as printed
    from fljax.accounting.subjects import rounds as rounds
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
