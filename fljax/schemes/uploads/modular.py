"""What the schemes share whose clients add integer noise of their own, before a secure sum modulo
2**bits.

The secure sum is an ideal one, as in `ideal_sums`: it reveals the sum of the words and nothing
else. Wrapping around is a function of the sum, so that it costs no privacy; by default it cannot
happen. With `execution="protocol"` a protocol of `fljax.upload.secure_sum` takes the sum, and
releases the same words. `secure_sums` has schemes that are named after one protocol.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fljax import _keys, _validate, errors
from fljax.accounting import events
from fljax.data import parties
from fljax.local import clipping, steps
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.schemes.uploads import ideal_sums
from fljax.schemes.uploads import round as uploads
from fljax.server import rounds
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.types import LossFn
from fljax.upload import integer_grid, secure_sum
from fljax.upload.secure_sum import protocol
from fljax_kernels.discrete import laws

Execution = Literal["ideal", "protocol"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridConfig(ideal_sums.Config):
    """As `ideal_sums.Config`, with the grid that updates are rounded to, and how sums are taken.

    Raises:
      ValueError: as there, or a number of the grid is out of its range.
    """

    grid_norm: int = 1024
    """Longest vector of integers that a client sends, in steps of the grid: more steps round less
    and send more bits. At least half the root of the number of parameters.
    """
    execution: Execution = "ideal"
    """"ideal": sums are added up, fast, as a secure sum would have them. "protocol": all parties of
    the protocol run on the host, with keys drawn anew in each round, and the result is the same.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(grid_norm=self.grid_norm)
        _validate.one_of(typing.get_args(Execution), execution=self.execution)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(GridConfig):
    """As `GridConfig`, in a ring of any size, by any of the fast protocols.

    Raises:
      ValueError: as there, or bits are out of range, or fewer than the protocol stands.
    """

    bits: int | None = None
    """Of each number in the secure sum, at most 32. Fewer than None takes send less, and sums that
    wrap around spoil a round's model, but no guarantee: updates are rotated then, which makes that
    rare. None: the fewest with which none can.
    """
    protocol: secure_sum.Fast = "secagg"
    """What takes the sum with `execution="protocol"`, as "Secure sums" in the docs says of each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is not None:
            _validate.positive_int(bits=self.bits)
            _validate.one_of(range(1, 33), bits=self.bits)
        _validate.one_of(secure_sum.FAST, protocol=self.protocol)
        in_the_ring = self.protocol in secure_sum.IN_THE_RING
        if self.execution == "protocol" and self.bits is not None and not in_the_ring:
            raise ValueError(
                f"Expected bits=None with protocol={self.protocol!r}, whose sums must not wrap "
                f"around, got bits={self.bits}."
            )


class SumBy(NamedTuple):
    """How a scheme's sum is taken. protocol: (config, terms) -> the protocol with all its parties.

    bits: of the ring, from the config; None: as many as no sum leaves. links: that a client needs.
    """

    protocol: Callable[[Any, protocol.Terms], protocol.SecureSumProtocol]
    bits: Callable[[Any], int | None] = lambda config: None
    links: ideal_sums.Links = "server"


class Noise(NamedTuple):
    """Of one client, by its local standard deviation in steps, above 0.

    law: of `fljax_kernels.discrete.laws`. parameter: of that law. draw: (key, shape, parameter) ->
    int32. mechanism: (local stddev, honest clients, L2 and L1 sensitivity) -> record.
    """

    law: str
    parameter: Callable[[float], float]
    draw: Callable[[jax.Array, tuple[int, ...], float], jax.Array]
    mechanism: Callable[[float, int, float, float], events.Mechanism]


def _moves(config: GridConfig) -> tuple[float, float]:
    """(L2, L1) in steps that exchanging one client's data moves the sum of integers."""
    factor = 2.0 if config.neighboring_relation == "REPLACE_ONE" else 1.0
    # A vector of integers has no more L1 than squared L2 norm.
    return factor * config.grid_norm, factor * float(config.grid_norm) ** 2


def _honest(config: GridConfig) -> int:
    return config.parties - config.max_colluders - config.max_stragglers


def local_stddev(config: GridConfig) -> float:
    """Of one client's noise in steps of the grid: honest clients' together hide one client."""
    return secure_sum.share_stddev(
        base.noise_multiplier(config) * _moves(config)[0],
        num_clients=config.parties,
        max_colluders=config.max_colluders,
        max_stragglers=config.max_stragglers,
    )


def event(config: GridConfig, noise: Noise) -> events.PrivacyEvent:
    """What one round does to one client's data, towards the server and those who collude with it.

    Raises:
      ValueError: noise_multiplier or num_parties is None.
    """
    stddev = local_stddev(config)
    mechanism: events.Mechanism = events.NonPrivate()
    if stddev > 0:
        mechanism = noise.mechanism(stddev, _honest(config), *_moves(config))
    return events.PrivacyEvent(
        mechanism=mechanism,
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation(config.neighboring_relation),
    )


def grid(
    config: GridConfig, noise: Noise, num_params: int, *, bits: int | None
) -> integer_grid.Grid:
    """Of a model's updates. bits: of the ring; None: as many as no sum leaves.

    Raises:
      ValueError: as `integer_grid.plan`.
    """
    stddev = local_stddev(config)
    return integer_grid.plan(
        num_params,
        l2_clip_norm=config.l2_clip_norm,
        most_norm=config.grid_norm,
        num_clients=config.parties,
        most_noise=_most_noise(noise, stddev),
        bits=bits,
    )


def _most_noise(noise: Noise, stddev: float) -> int:
    return integer_grid.most_noise(noise.law, noise.parameter(stddev)) if stddev else 0


def words(
    config: GridConfig,
    noise: Noise,
    grid: integer_grid.Grid,
    update: Any,
    factor: jax.Array,
    *,
    rotation_key: jax.Array,
    key: jax.Array,
    noise_key: jax.Array,
) -> jax.Array:
    """What a client sends of its update, uint32 `[size]`.

    factor: `[]`, of `clipping.flat`; 0 where the update is not finite. key: of rounding.
    """
    stddev = local_stddev(config)
    flat = ravel_pytree(update)[0].astype(jnp.float32)
    # where: NaN * 0 is NaN, and a rotation would spread it
    flat = jnp.where(factor > 0, flat * factor, 0.0)
    integers = integer_grid.rounded(grid, flat, rotation_key=rotation_key, key=key)
    if stddev:
        integers += noise.draw(noise_key, (grid.size,), noise.parameter(stddev))
    return integer_grid.words(grid, integers)


def terms(config: GridConfig, size: int, bits: int) -> protocol.Terms:
    """Of the secure sum of a round."""
    return protocol.Terms(
        num_clients=config.parties,
        size=size,
        bits=bits,
        max_dropouts=config.max_stragglers,
        max_colluders=config.max_colluders,
    )


def _run(
    config: GridConfig, by: SumBy, bits: int, words: Any, responds: Any, round_index: Any
) -> np.ndarray:
    """The sum by a protocol, on the host: uint32 `[size]` of uint32 `[N, size]` and bool `[N]`.

    Clients that straggle drop out as they should send their words. Zeros where the protocol aborts,
    since too few are left.
    """
    words, responds = np.asarray(words), np.asarray(responds)
    made = by.protocol(config, terms(config, words.shape[1], bits))
    gone = dict.fromkeys(np.flatnonzero(~responds).tolist(), made.upload_step)
    try:
        return protocol.run(made, words, round_index=int(round_index), dropouts=gone).total
    except errors.DropoutError:
        return np.zeros(words.shape[1], np.uint32)


def maker(noise: Noise, by: SumBy) -> base.Make:
    """`make` of a scheme with that noise and sum."""

    @base.maker
    def make(config: Any, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
        """Builds the algorithm: local SGD, updates clipped, rounded to the grid (rotated before,
        where `bits` lets sums wrap around) and noised by their clients, their sum modulo 2**bits,
        and its mean.

        Guarantee: a client's integers have a norm of at most `grid_norm`, in whole numbers, so that
        exchanging its data moves the sum by 2 grid_norm at most (grid_norm if it is zero for one of
        them), and one round is one `event(config)` for the unit "client", for every client that
        does not collude. Noise is drawn in whole numbers: `discrete_gaussian_noise` says how near
        its law is to that of the event. Who responds is drawn apart from the data and is public, as
        are the rotation and the divisor. A round with too few responders leaves the model as it
        was. Parties are semi-honest, and the secure sum is ideal, or a protocol within its own
        threat model. Idealisation: random bits are those of the key's generator; threefry is no
        cryptographic source. RoundInfo is not private.

        Args, Raises: as `base.Make`; `num_units` are clients, and must be `num_parties`. A round
        raises ValueError where the grid is too coarse for the number of parameters. ValueError
        where the grid's sums need more bits than the protocol takes; PrivacyPreconditionError where
        the protocol does not stand so many colluders or stragglers; ImportError where it needs a
        package that is missing.
        """
        parties.check_number(config, given.num_units)
        stddev = local_stddev(config)
        if stddev > laws.LARGEST_STDDEV:
            raise ValueError(
                f"Expected noise of at most {laws.LARGEST_STDDEV:g} steps a client, got "
                f"{stddev:.6g}: a grid_norm of {int(config.grid_norm * 4096 / stddev)} or less "
                "makes it smaller."
            )
        if config.execution == "protocol":  # refused before the first round
            bits = by.bits(config) or integer_grid.bits_needed(
                most_norm=config.grid_norm,
                num_clients=config.parties,
                most_noise=_most_noise(noise, stddev),
            )
            # beyond 32, the plan of the grid says what to change
            by.protocol(config, terms(config, 1, min(bits, 32)))
        train = steps.train(config, loss, optimizer=given.local_optimizer)

        def local(here: Round, clients: Clients) -> tuple[jax.Array, jax.Array]:
            mine = grid(config, noise, here.num_params, bits=by.bits(config))
            rotation_key = here.server_key(_keys.Purpose.ROTATE)
            of_purpose = lambda purpose: here.client_keys(clients.ids, purpose)
            keys = of_purpose(_keys.Purpose.SHUFFLE)
            found = train(here.state.params, here.examples, clients.rows, keys)
            norms = clipping.joint_norm(clipping.leaf_norms(found.update))
            factors = clipping.flat(norms, config.l2_clip_norm)

            def send(update: Any, factor: jax.Array, key: jax.Array, noise_key: Any) -> jax.Array:
                return words(
                    config,
                    noise,
                    mine,
                    update,
                    factor,
                    rotation_key=rotation_key,
                    key=key,
                    noise_key=noise_key,
                )

            round_keys = of_purpose(_keys.Purpose.ROUND)
            noise_keys = of_purpose(_keys.Purpose.NOISE)
            sent = jax.vmap(send)(found.update, factors, round_keys, noise_keys)
            sent = jnp.where(clients.present[:, None], sent, 0)
            if config.execution == "protocol":  # each client's words at its place
                everybody = jnp.zeros((config.parties, sent.shape[1]), jnp.uint32)
                total = everybody.at[jnp.maximum(clients.ids, 0)].add(sent)
            else:
                total = jnp.sum(sent, axis=0, dtype=jnp.uint32)
            stats = central.unit_stats(found.loss, norms, config.l2_clip_norm, clients.present)
            return total, stats

        def release(here: Round, clients: Clients, sums: Sums) -> Release:
            mine, ring_sum = grid(config, noise, here.num_params, bits=by.bits(config)), sums.total
            if config.execution == "protocol":
                ids = jnp.maximum(clients.ids, 0)
                responds = jnp.zeros(config.parties, bool).at[ids].max(clients.present)
                ring_sum = jax.pure_callback(
                    functools.partial(_run, config, by, mine.bits),
                    jax.ShapeDtypeStruct((mine.size,), jnp.uint32),
                    ring_sum,
                    responds,
                    here.state.round,
                    vmap_method="sequential",
                )
            # Apart from what is before and after, with which XLA would else fuse it by the number
            # of devices: the sum is the same whole numbers on any, and so is the model.
            barrier = jax.lax.optimization_barrier
            key = here.server_key(_keys.Purpose.ROTATE)
            total = integer_grid.decoded(mine, barrier(ring_sum), rotation_key=key)
            total, count = barrier((total, sums.num_present))
            mean = total / jnp.maximum(1, count).astype(jnp.float32)
            completed = count >= config.parties - config.max_stragglers
            like = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), here.state.params)
            return Release(ravel_pytree(like)[1](mean), counts=completed)

        return rounds.federated(
            local,
            release,
            choose=uploads.answering(config, by.links),
            server_optimizer=given.server_optimizer,
            performance=given.performance,
            in_place=True,
        )

    return make


_BY = SumBy(
    protocol=lambda config, terms: secure_sum.simulated(config.protocol, terms),
    bits=lambda config: config.bits,
)


def scheme(summary: str, noise: Noise) -> base.Scheme:
    """The scheme of a noise, whose sum is taken by any of the fast protocols."""
    return base.Scheme(
        summary=summary,
        promise="epsilon",
        Config=Config,
        make=maker(noise, _BY),
        event=lambda config: event(config, noise),
        fitted=parties.fitted,
        non_private=non_private,
        noise_at="client",
        start=uploads.START,
        population=base.all_join,
    )


def non_private(config: Any) -> Any:
    """The same training without noise, on the finest grid: rounding needs a bound to round to."""
    return dataclasses.replace(
        config, l2_clip_norm=_WIDE * config.l2_clip_norm, noise_multiplier=0.0, grid_norm=65535
    )


_WIDE = 64.0  # clips nothing that trains, on a grid whose steps are as wide as the default's
