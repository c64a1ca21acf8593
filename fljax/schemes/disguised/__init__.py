"""Schemes whose server perturbs the model: bidirectional privacy and its baselines."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.schemes.disguised import bidirectional as bidirectional
    from fljax.schemes.disguised import mp_cdp as mp_cdp
    from fljax.schemes.disguised import mp_dp_naive as mp_dp_naive
    from fljax.schemes.disguised import round as round
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
