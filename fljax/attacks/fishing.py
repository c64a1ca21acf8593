"""A malicious server's head behind a network, through which one example of a large batch alone has
a gradient: it fishes for a class, and in the class for an example with much of one feature.

Behind the network's logits the server puts a head. Of all classes but the target it answers a large
constant, so that an example of another class is certain whatever the weights are, and its gradient
is zero. Of the target class it answers how far a feature, a direction of the logits, is above a
threshold, and nothing below: an example of the class under the threshold has no gradient either.
Where one is above, the mean gradient of the batch is the gradient of that example over the batch's
size, and an inversion that works for one image (`gradient_inversion`) works for it. The head's own
gradient says how many there are (`num_behind`), so that the server need not guess.

This is no honest but curious server: whoever looks at the model that was sent sees the head. A
scheme that clips and adds noise promises the same whatever model is sent: its sensitivity is the
clip norm for every model. That is about whoever sees only what the mechanism releases: a server
that itself adds the noise, or sums uploads that only together have enough of it, sees more, and
nothing is promised against it. What a large batch hides without noise is no promise of anybody's,
and here it hides nothing.

Source: Wen et al. (2022), "Fishing for User Data in Large-Batch Federated Learning via Gradient
Magnification", arXiv:2202.00580, section 3. There the last layer's own weights are set: for a class
the gradients before it are the same as here. Its feature's threshold is in the softmax, where
examples of other classes above it have gradients too, so that all of the batch must be of one
class; the head's threshold needs no such thing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.models import Functional

_CERTAIN = 1000.0  # answer of other classes: exp(-1000) is 0 in float32
_RIDGE = 1e-6  # of the largest variance of logits


def fished(
    model: Functional,
    target: int,
    num_classes: int,
    *,
    direction: Any = None,
    threshold: float | None = None,
) -> Functional:
    """`model` behind the head: params {"head": {"kernel" `[num_classes]`, "bias" `[]`}, "model":
    its own}.

    To invert what was caught, compare with gradients of the same head without a threshold: above it
    both are the same, and a search that begins below it would see nothing.

    Args:
      model: of one example, to logits `[num_classes]`.
      target: the class whose examples have gradients. In [0, num_classes).
      direction: `[num_classes]`, of the logits: the feature. None: the target's own logit.
      threshold: under which the feature has no gradient. None: all of the class have one.

    Raises:
      ValueError: target is no class, direction is not `[num_classes]`, of finite numbers and not
        zero, or threshold is not finite.
    """
    _validate.positive_int(num_classes=num_classes)
    _validate.non_negative_int(target=target)
    if target >= num_classes:
        raise ValueError(f"Expected target < num_classes={num_classes}, got target={target}.")
    line = np.asarray(np.eye(num_classes)[target] if direction is None else direction, np.float32)
    if line.shape != (num_classes,) or not np.isfinite(line).all() or not line.any():
        raise ValueError(
            f"Expected direction of {num_classes} finite numbers, not all zero, got "
            f"direction={direction!r}."
        )
    if threshold is not None and not np.isfinite(threshold):
        raise ValueError(f"Expected threshold to be finite, got threshold={threshold!r}.")
    start = 0.0 if threshold is None else -threshold
    head = {"kernel": jnp.asarray(line), "bias": jnp.asarray(start, jnp.float32)}

    def apply(params: Any, x: jax.Array) -> jax.Array:
        own = params["head"]
        feature = jnp.vdot(own["kernel"], model.apply(params["model"], x)) + own["bias"]
        if threshold is not None:
            feature = jax.nn.relu(feature)
        return jnp.where(jnp.arange(num_classes) == target, feature, _CERTAIN)

    return Functional({"head": head, "model": model.params}, apply)


def casts(
    logits: Any, key: jax.Array, num_casts: int, *, expected: float
) -> tuple[np.ndarray, np.ndarray]:
    """Directions `[num_casts, num_classes]` and thresholds `[num_casts]` to try, one a round, of
    which each has about one chance in e to be passed by one example alone.

    Directions are drawn, and as long as makes their features vary by 1, so that other examples are
    first in each.

    Args:
      logits: `[N, num_classes]` of public examples, best of the class, N >= 2.
      key: for the directions.
      expected: examples of the class in the batch. >= 1. One of them is above a threshold in the
        mean.

    Raises:
      ValueError: the key is no typed key, a number is out of range, or logits are not finite or
        fewer than two.
    """
    _validate.typed_key(key=key)
    _validate.positive_int(num_casts=num_casts)
    rows = np.asarray(logits, np.float64)
    if rows.ndim != 2 or len(rows) < 2 or not rows.shape[1] or not np.isfinite(rows).all():
        raise ValueError(
            "Expected logits [N, num_classes] of finite numbers, N >= 2, got logits of shape "
            f"{rows.shape}."
        )
    if not 1 <= expected < np.inf:
        raise ValueError(f"Expected expected >= 1 and finite, got expected={expected!r}.")
    variances, axes = np.linalg.eigh(np.cov(rows.T).reshape(rows.shape[1], -1))
    lengths = np.sqrt(np.maximum(variances, max(_RIDGE * variances[-1], 1e-30)))
    drawn = np.asarray(jax.random.normal(key, (num_casts, rows.shape[1])), np.float64)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    directions = (drawn / lengths) @ axes.T
    return directions, np.quantile(directions @ rows.T, 1 - 1 / expected, axis=1)


def num_behind(head_bias_gradient: Any, batch_size: int) -> np.ndarray:
    """How many examples the gradient of a mean loss over `batch_size` is made of, `[...]`, from
    that of the head's bias: each adds -1 / batch_size. With noise no whole number.

    Raises:
      ValueError: batch_size < 1.
    """
    _validate.positive_int(batch_size=batch_size)
    return -batch_size * np.asarray(head_bias_gradient, np.float64)
