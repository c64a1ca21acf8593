"""Table 2 of arXiv:2403.01268: what noise in the data costs a training step, beside DP-SGD.

One step of SGD on 64 images of 32 x 32 x 3: plain; on noisy records, the noise new at each step;
and with clipped, noisy gradients. Times are the processor's, of all threads, which other programs
do not lengthen as they do the clock's; all run in turn, so that what is left of them meets all
alike. Plain is the quicker of the loss as it is and as `loop_friendly` makes it, and the channels'
step is that one.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from fljax import models
from fljax.data import channel
from fljax.papers.channel.victims import CLIP
from fljax.papers.paper import Settings
from fljax_kernels import add_gaussian_noise, loop_friendly, per_example_grads

BATCH, SHAPE, CLASSES, MULTIPLIER, RATE = 64, (32, 32, 3), 10, 0.8, 0.1
# Seconds of 25 epochs, as printed: SGD, DP-SGD, theirs.
PRINTED = {
    "lenet": (283.43, 445.45, 312.99),
    "resnet10": (624.23, 1397.34, 651.29),
    "alexnet": (374.13, 1023.83, 406.02),
    "vgg16": (581.69, 3402.91, 612.99),
}


def networks(settings: Settings) -> tuple[str, ...]:
    """Those of the demo leave out VGG16, whose steps take minutes in all."""
    return tuple(name for name in PRINTED if settings.scale == "full" or name != "vgg16")


def measured(name: str) -> dict[str, Any]:
    """Processor seconds of each round by the name of the step, and the number of parameters."""
    model = models.create(name, example_shape=SHAPE, num_classes=CLASSES, key=jax.random.key(0))
    params, loss = model.params, models.softmax_cross_entropy(model.apply)
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.uniform(size=(BATCH, *SHAPE)), jnp.float32)
    batch = {"x": x, "y": jnp.asarray(rng.integers(0, CLASSES, BATCH), jnp.int32)}
    rows = jnp.arange(BATCH)

    def sgd(fun: Any) -> Any:
        def step(params: Any, batch: Any, use: jax.Array) -> Any:
            del use
            mean = lambda p: jax.vmap(fun, (None, 0))(p, batch).mean()
            return jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(mean)(params))

        return step

    def on_noisy(fun: Any, noise: channel.RecordNoise) -> Any:
        plain = sgd(fun)

        def step(params: Any, batch: Any, use: jax.Array) -> Any:
            key = channel.client_keys(
                jax.random.key(3, impl="threefry2x32"), jnp.zeros(1, jnp.int32)
            )[0]
            seen = channel.noisy(noise, batch["x"], channel.record_keys(key, rows, use))
            return plain(params, {**batch, "x": seen}, use)

        return step

    def private(params: Any, batch: Any, use: jax.Array) -> Any:
        weights = lambda norms: jnp.minimum(1.0, CLIP / jnp.maximum(norms, 1e-12))
        total, _ = per_example_grads(loss)(params, batch).weighted_sum(weights)
        key = jax.random.fold_in(jax.random.key(4, impl="threefry2x32"), use)
        noisy = add_gaussian_noise(key, total, MULTIPLIER * CLIP)
        return jax.tree.map(lambda p, g: p - RATE * g / BATCH, params, noisy)

    log_var, one = jnp.float32(np.log(0.01)), jnp.float32(1.0)
    public = rng.uniform(size=(1_000, *SHAPE)).astype(np.float32)
    white = channel.RecordNoise(log_var, 1e-4 * one, jnp.asarray(channel.data_factor(public)))
    forms = {"as it is": sgd(loss), "loop_friendly": sgd(loop_friendly(loss))}
    run = {form: jax.jit(step) for form, step in forms.items()}
    # The first of three compiles, and is never the least.
    first = {
        form: min(_seconds(step, params, batch, use) for use in range(3))
        for form, step in run.items()
    }
    quick = min(first, key=lambda form: first[form])
    fun = loss if quick == "as it is" else loop_friendly(loss)
    steps = {
        "plain": run[quick],
        "natural": jax.jit(on_noisy(fun, channel.RecordNoise(log_var, one))),
        "white": jax.jit(on_noisy(fun, white)),
        "DP-SGD": jax.jit(private),
    }
    for step in steps.values():
        _seconds(step, params, batch, 0)
    # Cheap steps are timed more often, for about ten seconds a network; of fewer than nine rounds
    # one that was disturbed would be an end of the interval of 95 %.
    rounds = int(np.clip(10 / (4 * first[quick]), 9, 40))
    seconds: dict[str, list[float]] = {form: [] for form in steps}
    for use in range(rounds):
        for form, step in steps.items():
            seconds[form].append(_seconds(step, params, batch, use))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return {"parameters": count, "quicker": quick, "seconds": seconds}


def _seconds(step: Any, params: Any, batch: Any, use: int) -> float:
    begin = time.process_time()
    jax.block_until_ready(step(params, batch, jnp.int32(use)))
    return time.process_time() - begin


def over(found: Mapping[str, Any], form: str, of: str = "plain") -> np.ndarray:
    """What a step takes beyond another, as a share of that: one number a round."""
    seconds = {name: np.asarray(values) for name, values in found["seconds"].items()}
    return np.asarray(seconds[form] / seconds[of] - 1)


def interval(shares: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Where the median is, by ranks: a round that something else slowed does not widen it, as it
    would by a mean. Anywhere, if so few rounds do not tell it at that level.
    """
    ordered, count = np.sort(shares), len(shares)
    rank = int(np.sum(special.bdtr(np.arange(count), count, 0.5) <= (1 - level) / 2))
    if rank < 1:
        return -math.inf, math.inf
    return float(ordered[rank - 1]), float(ordered[count - rank])


def above(shares: np.ndarray, by: float = 0.0, *, among: int = 1) -> bool | None:
    """As `fljax.papers.paper.above`, of medians."""
    low, high = interval(shares, 1 - 0.05 / among)
    return True if low > by else False if high < by else None


def percent(shares: np.ndarray) -> str:
    """The median and its interval, where there is one."""
    low, high = interval(shares)
    near = f" ({100 * low:.1f} to {100 * high:.1f})" if math.isfinite(low) else ""
    return f"{100 * np.median(shares):.1f} %{near}"
