"""fljax: federated learning under differential privacy as one XLA program."""

from fljax import _rooms

# Importing JAX takes seconds, and `fljax --help` imports this package: names come on first use.
_lifted = _rooms.lifted(__name__)
__all__ = sorted(name for name in _lifted if not name.startswith("_"))
__getattr__, __dir__ = _rooms.doors(__name__, lifted=_lifted)
