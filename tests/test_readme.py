"""The README is a promise: its snippets run, its commands parse, its numbers stand in committed
JSON.
"""

import json
import pathlib
import re
import sys
import types

import pytest

from bench import readme
from fljax import cli, testing
from tests import _pages

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs/reference/command_line.md").read_text()


def blocks(language, text=TEXT):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


# Python whose output is shown below it, by its page and its place there.
SNIPPETS = [
    (f"{_pages.name(page)} {place}: {code.splitlines()[0]}", code, shown)
    for page in _pages.PAGES
    for place, (code, shown) in enumerate(
        re.findall(
            r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", page.read_text(), flags=re.DOTALL
        )
    )
]

SLOW = [
    name
    for name, code, _ in SNIPPETS
    if name.startswith("docs/")
    and re.search(r"simulat|jit|optimizer|discrete\.rotate|monte_carlo\.calibrate", code)
]
# `make release-check` runs them too, and `tests/simulation/test_simulate.py` smaller ones.
LONG = [name for name, code, _ in SNIPPETS if name.startswith("README") and "simulate" in code]


def test_every_python_snippet_of_the_readme_shows_what_it_prints():
    assert [code for name, code, _ in SNIPPETS if name.startswith("README")] == blocks("python")


@pytest.mark.release(
    reason="ten seconds each; those of the README are left",
    ids=[
        "docs/howto/after_training.md 0: import jax",
        "docs/howto/after_training.md 1: import numpy as np",
        "docs/howto/from_flower.md 0: import numpy as np",
        "docs/howto/own_data.md 1: import pathlib",
        "docs/howto/publish.md 1: import json",
    ],
)
@pytest.mark.slow(reason="trains for some seconds", ids=SLOW + LONG)
@pytest.mark.parametrize(("code", "shown"), [s[1:] for s in SNIPPETS], ids=[s[0] for s in SNIPPETS])
def test_a_python_snippet_prints_what_is_shown(code, shown, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a run writes its folder
    exec(compile(code, "a snippet", "exec"), {})
    printed = capsys.readouterr().out
    numbers = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
    assert re.sub(numbers, "#", printed) == re.sub(numbers, "#", shown)
    # Another processor may round a training run differently; the third digit of an accuracy may
    # move.
    for ours, theirs in zip(re.findall(numbers, printed), re.findall(numbers, shown), strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=0.03)


@pytest.mark.slow(reason="compiles five programs of a scheme")
def test_the_readmes_own_scheme_keeps_the_contracts_of_all_schemes(monkeypatch):
    code = next(block for block in blocks("python") if "Scheme(" in block)
    module = types.ModuleType("readme_scheme")
    monkeypatch.setitem(sys.modules, "readme_scheme", module)  # where dataclasses look for it
    exec(compile(code.partition("result = ")[0], "README.md", "exec"), module.__dict__)
    assert 25 <= sum(bool(line) for line in code.partition("class Config")[2].splitlines()) <= 40
    report = testing.check_scheme(module.scheme)
    passed = {check.name for check in report.checks if check.outcome == "passed"}
    assert not report.failed and passed >= {"neighbours", "event", "order", "absent", "keys"}


QUICK = ("fljax account", "fljax calibrate", "fljax schemes")


SHOWN = [
    line
    for text in (TEXT, COMMANDS)
    for block in blocks("bash", text)
    for line in block.splitlines()
]


SWEEPS = pytest.mark.slow(reason="fifty whole accounts; tests/test_cli.py sweeps over few")


@pytest.mark.release(
    reason="`make release-check` runs it too",
    ids=["fljax account --sweep noise=0.5:4:50 --sampling-prob 0.01 --steps 1000   # CSV and plot"],
)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(line, marks=SWEEPS if "--sweep" in line else ())
        for line in sorted({line for line in SHOWN if line.startswith(QUICK)})
    ],
)
def test_a_quick_command_of_the_readme_works(command, tmp_path, capsys):
    argv = command.split("#")[0].split()[1:]
    if argv[0] != "schemes":
        argv += ["--cache-dir", str(tmp_path)]
    if "--sweep" in argv:
        argv += ["--output", str(tmp_path / "sweep.csv")]
    assert cli.main(argv) == 0
    assert capsys.readouterr().out


def test_the_commands_for_set_up_are_targets_of_the_makefile():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"^make (\w+)", TEXT, flags=re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_every_measured_number_comes_from_committed_json():
    for name, table in readme.tables().items():
        marked = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", TEXT, flags=re.DOTALL)
        assert marked is not None, f"README.md lacks the table {name}"
        assert marked.group(1) == table, (
            f"README.md is older than bench/results: python -m bench.readme {name}"
        )


@pytest.mark.parametrize("page", readme.PAGES)
def test_so_does_every_measured_number_in_the_tables_of_other_pages(page):
    text = (ROOT / page).read_text()
    for name, table in readme.tables(page).items():
        assert f"<!-- {name} -->\n{table}\n<!-- end -->" in text, (
            f"{page} is older than bench/results"
        )


def test_the_demo_met_its_promise_in_the_committed_runs():
    for row in json.loads((ROOT / "bench/results/demo-cpu.json").read_text())["rows"]:
        assert row["accuracy"] >= 0.85
        assert row["epsilon"] <= 8
        assert row["delta"] <= 1 / row["num_units"]
        assert row["wall_s"] < 90
