"""Privacy of secure sums of records with Gaussian weights and water-filling noise."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.accounting.weighted_sums import curves as curves
    from fljax.accounting.weighted_sums import replaced_record as replaced_record
    from fljax.accounting.weighted_sums import rounds as rounds
    from fljax.accounting.weighted_sums import setups as setups
    from fljax.accounting.weighted_sums import span as span
    from fljax.accounting.weighted_sums import spectrum as spectrum
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
