"""What is added to an update before the server may see it."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.upload import controlled_channel as controlled_channel
    from fljax.upload import disguised as disguised
    from fljax.upload import exact_noise as exact_noise
    from fljax.upload import fixed_point as fixed_point
    from fljax.upload import gaussian as gaussian
    from fljax.upload import integer_grid as integer_grid
    from fljax.upload import key_agreement as key_agreement
    from fljax.upload import pair_noise as pair_noise
    from fljax.upload import secure_sum as secure_sum
    from fljax.upload import split_noise as split_noise
    from fljax.upload import water_filling as water_filling
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
