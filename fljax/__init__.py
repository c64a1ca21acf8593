"""fljax: federated learning under differential privacy as one XLA program."""

__version__ = "0.1.0"
