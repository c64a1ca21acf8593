"""Images in folders that bear the names of their classes."""

import pathlib
from collections.abc import Iterable

import numpy as np

from fljax.data.dataset import TEST_FRACTION, Dataset, fixed_rng, stratified_split

_ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_GREY = {"1", "L", "LA"}
# What Pillow may take a file for, whatever it is called: other formats start programs.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


def load(name: str) -> Dataset:
    """`FOLDER/CLASS/IMAGE`, or `FOLDER/train/CLASS/IMAGE` and `FOLDER/test/CLASS/IMAGE`.

    Args:
      name: of the folder. Hidden files and files that are no images are passed over.

    Returns:
      A `Dataset`: x float32 `[M, height, width, channels]` in [0, 1], one channel where all images
      are grey, else three; y by the alphabetical order of the classes. Without folders train and
      test a fifth of each class is held out by the fixed rule.

    Raises:
      ValueError: no such folder, no images, or one that cannot be read or has another size; names
        the file. ImportError: pillow is not installed (extra `sim`).
    """
    folder = pathlib.Path(name).expanduser()
    if not folder.is_dir():
        raise ValueError(f"Expected {folder} to be a folder, got none there.")
    apart = all((folder / part).is_dir() for part in ("train", "test"))
    parts = [folder / "train", folder / "test"] if apart else [folder]
    classes = sorted({path.name for part in parts for path in _folders(part)})
    found = [
        (path, number, place)
        for place, part in enumerate(parts)
        for number, label in enumerate(classes)
        for path in _images(part / label)
    ]
    if not found or any(place not in {p for _, _, p in found} for place in range(len(parts))):
        raise ValueError(
            f"Expected {' and '.join(map(str, parts))} to hold folders of images, one a class, got "
            "none."
        )
    x = read([path for path, _, _ in found])
    y = np.asarray([number for _, number, _ in found], np.int32)
    held_out = np.asarray([place for _, _, place in found]) == 1
    if apart:
        train, test = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    else:
        train, test = stratified_split(y, TEST_FRACTION, fixed_rng())
    if not test.size:
        raise ValueError(f"Expected 3 images of some class in {folder}, to hold one out.")
    parts_of = [{"x": x[rows], "y": y[rows]} for rows in (train, test)]
    names = tuple(classes)
    return Dataset(parts_of[0], parts_of[1], len(names), folder.name, class_names=names)


def _folders(path: pathlib.Path) -> list[pathlib.Path]:
    return [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]


def _images(path: pathlib.Path) -> list[pathlib.Path]:
    if not path.is_dir():
        return []
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.suffix.lower() in _ENDINGS and not entry.name.startswith(".")
    )


def read(files: Iterable[object], names: Iterable[str] | None = None) -> np.ndarray:
    """Images as float32 `[M, height, width, channels]` in [0, 1].

    Args:
      files: paths, or open binary files.
      names: what they are called in errors. None: their paths.

    Raises:
      ValueError: one cannot be read, or has another size than the first.
    """
    from PIL import Image

    pictures, modes, size, first = [], set(), None, ""
    opened = list(files)
    for file, name in zip(opened, names or map(str, opened), strict=True):
        try:
            with Image.open(file, formats=_FORMATS) as image:  # type: ignore[arg-type]
                picture = image if image.mode in _GREY | {"RGB"} else image.convert("RGB")
                picture.load()
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as reason:
            raise ValueError(f"Expected {name} to be an image, got: {reason}.") from reason
        if size is None:
            size, first = picture.size, name
        elif picture.size != size:
            raise ValueError(
                f"Expected {name} to be {size[0]} x {size[1]} pixels, as {first} is, got "
                f"{picture.size[0]} x {picture.size[1]}: bring all to one size beforehand."
            )
        modes.add(picture.mode)
        pictures.append(picture)
    mode = "L" if modes <= _GREY else "RGB"
    x = np.stack([np.asarray(picture.convert(mode), np.uint8) for picture in pictures])
    return (x[..., None] if mode == "L" else x).astype(np.float32) / np.float32(255)
