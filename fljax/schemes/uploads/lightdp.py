"""LightDP-FL: every upload carries own noise and noise shared with peers, which cancels in the
average.

One message a round: stragglers leave their pairs' noise in the average, and nothing is ever
unmasked. Privacy is that of the exact joint view (`fljax.accounting.shared_noise.exact`); the
paper's condition is kept beside it for comparison only.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", equations (4) and (7), with clipped updates, which the paper lacks, sparse graphs, and
noise that may be correlated over rounds.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.accounting import correlated, events
from fljax.accounting.shared_noise import adversaries, colluders, least_noise
from fljax.schemes.central import round as central
from fljax.schemes.central import unsampled
from fljax.schemes.uploads import round as uploads
from fljax.server import costs as costs_lib
from fljax.server.rounds import Round
from fljax.types import Params
from fljax.upload import pair_noise
from fljax_kernels import correlated as kernel
from fljax_kernels.pairwise import graphs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(uploads.Config, unsampled.TurnsConfig):
    """As `uploads.round.Config`; a client's own noise and its pairs' follow from noise_multiplier,
    the ratio, the graph and the colluders: see `stddev`.

    With `correlation` each upload carries its share of what takes back earlier rounds' noise, own
    and of pairs. Clients that have no turn upload noise alone.

    Raises:
      ValueError: as there; or a graph that does not exist, or in which all neighbours of a client
        may collude; or clients take turns whose noise is not correlated.
    """

    graph: Literal["complete", "k_regular"] = "complete"
    """Who shares noise with whom."""
    degree: int = 20
    """Neighbours of each client, for the graph k_regular."""
    graph_seed: int = 0
    """Public seed of the graph k_regular."""
    failure_prob: float = 0.0
    """Chance per round that the graph k_regular fails, part of delta: it lets more clients collude,
    if who does is settled before the graph is drawn. 0: whoever colludes.
    """
    pair_variance_ratio: float | None = None
    """Variance of a pair's noise / variance of own noise. None: least noise in the average under
    the straggler law.
    """
    draw: Literal["pairs", "joint_law"] = "pairs"
    """How noise is simulated: pair by pair, or (complete graph) from the joint law of all clients,
    which is faster.
    """

    def __post_init__(self) -> None:
        _validate.one_of(("complete", "k_regular"), graph=self.graph)
        _validate.one_of(("pairs", "joint_law"), draw=self.draw)
        _validate.non_negative_int(graph_seed=self.graph_seed)
        _validate.below_one(failure_prob=self.failure_prob)
        if self.pair_variance_ratio is not None:
            _validate.non_negative(pair_variance_ratio=self.pair_variance_ratio)
        _validate.positive_int(degree=self.degree)
        if self.graph == "k_regular" and self.draw != "pairs":
            raise ValueError(
                f"Expected draw='pairs' for the graph k_regular, got draw={self.draw!r}."
            )
        super().__post_init__()
        if self.correlation == "none" and self.min_separation != 1:
            raise ValueError(
                "Expected min_separation=1 with correlation='none', where all clients' data are in "
                f"every round, got min_separation={self.min_separation}."
            )

    def _check_parties(self, num_parties: int) -> None:
        super()._check_parties(num_parties)
        if self.graph == "complete":
            return
        most = 0 if self.failure_prob else self.max_colluders
        if not most < self.degree < num_parties or self.degree % 2 * num_parties % 2:
            raise ValueError(
                f"Expected degree above max_colluders={self.max_colluders} (else all neighbours of "
                f"a client may collude, unless failure_prob > 0), below num_parties={num_parties}, "
                f"and even if that is odd, got degree={self.degree}."
            )


@functools.lru_cache(maxsize=16)
def _edges(graph: str, num_clients: int, degree: int, seed: int) -> np.ndarray:
    if graph == "complete":
        return graphs.complete(num_clients)
    return graphs.k_regular(num_clients, degree, np.random.default_rng(seed))


def edges(config: Config) -> np.ndarray:
    """The public graph, int32 `[E, 2]`."""
    return _edges(config.graph, config.parties, config.degree, config.graph_seed)


def variance_ratio(config: Config) -> float:
    """Variance of a pair's noise / variance of own noise: as configured, or the exact optimum.

    Where all clients may straggle at once, that is the optimum given that somebody responds.
    """
    if config.pair_variance_ratio is not None:
        return config.pair_variance_ratio
    num_clients = config.parties
    pmf = config.straggler_pmf(num_clients)[:num_clients]
    straggling = least_noise.straggler_moments(num_clients, pmf / pmf.sum()).straggling
    honest = num_clients - config.max_colluders
    if config.graph == "complete":
        return float(least_noise.best_ratio(honest, straggling))
    ways = least_noise.honest_neighbors(
        num_clients, config.degree, config.max_colluders, config.failure_prob
    )
    straggling *= config.degree / (num_clients - 1)
    return float(least_noise.best_ratio(honest, straggling, ways=max(ways, 1)))


@functools.lru_cache(maxsize=64)
def _unit_mu(config: Config) -> float:
    """The mu of a round for sensitivity 1 and own noise of stddev 1; `config` without its noise
    multiplier.
    """
    return colluders.unit_mu(
        None if config.graph == "complete" else edges(config),
        num_clients=config.parties,
        variance_ratio=variance_ratio(config),
        num_colluders=config.max_colluders,
        failure_prob=config.failure_prob,
    )


def _bare(config: Config) -> Config:
    """What `_unit_mu` depends on, and no more of it: it is remembered."""
    return dataclasses.replace(
        config, noise_multiplier=None, l2_clip_norm=1.0, correlation="none", min_separation=1
    )


def stddev(config: Config) -> float:
    """Standard deviation of a client's own noise, in the unit of its upload.

    With the noise of its pairs it is, to the worst view that is allowed for, Gaussian noise of
    noise_multiplier times the sensitivity.
    """
    return central.stddev(config) * _unit_mu(_bare(config))


def hide(config: Config) -> uploads.Hide:
    """Own noise and pair noise on every upload, towards a server that sees all of them, late ones
    included.

    The server pools at most `max_colluders` clients. Where noise is correlated, row by row of C^-1,
    pairs' noise cancels in each round's sum as it does before, and C times all uploads has the
    noise of independent rounds.
    """
    own_stddev = stddev(config)
    chosen = None if config.correlation == "none" else unsampled.strategy(config)
    noise = pair_noise.cohort_noise(
        edges(config),
        num_clients=config.parties,
        own_stddev=own_stddev,
        pair_stddev=own_stddev * math.sqrt(variance_ratio(config)),
        draw=config.draw,
    )

    def hidden(here: Round, sent: uploads.Uploads) -> uploads.Hidden:
        if own_stddev == 0:
            return uploads.Hidden(sent.total, noise=here.state.clipping)

        def add(total: jax.Array, rows: jax.Array) -> jax.Array:
            mask = sent.responds.reshape((-1,) + (1,) * (rows.ndim - 1))
            return total + jnp.sum(jnp.where(mask, rows, 0), axis=0)

        rows = noise(here.key, here.state.round, sent.total)
        after: Any = ()
        if chosen is not None:
            rows, after = kernel.correlate(chosen, rows, here.state.clipping)
        return uploads.Hidden(jax.tree.map(add, sent.total, rows), noise=after)

    return hidden


def _kept(config: Config) -> Callable[[Params], Any]:
    """The first state of the noise, as many models of each client as C has buffers."""

    def first(params: Params) -> Any:
        if config.correlation == "none":
            return ()
        of_client = lambda leaf: jnp.zeros((config.parties, *leaf.shape), jnp.float32)
        return kernel.init(unsampled.strategy(config), jax.tree.map(of_client, params))

    return first


def event(config: Config) -> events.PrivacyEvent:
    """What one round, or one start of the correlation, does to one client's data, as the worst view
    that is allowed for shows it.

    The uploads of all rounds are X + C^-1 Z, clients' data in X. C times them is C X + Z, in each
    round of which the view is that of independent rounds: so it is the matrix mechanism, with the
    noise that hides one client in one round. A graph that fails does so in all rounds at once.

    Raises ValueError if noise_multiplier is None.
    """
    plain = config.correlation == "none"
    found = central.replaced_event(config) if plain else unsampled.event(config)
    if config.graph == "complete" or config.failure_prob == 0:
        return found
    return dataclasses.replace(
        found, mechanism=colluders.or_fails(found.mechanism, config.failure_prob)
    )


def uses(config: Config, num_rounds: int) -> int:
    """Rounds, or how often correlation begins in them."""
    return num_rounds if config.correlation == "none" else unsampled.uses(config, num_rounds)


def upload_noise(config: Config) -> adversaries.UploadNoise:
    """What hides one upload. Raises ValueError if noise_multiplier is None."""
    return adversaries.UploadNoise(
        strategy=unsampled.strategy(config),
        min_separation=config.min_separation,
        edges=edges(config),
        num_clients=config.parties,
        num_colluders=config.max_colluders,
        own_stddev=stddev(config),
        variance_ratio=variance_ratio(config),
        move=central.sensitivity(config),
    )


def costs(config: Config, num_params: int) -> costs_lib.Costs:
    """One client's round, after one exchange of keys."""
    degree = config.parties - 1 if config.graph == "complete" else config.degree
    return costs_lib.pair_noise(num_params, config.parties, degree)


def normals(config: Config, num_params: int) -> int:
    """Own noise of every client, and that of all pairs; the joint law of all takes no more than two
    for each client.
    """
    num, complete = config.parties, config.graph == "complete"
    pairs = num * (num - 1) // 2 if complete else len(edges(config))
    return (num + max(num, pairs)) * num_params


def views(config: Config, key: jax.Array, num_rounds: int) -> adversaries.Views:
    """Who saw what in a run with this key; `config` with its noise multiplier, above 0."""
    own_mu = central.sensitivity(config) / stddev(config)
    bare = dataclasses.replace(_bare(config), pair_variance_ratio=variance_ratio(config))
    seen = uploads.reached(config, key, num_rounds)
    return adversaries.uploads_views(
        seen,
        moved=None if config.correlation == "none" else _moved(config, seen),
        max_colluders=config.max_colluders,
        own_mu=own_mu,
        colluding_mu=own_mu * _unit_mu(bare),
        alone_mu=own_mu * _unit_mu(dataclasses.replace(bare, max_colluders=0)),
    )


def _moved(config: Config, reached: np.ndarray) -> np.ndarray:
    """How far each client's data move C times all that left it, `[N]`, in units of a round."""
    rounds, clients = np.indices(reached.shape)
    with_data = rounds % config.min_separation == clients % config.min_separation
    there = with_data & (reached > adversaries.NEVER)
    return correlated.moved(unsampled.strategy(config), there)


SCHEME = uploads.scheme(
    summary="clipped client updates with own noise and pair noise that cancels; unit: client",
    Config=Config,
    make=uploads.maker(hide, cycle=lambda config: config.min_separation, noise=_kept),
    event=event,
    uses=uses,
    views=views,
    upload_noise=upload_noise,
    costs=costs,
    normals=normals,
    start=uploads.START | {"scheme": {"num_parties": None, "local_learning_rate": 1.0}},
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
strategy = unsampled.strategy
