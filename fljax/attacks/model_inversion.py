"""What a class looks like, read from a trained model: all classes at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.attacks import _descent, metrics
from fljax.attacks.gradient_inversion import Prior
from fljax.types import Params


def invert(
    apply: Callable[[Params, Any], jax.Array],
    params: Params,
    start: jax.Array,
    num_classes: int,
    *,
    num_iterations: int = 600,
    learning_rate: float = 1e-2,
    box: tuple[float, float] | None = (0.0, 1.0),
) -> jax.Array:
    """One input for each class which the model takes for that class, `[num_classes, ...]`. Pure, to
    be jitted.

    Threat: the attacker holds the model (every client does) and the mean of like data that were not
      trained on.

    Args:
      apply: `(params, x) -> logits` of one example.
      start: `[...]`, the mean of auxiliary examples.
      num_iterations, learning_rate: of Adam on the cross-entropy.
      box: range which each step clamps to; None: no clamp.

    Raises:
      ValueError: a number is out of range.

    Source: arXiv:2403.01268, section 6.1; Fredrikson, Jha, Ristenpart (2015), Model inversion
      attacks that exploit confidence information.
    """
    _validate.positive_int(num_classes=num_classes, num_iterations=num_iterations)
    _validate.positive(learning_rate=learning_rate)
    if box is not None and not box[0] < box[1]:
        raise ValueError(f"Expected box to be (low, high) with low < high, got box={box!r}.")

    def one(label: jax.Array) -> jax.Array:
        loss = lambda x, _: -jax.nn.log_softmax(apply(params, x))[label]
        project = (lambda x: x) if box is None else (lambda x: jnp.clip(x, *box))
        rates = np.full(num_iterations, learning_rate)
        return _descent.adam(jax.value_and_grad(loss), start, rates, project=project)[0]

    return jax.vmap(one)(jnp.arange(num_classes))


def by_gradient(
    apply: Callable[[Params, Any], jax.Array],
    params: Params,
    prior: Prior,
    num_classes: int,
    *,
    length: float = 1.0,
) -> jax.Array:
    """What each class looks like without a search, `[num_classes, ...]`: from the mean of public
    examples along the gradient of the class's logit over the mean logit. Pure, to be jitted.

    Of logistic regression that started at zero and has not run long that gradient is the mean of
    the class's examples less that of all, up to a factor that all classes share. Directions in
    which public examples differ little tell little but noise, and count by the root of their
    standard deviation. Of a network the gradient differs from place to place: it is taken half way
    to where the gradient at the mean leads by length 1, of all classes, and its mean counts.

    Threat: as `invert`, with public examples of the same kind (`gradient_inversion.gaussian_prior`)
      in place of their mean.

    Args:
      apply: `(params, x) -> logits` of one example.
      length: root mean square of the results' distances to the mean, in those of public examples:
        below 1 where examples of a class differ among themselves. > 0.

    Raises:
      ValueError: num_classes or length is out of range, or num_classes not that of the logits.

    Source: Fredrikson, Jha, Ristenpart (2015), as `invert`, with two steps, and a Gaussian in place
      of their filter of steps.
    """
    _validate.positive_int(num_classes=num_classes)
    _validate.positive(length=length)
    size = jax.eval_shape(apply, params, prior.mean).shape
    if size != (num_classes,):
        raise ValueError(
            f"Expected num_classes={size[0] if len(size) == 1 else size}, as logits, got "
            f"num_classes={num_classes}."
        )
    roots = prior.roots.reshape(len(prior.roots), -1)
    lengths = jnp.maximum(jnp.linalg.norm(roots, axis=1, keepdims=True), 1e-30)
    axes = roots / lengths
    far = jnp.sum(jnp.square(lengths)) + roots.shape[1] * jnp.square(prior.rest)
    slopes = lambda at: jax.jacrev(lambda x: apply(params, x))(at)

    def along(slopes: jax.Array) -> jax.Array:
        slopes = (slopes - jnp.mean(slopes, 0, keepdims=True)).reshape(num_classes, -1)
        inside = slopes @ axes.T
        moved = (inside * lengths.T**0.5) @ axes + prior.rest**0.5 * (slopes - inside @ axes)
        moved *= jnp.sqrt(num_classes * far / jnp.maximum(jnp.sum(jnp.square(moved)), 1e-30))
        return moved.reshape(num_classes, *prior.mean.shape)

    half_way = prior.mean[None] + 0.5 * along(slopes(prior.mean))
    return prior.mean[None] + length * along(jnp.mean(jax.vmap(slopes)(half_way), 0))


def error(found: Any, x: Any, y: Any) -> float:
    """Median over classes of the MSE to the class's mean: the reduction of arXiv:2403.01268.

    Args:
      found: `[num_classes, ...]`. x: the training examples `[N, ...]`, y: their labels, int `[N]`.
        Classes without an example are left out.
    """
    images, labels = np.asarray(x, np.float64), np.asarray(y)
    means = [(c, images[labels == c].mean(0)) for c in range(len(found)) if (labels == c).any()]
    if not means:
        raise ValueError("Expected at least one class with an example, got none.")
    return float(np.median([float(metrics.mse(found[c], mean)) for c, mean in means]))
