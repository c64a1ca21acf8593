"""Private SGD by hand, with `clipped_grad`: several ways to clip, each at the same epsilon, on real
handwritten digits.

    python examples/clipping_styles.py

The unit is one example. With a bound that adapts, the count it follows is part of the same Gaussian
mechanism.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fljax
import fljax_kernels
from fljax import accounting, data, models
from fljax.accounting import events
from fljax.local import clipping, quantile
from fljax.types import Params

NUM_STEPS = 100
SAMPLING_PROB = 0.15
TARGET_EPSILON = 3.0
DELTA = 1e-4
LEARNING_RATE = 0.5
TARGET_QUANTILE = 0.6
HIDDEN = (64,)
# Name, style, first bound, whether it adapts. A bound of 20 is far too large: noise grows with it.
RUNS: tuple[tuple[str, clipping.Style, float, bool], ...] = (
    ("flat, bound 0.5", "flat", 0.5, False),
    ("flat, bound 20", "flat", 20.0, False),
    ("flat, from 20, adapts", "flat", 20.0, True),
    ("AUTO-S", "auto_s", 0.5, False),
    ("DP-PSAC", "psac", 0.5, False),
)


def main() -> None:
    """Calibrates the noise once, trains in each style, and prints what was spent and what was
    learned.
    """
    digits = data.load("digits")
    data.check_examples(digits.train, num_classes=digits.num_classes, name="train")
    train = jax.tree.map(jnp.asarray, digits.train)
    num_examples = digits.train["y"].size
    expected_size = SAMPLING_PROB * num_examples
    model = models.create(
        "mlp",
        example_shape=digits.train["x"].shape[1:],
        num_classes=10,
        key=jax.random.key(0),
        hidden=HIDDEN,
    )
    loss = models.softmax_cross_entropy(model.apply)

    def run_event(noise_multiplier: float) -> accounting.PrivacyEvent:
        step = events.PoissonSampled(SAMPLING_PROB, events.Gaussian(noise_multiplier))
        return accounting.PrivacyEvent(
            mechanism=step,
            privacy_unit="example",
            neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        ).repeat(NUM_STEPS)

    noise_multiplier = accounting.calibrate(run_event, epsilon=TARGET_EPSILON, delta=DELTA)
    epsilon = accounting.epsilon(run_event(noise_multiplier), delta=DELTA)
    print(
        f"{NUM_STEPS} steps, noise multiplier {noise_multiplier:.3f}: epsilon {epsilon:.3f} at "
        f"delta {DELTA:g}"
    )
    count_stddev = expected_size / 20
    capacity = fljax_kernels.poisson_capacity(num_examples, SAMPLING_PROB, 1e-9)

    def train_with(style: clipping.Style, first_bound: float, adapts: bool) -> tuple[Params, float]:
        # A count costs something: the sum keeps the rest of the noise multiplier, so that epsilon
        # stays.
        of_sum = (
            quantile.sum_noise_multiplier(noise_multiplier, count_stddev)
            if adapts
            else noise_multiplier
        )
        optimizer = optax.sgd(LEARNING_RATE, momentum=0.9)

        @jax.jit
        def step(
            params: Params, opt_state: optax.OptState, bound: quantile.QuantileState, key: jax.Array
        ) -> tuple[Params, optax.OptState, quantile.QuantileState, jax.Array]:
            sample_key, noise_key, count_key = jax.random.split(key, 3)
            sample = fljax_kernels.poisson_sample(sample_key, num_examples, SAMPLING_PROB, capacity)
            present = sample.indices >= 0
            batch = jax.tree.map(lambda x: x[jnp.maximum(sample.indices, 0)], train)
            grad = fljax.clipped_grad(
                loss,
                l2_clip_norm=bound.l2_clip_norm,
                clipping_style=style,
                normalize_by=expected_size,  # a public constant, never the size that was drawn
                keep_batch_dim=False,
                return_grad_norms=True,
            )
            clipped, extra = grad(params, batch, is_padding_example=~present)
            stddev = of_sum * grad.sensitivity("ADD_OR_REMOVE_ONE")
            noisy = fljax_kernels.add_gaussian_noise(noise_key, clipped, stddev)
            if adapts:
                bound = quantile.update(
                    count_key,
                    bound,
                    quantile.centred_count(bound, extra.grad_norms, present),
                    expected_count=expected_size,
                    count_stddev=count_stddev,
                    target_quantile=TARGET_QUANTILE,
                )
            updates, opt_state = optimizer.update(noisy, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, bound, sample.overflow

        params, opt_state, bound = (
            model.params,
            optimizer.init(model.params),
            quantile.init(first_bound),
        )
        for key in jax.random.split(jax.random.key(2026), NUM_STEPS):
            params, opt_state, bound, overflow = step(params, opt_state, bound, key)
            if overflow:
                raise RuntimeError(
                    "the sample did not fit: this run is not what the accountant assumed"
                )
        return params, float(bound.l2_clip_norm)

    for name, style, first_bound, adapts in RUNS:
        params, bound = train_with(style, first_bound, adapts)
        _, accuracy = models.evaluate(model.apply, params, jax.tree.map(np.asarray, digits.test))
        print(f"{name:22s} last bound {bound:7.3g}, test accuracy {float(accuracy):.3f}")


if __name__ == "__main__":
    main()
