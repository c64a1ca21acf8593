"""What classes look like, read from a model without a search: by a closed form, and of 40 places of
photographs, 32 x 32 in colour.
"""

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.attacks import gradient_inversion, model_inversion

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "model_inversion.py"


def test_classes_lie_along_their_gradients_as_far_as_public_examples_do():
    rng = np.random.default_rng(0)
    weights, axes = rng.normal(size=(3, 6)), np.linalg.qr(rng.normal(size=(6, 6)))[0]
    lengths = np.asarray([4.0, 1.0, 0.25, 0.25, 0.25, 0.25])  # two roots, and the rest
    roots = (lengths[:2, None] * axes[:2]).reshape(2, 2, 3, 1)
    mean = rng.normal(size=(2, 3, 1))
    prior = gradient_inversion.Prior(
        *(jnp.asarray(v, jnp.float32) for v in (mean, roots, lengths[-1]))
    )
    apply = lambda params, x: jnp.tanh(params @ (x - prior.mean).reshape(-1)) + 3.0

    def along(slopes, length):
        moved = (slopes - slopes.mean(0)) @ axes.T * lengths**0.5 @ axes
        return length * moved * (3 * (16 + 1 + 6 / 16) / np.square(moved).sum()) ** 0.5

    for length in (1.0, 0.5):
        find = lambda p, of=length: model_inversion.by_gradient(apply, p, prior, 3, length=of)
        found = jax.jit(find)(jnp.asarray(weights, jnp.float32))
        half_way = 0.5 * along(weights, 1.0)  # at the mean tanh has a slope of 1
        slopes = (1 - np.square(np.tanh(half_way @ weights.T)))[..., None] * weights
        expected = along(slopes.mean(0), length)
        np.testing.assert_allclose((np.asarray(found) - mean).reshape(3, 6), expected, rtol=1e-3)
    with pytest.raises(ValueError, match="Expected length > 0 and finite, got length=0"):
        model_inversion.by_gradient(apply, jnp.asarray(weights, jnp.float32), prior, 3, length=0.0)
    with pytest.raises(ValueError, match=r"num_classes=3, as logits, got num_classes=4"):
        model_inversion.by_gradient(apply, jnp.asarray(weights, jnp.float32), prior, 4)


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("examples.model_inversion", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow(reason="trains by a scheme's rounds, twice")
def test_places_of_photographs_are_seen_in_a_model_without_noise_and_not_through_it(example):
    plain, private = (example.found(noise) for noise in (0.0, example.NOISE))
    # Who guesses public patches' mean errs by more than three times as much.
    assert plain["psnr"] > plain["guessed"] + 5 and plain["told"] > 0.8
    # One of 40 by chance: 0.15 is five standard errors above.
    assert private["psnr"] < private["guessed"] and private["told"] <= 0.15


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="trains by a scheme's rounds, twice")
def test_the_gradient_of_an_mlp_that_memorised_tells_places_and_behind_noise_none(example):
    plain, private = (example.found(noise, "mlp") for noise in (0.0, example.NOISE))
    # One of 40 by chance: 0.15 is five standard errors above. In dB it is no better than the mean.
    assert plain["accuracy"] > 0.9 and plain["told"] > 0.15
    assert private["told"] <= 0.15
