"""Schemes with noise in the data, measured in nats."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.schemes.channels import compressed_updates as compressed_updates
    from fljax.schemes.channels import embedding_channel as embedding_channel
    from fljax.schemes.channels import natural_channel as natural_channel
    from fljax.schemes.channels import parameter_channel as parameter_channel
    from fljax.schemes.channels import personalized_channel as personalized_channel
    from fljax.schemes.channels import round as round
    from fljax.schemes.channels import white_channel as white_channel
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
