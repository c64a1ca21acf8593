"""Channels and nats: errata."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.papers.channel import errata as errata
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
