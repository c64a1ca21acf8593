"""The sum of a dense layer's rows `x_i y_i^T`, each by its coefficient, without copies: a Pallas
kernel for CUDA, and one product elsewhere.

A row of coefficient 0 must add nothing where it is not finite. So a product needs a copy of its
inputs in which such rows are zero, and one of cotangents that are weighed, for on a GPU XLA selects
in no product. The kernel leaves rows out, and weighs others, as it reads. Its operands are whole,
as those of the product.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fljax_kernels import _meshes, _platforms
from fljax_kernels.per_example import kernel_primitives
from fljax_kernels.per_example.reference import drop_rows, weigh_rows


def weighted_sum(x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
    """The sum of `weights[i] x_i y_i^T`, float32 `[p, q]`; a row of weight 0 adds nothing, also
    where it is not finite.

    Args:
      x: float32 `[E, p]`, inputs. y: float32 `[E, q]`, cotangents. weights: float32 `[E]`.
    """
    found: jax.Array = _sum(*kernel_primitives.alike(x, y, weights))
    return found


def weighted_rows(y: jax.Array, weights: jax.Array) -> jax.Array:
    """The sum of `weights[i] y_i`, float32 `[q]`: that of a layer with one input, which is 1."""
    return weighted_sum(jnp.ones_like(y[:, :1]), y, weights)[0]


def takes(*arrays: jax.Array) -> bool:
    """Whether sums of these are the kernel's: for CUDA alone, of float32 that XLA does not cut."""
    return _platforms.candidates() == ("cuda",) and all(
        z.dtype == jnp.float32 and not _meshes.is_spread(z) for z in arrays
    )


def is_made(x: Any, y: Any) -> bool:
    """Whether programs of this process have the kernel, of arrays with these shapes."""
    weights = jax.ShapeDtypeStruct(x.shape[:1], jnp.float32)
    return kernel_primitives.is_made(weighted_sum, x, y, weights)


# Derivatives are those of the product; the kernel has none of its own.
@jax.custom_jvp
def _sum(x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
    found: jax.Array = _sum_p.bind(x[None], y[None], weights[None])
    return found[0]


@_sum.defjvp
def _jvp(primals: Any, tangents: Any) -> Any:
    return _sum(*primals), jax.jvp(_by_product, primals, tangents)[1]


def _by_product(x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
    return lax.dot_general(
        drop_rows(x, weights),
        weigh_rows(y, weights),
        (((0,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    )


def _of_groups(x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
    """`[G, p, q]`."""
    if len(x) == 1:
        return _by_product(x[0], y[0], weights[0])[None]
    return jax.vmap(_by_product)(x, y, weights)


def _kernel(x: Any, y: Any, weights: Any) -> Any:
    from fljax_kernels.per_example import dense_pallas  # which takes its time to import

    return dense_pallas.sums if kernel_primitives.fits(dense_pallas.of_shares(x, y)) else None


def _type(x: Any, y: Any, weights: Any) -> Any:
    return kernel_primitives.typed(y, (x.shape[0], x.shape[-1], y.shape[-1]))


def _mapped(args: Any, axes: Any) -> Any:
    return kernel_primitives.mapped_sum(_sum_p.bind, args, axes)


_sum_p = kernel_primitives.primitive("sum_of_outer_rows", _kernel, _of_groups, _type, _mapped)
