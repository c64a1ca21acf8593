"""The round that client-level schemes share: local work, clip, add up, noise, server step.

And what schemes with central noise share: styles of clipping, and a bound that follows a quantile of the norms.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

import fljax_kernels
from fljax import _keys, _validate
from fljax.accounting import events
from fljax.data.cohorts import Cohort
from fljax.local import clipping, quantile
from fljax.local.sgd import LocalResult
from fljax.schemes import base
from fljax.schemes.base import FederatedAlgorithm, RoundInfo
from fljax.server import aggregate
from fljax.types import Batch, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClippingConfig:
    """How the contributions of units are clipped; public numbers, all of them.

    Raises:
      ValueError: a number is out of its range, or a bound that adapts is asked for in another style than "flat".
    """

    clipping_style: clipping.UnitStyle = "flat"
    """"flat" scales contributions longer than l2_clip_norm down to it, "per_layer" each of L parameter arrays to
    l2_clip_norm / sqrt(L); "auto_s" and "psac" bring all of them to nearly l2_clip_norm."""
    target_quantile: float | None = None
    """The bound follows this quantile of the norms from round to round, starting at l2_clip_norm. None: a constant."""
    quantile_learning_rate: float = 0.2
    """Step size of the logarithm of a bound that adapts."""
    count_stddev: float | None = None
    """Noise on the count of norms within a bound that adapts, in units. None: a 20th of the units expected a round."""

    def __post_init__(self) -> None:
        _validate.one_of(clipping.UNIT_STYLES, clipping_style=self.clipping_style)
        _validate.positive(quantile_learning_rate=self.quantile_learning_rate)
        if self.count_stddev is not None:
            _validate.positive(count_stddev=self.count_stddev)
        if self.target_quantile is not None:
            _validate.open_unit(target_quantile=self.target_quantile)
            if self.clipping_style != "flat":
                raise ValueError(
                    "Expected clipping_style='flat' with a target_quantile: other styles need no bound that adapts, "
                    f"got clipping_style={self.clipping_style!r}."
                )


def without_clipping(config: Any) -> Any:
    """The same config with a clip that never binds and no noise."""
    return dataclasses.replace(
        config, clipping_style="flat", target_quantile=None, l2_clip_norm=base.NEVER_CLIPS, noise_multiplier=0.0
    )


class Release(NamedTuple):
    """The bound of a round, and what the round releases.

    init: () -> state of the bound. bound: state -> l2_clip_norm. within: (state, norms `[B]`, mask `[B]`) -> `[]`, the
    count that a round adds up beside the sum. noise: (key, state, sum, count) -> (noisy sum, next round's state).
    """

    init: Callable[[], Any]
    bound: Callable[[Any], Any]
    within: Callable[[Any, jax.Array, jax.Array], jax.Array]
    noise: Callable[[jax.Array, Any, Params, jax.Array], tuple[Params, Any]]


def release(config: Any, expected_count: float) -> Release:
    """Central Gaussian noise, and the bound's adaptation if there is one.

    Guarantee: if one unit moves the sum by at most the round's bound, and the count by 1/2, what a round releases
    (the noisy sum, and the next bound) is one Gaussian mechanism with the configured noise multiplier: the noise on the
    sum grows by what the count costs. The bound of a round depends on earlier releases only.

    Raises:
      PrivacyPreconditionError: the count's noise is too small to leave anything of the configured noise multiplier.

    Source: Andrew et al. (2021), arXiv:1905.03871, Theorem 1.
    """
    multiplier = base.noise_multiplier(config)
    if config.target_quantile is None:
        stddev = multiplier * config.l2_clip_norm
        return Release(
            init=lambda: (),
            bound=lambda _: config.l2_clip_norm,
            within=lambda state, norms, mask: jnp.zeros((), jnp.float32),
            noise=lambda key, state, total, _: (fljax_kernels.add_gaussian_noise(key, total, stddev), state),
        )
    count_stddev = expected_count / 20 if config.count_stddev is None else config.count_stddev
    if multiplier:
        multiplier = quantile.sum_noise_multiplier(multiplier, count_stddev)
    else:
        count_stddev = 0.0

    def noise(key: jax.Array, state: Any, total: Params, count: jax.Array) -> tuple[Params, Any]:
        sum_key, count_key = jax.random.split(key)
        noisy = fljax_kernels.add_gaussian_noise(sum_key, total, multiplier * state.l2_clip_norm)
        return noisy, quantile.update(
            count_key,
            state,
            count,
            expected_count=expected_count,
            count_stddev=count_stddev,
            target_quantile=config.target_quantile,
            learning_rate=config.quantile_learning_rate,
        )

    return Release(
        init=lambda: quantile.init(config.l2_clip_norm),
        bound=lambda state: state.l2_clip_norm,
        within=quantile.centred_count,
        noise=noise,
    )


def check_config(config: Any) -> None:
    """Range checks of the fields that the schemes with central noise share."""
    _validate.probability(sampling_prob=config.sampling_prob)
    _validate.positive(l2_clip_norm=config.l2_clip_norm, server_learning_rate=config.server_learning_rate)
    if config.noise_multiplier is not None:
        _validate.non_negative(noise_multiplier=config.noise_multiplier)
    _validate.non_negative(server_momentum=config.server_momentum)
    if not config.server_momentum < 1:
        raise ValueError(f"Expected server_momentum < 1, got server_momentum={config.server_momentum!r}.")


def sampled_gaussian_event(config: Any, *, privacy_unit: Literal["client", "example"]) -> events.PrivacyEvent:
    """One Poisson-sampled Gaussian mechanism on the configured numbers, under add-or-remove-one."""
    return events.PrivacyEvent(
        mechanism=events.PoissonSampled(config.sampling_prob, events.Gaussian(base.noise_multiplier(config))),
        privacy_unit=privacy_unit,
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def client_level(
    local_fun: Callable[..., LocalResult],
    config: Any,
    *,
    num_clients: int,
    optimizer: optax.GradientTransformation | None,
    chunk_size: int | None,
    groups: int | None,
    own: Callable[[jax.Array, jax.Array, jax.Array], Any] | None = None,
) -> FederatedAlgorithm:
    """Clients' updates, each clipped to the round's bound, summed, with central Gaussian noise on the sum.

    Guarantee: adding or removing one client moves the sum by at most that bound, so the round is one Poisson-sampled
    Gaussian mechanism if each client is in it with chance `sampling_prob`. An update that is not finite adds zero. The
    divisor is `sampling_prob * num_clients`, a public constant. `own(key, round, client_ids [K])` is a tree `[K, ...]`
    of what each client is given beside its data.
    """
    check_config(config)
    _validate.positive_int(num_units=num_clients)
    aggregate.check_sizes(chunk_size, groups)
    divisor = config.sampling_prob * num_clients
    released = release(config, divisor)
    optimizer = base.server_optimizer(config) if optimizer is None else optimizer

    def round_fun(
        state: aggregate.ServerState, cohort: Cohort, key: jax.Array
    ) -> tuple[aggregate.ServerState, RoundInfo]:
        base.check_round(cohort, key)
        present = cohort.client_ids >= 0
        indices = jnp.where(present[:, None], cohort.indices, -1)
        num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        size = aggregate.default_chunk_size(num_params) if chunk_size is None else chunk_size

        def chunk(
            clients: tuple[jax.Array, jax.Array],
            chunk_present: jax.Array,
            state: aggregate.ServerState,
            examples: Batch,
        ) -> tuple[Params, jax.Array]:
            chunk_indices, chunk_ids = clients
            bound = released.bound(state.clipping)
            keys = _keys.client_keys(key, state.round, chunk_ids, _keys.Purpose.SHUFFLE)
            given = () if own is None else (own(key, state.round, chunk_ids),)
            local = local_fun(state.params, examples, chunk_indices, keys, *given)
            update = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), local.update)
            clipped, norms = clipping.sum_updates(update, bound, config.clipping_style, chunk_present)
            # `~(<=)` counts a client that is not finite as clipped.
            was_clipped = ~(norms <= bound) & chunk_present
            losses = jnp.where(chunk_present & jnp.isfinite(local.loss), local.loss, 0.0)
            count = released.within(state.clipping, norms, chunk_present)
            return clipped, jnp.stack([jnp.sum(losses), jnp.sum(was_clipped).astype(jnp.float32), count])

        update_sum, stats = aggregate.sum_in_chunks(
            chunk,
            (indices, cohort.client_ids),
            present,
            chunk_size=size,
            groups=groups,
            shared=(state, cohort.examples),
        )
        noise_key = _keys.server_key(key, state.round, _keys.Purpose.NOISE)
        noisy_sum, adapted = released.noise(noise_key, state.clipping, update_sum, stats[2])
        count = jnp.sum(present)
        loss, clipped_fraction = base.averages(stats[:2], count)
        state = aggregate.step(state, noisy_sum, divisor=divisor, server_optimizer=optimizer)
        return state._replace(clipping=adapted), RoundInfo(loss, count, clipped_fraction)

    return FederatedAlgorithm(
        lambda params: aggregate.init(params, optimizer, released.init()),
        round_fun,
        client_sampling_prob=config.sampling_prob,
    )
