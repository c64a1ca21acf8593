"""Where examples come from: files of known formats, fields of a known law, stand-ins."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.data.sources import bundled as bundled
    from fljax.data.sources import cifar as cifar
    from fljax.data.sources import fields as fields
    from fljax.data.sources import hdf5 as hdf5
    from fljax.data.sources import idx as idx
    from fljax.data.sources import images as images
    from fljax.data.sources import leaf as leaf
    from fljax.data.sources import parquet as parquet
    from fljax.data.sources import standins as standins
    from fljax.data.sources import texts as texts
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
