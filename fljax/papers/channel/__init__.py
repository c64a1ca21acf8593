"""Channels and nats: errata, victims, attacks, tables and figures."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.papers.channel import attacks as attacks
    from fljax.papers.channel import claims as claims
    from fljax.papers.channel import errata as errata
    from fljax.papers.channel import items as items
    from fljax.papers.channel import overhead as overhead
    from fljax.papers.channel import paper as paper
    from fljax.papers.channel import sent as sent
    from fljax.papers.channel import victims as victims
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
