"""Attack what you certify: the same scheme reconstructed from and audited, with and without its
noise.

First a server inverts the gradients of real digits, plainly and through rounds of DP-FedSGD. Then
thousands of rounds are played with one example and without it, and what was learned is compared
with the epsilon that the scheme claims. Last, LiRA with 16 shadow models tells who was in an
overfitted model's training data.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models, schemes
from fljax.attacks import (
    gradient_inversion,
    membership,
    metrics,
    reconstruction,
    rounds,
    shadow,
    victims,
)
from fljax.types import Params

SCHEME, NOISE = "dp_fedsgd", 1.0
TARGETS, ITERATIONS = 6, 400
TRIALS, DELTA = 5_000, 0.05
SHADOWS, POOL, STEPS = 16, 200, 200


def invert(digits: data.Dataset) -> None:
    """What a server reads from one round."""
    victim = victims.smooth_lenet(example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    loss = models.softmax_cross_entropy(victim.apply)
    examples = {name: jnp.asarray(digits.test[name][:TARGETS]) for name in ("x", "y")}
    settings = gradient_inversion.Settings(num_iterations=ITERATIONS, tv_weight=0.0)
    moved = [reconstruction.gradients_of(loss, victim.params, examples)]
    config = reconstruction.config(SCHEME, noise_multiplier=NOISE)
    keys = jax.random.split(jax.random.key(1), TARGETS)
    moved.append(
        reconstruction.updates(SCHEME, config, loss, victim.params, examples, keys, digits)
    )
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *moved)
    x, y = (jnp.concatenate([examples[name]] * 2) for name in ("x", "y"))
    found = reconstruction.invert(
        victim.apply, victim.params, both, y, jax.random.key(2), shape=(8, 8, 1), settings=settings
    )
    psnr = np.asarray(jax.vmap(metrics.psnr)(found, x))
    bound = reconstruction.identification_bound(schemes.get(SCHEME).event(config), TARGETS)
    print(
        f"digits inverted: {np.median(psnr[:TARGETS]):.0f} dB undefended, "
        f"{np.median(psnr[TARGETS:]):.0f} dB through"
    )
    print(
        f"  {SCHEME} with noise {NOISE:g}: nobody picks 1 of {TARGETS} right in more than "
        f"{bound:.0%} of cases"
    )


def audit() -> None:
    """What thousands of rounds tell about one example, and what half the noise would."""
    honest = rounds.config(SCHEME, noise_multiplier=NOISE, sampling_prob=1.0)
    claimed = rounds.certified_epsilon(schemes.get(SCHEME).event(honest), DELTA)
    for name, noise in (("as claimed", NOISE), ("half of it", NOISE / 2)):
        game = rounds.game(SCHEME, rounds.config(SCHEME, noise_multiplier=noise, sampling_prob=1.0))
        found = rounds.verdict(
            game,
            jax.random.key(3, impl="threefry2x32"),
            num_trials=TRIALS,
            delta=DELTA,
            certified=claimed,
        )
        print(
            f"noise {name}: epsilon at least {found.measured:.2f}, certified {claimed:.2f} at "
            f"delta {DELTA:g}: "
            f"{ {None: 'cannot tell', True: 'holds', False: 'REFUTED'}[found.holds] }"
        )


def infer(digits: data.Dataset) -> None:
    """Who was trained on; a fifth of the labels are wrong, so that models have to memorise."""
    rng = np.random.default_rng(0)
    x, y = digits.train["x"][:POOL], digits.train["y"][:POOL].copy()
    wrong = rng.random(POOL) < 0.2
    y[wrong] = rng.integers(0, 10, wrong.sum())
    model = models.create(
        "mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(4), hidden=(32,)
    )

    def fresh(key: jax.Array) -> Params:
        leaves, tree = jax.tree.flatten(model.params)
        pairs = zip(jax.random.split(key, len(leaves)), leaves, strict=True)
        return jax.tree.unflatten(tree, [p + 0.1 * jax.random.normal(k, p.shape) for k, p in pairs])

    train = jax.jit(
        shadow.trainer(models.softmax_cross_entropy(model.apply), fresh, num_steps=STEPS)
    )
    # One model more than shadows, and not the complement of one of them: the target.
    included = shadow.halves(jax.random.key(5), SHADOWS + 2, POOL)[1:]
    params = train({"x": x, "y": y}, included, jax.random.split(jax.random.key(6), SHADOWS + 1))
    scores = np.asarray(
        jax.jit(lambda p: shadow.confidences(model.apply, p, x, jnp.asarray(y)))(params)
    )
    members = np.asarray(included[0])
    for name, found in (
        ("loss", membership.loss_threshold(scores[0])),
        ("LiRA", membership.lira(scores[0], scores[1:], included[1:])),
    ):
        area, low = (
            metrics.auc(found[members], found[~members]),
            metrics.tpr_at_fpr(found[members], found[~members], 0.01),
        )
        print(f"membership by {name}: AUC {area:.2f}, {low:.0%} of members at 1% false alarms")


def main() -> None:
    """Runs the three attacks."""
    digits = data.load("digits")
    invert(digits)
    audit()
    infer(digits)


if __name__ == "__main__":
    main()
