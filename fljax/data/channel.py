"""Noise in the data instead of the parameters: what a client adds to its records before it trains
on them.

Whatever is computed from noisy records alone tells no more about a record than its noisy copies do,
however training goes on and whatever the server sends: the data-processing inequality. How much
that is, in nats, is the business of `fljax.accounting.information`; here are the shapes of noise,
its draws, and the spectra it is calibrated from.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, sections 4.2 and 5.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys, _validate
from fljax.types import Batch

_EYES = 50.0  # weight of the mask's block, appendix B


class RecordNoise(NamedTuple):
    """Gaussian noise for records of d numbers, of covariance exp(log_noise_var) * (diag(weights) +
    factor factor^T).

    Attributes:
      log_noise_var: `[]`, or `[C]` with one number a client: the logarithm, since a variance may
        underflow.
      weights: `[]` or `[d]`, >= 0: 1 for the natural channel, the mask for a personalized one, the
        floor on each coordinate's share for a channel with a factor.
      factor: None, or `[d, k]`, or `[C, d, k]`: any matrix with factor factor^T the shape of the
        noise, such as the centred records of `data_factor`. No `d x d` matrix is ever formed from
        it.
      value_range: None, or (low, high): records are clipped to it before noise is added, which the
        range-certified variance takes for granted.
      centre: None, or `[d]`: only what lies along the columns of `factor` is sent, which are
        orthonormal then, around this public point; all else of a record is left out.
    """

    log_noise_var: jax.Array
    weights: jax.Array
    factor: jax.Array | None = None
    value_range: tuple[float, float] | None = None
    centre: jax.Array | None = None


def of_client(noise: RecordNoise, client: jax.Array | int) -> RecordNoise:
    """The noise of one client `[]` of those that `noise` holds; one that all clients share stays as
    it is.
    """
    log_noise_var, factor = noise.log_noise_var, noise.factor
    if jnp.ndim(log_noise_var) == 1:
        log_noise_var = log_noise_var[client]
    if factor is not None and jnp.ndim(factor) == 3:
        factor = factor[client]
    return noise._replace(log_noise_var=log_noise_var, factor=factor)


def draw(noise: RecordNoise, keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent noise for records of `shape`, one for each of `keys` `[B]`: float32 `[B,
    *shape]`; where only k directions are sent, along these, `[B, k]`.

    Args:
      noise: of one client (`of_client`).
      keys: `[B]` typed: `record_keys`.
      shape: of one record; its product is d.
    """
    scale = jnp.exp(0.5 * noise.log_noise_var).astype(jnp.float32)
    if noise.centre is not None:
        assert noise.factor is not None
        coordinates = jax.ShapeDtypeStruct((noise.factor.shape[1],), np.dtype(np.float32))
        found: jax.Array = fljax_kernels.gaussian_noise(keys, coordinates, scale)
        return found
    own = jnp.sqrt(jnp.asarray(noise.weights, jnp.float32))
    own = own if jnp.ndim(own) == 0 else own.reshape(1, *shape)
    like = jax.ShapeDtypeStruct(shape, np.dtype(np.float32))
    if noise.factor is None:
        return fljax_kernels.gaussian_noise(keys, like, scale) * own
    inner_like = jax.ShapeDtypeStruct((noise.factor.shape[1],), np.dtype(np.float32))
    z, inner = fljax_kernels.gaussian_noise(keys, (like, inner_like), scale)
    shaped = jnp.matmul(inner, noise.factor.astype(jnp.float32).T, precision="highest")
    # Drawn in the records' shape: a reshape of the sum makes XLA draw in slow loops, five times the
    # time on a CPU.
    return own * z + shaped.reshape(-1, *shape)


def noisy(noise: RecordNoise, x: jax.Array, keys: jax.Array) -> jax.Array:
    """Records `[B, ...]` with their noise: the only form of them that training may touch.

    Guarantee: where the covariance of a record is at most the one that the noise was calibrated
    for, and the keys are `record_keys`, one call tells at most its channel's nats about each
    record, on average over records; m calls with different uses tell what `accounting.information`
    adds up, and repeated calls with the same use nothing new. This is no differential privacy: it
    promises nothing about the worst record, about membership, or about labels.
    Idealisation: float32 noise by JAX's threefry generator.

    Args:
      noise: of one client (`of_client`).
      x: floating `[B, ...]`.
      keys: `[B]` typed.

    Returns:
      `[B, ...]` in the dtype of `x`, added in float32. A record that is not finite becomes NaN, or
      stays infinite: `fljax.data.check_examples` refuses such data before a run.
    """
    values = x.astype(jnp.float32)
    if noise.value_range is not None:
        low, high = noise.value_range
        values = jnp.clip(values, jnp.float32(low), jnp.float32(high))
    if noise.centre is not None:
        assert noise.factor is not None
        along = functools.partial(jnp.matmul, precision="highest")
        centre = noise.centre[None]
        # Noise is added to coordinates: beside a projected record, rounded apart, its last bits
        # would tell the two apart.
        seen = along(values.reshape(len(values), -1) - centre, noise.factor)
        seen = seen + draw(noise, keys, x.shape[1:])
        return (centre + along(seen, noise.factor.T)).reshape(x.shape).astype(x.dtype)
    return (values + draw(noise, keys, x.shape[1:])).astype(x.dtype)


def client_keys(key: jax.Array, client_ids: jax.Array) -> jax.Array:
    """Keys `[C]` of clients' record noise for a whole run: they do not depend on the round, unlike
    all other keys.
    """
    return _keys.client_keys(key, 0, client_ids, _keys.Purpose.CHANNEL)


def record_keys(client_key: jax.Array, records: jax.Array, use: jax.Array | int) -> jax.Array:
    """Keys `[B]`, one for each record and use: the same record at the same use has the same noise
    in any batch.

    Args:
      client_key: `[]`, of `client_keys`.
      records: integers `[B]` that name the client's records for the whole run: their places among
        its records.
      use: `[]`: how often the record has been used before. Always 0: its noise is drawn once and
        kept, without a copy of it being stored.
    """
    use_key = jax.random.fold_in(client_key, use)
    names = jnp.where(records < 0, jnp.uint32(0xFFFFFFFF), records.astype(jnp.uint32))
    return jax.vmap(jax.random.fold_in, (None, 0))(use_key, names)


def covariance(x: np.ndarray) -> np.ndarray:
    """Covariance float64 `[d, d]` of records `[N, ...]`, divided by N.

    Raises:
      ValueError: fewer than two records, or one that is not finite.
    """
    rows = _centred(x)
    return rows.T @ rows / rows.shape[0]


def spectrum(x: np.ndarray) -> np.ndarray:
    """Eigenvalues float64 `[d]` of the covariance of records `[N, ...]`, descending, >= 0.

    Where N < d they come from the `[N, N]` matrix of inner products; the rest are 0.

    Raises:
      ValueError: fewer than two records, or one that is not finite.
    """
    rows = _centred(x)
    count, size = rows.shape
    values = np.linalg.eigvalsh((rows.T @ rows if count >= size else rows @ rows.T) / count)
    return np.pad(np.maximum(values[::-1], 0.0)[:size], (0, max(0, size - count)))


def data_factor(x: np.ndarray) -> np.ndarray:
    """A factor float32 `[d, min(N, d)]` of the covariance of records `[N, ...]`: factor factor^T.

    Raises:
      ValueError: fewer than two records, or one that is not finite.
    """
    rows = _centred(x)
    if rows.shape[0] > rows.shape[1]:
        triangle = np.asarray(np.linalg.qr(rows, mode="r"))
        return (triangle.T / math.sqrt(np.shape(x)[0])).astype(np.float32)
    return (rows.T / math.sqrt(rows.shape[0])).astype(np.float32)


def shaped_factor(x: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """A factor float32 `[d, min(N, d)]` of noise with variances of its own along the directions of
    records `[N, ...]`.

    Args:
      x: the records whose covariance gives the directions.
      variances: `[d]`, >= 0, in the order of `spectrum(x)`: those of the least-power channel, for
        example. Beyond the N-th they must be 0: records have no direction there.

    Raises:
      ValueError: a variance is negative or has no direction; as `spectrum`.
    """
    rows = _centred(x)
    directions = np.linalg.svd(rows, full_matrices=False)[2]
    variances = np.asarray(variances, np.float64)
    if variances.shape != (rows.shape[1],) or not np.all(variances >= 0):
        raise ValueError(
            f"Expected variances >= 0 of shape ({rows.shape[1]},), got variances={variances!r}."
        )
    if np.any(variances[directions.shape[0] :] > 0):
        raise ValueError(
            f"Expected variances of 0 beyond the {directions.shape[0]} records, got larger ones."
        )
    return (directions.T * np.sqrt(variances[: directions.shape[0]])).astype(np.float32)


def _centred(x: np.ndarray) -> np.ndarray:
    if np.ndim(x) < 2 or np.shape(x)[0] < 2:
        raise ValueError(
            f"Expected records [N, ...], N >= 2, to take a covariance of, got shape {np.shape(x)}."
        )
    rows = np.asarray(x, np.float64).reshape(np.shape(x)[0], -1)
    if not np.isfinite(rows).all():
        raise ValueError("Expected records that are finite, got NaN or infinity among x.")
    return rows - rows.mean(axis=0)


def eye_mask(shape: tuple[int, ...], weight: float = _EYES) -> np.ndarray:
    """Weights `[H * W * channels]`: `weight` on a block of the image, 1 elsewhere.

    The block has the place that the source gives it on 32 x 32 faces, rows 12 to 19 and columns 8
    to 23 (counted from 0), scaled to other sizes: between 3/8 and 5/8 of the height, and between
    1/4 and 3/4 of the width.

    Raises:
      ValueError: not the shape of an image, or a weight that is not > 0.

    Source: arXiv:2403.01268, appendix B and Fig. 17.
    """
    _validate.positive(weight=weight)
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(
            f"Expected shape to be [height, width, channels], got shape={tuple(shape)}."
        )
    height, width, channels = shape
    mask = np.ones((height, width, channels))
    mask[round(3 * height / 8) : round(5 * height / 8), round(width / 4) : round(3 * width / 4)] = (
        weight
    )
    return mask.reshape(-1)


def embed(
    examples: Batch, embedder: Callable[[jax.Array], jax.Array], *, batch_size: int = 256
) -> dict[str, Any]:
    """The examples with `x` replaced by `embedder(x)`, for a channel in the space of embeddings.

    Guarantee: none by itself. The embedder must be fixed and public (or declared before it saw
    these records): one that was trained on them leaks by itself, whatever noise its output gets.

    Args:
      examples: {"x": `[N, ...]`, ..}.
      embedder: one record -> its embedding, `[k]`.
      batch_size: records that are embedded together.

    Raises:
      ValueError: batch_size < 1.
    """
    _validate.positive_int(batch_size=batch_size)
    fun = jax.jit(lambda x: jax.lax.map(embedder, x, batch_size=batch_size))
    return {**examples, "x": np.asarray(fun(jnp.asarray(examples["x"])))}
