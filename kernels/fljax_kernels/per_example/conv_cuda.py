"""The convolution's term for CUDA, which a kernel makes where it moves fewest numbers."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from fljax_kernels.per_example import conv_kernel
from fljax_kernels.per_example.conv import channels_last
from fljax_kernels.per_example.conv_native import KERNEL, NativeConv
from fljax_kernels.per_example.conv_operands import Window

STAND_IN = "by products, which stand in for a Pallas kernel that is not made here"


class CudaConv(NativeConv):
    """As `NativeConv`; `form` may also be "kernel"."""

    by_kernel = True

    @functools.cached_property
    def moved(self) -> dict[str, float]:
        """Numbers that each form moves for one example, beyond what the mean gradient does."""
        found = super().moved
        if not self._takes_kernel:
            return found
        # Norms read both; the sum reads them as the mean gradient does. Beside it the copies that
        # rows are made of count, written and read, be it in the cache.
        copies = 2 * min(self._copied(False), self._copied(True))
        x, y = (math.prod(z.shape[1:]) for z in self._plain)
        return found | {
            "held": found["held"] + copies,
            "rows": found["rows"] + copies,
            "kernel": x + y,
        }

    @property
    def _takes_kernel(self) -> bool:
        """A plain convolution over two axes, of a batch that XLA does not cut."""
        params, dtypes = self._params, [z.dtype for z in self._plain]
        return (
            self.by_kernel
            and len(self._window) == 2
            and params["feature_group_count"] == params["batch_group_count"] == 1
            and tuple(params["lhs_dilation"]) == (1, 1)
            and all(z.size for z in self._plain)
            and all(dtype in (jnp.float32, jnp.bfloat16, jnp.float16) for dtype in dtypes)
            and not self.spread
        )

    def _for_kernel(self) -> tuple[jax.Array, jax.Array, Window, bool]:
        """(inputs and cotangents with channels last, the window, whether products are exact)."""
        params, (lhs, res, _) = self._params, self._order
        x, y = (channels_last(z, spec) for z, spec in zip(self._plain, (lhs, res), strict=True))
        window = Window(
            self._window,
            params["window_strides"],
            params["rhs_dilation"],
            tuple(low for low, _ in params["padding"]),
            (y.shape[2], y.shape[3]),
        )
        # As of held rows, the program's own precision: norm and sum are of the same products.
        rough = (None, lax.Precision.DEFAULT)
        asked = params["precision"]
        asked = asked if isinstance(asked, tuple) else (asked,)
        return x, y, window, not all(one in rough for one in asked)

    def cost(self) -> tuple[str, float, float]:
        what, work, held = super().cost()
        if self.form == "kernel" and not conv_kernel.is_made(*self._for_kernel()):
            what = what.replace(KERNEL, STAND_IN)
        return what, work, held

    def squared_norms(self) -> jax.Array:
        if self.form != "kernel":
            return super().squared_norms()
        return conv_kernel.squares(*self._for_kernel())

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        if self.form != "kernel":
            return super().weighted_sum(weights)
        x, y, window, exact = self._for_kernel()
        total = conv_kernel.weighted_sum(x, y, weights.astype(jnp.float32), window, exact)
        # Rows and columns of the kernel, channels, features: to where its shape has them.
        out, inside, *axes = self._params["dimension_numbers"].rhs_spec
        return jnp.moveaxis(total, (0, 1, 2, 3), (*axes, inside, out))
