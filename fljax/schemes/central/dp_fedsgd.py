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

import fljax_kernels
from fljax import _keys, _validate
from fljax.accounting import events
from fljax.data.cohorts import Cohort
from fljax.local import clipping, keyed, sgd
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.schemes.central import turns
from fljax.server import optimizers, rounds
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.types import LossFn, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(
    optimizers.ServerSteps, turns.BandedConfig, clipping.ClippingConfig, central.SampledConfig
):
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
    server_learning_rate: float = 1.0
    """Step size of the server along the mean gradient."""
    server_momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(("client", "example"), privacy_unit=self.privacy_unit)


@base.maker
def make(config: Config, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
    """Builds the algorithm; `num_units` are clients, or the records of all clients.

    Guarantee: one round is one `event(config)` for the configured unit under add-or-remove-one. For
    clients, if each is put into the cohort independently with chance `sampling_prob`; for examples,
    if all clients are in every cohort (the round samples the records itself) and each row of the
    pool stands in at most one place of `indices`, which `fljax.data.check_partition` checks on the
    host. With banded noise a run is `uses(config, num_rounds)` events: a unit may join one of any
    `bands` rounds, by its client's number or its place in its client's table. Sampling by
    allocation, one event is of several rounds, as in `dp_fedavg`. Idealisation: noise is drawn in
    float32 (in whole numbers where it is "exact") with the key's generator; threefry is no
    cryptographic source. RoundInfo is not private.

    Args, Raises: as `base.Make`. Records are batched by performance.microbatch_size, whoever's they
      are.
    """
    base.no_local_steps(given.local_optimizer)
    size = given.performance.microbatch_size
    if config.privacy_unit == "client":
        return central.client_level(
            sgd.local_gradient(loss, batch_size=size),
            config,
            given,
            noise=turns.noise,
            choose=turns.of_round(config),
            join_prob=turns.join_prob(config),
        )
    noise = turns.noise(config, config.sampling_prob * given.num_units)

    # The server adds up the clients' sums, and addition does not care whose record is whose: the
    # simulation takes all sampled records as one list of batches, so that no client's half-empty
    # batch costs time.
    def sampled(here: Round, cohort: Cohort) -> tuple[Round, Clients]:
        """Batches of the rows that the clients drew, real ones first: each client flips its own
        coins.
        """
        keys = here.client_keys(cohort.client_ids, _keys.Purpose.SAMPLE_EXAMPLES)
        capacity = cohort.indices.shape[1]
        places = jnp.arange(capacity)
        if config.sampling == "allocation":
            drawn = turns.allocated(config, here, cohort.client_ids, places)
        else:
            drawn = jax.vmap(lambda k: _keys.coins(k, (capacity,), turns.join_prob(config)))(keys)
            # A client's places take turns; the place of an example that is removed stays empty.
            drawn &= turns.has_turn(places, here, turns.cycle(config))[None, :]
        chosen = drawn & (cohort.indices >= 0) & (cohort.client_ids >= 0)[:, None]
        rows = jnp.where(chosen, cohort.indices, -1).reshape(-1)
        order = jnp.argsort(rows < 0, stable=True)
        padded = jnp.pad(rows[order], (0, -rows.size % size), constant_values=-1).reshape(-1, size)
        batches = Clients(jnp.arange(len(padded)), padded, padded[:, 0] >= 0)
        if keyed.draws(loss):
            of_rows = jax.vmap(lambda k: keyed.keys(k, 0, jnp.arange(capacity)))(keys).reshape(-1)
            places = jnp.pad(order, (0, -rows.size % size)).reshape(padded.shape)
            batches = batches._replace(given=of_rows[places])
        return here._replace(shared=cohort.client_ids), batches

    method = "auto" if noise.add_up_gradients is None else "taps"  # as `fljax.local.subject` has it
    gradients = fljax_kernels.per_example_grads(keyed.of_one(loss), method=method)

    def clipped_sum(here: Round, batch: Clients) -> tuple[Params, jax.Array]:
        rows, bound = batch.rows[0], noise.bound(here.state.clipping)
        mask = rows >= 0
        examples = sgd.take_examples(here.examples, rows)
        if keyed.draws(loss):
            examples = keyed.Drawing(examples, batch.given[0])
        matrix = gradients(here.state.params, examples, batch_mask=mask)
        if noise.add_up_gradients is None:
            total, norms = clipping.sum_gradients(matrix, bound, config.clipping_style)
            total = jax.tree.map(lambda g: g.astype(jnp.float32), total)
        else:
            total, norms = noise.add_up_gradients(here, matrix, rows)
        count = () if noise.within is None else (noise.within(here.state.clipping, norms, mask),)
        losses = matrix.values().astype(jnp.float32)
        stats = central.unit_stats(losses, norms, bound, mask, *count)
        return total, stats

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
        server_optimizer=given.server_optimizer,
        performance=dataclasses.replace(given.performance, chunk_size=1),
        clipping=noise.init,
    )
    # All sampled records are one loop over batches.
    return algorithm._replace(round=fljax_kernels.loop_friendly(algorithm.round))


def event(config: Config) -> events.PrivacyEvent:
    """As `turns.event`, for the configured unit."""
    return turns.event(config, privacy_unit=config.privacy_unit)


SCHEME = central.scheme(
    summary=(
        "clipped gradients at the server's model, central Gaussian noise; unit: client or example"
    ),
    Config=Config,
    make=make,
    event=event,
    uses=turns.uses,
    normals=turns.normals,
    non_private=central.non_private,
)
fitted, non_private = SCHEME.fitted, SCHEME.non_private
