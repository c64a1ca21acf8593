"""CONTRIBUTING is a map: every place that it names is there, and says what the map says it does."""

import pathlib
import re

import pytest

from tests import test_layering

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
MAP = TEXT.partition("## Where do I change")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (?!\*\*|to change|--)(.*?) \| (.*) \|$", MAP, flags=re.MULTILINE)
PATH = r"`((?:fljax|kernels|tests|bench|docs|examples)/[\w./]*|\w+\.(?:md|toml))`"


def places(text):
    """(path, names that are said to be in it) of a text: `path`: `name`, `name`."""
    for path, names in re.findall(rf"{PATH}((?:[:,] `\w+`)*)", text):
        yield path, re.findall(r"`(\w+)`", names)


def is_there(path, name):
    pattern = rf"^(?: *(?:def|class) )?{name}\b(?=[\[(:]| = )"
    return re.search(pattern, (ROOT / path).read_text(), flags=re.MULTILINE)


def test_every_path_is_there():
    found = [path for path, _ in places(TEXT)]
    assert len(found) > 60
    assert [path for path in found if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("wish", "where"), ROWS, ids=[wish for wish, _ in ROWS])
def test_a_row_of_the_map_names_what_is_in_its_files(wish, where):
    assert list(places(where)), where
    for path, names in places(where):
        assert [name for name in names if not is_there(path, name)] == [], path


def test_the_map_leads_where_a_reader_of_the_code_ends_up():
    rows = dict(ROWS)
    assert len(rows) > 40
    # What decides each of these, found by reading: the text that is written there and nowhere else.
    decisive = {
        "a clipping style, or to add one": ('"auto_s"', "fljax/local/clipping.py"),
        "the straggler law": ("def bernoulli(", "fljax/server/stragglers.py"),
        "the report's first card, or another part of it": (
            'f"held-out {what}, {kind}"',
            "fljax/simulation/report/run_page.py",
        ),
        "the Renyi divergence of the subsampled Gaussian": (
            "def poisson_gaussian(",
            "fljax/accounting/renyi/rdp.py",
        ),
    }
    for wish, (text, path) in decisive.items():
        assert text in (ROOT / path).read_text()
        assert path in [place for place, _ in places(rows[wish])], wish


def test_the_layout_says_of_each_room_what_the_layering_test_allows():
    rows = re.findall(r"^\| `fljax/.*$", TEXT.partition("## How to run")[0], flags=re.MULTILINE)
    named = [room for row in rows for room in re.findall(r"`fljax/(\w+)/?`", row.split("|")[1])]
    assert sorted(named) == sorted(set(test_layering.ALLOWED) - {"base"})
    for row in rows:
        for room in re.findall(r"`fljax/(\w+)/?`", row.split("|")[1]):
            said = row.split("|")[3].strip()
            above = set(named[: named.index(room)])
            if said == "all above":
                assert test_layering.ALLOWED[room] == above | {"base"}, room
            elif said == "all above but attacks":
                assert test_layering.ALLOWED[room] == (above - {"attacks"}) | {"base"}, room
