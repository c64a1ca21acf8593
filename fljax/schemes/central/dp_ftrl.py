"""DP-FTRL: clients take turns, nobody is sampled, and later rounds take back part of the noise.

Epsilon owes nothing to sampling, which many federated systems cannot promise: the noise of rounds
is correlated, by a binary tree as in the paper, or by matrices that leave less of it.

Source: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu (2021), "Practical and Private (Deep) Learning
without Sampling or Shuffling", arXiv:2103.00039, Algorithm 1 with restarts; several epochs:
arXiv:2306.08153.
"""

import dataclasses
import typing
from typing import Literal

from fljax import _validate
from fljax.data import parties
from fljax.local import steps
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.schemes.central import turns, unsampled
from fljax.server import optimizers, rounds
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.types import LossFn, Params
from fljax_kernels import correlated as kernel

Correlation = Literal["banded", "buffered", "dense_banded", "tree"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(
    optimizers.ChosenSteps,
    steps.LocalSteps,
    central.ReplacedConfig,
    unsampled.TurnsConfig,
    parties.Parties,
):
    """Public numbers of DP-FTRL; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range.
    """

    num_parties: int | None = 400
    """Clients, which take turns. none: as many as the data have."""
    min_separation: int = 4
    """Rounds of a cycle: each client is in one of so many that follow each other."""
    correlation: Correlation = "banded"
    """How noise is correlated: "banded" (no more bands than min_separation are best),
    "dense_banded" (bands of each round's own), "buffered" or "tree"."""
    l2_clip_norm: float = 0.5
    server_learning_rate: float = 0.3
    server_momentum: float = 0.9
    neighboring_relation: central.Relation = "REPLACE_SPECIAL"
    noise_multiplier: float | None = None
    """Standard deviation of the noise before it is correlated / how far one client moves one
    round. None: calibrated for the target epsilon.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(typing.get_args(Correlation), correlation=self.correlation)


@base.maker
def make(config: Config, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
    """Builds the algorithm; `num_units` are clients, and must be `num_parties`.

    Client i is in the rounds that are i modulo min_separation. `state.clipping` is the state of the
    noise; its memory is `strategy(config).num_buffers` models.

    Guarantee: `rounds_per_start` rounds are one `event(config)` for the unit "client", and fewer
    no more than that: whatever model an update was trained on, one client's data move its clipped
    update by at most 2 l2_clip_norm (1 if it is zero for one of them), in rounds that are known
    before the run. The adversary sees all models and knows who was in which round: there is no
    amplification by sampling. The server that adds up is trusted. Idealisation: noise is drawn in
    float32 with the key's generator; threefry is no cryptographic source. RoundInfo is not
    private.

    Args, Raises: as `base.Make`.
    """
    parties.check_number(config, given.num_units)
    train = steps.train(config, loss, optimizer=given.local_optimizer)
    chosen, most = unsampled.strategy(config), -(-config.parties // config.min_separation)
    noisy = turns.release(chosen, central.stddev(config), config.parties / config.min_separation)

    def release(here: Round, clients: Clients, sums: Sums) -> Release:
        return noisy(here, sums)

    def first(params: Params) -> kernel.State:
        return kernel.init(chosen, params)

    return rounds.federated(
        central.clipped_updates(train, bound=lambda _: config.l2_clip_norm),
        release,
        choose=turns.choose(config.min_separation, most),
        server_optimizer=given.server_optimizer,
        performance=given.performance,
        clipping=first,
    )


SCHEME = central.scheme(
    summary="clients take turns unsampled, noise correlated over rounds, central; unit: client",
    Config=Config,
    make=make,
    event=unsampled.event,
    uses=unsampled.uses,
    fitted=parties.fitted,
    non_private=base.non_private,
    population=base.all_join,
    start={
        "data": {"num_clients": 400, "partition": "iid"},
        "scheme": {"num_parties": None},
        "privacy": {"target_delta": 2e-4},
        "run": {"num_rounds": 32},
    },
)
fitted, non_private = SCHEME.fitted, SCHEME.non_private
strategy, event, uses = unsampled.strategy, unsampled.event, unsampled.uses
