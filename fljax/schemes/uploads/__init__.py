"""Schemes in which clients hide their uploads: LightDP-FL and what it compares with."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.schemes.uploads import adversaries as adversaries
    from fljax.schemes.uploads import he_dp as he_dp
    from fljax.schemes.uploads import ideal_sums as ideal_sums
    from fljax.schemes.uploads import lightdp as lightdp
    from fljax.schemes.uploads import local_dp as local_dp
    from fljax.schemes.uploads import round as round
    from fljax.schemes.uploads import secagg_dp as secagg_dp
    from fljax.schemes.uploads import smpc_dp as smpc_dp
    from fljax.schemes.uploads import swiftagg_dp as swiftagg_dp
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
