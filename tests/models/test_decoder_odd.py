"""Decoders of odd shapes, by the same calls as the usual ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fljax
from fljax import models
from fljax.models import decoder, lora


def shape(**changes):
    """One layer, one head, three symbols: the least."""
    least = {"vocabulary": 3, "width": 1, "hidden": 1, "layers": 1, "heads": 1, "kv_heads": 1}
    return decoder.Shape(**(least | {"head_width": 2, "rope_base": 10.0} | changes))


CLIP = 0.5
# name: (shape, tokens, rank of LoRA, whether layers are computed anew)
ODD = {
    "least": (shape(), 1, 0, False),
    "no shared keys": (shape(width=5, hidden=3, heads=3, kv_heads=3, layers=2), 2, 0, True),
    "one key for five heads": (
        shape(vocabulary=7, width=9, hidden=4, heads=5, layers=2, window=1, norm_of_queries=True),
        5,
        0,
        False,
    ),
    "no layer sees all": (
        shape(
            vocabulary=11,
            width=3,
            hidden=17,
            heads=2,
            head_width=6,
            layers=3,
            window=2,
            global_every=4,
            local_rope_base=3.0,
            norm_after=True,
            scaled_embedding=True,
            activation="gelu_tanh",
        ),
        4,
        1,
        True,
    ),
}


@pytest.mark.slow(reason="compiles one more decoder", but=["one key for five heads"])
@pytest.mark.parametrize("name", ODD)
def test_the_clipped_sum_of_an_odd_decoder_is_that_of_rows(name):
    of, length, rank, remat = ODD[name]
    with jax.enable_x64(True):
        wide = {"dtype": jnp.float64, "param_dtype": jnp.float64}
        module = decoder.Decoder(of, rngs=nnx.Rngs(0), remat=remat, **wide)
        if rank:
            lora.add(module, rank, rngs=nnx.Rngs(1), param_dtype=jnp.float64)
        params, apply = models.functional(module, batched=False)
        rng = np.random.default_rng(1)
        params = jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape), params)
        x = rng.integers(0, of.vocabulary, (4, length + 1)).astype(np.int32)
        batch = {"x": x[:, :-1], "y": x[:, 1:].copy()}
        batch["y"][0, 1:] = -1  # padding
        loss = models.next_token(apply)
        query = fljax.clipped_grad(
            loss, l2_clip_norm=CLIP, return_grad_norms=True, keep_batch_dim=False
        )

        @jax.jit
        def both(params, batch):
            return jax.vmap(jax.grad(loss), (None, 0))(params, batch), query(params, batch)

        rows, (total, aux) = jax.device_get(both(params, batch))
        squares = [(row.reshape(4, -1) ** 2).sum(axis=1) for row in jax.tree.leaves(rows)]
        norms = np.sqrt(sum(squares))
        assert norms.max() > CLIP
        # A norm may be rounded up by 2^-24 of its square, and clips so much more.
        np.testing.assert_allclose(aux.grad_norms, norms, rtol=1e-6)
        factors = np.minimum(1, CLIP / norms)
        for ours, row in zip(jax.tree.leaves(total), jax.tree.leaves(rows), strict=True):
            np.testing.assert_allclose(ours, np.tensordot(factors, row, 1), atol=1e-6 * CLIP)
