"""The documentation site is whole: pages are found, links lead somewhere, what is made of the code
is what the code says. `make docs` builds it, and takes a warning for an error.
"""

import importlib.util
import inspect
import re
import tomllib

import pytest

from bench import _tables
from bench.rounds import demo_epsilons
from fljax import cli, schemes
from tests import _pages, public_api

DOCS = _pages.ROOT / "docs"
_spec = importlib.util.spec_from_file_location("generated", DOCS / "_ext/generated.py")
generated = importlib.util.module_from_spec(_spec)  # an extension of the site
_spec.loader.exec_module(generated)


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def links(path):
    """(page or file, anchor) of each relative link of a page."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
        if "://" not in target:
            where, _, anchor = target.partition("#")
            yield (path.parent / where).resolve() if where else path, anchor


def anchors(path):
    """Of a page's headings, as both GitHub and the site make them."""
    heads = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL), re.M
    )
    return {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", _pages.PAGES, ids=_pages.name)
def test_a_link_leads_to_a_file_and_its_anchor_to_a_heading(path):
    for target, anchor in links(path):
        assert target.exists(), f"{_pages.name(path)} links to {target}"
        assert not anchor or anchor in anchors(target), f"{_pages.name(path)}: #{anchor}"


def listed(path):
    """Pages that the tables of contents of a page name."""
    for block in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), flags=re.DOTALL):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                yield (path.parent / f"{line}.md").resolve()


def test_every_page_stands_once_in_a_table_of_contents():
    found = [page for path in _pages.SITE for page in listed(path)]
    assert sorted(found) == sorted(set(_pages.SITE) - {DOCS / "index.md"})


def test_the_site_is_built_without_a_network():
    text = (DOCS / "conf.py").read_text()
    assert "intersphinx" not in text and "http" not in text
    assert "http" not in (DOCS / "_static/site.css").read_text()


def test_the_demos_plot_is_drawn_from_committed_runs_that_met_their_budgets():
    rows = _tables.rows("demo_epsilons")
    assert (DOCS / "images/demo.svg").read_text() == demo_epsilons.svg(rows)
    assert len(rows) == 3 * len(demo_epsilons.EPSILONS)
    assert all(row["epsilon"] <= row["target_epsilon"] for row in rows)


def test_what_builds_the_site_is_declared():
    project = tomllib.loads((_pages.ROOT / "pyproject.toml").read_text())["project"]
    extra = {re.match(r"[\w-]+", name)[0] for name in project["optional-dependencies"]["docs"]}
    assert extra >= {"fljax", "sphinx", "myst-nb", "furo"}


def test_every_verb_and_its_flags_are_on_the_page_of_commands(capsys):
    page = generated.commands()
    for verb in cli.COMMANDS:
        assert f"## fljax {verb}\n" in page
    assert cli.main(["account", "--help"]) == 0
    section = page.partition("## fljax account\n")[2].partition("\n## ")[0]
    helped = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", capsys.readouterr().out)) - {"--help"}
    shown = set(re.findall(r"^`(--[a-z][\w-]+)` \(", section, flags=re.MULTILINE))
    assert shown <= helped and len(shown) >= 10


def test_every_scheme_and_its_settings_are_on_the_page_of_schemes():
    page = generated.settings()
    for name in schemes.NAMES:
        section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        for field in schemes.get(name).Config.__dataclass_fields__:
            flag = field.replace("_", "-")
            assert f"`--{flag}`" in section or f"`--no-{flag}`" in section, f"{name}: {field}"


def guarantees():
    """(public names, test) of each row of the table of guarantees."""
    text = (DOCS / "guarantees.md").read_text().partition("## Function by function")[2]
    for row in re.findall(r"^\| (`fljax.*) \|$", text, flags=re.MULTILINE):
        names, *_, test = row.split(" | ")
        yield re.findall(r"`([\w.]+)`", names), test.strip("`")


def test_every_public_function_that_promises_something_is_in_the_table_of_guarantees():
    public = public_api.public()
    listed = [name for names, _ in guarantees() for name in names]
    promising = {
        name
        for name, value in public.items()
        if callable(value) and re.search(r"\bGuarantee\b[ (:]", inspect.getdoc(value) or "")
    }
    assert promising <= set(listed) <= set(public)
    assert len(listed) == len(set(listed)) > 50


@pytest.mark.parametrize("test", [test for _, test in guarantees()])
def test_the_test_of_a_guarantee_exists(test):
    path, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (_pages.ROOT / path).read_text(), flags=re.MULTILINE)
