"""What an inversion of `fljax attack` compares an upload with, and the labels it goes by."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import schemes
from fljax.attacks import analytic, gradient_inversion, reconstruction
from fljax.cli import _attack_looks
from fljax.types import PyTree

_PUBLIC = 400  # images of the training split whose mean answer a count of labels takes for theirs


def check(options: Any, searches: tuple[str, ...]) -> None:
    """Raises ValueError: several clients, steps of their own, or labels that are read, of another
    attack, scheme or number of images. searches: attacks that they are of.
    """
    alone = options.clients == 1 and not _trains_locally(options)
    if alone and not options.read_labels:
        return
    if options.attack not in searches or options.sweep is not None:
        raise ValueError(
            "Expected clients, local_epochs, local_batch_size and read_labels with one of "
            f"{', '.join(searches)}, without sweep, got attack={options.attack!r}."
        )
    if options.read_labels and options.attack == "dlg":
        raise ValueError(
            "Expected no read_labels with dlg, which searches for labels, got read_labels=True."
        )
    if alone:
        return
    scheme = schemes.get(options.scheme)
    if scheme.promise == "nats":
        raise ValueError(
            "Expected clients, local_epochs and local_batch_size with a scheme that promises an "
            f"epsilon, got scheme={options.scheme!r}."
        )
    names = {field.name for field in dataclasses.fields(scheme.Config)}
    if _trains_locally(options):
        if not {"num_local_epochs", "local_batch_size", "local_learning_rate"} <= names:
            raise ValueError(
                "Expected local_epochs=1 and no local_batch_size with a scheme whose clients do "
                f"not pass over their data, as dp_fedavg's do, got scheme={options.scheme!r}."
            )
        size = options.batch_size if options.local_batch_size is None else options.local_batch_size
        if options.batch_size % size:
            raise ValueError(
                f"Expected local_batch_size to divide batch_size={options.batch_size}, got "
                f"local_batch_size={size}."
            )


def _trains_locally(options: Any) -> bool:
    return options.local_epochs > 1 or options.local_batch_size is not None


def local_fields(options: Any) -> dict[str, Any]:
    """Of the Config of a scheme whose clients take steps of their own; else none."""
    if not _trains_locally(options):
        return {}
    return {
        "num_local_epochs": options.local_epochs,
        "local_batch_size": options.local_batch_size or options.batch_size,
    }


def observe(options: Any, here: Any, config: Any) -> gradient_inversion.Observe:
    """What an upload of images `[B, ...]` would be, of several clients `[C, B, ...]`, by a `config`
    without noise: of records that are clipped each, or of clients, the mean of their directions.
    """
    loss = gradient_inversion.soft_cross_entropy(here.searched)
    client = gradient_inversion.gradient(loss)
    if _trains_locally(options):
        client = gradient_inversion.local_update(
            loss,
            learning_rate=config.local_learning_rate,
            batch_size=config.local_batch_size,
            num_epochs=config.num_local_epochs,
        )
    elif options.batch_size > 1 and reconstruction.clips_each(options.scheme, config, here.dataset):
        each = gradient_inversion.clipped(client)
        return each if options.clients == 1 else gradient_inversion.aggregate(each)
    if options.clients == 1:
        return client
    return gradient_inversion.clipped(gradient_inversion.aggregate(client))


def read(here: Any, moved: PyTree, number: int) -> np.ndarray:
    """Labels of the images behind each upload, int `[T, number]`, off the gradient of the last
    layer's bias: the one of which it is least (iDLG), or counts, in an order of their own.

    Uploads are scaled by clipping and by steps. At a label that no image has the gradient is the
    mean answer, so that the largest quotient of both is taken for the scale; the mean answer is
    that to images of the training split. Uploads that are not finite tell nothing: zeros.

    Raises:
      ValueError: not one bias alone has a number for each class.
    """
    classes = here.dataset.num_classes
    biases = [
        np.asarray(leaf, np.float64)
        for start, leaf in zip(
            jax.tree.leaves(here.sent.params), jax.tree.leaves(moved), strict=True
        )
        if start.shape == (classes,)
    ]
    if len(biases) != 1:
        raise ValueError(
            f"Expected a model with one bias of {classes} classes, that of its last layer, with "
            f"read_labels, got {len(biases)}."
        )
    answers = jax.vmap(here.sent.apply, (None, 0))(
        here.sent.params, jnp.asarray(_attack_looks.public(here.dataset, _PUBLIC))
    )
    mean = np.asarray(jax.nn.softmax(answers).mean(0), np.float64)
    found = np.zeros((len(biases[0]), number), int)
    for place, bias in enumerate(biases[0]):
        if not np.isfinite(bias).all():
            continue
        if number == 1:
            found[place] = analytic.label(jnp.asarray(bias, jnp.float32))
            continue
        scale = max((bias / mean).max(), 1e-300)
        counts = analytic.label_counts(bias / scale, number, mean_probs=mean)
        found[place] = np.repeat(np.arange(classes), counts)
    return found
