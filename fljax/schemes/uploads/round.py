"""What the schemes share in which each client hides its own upload: the config, the round, who
straggles.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _keys, _validate
from fljax.accounting.shared_noise import adversaries
from fljax.data import parties
from fljax.data.cohorts import Cohort
from fljax.local import steps
from fljax.schemes import base, exact
from fljax.schemes.central import round as central
from fljax.schemes.central import turns
from fljax.server import optimizers, rounds, stragglers
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.types import LossFn, Params

# What `fljax simulate` starts from: few clients, all of which join every round. They name their
# delta, since for so few num_clients ** -1.1 is more than a percent.
START: dict[str, dict[str, Any]] = {
    "data": {"num_clients": 50, "partition": "iid"},
    "model": {"model": "softmax"},
    "scheme": {"num_parties": None, "server_momentum": 0.5},
    "privacy": {"target_epsilon": 8.0, "target_delta": 1e-3},
    "run": {"num_rounds": 20},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(
    optimizers.ServerSteps,
    steps.LocalSteps,
    stragglers.StragglerConfig,
    central.ReplacedConfig,
    parties.Parties,
):
    """Public numbers; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range; nobody is left to protect, or nobody to respond.
    """

    max_colluders: int = 5
    """Clients that may pool what they know with the server, at most; the guarantee is for the
    others.
    """
    late_prob: float = 0.0
    """Chance of a straggler's upload to arrive after the average: the server sees it all the
    same.
    """
    noise_multiplier: float | None = None
    """Standard deviation of what hides one client / how far its data move what is seen, towards
    those whom the guarantee covers. None: calibrated for the target epsilon.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.non_negative_int(max_colluders=self.max_colluders)
        if self.late_prob != 0:
            _validate.probability(late_prob=self.late_prob)
        if self.num_parties is not None:
            self._check_parties(self.num_parties)

    def _check_parties(self, num_parties: int) -> None:
        """What must hold between the number of clients and the rest."""
        if not self.max_colluders < num_parties:
            raise ValueError(
                f"Expected max_colluders < num_parties={num_parties}, else nobody is left to "
                f"protect, got max_colluders={self.max_colluders}."
            )
        self.check_stragglers(num_parties)


def reached(
    config: Config,
    key: jax.Array,
    num_rounds: int,
    *,
    links: Literal["server", "peers"] = "server",
) -> np.ndarray:
    """Int `[T, N]`: what became of every client's upload in the rounds of a run with this key,
    drawn again.
    """
    pmf = config.straggler_pmf(config.parties, links=links)

    def one(round_index: jax.Array) -> jax.Array:
        straggle_key = _keys.server_key(key, round_index, _keys.Purpose.STRAGGLE)
        found = stragglers.draw(straggle_key, pmf, config.parties, late_prob=config.late_prob)
        late = jnp.where(found.late, adversaries.LATE, adversaries.NEVER)
        return jnp.where(found.responds, adversaries.IN_TIME, late)

    return np.asarray(jax.jit(jax.vmap(one))(jnp.arange(num_rounds)))


class Uploads(NamedTuple):
    """What a round of uploads is made of: the responders' clipped updates added up, and who they
    are.

    total: tree, float32, or int32 of an `add_up`. responds: bool `[num_parties]`, by client number,
      who sends an upload that arrives in time, if only of noise. num_responders: integer `[]`.
    """

    total: Params
    responds: jax.Array
    num_responders: jax.Array


class Hidden(NamedTuple):
    """The sum with noise; whether the round counts; the next state of noise that is correlated over
    rounds.
    """

    total: Params
    counts: jax.Array | bool = True
    noise: Any = ()


Hide = Callable[[Round, Uploads], Hidden]


def answering(
    config: Config, links: Literal["server", "peers"] = "server", cycle: int = 1
) -> rounds.Choose:
    """The clients of a cohort whose uploads arrive in time, drawn anew each round.

    Where a cycle has several rounds, those whose turn it is; `shared` says who else answers.
    """
    pmf = config.straggler_pmf(config.parties, links=links)
    most = -(-config.parties // cycle)

    def choose(here: Round, cohort: Cohort) -> tuple[Round, Clients]:
        straggle_key = here.server_key(_keys.Purpose.STRAGGLE)
        drawn = stragglers.draw(straggle_key, pmf, config.parties).responds
        answers = (cohort.client_ids >= 0) & drawn[jnp.maximum(cohort.client_ids, 0)]
        responds = jnp.zeros(config.parties, bool)
        here = here._replace(shared=responds.at[jnp.maximum(cohort.client_ids, 0)].max(answers))
        if cycle == 1:
            rows = jnp.where(answers[:, None], cohort.indices, -1)
            return here, Clients(cohort.client_ids, rows, answers)
        works = answers & turns.has_turn(cohort.client_ids, here, cycle)
        places = jnp.argsort(~works, stable=True)[:most]
        rows = jnp.where(works[places][:, None], cohort.indices[places], -1)
        return here, Clients(cohort.client_ids[places], rows, works[places])

    return choose


def maker(
    hide: Callable[[Any], Hide],
    *,
    links: Literal["server", "peers"] = "server",
    cycle: Callable[[Any], int] = lambda config: 1,
    noise: Callable[[Any], Callable[[Params], Any]] = lambda config: lambda params: (),
    add_up: Callable[[Any], exact.AddUp | None] = lambda config: None,
) -> base.Make:
    """`make` of a scheme whose uploads `hide(config)` hides; every client needs `links` for its
    upload to count.

    cycle: rounds of which each client's data are in one. noise: the first state of what `hide`
    keeps of its noise. add_up: of a config whose uploads are no float32 numbers; None: they are.
    """

    @base.maker
    def make(config: Any, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
        """Builds the algorithm: local SGD, clipped updates, noise on the sum of those that respond,
        their mean.

        Guarantee: exchanging one client's data moves its clipped update by at most 2 l2_clip_norm
        (1 if it is zero for one of them), and nothing else before noise, so that one round (or all
        of a start, where noise is correlated over them) is one `event(config)` for the unit
        "client", for every client that does not collude; towards whom,
        the scheme's module says. Who responds is drawn apart from the data and is public, as is the
        divisor. A round that does not count, or to which nobody responded, leaves the model as it
        was. Parties are semi-honest. Idealisation: noise is drawn in float32 (in whole numbers
        where it is "exact") with the key's generator; threefry is no cryptographic source.
        RoundInfo is not private.

        Args, Raises: as `base.Make`; `num_units` are clients, and must be `num_parties`.
        """
        parties.check_number(config, given.num_units)
        hidden = hide(config)
        train = steps.train(config, loss, optimizer=given.local_optimizer)

        def release(here: Round, clients: Clients, sums: Sums) -> Release:
            count = sums.num_present
            found = hidden(here, Uploads(sums.total, here.shared, jnp.sum(here.shared)))
            share = 1 / jnp.maximum(1, count).astype(jnp.float32)
            mean = jax.tree.map(lambda leaf: leaf * share, found.total)
            return Release(mean, counts=found.counts & (count > 0), clipping=found.noise)

        return rounds.federated(
            central.clipped_updates(
                train, bound=lambda _: config.l2_clip_norm, add_up=add_up(config)
            ),
            release,
            choose=answering(config, links, cycle(config)),
            server_optimizer=given.server_optimizer,
            performance=given.performance,
            clipping=noise(config),
            in_place=cycle(config) == 1,
        )

    return make


scheme = functools.partial(
    base.Scheme,
    promise="epsilon",
    Config=Config,
    event=central.replaced_event,
    fitted=parties.fitted,
    non_private=base.non_private,
    noise_at="client",
    start=START,
    population=base.all_join,
)
