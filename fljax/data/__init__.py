"""Where examples come from: builtin data, partitions into clients, cohorts."""

from typing import TYPE_CHECKING

from fljax import _rooms
from fljax.data import partition as partition
from fljax.data import subjects as subjects
from fljax.data.builtin import load as load
from fljax.data.builtin import register as register
from fljax.data.check import check_examples as check_examples
from fljax.data.check import check_partition as check_partition
from fljax.data.cohorts import ClientData as ClientData
from fljax.data.cohorts import Cohort as Cohort
from fljax.data.cohorts import DealtCohort as DealtCohort
from fljax.data.cohorts import cohort as cohort
from fljax.data.cohorts import dealt as dealt
from fljax.data.cohorts import pooled as pooled
from fljax.data.dataset import Dataset as Dataset
from fljax.data.owners import bound_owned as bound_owned
from fljax.data.sources import fields

# Short names of modules that lie a floor deeper.
_MOVED = {
    "cifar": "sources.cifar",
    "fields": "sources.fields",
    "hdf5": "sources.hdf5",
    "idx": "sources.idx",
    "images": "sources.images",
    "leaf": "sources.leaf",
    "parquet": "sources.parquet",
    "standins": "sources.standins",
    "tables": "sources.tables",
}

if TYPE_CHECKING:
    from fljax.data import arrays as arrays
    from fljax.data import builtin as builtin
    from fljax.data import canaries as canaries
    from fljax.data import channel as channel
    from fljax.data import check as check
    from fljax.data import client_ids as client_ids
    from fljax.data import cohorts as cohorts
    from fljax.data import dataset as dataset
    from fljax.data import facts as facts
    from fljax.data import law as law
    from fljax.data import owners as owners
    from fljax.data import parties as parties
    from fljax.data import partition as partition
    from fljax.data import sources as sources
    from fljax.data import store as store
    from fljax.data import subjects as subjects
    from fljax.data import targets as targets
    from fljax.data import text as text
    from fljax.data.sources import cifar as cifar
    from fljax.data.sources import fields as fields
    from fljax.data.sources import hdf5 as hdf5
    from fljax.data.sources import idx as idx
    from fljax.data.sources import images as images
    from fljax.data.sources import leaf as leaf
    from fljax.data.sources import parquet as parquet
    from fljax.data.sources import standins as standins
    from fljax.data.sources import tables as tables
else:
    __getattr__, __dir__ = _rooms.doors(__name__, _MOVED)
