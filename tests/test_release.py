"""What stands around the code: hooks, hosted runs, citation, security, archives."""

import pathlib
import re
import tomllib

import pytest

import fljax
from fljax import cli
from tests import release

ROOT = pathlib.Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def commands(target):
    """What `make TARGET` runs, without the folder of the environment."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)
    return [line.strip().replace("$(BIN)/", "") for line in found[1].splitlines()]


def test_hooks_run_the_commands_and_the_environment_of_make_lint():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    hooks = re.findall(r"entry: \.venv/bin/(.*)", text)
    # A hook is given files, and formats them; the target takes all of them, and only looks.
    said = [re.sub(r" --check| \.$", "", command) for command in commands("lint")]
    assert [hook.replace(" --force-exclude", "") for hook in hooks] == [
        command.removesuffix(" .") for command in said
    ]
    assert text.count("repo: local") == text.count("repo:") == 1


def test_make_test_all_runs_what_make_lint_runs():
    lines = commands("test") + commands("test-rest")
    for command in commands("lint"):
        assert any(re.match(rf"(@{{ )?{re.escape(command)}(?= &&|$)", line) for line in lines), (
            command
        )


def test_hosted_runs_call_targets_of_the_makefile_on_every_python_that_is_named():
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    runs = re.findall(r"run: (.*)", text)
    assert runs and all(run == "make ${{ matrix.target }}" for run in runs)
    targets = [
        name for found in re.findall(r"target: \[(.*)\]", text) for name in found.split(", ")
    ]
    assert set(targets) == {"lint", "test", "docs", "test-all", "matrix", "release-check"}
    assert all(re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE) for target in targets)
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if " 3." in f" {name}"]
    named = [name for name in named if name.startswith("3.")]
    assert re.findall(r'"(3\.\d+)"', text) == named == ["3.11", "3.12", "3.13"]


def test_the_citation_is_of_this_version_and_licence():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"version: {fljax.__version__}\n" in text
    assert f"license: {PROJECT['license']}\n" in text


def test_what_a_privacy_bug_is_stands_where_hosts_look_for_it():
    text = (ROOT / "SECURITY.md").read_text()
    assert "## What counts as a privacy bug" in text and "erratum" in text
    for path, anchor in re.findall(r"\]\((docs/[\w/]+\.md)#([\w-]+)\)", text):
        heads = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), flags=re.MULTILINE)
        assert anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in heads]


def test_every_command_has_a_smoke_test():
    assert set(release.COMMANDS) == set(cli.COMMANDS)


@pytest.mark.slow(reason="builds both packages twice")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="archives are made from a commit")
def test_a_commit_gives_the_same_bytes_twice(tmp_path):
    epoch = release.commit_time()
    first = release.built(release.exported(tmp_path / "a"), tmp_path / "one", epoch)
    again = release.built(release.exported(tmp_path / "b"), tmp_path / "two", epoch)
    assert first == again
    version = fljax.__version__
    assert set(first) == {
        name
        for package in release.SOURCES
        for name in (f"{package}-{version}-py3-none-any.whl", f"{package}-{version}.tar.gz")
    }
