"""What five papers claim and compare, remade."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.papers import bidirectional as bidirectional
    from fljax.papers import channel as channel
    from fljax.papers import errata as errata
    from fljax.papers import lightdp as lightdp
    from fljax.papers import one_client as one_client
    from fljax.papers import paper as paper
    from fljax.papers import reproduce as reproduce
    from fljax.papers import subject_dp as subject_dp
    from fljax.papers import verdicts as verdicts
    from fljax.papers import wfna as wfna
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
