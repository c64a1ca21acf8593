"""clip_and_sum: what it promises, its checks, and which implementation runs."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _meshes, _platforms
from fljax_kernels.clipped_sum import matmul, reference, two_reads


def _by_platform(*arguments: Any, num_segments: int | None = None) -> tuple[Any, jax.Array]:
    forms = (matmul.clip_and_sum, two_reads.clip_and_sum)
    for_cpus, for_others = (functools.partial(form, num_segments=num_segments) for form in forms)
    return _platforms.choose(*arguments, cpu=for_cpus, default=for_others)


IMPLEMENTATIONS: dict[str, Callable[..., tuple[Any, jax.Array]]] = {
    "auto": _by_platform,
    "matmul": matmul.clip_and_sum,
    "two_reads": two_reads.clip_and_sum,
    "reference": reference.clip_and_sum,
}


def clip_and_sum(
    rows: Any,
    l2_clip_norm: float | jax.Array,
    *,
    mask: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    num_segments: int | None = None,
    implementation: str = "auto",
) -> tuple[Any, jax.Array]:
    """Scales each row down to L2 norm `l2_clip_norm` at most, then sums the rows.

    A row is what one privacy unit sends: with a pytree, the leaves of row c together, under one
    norm. Norms, factors and sums are in float32, or float64 where a leaf is float64; the sum stays
    in that precision, so that noise can be added before a cast.

    Guarantee: adding, removing or masking one row moves the sum by at most `l2_clip_norm * (1 +
    1e-5)` in L2 norm, whatever the row holds. A row with a NaN or an infinity adds zero; a masked
    row adds zero whatever it holds; finite rows whose squares overflow float32 are clipped, not
    dropped. The margin covers float32 rounding of one row's norm and products. What the sum's own
    rounding does to the other rows' low bits is not covered (Casacuberta et al., arXiv:2207.10635).
    The norms are not private.

    Args:
      rows: `[C, D]`, or a pytree of `[C, ...]` with one C. Floating. C may be 0.
      l2_clip_norm: in the unit of the rows. > 0; infinity does not clip. May be traced: then it is
        not checked.
      mask: bool `[C]`, True where a row counts. None: all count.
      segment_ids: int `[C]`: sum the clipped rows per segment. A row whose id is outside [0,
        num_segments) is left out.
      num_segments: number of segments S, static. Needed with `segment_ids`.
      implementation: "auto" takes "matmul" (one matrix product) on CPUs and "two_reads" (each row
        is read twice, whatever it holds) on any other platform that is lowered for; "reference"
        defines the result. Under `vmap`, "matmul" also pays for "reference": its choice between the
        two becomes a select.

    Returns:
      (clipped_sum, norms): like `rows` without its leading axis, or with `[S]` in its place; and
      `[C]`, the norm of each row before clipping: 0 where masked, NaN or infinity where the row is
      not finite, infinity where it passes float32's range. "matmul" may report a norm below 1e-12
      as zero.

    Raises:
      ValueError: an argument is out of range or shapes do not fit.

    Source: Abadi et al. (2016), arXiv:1607.00133, Algorithm 1, "Clip gradient".
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"Expected implementation to be one of {list(IMPLEMENTATIONS)}, got {implementation!r}."
        )
    # np: in a traced function the comparison of a known array is traced too.
    if not isinstance(l2_clip_norm, jax.core.Tracer) and not (
        jnp.issubdtype(np.asarray(l2_clip_norm).dtype, np.number)
        and np.ndim(l2_clip_norm) == 0
        and np.asarray(l2_clip_norm) > 0
    ):
        raise ValueError(f"Expected l2_clip_norm > 0, got l2_clip_norm={l2_clip_norm!r}.")
    num_rows = _num_rows(rows)
    if mask is None:
        mask = jnp.ones(num_rows, bool)
    if np.shape(mask) != (num_rows,):
        raise ValueError(f"Expected mask of shape ({num_rows},), got shape {np.shape(mask)}.")
    if (segment_ids is None) != (num_segments is None):
        raise ValueError("Expected segment_ids and num_segments together, got one of them.")
    if segment_ids is not None:
        if np.shape(segment_ids) != (num_rows,) or not jnp.issubdtype(
            jnp.result_type(segment_ids), jnp.integer
        ):
            shown = f"{jnp.result_type(segment_ids)} of shape {np.shape(segment_ids)}"
            raise ValueError(
                f"Expected segment_ids to be integers of shape ({num_rows},), got {shown}."
            )
        if num_segments is None or not num_segments >= 1:
            raise ValueError(f"Expected num_segments >= 1, got num_segments={num_segments!r}.")
        # An id type with fewer values than there are segments would name two segments at once.
        segment_ids = jnp.asarray(segment_ids).astype(jnp.int32)
    rows = jax.tree.map(jnp.asarray, rows)
    run = functools.partial(IMPLEMENTATIONS[implementation], num_segments=num_segments)
    arguments = (rows, l2_clip_norm, jnp.asarray(mask, bool), segment_ids)
    at = _meshes.home(*arguments)
    if at is None:
        return run(*arguments)
    total, norms = _meshes.compute(at, run, *arguments)
    of_segments = () if segment_ids is None else (None,)
    total = jax.tree.map(
        lambda x, leaf: at.leave(x, of_segments + _meshes.spec(leaf)[1:]), total, rows
    )
    return total, at.leave(norms, (_meshes.leading(rows),))


def _num_rows(rows: Any) -> int:
    leaves = jax.tree.leaves(rows)
    if not leaves:
        raise ValueError("Expected rows with at least one array, got none.")
    for leaf in leaves:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"Expected rows of a floating dtype, got {jnp.result_type(leaf)}.")
        if np.ndim(leaf) == 0:
            raise ValueError("Expected rows with a leading axis C, got a scalar.")
    sizes = sorted({np.shape(leaf)[0] for leaf in leaves})
    if len(sizes) > 1:
        raise ValueError(f"Expected rows with one leading axis C, got sizes {sizes}.")
    return sizes[0]
