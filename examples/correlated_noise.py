"""Training without sampling: clients take turns, and later rounds take back part of the noise.

The same epsilon with independent noise in each round is told beside it. Then the same where nobody
is trusted to add up: the noise is in uploads, and pairs of clients share part of it.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, data, models
from fljax.accounting import PrivacyEvent
from fljax.schemes import dp_ftrl, lightdp

NUM_CLIENTS, NUM_PAIRED = 400, 50
NUM_ROUNDS = 48
EPSILON, DELTA = 4.0, 1e-3
KINDS: dict[str, dict[str, Any]] = {
    "independent": {"correlation": "banded", "bands": 1},
    "tree": {"correlation": "tree"},
    "banded": {"correlation": "banded", "bands": 4},
    "buffered": {"correlation": "buffered", "bands": 3},
}
PAIRED = ("independent", "banded")


def trained(scheme: Any, config: Any, seed: int) -> float:
    """Held-out accuracy after NUM_ROUNDS rounds."""
    digits, num = data.load("digits"), config.num_parties
    table = data.partition.iid(digits.train["y"], num, np.random.default_rng(seed))
    everybody = data.cohort(data.ClientData(digits.train, jnp.asarray(table)), jnp.arange(num))
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    loss = models.softmax_cross_entropy(model.apply)
    algorithm = scheme.make(config, loss, num_units=num)
    run, state, key = jax.jit(algorithm.round), algorithm.init(model.params), jax.random.key(seed)
    for _ in range(NUM_ROUNDS):
        state, _ = run(state, everybody, key)
    return float(models.evaluate(model.apply, state.params, jax.device_put(digits.test))[1])


def calibrated(scheme: Any, **changes: Any) -> Any:
    """The scheme's config with these changes, and the noise that spends EPSILON."""
    plain = scheme.Config(
        min_separation=4,
        rounds_per_start=NUM_ROUNDS,
        l2_clip_norm=0.5,
        local_learning_rate=0.5,
        local_batch_size=4,
        num_local_epochs=5,
        server_learning_rate=1.0,
        server_momentum=0.0,
        **changes,
    )

    def run_event(noise_multiplier: float) -> PrivacyEvent:
        noisy = dataclasses.replace(plain, noise_multiplier=noise_multiplier)
        event: PrivacyEvent = scheme.SCHEME.run_event(noisy, NUM_ROUNDS)
        return event

    noise = accounting.calibrate(run_event, epsilon=EPSILON, delta=DELTA, method="gdp")
    return dataclasses.replace(plain, noise_multiplier=noise)


def main() -> None:
    for name, changes in KINDS.items():
        config = calibrated(dp_ftrl, num_parties=NUM_CLIENTS, **changes)
        kept = dp_ftrl.strategy(config).num_buffers
        accuracy = trained(dp_ftrl, config, seed=1)
        print(
            f"{name:12} noise_multiplier {config.noise_multiplier:5.2f}, keeps {kept} models: "
            f"accuracy {accuracy:.1%} at epsilon {EPSILON}, delta {DELTA}"
        )
    for name in PAIRED:
        shared = {"num_parties": NUM_PAIRED, "draw": "joint_law", "max_stragglers": 0}
        config = calibrated(lightdp, straggler_law="fixed", **shared, **KINDS[name])
        accuracy = trained(lightdp, config, seed=1)
        print(
            f"between pairs, {name:12} noise_multiplier {config.noise_multiplier:5.2f}: "
            f"accuracy {accuracy:.1%} towards a server that sees {NUM_PAIRED} clients' uploads"
        )


if __name__ == "__main__":
    main()
