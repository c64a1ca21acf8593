"""Bidirectional privacy: attacks on what the paper leaves open."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.papers.bidirectional import attacks as attacks
    from fljax.papers.bidirectional import claims as claims
    from fljax.papers.bidirectional import disguised_membership as disguised_membership
    from fljax.papers.bidirectional import errata as errata
    from fljax.papers.bidirectional import generative as generative
    from fljax.papers.bidirectional import items as items
    from fljax.papers.bidirectional import known_network as known_network
    from fljax.papers.bidirectional import paper as paper
    from fljax.papers.bidirectional import perturbation_leak as perturbation_leak
    from fljax.papers.bidirectional import timing as timing
    from fljax.papers.bidirectional import training as training
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
