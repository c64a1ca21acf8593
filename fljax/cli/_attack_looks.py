"""A network that has learnt of images for `fljax attack`: by it, how alike the truth and what is
found look, which is held to no certificate, and a prior for searches.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data
from fljax.attacks import metrics, perceptual

HEAD = ("PSNR", "R-PSNR", "SSIM", "CW-SSIM", "learnt distance")
WORDS = (
    "PSNR and SSIM go pixel by pixel; they and R-PSNR are of the range of the training split's "
    "values. R-PSNR is PSNR once the image is laid over the truth by the "
    "best small shift, turn and scale, which is worth some dB of noise, too: compare it with "
    "itself at other budgets. CW-SSIM is the similarity of wavelets but for a phase that all in a "
    "window share, which is what a small shift changes; 1 is alike, and nothing says unlike: "
    "other images of the kind, or their mean, are far above 0. The learnt distance compares what "
    "three convolutions see, which were trained on up to 1,000 images of the training split to "
    "tell one from others after changes that hardly show; 0 is alike, at most 2. Means over all "
    "inversions."
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


def check(options: Any, dataset: data.Dataset) -> None:
    """Raises ValueError: nothing can be learnt of the images, or no decibels be said of them."""
    x = dataset.train["x"]
    held = dataset.test["x"][: options.targets]
    if len(x) < 2 or not all(np.isfinite(part).all() for part in (x, held)) or np.ptp(x) == 0:
        raise ValueError(
            "Expected dataset to have two training images at least, of finite numbers that are not "
            f"all one, got dataset={options.dataset!r} with {len(x)} training images of shape "
            f"{list(x.shape[1:])}."
        )
    if options.attack == "inversion_feature_prior" and min(x.shape[1:3]) < _LEAST_SIDE:
        raise ValueError(
            f"Expected dataset to have images with sides of {_LEAST_SIDE} pixels at least with "
            f"attack={options.attack!r}, whose network reads them, got dataset={options.dataset!r} "
            f"with images of shape {list(x.shape[1:])}."
        )


def public(dataset: data.Dataset, most: int = _PUBLIC) -> np.ndarray:
    """Up to so many images of the training split, drawn once: it may be sorted by class."""
    x = dataset.train["x"]
    return np.asarray(x[np.random.default_rng(0).permutation(len(x))[:most]])


def box(dataset: data.Dataset) -> tuple[float, float]:
    """The least and the largest value of the training split."""
    x = dataset.train["x"]
    return float(x.min()), float(x.max())


def network(dataset: data.Dataset, key: jax.Array) -> perceptual.Learnt:
    """Has learnt of the training split. Raises ValueError for images with sides under 4 pixels."""
    images = public(dataset)
    size = min(_BATCH, len(images))
    return perceptual.learn(images, key, num_steps=_STEPS, batch_size=size)


def beside(dataset: data.Dataset) -> Callable[[np.ndarray, np.ndarray], Looks]:
    """`(found [repeats T, H, W, channels], truth [T, H, W, channels]) -> Looks`, by a network that
    has learnt of the training split, always the same of the same data.
    """
    low, high = box(dataset)
    plain: dict[str, Any] = {
        "psnr": metrics.psnr,
        "registered_psnr": perceptual.registered_psnr,
        "ssim": metrics.ssim,
        "cw_ssim": perceptual.cw_ssim,
    }
    each = {name: functools.partial(fun, data_range=high - low) for name, fun in plain.items()}
    if min(dataset.train["x"].shape[1:3]) >= _LEAST_SIDE:
        learnt = network(dataset, jax.random.key(0, impl="threefry2x32"))
        each["learnt_distance"] = functools.partial(perceptual.learnt_distance, learnt)

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
    prior = perceptual.feature_prior(network(dataset, key), public(dataset))
    return lambda images: _WEIGHT * prior(images)


def cells(line: Any) -> list[str]:
    """A line as text, in the order of HEAD."""
    return ["-" if (v := line._asdict()[n]) is None else f"{v:.4g}" for n in Looks._fields]
