"""Distances that forgive what an eye forgives, against float64 code written apart and what one
expects of them.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage, optimize

from fljax import data
from fljax.attacks import gradient_inversion, metrics, perceptual, reconstruction, victims
from fljax.papers.channel.rounds import photographs

# One program each, where an operation by itself is one.
cw_ssim = jax.jit(perceptual.cw_ssim, static_argnames=("level", "num_orientations", "data_range"))
registered_psnr = jax.jit(perceptual.registered_psnr, static_argnames="max_shift")


@pytest.fixture(scope="module")
def patches():
    """24 colour patches of 32 x 32 pixels, and each moved to the right by a pixel."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    pairs = []
    for place in range(24):
        image = load_sample_images().images[place % 2] / np.float32(255)
        top, left = (rng.integers(1, size - 34) for size in image.shape[:2])
        own = image[top : top + 32, left : left + 32]
        pairs.append((own, image[top : top + 32, left - 1 : left + 31]))
    return tuple(np.stack(side) for side in zip(*pairs, strict=True))


def cw_ssim_float64(x, y, level, num_orientations):
    """By convolution with the bank's responses, which are sums of waves, pixel by pixel."""
    height, width, channels = x.shape
    values, power = [], num_orientations - 1
    down, right = np.mgrid[: 2 * height, : 2 * width]
    unit = math.sqrt(
        sum(math.cos(math.pi * k / num_orientations) ** (2 * power) for k in range(power + 1))
    )
    for channel, orientation in itertools.product(range(channels), range(num_orientations)):
        toward = math.pi * orientation / num_orientations
        response = np.zeros((2 * height, 2 * width), complex)
        for i, j in itertools.product(range(2 * height), range(2 * width)):
            v, u = (
                2 * math.pi * ((n + m) % (2 * m) - m) / (2 * m)
                for n, m in ((i, height), (j, width))
            )
            octave = math.log2(math.hypot(u, v) / math.pi) + level if (u, v) != (0, 0) else 9
            along = (u * math.cos(toward) + v * math.sin(toward)) / max(math.hypot(u, v), 1e-9)
            if abs(octave) < 1 and along > 0:
                size = 2 * math.cos(math.pi / 2 * octave) * along**power / unit
                response += size * np.exp(1j * (v * down + u * right)) / down.size
        a, b = (
            ndimage.convolve(
                np.block([[z, z[:, ::-1]], [z[::-1], z[::-1, ::-1]]]).astype(complex),
                np.roll(response, (height, width), (0, 1)),
                mode="wrap",
                origin=0,
            )[:height, :width]
            for z in (x[..., channel], y[..., channel])
        )
        for i, j in itertools.product(range(max(height - 6, 1)), range(max(width - 6, 1))):
            p, q = a[i : i + 7, j : j + 7], b[i : i + 7, j : j + 7]
            common, own = abs(np.mean(p * q.conj())), np.mean(abs(p) ** 2 + abs(q) ** 2)
            values.append((2 * common + 1e-4) / (own + 1e-4))
    return float(np.mean(values))


@pytest.mark.parametrize(
    ("shape", "level", "num_orientations"), [((9, 8, 2), 2, 4), ((6, 10, 1), 1, 3)]
)
def test_cw_ssim_agrees_with_float64(shape, level, num_orientations):
    rng = np.random.default_rng(1)
    x = rng.random(shape)
    y = np.clip(x + 0.3 * rng.normal(size=shape), 0, 1)
    found = cw_ssim(x, y, level=level, num_orientations=num_orientations)
    assert float(found) == pytest.approx(cw_ssim_float64(x, y, level, num_orientations), abs=2e-5)


def test_cw_ssim_hardly_moves_where_a_pixels_shift_makes_ssim_fall(patches):
    own, shifted = patches
    other = np.roll(own, 2, 0)
    wavelets, plain = (jax.jit(jax.vmap(f)) for f in (perceptual.cw_ssim, metrics.ssim))
    near, rough = wavelets(own, shifted), plain(own, shifted) < 0.8
    assert np.min(near) > 0.9 and np.sum(rough) >= 4 and np.min(plain(own, shifted)) < 0.4
    assert np.median(wavelets(own, other)) < 0.6
    np.testing.assert_allclose(wavelets(own, own), 1.0, atol=1e-5)
    np.testing.assert_allclose(near[3], cw_ssim(own[3], shifted[3]), atol=1e-5)


def test_of_constant_images_cw_ssim_sees_no_brightness_and_no_structure():
    grey, flat = jnp.full((8, 8, 1), 0.5), jnp.zeros((8, 8, 1))
    rough = jax.random.uniform(jax.random.key(0), (8, 8, 1))
    assert float(cw_ssim(grey, flat)) == pytest.approx(1.0, abs=1e-5)
    assert float(cw_ssim(grey, rough)) < 0.1
    scaled = cw_ssim(255 * rough, 255 * rough[::-1], data_range=255.0)
    assert float(scaled) == pytest.approx(float(cw_ssim(rough, rough[::-1])), abs=1e-5)


def moved(image, move):
    """By scipy: what `image` is at places that are shifted, turned and scaled about the middle."""
    down, right, turn, scale = move
    centre = (np.asarray(image.shape[:2]) - 1) / 2
    matrix = np.exp(scale) * np.asarray(
        [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    )
    offset = centre + np.asarray([down, right]) - matrix @ centre
    return np.stack(
        [
            ndimage.affine_transform(image[..., c], matrix, offset, order=1, mode="nearest")
            for c in range(image.shape[2])
        ],
        -1,
    )


def test_registration_agrees_with_a_search_by_scipy(patches):
    truth = patches[0][0].astype(np.float64)
    found = np.clip(moved(truth, (1.3, -0.6, 0.06, 0.03)), 0, 1)
    found = found + 0.02 * np.random.default_rng(2).normal(size=found.shape)
    gap = lambda move: (moved(found, move) - truth).ravel()
    best = min(
        optimize.least_squares(gap, (down, right, 0, 0), diff_step=1e-4).cost
        for down in (-2, -1, 0)
        for right in (0, 1)
    )
    expected = -10 * np.log10(2 * best / truth.size)
    got = float(registered_psnr(found, truth))
    assert got == pytest.approx(expected, abs=0.1)
    assert got > float(metrics.psnr(found, truth)) + 4


def test_registration_undoes_a_known_move_of_a_batch_in_another_order(patches):
    # Grey at its edges, so that nothing leaves the picture; smooth, so that little is lost between
    # pixels.
    at = np.clip(np.minimum(np.arange(32), 31 - np.arange(32)) / 8 - 0.25, 0, 1)
    window = (at[:, None] * at[None])[..., None]
    truth = ndimage.gaussian_filter(patches[0][:4], (0, 1, 1, 0)) * window + 0.5 * (1 - window)
    moves = [(1.5, -2.25, 0, 0), (0, 0, 0.15, 0), (0.5, 0.5, 0, 0.12), (-1, 2, -0.1, -0.08)]
    order = np.asarray([2, 0, 3, 1])
    found = np.stack([moved(x, move) for x, move in zip(truth, moves, strict=True)])[order]
    matched = truth[metrics.assignment(found, truth)].astype(np.float32)
    np.testing.assert_array_equal(metrics.assignment(found, truth), order)
    registered = jax.jit(jax.vmap(perceptual.registered_psnr))(found, matched)
    plain = jax.vmap(metrics.psnr)(found, matched)
    assert np.all(registered > plain + 8) and np.all(registered > 33)


@pytest.mark.slow(reason="registers patches twice")
def test_registration_never_harms_and_makes_no_image_of_another(patches):
    own = patches[0][:8]
    other = np.roll(own, 2, 0)
    registered = jax.jit(jax.vmap(perceptual.registered_psnr))(other, own)
    plain = jax.vmap(metrics.psnr)(other, own)
    assert np.all(registered >= plain - 1e-3) and np.mean(registered - plain) < 3
    assert float(registered_psnr(own[0], own[0])) > 100  # infinite, or rounding
    grey = jnp.full((32, 32, 3), 0.5)
    assert float(registered_psnr(grey, grey + 0.1)) == pytest.approx(20, abs=1e-3)
    assert math.isnan(registered_psnr(grey * jnp.nan, grey))
    narrow = jnp.zeros((1, 3, 1))
    assert float(registered_psnr(narrow, narrow + 0.1, max_shift=0)) == pytest.approx(20)


def drawn(channels):
    """A network that has learnt nothing."""
    rng, sizes = np.random.default_rng(4), (channels, 4, 6, 5)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return perceptual.Learnt(
        jnp.full(channels, 0.4),
        jnp.full(channels, 0.3),
        tuple(normal(3, 3, *pair) for pair in itertools.pairwise(sizes)),
        tuple(normal(size) for size in sizes[1:]),
        jnp.ones((5, 2)),
    )


@pytest.mark.parametrize("shape", [(8, 6, 3), (5, 7, 1)])
def test_the_learnt_distance_agrees_with_float64(shape):
    learnt = drawn(shape[2])
    rng = np.random.default_rng(3)
    x, y = rng.random((2, *shape))

    def layers(image):
        image = (image - np.asarray(learnt.mean)) / np.asarray(learnt.stddev)
        for kernel, bias, stride in zip(learnt.kernels, learnt.biases, (1, 2, 2), strict=True):
            kernel, bias = np.asarray(kernel, np.float64), np.asarray(bias, np.float64)
            height, width = (-(-n // stride) for n in image.shape[:2])
            extra = [
                max((m - 1) * stride + 3 - n, 0)
                for m, n in zip((height, width), image.shape[:2], strict=True)
            ]
            wide = np.pad(image, [*((e // 2, e - e // 2) for e in extra), (0, 0)])
            image = np.zeros((height, width, kernel.shape[3]))
            for i, j in itertools.product(range(height), range(width)):
                part = wide[i * stride : i * stride + 3, j * stride : j * stride + 3]
                image[i, j] = np.maximum(np.einsum("abc,abcd->d", part, kernel) + bias, 0)
            yield image

    each = []
    for a, b in zip(layers(x), layers(y), strict=True):
        a, b = (v / np.sqrt((v**2).sum(-1, keepdims=True) + 1e-10) for v in (a, b))
        each.append(((a - b) ** 2).sum(-1).mean())
    found = jax.jit(perceptual.learnt_distance)(learnt, x, y)
    assert float(found) == pytest.approx(np.mean(each), rel=1e-4)
    # A number of a layer is a sum over 3 x 3 places and channels. Of the two images it may run in
    # different orders, which differ by a rounding a term.
    terms = 9 * max(kernel.shape[2] for kernel in learnt.kernels)
    same = float(jax.jit(perceptual.learnt_distance)(learnt, x, x))
    assert 0 <= same <= (len(learnt.kernels) * terms * 2**-24) ** 2
    slope = jax.jit(jax.grad(perceptual.learnt_distance, 1))(learnt, jnp.zeros(shape), y)
    assert np.isfinite(slope).all()


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="trains a network")
def test_what_is_learnt_tells_shifted_images_and_orders_changes_as_an_eye_does(key):
    public, others = photographs()
    held = others["x"][::3]
    keys = jax.random.split(key)
    learnt = perceptual.learn(public["x"], keys[0])
    untaught = perceptual.learn(public["x"], keys[1], num_steps=1, learning_rate=1e-9)
    shifted, own = np.roll(held, (1, 1), (1, 2)), np.arange(len(held))
    changed = np.float32(0.9) * np.roll(held, (2, -1), (1, 2))
    told, guessed, by_pixels = (
        reconstruction.iip(changed, held, own, features=features)
        for features in (
            lambda x: perceptual.names(learnt, x),
            lambda x: perceptual.names(untaught, x),
            None,
        )
    )
    assert told > by_pixels > 0.25 > guessed
    far = lambda x: np.asarray(
        jax.vmap(perceptual.learnt_distance, (None, 0, 0))(learnt, np.float32(x), held)
    )
    squares = lambda x: np.square(x - held).mean((1, 2, 3))
    darker, flat = 0.8 * held, np.broadcast_to(held.mean((1, 2), keepdims=True), held.shape)
    blurred, other = ndimage.gaussian_filter(held, (0, 1, 1, 0)), np.roll(held, 100, 0)
    assert np.mean(far(blurred) < far(flat)) > 0.95
    assert np.mean(far(shifted) < far(other)) > 0.95
    # Pixel by pixel a grey patch is mostly nearer than one that is darker.
    by_pixels = np.mean(squares(darker) < squares(flat))
    assert np.mean(far(darker) < far(flat)) > 0.55 > 0.45 > by_pixels
    assert np.mean(far(darker)) < np.mean(far(flat)) / 2


@pytest.mark.release(reason="a third of a minute")
@pytest.mark.slow(reason="trains a network and inverts gradients")
def test_features_that_images_usually_have_help_a_search_through_noise():
    digits = data.load("digits")
    net = victims.smooth_lenet(example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    observe = gradient_inversion.gradient(gradient_inversion.soft_cross_entropy(net.apply))
    x, y = jnp.asarray(digits.test["x"][:10, None]), digits.test["y"][:10, None]
    y = jax.nn.one_hot(y, 10)
    uploads = jax.jit(jax.vmap(observe, (None, 0, 0)))(net.params, x, y)
    # Noise as long as the gradient.
    leaves, rng = jax.tree.leaves(uploads), np.random.default_rng(0)
    squares = sum(np.square(leaf).reshape(10, -1).sum(1) for leaf in leaves)
    scale = np.sqrt(squares / sum(leaf[0].size for leaf in leaves))
    each = lambda leaf: scale.reshape(-1, *(1,) * (leaf.ndim - 1)) * rng.normal(size=leaf.shape)
    noisy = jax.tree.map(lambda leaf: leaf + jnp.asarray(each(leaf), jnp.float32), uploads)
    learnt = perceptual.learn(digits.train["x"], jax.random.key(1), num_steps=50)
    prior = perceptual.feature_prior(learnt, digits.train["x"][:500])
    drawn = jax.random.uniform(jax.random.key(2), x.shape)
    assert 0.5 < float(prior(x)) < 2 < float(prior(drawn))
    settings = gradient_inversion.Settings(num_iterations=300)

    def mean(penalty):
        run = lambda u, k: gradient_inversion.invert(
            observe, net.params, u, y, k, shape=(1, 8, 8, 1), settings=settings, penalty=penalty
        )
        found = jax.jit(run)(noisy, jax.random.key(3)).x
        return float(jnp.mean(jax.vmap(metrics.psnr)(found, x)))

    assert mean(lambda images: 1e-3 * prior(images)) > 1 + mean(None)


def test_bad_arguments_raise_in_one_line(key):
    image, public = jnp.zeros((8, 8, 1)), jnp.zeros((4, 8, 8, 1))
    learnt = drawn(3)
    for call, text in (
        (lambda: perceptual.feature_prior(learnt, public), "public of shape"),
        (lambda: perceptual.feature_prior(learnt, image), "public of shape"),
        (lambda: perceptual.cw_ssim(image, image[:4]), "of one shape"),
        (lambda: perceptual.cw_ssim(image[..., 0], image[..., 0]), "images"),
        (lambda: perceptual.cw_ssim(image[:0], image[:0]), "images"),
        (lambda: perceptual.cw_ssim(image, image, level=0), "level"),
        (lambda: perceptual.cw_ssim(image, image, num_orientations=1), "num_orientations"),
        (lambda: perceptual.cw_ssim(image, image, data_range=0.0), "data_range"),
        (lambda: perceptual.registered_psnr(image, image[:4]), "of one shape"),
        (lambda: perceptual.registered_psnr(image, image, max_shift=-1), "max_shift"),
        (lambda: perceptual.registered_psnr(image, image, data_range=math.nan), "data_range"),
        (lambda: perceptual.learnt_distance(learnt, image, image), "3 channels"),
        (lambda: perceptual.learn(public, jax.random.PRNGKey(0)), "key"),
        (lambda: perceptual.learn(public[:1], key), "two images"),
        (lambda: perceptual.learn(public[:, :3], key), "4 pixels"),
        (lambda: perceptual.learn(public * jnp.nan, key), "finite"),
        (lambda: perceptual.learn(public, key, batch_size=1), "batch_size"),
        (lambda: perceptual.learn(public, key, num_steps=0), "num_steps"),
        (lambda: perceptual.learn(public, key, learning_rate=0.0), "learning_rate"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
