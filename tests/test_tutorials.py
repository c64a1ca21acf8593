"""Tutorials are notebooks kept as text: their code runs as it stands, and each ends with plots."""

import re
import sys
import types

import jax
import matplotlib
import matplotlib.pyplot as plt
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


@pytest.mark.slow(reason="runs a whole tutorial")
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_the_code_of_a_tutorial_runs(path, tmp_path, monkeypatch, capsys):
    if "equinox" in path.read_text():
        pytest.importorskip("equinox")
    monkeypatch.chdir(tmp_path)  # runs write folders
    module = types.ModuleType(path.stem)
    monkeypatch.setitem(sys.modules, path.stem, module)  # where dataclasses look for it
    with matplotlib.rc_context({"backend": "Agg"}), jax.numpy_dtype_promotion("standard"):
        for number, code in enumerate(cells(path)):
            exec(compile(code, f"{path.stem}[{number}]", "exec"), module.__dict__)
        assert plt.get_fignums()
        plt.close("all")
    assert capsys.readouterr().out
