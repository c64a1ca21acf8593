"""One file holds the version; both packages, as built and as imported, have it from there."""

import json
import pathlib
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


def test_the_changelog_has_a_section_for_the_version():
    assert f"## {fljax.__version__}" in (ROOT / "CHANGELOG.md").read_text()
