"""Renyi accounting: divergences of mechanisms, conversion to (epsilon, delta), noise on a grid."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.accounting.renyi import allocation as allocation
    from fljax.accounting.renyi import conversion as conversion
    from fljax.accounting.renyi import gaussian_pair as gaussian_pair
    from fljax.accounting.renyi import integer_noise as integer_noise
    from fljax.accounting.renyi import kov as kov
    from fljax.accounting.renyi import mixture_moments as mixture_moments
    from fljax.accounting.renyi import noise_grid as noise_grid
    from fljax.accounting.renyi import poisson_moments as poisson_moments
    from fljax.accounting.renyi import poisson_of_curve as poisson_of_curve
    from fljax.accounting.renyi import rdp as rdp
    from fljax.accounting.renyi import repeat_select as repeat_select
    from fljax.accounting.renyi import without_replacement as without_replacement
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
