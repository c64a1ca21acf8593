"""Updates modulo 2**32: oracles H1 and H2, exact cancellation of masks, and sums that cannot
wrap.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.upload import fixed_point
from fljax_kernels import pair_noise
from fljax_kernels.pairwise import graphs

pytestmark = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")

BITS = {"fraction_bits": 16}


def test_words_and_sums_of_the_oracles():
    x = jnp.array([-1.25, 0.5, 3.0])
    words = fixed_point.encode(x, bound=4.0, num_clients=2, **BITS)
    np.testing.assert_array_equal(words, np.array([4294885376, 32768, 196608], np.uint32))
    np.testing.assert_array_equal(fixed_point.decode(words, **BITS), x)
    mask = jnp.uint32(0xDEADBEEF)
    low, high = words[0] + mask, words[1] - mask
    np.testing.assert_array_equal(
        jnp.stack([low, high]), np.array([3735846639, 559071505], np.uint32)
    )
    assert float(fixed_point.decode(low + high, **BITS)) == -0.75


@pytest.mark.slow(reason="compiles one more graph", but=["7"])
@pytest.mark.parametrize("num_clients", [2, 7])
def test_pair_noise_of_the_ring_form_cancels_exactly(num_clients, key):
    tree = {
        "w": jax.random.normal(jax.random.key(1), (num_clients, 5, 3)),
        "b": jnp.ones((num_clients, 4)),
    }
    words = fixed_point.encode(tree, bound=5.0, num_clients=num_clients, **BITS)
    like = jax.tree.map(lambda leaf: leaf[0], tree)
    noise = pair_noise(
        key, jnp.asarray(graphs.complete(num_clients)), num_clients, like, 2.0**20, form="ring"
    )
    sent = jax.jit(lambda w, n: jax.tree.map(jnp.add, w, n))(words, noise)
    assert not any(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(sent), jax.tree.leaves(words), strict=True)
    )
    plain, hidden = (
        jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=jnp.uint32), t) for t in (words, sent)
    )
    chex.assert_trees_all_equal(plain, hidden)
    total = fixed_point.decode(hidden, **BITS)
    for name, leaf in tree.items():  # each number is off by half a unit at most
        np.testing.assert_allclose(
            total[name], np.sum(leaf, axis=0), rtol=0, atol=num_clients * 2.0**-17 + 1e-6
        )


def test_no_client_can_make_the_sum_wrap():
    huge = jnp.array([jnp.inf, -jnp.inf, 1e30, jnp.nan])
    words = fixed_point.encode(huge, bound=100.0, num_clients=300, **BITS)
    total = fixed_point.decode(jnp.sum(jnp.tile(words, (300, 1)), axis=0, dtype=jnp.uint32), **BITS)
    np.testing.assert_array_equal(total, [30000.0, -30000.0, 30000.0, 0.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_clients": 400}, r"400 \* 100\.0"),
        ({"bound": 0.0}, "bound=0"),
        ({"bound": np.nan}, "bound=nan"),
        ({"fraction_bits": 31}, "fraction_bits=31"),
        ({"fraction_bits": -1}, "fraction_bits=-1"),
        ({"num_clients": 0}, "num_clients=0"),
    ],
)
def test_bad_numbers_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        fixed_point.encode(
            jnp.ones(2), **({"fraction_bits": 16, "bound": 100.0, "num_clients": 300} | change)
        )


def test_leaves_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="int32"):
        fixed_point.encode(jnp.ones(2, jnp.int32), bound=1.0, num_clients=1, **BITS)
    with pytest.raises(ValueError, match="float32"):
        fixed_point.decode(jnp.ones(2), **BITS)
