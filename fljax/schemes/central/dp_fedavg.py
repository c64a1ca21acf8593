"""DP-FedAvg: clients train locally, their model updates are clipped, summed, and noised once,
centrally.

Source: McMahan, Ramage, Talwar, Zhang (2018), "Learning Differentially Private Recurrent Language
Models", arXiv:1710.06963, Algorithm 1 with flat clipping and the fixed-denominator estimator.
"""

import dataclasses
from typing import Literal

import optax

from fljax import _validate
from fljax.accounting import events
from fljax.local import sgd
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.server.rounds import Performance
from fljax.types import LossFn

fitted = base.fitted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(central.ClippingConfig):
    """Public numbers of DP-FedAvg; every one may be published without loss of privacy.

    The defaults suit `fljax simulate`: real digits, 500 clients.

    Raises:
      ValueError: a number is out of its range.
    """

    sampling_prob: float = 0.5
    """Chance that one client joins one round, in (0, 1]."""
    l2_clip_norm: float = 0.5
    """Bound on a client's update, in the unit of the parameters; where it adapts, the first
    round's.
    """
    noise_multiplier: float | None = None
    """Noise standard deviation / bound, of the whole round. None: calibrated for the target
    epsilon.
    """
    local_learning_rate: float = 0.5
    """Step size of a client's SGD."""
    local_batch_size: int = 20
    """Examples in a step of a client's SGD."""
    num_local_epochs: int = 3
    """Passes of a client over its examples."""
    proximal: float = 0.0
    """Pull of a client's model towards the server's, >= 0: FedProx's mu; 0 is none."""
    server_optimizer: Literal["sgd", "adam", "yogi"] = "sgd"
    """What takes the server's step: SGD with momentum (FedAvg, FedAvgM), FedAdam or FedYogi."""
    server_learning_rate: float = 0.3
    """Step size of the server along the mean update; 1 (with server_momentum 0) is FedAvg."""
    server_momentum: float = 0.9
    """Momentum of the server, in [0, 1): of SGD, or of the first moment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        central.check_config(self)
        _validate.positive(local_learning_rate=self.local_learning_rate)
        _validate.non_negative(proximal=self.proximal)
        _validate.one_of(base.SERVER_OPTIMIZERS, server_optimizer=self.server_optimizer)
        _validate.positive_int(
            local_batch_size=self.local_batch_size, num_local_epochs=self.num_local_epochs
        )


def make(
    config: Config,
    loss: LossFn,
    *,
    num_units: int,
    performance: Performance = Performance(),
    server_optimizer: optax.GradientTransformation | None = None,
    local_optimizer: optax.GradientTransformation | None = None,
) -> base.FederatedAlgorithm:
    """Builds the algorithm; `num_units` are clients, by whose expected number in a round the sum is
    divided.

    Guarantee: one round is (one `event(config)`) for the unit "client" under add-or-remove-one, if
    every client is put into the cohort independently with chance `sampling_prob`. Idealisation:
    noise is drawn in float32 with JAX's threefry generator, which is no cryptographic source.
    RoundInfo is not private.

    Args, Raises: as `base.Make`.
    """
    train = sgd.local_sgd(
        loss,
        learning_rate=config.local_learning_rate,
        batch_size=config.local_batch_size,
        num_epochs=config.num_local_epochs,
        proximal=config.proximal,
        optimizer=local_optimizer,
    )
    optimizer = server_optimizer
    if optimizer is None:
        optimizer = base.server_optimizer(config, config.server_optimizer)
    return central.client_level(
        train, config, num_clients=num_units, server_optimizer=optimizer, performance=performance
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one client's data, whether its bound adapts or not.

    Raises:
      ValueError: noise_multiplier is None.
    """
    return central.sampled_gaussian_event(config, privacy_unit="client")


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    return central.without_clipping(config)


SCHEME = base.Scheme(
    summary="local SGD, clipped client updates, central Gaussian noise; unit: client",
    promise="epsilon",
    Config=Config,
    make=make,
    event=event,
    fitted=fitted,
    non_private=non_private,
)
