"""DP-FedAvg: clients train locally, their model updates are clipped, summed, and noised once,
centrally.

Source: McMahan, Ramage, Talwar, Zhang (2018), "Learning Differentially Private Recurrent Language
Models", arXiv:1710.06963, Algorithm 1 with flat clipping and the fixed-denominator estimator.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from fljax import _validate
from fljax.local import clipping, sgd, steps
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.schemes.central import turns
from fljax.server import optimizers
from fljax.types import LossFn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(
    optimizers.ChosenSteps,
    steps.LocalSteps,
    turns.BandedConfig,
    clipping.ClippingConfig,
    central.SampledConfig,
):
    """Public numbers of DP-FedAvg; every one may be published without loss of privacy.

    The defaults suit `fljax simulate`: real digits, 500 clients.

    Raises:
      ValueError: a number is out of its range.
    """

    l2_clip_norm: float = 0.5
    """Bound on a client's update, in the unit of the parameters; where it adapts, the first
    round's.
    """
    proximal: float = 0.0
    """Pull of a client's model towards the server's, >= 0: FedProx's mu; 0 is none."""
    server_learning_rate: float = 0.3
    server_momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.non_negative(proximal=self.proximal)


@base.maker
def make(config: Config, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
    """Builds the algorithm; `num_units` are clients, by whose expected number in a round the sum is
    divided.

    Guarantee: one round is one `event(config)` for the unit "client" under add-or-remove-one, if
    every client is put into the cohort independently with chance `sampling_prob`. With banded noise
    a run is `uses(config, num_rounds)` of them: a client may join one of any `bands` rounds, and is
    put into each cohort with chance `sampling_prob * bands`; the round lets in whose turn it is.
    Sampling by allocation, one event is `allocation_rounds` rounds, or `banded_for` with banded
    noise; all clients are in each cohort, and the round lets in whose round it is, which nobody
    else may learn.
    Idealisation: noise is drawn in float32 (in whole numbers where it is "exact") with the key's
    generator; threefry is no cryptographic source. RoundInfo is not private.

    Args, Raises: as `base.Make`.
    """
    train = steps.train(config, loss, proximal=config.proximal, optimizer=given.local_optimizer)
    return algorithm(train, config, given)


def algorithm(
    train: Callable[..., sgd.LocalResult], config: Config, given: base.Given
) -> base.FederatedAlgorithm:
    """As `make`, of clients that do `train`, which is as `local_sgd` returns it, whatever that is.

    Guarantee: as `make`.
    """
    return central.client_level(
        train,
        config,
        given,
        noise=turns.noise,
        choose=turns.of_round(config),
        join_prob=turns.join_prob(config),
    )


event = turns.event
uses = turns.uses

# Of a model that is fine-tuned: clients go over their text once, as far as little moves it.
_START_OF_LORA: dict[str, dict[str, Any]] = {
    "data": {"dataset": "roles"},
    "scheme": {
        "sampling_prob": 0.1,
        "num_local_epochs": 1,
        "l2_clip_norm": 0.3,
        "server_momentum": 0.0,
    },
    "run": {"num_rounds": 20},
}

SCHEME = central.scheme(
    summary="local SGD, clipped client updates, central Gaussian noise; unit: client",
    Config=Config,
    make=make,
    event=event,
    uses=uses,
    normals=turns.normals,
    non_private=central.non_private,
    start_of_lora=_START_OF_LORA,
)
fitted, non_private = SCHEME.fitted, SCHEME.non_private
