"""What the malicious server of `fljax attack` sends to clients, and how it reads what they send."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, schemes
from fljax.attacks import fishing, gradient_inversion, imprint, reconstruction
from fljax.models import Functional
from fljax.types import PyTree

_CASTS = 4  # uploads for each image that a class has in a batch: 1 - exp(-4 / e) are caught alone
_BINS, _SCALE = 16, 10.0  # bins for each image of the batch; the layer's share of a clipped upload


def beside(options: Any, dataset: data.Dataset, count: int) -> PyTree | None:
    """The other images of each of `count` uploads, of C clients with B each, of the training split,
    leaves `[count, C B - 1, ...]`; None where there is one image.
    """
    number = options.batch_size * options.clients
    if number == 1:
        return None
    rng = np.random.default_rng([options.seed, 4])
    rows = rng.integers(0, len(dataset.train["y"]), (count, number - 1))
    return {name: jnp.asarray(dataset.train[name][rows]) for name in ("x", "y")}


def sent(options: Any, victim: Functional, dataset: data.Dataset) -> tuple[Functional, Any]:
    """(The model that clients are sent, what an inversion compares with).

    Who fishes calls the class of its image 0, as `relabelled` does. Of batches with more images
    than there are classes it takes those with so much of a feature that one of a class is left;
    where it has several casts each has a head of its own (`heads`) in place of this one.
    """
    if options.attack == "imprint":
        bins = _BINS * options.batch_size
        model = imprint.imprinted(victim, dataset.train["x"], bins, scale=_SCALE)
        return model, model.apply
    classes = dataset.num_classes
    bare = fishing.fished(victim, 0, classes)
    if options.batch_size <= classes and num_casts(options, dataset) == 1:
        return bare, bare.apply
    logits = jax.jit(jax.vmap(victim.apply, (None, 0)))(victim.params, dataset.train["x"])
    least = np.quantile(np.asarray(logits)[:, 0], max(0.0, 1 - classes / options.batch_size))
    return fishing.fished(victim, 0, classes, threshold=float(least)), bare.apply


def num_casts(options: Any, dataset: data.Dataset) -> int:
    """How many uploads of a batch there are, each of a head of its own: of who fishes in batches
    with more images than there are classes. One where nobody has candidates to choose among.
    """
    if options.attack != "fishing" or schemes.get(options.scheme).promise == "nats":
        return 1
    if options.num_rounds is not None:
        return int(options.num_rounds)
    few = options.batch_size <= dataset.num_classes
    return 1 if few else math.ceil(_CASTS * _expected(options, dataset))


def _expected(options: Any, dataset: data.Dataset) -> float:
    """Images of the class in the image's batch, itself among them."""
    return 1 + (options.batch_size - 1) / dataset.num_classes


class Casts(NamedTuple):
    """directions `[classes, number, classes]` and thresholds `[classes, number]`."""

    directions: np.ndarray
    thresholds: np.ndarray


def casts(
    options: Any, victim: Functional, dataset: data.Dataset, labels: np.ndarray
) -> Casts | None:
    """By images of the training split, zero of classes that are none of `labels`; None of one
    upload.
    """
    number = num_casts(options, dataset)
    if number == 1:
        return None
    known, classes = dataset.train, dataset.num_classes
    logits = jax.jit(jax.vmap(victim.apply, (None, 0)))(victim.params, known["x"])
    root = jax.random.fold_in(jax.random.key(options.seed, impl="threefry2x32"), 5)
    directions, thresholds = np.zeros((classes, number, classes)), np.zeros((classes, number))
    for label in np.unique(labels):
        directions[label], thresholds[label] = fishing.casts(
            np.asarray(logits)[np.asarray(known["y"]) == label],
            jax.random.fold_in(root, int(label)),
            number,
            expected=_expected(options, dataset),
        )
    return Casts(directions, thresholds)


def heads(options: Any, here: Any) -> PyTree:
    """{"kernel" `[number T, classes]`, "bias" `[number T]`}, of all images for each cast."""
    directions, thresholds = here.casts
    each = np.tile(here.labels, options.repeats)
    return {
        "kernel": jnp.asarray(
            directions[each].swapaxes(0, 1).reshape(-1, directions.shape[2]), jnp.float32
        ),
        "bias": jnp.asarray(-thresholds[each].T.reshape(-1), jnp.float32),
    }


def caught(
    options: Any,
    here: Any,
    moved: PyTree,
    budgets: int,
    number: int,
    key: jax.Array,
    settings: gradient_inversion.Settings,
    prior: gradient_inversion.Prior,
) -> np.ndarray:
    """The image behind each batch's casts, `[budgets T, ...]`, from how far the network moved,
    leaves `[budgets number T, ...]`: of those behind each cast the one that is nearest to any of
    the candidates; NaN where there is none.
    """
    lines = np.tile(np.asarray(heads(options, here)["kernel"]), (budgets, 1))
    # Above its threshold a feature's gradient is the loss's, but for its size.
    feature = lambda params, one: -jnp.vdot(one["y"], here.victim.apply(params, one["x"]))
    observe = gradient_inversion.gradient(feature)
    shape = here.truth.shape[1:]
    found = jax.jit(
        lambda moved, y: gradient_inversion.invert(
            observe,
            here.victim.params,
            moved,
            y,
            key,
            shape=(1, *shape),
            settings=settings,
            prior=prior,
        )
    )(moved, jnp.asarray(lines)[:, None])
    images = np.where(
        np.isfinite(found.loss)[:, None], np.asarray(found.x).reshape(len(lines), -1), np.nan
    ).reshape(budgets, number, len(here.many["y"]), -1)
    far = np.square(images[..., None, :] - here.truth.reshape(len(here.truth), -1)).mean(-1).min(-1)
    best = np.where(np.isfinite(far), far, np.inf).argmin(1)
    chosen = np.take_along_axis(images, best[:, None, :, None], 1)
    return np.asarray(chosen.reshape(-1, *shape), np.float32)


def picked(options: Any, here: Any, moved: PyTree, number: int) -> np.ndarray:
    """Which candidate all casts of each batch move along most, int `[T]`, from leaves `[number T,
    ...]`; all candidates as if they were of the batch's class.
    """
    candidates = {"x": jnp.asarray(here.truth), "y": jnp.asarray(here.y)}
    directions, thresholds = here.casts
    gradient = jax.vmap(jax.grad(here.loss), (None, 0))

    @jax.jit
    def along(kernels: jax.Array, biases: jax.Array) -> PyTree:
        sent = lambda kernel, bias: here.sent.params | {"head": {"kernel": kernel, "bias": bias}}
        return jax.vmap(lambda k, b: gradient(sent(k, b), candidates), out_axes=1)(kernels, biases)

    together = lambda leaf: np.asarray(leaf).reshape(number, -1, *leaf.shape[1:]).swapaxes(0, 1)
    each, moved = np.tile(here.labels, options.repeats), jax.tree.map(together, moved)
    choices = np.full(len(each), -1)
    for label in np.unique(each):
        own = along(
            jnp.asarray(directions[label], jnp.float32),
            jnp.asarray(-thresholds[label], jnp.float32),
        )
        choices[each == label] = reconstruction.best_match(
            jax.tree.map(lambda leaf, at=label: leaf[each == at], moved), own
        )
    return choices


def relabelled(examples: PyTree, target: jax.Array, num_classes: int) -> PyTree:
    """The same with classes counted from `target` `[T]`: to the head all are alike."""
    y = examples["y"]
    own = target.reshape(-1, *(1,) * (y.ndim - 1))
    return {"x": examples["x"], "y": (y - own) % num_classes}


def read(layers: PyTree, candidates: np.ndarray, box: tuple[float, float] | None) -> np.ndarray:
    """Of each of T uploads of the layer the image that is nearest to any of the candidates, `[T,
    ...]`; NaN where there is none. The other images of a batch are no candidates, so that this is a
    guess, made without the truth.
    """
    flat = candidates.reshape(len(candidates), -1).astype(np.float64)
    kernels, biases = np.asarray(layers["kernel"]), np.asarray(layers["bias"])
    found = np.full((len(kernels), flat.shape[1]), np.nan)
    for place, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
            continue
        rows = imprint.read(kernel, bias)
        rows = rows[np.isfinite(rows).all(1)]
        if not len(rows):
            continue
        rows = rows if box is None else np.clip(rows, *box)
        far = np.square(rows[:, None] - flat[None]).sum(-1).min(1)
        found[place] = rows[np.argmin(far)]
    return found.reshape(-1, *candidates.shape[1:]).astype(np.float32)
