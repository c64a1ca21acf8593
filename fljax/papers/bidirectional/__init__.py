"""Bidirectional privacy: attacks on what the paper leaves open."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.papers.bidirectional import disguised_membership as disguised_membership
    from fljax.papers.bidirectional import errata as errata
    from fljax.papers.bidirectional import known_network as known_network
    from fljax.papers.bidirectional import perturbation_leak as perturbation_leak
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
