"""What one client does with its own examples."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.local import bounded as bounded
    from fljax.local import clipping as clipping
    from fljax.local import disguised as disguised
    from fljax.local import gaussian_sampling as gaussian_sampling
    from fljax.local import item as item
    from fljax.local import keyed as keyed
    from fljax.local import outputs as outputs
    from fljax.local import personal as personal
    from fljax.local import perturbed as perturbed
    from fljax.local import quantile as quantile
    from fljax.local import sgd as sgd
    from fljax.local import silo as silo
    from fljax.local import silo_query as silo_query
    from fljax.local import steps as steps
    from fljax.local import subject as subject
    from fljax.local import transformed as transformed
    from fljax.local import user as user
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
