"""How alike two images look where pixel by pixel they differ: after a shift, a turn, or by features
that a network has learnt.

Of one pair of images each, `[H, W, channels]`, under `jit` and `vmap`; like the distances of
`metrics` they give NaN for what is not finite, and raise for shapes and settings.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _validate
from fljax.attacks import _descent

_WINDOW = 7
_STEPS = 30  # of a registration; it stands still after about ten
_MOST_TURN, _MOST_SCALE = 0.25, 0.2  # radians; of the logarithm: what still is a small change
_CHANNELS, _STRIDES = (8, 16, 32), (1, 2, 2)
_NAME, _TEMPERATURE = 32, 0.1


def cw_ssim(
    found: Any, truth: Any, *, level: int = 2, num_orientations: int = 8, data_range: float = 1.0
) -> jax.Array:
    """Complex-wavelet structural similarity of two images, `[]`, at most 1.

    Images are mirrored at their edges and cut into bands of one octave about the frequency
    pi / 2**level, one for each orientation, analytic: what a small shift changes is the phase of
    their numbers, of all in a window alike, and the phase of a window's sum of products does not
    count. Mean over windows of 7 x 7 pixels inside the image (smaller images: one window over all),
    orientations and channels. Brightness does not count: two constant images score 1.

    Args:
      level: of the bands. >= 1; a shift counts little up to about 2**level / 2 pixels.
      num_orientations: >= 2.
      data_range: largest possible value minus the smallest. > 0.

    Raises:
      ValueError: shapes differ or are of no image, or a setting is out of range.

    Source: Sampat et al. (2009), Complex wavelet structural similarity: a new image similarity
    index, equation 3, with the constant 0.01 of SSIM; without its pyramid's smaller images.
    """
    _validate.positive_int(level=level, num_orientations=num_orientations)
    if num_orientations < 2:
        raise ValueError(
            f"Expected num_orientations >= 2, got num_orientations={num_orientations}."
        )
    x, y = _pair(found, truth, data_range)
    height, width, _ = x.shape
    bank = jnp.asarray(_bank(2 * height, 2 * width, level, num_orientations), jnp.complex64)

    def bands(image: jax.Array) -> jax.Array:
        mirrored = jnp.pad(image, ((0, height), (0, width), (0, 0)), mode="symmetric")
        spectrum = jnp.fft.fft2(mirrored, axes=(0, 1))
        return jnp.fft.ifft2(bank[..., None] * spectrum[None], axes=(1, 2))[:, :height, :width]

    a, b = bands(x), bands(y)
    constant = (0.01 * data_range) ** 2
    common = jnp.abs(_windows(a * jnp.conj(b)))
    own = _windows(jnp.square(jnp.abs(a)) + jnp.square(jnp.abs(b)))
    return jnp.mean((2 * common + constant) / (own + constant))


def _bank(height: int, width: int, level: int, num_orientations: int) -> np.ndarray:
    """What each frequency of an image is multiplied by, `[num_orientations, height, width]`: a
    raised cosine of the octave, times powers of cosines on one side, whose squares add up to 4.
    """
    down, right = (2 * np.pi * np.fft.fftfreq(size) for size in (height, width))
    radius = np.hypot(down[:, None], right[None])
    octave = np.log2(np.where(radius > 0, radius, 1.0) / (np.pi / 2**level))
    radial = np.where(
        (radius > 0) & (np.abs(octave) < 1), np.cos(np.pi / 2 * np.clip(octave, -1, 1)), 0.0
    )
    angle = np.arctan2(down[:, None], right[None])
    centres = np.pi * np.arange(num_orientations) / num_orientations
    power = num_orientations - 1
    # Squares of these add up to 1 at every angle (Simoncelli and Freeman, 1995).
    scale = 2**power * math.factorial(power)
    scale /= math.sqrt(num_orientations * math.factorial(2 * power))
    toward = np.cos(angle - centres[:, None, None])
    return np.where(toward > 0, 2 * scale * np.abs(toward) ** power, 0.0) * radial


def _windows(bands: jax.Array) -> jax.Array:
    """Means over all windows inside, of axes 1 and 2."""
    for axis in (1, 2):
        size = bands.shape[axis]
        wide = min(_WINDOW, size)
        parts = [
            jax.lax.slice_in_dim(bands, i, size - wide + 1 + i, axis=axis) for i in range(wide)
        ]
        bands = jnp.mean(jnp.stack(parts), 0)
    return bands


def registered_psnr(
    found: Any, truth: Any, *, max_shift: int = 4, data_range: float = 1.0
) -> jax.Array:
    """PSNR in dB, `[]`, once `found` is laid over `truth` by the best small shift, turn and scale
    (R-PSNR).

    The best of all shifts by whole pixels is where damped Gauss-Newton steps on the squared
    difference begin (Lucas and Kanade), with values between pixels by bilinear interpolation, and
    edges continued. All pixels of `truth` count, so that what a shift pushed out of the picture is
    lost; no move is one of the choices: never less than `metrics.psnr`. Between pixels
    interpolation smooths noise, some dB of it: compare with images that were registered too. Of a
    batch, match examples first (`metrics.assignment`).

    Args:
      max_shift: pixels in each direction. >= 0. Turns go up to a quarter of a radian, scales to
        a fifth.
      data_range: largest possible value minus the smallest. > 0.

    Raises:
      ValueError: shapes differ or are of no image, or a setting is out of range.

    Source: the metric of breaching (github.com/JonasGeiping/breaching), with its search by Adam
    replaced.
    """
    _validate.non_negative_int(max_shift=max_shift)
    x, y = _pair(found, truth, data_range)
    height, width, _ = x.shape
    centre = jnp.asarray([(height - 1) / 2, (width - 1) / 2], jnp.float32)
    places = jnp.asarray(np.mgrid[:height, :width], jnp.float32)

    def gap(move: jax.Array) -> jax.Array:
        down, right = places - centre[:, None, None]
        turn, scale = move[2], jnp.exp(move[3])
        rows = centre[0] + move[0] + scale * (jnp.cos(turn) * down - jnp.sin(turn) * right)
        columns = centre[1] + move[1] + scale * (jnp.sin(turn) * down + jnp.cos(turn) * right)
        # Which pixels lie around is no smooth function: its derivative is left out.
        low_row, low_column = jnp.floor(rows), jnp.floor(columns)
        lower, later = rows - low_row, columns - low_column

        def at(i: int, j: int) -> jax.Array:
            r = jnp.clip(low_row.astype(jnp.int32) + i, 0, height - 1)
            c = jnp.clip(low_column.astype(jnp.int32) + j, 0, width - 1)
            return x[r, c]

        lower, later = lower[..., None], later[..., None]
        above = at(0, 0) * (1 - later) + at(0, 1) * later
        below = at(1, 0) * (1 - later) + at(1, 1) * later
        return (above * (1 - lower) + below * lower - y).reshape(-1)

    cost = lambda move: jnp.mean(jnp.square(gap(move)))
    whole = np.arange(-max_shift, max_shift + 1)
    shifts = np.stack(np.meshgrid(whole, whole, indexing="ij"), -1).reshape(-1, 2)
    shifts = shifts[np.argsort(np.abs(shifts).sum(1), kind="stable")]  # of equals the shortest
    starts = jnp.asarray(np.pad(shifts, ((0, 0), (0, 2))), jnp.float32)
    start = starts[jnp.argmin(jax.lax.map(cost, starts))]
    most = jnp.asarray([max_shift, max_shift, _MOST_TURN, _MOST_SCALE], jnp.float32)

    def step(_: Any, state: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        move, least, damping = state
        slopes = jax.jacfwd(gap)(move)
        square = slopes.T @ slopes
        own = jnp.diag(square)
        damped = square + jnp.diag(damping * own + 1e-6 * jnp.max(own) + 1e-30)
        there = jnp.clip(move - jnp.linalg.solve(damped, slopes.T @ gap(move)), -most, most)
        found = cost(there)
        better = found < least
        return (
            jnp.where(better, there, move),
            jnp.where(better, found, least),
            jnp.clip(damping * jnp.where(better, 0.1, 10.0), 1e-6, 1e6),
        )

    begin = (start, cost(start), jnp.asarray(1e-2, jnp.float32))
    _, least, _ = jax.lax.fori_loop(0, _STEPS, step, begin)
    return 20 * math.log10(data_range) - 10 * jnp.log10(least)


class Learnt(NamedTuple):
    """What a network has learnt of images: mean and stddev `[channels]` of their values, `kernels`
    `[3, 3, in, out]` and `biases` `[out]` of its convolutions, `head` of its names for images.
    """

    mean: jax.Array
    stddev: jax.Array
    kernels: tuple[jax.Array, ...]
    biases: tuple[jax.Array, ...]
    head: jax.Array


def learn(
    public: Any,
    key: jax.Array,
    *,
    num_steps: int = 200,
    batch_size: int = 32,
    learning_rate: float = 1e-2,
) -> Learnt:
    """Weights for `learnt_distance`: three small convolutions that learn, in seconds, to tell an
    image among others after it was shifted by up to two pixels, a little blurred, brightened and
    disturbed by noise. Nobody has to say what looks alike, nor what is on it.

    Args:
      public: images `[N, H, W, channels]` that are nobody's secret, N >= 2.
      key: for the weights, batches and what is done to them.
      num_steps: of Adam. batch_size: images to a step, >= 2. learning_rate: > 0.

    Raises:
      ValueError: the key is no typed key, a setting is out of range, there are fewer than two
        images, one has a side under 4 pixels, or a number is not finite.

    Source: Chen et al. (2020), A simple framework for contrastive learning of visual
    representations, arXiv:2002.05709, equation 1, with changes that an eye hardly sees.
    """
    _validate.typed_key(key=key)
    _validate.positive_int(num_steps=num_steps, batch_size=batch_size)
    _validate.positive(learning_rate=learning_rate)
    shape = np.shape(public)
    fits = len(shape) == 4 and shape[0] >= 2 and min(shape[1:3]) >= 4 and shape[3]
    if not fits or batch_size < 2 or not np.isfinite(public).all():
        raise ValueError(
            "Expected batch_size >= 2 and public to be two images or more, [N, height, width, "
            "channels], of finite numbers with sides of 4 pixels at least, got "
            f"batch_size={batch_size} and public of shape {shape}."
        )
    images = jnp.asarray(public, jnp.float32)
    mean, stddev = jnp.mean(images, (0, 1, 2)), jnp.std(images, (0, 1, 2))
    sizes = (shape[3], *_CHANNELS)
    weights_key, head_key, steps_key = jax.random.split(key, 3)
    drawn = [
        jax.random.normal(jax.random.fold_in(weights_key, i), (3, 3, a, b)) * (2 / (9 * a)) ** 0.5
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]
    start = Learnt(
        mean,
        jnp.maximum(stddev, 1e-6),
        tuple(drawn),
        tuple(jnp.zeros(size) for size in _CHANNELS),
        jax.random.normal(head_key, (_CHANNELS[-1], _NAME)) * _CHANNELS[-1] ** -0.5,
    )
    return _train(start, images, steps_key, num_steps, min(batch_size, shape[0]), learning_rate)


def _train(
    start: Learnt,
    images: jax.Array,
    key: jax.Array,
    num_steps: int,
    batch_size: int,
    learning_rate: float,
) -> Learnt:
    rates = learning_rate * 0.5 * (1 + np.cos(np.pi * np.arange(num_steps) / num_steps))

    @jax.jit
    def train(start: Learnt, images: jax.Array, keys: jax.Array) -> Learnt:
        def loss(weights: Any, both: jax.Array) -> jax.Array:
            kernels, biases, head = weights
            learnt = start._replace(kernels=kernels, biases=biases, head=head)
            one, other = names(learnt, both).reshape(2, batch_size, -1)
            alike = jax.nn.log_softmax(one @ other.T / _TEMPERATURE)
            return -jnp.mean(jnp.diag(alike))

        loss = fljax_kernels.loop_friendly(loss, inside_loop=True)

        def step(weights: Any, key: jax.Array) -> tuple[jax.Array, Any]:
            which, *views = jax.random.split(key, 3)
            x = images[jax.random.permutation(which, len(images))[:batch_size]]
            both = jnp.concatenate([_hardly_changed(x, start.stddev, view) for view in views])
            return jax.value_and_grad(loss)(weights, both)

        weights = (start.kernels, start.biases, start.head)
        (kernels, biases, head), _, _ = _descent.adam(step, weights, rates, keys)
        return start._replace(kernels=kernels, biases=biases, head=head)

    return train(start, images, jax.random.split(key, num_steps))


def _hardly_changed(x: jax.Array, stddev: jax.Array, key: jax.Array) -> jax.Array:
    """Images `[N, H, W, channels]`, all shifted alike, each with blur, brightness and noise of its
    own.
    """
    keys = jax.random.split(key, 5)
    each, spread = (len(x), 1, 1, 1), stddev[None, None, None]
    down, right = jax.random.randint(keys[0], (2,), -2, 3)
    x = jnp.roll(x, (down, right), (1, 2))
    around = sum((jnp.roll(x, by, axis) for axis in (1, 2) for by in (-1, 1)), jnp.zeros_like(x))
    share = jax.random.uniform(keys[1], each, maxval=0.8)
    x = (1 - share) * x + share * around / 4
    x = x * jnp.exp(0.2 * jax.random.normal(keys[2], each))
    x = x + 0.2 * spread * jax.random.normal(keys[3], each)
    noise = jax.random.uniform(keys[4], each, maxval=0.3)
    return x + noise * spread * jax.random.normal(jax.random.fold_in(key, 5), x.shape)


def names(learnt: Learnt, images: Any) -> jax.Array:
    """What the network calls each of `images` `[N, H, W, channels]`: `[N, k]`, of length 1. Images
    that look alike have names that are near: `features` for `reconstruction.iip`.
    """
    deep = jnp.mean(_layers(learnt, jnp.asarray(images, jnp.float32))[-1], (1, 2)) @ learnt.head
    return deep / jnp.sqrt(jnp.sum(jnp.square(deep), -1, keepdims=True) + 1e-10)


def feature_prior(learnt: Learnt, public: Any) -> Callable[[jax.Array], jax.Array]:
    """How unusual examples are among images like `public`: a `penalty` for
    `gradient_inversion.invert`, `[..., H, W, channels] -> []`.

    Each image has a mean and a standard deviation over its places, of each channel of each layer of
    the network: the mean of their squares, once centred and scaled by what these are of public
    images. For an image of their kind it is near 1. No batch statistics of the victim are needed.

    Args:
      public: images `[N, H, W, channels]` as `learn` takes them, N >= 2.

    Raises:
      ValueError: public is no such array, or has other channels than those learnt of.

    Source: Yin et al. (2020), Dreaming to distill, arXiv:1912.08795, equation 4 (there by the
    victim's batch normalisation).
    """
    shape = np.shape(public)
    if len(shape) != 4 or shape[0] < 2 or shape[-1] != len(learnt.mean):
        raise ValueError(
            f"Expected public of two images or more, [N, height, width, {len(learnt.mean)}], got "
            f"public of shape {shape}."
        )

    def numbers(images: jax.Array) -> jax.Array:
        """`[N, k]`."""
        each = []
        for layer in _layers(learnt, images):
            mean = jnp.mean(layer, (1, 2))
            variance = jnp.mean(jnp.square(layer - mean[:, None, None]), (1, 2))
            each += [mean, jnp.sqrt(variance + 1e-6)]
        return jnp.concatenate(each, -1)

    seen = jax.jit(numbers)(jnp.asarray(public, jnp.float32))
    usual, spread = jnp.mean(seen, 0), jnp.maximum(jnp.std(seen, 0), 1e-3)

    def penalty(x: jax.Array) -> jax.Array:
        found = numbers(x.reshape(-1, *x.shape[-3:]))
        return jnp.mean(jnp.square((found - usual[None]) / spread[None]))

    return penalty


def learnt_distance(learnt: Learnt, found: Any, truth: Any) -> jax.Array:
    """How unlike two images look to what a network has learnt, `[]`, in [0, 2]: LPIPS' form with
    weights of `learn`.

    At each place of each of three layers the channels become a vector of length 1; squared
    differences are added up over channels, and averaged over places and layers. No channel has a
    weight of its own: nobody here has asked people.

    Raises:
      ValueError: shapes differ, are of no image, or have other channels than those learnt of.

    Source: Zhang et al. (2018), The unreasonable effectiveness of deep features as a perceptual
    metric, arXiv:1801.03924, equation 1 with w = 1.
    """
    x, y = _pair(found, truth, 1.0)
    if x.shape[-1] != len(learnt.mean):
        raise ValueError(
            f"Expected images of {len(learnt.mean)} channels, as learnt of, got found of shape "
            f"{x.shape}."
        )
    each = []
    for layer in _layers(learnt, jnp.stack([x, y])):
        units = layer / jnp.sqrt(jnp.sum(jnp.square(layer), -1, keepdims=True) + 1e-10)
        each.append(jnp.mean(jnp.sum(jnp.square(units[0] - units[1]), -1)))
    return jnp.mean(jnp.stack(each))


def _layers(learnt: Learnt, x: jax.Array) -> list[jax.Array]:
    """What each convolution makes of images `[N, H, W, channels]`."""
    each = lambda values: values[None, None, None]
    x = (x - each(learnt.mean)) / each(learnt.stddev)
    found = []
    for kernel, bias, stride in zip(learnt.kernels, learnt.biases, _STRIDES, strict=True):
        x = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + each(bias))
        found.append(x)
    return found


def _pair(found: Any, truth: Any, data_range: float) -> tuple[jax.Array, jax.Array]:
    """Both as floats. Raises ValueError."""
    _validate.positive(data_range=data_range)
    shape = jnp.shape(found)
    if shape != jnp.shape(truth) or len(shape) != 3 or not all(shape):
        raise ValueError(
            "Expected found and truth to be images [height, width, channels] of one shape, got "
            f"shapes {shape} and {jnp.shape(truth)}."
        )
    return jnp.asarray(found, jnp.float32), jnp.asarray(truth, jnp.float32)
