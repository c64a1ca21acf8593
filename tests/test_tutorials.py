"""Tutorials are notebooks kept as text with plots; `make docs` runs their code as it stands."""

import re

import pytest

from tests import _pages

TUTORIALS = sorted(
    set((_pages.ROOT / "docs/tutorials").glob("*.md")) - {_pages.ROOT / "docs/tutorials/index.md"}
)


def cells(path):
    return re.findall(r"```\{code-cell\} python\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_a_notebook_with_plots_and_a_way_on(path):
    text = path.read_text()
    assert text.startswith("---\nfile_format: mystnb\n")
    assert len(re.findall("subplots", "".join(cells(path)))) >= 1
    assert "## Where next" in text


def test_all_that_were_promised_are_there():
    assert len(TUTORIALS) == 8
