"""Privacy of Gaussian noise that pairs of clients share: joint views, certificates, least noise."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.accounting.shared_noise import adversaries as adversaries
    from fljax.accounting.shared_noise import colluders as colluders
    from fljax.accounting.shared_noise import exact as exact
    from fljax.accounting.shared_noise import exposure as exposure
    from fljax.accounting.shared_noise import graph as graph
    from fljax.accounting.shared_noise import least_noise as least_noise
    from fljax.accounting.shared_noise import printed as printed
    from fljax.accounting.shared_noise import sparse as sparse
    from fljax.accounting.shared_noise import star_mesh as star_mesh
    from fljax.accounting.shared_noise import theta as theta
    from fljax.accounting.shared_noise import unequal_clients as unequal_clients
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
