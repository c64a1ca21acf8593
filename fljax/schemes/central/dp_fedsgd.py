"""DP-FedSGD: one gradient a round, taken at the server's model, clipped per client or per record, noised centrally.

Sources: Abadi et al. (2016), "Deep Learning with Differential Privacy", arXiv:1607.00133, Algorithm 1 (record level);
McMahan et al. (2018), "Learning Differentially Private Recurrent Language Models", arXiv:1710.06963, Algorithm 1
(client level).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import optax

import fljax_kernels
from fljax import _keys, _validate
from fljax.accounting import events
from fljax.data.cohorts import Cohort
from fljax.local import clipping, sgd
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.server import aggregate
from fljax.types import LossFn, Params

fitted = base.fitted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(central.ClippingConfig):
    """Public numbers of DP-FedSGD; every one may be published without loss of privacy.

    The defaults suit `fljax simulate`: real digits, 1,438 examples.

    Raises:
      ValueError: a number is out of its range.
    """

    privacy_unit: Literal["client", "example"] = "example"
    """Whose gradient is clipped: "client" (of its mean loss) or "example" (one record)."""
    sampling_prob: float = 0.2
    """Chance that one unit joins one round, in (0, 1]; every client samples its own examples."""
    l2_clip_norm: float = 0.5
    """Bound on one unit's gradient; where it adapts, the first round's."""
    noise_multiplier: float | None = None
    """Noise standard deviation / bound, of the whole round. None: calibrated for the target epsilon."""
    batch_size: int = 64
    """Examples whose gradients are taken together; only speed and memory depend on it."""
    server_learning_rate: float = 1.0
    """Step size of the server along the mean gradient."""
    server_momentum: float = 0.9
    """Momentum of the server, in [0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(("client", "example"), privacy_unit=self.privacy_unit)
        central.check_config(self)
        _validate.positive_int(batch_size=self.batch_size)


def make(
    config: Config,
    loss: LossFn,
    *,
    num_units: int,
    server_optimizer: optax.GradientTransformation | None = None,
    chunk_size: int | None = None,
    groups: int | None = None,
) -> base.FederatedAlgorithm:
    """Builds the algorithm.

    Guarantee: one round is one `event(config)` for the configured unit under add-or-remove-one. For clients, if each is
    put into the cohort independently with chance `sampling_prob`; for examples, if all clients are in every cohort (the
    round samples the records itself) and each row of the pool stands in at most one place of `indices`, which
    `fljax.data.check_partition` checks on the host. Idealisation: noise is drawn in float32 with JAX's threefry
    generator, which is no cryptographic source. RoundInfo is not private.

    Args:
      config: its noise_multiplier must be set.
      loss: `loss(params, example) -> []`.
      num_units: clients (or records of all clients) in the population, a published constant; the mean divides by
        `sampling_prob * num_units`.
      server_optimizer: any optax optimizer in place of SGD with the configured rate and momentum.
      chunk_size: clients that work side by side (unit "client"; records are batched by `config.batch_size`).
      groups: as for `aggregate.sum_in_chunks`, for the unit "client"; only the order of additions depends on it.

    Raises:
      ValueError: noise_multiplier is None, num_units < 1, chunk_size < 1, or groups < 1.
    """
    if config.privacy_unit == "client":
        local_fun = sgd.local_gradient(loss, batch_size=config.batch_size)
        return central.client_level(
            local_fun, config, num_clients=num_units, optimizer=server_optimizer, chunk_size=chunk_size, groups=groups
        )
    aggregate.check_sizes(chunk_size, groups)
    return _example_level(config, loss, num_units, server_optimizer)


def _example_level(
    config: Config, loss: LossFn, num_examples: int, optimizer: optax.GradientTransformation | None
) -> base.FederatedAlgorithm:
    _validate.positive_int(num_units=num_examples)
    divisor = config.sampling_prob * num_examples
    released = central.release(config, divisor)
    optimizer = base.server_optimizer(config) if optimizer is None else optimizer
    gradients = fljax_kernels.per_example_grads(loss)

    def sampled_rows(cohort: Cohort, round_index: jax.Array, key: jax.Array) -> jax.Array:
        """Rows `[S, batch_size]` that the clients drew, real ones first, -1 behind: each client flips its own coins."""
        keys = _keys.client_keys(key, round_index, cohort.client_ids, _keys.Purpose.SAMPLE_EXAMPLES)
        capacity = cohort.indices.shape[1]
        drawn = jax.vmap(lambda k: _keys.coins(k, (capacity,), config.sampling_prob))(keys)
        chosen = drawn & (cohort.indices >= 0) & (cohort.client_ids >= 0)[:, None]
        rows = jnp.where(chosen, cohort.indices, -1).reshape(-1)
        rows = rows[jnp.argsort(rows < 0, stable=True)]
        return jnp.pad(rows, (0, -rows.size % config.batch_size), constant_values=-1).reshape(-1, config.batch_size)

    def round_fun(
        state: aggregate.ServerState, cohort: Cohort, key: jax.Array
    ) -> tuple[aggregate.ServerState, base.RoundInfo]:
        base.check_round(cohort, key)
        batches = sampled_rows(cohort, state.round, key)
        bound = released.bound(state.clipping)

        # The server adds up the clients' sums, and addition does not care whose record is whose: the simulation takes
        # all sampled records as one list of batches, so that no client's half-empty batch costs time.
        def add_batch(i: jax.Array, total: tuple[Params, jax.Array]) -> tuple[Params, jax.Array]:
            mask = batches[i] >= 0
            batch = sgd.take_examples(cohort.examples, batches[i])
            matrix = gradients(state.params, batch, batch_mask=mask)
            clipped_sum, norms = clipping.sum_gradients(matrix, bound, config.clipping_style)
            was_clipped = ~(norms <= bound) & mask
            losses = matrix.values().astype(jnp.float32)
            losses = jnp.where(mask & jnp.isfinite(losses), losses, 0.0)
            within = released.within(state.clipping, norms, mask)
            stats = jnp.stack([jnp.sum(losses), jnp.sum(was_clipped).astype(jnp.float32), within])
            clipped_sum = jax.tree.map(lambda g: g.astype(jnp.float32), clipped_sum)
            return jax.tree.map(jnp.add, total, (clipped_sum, stats))

        zero = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), state.params)
        count = jnp.sum(batches >= 0)
        num_batches = (count + config.batch_size - 1) // config.batch_size
        grad_sum, stats = jax.lax.fori_loop(0, num_batches, add_batch, (zero, jnp.zeros((3,), jnp.float32)))
        noise_key = _keys.server_key(key, state.round, _keys.Purpose.NOISE)
        noisy_sum, adapted = released.noise(noise_key, state.clipping, grad_sum, stats[2])
        loss_mean, clipped_fraction = base.averages(stats[:2], count)
        state = aggregate.step(state, noisy_sum, divisor=divisor, server_optimizer=optimizer)
        return state._replace(clipping=adapted), base.RoundInfo(
            loss_mean, jnp.sum(cohort.client_ids >= 0), clipped_fraction
        )

    return base.FederatedAlgorithm(
        lambda params: aggregate.init(params, optimizer, released.init()),
        fljax_kernels.loop_friendly(round_fun),  # all sampled records are one loop over batches
        client_sampling_prob=1.0,
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one unit's data, whether its bound adapts or not.

    Raises:
      ValueError: noise_multiplier is None.
    """
    return central.sampled_gaussian_event(config, privacy_unit=config.privacy_unit)


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    return central.without_clipping(config)


SCHEME = base.Scheme(
    summary="clipped gradients at the server's model, central Gaussian noise; unit: client or example",
    promise="epsilon",
    Config=Config,
    make=make,
    event=event,
    fitted=fitted,
    non_private=non_private,
)
