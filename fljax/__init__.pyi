# What `import fljax` gives: rooms, and names lifted out of them. `__init__.py` reads this file, so
# that a type checker and Python see the same: a further name is one line.
from fljax import accounting as accounting
from fljax import attacks as attacks
from fljax import cli as cli
from fljax import data as data
from fljax import errors as errors
from fljax import interop as interop
from fljax import local as local
from fljax import models as models
from fljax import papers as papers
from fljax import schemes as schemes
from fljax import server as server
from fljax import simulation as simulation
from fljax import testing as testing
from fljax import types as types
from fljax import upload as upload
from fljax._sensitivity import check_sensitivity as check_sensitivity
from fljax.accounting.events import PrivacyEvent as PrivacyEvent
from fljax.local.item import clipped_grad as clipped_grad
from fljax.local.outputs import clip_pytree as clip_pytree
from fljax.local.outputs import clipped_fun as clipped_fun
from fljax.schemes.base import FederatedAlgorithm as FederatedAlgorithm
from fljax.schemes.base import RoundInfo as RoundInfo
from fljax.schemes.base import Scheme as Scheme
from fljax.simulation.api import simulate as simulate
from fljax.upload.gaussian import gaussian_privatizer as gaussian_privatizer
from fljax_kernels._version import __version__ as __version__
