"""Schemes in which each silo trains and adds its own noise, for subjects or for records."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.schemes.silos import dp_psac as dp_psac
    from fljax.schemes.silos import dp_sgd as dp_sgd
    from fljax.schemes.silos import fedavg as fedavg
    from fljax.schemes.silos import higradavg as higradavg
    from fljax.schemes.silos import higradavg_sum as higradavg_sum
    from fljax.schemes.silos import item_sum_cap as item_sum_cap
    from fljax.schemes.silos import local_group_dp as local_group_dp
    from fljax.schemes.silos import local_item_dp as local_item_dp
    from fljax.schemes.silos import round as round
    from fljax.schemes.silos import subject_ledger as subject_ledger
    from fljax.schemes.silos import subject_sampled as subject_sampled
    from fljax.schemes.silos import user_ldp as user_ldp
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
