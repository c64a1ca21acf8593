"""What a gradient gives away without any search: labels, the input of a first dense layer, the
tokens of a text.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate


def label(bias_gradient: jax.Array) -> jax.Array:
    """The label of one example, int `[...]`, from the gradient `[..., num_classes]` of the last
    layer's bias.

    That gradient is softmax(logits) - one_hot(label): negative at the label only, hence least
    there.

    Source: Zhao, Mopuri, Bilen (2020), iDLG: improved deep leakage from gradients,
      arXiv:2001.02610.
    """
    return jnp.argmin(bias_gradient, -1)


def label_counts(bias_gradient: Any, batch_size: int, *, mean_probs: Any = None) -> np.ndarray:
    """How often each label is in a batch, int `[num_classes]`, from the bias gradient
    `[num_classes]` of its mean loss.

    That gradient is the batch's mean probability of a class less the share of its label. Shares
    that follow from `mean_probs`, less what is negative, are scaled to the batch's size and rounded
    to counts which add up to it, those with the largest remainders up; all alike where nothing is
    left of them.

    Args:
      batch_size: examples in the batch. >= 1.
      mean_probs: `[num_classes]`, what the attacker thinks the mean probabilities are. None: all
        equal, as at the start of training.

    Raises:
      ValueError: batch_size < 1, shapes differ, or a number is not finite.

    Source: Geng et al. (2021), Towards general deep leakage in federated learning,
    arXiv:2110.09074, in this simple form.
    """
    _validate.positive_int(batch_size=batch_size)
    found = np.asarray(bias_gradient, np.float64)
    probs = (
        np.full(found.size, 1 / found.size)
        if mean_probs is None
        else np.asarray(mean_probs, np.float64)
    )
    if found.ndim != 1 or found.size == 0 or probs.shape != found.shape:
        raise ValueError(
            "Expected bias_gradient and mean_probs of one shape [num_classes], "
            f"got shapes {found.shape} and {probs.shape}."
        )
    for name, values in (("bias_gradient", found), ("mean_probs", probs)):
        if not np.isfinite(values).all():
            raise ValueError(f"Expected {name} of finite numbers, got {name}={values!r}.")
    shares = np.maximum(probs - found, 0)
    # By the largest first: the sum of huge numbers would overflow.
    shares = shares / shares.max() if shares.max() > 0 else np.ones(found.size)
    shares *= batch_size / shares.sum()
    counts = np.floor(shares * (1 + 1e-12)).astype(int)
    rest = np.argsort(counts - shares, kind="stable")[: batch_size - counts.sum()]
    np.add.at(counts, rest, 1)
    return counts


def first_dense(kernel_gradient: jax.Array, bias_gradient: jax.Array) -> jax.Array:
    """The input `[in]` of a dense layer with bias, from one example's gradients `[in, out]` and
    `[out]`.

    The kernel's gradient is the outer product of the input and the bias gradient, so that each
    output with a bias gradient that is not 0 tells the input. Least squares over all of them: exact
    without noise, and with equal independent noise on all entries of the kernel's gradient the best
    linear estimate. Of a batch it gives a weighted mean of the inputs. NaN where the bias gradient
    is zero.

    Source: Phong et al. (2017), Privacy-preserving deep learning via additively homomorphic
    encryption, section 3; Geiping et al. (2020), arXiv:2003.14053, Proposition 3.1.
    """
    return kernel_gradient @ bias_gradient / jnp.vdot(bias_gradient, bias_gradient)


def tokens_present(embedding_gradient: jax.Array, threshold: float = 0.0) -> jax.Array:
    """Which symbols occur in a text, bool `[..., vocabulary]`: rows of the embedding's gradient
    above `threshold`.

    Args:
      embedding_gradient: `[..., vocabulary, embedding]`. Rows of symbols that do not occur are
        exactly zero unless noise was added.
      threshold: of a row's L2 norm.
    """
    return jnp.linalg.norm(embedding_gradient, axis=-1) > threshold


def nearest_tokens(embeddings: jax.Array, table: jax.Array) -> jax.Array:
    """The symbols, int `[...]`, whose rows of `table` `[vocabulary, embedding]` are closest to
    `embeddings` in angle.

    What turns reconstructed embeddings `[..., embedding]` into text.
    """
    unit = lambda v: v / jnp.maximum(jnp.linalg.norm(v, axis=-1, keepdims=True), 1e-12)
    return jnp.argmax(unit(embeddings) @ unit(table).T, -1)


def out_of_span(kernel_gradient: Any, inputs: Any, num_inputs: int) -> np.ndarray:
    """How far each candidate is from having been an input of a layer: the share `[V]` of its length
    outside of what the kernel's gradient spans, 0 for those that were.

    The gradient is a sum of outer products, one an input, so that its columns lie in the span of
    the inputs: a test of a candidate where there are fewer inputs than the layer is wide. Of
    low-rank adaptation the gradient of b is the same, of inputs that a has shortened to its rank.

    Args:
      kernel_gradient: `[in, out]`, of a text or batch.
      inputs: candidates `[V, in]`.
      num_inputs: how many inputs the gradient is a sum of, at most. >= 1.

    Raises:
      ValueError: num_inputs < 1, shapes do not fit, or a number is not finite.

    Source: Petrov et al. (2024), DAGER: exact gradient inversion for large language models,
      arXiv:2405.15586, section 4.1.
    """
    _validate.positive_int(num_inputs=num_inputs)
    moved, rows = np.asarray(kernel_gradient, np.float64), np.asarray(inputs, np.float64)
    if moved.ndim != 2 or rows.ndim != 2 or rows.shape[1] != moved.shape[0]:
        raise ValueError(
            f"Expected kernel_gradient [in, out] and inputs [V, in], got shapes {moved.shape} and "
            f"{rows.shape}."
        )
    for name, values in (("kernel_gradient", moved), ("inputs", rows)):
        if not np.isfinite(values).all():
            raise ValueError(f"Expected {name} of finite numbers, got some that are not.")
    directions = np.linalg.svd(moved, full_matrices=False)[0][:, :num_inputs]
    outside = rows - (rows @ directions) @ directions.T
    return np.linalg.norm(outside, axis=1) / np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
