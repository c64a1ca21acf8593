"""fljax: federated learning under differential privacy as one XLA program."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fljax._sensitivity import check_sensitivity
    from fljax.local.item import clipped_grad
    from fljax.upload.gaussian import gaussian_privatizer

__all__ = ["check_sensitivity", "clipped_grad", "gaussian_privatizer"]
__version__ = "0.1.0"

_WHERE = {
    "check_sensitivity": "fljax._sensitivity",
    "clipped_grad": "fljax.local.item",
    "gaussian_privatizer": "fljax.upload.gaussian",
}
_ROOMS = ("accounting", "data", "local", "models", "schemes", "server", "simulation", "upload")


def __getattr__(name: str) -> Any:
    # On first use: importing JAX takes seconds, and `fljax --help` imports this package.
    if name in _ROOMS:
        return importlib.import_module(f"fljax.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_ROOMS])
