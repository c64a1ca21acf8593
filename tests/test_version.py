"""One file holds the version; both packages, as built and as imported, have it from there."""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

import fljax
import fljax_kernels

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("folder", [".", "kernels"])
def test_what_would_be_built_has_the_version_that_is_imported(folder):
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    assert "version" not in project and project["dynamic"] == ["version"]
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "metadata"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / folder,
    )
    assert json.loads(done.stdout)["version"] == fljax.__version__ == fljax_kernels.__version__


def test_the_changelog_goes_by_versions_and_begins_with_this_one():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    sections = [line for line in lines if line.startswith("## ")]
    assert re.fullmatch(
        rf"## {re.escape(fljax.__version__)} \((unreleased|\d{{4}}-\d\d-\d\d)\)", sections[0]
    )
    assert all(re.match(r"## \d+\.\d+\.\d+ \(", line) for line in sections)
    assert max(map(len, lines)) <= 100
