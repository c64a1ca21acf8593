"""Text as symbols: what decodes to the text again, and what is refused."""

import numpy as np
import pytest

from fljax.data import text


def test_bytes_decode_to_the_beginning_of_the_text():
    said = ["hé!", "a longer line"]
    x, y = text.encode(said, text.BYTES, 6, ["0", "1"])
    for row, line in enumerate(said):
        code = line.encode()[:6]
        counted = y[row][y[row] >= 0]
        assert bytes(counted.tolist()) == code
        assert x[row, 0] == 256 and bytes(x[row, 1 : len(code)].tolist()) == code[:-1]
    assert len(text.BYTES) == 257 and text.BYTES[65] == "A"


def test_words_outside_the_vocabulary_are_one_symbol(tmp_path):
    (tmp_path / "words").write_text("the\ncat\n")
    names = text.symbols(str(tmp_path / "words"))
    assert names == ("the", "cat", text.UNKNOWN, text.START)
    x, y = text.encode(["the old cat"], names, 4, ["0"])
    assert y.tolist() == [[0, 2, 1, -1]] and x.tolist() == [[3, 0, 2, 0]]


def test_numbers_are_cut_and_padded():
    found = text.padded([[1, 2, 3, 4, 5], [7, 8]], 3, ["0", "1"])
    assert np.array_equal(found, [[1, 2, 3, 4], [7, 8, -1, -1]])


def test_what_is_no_text_and_no_vocabulary_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"at least one symbol.*in line 7"):
        text.encode(["a", ""], text.BYTES, 4, ["line 6", "line 7"])
    with pytest.raises(ValueError, match=r"two symbols or more.*row 1"):
        text.padded([[1, 2], [3]], 4, ["row 0", "row 1"])
    (tmp_path / "words").write_text("the\nthe\n")
    with pytest.raises(ValueError, match="'the' in line 2"):
        text.symbols(str(tmp_path / "words"))
    with pytest.raises(ValueError, match="file of words"):
        text.symbols(str(tmp_path / "none"))
