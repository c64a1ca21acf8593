"""Water-filling noise: a client adds what the randomness of its own sampled gradient lacks,
direction by direction.

Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When
is it Possible?", arXiv:2405.04551, section 5. The paper takes the K x K eigendecomposition; here it
is D x D, through the Gram matrix.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _validate
from fljax.types import Params
from fljax_kernels import spectral


class Rows(Protocol):
    """An implicit matrix G of D rows."""

    def gram(self, *, per_leaf: bool = False) -> Any:
        """G G^T, `[D, D]`, or a params-like tree of them, one for the columns of each parameter
        array.
        """

    def matvec(self, vector: Any) -> jax.Array:
        """G v, `[D]`."""


class Noise(NamedTuple):
    """The noise `direct + G^T weights`: direct is params-like, weights `[D]` or a params-like tree
    of `[D]`.

    Private: its size depends on the data.
    """

    direct: Params
    weights: Any


def lifted(
    rows: Rows, key: jax.Array, like: Params, *, scale: float, stddev: float | jax.Array
) -> Noise:
    """Gaussian noise of covariance scale * G^T G, lifted to at least `stddev` in every direction,
    in one draw.

    Guarantee: that of `fljax_kernels.spectral.lifted_weights`: the law of the noise that Gaussian
    weights bring into a mean and of what fills it up, together. Add it to the mean itself, whose
    weights are constants. (Filling up the noise of a subset, or none, would leave directions above
    the floor without any.) Privacy of the sum is accounted with
    `fljax.accounting.weighted_sums.curves`, never as isotropic noise. How long it takes depends on
    the data, as described there.

    Args:
      rows: G, every row clipped.
      key: typed PRNG key, used once.
      like: params, float32 or float64.
      scale: of the covariance, 1 / (B D) for Gaussian weights. > 0.
      stddev: floor, in the unit of a client's mean gradient. > 0.

    Raises:
      ValueError: an argument is out of range.
    """
    z = _normals(key, like)
    draw = spectral.lifted_weights(rows.gram(), rows.matvec(z), stddev, scale)
    return Noise(jax.tree.map(lambda leaf: draw.stddev.astype(leaf.dtype) * leaf, z), draw.weights)


def lifted_per_leaf(
    rows: Rows, key: jax.Array, like: Params, *, scale: float, stddev: float | jax.Array
) -> Noise:
    """As `lifted`, with each parameter array lifted by itself, as if its sampling weights were its
    own.

    Cheaper where parameter arrays are smaller than D. The draws of different arrays are
    independent, so the covariance is block diagonal and at least `stddev` in every direction. (The
    paper lifts the blocks of one draw of the weights, whose covariance across blocks it neglects:
    that leaves directions below the floor.)

    Arguments, guarantee and errors are those of `lifted`.
    """
    z = _normals(key, like)
    leaves, tree = jax.tree.flatten(z)
    grams = jax.tree.leaves(rows.gram(per_leaf=True))
    draws = []
    for place, gram in enumerate(grams):
        alone = [leaf if place == k else jnp.zeros_like(leaf) for k, leaf in enumerate(leaves)]
        projections = rows.matvec(jax.tree.unflatten(tree, alone))
        draws.append(spectral.lifted_weights(gram, projections, stddev, scale))
    direct = [
        draw.stddev.astype(leaf.dtype) * leaf for draw, leaf in zip(draws, leaves, strict=True)
    ]
    return Noise(
        jax.tree.unflatten(tree, direct), jax.tree.unflatten(tree, [draw.weights for draw in draws])
    )


def _normals(key: jax.Array, like: Params) -> Params:
    """N(0, 1) in the dtypes of `like`, which must be float32 at least.

    G z is taken in those dtypes. In fewer bits it would not be the product with the noise that is
    added.
    """
    _validate.typed_key(key=key)
    for leaf in jax.tree.leaves(like):
        if jnp.result_type(leaf) not in (jnp.float32, jnp.float64):
            raise ValueError(
                "Expected params in float32 or float64 for water filling, got "
                f"{jnp.result_type(leaf)}."
            )
    return jax.tree.map(lambda leaf: leaf[0], fljax_kernels.gaussian_noise(key[None], like, 1.0))
