"""The round that client-level schemes share: local work, clip, add up, noise, server step.

And what schemes with central noise share: who is sampled, a bound that follows a quantile of the
norms, and claims.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _keys, _validate
from fljax.accounting import events
from fljax.local import clipping, quantile
from fljax.local.sgd import LocalResult
from fljax.schemes import base, exact
from fljax.server import rounds
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.types import Params
from fljax.upload import exact_noise

Relation = Literal["REPLACE_ONE", "REPLACE_SPECIAL"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledConfig(base.NoiseConfig):
    """As `base.NoiseConfig`, of clients that are sampled."""

    sampling_prob: float = 0.5
    """Chance that one client joins one round, in (0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.probability(sampling_prob=self.sampling_prob)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedConfig(base.NoiseConfig):
    """As `base.NoiseConfig`, of clients that all join, whose data are exchanged for others."""

    neighboring_relation: Relation = "REPLACE_ONE"
    """A client's data exchanged for any others, or for none and so an update of zero: two clip
    norms, or one.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(typing.get_args(Relation), neighboring_relation=self.neighboring_relation)


def sensitivity(config: ReplacedConfig) -> float:
    """L2 norm by which neighbouring data move a client's clipped update, before noise."""
    return (2.0 if config.neighboring_relation == "REPLACE_ONE" else 1.0) * config.l2_clip_norm


def stddev(config: ReplacedConfig) -> float:
    """Standard deviation of what hides one client, in the unit of its update."""
    return base.noise_multiplier(config) * sensitivity(config)


def non_private(config: Any) -> Any:
    """The same training with a clip that never binds and no noise."""
    plain = dataclasses.replace(config, clipping_style="flat", target_quantile=None)
    return base.non_private(plain)


class Noise(NamedTuple):
    """The bound of a round, and what the server makes of the round's sums.

    init: params -> state of the bound, or of the noise. bound: state -> l2_clip_norm. within:
    (state, norms `[B]`, mask `[B]`) -> `[]`, the count that a round adds up beside the sum, as its
    third statistic; None: there is none. release: (round, sums) -> noisy sum, divisor, next state.
    add_up, add_up_gradients: as there; None: in floating point.
    """

    init: Callable[[Params], Any]
    bound: Callable[[Any], Any]
    within: Callable[[Any, jax.Array, jax.Array], jax.Array] | None
    release: Callable[[Round, Sums], Release]
    add_up: exact.AddUp | None = None
    add_up_gradients: exact.AddUpGradients | None = None


def noise(config: Any, expected_count: float) -> Noise:
    """Central Gaussian noise, and the bound's adaptation if there is one.

    Guarantee: if one unit moves the sum by at most the round's bound, and the count by 1/2, what a
    round releases (the noisy sum, and the next bound) is one Gaussian mechanism with the configured
    noise multiplier: the noise on the sum grows by what the count costs. The bound of a round
    depends on earlier releases only. The divisor is `expected_count`, a public constant.

    Raises:
      PrivacyPreconditionError: the count's noise is too small to leave anything of the configured
        noise multiplier.

    Source: Andrew et al. (2021), arXiv:1905.03871, Theorem 1.
    """
    multiplier = base.noise_multiplier(config)
    if config.target_quantile is None:
        stddev = multiplier * config.l2_clip_norm

        def constant(here: Round, sums: Sums) -> Release:
            key = here.server_key(_keys.Purpose.NOISE)
            return Release(
                fljax_kernels.add_gaussian_noise(key, sums.total, stddev), expected_count
            )

        return Noise(lambda _: (), lambda _: config.l2_clip_norm, None, constant)
    count_stddev = expected_count / 20 if config.count_stddev is None else config.count_stddev
    if multiplier:
        multiplier = quantile.sum_noise_multiplier(multiplier, count_stddev)
    else:
        count_stddev = 0.0

    def adapting(here: Round, sums: Sums) -> Release:
        sum_key, count_key = jax.random.split(here.server_key(_keys.Purpose.NOISE))
        bound = here.state.clipping
        adapted = quantile.update(
            count_key,
            bound,
            sums.stats[2],
            expected_count=expected_count,
            count_stddev=count_stddev,
            target_quantile=config.target_quantile,
            learning_rate=config.quantile_learning_rate,
        )
        noisy = fljax_kernels.add_gaussian_noise(
            sum_key, sums.total, multiplier * bound.l2_clip_norm
        )
        return Release(noisy, expected_count, clipping=adapted)

    return Noise(
        lambda _: quantile.init(config.l2_clip_norm),
        lambda state: state.l2_clip_norm,
        quantile.centred_count,
        adapting,
    )


def exact_sums(config: Any, expected_count: float, style: clipping.Style = "flat") -> Noise:
    """As `noise`, in whole numbers.

    Guarantee: if one unit adds one row or none, what a round releases is a function of one Gaussian
    mechanism with the configured noise multiplier, on the sum of rounded rows: no idealisation of
    noise but that random bits are uniform. The divisor is `expected_count`, a public constant.
    """
    grid = exact_noise.grid(
        base.noise_multiplier(config),
        l2_clip_norm=config.l2_clip_norm,
        most_rows=max(1, round(expected_count / config.sampling_prob)),
    )

    def release(here: Round, sums: Sums) -> Release:
        return Release(exact.noised(grid, here, sums.total), expected_count)

    add_up = exact.add_up(grid, style=style), exact.add_up_gradients(grid, style=style)
    return Noise(lambda _: (), lambda _: config.l2_clip_norm, None, release, *add_up)


def sampled_event(
    config: Any, *, privacy_unit: Literal["client", "example"] = "client"
) -> events.PrivacyEvent:
    """What one round does to one unit's data, whether its bound adapts or not.

    Raises:
      ValueError: noise_multiplier is None.
    """
    return events.PrivacyEvent(
        mechanism=events.PoissonSampled(
            config.sampling_prob, events.Gaussian(base.noise_multiplier(config))
        ),
        privacy_unit=privacy_unit,
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def replaced_event(config: ReplacedConfig) -> events.PrivacyEvent:
    """What one round does to one client's data, as the worst view that is allowed for shows it.

    Raises:
      ValueError: noise_multiplier is None.
    """
    return events.PrivacyEvent(
        mechanism=events.Gaussian(base.noise_multiplier(config)),
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation(config.neighboring_relation),
    )


def unit_stats(
    losses: jax.Array, norms: jax.Array, bound: Any, counted: jax.Array, *more: jax.Array
) -> jax.Array:
    """`[S]` of the units `[B]` that are counted: summed losses, clipped ones, and `more`."""
    # `~(<=)` counts a unit that is not finite as clipped.
    was_clipped = ~(norms <= bound) & counted
    losses = jnp.where(counted & jnp.isfinite(losses), losses, 0.0)
    return jnp.stack([jnp.sum(losses), jnp.sum(was_clipped).astype(jnp.float32), *more])


def clipped_updates(
    train: Callable[..., LocalResult],
    *,
    bound: Callable[[Any], Any],
    style: clipping.UnitStyle = "flat",
    within: Callable[[Any, jax.Array, jax.Array], jax.Array] | None = None,
    own: Callable[[Round, Clients], Any] | None = None,
    keep: Callable[[Params, Any], tuple[Params, Any]] | None = None,
    start: Callable[[Round], Any] = lambda here: here.state.params,
    add_up: exact.AddUp | None = None,
) -> rounds.Local | rounds.LocalKeeping:
    """Clients train, and each one's update is clipped to the round's bound before it is added up.

    Guarantee: adding or removing one client moves the sum by at most the bound; an update that is
      not finite adds zero.

    Args:
      train: of `fljax.local.sgd`. bound, within, add_up: of a `Noise`.
      style: of clipping.
      own: `(round, clients)` is a tree `[K, ...]` of what each client is given beside its data.
      keep: `(updates [K, ...], what clients kept)` is what they send of it, and what they keep.
      start: of a round, what `train` takes for the model that clients start from.
    """

    def local(here: Round, clients: Clients) -> Any:
        most, present = bound(here.state.clipping), clients.present
        keys = here.client_keys(clients.ids, _keys.Purpose.SHUFFLE)
        given = () if own is None else (own(here, clients),)
        found = train(start(here), here.examples, clients.rows, keys, *given)
        update, kept = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), found.update), None
        if keep is not None:
            update, kept = keep(update, clients.kept)
        if add_up is None:
            total, norms = clipping.sum_updates(update, most, style, present)
        else:
            total, norms = add_up(here, clients.ids, update, present)
        count = () if within is None else (within(here.state.clipping, norms, present),)
        stats = unit_stats(found.loss, norms, most, present, *count)
        return (total, stats) if keep is None else (total, stats, kept)

    return local


def client_level(
    train: Callable[..., LocalResult],
    config: Any,
    given: base.Given,
    *,
    noise: Callable[[Any, float], Noise] = noise,
    choose: rounds.Choose = rounds.everybody,
    join_prob: float | None = None,
    own: Callable[[Round, Clients], Any] | None = None,
    keep: Callable[[Params, Any], tuple[Params, Any]] | None = None,
    released: Callable[[Params], Params] = lambda total: total,
    client_state: rounds.ClientState | None = None,
) -> rounds.FederatedAlgorithm:
    """Clients' updates, each clipped to the round's bound, summed, with central Gaussian noise on
    the sum.

    Guarantee: adding or removing one client moves the sum by at most that bound, so the round is
    one Poisson-sampled Gaussian mechanism if each client is in it with chance `sampling_prob`. The
    divisor is `sampling_prob * num_units`, a public constant. `train`, `own` and `keep` are those
    of `clipped_updates`; `released` is what is done to the noisy sum. Where clients take turns,
    `noise`, `choose` and `join_prob` are those of `turns`.
    """
    central = noise(config, config.sampling_prob * given.num_units)

    def release(here: Round, clients: Clients, sums: Sums) -> Release:
        found = central.release(here, sums)
        return found._replace(total=released(found.total))

    return rounds.federated(
        clipped_updates(
            train,
            bound=central.bound,
            style=config.clipping_style,
            within=central.within,
            own=own,
            keep=keep,
            add_up=central.add_up,
        ),
        release,
        server_optimizer=given.server_optimizer,
        performance=given.performance,
        client_sampling_prob=config.sampling_prob if join_prob is None else join_prob,
        choose=choose,
        clipping=central.init,
        client_state=client_state,
    )


scheme = functools.partial(base.Scheme, promise="epsilon", fitted=base.fitted)
