"""Schemes in which clients hide their uploads: LightDP-FL and what it compares with."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.schemes.uploads import distributed_dgauss as distributed_dgauss
    from fljax.schemes.uploads import ideal_sums as ideal_sums
    from fljax.schemes.uploads import lightdp as lightdp
    from fljax.schemes.uploads import local_dp as local_dp
    from fljax.schemes.uploads import modular as modular
    from fljax.schemes.uploads import round as round
    from fljax.schemes.uploads import secure_sums as secure_sums
    from fljax.schemes.uploads import skellam as skellam
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
