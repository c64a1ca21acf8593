"""A scheme of one's own, held against the contracts that all schemes keep; its broken twin fails.

    python examples/own_scheme.py

Every client sends the mean gradient of its records, clipped; the server adds noise once. The twin
draws half the noise and claims the same. `fljax.testing.check_scheme` plays rounds of both on small
data that are as bad as they can be.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

import fljax
from fljax import accounting, errors, testing
from fljax.local import sgd
from fljax.schemes import base
from fljax.server import rounds
from fljax.types import LossFn
from fljax_kernels import add_gaussian_noise

CHECKS = tuple(testing.CHECKS)
NUM_ROUNDS = 50
DELTA = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Public numbers of the scheme."""

    l2_clip_norm: float = 1.0
    """Bound on a client's gradient."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise / l2_clip_norm. None: calibrated for the target epsilon."""
    server_learning_rate: float = 0.5
    """Step size of the server."""


def event(config: Config) -> fljax.PrivacyEvent:
    """What one round does to one client."""
    return fljax.PrivacyEvent(
        mechanism=accounting.events.Gaussian(base.noise_multiplier(config)),
        privacy_unit="client",
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def maker(share: float = 1.0) -> base.Make:
    """`make`, with a share of the noise that `event` claims."""

    def make(
        config: Config,
        loss: LossFn,
        *,
        num_units: int,
        performance: rounds.Performance = rounds.Performance(),
        server_optimizer: optax.GradientTransformation | None = None,
        local_optimizer: optax.GradientTransformation | None = None,
    ) -> fljax.FederatedAlgorithm:
        base.no_local_steps(local_optimizer)
        stddev = share * base.noise_multiplier(config) * config.l2_clip_norm
        mean_loss = sgd.masked_mean_loss(loss)

        def client(here: rounds.Round, one: rounds.Clients) -> tuple[object, jax.Array]:
            batch = sgd.take_examples(here.examples, one.rows)
            value, gradient = jax.value_and_grad(mean_loss)(here.state.params, batch, one.rows >= 0)
            sent, _ = fljax.clip_pytree(gradient, clip_norm=config.l2_clip_norm)
            return sent, jnp.stack([value, jnp.zeros_like(value)])

        def release(here: rounds.Round, _: rounds.Clients, sums: rounds.Sums) -> rounds.Release:
            key = here.server_key(rounds.Purpose.NOISE)
            return rounds.Release(add_gaussian_noise(key, sums.total, stddev), float(num_units))

        return rounds.federated(
            rounds.each(client),
            release,
            server_optimizer=server_optimizer or optax.sgd(config.server_learning_rate),
            performance=performance,
        )

    return make


SCHEME = fljax.Scheme(
    summary="clipped gradients of clients with central noise; unit: client",
    promise="epsilon",
    Config=Config,
    make=maker(),
    event=event,
    fitted=base.fitted,
    non_private=lambda config: dataclasses.replace(
        config, l2_clip_norm=base.NEVER_CLIPS, noise_multiplier=0.0
    ),
)


def main() -> None:
    """Checks the scheme, then the twin, and says what a run of it would spend."""
    print(testing.check_scheme(SCHEME, checks=CHECKS))
    twin = dataclasses.replace(SCHEME, make=maker(0.5))
    try:
        testing.check_scheme(twin, checks=("event",))
    except errors.SchemeError as reason:
        print(f"with half the noise: {reason}")
    run = event(Config(noise_multiplier=10.0)).repeat(NUM_ROUNDS)
    print(f"{NUM_ROUNDS} rounds: epsilon {accounting.epsilon(run, delta=DELTA):.2f}, delta {DELTA}")


if __name__ == "__main__":
    main()
