"""Federated data with subjects that needs no download: it keeps the structure of FEMNIST and
Shakespeare, not the data.

`writers` restyles the bundled real digits as if each subject wrote in their own hand. `roles`
generates text: each subject speaks from a source of their own mixed with one that all share. Both
return a `Dataset` whose examples carry the subject. Differences between methods may show here;
absolute accuracies say nothing about the original data.
"""

import numpy as np

from fljax import _validate
from fljax.data.dataset import Dataset
from fljax.data.sources import bundled
from fljax.data.subjects import SUBJECT

NAMES = ("writers", "roles")
NUM_SYMBOLS = 80
_BLOCK = 16_384  # images that are drawn together
_STICKS = (
    4  # a Dirichlet of small concentration is a few sticks; what is left over is added to the last
)


def writers(
    rng: np.random.Generator,
    *,
    num_subjects: int = 350,
    mean_items: float = 145.0,
    side: int = 8,
) -> Dataset:
    """Real digits by subjects who differ in slant, rotation, size, stroke, contrast, noise and
    favourite digits.

    The base images are split into train and test before anything is drawn, so no test item shares
    its base image with a training item. The test items are by the same subjects, a fifth as many.

    Args:
      rng: consumed.
      num_subjects: >= 1.
      mean_items: mean number of training items of a subject, >= 1; sizes are lognormal (sigma
        0.35), at least one.
      side: height and width of the images in pixels, >= 8.

    Returns:
      `Dataset` with x float32 `[n, side, side, 1]` in [0, 1], y int32 in [0, 10), subject int32.

    Raises:
      ValueError: an argument is out of range.
      ImportError: scikit-learn is not installed (extra `sim`).
    """
    _validate.positive_int(num_subjects=num_subjects, side=side)
    if side < 8:
        raise ValueError(f"Expected side >= 8, got side={side}.")
    base = bundled.digits()
    sizes = _sizes(rng, num_subjects, mean_items, sigma=0.35)
    favourites = rng.dirichlet(np.full(base.num_classes, 5.0), size=num_subjects)
    style = {
        "shear": rng.uniform(-0.3, 0.3, num_subjects),
        "angle": rng.uniform(-np.pi / 12, np.pi / 12, num_subjects),
        "scale": rng.uniform(0.85, 1.15, num_subjects),
        "stroke": rng.uniform(0.7, 1.5, num_subjects),
        "contrast": rng.uniform(0.7, 1.0, num_subjects),
        "noise": rng.uniform(0.0, 0.08, num_subjects),
    }

    def styled(split: dict[str, np.ndarray], sizes: np.ndarray) -> dict[str, np.ndarray]:
        subject = np.repeat(np.arange(num_subjects, dtype=np.int32), sizes)
        # Inverse of each writer's cumulative class chances, then any base image of that class.
        thresholds = np.cumsum(favourites, axis=1)[subject, :-1]
        labels = (rng.random(subject.size)[:, None] > thresholds).sum(axis=1).astype(np.int32)
        members = [np.flatnonzero(split["y"] == label) for label in range(base.num_classes)]
        picks = np.array([members[label][rng.integers(members[label].size)] for label in labels])
        x = np.empty((subject.size, side, side, 1), np.float32)
        for first in range(0, subject.size, _BLOCK):  # of the paper's size it fits no memory whole
            here = slice(first, first + _BLOCK)
            own = {name: values[subject[here]] for name, values in style.items()}
            images = split["x"][picks[here], :, :, 0]
            ink = _warp(images, side, own["shear"], own["angle"], own["scale"])
            column = {name: values[:, None, None] for name, values in own.items()}
            ink = column["contrast"] * ink ** (1 / column["stroke"])
            noise = column["noise"] * rng.standard_normal(ink.shape)
            x[here, ..., 0] = np.clip(ink + noise, 0, 1)
        return {"x": x, "y": labels, SUBJECT: subject}

    test_sizes = np.maximum(1, np.round(0.2 * sizes)).astype(np.int64)
    return Dataset(
        styled(base.train, sizes), styled(base.test, test_sizes), base.num_classes, "writers"
    )


def roles(
    rng: np.random.Generator,
    *,
    num_subjects: int = 132,
    mean_items: float = 300.0,
    size_sigma: float = 1.0,
    window: int = 20,
) -> Dataset:
    """Generated text of 80 symbols: predict the next symbol from a window; each subject is a role
    with its own speech.

    All roles share one order-2 Markov source with Zipf marginals. A role follows it with chance 0.7
    and else a source of its own, whose rows are draws of a Dirichlet process around the shared rows
    (concentration 0.1). Windows slide by one symbol. The last fifth of a role's text is for
    testing; no test window overlaps a training window.

    Args:
      rng: consumed.
      num_subjects: >= 1.
      mean_items: mean number of training windows of a role, >= 1; sizes are lognormal, at least
        one.
      size_sigma: spread of the sizes' logarithm. >= 0.
      window: symbols in an x. >= 2.

    Returns:
      `Dataset` with x int32 `[n, window]` in [0, 80), y int32 in [0, 80), subject int32.

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.positive_int(num_subjects=num_subjects, window=window)
    _validate.non_negative(size_sigma=size_sigma)
    if window < 2:
        raise ValueError(f"Expected window >= 2, got window={window}.")
    sizes = _sizes(rng, num_subjects, mean_items, sigma=size_sigma)
    test_sizes = np.maximum(1, np.round(0.25 * sizes)).astype(np.int64)
    text = _speak(rng, num_subjects, int((sizes + test_sizes).max()) + 2 * window)

    def windows(start: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        subject = np.repeat(np.arange(num_subjects, dtype=np.int32), sizes)
        first = (
            np.arange(subject.size) - np.repeat(np.cumsum(sizes) - sizes, sizes) + start[subject]
        )
        x = text[subject[:, None], first[:, None] + np.arange(window)]
        return {"x": x, "y": text[subject, first + window], SUBJECT: subject}

    # Training windows and their labels end at position sizes + window - 1.
    return Dataset(
        windows(np.zeros_like(sizes), sizes),
        windows(sizes + window, test_sizes),
        NUM_SYMBOLS,
        "roles",
    )


def _sizes(
    rng: np.random.Generator, num_subjects: int, mean_items: float, *, sigma: float
) -> np.ndarray:
    """Lognormal sizes with this mean, rounded, at least 1."""
    _validate.positive(mean_items=mean_items)
    if mean_items < 1:
        raise ValueError(f"Expected mean_items >= 1, got mean_items={mean_items!r}.")
    drawn = rng.lognormal(np.log(mean_items) - sigma**2 / 2, sigma, num_subjects)
    return np.maximum(1, np.round(drawn)).astype(np.int64)


def _warp(
    images: np.ndarray, side: int, shear: np.ndarray, angle: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Images `[n, h, w]` sheared, rotated and scaled about their centre, sampled bilinearly on `[n,
    side, side]`.
    """
    num_images, height, width = images.shape
    grid = (np.arange(side) + 0.5) / side - 0.5
    v, u = np.meshgrid(grid, grid, indexing="ij")  # rows, columns, the image being [-0.5, 0.5]^2
    cos, sin = (
        np.cos(angle)[:, None, None] / scale[:, None, None],
        np.sin(angle)[:, None, None] / scale[:, None, None],
    )
    # Where each pixel of the result comes from: the inverse map.
    row = ((sin * u + cos * v) + 0.5) * height - 0.5
    column = ((cos * u - sin * v) + shear[:, None, None] * v + 0.5) * width - 0.5
    # A border of paper: what lies outside reads as 0.
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    row, column = np.clip(row + 1, 0, height + 0.999), np.clip(column + 1, 0, width + 0.999)
    top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
    down, right = row - top, column - left
    n = np.arange(num_images)[:, None, None]
    upper = (1 - right) * padded[n, top, left] + right * padded[n, top, left + 1]
    lower = (1 - right) * padded[n, top + 1, left] + right * padded[n, top + 1, left + 1]
    return (1 - down) * upper + down * lower


def common_speech(
    rng: np.random.Generator,
    *,
    num_texts: int,
    length: int,
    num_subjects: int = 132,
    mean_items: float = 300.0,
    size_sigma: float = 1.0,
) -> np.ndarray:
    """Text of the source that the roles of `roles` share, in which none of them has a part: what a
    model may have read in public before it meets theirs.

    Args:
      rng: as `roles` is given it: the same one has the same source. Consumed.
      num_texts, length: of the texts. >= 1, >= 2.
      num_subjects, mean_items, size_sigma: as `roles` was given them.

    Returns:
      Symbols int32 `[num_texts, length]` in [0, 80).

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.positive_int(num_texts=num_texts, num_subjects=num_subjects)
    _validate.non_negative(size_sigma=size_sigma)
    if length < 2:
        raise ValueError(f"Expected length >= 2, got length={length}.")
    _sizes(rng, num_subjects, mean_items, sigma=size_sigma)  # which `roles` draws first
    zipf, shared = _source(rng)
    rng = rng.spawn(1)[0]  # the numbers that come next are those that roles speak by
    text = np.empty((num_texts, length), np.int32)
    text[:, :2] = rng.choice(NUM_SYMBOLS, size=(num_texts, 2), p=zipf)
    for t in range(2, length):
        context = text[:, t - 2] * NUM_SYMBOLS + text[:, t - 1]
        text[:, t] = _drawn(shared, context, rng.random(num_texts))
    return text


def _source(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(Zipf's law, cumulated chances of the next symbol after each pair)."""
    zipf = 1.0 / np.arange(1, NUM_SYMBOLS + 1)
    zipf /= zipf.sum()
    num_contexts = NUM_SYMBOLS**2
    # Rows around the Zipf law: concentration 4 leaves a handful of likely successors for each pair
    # of symbols.
    rows = np.maximum(rng.standard_gamma(4.0 * zipf, size=(num_contexts, NUM_SYMBOLS)), 1e-12)
    return zipf, np.cumsum(rows / rows.sum(axis=1, keepdims=True), axis=1)


def _drawn(shared: np.ndarray, context: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The symbol after each pair, from a uniform number."""
    return np.minimum((u[..., None] > shared[context]).sum(axis=-1), NUM_SYMBOLS - 1)


def _speak(rng: np.random.Generator, num_subjects: int, length: int) -> np.ndarray:
    """Text int32 `[num_subjects, length]`, all roles advancing one symbol at a time."""
    zipf, shared = _source(rng)
    num_contexts = NUM_SYMBOLS**2

    def draw(context: np.ndarray, u: np.ndarray) -> np.ndarray:
        return _drawn(shared, context, u)

    atoms = np.empty((num_subjects, num_contexts, _STICKS), np.int8)
    for subject in range(num_subjects):
        atoms[subject] = draw(np.arange(num_contexts)[:, None], rng.random((num_contexts, _STICKS)))
    # Stick-breaking at concentration 0.1; one set of sticks for a role serves all its rows.
    breaks = np.append(
        rng.beta(1.0, 0.1, (num_subjects, _STICKS - 1)), np.ones((num_subjects, 1)), axis=1
    )
    left = np.cumprod(np.append(np.ones((num_subjects, 1)), 1 - breaks[:, :-1], axis=1), axis=1)
    sticks = np.cumsum(breaks * left, axis=1)

    who = np.arange(num_subjects)
    text = np.empty((num_subjects, length), np.int32)
    text[:, :2] = rng.choice(NUM_SYMBOLS, size=(num_subjects, 2), p=zipf)
    for t in range(2, length):
        context = text[:, t - 2] * NUM_SYMBOLS + text[:, t - 1]
        u = rng.random((3, num_subjects))
        stick = np.minimum((u[1][:, None] > sticks).sum(axis=1), _STICKS - 1)
        text[:, t] = np.where(u[0] < 0.7, draw(context, u[2]), atoms[who, context, stick])
    return text
