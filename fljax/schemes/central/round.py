"""The round that client-level schemes share: local work, clip, add up, noise, server step.

And what schemes with central noise share: styles of clipping, and a bound that follows a quantile
of the norms.
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
from fljax.local import clipping, quantile
from fljax.local.sgd import LocalResult
from fljax.schemes import base
from fljax.server import rounds
from fljax.server.rounds import Clients, Performance, Release, Round, Sums
from fljax.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClippingConfig:
    """How the contributions of units are clipped; public numbers, all of them.

    Raises:
      ValueError: a number is out of its range, or a bound that adapts is asked for in another style
        than "flat".
    """

    clipping_style: clipping.UnitStyle = "flat"
    """"flat" scales contributions longer than l2_clip_norm down to it, "per_layer" each of L
    parameter arrays to l2_clip_norm / sqrt(L); "auto_s" and "psac" bring all of them to nearly
    l2_clip_norm.
    """
    target_quantile: float | None = None
    """The bound follows this quantile of the norms from round to round, starting at l2_clip_norm.
    None: a constant.
    """
    quantile_learning_rate: float = 0.2
    """Step size of the logarithm of a bound that adapts."""
    count_stddev: float | None = None
    """Noise on the count of norms within a bound that adapts, in units. None: a 20th of the units
    expected a round.
    """

    def __post_init__(self) -> None:
        _validate.one_of(clipping.UNIT_STYLES, clipping_style=self.clipping_style)
        _validate.positive(quantile_learning_rate=self.quantile_learning_rate)
        if self.count_stddev is not None:
            _validate.positive(count_stddev=self.count_stddev)
        if self.target_quantile is not None:
            _validate.open_unit(target_quantile=self.target_quantile)
            if self.clipping_style != "flat":
                raise ValueError(
                    "Expected clipping_style='flat' with a target_quantile: other styles need no "
                    f"bound that adapts, got clipping_style={self.clipping_style!r}."
                )


def without_clipping(config: Any) -> Any:
    """The same config with a clip that never binds and no noise."""
    return dataclasses.replace(
        config,
        clipping_style="flat",
        target_quantile=None,
        l2_clip_norm=base.NEVER_CLIPS,
        noise_multiplier=0.0,
    )


class Noise(NamedTuple):
    """The bound of a round, and what the server makes of the round's sums.

    init: () -> state of the bound. bound: state -> l2_clip_norm. within: (state, norms `[B]`, mask
    `[B]`) -> `[]`, the count that a round adds up beside the sum, as its third statistic; None:
    there is none. release: (round, sums) -> noisy sum, divisor and next state of the bound.
    """

    init: Callable[[], Any]
    bound: Callable[[Any], Any]
    within: Callable[[Any, jax.Array, jax.Array], jax.Array] | None
    release: Callable[[Round, Sums], Release]


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

        return Noise(tuple, lambda _: config.l2_clip_norm, None, constant)
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
        lambda: quantile.init(config.l2_clip_norm),
        lambda state: state.l2_clip_norm,
        quantile.centred_count,
        adapting,
    )


def check_config(config: Any) -> None:
    """Range checks of the fields that the schemes with central noise and sampled clients share."""
    _validate.probability(sampling_prob=config.sampling_prob)
    check_server(config)


def check_server(config: Any) -> None:
    """Range checks of the clip, of the noise and of the server's steps."""
    _validate.positive(
        l2_clip_norm=config.l2_clip_norm, server_learning_rate=config.server_learning_rate
    )
    if config.noise_multiplier is not None:
        _validate.non_negative(noise_multiplier=config.noise_multiplier)
    _validate.non_negative(server_momentum=config.server_momentum)
    if not config.server_momentum < 1:
        raise ValueError(
            f"Expected server_momentum < 1, got server_momentum={config.server_momentum!r}."
        )


def sampled_gaussian_event(
    config: Any, *, privacy_unit: Literal["client", "example"]
) -> events.PrivacyEvent:
    """One Poisson-sampled Gaussian mechanism on the configured numbers, under add-or-remove-one."""
    return events.PrivacyEvent(
        mechanism=events.PoissonSampled(
            config.sampling_prob, events.Gaussian(base.noise_multiplier(config))
        ),
        privacy_unit=privacy_unit,
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def clipped_updates(
    train: Callable[..., LocalResult],
    *,
    bound: Callable[[Any], Any],
    style: clipping.UnitStyle = "flat",
    within: Callable[[Any, jax.Array, jax.Array], jax.Array] | None = None,
    own: Callable[[Round, Clients], Any] | None = None,
    keep: Callable[[Params, Any], tuple[Params, Any]] | None = None,
    start: Callable[[Round], Any] = lambda here: here.state.params,
) -> rounds.Local | rounds.LocalKeeping:
    """Clients train, and each one's update is clipped to the round's bound before it is added up.

    Guarantee: adding or removing one client moves the sum by at most the bound; an update that is
      not finite adds zero.

    Args:
      train: of `fljax.local.sgd`. bound, within: of a `Noise`.
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
        total, norms = clipping.sum_updates(update, most, style, present)
        # `~(<=)` counts a client that is not finite as clipped.
        was_clipped = ~(norms <= most) & present
        losses = jnp.where(present & jnp.isfinite(found.loss), found.loss, 0.0)
        stats = [jnp.sum(losses), jnp.sum(was_clipped).astype(jnp.float32)]
        stats += [] if within is None else [within(here.state.clipping, norms, present)]
        return (total, jnp.stack(stats)) if keep is None else (total, jnp.stack(stats), kept)

    return local


def client_level(
    train: Callable[..., LocalResult],
    config: Any,
    *,
    num_clients: int,
    server_optimizer: optax.GradientTransformation | None,
    performance: Performance,
    own: Callable[[Round, Clients], Any] | None = None,
    keep: Callable[[Params, Any], tuple[Params, Any]] | None = None,
    released: Callable[[Params], Params] = lambda total: total,
    client_state: rounds.ClientState | None = None,
) -> rounds.FederatedAlgorithm:
    """Clients' updates, each clipped to the round's bound, summed, with central Gaussian noise on
    the sum.

    Guarantee: adding or removing one client moves the sum by at most that bound, so the round is
    one Poisson-sampled Gaussian mechanism if each client is in it with chance `sampling_prob`. The
    divisor is `sampling_prob * num_clients`, a public constant. `train`, `own` and `keep` are those
    of `clipped_updates`; `released` is what is done to the noisy sum.
    """
    check_config(config)
    _validate.positive_int(num_units=num_clients)
    central = noise(config, config.sampling_prob * num_clients)

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
        ),
        release,
        server_optimizer=server_optimizer or base.server_optimizer(config),
        performance=performance,
        client_sampling_prob=config.sampling_prob,
        clipping=central.init,
        client_state=client_state,
    )
