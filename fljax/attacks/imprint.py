"""A malicious server's layer that writes a batch's examples into its gradient, one to a bin.

The server sends, before the network, a dense layer whose outputs all measure one number of an
example, its mean, against thresholds that rise. A threshold's gradient sums the examples above it,
so that the difference of two neighbours is what lies between them: where that is one example, the
example itself, to rounding. Nobody searches, and the batch may be large. This is no honest but
curious server: whoever looks at the model that was sent sees the layer. A scheme that clips and
adds noise promises the same whatever model is sent. That is about whoever sees only what the
mechanism releases: a server that itself adds the noise, or sums uploads that only together have
enough of it, sees more, and nothing is promised against it.

Source: Fowl et al. (2022), "Robbing the Fed: Directly Obtaining Private Data in Federated Learning
with Modified Models", arXiv:2110.13057, section 3.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.models import Functional

_EMPTY = 1e-5  # of the largest bias gradient: less is rounding, and no example


def imprinted(model: Functional, public: Any, num_bins: int, *, scale: float = 1.0) -> Functional:
    """`model` behind the layer: params {"imprint": {"kernel" `[size, num_bins]`, "bias"
    `[num_bins]`}, "model": its own}.

    What the layer says is added to all values of the example, so that the network still trains.

    Args:
      model: of one example, an array of any shape.
      public: examples like the clients', `[N, ...]`, whose means say where thresholds lie: as many
        of them between any two.
      num_bins: thresholds. >= 2. Of B examples in K bins about B exp(-B / K) are alone in theirs.
      scale: of what is added. > 0. The larger, the more of a clipped gradient is the layer's.

    Raises:
      ValueError: num_bins < 2, scale <= 0, no public example, or a number that is not finite.
    """
    _validate.positive_int(num_bins=num_bins)
    _validate.positive(scale=scale)
    if num_bins < 2 or not len(public) or not np.isfinite(public).all():
        raise ValueError(
            "Expected num_bins >= 2 and public examples of finite numbers, got "
            f"num_bins={num_bins} and public of shape {np.shape(public)}."
        )
    rows = np.asarray(public, np.float64).reshape(len(public), -1)
    size = rows.shape[1]
    thresholds = np.quantile(rows.mean(1), np.arange(num_bins) / num_bins)
    thresholds[0] = rows.min()  # an example below all would be in no bin
    layer = {
        "kernel": jnp.full((size, num_bins), 1 / size, jnp.float32),
        "bias": jnp.asarray(-thresholds, jnp.float32),
    }

    def apply(params: Any, x: jax.Array) -> jax.Array:
        own = params["imprint"]
        above = jax.nn.relu(jnp.matmul(x.reshape(-1), own["kernel"]) + own["bias"])
        return model.apply(params["model"], x + scale * jnp.mean(above))

    return Functional({"imprint": layer, "model": model.params}, apply)


def read(kernel_gradient: Any, bias_gradient: Any) -> np.ndarray:
    """What lies in each bin, `[num_bins, size]` in order of the mean: an example where it is alone,
    else a weighted mean of several, NaN where there is none.

    Args:
      kernel_gradient: `[size, num_bins]`, of the sum or mean over the batch. bias_gradient:
        `[num_bins]`. Any scale, the same for both.

    Raises:
      ValueError: shapes do not fit, or a number is not finite.
    """
    kernel, bias = np.asarray(kernel_gradient, np.float64), np.asarray(bias_gradient, np.float64)
    if kernel.ndim != 2 or bias.shape != kernel.shape[1:]:
        raise ValueError(
            "Expected kernel_gradient [size, num_bins] and bias_gradient [num_bins], got shapes "
            f"{kernel.shape} and {bias.shape}."
        )
    for name, values in (("kernel_gradient", kernel), ("bias_gradient", bias)):
        if not np.isfinite(values).all():
            raise ValueError(f"Expected {name} of finite numbers, got some that are not.")
    rows, weights = (-np.diff(v, axis=-1, append=0.0) for v in (kernel, bias))
    there = np.abs(weights) > _EMPTY * np.abs(bias).max(initial=0.0)
    return np.where(there[:, None], rows.T / np.where(there, weights, 1.0)[:, None], np.nan)
