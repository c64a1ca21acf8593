import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fljax import models
from fljax.models import decoder
from tests.models._decoder64 import logits64

SMALL = {"vocabulary": 13, "width": 8, "hidden": 12, "layers": 3, "heads": 4, "kv_heads": 2}
KINDS = {
    "gemma": decoder.Shape(
        **SMALL,
        head_width=4,
        rope_base=1e4,
        window=2,
        global_every=2,
        local_rope_base=50.0,
        activation="gelu_tanh",
        norm_of_queries=True,
        norm_after=True,
        scale_from_one=True,
        scaled_embedding=True,
    ),
    "llama": decoder.Shape(
        **SMALL,
        head_width=12,
        rope_base=100.0,
        rope_stretch=decoder.Stretch(factor=8.0, low=1.0, high=4.0, original=32),
        norm_epsilon=1e-5,
    ),
    "qwen": decoder.Shape(**SMALL, head_width=4, rope_base=1e3, norm_of_queries=True),
}
TOKENS = np.array([3, 1, 4, 1, 5, 9, 2], np.int32)


def made(shape, key=0, **options):
    """With scales of norms that say something, in float64 under x64."""
    module = decoder.Decoder(shape, rngs=nnx.Rngs(key), **options)
    rng = np.random.default_rng(7)
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        if path[-1] == "scale":
            drawn = rng.normal(0.5, 0.3, variable.shape)
            variable[...] = jnp.asarray(drawn, variable.dtype)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_a_float64_reference_written_apart(kind):
    with jax.enable_x64(True):
        module = made(KINDS[kind], dtype=jnp.float64, param_dtype=jnp.float64)
        params, apply = models.functional(module, batched=False)
        actual = jax.jit(apply)(params, TOKENS)
        np.testing.assert_allclose(actual, logits64(params, TOKENS, KINDS[kind]), atol=1e-12)


def test_weights_of_float32_meet_data_in_bfloat16_and_logits_are_float32():
    module = made(KINDS["gemma"], dtype=jnp.bfloat16, remat=True)
    params, apply = models.functional(module, batched=False)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    actual = jax.jit(apply)(params, TOKENS)
    assert actual.dtype == jnp.float32
    exact = logits64(params, TOKENS, KINDS["gemma"])
    # Three layers of about ten roundings of 2^-9 each, none of which is large beside the logits.
    error = np.abs(actual - exact).max()
    assert 1e-5 < error < 30 * 2.0**-9 * np.abs(exact).max()


def test_published_decoders_have_their_published_number_of_parameters():
    counts = {
        "gemma3_1b": 999_885_952,
        "llama3.2_1b": 1_235_814_400,
        "qwen3_0.6b": 596_049_920,
    }
    for name, count in counts.items():
        shape = decoder.SHAPES[name]
        state = nnx.state(nnx.eval_shape(lambda s=shape: decoder.Decoder(s, rngs=nnx.Rngs(0))))
        assert sum(leaf.size for leaf in jax.tree.leaves(state)) == count == shape.num_params


def test_no_token_sees_later_ones_and_one_local_layer_no_further_than_its_window():
    shape = dataclasses.replace(KINDS["gemma"], layers=1)
    params, apply = models.functional(made(shape), batched=False)
    one = jax.jit(apply)(params, TOKENS)
    for place in range(len(TOKENS)):
        other = np.array(TOKENS)
        other[place] = 12
        changed = np.any(jax.jit(apply)(params, other) != one, axis=1)
        np.testing.assert_array_equal(np.flatnonzero(changed), [place, *[place + 1][: 6 - place]])


def test_every_sixth_layer_of_gemma_sees_all_tokens():
    seen = decoder.SHAPES["gemma3_1b"].sees_all()
    np.testing.assert_array_equal(np.flatnonzero(seen), [5, 11, 17, 23])
    assert decoder.SHAPES["llama3.2_1b"].sees_all().all()


def test_a_decoder_by_name_has_the_symbols_of_its_data_and_says_what_it_takes(key):
    params, apply = models.create("decoder:tiny", example_shape=(5,), num_classes=80, key=key)
    assert params["embedding"].shape == (80, 128)
    assert jax.eval_shape(apply, params, jnp.zeros(5, jnp.int32)).shape == (5, 80)
    with pytest.raises(ValueError, match=r"example_shape to be \[tokens\]"):
        models.create("decoder:tiny", example_shape=(5, 5), num_classes=80, key=key)
    with pytest.raises(ValueError, match=r"tokens \[T\], integers"):
        apply(params, jnp.zeros(5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"head_width": 5}, "head_width to be even"),
        ({"layers": 0}, "layers"),
        ({"rope_base": 0.0}, "rope_base"),
        ({"window": 0}, "window"),
        ({"rope_stretch": decoder.Stretch(0.0, 1.0, 4.0, 64)}, "factor"),
        ({"rope_stretch": decoder.Stretch(8.0, 4.0, 4.0, 64)}, "high > low"),
        ({"activation": "relu"}, "activation"),
    ],
    ids=str,
)
def test_a_shape_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(KINDS["qwen"], **changes)
