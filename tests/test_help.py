"""Every field that `--help` prints has a sentence of its own."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import textwrap
import typing

import pytest

from fljax import cli, schemes
from fljax.cli import _flags
from fljax.simulation import config

VERBS = ("account", "attack", "audit", "bench", "calibrate", "compare")


def own_sentences(cls):
    """Field -> the string that stands below it in the class that declares it."""
    found = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
        for field, below in zip(body, [*body[1:], None], strict=True):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if is_text and isinstance(below.value.value, str):
                found[field.target.id] = below.value.value
    return found


def given_sentences(cls):
    """Field -> the help that its annotation carries."""
    hints = typing.get_type_hints(cls, include_extras=True)
    extras = {name: vars(extra) for name, hint in hints.items() for extra in _extras(hint)}
    return {name: found["help"] for name, found in extras.items() if found.get("help")}


def _extras(hint):
    return [extra for extra in getattr(hint, "__metadata__", ()) if hasattr(extra, "__dict__")]


def fields_without_a_sentence(cls):
    sentences = own_sentences(cls) | given_sentences(cls)
    hints = typing.get_type_hints(cls)
    return [
        field.name
        for field in dataclasses.fields(cls)
        if not dataclasses.is_dataclass(hints[field.name])
        and not sentences.get(field.name, "").strip().endswith((".", ")"))
    ]


@pytest.mark.parametrize("name", schemes.NAMES)
def test_every_number_of_a_scheme_has_a_sentence(name):
    assert fields_without_a_sentence(schemes.get(name).Config) == []


@pytest.mark.parametrize("section", config.SECTIONS)
def test_every_setting_of_a_run_has_a_sentence(section):
    assert fields_without_a_sentence(config.SECTIONS[section]) == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_of_a_verb_has_a_sentence(verb):
    assert fields_without_a_sentence(importlib.import_module(f"fljax.cli.{verb}").Options) == []


def test_a_field_without_a_sentence_is_seen():
    @dataclasses.dataclass
    class Config:
        told: int = 1
        """Something is said."""
        silent: int = 2

    assert fields_without_a_sentence(Config) == ["silent"]


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize("verb", ["simulate", "predict", "audit"])
def test_help_is_as_wide_as_the_terminal_and_breaks_lines_there_alone(
    verb, columns, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main([verb, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    for line, below in itertools.pairwise(lines):
        same = len(line) - len(line.lstrip()) == len(below) - len(below.lstrip()) > 2
        if same:  # a sentence goes on where its next word would not have had room
            assert len(line) + 1 + len(below.split()[0]) > columns


def test_help_shows_what_must_be_given_choices_and_defaults():
    @dataclasses.dataclass(frozen=True)
    class Options:
        run: str
        """Whose model."""
        to: typing.Literal["a", "b"] = "b"
        """Where to."""
        limit: int | None = None
        """How many. none: all."""
        keep: bool = True
        """Whether they stay."""

    page = _flags.text(Options, prog="fljax try", description="Tries.")
    assert page.startswith("usage: fljax try RUN [FLAGS]\n\nTries.\n\nflags:\n  -h, --help\n")
    assert "  --to a|b\n      Where to. (default: b)\n" in page
    assert "  --limit INTEGER\n      How many. Left out: all.\n" in page
    assert "  --no-keep\n      Whether they stay." in page
