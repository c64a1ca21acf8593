"""A private statistic of any kind, by `clipped_fun`: the mean image of each digit, in one release.

    python examples/clipped_statistics.py

The unit is one client with all its images. A digit is then read as the mean that it is nearest to.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fljax
import fljax_kernels
from fljax import accounting, data
from fljax.accounting import events

NUM_CLIENTS = 400
TARGET_EPSILON = 4.0
DELTA = 1e-4
L2_CLIP_NORM = 1.0


def sums(images: jax.Array, labels: jax.Array, present: jax.Array) -> jax.Array:
    """What one client adds, `[10, D]`: its images by their digit, each of length 1."""
    rows = images.reshape(len(labels), -1)
    rows = rows / jnp.maximum(jnp.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    return jnp.where(present[:, None], jax.nn.one_hot(labels, 10), 0.0).T @ rows


def main() -> None:
    """Releases the sums once, with noise for the target, and says what they are good for."""
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], NUM_CLIENTS, np.random.default_rng(0))
    x, y = (jnp.asarray(digits.train[name])[np.maximum(table, 0)] for name in ("x", "y"))

    def event(noise_multiplier: float) -> fljax.PrivacyEvent:
        return fljax.PrivacyEvent(
            mechanism=events.Gaussian(noise_multiplier),
            privacy_unit="client",
            neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        )

    clipped = fljax.clipped_fun(
        sums,
        batch_argnums=(0, 1, 2),
        l2_clip_norm=L2_CLIP_NORM,
        keep_batch_dim=False,
        microbatch_size=50,
    )
    noise_multiplier = accounting.calibrate(event, epsilon=TARGET_EPSILON, delta=DELTA)
    stddev = noise_multiplier * clipped.sensitivity("ADD_OR_REMOVE_ONE")
    exact = clipped(x, y, jnp.asarray(table >= 0))
    # A fixed key is for experiments: who knows it can take the noise away.
    private = fljax_kernels.add_gaussian_noise(jax.random.key(2026), exact, stddev)

    def accuracy(means: jax.Array) -> float:
        means = means / jnp.linalg.norm(means, axis=1, keepdims=True)
        nearest = jnp.argmax(digits.test["x"].reshape(len(digits.test["y"]), -1) @ means.T, axis=1)
        return float(jnp.mean(nearest == digits.test["y"]))

    epsilon = accounting.epsilon(event(noise_multiplier), delta=DELTA)
    print(
        f"one release: epsilon {epsilon:.3f} at delta {DELTA:g}, for adding or removing one client"
    )
    print(f"test accuracy {accuracy(private):.3f}, without noise {accuracy(exact):.3f}")


if __name__ == "__main__":
    main()
