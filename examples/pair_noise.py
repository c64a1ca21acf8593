"""LightDP-FL beside local noise and an ideal secure sum, at the same epsilon; then one round by
hand, with real keys.

    python examples/pair_noise.py

The second part needs the extra `crypto`.
"""

import dataclasses
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, data, models, schemes
from fljax.accounting import gaussian
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import least_noise
from fljax.upload import key_agreement, pair_noise

NUM_CLIENTS = 50
NUM_ROUNDS = 20
TARGET_EPSILON = 8.0
DELTA = 1e-3
MAX_COLLUDERS, MAX_STRAGGLERS = 5, 5
SCHEMES = ("local_dp", "lightdp", "smpc_dp")


def train(name: str, clients: data.ClientData, digits: data.Dataset) -> None:
    """Calibrates, trains and prints one line."""
    scheme = schemes.get(name)
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    config = scheme.Config(
        num_parties=NUM_CLIENTS, max_colluders=MAX_COLLUDERS, max_stragglers=MAX_STRAGGLERS
    )

    def run(noise_multiplier: float) -> accounting.PrivacyEvent:
        event: accounting.PrivacyEvent = scheme.event(
            dataclasses.replace(config, noise_multiplier=noise_multiplier)
        )
        return event.repeat(NUM_ROUNDS)

    noise_multiplier = accounting.calibrate(run, epsilon=TARGET_EPSILON, delta=DELTA, method="gdp")
    config = dataclasses.replace(config, noise_multiplier=noise_multiplier)
    algorithm = scheme.make(
        config, models.softmax_cross_entropy(model.apply), num_units=NUM_CLIENTS
    )
    state, key = algorithm.init(model.params), jax.random.key(1)
    cohort = data.cohort(clients, jnp.arange(NUM_CLIENTS))
    one_round = jax.jit(algorithm.round)
    for _ in range(NUM_ROUNDS):
        state, _ = one_round(state, cohort, key)
    _, accuracy = models.evaluate(model.apply, state.params, jax.tree.map(jnp.asarray, digits.test))
    spent = accounting.epsilon(run(noise_multiplier), delta=DELTA, method="gdp")
    print(f"  {name:9} epsilon {spent:.3f} at delta {DELTA:g}   accuracy {float(accuracy):.1%}")


def by_hand(folder: pathlib.Path) -> None:
    """Four clients agree on keys, one does not answer in time; what the server has, and how private
    that is.
    """
    noise = least_noise.pair_calibration(4, 1, [0.5, 0.5], epsilon=TARGET_EPSILON, delta=DELTA)
    clients = [key_agreement.KeyAgreement(number) for number in range(4)]
    for one in clients:
        for other in clients:
            if one is not other:
                one.agree(other.client, other.public_key)
    # Client 2 stops before the round, and goes on from its file.
    clients[2].save(folder / "client-2.pem", passphrase="words that only client 2 knows")
    clients[2] = key_agreement.KeyAgreement.load(
        folder / "client-2.pem", passphrase="words that only client 2 knows"
    )
    uploads = []
    for client in clients:
        peers = [number for number in range(4) if number != client.client]
        hidden = pair_noise.client_noise(
            client.round_keys(0, peers),
            client.own_key(0),
            client.client,
            peers,
            jnp.zeros(3),
            own_stddev=noise.own_variance**0.5,
            pair_stddev=noise.pair_variance**0.5,
        )
        uploads.append(0.1 * client.client + np.asarray(hidden))  # "data": 0.0, 0.1, 0.2, 0.3
        print(f"  client {client.client} sends", np.round(uploads[-1], 2))
    print("  average of all four     ", np.round(np.mean(uploads, axis=0), 2), "where 0.15 is true")
    print(
        "  average without client 3",
        np.round(np.mean(uploads[:3], axis=0), 2),
        "where 0.10 is true",
    )
    graph = view.pair_graph(
        np.argwhere(np.triu(np.ones((4, 4)), 1)),
        num_clients=4,
        own_variance=noise.own_variance,
        pair_variance=noise.pair_variance,
    )
    for what, seen, colluders in (
        ("client 3's upload never leaves it, nobody colludes", [1, 1, 1, 0], [0, 0, 0, 0]),
        ("it arrives late, client 2 colludes", [1, 1, 1, 1], [0, 0, 1, 0]),
    ):
        realised = view.assess(
            graph,
            num_colluders=1,
            seen=np.asarray(seen, bool),
            colluders=np.asarray(colluders, bool),
        )
        epsilon = float(gaussian.mu_to_epsilon(realised.mu[0], DELTA))
        print(f"  epsilon of client 0, if {what}: {epsilon:.3f}")


def main() -> None:
    """Trains with each scheme, then does a round by hand."""
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], NUM_CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))
    print(
        f"{NUM_CLIENTS} clients, {MAX_COLLUDERS} of them may collude with the server, up to "
        f"{MAX_STRAGGLERS} straggle:"
    )
    for name in SCHEMES:
        train(name, clients, digits)
    print("One round by hand, (epsilon, delta) as above for this round alone:")
    with tempfile.TemporaryDirectory() as folder:
        by_hand(pathlib.Path(folder))


if __name__ == "__main__":
    main()
