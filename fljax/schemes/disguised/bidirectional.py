"""Bidirectional privacy: the server disguises its model, the clients hide their gradients behind
shared noise.

Each round the server multiplies the model by secret scales and adds a secret vector to its last
layer; every client of the round sends gradient, Psi and Phi of one batch on that model, with noise
of its own and noise shared with peers that cancels; the server recovers the true mean gradient.
Four modes of noise: "upload_gaussian" and "r0_gaussian" carry a guarantee towards a server that
knows its secrets; "paper" and "oracle_clip" do what was printed, or what its figures need, and
carry none.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", Algorithms 1 to 4.
"""

import dataclasses
import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _keys, _validate
from fljax.accounting import events, search
from fljax.accounting.shared_noise import adversaries, colluders, printed, theta
from fljax.schemes import base
from fljax.schemes.disguised import round as disguised
from fljax_kernels.pairwise import graphs

# Sound and trainable: noise on Psi and Phi hides the model's outputs from clients too, and drowns
# the gradient.
START = disguised.START | {
    "scheme": disguised.START["scheme"]
    | {
        "noise": "r0_gaussian",
        "scale_law": "log_uniform",
        "scale_range": (0.9, 1.1),
        "local_batch_size": 128,
    },
    "run": {"num_rounds": 100},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(disguised.Config):
    """As `disguised.round.Config`; a client's own noise and its pairs' follow from
    noise_multiplier, the ratio, the graph and the colluders: see `own_stddev`.

    Raises:
      ValueError: as there; or a graph that does not exist.
    """

    noise: Literal["paper", "upload_gaussian", "r0_gaussian", "oracle_clip"] = "upload_gaussian"
    """Which noise: on everything that is sent; on the gradient, without a vector on the last layer
    and so without Psi and Phi; as printed; or as printed on a gradient that only a simulator can
    clip.
    """
    graph: Literal["complete", "n_out"] = "complete"
    """Who shares noise with whom in a round: all pairs; or each client with out_degree others of
    its choice.
    """
    out_degree: int = 5
    """Peers that each client picks, for the graph n_out."""
    graph_seed: int = 0
    """Public seed of the graph n_out."""
    pair_variance_ratio: float = 100.0
    """Variance of a pair's noise / variance of own noise."""
    max_colluders: int = 0
    """Clients that may pool what they know with the server, at most; the guarantee is for the
    others.
    """
    failure_prob: float = 0.0
    """Chance per round that the graph n_out fails, part of delta: it lets more clients collude, if
    who does is settled before the graph is drawn. 0: whoever colludes.
    """
    mask_all: bool = False
    """In the mode paper: pair noise on Psi and Phi too, which hides each client's but not their
    sum.
    """
    execution: Literal["simulation", "protocol"] = "simulation"
    """protocol draws every upload; simulation leaves out what cancels: the same law of the model,
    sooner.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(theta.NOISE_MODES, noise=self.noise)
        _validate.one_of(("complete", "n_out"), graph=self.graph)
        _validate.one_of(("simulation", "protocol"), execution=self.execution)
        if self.noise == "oracle_clip" and self.execution == "protocol":
            raise ValueError(
                "Expected execution='simulation' with noise='oracle_clip', which no client can do, "
                "got 'protocol'."
            )
        _validate.non_negative_int(graph_seed=self.graph_seed, max_colluders=self.max_colluders)
        _validate.non_negative(pair_variance_ratio=self.pair_variance_ratio)
        _validate.below_one(failure_prob=self.failure_prob)
        _validate.positive_int(out_degree=self.out_degree)
        if self.num_parties is None and self.cohort_size is None:
            return  # the rest is checked when the data have told how many there are
        if not self.joining >= 2:
            raise ValueError(f"Expected at least 2 clients in a round, got {self.joining}.")
        if not self.max_colluders < self.joining:
            raise ValueError(
                f"Expected max_colluders < {self.joining}, got max_colluders={self.max_colluders}."
            )
        if self.graph == "n_out" and not self.out_degree < self.joining:
            raise ValueError(
                f"Expected out_degree < {self.joining} clients, got out_degree={self.out_degree}."
            )

    @property
    def formula(self) -> str:
        """Whether the mode of noise has an accountant of ours."""
        return "paper" if self.noise in theta.WITHOUT_GUARANTEE else "sound"


@functools.lru_cache(maxsize=16)
def _edges(graph: str, count: int, out_degree: int, seed: int) -> np.ndarray:
    if graph == "complete":
        return graphs.complete(count)
    return graphs.random_out(count, out_degree, np.random.default_rng(seed))


def edges(config: Config) -> np.ndarray:
    """The public graph of every round, int32 `[E, 2]`, between places 0..K-1 in the round."""
    return _edges(config.graph, config.joining, config.out_degree, config.graph_seed)


@functools.lru_cache(maxsize=64)
def _unit_mu(config: Config, num_colluders: int) -> float:
    """The mu of a round for sensitivity 1 and own noise of stddev 1; `config` without its noise
    multiplier.
    """
    count, ratio = config.joining, config.pair_variance_ratio
    complete = config.graph == "complete"
    if num_colluders == 0 and ratio and not complete:
        return math.sqrt(theta.theta(edges(config), count, 1.0, math.sqrt(ratio)))
    return colluders.unit_mu(
        None if complete else edges(config),
        num_clients=count,
        variance_ratio=ratio,
        num_colluders=num_colluders,
        failure_prob=config.failure_prob,
    )


def _event_mu(config: Config) -> float:
    """`_unit_mu` towards the server and its colluders, or clients that get the models, whichever
    learns more.

    Clients subtract their own noise from the mean that a model shows. One of them is always there,
    and with no colluders at the server it may know more than the server does.
    """
    hiding = max(1, config.joining - max(1, config.max_colluders))
    return max(_unit_mu(config, config.max_colluders), 1 / math.sqrt(hiding))


def own_stddev(config: Config) -> float:
    """Standard deviation of a client's own noise, in the unit of what it sends.

    With the noise of its pairs it is, to the worst view that is allowed for, Gaussian noise of
    noise_multiplier times the sensitivity. Modes without a guarantee have no such view: there it is
    noise_multiplier times what one unit adds at most, which the paper takes for the sensitivity.
    """
    if config.formula == "paper":
        return base.noise_multiplier(config) * disguised.bound(config)
    return disguised.stddev(config) * _event_mu(_bare(config))


def hiding(config: Config) -> disguised.Uploads:
    """Own and pair noise, in the configured mode.

    The modes "upload_gaussian" and "r0_gaussian" hold towards a server that sees all uploads, knows
    its secrets and pools at most `max_colluders` clients; and towards that many clients, but always
    one, that get the models and know their own noise. Nobody drops out.
    """
    own = own_stddev(config)
    return disguised.Uploads(
        config.noise,
        own,
        edges(config),
        own * math.sqrt(config.pair_variance_ratio),
        config.execution == "protocol",
        config.mask_all,
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one unit, as the worst allowed view shows it; nothing is claimed
    without a guarantee.

    Raises ValueError if noise_multiplier is None.
    """
    noise_multiplier = base.noise_multiplier(config)
    mechanism: events.Mechanism = events.NonPrivate()
    if config.formula == "sound":
        mechanism = events.Gaussian(noise_multiplier)
        if config.graph == "n_out" and config.failure_prob > 0:
            mechanism = colluders.or_fails(mechanism, config.failure_prob)
    return disguised.claim(config, mechanism)


def _bare(config: Config) -> Config:
    """What `_unit_mu` depends on, and no more of it: it is remembered."""
    return dataclasses.replace(config, noise_multiplier=None, l2_clip_norm=1.0)


def non_private(config: Config) -> Config:
    """The same training without noise or clipping; gradients come back exactly, so it is FedSGD."""
    # Without a vector on the last layer every loss fits that fits `config`.
    bare = dataclasses.replace(
        config, noise="paper", execution="simulation", noise_multiplier=0.0, additive_norm=0.0
    )
    return dataclasses.replace(bare, l2_clip_norm=base.NEVER_CLIPS)


def upload_noise(config: Config) -> adversaries.UploadNoise:
    """What hides one upload. Raises ValueError if noise_multiplier is None."""
    return adversaries.UploadNoise(
        edges=edges(config),
        num_clients=config.joining,
        num_colluders=config.max_colluders,
        own_stddev=own_stddev(config),
        variance_ratio=config.pair_variance_ratio,
        move=disguised.sensitivity(config),
    )


def normals(config: Config, num_params: int) -> int | None:
    """Own noise of the clients of a round, and that of all pairs, on the gradient; how large what
    is sent beside it in the mode upload_gaussian is, the network tells.
    """
    if config.noise != "r0_gaussian":
        return None
    return (config.joining + len(edges(config))) * num_params


def claimed_theta(config: Config, delta: float) -> float:
    """The paper's theta of a round: of `printed.claimed_theta`, as configured."""
    return printed.claimed_theta(
        config.joining,
        None if config.graph == "complete" else config.out_degree,
        noise_multiplier=base.noise_multiplier(config),
        variance_ratio=config.pair_variance_ratio,
        delta=delta,
    )


def claimed_epsilon(config: Config, *, num_rounds: int, delta: float) -> float:
    """What the paper would say, of one round or of `num_rounds`: it does not compose. Nothing
    stands behind it.
    """
    del num_rounds
    tail = delta if config.graph == "complete" else delta / 3
    return float(printed.printed_epsilon(claimed_theta(config, delta), tail))


def as_printed(config: Config, *, num_rounds: int, epsilon: float, delta: float) -> Config:
    """`config` with the noise for which the paper would claim `epsilon`. Raises ValueError without
    pair noise.
    """
    _validate.positive(pair_variance_ratio=config.pair_variance_ratio)

    def claim(noise: float) -> float:
        noisy = dataclasses.replace(config, noise_multiplier=noise)
        return claimed_epsilon(noisy, num_rounds=num_rounds, delta=delta)

    noise = search.within(claim, epsilon, of="claimed epsilon")
    return dataclasses.replace(config, noise_multiplier=noise)


def joined(config: Config, key: jax.Array, num_rounds: int) -> np.ndarray:
    """Bool `[T, N]`: which clients the rounds of a run with this key chose, drawn again."""

    def one(round_index: jax.Array) -> jax.Array:
        choose_key = _keys.server_key(key, round_index, _keys.Purpose.CHOOSE_CLIENTS)
        chosen = disguised.chosen(config, choose_key)
        return jnp.zeros(config.parties, bool).at[chosen].set(True)

    return np.asarray(jax.jit(jax.vmap(one))(jnp.arange(num_rounds)))


def views(config: Config, key: jax.Array, num_rounds: int) -> adversaries.Views:
    """Who saw what in a run with this key; `config` in a mode with a guarantee, with noise."""
    own, bare = disguised.sensitivity(config) / own_stddev(config), _bare(config)
    return adversaries.chosen_views(
        np.where(joined(config, key, num_rounds), adversaries.IN_TIME, adversaries.NEVER),
        max_colluders=config.max_colluders,
        own_mu=own,
        colluding_mu=own * _unit_mu(bare, config.max_colluders),
        alone_mu=own * _unit_mu(bare, 0),
    )


def exposure(config: Config) -> list[tuple[str, str, str]]:
    """(who, about what, what it can learn) in both directions, in words, for a run's report."""
    return disguised.exposure(config, config.noise)


SCHEME = disguised.scheme(
    summary=(
        "one gradient on a disguised model, own and pair noise on uploads; unit: example or client"
    ),
    promise="epsilon",
    Config=Config,
    make=disguised.maker(hiding),
    event=event,
    non_private=non_private,
    noise_at="client",
    start=START,
    views=views,
    exposure=exposure,
    upload_noise=upload_noise,
    normals=normals,
    as_printed=base.AsPrinted(
        errata=printed.ERRATA,
        claimed_epsilon=claimed_epsilon,
        with_noise=as_printed,
    ),
)
make, fitted = SCHEME.make, SCHEME.fitted
