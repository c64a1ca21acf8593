"""Noise on an upload of one SGD step, as strong as a budget of nats needs, found anew each round.

The covariance of the step comes from the Gram matrix of per-example gradients, `[N, N]`: nothing of
the size of the parameters squared. That covariance is an estimate, so it certifies nothing; with a
clip norm the noise is instead the one that any covariance of that trace needs, which is a
certificate and no function of the data.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _validate
from fljax._keys import Purpose
from fljax.types import Batch, ClientUpdate, LossFn, Params
from fljax_kernels import spectral
from fljax_kernels.spectral import eigh


class Upload(NamedTuple):
    """update: params-like, learning rate times gradient, noisy. log_noise_var: `[]`. sent: `[]`
    bool. loss, clipped: `[]`, the examples' mean loss, and how many gradients were clipped.

    Where `sent` is False the update is zero and tells only that: a gradient was not finite, or no
    noise was found that float32 can hold. With an estimated covariance log_noise_var is a function
    of the data: keep it on the client. So are loss and clipped.
    """

    update: ClientUpdate
    log_noise_var: jax.Array
    sent: jax.Array
    loss: jax.Array
    clipped: jax.Array


def gradient_values(gram: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Eigenvalues `[N]` of the covariance of the rows whose products are `gram` `[N, N]`; divisor:
    number of rows.

    Rows are centred through their products, and what is within rounding of zero counts as zero. One
    less than the number of rows are positive at most: a variance in other directions is not seen.
    """
    keep = jnp.ones(gram.shape[0], bool) if mask is None else mask
    both = keep[:, None] & keep[None, :]
    count = jnp.maximum(jnp.sum(keep), 1).astype(gram.dtype)
    gram = jnp.where(both, gram, jnp.zeros((), gram.dtype))
    means = jnp.sum(gram, axis=1) / count
    centred = gram - means[:, None] - means[None, :] + jnp.sum(means) / count
    values = eigh.eigvalsh(jnp.where(both, centred, jnp.zeros((), gram.dtype)) / count)
    rounding = 8 * jnp.finfo(gram.dtype).eps * jnp.max(jnp.diagonal(gram))
    return jnp.where(values <= rounding, jnp.zeros((), gram.dtype), values)  # a NaN stays one


def controlled_channel(
    loss: LossFn,
    *,
    nats: float,
    learning_rate: float,
    batch_size: int,
    l2_clip_norm: float | None,
    method: str = "auto",
    microbatch_size: int | None = None,
) -> Callable[..., Upload]:
    """One step of plain SGD whose noisy upload tells `nats` nats about the batch.

    Guarantee: with a clip norm S the clean upload has a covariance of trace <= (learning_rate S)^2
    whatever the records and whatever was sent before, and noise_var = that / (K expm1(2 nats / K))
    bounds its information by `nats` (K parameters; real-valued noise, drawn in float32). Uploads
    add up linearly. Without a clip norm there is no
    guarantee: the covariance is estimated from the batch itself, sees no direction outside its
    span, and is not the one that the server's knowledge after earlier rounds leaves. Momentum or
    Adam on the client void either.

    Args:
      loss: (params, example) -> scalar.
      nats: > 0, per upload.
      learning_rate: > 0.
      batch_size: a public constant that gradients are divided by, and the most rows that a batch
        may have.
      l2_clip_norm: bound on each example's gradient, or None for the estimate. > 0.
      method, microbatch_size: as in `fljax_kernels.per_example_grads`.

    Returns:
      `upload(params, batch, *, key, round_index, batch_mask=None) -> Upload`, pure. The noise is a
      function of `key` (the client's own, kept secret) and `round_index` `[]` int32: never use the
      same pair twice, or the difference of two uploads has no noise at all.
      `fljax.accounting.information.count_upload` refuses it.

    Raises:
      ValueError: an argument is out of range, or a batch has more rows than `batch_size`.

    Source: Tan et al. (2024), arXiv:2403.01268, Eq. 11-15; the Gram form and the clipped form are
      ours.
    """
    _validate.positive(nats=nats, learning_rate=learning_rate)
    _validate.positive_int(batch_size=batch_size)
    if l2_clip_norm is not None:
        _validate.positive(l2_clip_norm=l2_clip_norm)
    per_example = fljax_kernels.per_example_grads(
        loss, method=method, microbatch_size=microbatch_size
    )

    def upload(
        params: Params,
        batch: Batch,
        *,
        key: jax.Array,
        round_index: jax.Array | int,
        batch_mask: Any = None,
    ) -> Upload:
        _validate.typed_key(key=key)
        rows = per_example(params, batch, batch_mask=batch_mask)
        if rows.batch_size > batch_size:
            raise ValueError(
                f"Expected at most batch_size={batch_size} rows, got {rows.batch_size}."
            )
        mask = jnp.ones(rows.batch_size, bool) if batch_mask is None else jnp.asarray(batch_mask)
        if l2_clip_norm is None:
            values = learning_rate**2 * gradient_values(rows.gram(), mask) / batch_size
            log_noise_var = spectral.solve_log_noise_var(values, nats)
            total = rows.rmatvec(jnp.ones(rows.batch_size, values.dtype))
            clipped = jnp.zeros((), jnp.float32)
        else:
            log_noise_var = _clipped_log_noise_var(params, nats, learning_rate * l2_clip_norm)
            total, norms = rows.weighted_sum(lambda norms: _clip(norms, l2_clip_norm))
            clipped = jnp.sum(mask & (norms > l2_clip_norm)).astype(jnp.float32)
        losses = jnp.where(mask, rows.values().astype(jnp.float32), jnp.float32(0))
        mean_loss = jnp.sum(losses) / jnp.maximum(1, jnp.sum(mask)).astype(jnp.float32)
        update = jax.tree.map(lambda g: g * (learning_rate / batch_size), total)
        stddev = jnp.exp(log_noise_var / 2)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(update)]))
        sent = finite & jnp.isfinite(stddev) & (stddev >= jnp.finfo(stddev.dtype).tiny)
        noise_key = jax.random.fold_in(jax.random.fold_in(key, round_index), int(Purpose.NOISE))
        # where before the noise too: a NaN among gradients must not pass as the sum's
        update = jax.tree.map(lambda g: jnp.where(sent, g, jnp.zeros((), g.dtype)), update)
        noisy = fljax_kernels.add_gaussian_noise(noise_key, update, jnp.where(sent, stddev, 0))
        noisy = jax.tree.map(lambda g, p: g.astype(jnp.result_type(p)), noisy, params)
        return Upload(noisy, log_noise_var, sent, mean_loss, clipped)

    return upload


def _clip(norms: jax.Array, l2_clip_norm: float) -> jax.Array:
    """Factors `[B]`; 0 for a row that is not finite, which then adds nothing."""
    factor = jnp.minimum(1, l2_clip_norm / jnp.maximum(norms, jnp.finfo(norms.dtype).tiny))
    return jnp.where(jnp.isfinite(norms), factor, jnp.zeros((), norms.dtype))


def _clipped_log_noise_var(params: Params, nats: float, reach: float) -> jax.Array:
    """`[]`, the log of reach^2 / (K expm1(2 nats / K))."""
    num_params = sum(int(np.prod(jnp.shape(p))) for p in jax.tree.leaves(params))
    log_snr = spectral.white_log_snr(jnp.float32(nats), num_params)
    return jnp.float32(2 * math.log(reach) - math.log(num_params)) - log_snr
