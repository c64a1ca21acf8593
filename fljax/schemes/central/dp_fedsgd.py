"""DP-FedSGD: one gradient a round, taken at the server's model, clipped per client or per record,
noised centrally.

Sources: Abadi et al. (2016), "Deep Learning with Differential Privacy", arXiv:1607.00133, Algorithm
1 (record level); McMahan et al. (2018), "Learning Differentially Private Recurrent Language
Models", arXiv:1710.06963, Algorithm 1 (client level).
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
from fljax.local import clipping, keyed, sgd
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.server import rounds
from fljax.server.rounds import Clients, Performance, Release, Round, Sums
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
    """Whose gradient is clipped: "client" (of its mean loss) or "example" (each one by itself)."""
    sampling_prob: float = 0.2
    """Chance that one unit joins one round, in (0, 1]; every client samples its own examples."""
    l2_clip_norm: float = 0.5
    """Bound on one unit's gradient; where it adapts, the first round's."""
    noise_multiplier: float | None = None
    """Noise standard deviation / bound, of the whole round. None: calibrated for the target
    epsilon.
    """
    server_learning_rate: float = 1.0
    """Step size of the server along the mean gradient."""
    server_momentum: float = 0.9
    """Momentum of the server, in [0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(("client", "example"), privacy_unit=self.privacy_unit)
        central.check_config(self)


def make(
    config: Config,
    loss: LossFn,
    *,
    num_units: int,
    performance: Performance = Performance(),
    server_optimizer: optax.GradientTransformation | None = None,
    local_optimizer: optax.GradientTransformation | None = None,
) -> base.FederatedAlgorithm:
    """Builds the algorithm; `num_units` are clients, or the records of all clients.

    Guarantee: one round is one `event(config)` for the configured unit under add-or-remove-one. For
    clients, if each is put into the cohort independently with chance `sampling_prob`; for examples,
    if all clients are in every cohort (the round samples the records itself) and each row of the
    pool stands in at most one place of `indices`, which `fljax.data.check_partition` checks on the
    host. Idealisation: noise is drawn in float32 with JAX's threefry generator, which is no
    cryptographic source. RoundInfo is not private.

    Args, Raises: as `base.Make`. Records are batched by performance.microbatch_size, whoever's they
      are.
    """
    base.no_local_steps(local_optimizer)
    if config.privacy_unit == "client":
        train = sgd.local_gradient(loss, batch_size=performance.microbatch_size)
        return central.client_level(
            train,
            config,
            num_clients=num_units,
            server_optimizer=server_optimizer,
            performance=performance,
        )
    _validate.positive_int(num_units=num_units)
    noise = central.noise(config, config.sampling_prob * num_units)

    # The server adds up the clients' sums, and addition does not care whose record is whose: the
    # simulation takes all sampled records as one list of batches, so that no client's half-empty
    # batch costs time.
    def sampled(here: Round, cohort: Cohort) -> tuple[Round, Clients]:
        """Batches of the rows that the clients drew, real ones first: each client flips its own
        coins.
        """
        keys = here.client_keys(cohort.client_ids, _keys.Purpose.SAMPLE_EXAMPLES)
        capacity = cohort.indices.shape[1]
        drawn = jax.vmap(lambda k: _keys.coins(k, (capacity,), config.sampling_prob))(keys)
        chosen = drawn & (cohort.indices >= 0) & (cohort.client_ids >= 0)[:, None]
        rows = jnp.where(chosen, cohort.indices, -1).reshape(-1)
        order = jnp.argsort(rows < 0, stable=True)
        size = performance.microbatch_size
        padded = jnp.pad(rows[order], (0, -rows.size % size), constant_values=-1).reshape(-1, size)
        batches = Clients(jnp.arange(len(padded)), padded, padded[:, 0] >= 0)
        if keyed.draws(loss):
            of_rows = jax.vmap(lambda k: keyed.keys(k, 0, jnp.arange(capacity)))(keys).reshape(-1)
            places = jnp.pad(order, (0, -rows.size % size)).reshape(padded.shape)
            batches = batches._replace(given=of_rows[places])
        return here._replace(shared=cohort.client_ids), batches

    gradients = fljax_kernels.per_example_grads(keyed.of_one(loss))

    def clipped_sum(here: Round, batch: Clients) -> tuple[Params, jax.Array]:
        rows, bound = batch.rows[0], noise.bound(here.state.clipping)
        mask = rows >= 0
        examples = sgd.take_examples(here.examples, rows)
        if keyed.draws(loss):
            examples = keyed.Drawing(examples, batch.given[0])
        matrix = gradients(here.state.params, examples, batch_mask=mask)
        total, norms = clipping.sum_gradients(matrix, bound, config.clipping_style)
        was_clipped = ~(norms <= bound) & mask
        losses = matrix.values().astype(jnp.float32)
        losses = jnp.where(mask & jnp.isfinite(losses), losses, 0.0)
        stats = [jnp.sum(losses), jnp.sum(was_clipped).astype(jnp.float32)]
        stats += [] if noise.within is None else [noise.within(here.state.clipping, norms, mask)]
        return jax.tree.map(lambda g: g.astype(jnp.float32), total), jnp.stack(stats)

    def release(here: Round, batches: Clients, sums: Sums) -> Release:
        loss, clipped_fraction = rounds.averages(sums.stats[:2], jnp.sum(batches.rows >= 0))
        info = {
            "loss": loss,
            "clipped_fraction": clipped_fraction,
            "cohort_size": jnp.sum(here.shared >= 0),
        }
        return noise.release(here, sums)._replace(info=info)

    algorithm = rounds.federated(
        clipped_sum,
        release,
        choose=sampled,
        server_optimizer=server_optimizer or base.server_optimizer(config),
        performance=dataclasses.replace(performance, chunk_size=1),
        clipping=noise.init,
    )
    # All sampled records are one loop over batches.
    return algorithm._replace(round=fljax_kernels.loop_friendly(algorithm.round))


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
    summary=(
        "clipped gradients at the server's model, central Gaussian noise; unit: client or example"
    ),
    promise="epsilon",
    Config=Config,
    make=make,
    event=event,
    fitted=fitted,
    non_private=non_private,
)
