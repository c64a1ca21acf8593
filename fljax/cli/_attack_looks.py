"""A network that has learnt of images for `fljax attack`: by it, how alike the truth and what is
found look, which is held to no certificate, and a prior for searches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data
from fljax.attacks import metrics, perceptual

HEAD = ("PSNR", "R-PSNR", "SSIM", "CW-SSIM", "learnt distance")
WORDS = (
    "PSNR and SSIM go pixel by pixel. R-PSNR is PSNR once the image is laid over the truth by the "
    "best small shift, turn and scale, which is worth some dB of noise, too: compare it with "
    "itself at other budgets. CW-SSIM is the similarity of wavelets without their phases, which a "
    "small shift hardly moves; 1 is alike. The learnt distance compares what "
    "three convolutions see, which were trained on images of the training split to tell one from "
    "others after changes that hardly show; 0 is alike, at most 2. Means over all inversions."
)
# The network sees as much of images by these steps as by the default of twice as many.
_PUBLIC, _STEPS, _BATCH = 1000, 100, 16
_LEAST_SIDE = 4  # of what the network reads
_WEIGHT = 1e-3  # of features beside 1 - cosine


class Looks(NamedTuple):
    """Means over images; dB, dB, at most 1, at most 1, in [0, 2]; None of sides under 4 pixels."""

    psnr: float
    registered_psnr: float
    ssim: float
    cw_ssim: float
    learnt_distance: float | None


def network(dataset: data.Dataset, key: jax.Array) -> perceptual.Learnt:
    """Has learnt of the training split. Raises ValueError for images with sides under 4 pixels."""
    public = dataset.train["x"][:_PUBLIC]
    size = min(_BATCH, len(public))
    return perceptual.learn(public, key, num_steps=_STEPS, batch_size=size)


def beside(dataset: data.Dataset) -> Callable[[np.ndarray, np.ndarray], Looks]:
    """`(found [repeats T, H, W, channels], truth [T, H, W, channels]) -> Looks`, by a network that
    has learnt of the training split, always the same of the same data.
    """
    each: dict[str, Any] = {
        "psnr": metrics.psnr,
        "registered_psnr": perceptual.registered_psnr,
        "ssim": metrics.ssim,
        "cw_ssim": perceptual.cw_ssim,
    }
    if min(dataset.train["x"].shape[1:3]) >= _LEAST_SIDE:
        learnt = network(dataset, jax.random.key(0, impl="threefry2x32"))
        each["learnt_distance"] = lambda a, b: perceptual.learnt_distance(learnt, a, b)

    @jax.jit
    def all_of(found: jax.Array, truth: jax.Array) -> dict[str, jax.Array]:
        of_one = lambda a, b: {name: measure(a, b) for name, measure in each.items()}
        # One repeat after the other: registrations of all at once would fill memory.
        return jax.lax.map(lambda images: jax.vmap(of_one)(images, truth), found)

    def looks(found: np.ndarray, truth: np.ndarray) -> Looks:
        told = all_of(jnp.asarray(found.reshape(-1, *truth.shape)), jnp.asarray(truth))
        means = {name: float(np.mean(values)) for name, values in told.items()}
        return Looks(learnt_distance=means.pop("learnt_distance", None), **means)

    return looks


def usual(dataset: data.Dataset, key: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """The penalty of a search whose attacker knows which features images of the training split
    usually have, by a network of its own.
    """
    prior = perceptual.feature_prior(network(dataset, key), dataset.train["x"][:_PUBLIC])
    return lambda images: _WEIGHT * prior(images)


def cells(line: Any) -> list[str]:
    """A line as text, in the order of HEAD."""
    return ["-" if (v := line._asdict()[n]) is None else f"{v:.4g}" for n in Looks._fields]
