"""What one upload tells without a search, how alike a reconstruction is, and who is seen in rounds.

First R-GAP solves for a digit behind one gradient, plainly and through a round of DP-SGD, and each
measure of likeness says how near it came. Then an attacker with updates of its own tells clients
whose images are all turned. Last, models are trained by rounds, and members are told by all rounds'
updates, by the gradient of the last layer, and person by person.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import accounting, data, models, schemes
from fljax.attacks import (
    metrics,
    perceptual,
    properties,
    reconstruction,
    recursive,
    rounds,
    shadow,
    trained,
    victims,
)

SCHEME, NOISE, DELTA = "higradavg", 1.0, 1e-3
TARGETS, LEARNING = 6, 200
CLIENTS, EACH = 160, 20
SHADOWS, POOL, NUM_ROUNDS, OF_A_PERSON = 16, 120, 60, 4


def solve(digits: data.Dataset) -> None:
    """Digits by linear equations, from uploads with noise and without."""
    chain = victims.leaky_chain(example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    net = chain.functional
    loss = models.softmax_cross_entropy(net.apply)
    examples = {name: jnp.asarray(digits.test[name][:TARGETS]) for name in ("x", "y")}
    config = reconstruction.config("dp_sgd", noise_multiplier=NOISE)
    keys = jax.random.split(jax.random.key(1), TARGETS)
    through = reconstruction.updates("dp_sgd", config, loss, net.params, examples, keys, digits)
    learnt = perceptual.learn(digits.train["x"], jax.random.key(2), num_steps=LEARNING)
    measures: dict[str, Callable[..., Any]] = {
        "PSNR": metrics.psnr,
        "R-PSNR": perceptual.registered_psnr,
        "SSIM": metrics.ssim,
        "CW-SSIM": perceptual.cw_ssim,
        "learnt distance": lambda a, b: perceptual.learnt_distance(learnt, a, b),
    }
    of_all = {label: jax.jit(jax.vmap(measure)) for label, measure in measures.items()}
    plain = reconstruction.gradients_of(loss, net.params, examples)
    for name, uploads in (("undefended", plain), ("through dp_sgd", through)):
        found = np.stack([_solved(chain, uploads, place, examples) for place in range(TARGETS)])
        told = [
            f"{label} {np.median(measure(found, examples['x'])):.2f}"
            for label, measure in of_all.items()
        ]
        named = reconstruction.iip(
            found,
            digits.test["x"],
            np.arange(TARGETS),
            features=lambda x: perceptual.names(learnt, x),
        )
        print(f"digits solved for, {name}: {', '.join(told)}")
        print(f"  {named:.0%} are nearest to their own among {len(digits.test['x'])}")


def _solved(chain: victims.Chain, uploads: Any, place: int, examples: Any) -> Any:
    names = sorted(chain.functional.params)
    found = recursive.invert(
        chain.layers,
        [chain.functional.params[name] for name in names],
        [jax.tree.map(lambda leaf: leaf[place], uploads[name]) for name in names],
        int(examples["y"][place]),
        shape=(8, 8, 1),
        slope=chain.slope,
    )
    return np.clip(found.x, 0, 1)


def shared(digits: data.Dataset) -> None:
    """Whether all of a client's images are turned, by the client's clipped sum of gradients."""
    net = models.create("mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(3))
    per_example = jax.vmap(jax.grad(models.softmax_cross_entropy(net.apply)), (None, 0))
    clipped = jax.jit(
        lambda each: jax.lax.map(
            lambda own: fljax_kernels.clip_and_sum(per_example(net.params, own), 1.0)[0], each
        )
    )
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(digits.train["y"]), (CLIENTS, EACH))
    x, turned = digits.train["x"][rows], np.arange(CLIENTS) % 2 == 0
    x = np.where(turned[:, None, None, None, None], np.rot90(x, axes=(2, 3)), x)
    sums = clipped({"x": jnp.asarray(x), "y": jnp.asarray(digits.train["y"][rows])})
    half = CLIENTS // 2
    for noise in (0.0, NOISE):
        seen = jax.tree.map(lambda v, z=noise: np.asarray(v) + z * rng.normal(size=v.shape), sums)
        known, asked = (
            jax.tree.map(lambda v, at=at: v[at], seen) for at in (slice(half), slice(half, None))
        )
        found = properties.scores(known, turned[:half], asked)
        area = metrics.auc(found[turned[half:]], found[~turned[half:]])
        print(f"turned images, noise multiplier {noise:g}: AUC {area:.2f}")


def infer(digits: data.Dataset) -> None:
    """Who was trained on, by those who see more than the last model's answers."""
    rng = np.random.default_rng(1)
    x, y = digits.train["x"][: 2 * POOL], digits.train["y"][: 2 * POOL].copy()
    wrong = rng.random(2 * POOL) < 0.2
    y[wrong] = rng.integers(0, 10, wrong.sum())
    sides = [{"x": jnp.asarray(x[at]), "y": jnp.asarray(y[at])} for at in _halves(POOL)]
    model = models.create(
        "mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(4), hidden=(32,)
    )
    loss = models.softmax_cross_entropy(model.apply)
    subjects = np.arange(POOL) // OF_A_PERSON
    persons = shadow.halves(jax.random.key(5), SHADOWS + 2, POOL // OF_A_PERSON)[1:]
    included = np.asarray(persons)[:, subjects]
    start = rounds.config(SCHEME, noise_multiplier=NOISE, local_learning_rate=2.0)
    event = schemes.get(SCHEME).run_event(start, NUM_ROUNDS)
    epsilon = accounting.epsilon(event, delta=DELTA)
    for name, noise in (("undefended", 0.0), (f"epsilon {epsilon:.1f} at delta {DELTA}", NOISE)):
        passed = trained.models(
            SCHEME,
            dataclasses.replace(start, noise_multiplier=noise),
            loss,
            model.params,
            sides[0],
            jnp.asarray(included),
            jax.random.split(jax.random.key(6), SHADOWS + 1),
            num_rounds=NUM_ROUNDS,
            subjects=subjects,
            every_round=True,
        )
        last = jax.tree.map(lambda leaf: leaf[:, -1], passed)
        given = trained.Trained(
            model.apply, last, sides[0], included, sides[1], passed, loss, subjects
        )
        told = [
            f"{attack} {trained.attacked(attack, given, jax.random.key(7)).auc:.2f}"
            for attack in ("white_box", "gradient_alignment", "subject_lira")
        ]
        print(f"members, {name}: AUC of {', '.join(told)}")
    print(f"  {POOL} examples of {POOL // OF_A_PERSON} persons, half of whom were trained on")


def _halves(size: int) -> tuple[slice, slice]:
    return slice(size), slice(size, None)


def main() -> None:
    """Runs the attacks."""
    digits = data.load("digits")
    solve(digits)
    shared(digits)
    infer(digits)


if __name__ == "__main__":
    main()
