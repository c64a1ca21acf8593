"""DP-FedBuff: clients work at their own pace, and the server steps whenever its buffer is full.

Each client trains on the newest model at the time it began. Stragglers (the package's straggler law
says how many) hand in later, on a model that is some releases old by then; one that would be older
than `max_staleness` is dropped, and its client begins anew. When `buffer_size` updates are there,
their clipped sum is noised and released.

Source: Nguyen et al. (2022), "Federated Learning with Buffered Asynchronous Aggregation",
arXiv:2106.06639, Algorithm 1, without weights for staleness.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys, _validate
from fljax.data import parties
from fljax.data.cohorts import Cohort
from fljax.local import steps
from fljax.schemes import base, exact
from fljax.schemes.central import round as central
from fljax.server import optimizers, rounds, stragglers
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.types import LossFn, Params
from fljax.upload import exact_noise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(
    optimizers.ServerSteps,
    steps.LocalSteps,
    stragglers.StragglerConfig,
    exact.ExactConfig,
    central.ReplacedConfig,
    parties.Parties,
):
    """Public numbers of DP-FedBuff; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range, or the buffer is never filled: `min_separation *
        buffer_size` clients and all stragglers are more than there are, under any draw of the law.
    """

    num_parties: int | None = 400
    """Clients, all of which work all the time. none: as many as the data have."""
    buffer_size: int | None = None
    """Updates in a release. none: half as many as let every client be in one of min_separation
    releases.
    """
    max_staleness: int = 4
    """Releases that a client's model may lie behind; an older one is dropped."""
    min_separation: int = 1
    """Releases after which a client may be in one again: it is in at most one of so many that
    follow each other."""
    l2_clip_norm: float = 1.0
    neighboring_relation: central.Relation = "REPLACE_SPECIAL"
    noise_multiplier: float | None = None
    """Standard deviation of the noise on a release's sum / how far one client moves it. None:
    calibrated for the target epsilon.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(min_separation=self.min_separation)
        if self.buffer_size is not None:
            _validate.positive_int(buffer_size=self.buffer_size)
        _validate.non_negative_int(max_staleness=self.max_staleness)
        if self.num_parties is not None:
            self.check_stragglers(self.num_parties)
            spare = self.num_parties - self.min_separation * self.size
            law = self.straggler_pmf(self.num_parties)
            if spare < 0 or not np.sum(law[: spare + 1]) > 0:
                raise ValueError(
                    "Expected a buffer that fills: min_separation * buffer_size + stragglers <= "
                    f"num_parties={self.num_parties} under some draw of the straggler law, got "
                    f"min_separation={self.min_separation} and buffer_size={self.size}."
                )

    @property
    def size(self) -> int:
        """Updates in a release. Raises ValueError where it hangs on num_parties, which is none."""
        if self.buffer_size is not None:
            return self.buffer_size
        return max(1, self.parties // (2 * self.min_separation))


class Buffer(NamedTuple):
    """What the server knows of who works on what; no data have any influence on it but on models.

    models: tree of `[max_staleness + 1, ...]`: the model after `r` releases is in place `r` modulo
    that. releases: int32 `[]`, so far. taken: int32 `[N]`, releases before the model that a client
    works on. ready: int32 `[N]`, releases before the next one that a client may be in.
    """

    models: Params
    releases: jax.Array
    taken: jax.Array
    ready: jax.Array


@base.maker
def make(config: Config, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
    """Builds the algorithm; `num_units` are clients, and must be `num_parties`.

    A round is the time of one release. Where too few clients that may hand in did so, nothing is
    released and all work on (`RoundInfo.lost`). `state.clipping` is the `Buffer`.

    Guarantee: one release is one `event(config)` for the unit "client": whatever model an update
    was trained on, a function of earlier releases, one client's data move its clipped update by at
    most 2 l2_clip_norm (1 if it is zero for one of them), and Gaussian noise is added to the sum.
    Of T rounds a client is in `uses(config, T)` at most, and the claim of a run is the composition
    of so many. The adversary sees all models and who was in which release, with what staleness;
    that is drawn apart from the data, and nothing is gained by anybody's absence: there is no
    amplification by sampling. The server that adds up is trusted. Idealisation: noise is drawn in
    float32 (in whole numbers where it is "exact") with the key's generator; threefry is no
    cryptographic source. RoundInfo is not private.

    Args, Raises: as `base.Make`.
    """
    parties.check_number(config, given.num_units)
    num, size, places = config.parties, config.size, config.max_staleness + 1
    pmf = config.straggler_pmf(num)
    stddev = central.stddev(config)
    grid = (
        exact_noise.grid(
            base.noise_multiplier(config),
            l2_clip_norm=config.l2_clip_norm,
            most_rows=size,
            norms_moved=central.sensitivity(config) / config.l2_clip_norm,
        )
        if exact.asked(config)
        else None
    )
    train = steps.train(
        config,
        loss,
        start=lambda models, place: jax.tree.map(lambda leaf: leaf[place], models),
        optimizer=given.local_optimizer,
    )

    def buffered(here: Round, cohort: Cohort) -> tuple[Round, Clients]:
        """The clients whose updates fill the buffer, or none of them, on their models."""
        buffer: Buffer = here.state.clipping
        place = buffer.releases % places
        models = jax.tree.map(
            lambda all_, now: all_.at[place].set(now), buffer.models, here.state.params
        )
        here = here._replace(shared=buffer._replace(models=models))
        straggle_key, order_key = jax.random.split(here.server_key(_keys.Purpose.STRAGGLE))
        in_time = stragglers.draw(straggle_key, pmf, num).responds & (
            buffer.ready <= buffer.releases
        )
        # Who comes first: any order of those in time, the same for any order of the cohort.
        late = jnp.where(in_time, jax.random.uniform(order_key, (num,)), 2.0)
        chosen = jnp.argsort(jnp.argsort(late)) < size
        chosen &= jnp.sum(in_time) >= size
        known = cohort.client_ids >= 0
        there = known & chosen[jnp.maximum(cohort.client_ids, 0)]
        places_of = jnp.argsort(~there, stable=True)[:size]
        ids, present = cohort.client_ids[places_of], there[places_of]
        rows = jnp.where(present[:, None], cohort.indices[places_of], -1)
        of_model = buffer.taken[jnp.maximum(ids, 0)] % places
        return here, Clients(ids, rows, present, given=of_model)

    def release(here: Round, clients: Clients, sums: Sums) -> Release:
        buffer: Buffer = here.shared
        if grid is None:
            key = here.server_key(_keys.Purpose.NOISE)
            noisy = fljax_kernels.add_gaussian_noise(key, sums.total, stddev)
        else:
            noisy = exact.noised(grid, here, sums.total)
        releases = buffer.releases + 1
        ids = jnp.maximum(clients.ids, 0)
        served = jnp.zeros(num, bool).at[ids].max(clients.present)
        stale = releases - buffer.taken > config.max_staleness
        after = buffer._replace(
            releases=releases,
            taken=jnp.where(served | stale, releases, buffer.taken),
            ready=jnp.where(
                served, buffer.releases + jnp.int32(config.min_separation), buffer.ready
            ),
        )
        full = sums.num_present >= size
        after = jax.tree.map(lambda new, old: jnp.where(full, new, old), after, here.state.clipping)
        return Release(noisy, size, counts=full, clipping=after)

    algorithm = rounds.federated(
        central.clipped_updates(
            train,
            bound=lambda _: config.l2_clip_norm,
            own=lambda here, clients: clients.given,
            start=lambda here: here.shared.models,
            add_up=None if grid is None else exact.add_up(grid),
        ),
        release,
        choose=buffered,
        server_optimizer=given.server_optimizer,
        performance=given.performance,
    )

    def init(params: Params) -> rounds.ServerState:
        models = jax.tree.map(lambda leaf: jnp.stack([leaf] * places), params)
        # Two arrays: one buffer for both could not be given away.
        taken, ready = (jnp.zeros(num, jnp.int32) for _ in range(2))
        begun = Buffer(models, jnp.zeros((), jnp.int32), taken, ready)
        return algorithm.init(params)._replace(clipping=begun)

    return algorithm._replace(init=init)


def uses(config: Config, num_rounds: int) -> int:
    """Most of `num_rounds` releases that one client is in: one of any `min_separation`."""
    return -(-num_rounds // config.min_separation)


event = central.replaced_event

SCHEME = central.scheme(
    summary="buffered asynchronous rounds, clipped updates, central Gaussian noise; unit: client",
    Config=Config,
    make=make,
    event=event,
    uses=uses,
    fitted=parties.fitted,
    non_private=base.non_private,
    population=base.all_join,
    start={
        "data": {"dataset": "writers", "num_clients": 400, "partition": "iid"},
        "model": {"model": "softmax"},
        "scheme": {"num_parties": None, "min_separation": 4, "local_learning_rate": 1.0},
        "privacy": {"target_epsilon": 8.0, "target_delta": 2e-4},
        "run": {"num_rounds": 24},
    },
)
fitted, non_private = SCHEME.fitted, SCHEME.non_private
