"""What takes the server's step: its optimizers, and their numbers, a part of many configs."""

import dataclasses
from typing import Literal

import optax

from fljax import _validate

SERVER_OPTIMIZERS = ("sgd", "adam", "yogi")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSteps(_validate.Checked):
    """Public numbers of the server's steps.

    Raises:
      ValueError: a number is out of its range.
    """

    server_learning_rate: float = 1.0
    """Step size of the server along the mean update; 1 (with server_momentum 0) is FedAvg."""
    server_momentum: float = 0.0
    """Momentum of the server, in [0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(server_learning_rate=self.server_learning_rate)
        _validate.non_negative(server_momentum=self.server_momentum)
        if not self.server_momentum < 1:
            raise ValueError(
                f"Expected server_momentum < 1, got server_momentum={self.server_momentum!r}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenSteps(ServerSteps):
    """As `ServerSteps`, with a choice of optimizers."""

    server_optimizer: Literal["sgd", "adam", "yogi"] = "sgd"
    """What takes the server's step: SGD with momentum (FedAvg, FedAvgM), FedAdam or FedYogi."""
    server_momentum: float = 0.0
    """Momentum of the server, in [0, 1): of SGD, or of the first moment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(SERVER_OPTIMIZERS, server_optimizer=self.server_optimizer)


def server_optimizer(config: ServerSteps) -> optax.GradientTransformation:
    """The configured one, on the mean update: SGD with momentum (FedAvgM), or the one of
    `ChosenSteps`. Post-processing only.

    The adaptive ones take server_momentum for the first moment, 0.99 for the second, and 1e-3 for
    the degree of adaptivity: updates are smaller than gradients, and noise alone would be blown up
    with less.

    Source: Reddi et al. (2020), "Adaptive Federated Optimization", arXiv:2003.00295, Algorithm 2;
    momentum: Hsu et al. (2019), arXiv:1909.06335.
    """
    kind = config.server_optimizer if isinstance(config, ChosenSteps) else "sgd"
    if kind == "sgd":
        return optax.sgd(config.server_learning_rate, momentum=config.server_momentum or None)
    maker = {"adam": optax.adam, "yogi": optax.yogi}[kind]
    return maker(config.server_learning_rate, b1=config.server_momentum, b2=0.99, eps=1e-3)
