"""Text as symbols, by a list that no private text has a part in: bytes, words of a public file, or
the tokens of a public `tokenizer.json`.
"""

import functools
import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fljax import _validate
from fljax.data import targets

UNKNOWN, START = "<unknown>", "<start>"
# All values of a byte, printed where ASCII prints them, then what each text begins with.
BYTES = (*(chr(code) if 32 <= code < 127 else f"0x{code:02x}" for code in range(256)), START)


def symbols(vocabulary: str | None) -> tuple[str, ...]:
    """What numbers of symbols stand for: bytes of UTF-8; or the words of a file, one a line, the
    most frequent ones as a rule, then one for all others. The last begins a text. Of a file that
    ends in .json, which the package tokenizers wrote, its tokens, by their numbers.

    Raises:
      ValueError: no such file, one that is not UTF-8, or a line that is no word or stands twice;
        names the line.
      ImportError: tokenizers is not installed (extra `tokenizers`).
    """
    if vocabulary is None:
        return BYTES
    if _is_tokenizer(vocabulary):
        found = _tokenizer(vocabulary).get_vocab()
        by_number = {number: token for token, number in found.items()}
        return tuple(by_number.get(n, f"<{n}>") for n in range(max(by_number, default=-1) + 1))
    path = _path(vocabulary)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as reason:
        raise ValueError(f"Expected vocabulary {path} to be in UTF-8, got {reason}.") from reason
    known = {UNKNOWN, START}
    for line, word in enumerate(lines, 1):
        if len(word.split()) != 1 or word in known:
            raise ValueError(
                f"Expected {path} to hold a new word in each line, got {word!r} in line {line}."
            )
        known.add(word)
    return (*lines, UNKNOWN, START)


def digest(vocabulary: str) -> str:
    """SHA-256 of the file: tokens of the same names may cut texts otherwise.

    Raises:
      ValueError: no such file.
    """
    return hashlib.sha256(_path(vocabulary).read_bytes()).hexdigest()


def _path(vocabulary: str) -> pathlib.Path:
    path = pathlib.Path(vocabulary).expanduser()
    if not path.is_file():
        what = "tokenizers" if _is_tokenizer(vocabulary) else "words, one a line"
        raise ValueError(f"Expected vocabulary to be a file of {what}, got {path}.")
    return path


def _is_tokenizer(vocabulary: str | None) -> bool:
    return vocabulary is not None and vocabulary.endswith(".json")


@functools.lru_cache(maxsize=1)
def _read(path: pathlib.Path, changed: int) -> Any:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as reason:  # the package raises no type of its own
        first = (str(reason).splitlines() or [""])[0]
        raise ValueError(f"Expected {path} to be a file of tokenizers, got: {first}.") from reason


def _tokenizer(vocabulary: str) -> Any:
    path = _path(vocabulary)
    found = _read(path, path.stat().st_mtime_ns)
    found.no_truncation()
    found.no_padding()
    return found


def _coder(names: tuple[str, ...], vocabulary: str | None) -> Callable[[str], np.ndarray]:
    """What gives the numbers of a text's symbols, int32, after that of the symbol that begins it;
    what a tokenizer puts there, it puts there itself.
    """
    if _is_tokenizer(vocabulary):
        assert vocabulary is not None
        tokenizer = _tokenizer(vocabulary)
        return lambda text: np.asarray(tokenizer.encode(text).ids, np.int32)
    start, unknown = np.asarray([len(names) - 1], np.int32), len(names) - 2
    if names == BYTES:
        return lambda text: np.concatenate(
            [start, np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)]
        )
    places = _places(names)
    return lambda text: np.concatenate(
        [start, np.asarray([places.get(word, unknown) for word in text.split()], np.int32)]
    )


@functools.lru_cache(maxsize=1)
def _places(names: tuple[str, ...]) -> dict[str, int]:
    return {word: place for place, word in enumerate(names[:-2])}


def encode(
    texts: Sequence[str],
    names: tuple[str, ...],
    length: int,
    where: Sequence[str],
    vocabulary: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(x, y), int32 `[M, length]`: the symbols before each, and the symbol itself.

    Of a longer text the first symbols are kept, so that a text is one example; a shorter one is
    padded.

    Args:
      texts: of the examples.
      names: of symbols, from `symbols`.
      length: >= 1.
      where: what each text is called in errors.
      vocabulary: as `symbols` was given it.

    Raises:
      ValueError: a text holds nothing to tell: no symbol, or of a tokenizer that begins texts with
        none of its own, a single one.
    """
    _validate.positive_int(length=length)
    x = np.zeros((len(texts), length), np.int32)
    y = np.full((len(texts), length), targets.PADDING, np.int32)
    code = _coder(names, vocabulary)
    for row, text in enumerate(texts):
        codes = code(text)[: length + 1]
        if codes.size < 2:
            raise ValueError(f"Expected text of at least one symbol, got {text!r} in {where[row]}.")
        x[row, : codes.size - 1] = codes[:-1]
        y[row, : codes.size - 1] = codes[1:]
    return x, y


def pieces(
    text: str, names: tuple[str, ...], length: int, vocabulary: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A long text, cut: (x, y) as of `encode`, of which each piece goes on where the last one
    ended; `[0, length]` where there is nothing to tell.
    """
    _validate.positive_int(length=length)
    codes = _coder(names, vocabulary)(text)
    count = max(0, -(-(codes.size - 1) // length))
    x = np.zeros((count, length), np.int32)
    y = np.full((count, length), targets.PADDING, np.int32)
    x.reshape(-1)[: codes.size - 1] = codes[:-1]
    y.reshape(-1)[: codes.size - 1] = codes[1:]
    return x, y


def padded(lists: Sequence[Sequence[int]], length: int, where: Sequence[str]) -> np.ndarray:
    """Numbers of symbols as int32 `[M, length + 1]`, cut or padded: each but the last tells the
    next.

    Raises:
      ValueError: fewer than two, a number below 0, or no number.
    """
    _validate.positive_int(length=length)
    found = np.full((len(lists), length + 1), targets.PADDING, np.int32)
    for row, numbers in enumerate(lists):
        codes = np.asarray(numbers[: length + 1])
        if codes.ndim != 1 or codes.dtype.kind not in "iu" or codes.size < 2 or codes.min() < 0:
            raise ValueError(
                "Expected two symbols or more, numbers from 0 on, got "
                f"{list(numbers)[:10]!r} in {where[row]}."
            )
        found[row, : codes.size] = codes
    return found
