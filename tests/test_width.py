"""Prose is as narrow as code: ruff holds the code to 100 columns, this the documents."""

import pathlib

import pytest

from tests import _pages

ROOT = pathlib.Path(__file__).parents[1]
DOCUMENTS = [
    *_pages.SITE,
    *sorted(path for folder in (".", "bench", "kernels") for path in (ROOT / folder).glob("*.md")),
]


def too_long(text):
    """Lines over 100 columns; a row of a table is as long as its cells."""
    return [line for line in text.splitlines() if len(line) > 100 and not line.startswith("|")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=_pages.name)
def test_lines_of_documents_have_at_most_100_columns(path):
    assert too_long(path.read_text()) == []


def test_a_long_line_is_found():
    assert too_long("short\n" + "x" * 101 + "\n|" + "y" * 200) == ["x" * 101]
