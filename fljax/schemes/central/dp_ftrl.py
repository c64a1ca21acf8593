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
from fljax.accounting import correlated, events
from fljax.data import parties
from fljax.local import steps
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.schemes.central import turns
from fljax.server import optimizers, rounds
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.types import LossFn, Params
from fljax_kernels import correlated as kernel
from fljax_kernels.correlated import Strategy

Correlation = Literal["banded", "buffered", "tree"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(optimizers.ChosenSteps, steps.LocalSteps, central.ReplacedConfig, parties.Parties):
    """Public numbers of DP-FTRL; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range.
    """

    num_parties: int | None = 400
    """Clients, which take turns. none: as many as the data have."""
    min_separation: int = 4
    """Rounds of a cycle: each client is in one of so many that follow each other."""
    correlation: Correlation = "banded"
    """How noise is correlated: "banded" (no more bands than min_separation are best), "buffered" or
    "tree"."""
    bands: int = 4
    """Bands, or buffers, of the correlation; a tree needs no number."""
    rounds_per_start: int = 32
    """Rounds after which correlation begins anew, and the claim counts once more. Best: those of
    the run.
    """
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
        _validate.positive_int(
            min_separation=self.min_separation,
            bands=self.bands,
            rounds_per_start=self.rounds_per_start,
        )
        _validate.one_of(typing.get_args(Correlation), correlation=self.correlation)


def strategy(config: Config) -> Strategy:
    """The matrix C of the configured correlation."""
    count = config.rounds_per_start
    if config.correlation == "tree":
        return correlated.tree(count)
    if config.correlation == "buffered":
        separation = min(config.min_separation, count)
        return correlated.buffered(count, config.bands, min_separation=separation, error="mean")
    return correlated.banded(count, config.bands)


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
    chosen, most = strategy(config), -(-config.parties // config.min_separation)
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


def event(config: Config) -> events.PrivacyEvent:
    """What `rounds_per_start` rounds do to one client's data.

    Raises:
      ValueError: noise_multiplier is None.
    """
    chosen = strategy(config)
    return events.PrivacyEvent(
        mechanism=events.CorrelatedGaussian(
            base.noise_multiplier(config),
            chosen.kind,
            chosen.coefs,
            chosen.num_rounds,
            config.min_separation,
            cyclic=True,
        ),
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation(config.neighboring_relation),
    )


def uses(config: Config, num_rounds: int) -> int:
    """How often correlation begins in `num_rounds` rounds."""
    return -(-num_rounds // config.rounds_per_start)


SCHEME = central.scheme(
    summary="clients take turns unsampled, noise correlated over rounds, central; unit: client",
    Config=Config,
    make=make,
    event=event,
    uses=uses,
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
