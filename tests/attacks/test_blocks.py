"""Many rows a few at a time."""

import jax
import numpy as np
import pytest

from fljax.attacks._blocks import in_blocks


@pytest.mark.parametrize("count", [1, 3, 6, 7])
def test_rows_in_blocks_are_rows_one_by_one_in_one_width(count):
    widths = []

    def fun(row, scale):
        out = jax.custom_batching.custom_vmap(lambda v: v)

        @out.def_vmap
        def _(size, batched, v):
            widths.append(size)
            return v, batched[0]

        return {"sum": scale * out(row["x"]).sum(), "key": jax.random.uniform(row["key"])}

    x = np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
    keys = jax.random.split(jax.random.key(0), count)
    found = in_blocks(fun, at_once=3)({"x": x, "key": keys}, np.float32(10))
    np.testing.assert_array_equal(found["sum"], 10 * x.sum(1))
    np.testing.assert_array_equal(found["key"], [jax.random.uniform(key) for key in keys])
    assert set(widths) == {3}
