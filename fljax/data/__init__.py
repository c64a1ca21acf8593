"""Where examples come from: builtin data, partitions into clients, cohorts."""

from fljax.data import fields as fields
from fljax.data import partition as partition
from fljax.data import subjects as subjects
from fljax.data.builtin import Dataset as Dataset
from fljax.data.builtin import load as load
from fljax.data.check import check_examples as check_examples
from fljax.data.check import check_partition as check_partition
from fljax.data.cohort import ClientData as ClientData
from fljax.data.cohort import Cohort as Cohort
from fljax.data.cohort import cohort as cohort
