"""The non-private model that a run is compared with: FedAvg, tuned for the task and never for the
scheme beside it.
"""

from typing import NamedTuple

from fljax.schemes import base
from fljax.schemes.central import dp_fedavg
from fljax.server.rounds import Performance
from fljax.simulation.config import ModelConfig
from fljax.types import LossFn


class Settings(NamedTuple):
    """learning_rate: of clients' SGD. batch_size: examples in a step. num_epochs: passes of a
    client over its examples in one round. server_momentum: of the server, which steps along the
    plain mean of the updates.
    """

    learning_rate: float
    batch_size: int = 20
    num_epochs: int = 5
    server_momentum: float = 0.9


# Measured by bench/rounds/baseline.py on the tasks that schemes start from and on other data;
# the numbers are in bench/results/baseline-cpu.json.
_OF_MODEL = {name: Settings(learning_rate=0.3) for name in ("softmax", "mlp", "cnn", "token_lstm")}
_OF_OTHERS = Settings(0.1)
# Squared loss bends alike everywhere: larger steps diverge, and momentum overshoots.
_SQUARED = Settings(0.1, server_momentum=0.0)


def settings(config: ModelConfig) -> Settings:
    """The settings for this model and loss: a fixed choice, the same whatever scheme a run has."""
    return _SQUARED if config.loss == "squared" else _OF_MODEL.get(config.model, _OF_OTHERS)


def algorithm(
    config: ModelConfig,
    loss: LossFn,
    *,
    num_clients: int,
    sampling_prob: float,
    performance: Performance,
) -> base.FederatedAlgorithm:
    """FedAvg on cohorts that each client joins with chance `sampling_prob`: no clipping, no noise,
    no guarantee.

    Everybody who is sampled answers, also where the scheme beside it loses clients or rounds.
    """
    chosen = settings(config)
    plain = dp_fedavg.Config(
        sampling_prob=sampling_prob,
        l2_clip_norm=base.NEVER_CLIPS,
        noise_multiplier=0.0,
        local_learning_rate=chosen.learning_rate,
        local_batch_size=chosen.batch_size,
        num_local_epochs=chosen.num_epochs,
        server_learning_rate=1.0,
        server_momentum=chosen.server_momentum,
    )
    return dp_fedavg.make(plain, loss, num_units=num_clients, performance=performance)
