"""The numbers of a client's own steps, a part of many configs."""

import dataclasses
from collections.abc import Callable
from typing import Any

from fljax import _validate
from fljax.local import sgd
from fljax.types import LossFn


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalSteps(_validate.Checked):
    """Public numbers of a client's SGD.

    Raises:
      ValueError: a number is out of its range.
    """

    local_learning_rate: float = 0.5
    """Step size of a client's SGD."""
    local_batch_size: int = 20
    """Examples in a step of a client's SGD."""
    num_local_epochs: int = 3
    """Passes of a client over its examples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(local_learning_rate=self.local_learning_rate)
        _validate.positive_int(
            local_batch_size=self.local_batch_size, num_local_epochs=self.num_local_epochs
        )


def train(config: LocalSteps, loss: LossFn, **more: Any) -> Callable[..., sgd.LocalResult]:
    """`sgd.local_sgd` with these numbers, and with whatever else it takes."""
    return sgd.local_sgd(
        loss,
        learning_rate=config.local_learning_rate,
        batch_size=config.local_batch_size,
        num_epochs=config.num_local_epochs,
        **more,
    )
