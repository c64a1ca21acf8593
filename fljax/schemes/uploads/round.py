"""What the schemes share in which each client hides its own upload: the config, the round, who
straggles.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fljax import _keys, _validate
from fljax.accounting import events
from fljax.data.cohorts import Cohort
from fljax.data.facts import Facts
from fljax.local import sgd
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.server import rounds, stragglers
from fljax.server.rounds import Clients, Performance, Release, Round, Sums
from fljax.types import LossFn, Params

# What `fljax simulate` starts from: few clients, all of which join every round. They name their
# delta, since for so few num_clients ** -1.1 is more than a percent.
START: dict[str, dict[str, Any]] = {
    "data": {"num_clients": 50, "partition": "iid"},
    "model": {"model": "softmax"},
    "scheme": {"num_parties": None},
    "privacy": {"target_epsilon": 8.0, "target_delta": 1e-3},
    "run": {"num_rounds": 20},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Public numbers; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range; nobody is left to protect, or nobody to respond.
    """

    num_parties: int | None = 50
    """Clients, all of which join every round. none: as many as the data have."""
    max_colluders: int = 5
    """Clients that may pool what they know with the server, at most; the guarantee is for the
    others.
    """
    straggler_law: Literal["fixed", "uniform", "bernoulli", "custom"] = "uniform"
    """Clients that do not answer in time: always max_stragglers; any number up to it; every link
    fails by itself; or straggler_probs.
    """
    max_stragglers: int = 5
    """Most stragglers under the first two laws, and what the noise of a secure sum allows for."""
    link_failure_prob: float = 0.05
    """Chance of each link to fail in a round, under the law bernoulli."""
    straggler_probs: tuple[float, ...] = ()
    """Chances of 0, 1, ... stragglers, under the law custom."""
    late_prob: float = 0.0
    """Chance of a straggler's upload to arrive after the average: the server sees it all the
    same.
    """
    l2_clip_norm: float = 0.5
    """Bound on a client's update, in the unit of the parameters."""
    neighboring_relation: Literal["REPLACE_ONE", "REPLACE_SPECIAL"] = "REPLACE_ONE"
    """A client's data exchanged for any others, or for none and so an update of zero: two clip
    norms, or one.
    """
    noise_multiplier: float | None = None
    """Standard deviation of what hides one client / how far its data move what is seen, towards
    those whom the guarantee covers. None: calibrated for the target epsilon.
    """
    local_learning_rate: float = 0.5
    """Step size of a client's SGD."""
    local_batch_size: int = 20
    """Examples in a step of a client's SGD."""
    num_local_epochs: int = 3
    """Passes of a client over its examples."""
    server_learning_rate: float = 1.0
    """Step size of the server along the mean update; 1 (with server_momentum 0) is FedAvg."""
    server_momentum: float = 0.0
    """Momentum of the server, in [0, 1)."""

    def __post_init__(self) -> None:
        _validate.positive_int(
            local_batch_size=self.local_batch_size, num_local_epochs=self.num_local_epochs
        )
        _validate.non_negative_int(
            max_colluders=self.max_colluders, max_stragglers=self.max_stragglers
        )
        _validate.one_of(
            ("REPLACE_ONE", "REPLACE_SPECIAL"), neighboring_relation=self.neighboring_relation
        )
        _validate.one_of(
            ("fixed", "uniform", "bernoulli", "custom"), straggler_law=self.straggler_law
        )
        if self.straggler_law != "custom" and self.straggler_probs:
            raise ValueError(
                f"Expected no straggler_probs under the law {self.straggler_law}, got some."
            )
        _validate.non_negative(
            link_failure_prob=self.link_failure_prob, server_momentum=self.server_momentum
        )
        if self.late_prob != 0:
            _validate.probability(late_prob=self.late_prob)
        for name, value in (
            ("link_failure_prob", self.link_failure_prob),
            ("server_momentum", self.server_momentum),
        ):
            if not value < 1:
                raise ValueError(f"Expected {name} < 1, got {name}={value!r}.")
        _validate.positive(
            l2_clip_norm=self.l2_clip_norm,
            local_learning_rate=self.local_learning_rate,
            server_learning_rate=self.server_learning_rate,
        )
        if self.noise_multiplier is not None:
            _validate.non_negative(noise_multiplier=self.noise_multiplier)
        if self.num_parties is not None:
            _validate.positive_int(num_parties=self.num_parties)
            self._check_parties(self.num_parties)

    def _check_parties(self, num_parties: int) -> None:
        """What must hold between the number of clients and the rest."""
        for name, value, left in (
            ("max_colluders", self.max_colluders, "protect"),
            ("max_stragglers", self.max_stragglers, "respond"),
        ):
            if not value < num_parties:
                raise ValueError(
                    f"Expected {name} < num_parties={num_parties}, else nobody is left to {left}, "
                    f"got {name}={value}."
                )
        if self.straggler_law == "custom":
            law = stragglers.arbitrary(self.straggler_probs, num_parties)
            if not law[:num_parties].sum() > 0:
                raise ValueError(
                    "Expected straggler_probs under which somebody responds, got all N clients "
                    "straggling."
                )

    @property
    def parties(self) -> int:
        """`num_parties`. Raises ValueError where it is none."""
        return base.known(num_parties=self.num_parties)


def population(config: Config) -> base.Population:
    """All clients join every round."""
    return base.Population(num_clients=config.num_parties)


def fitted(config: Any, facts: Facts) -> Any:
    """`config` with num_parties from the data. That nobody but the allowed ones colludes or fails
    is taken on trust.

    Raises:
      PrivacyPreconditionError: num_parties is not the number of clients.
      ValueError: there are too few clients for the colluders, stragglers or graph of the config.
    """
    return base.fitted_clients(config, facts, num_parties=config.num_parties)


def straggler_pmf(config: Config, *, links: Literal["server", "peers"] = "server") -> np.ndarray:
    """The law `[s]` of clients that cannot be used in a round.

    Args:
      config: a law of links applies to each client's link to the server, or
      links: "peers": to its links to all the others as well, every one of which it needs.
    """
    if config.straggler_law == "fixed":
        return stragglers.fixed(config.max_stragglers)
    if config.straggler_law == "uniform":
        return stragglers.uniform(config.max_stragglers)
    if config.straggler_law == "custom":
        return stragglers.arbitrary(config.straggler_probs, config.parties)
    prob = config.link_failure_prob
    if links == "peers":
        prob = stragglers.peers_and_server(config.parties, prob)
    return stragglers.bernoulli(config.parties, prob)


class Uploads(NamedTuple):
    """What a round of uploads is made of: the responders' clipped updates added up, and who they
    are.

    total: float32 tree. responds: bool `[num_parties]`, by client number. num_responders: integer
      `[]`.
    """

    total: Params
    responds: jax.Array
    num_responders: jax.Array


# (round, uploads) -> (sum with noise, whether the round counts)
Hide = Callable[[Round, Uploads], tuple[Params, jax.Array]]


def sensitivity(config: Config) -> float:
    """L2 norm by which neighbouring data move a client's upload, before noise, in its unit."""
    return (2.0 if config.neighboring_relation == "REPLACE_ONE" else 1.0) * config.l2_clip_norm


def stddev(config: Config) -> float:
    """Standard deviation of what hides one client, in the unit of its upload."""
    return base.noise_multiplier(config) * sensitivity(config)


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one client's data, as the worst view that is allowed for shows it.

    Raises ValueError if noise_multiplier is None.
    """
    return events.PrivacyEvent(
        mechanism=events.Gaussian(base.noise_multiplier(config)),
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation(config.neighboring_relation),
    )


def non_private(config: Any) -> Any:
    """The same training, stragglers included, with a clip that never binds and no noise."""
    return dataclasses.replace(config, l2_clip_norm=base.NEVER_CLIPS, noise_multiplier=0.0)


def maker(
    hide: Callable[[Any], Hide], *, links: Literal["server", "peers"] = "server"
) -> base.Make:
    """`make` of a scheme whose uploads `hide(config)` hides; every client needs `links` for its
    upload to count.
    """

    def make(
        config: Any,
        loss: LossFn,
        *,
        num_units: int,
        performance: Performance = Performance(),
        server_optimizer: optax.GradientTransformation | None = None,
        local_optimizer: optax.GradientTransformation | None = None,
    ) -> base.FederatedAlgorithm:
        """Builds the algorithm: local SGD, clipped updates, noise on the sum of those that respond,
        their mean.

        Guarantee: exchanging one client's data moves its clipped update by at most 2 l2_clip_norm
        (1 if it is zero for one of them), and nothing else before noise, so that one round is one
        `event(config)` for the unit "client", for every client that does not collude; towards whom,
        the scheme's module says. Who responds is drawn apart from the data and is public, as is the
        divisor. A round that does not count, or to which nobody responded, leaves the model as it
        was. Parties are semi-honest. Idealisation: noise is drawn in float32 with JAX's threefry
        generator, which is no cryptographic source. RoundInfo is not private.

        Args, Raises: as `base.Make`; `num_units` are clients, and must be `num_parties`.
        """
        _validate.positive_int(num_units=num_units)
        if num_units != config.parties:
            raise ValueError(
                f"Expected num_parties to be the number of clients, {num_units}, since all of them "
                f"join every round, got num_parties={config.parties}."
            )
        pmf, hidden = straggler_pmf(config, links=links), hide(config)
        train = sgd.local_sgd(
            loss,
            learning_rate=config.local_learning_rate,
            batch_size=config.local_batch_size,
            num_epochs=config.num_local_epochs,
            optimizer=local_optimizer,
        )

        def answering(here: Round, cohort: Cohort) -> tuple[Round, Clients]:
            drawn = stragglers.draw(
                here.server_key(_keys.Purpose.STRAGGLE), pmf, config.parties
            ).responds
            answers = (cohort.client_ids >= 0) & drawn[jnp.maximum(cohort.client_ids, 0)]
            rows = jnp.where(answers[:, None], cohort.indices, -1)
            return here, Clients(cohort.client_ids, rows, answers)

        def release(here: Round, clients: Clients, sums: Sums) -> Release:
            ids = jnp.maximum(clients.ids, 0)
            responds = jnp.zeros(config.parties, bool).at[ids].max(clients.present)
            count = jnp.sum(responds)
            noisy, completed = hidden(here, Uploads(sums.total, responds, count))
            share = 1 / jnp.maximum(1, count).astype(jnp.float32)
            mean = jax.tree.map(lambda leaf: leaf * share, noisy)
            return Release(mean, counts=completed & (count > 0))

        return rounds.federated(
            central.clipped_updates(train, bound=lambda _: config.l2_clip_norm),
            release,
            choose=answering,
            server_optimizer=server_optimizer or base.server_optimizer(config),
            performance=performance,
        )

    return make
