"""fljax: federated learning under differential privacy as one XLA program."""

import importlib
from typing import TYPE_CHECKING, Any

from fljax import _rooms

if TYPE_CHECKING:
    from fljax import accounting as accounting
    from fljax import attacks as attacks
    from fljax import cli as cli
    from fljax import data as data
    from fljax import errors as errors
    from fljax import local as local
    from fljax import models as models
    from fljax import papers as papers
    from fljax import schemes as schemes
    from fljax import server as server
    from fljax import simulation as simulation
    from fljax import types as types
    from fljax import upload as upload
    from fljax._sensitivity import check_sensitivity
    from fljax.accounting.events import PrivacyEvent
    from fljax.local.item import clipped_grad
    from fljax.local.outputs import clip_pytree, clipped_fun
    from fljax.upload.gaussian import gaussian_privatizer

__all__ = ["PrivacyEvent", "check_sensitivity", "clip_pytree", "clipped_fun", "clipped_grad", "gaussian_privatizer"]
__version__ = "0.1.0"

_WHERE = {
    "PrivacyEvent": "fljax.accounting.events",
    "check_sensitivity": "fljax._sensitivity",
    "clip_pytree": "fljax.local.outputs",
    "clipped_fun": "fljax.local.outputs",
    "clipped_grad": "fljax.local.item",
    "gaussian_privatizer": "fljax.upload.gaussian",
}

if not TYPE_CHECKING:  # a type checker would take any name that is asked for
    _room, _names = _rooms.doors(__name__)

    def __getattr__(name: str) -> Any:
        # On first use: importing JAX takes seconds, and `fljax --help` imports this package.
        return getattr(importlib.import_module(_WHERE[name]), name) if name in _WHERE else _room(name)

    def __dir__() -> list[str]:
        return sorted({*_names(), *__all__})
