"""Both sides hide something: the server its model, the clients their gradients. Then both are
attacked.

python examples/bidirectional.py
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, data, models
from fljax.models import scaling
from fljax.papers.bidirectional import known_network
from fljax.schemes.disguised import bidirectional
from fljax.server import perturbation

NUM_CLIENTS, NUM_ROUNDS, EPSILON, DELTA = 5, 60, 8.0, 1e-5


def main() -> None:
    """Trains with a guarantee, prints what was spent and learned, and what a client sees of the
    model.
    """
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], NUM_CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))
    model = models.create(
        "mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0), hidden=(32, 32)
    )

    # Which scales the network admits, found from its own program; what has none is refused with the
    # reason.
    plan = scaling.plan(model.apply, model.params, digits.test["x"][0])
    print(
        f"{len(plan.layers)} hidden layers with {plan.num_branches} secret scales, "
        f"{plan.num_outputs} outputs"
    )

    config = bidirectional.Config(
        num_parties=NUM_CLIENTS,
        noise="r0_gaussian",
        local_batch_size=288,
        scale_law="log_uniform",
        scale_range=(0.9, 1.1),
    )
    noise = accounting.calibrate(
        lambda value: bidirectional.event(
            dataclasses.replace(config, noise_multiplier=value)
        ).repeat(NUM_ROUNDS),
        epsilon=EPSILON,
        delta=DELTA,
        method="gdp",
    )
    config = dataclasses.replace(config, noise_multiplier=float(noise))
    algorithm = bidirectional.make(
        config, models.squared_error(model.apply), num_units=len(digits.train["y"])
    )
    round_fun, state = jax.jit(algorithm.round), algorithm.init(model.params)
    cohort = data.cohort(clients, jnp.arange(NUM_CLIENTS))
    for _ in range(NUM_ROUNDS):
        state, _ = round_fun(state, cohort, jax.random.key(1))
    test = jax.tree.map(jnp.asarray, digits.test)
    _, accuracy = models.evaluate(model.apply, state.params, test)
    print(
        f"accuracy {float(accuracy):.1%} at epsilon {EPSILON} for one record, delta {DELTA}, "
        "towards the server"
    )

    # The other direction, with a secret vector on the last layer: what one client makes of what it
    # is sent.
    secrets = perturbation.draw(plan, jax.random.key(2), additive_norm=1.0)
    sent, transition = perturbation.perturb(plan, state.params, secrets)
    true = jax.vmap(model.apply, (None, 0))(state.params, test["x"]).argmax(-1)
    own = {name: jnp.asarray(digits.train[name][:10]) for name in ("x", "y")}
    before, after = known_network.attack(plan, sent, transition, own, test["x"])
    shares = [float(jnp.mean(found == true)) for found in (before, after)]
    print(
        f"a client agrees with the true model on {shares[0]:.1%}, after least squares on 10 labels "
        f"on {shares[1]:.1%}"
    )


if __name__ == "__main__":
    main()
