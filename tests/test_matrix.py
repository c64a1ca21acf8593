"""The table of environments is what their runs left, and the README quotes it."""

import json
import pathlib
import re
import tomllib

from tests import matrix

ROOT = pathlib.Path(__file__).parents[1]
ROWS = json.loads(matrix.ROWS.read_text())


def test_the_page_of_environments_is_made_of_the_committed_rows():
    assert matrix.PAGE.read_text() == matrix.HEAD + matrix.table(ROWS)
    assert matrix.badge(ROWS) in " ".join((ROOT / "README.md").read_text().split())


def test_every_python_was_tried_with_the_oldest_and_the_newest_dependencies():
    tried = {
        (row["python"], row["dependencies"])
        for row in ROWS
        if row["what"] == "all extras of the tests"
    }
    pythons, resolutions = {"3.11", "3.12", "3.13"}, {"oldest", "newest"}
    assert tried == {(python, which) for python in pythons for which in resolutions}


def test_no_environment_that_was_tried_failed():
    assert {"fljax-kernels alone", "no extra"} <= {row["what"] for row in ROWS}
    assert [row for row in ROWS if row["failed"]] == []


def test_every_extra_for_users_was_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for_developers = {"test", "docs", "baselines", "peers", "dev", "release"}
    extras = {extra for row in ROWS for extra in re.findall(r"extra (\w+)", row["what"])}
    assert extras == set(project["optional-dependencies"]) - for_developers


def test_a_later_row_takes_the_place_of_an_earlier_one_and_versions_are_numbers():
    old = {"what": "a", "python": "3.11", "dependencies": "newest", "failed": 1, "versions": {}}
    new = old | {"failed": 0}
    other = old | {"python": "3.12"}
    assert matrix.put([old, other], new) == [new, other]
    assert matrix.order("0.10.2") > matrix.order("0.9.9") and matrix.order("3.9") < (3, 10)
