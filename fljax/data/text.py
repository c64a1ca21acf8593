"""Text as symbols, by a list that no private text has a part in: bytes, or words of a public
file.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from fljax import _validate
from fljax.data import targets

UNKNOWN, START = "<unknown>", "<start>"
# All values of a byte, printed where ASCII prints them, then what each text begins with.
BYTES = (*(chr(code) if 32 <= code < 127 else f"0x{code:02x}" for code in range(256)), START)


def symbols(vocabulary: str | None) -> tuple[str, ...]:
    """What numbers of symbols stand for: bytes of UTF-8; or the words of a file, one a line, the
    most frequent ones as a rule, then one for all others. The last begins a text.

    Raises:
      ValueError: no such file, or a line that is no word or stands twice; names the line.
    """
    if vocabulary is None:
        return BYTES
    path = pathlib.Path(vocabulary).expanduser()
    if not path.is_file():
        raise ValueError(f"Expected vocabulary to be a file of words, one a line, got {path}.")
    found = path.read_text(encoding="utf-8").splitlines()
    known = {UNKNOWN, START}
    for line, word in enumerate(found, 1):
        if len(word.split()) != 1 or word in known:
            raise ValueError(
                f"Expected {path} to hold a new word in each line, got {word!r} in line {line}."
            )
        known.add(word)
    return (*found, UNKNOWN, START)


def encode(
    texts: Sequence[str], names: tuple[str, ...], length: int, where: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(x, y), int32 `[M, length]`: the symbols before each, and the symbol itself.

    Of a longer text the first symbols are kept, so that a text is one example; a shorter one is
    padded.

    Args:
      texts: of the examples.
      names: of symbols, from `symbols`.
      length: >= 1.
      where: what each text is called in errors.

    Raises:
      ValueError: a text holds nothing.
    """
    _validate.positive_int(length=length)
    places = {} if names == BYTES else {word: place for place, word in enumerate(names[:-2])}
    x = np.zeros((len(texts), length), np.int32)
    y = np.full((len(texts), length), targets.PADDING, np.int32)
    for row, text in enumerate(texts):
        if names == BYTES:
            codes = np.frombuffer(text.encode("utf-8")[:length], np.uint8)
        else:
            words = text.split()[:length]
            codes = np.asarray([places.get(word, len(names) - 2) for word in words], np.int32)
        if not codes.size:
            raise ValueError(f"Expected text of at least one symbol, got {text!r} in {where[row]}.")
        x[row, 0] = len(names) - 1
        x[row, 1 : codes.size] = codes[:-1]
        y[row, : codes.size] = codes
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
