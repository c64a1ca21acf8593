"""How the server turns uploads into the next model."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.server import aggregate as aggregate
    from fljax.server import costs as costs
    from fljax.server import optimizers as optimizers
    from fljax.server import perturbation as perturbation
    from fljax.server import recovery as recovery
    from fljax.server import rounds as rounds
    from fljax.server import stragglers as stragglers
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
