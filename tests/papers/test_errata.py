"""Errata: names are whole, counter-examples show what they say, and the command prints them."""

import json

import pytest

from fljax import cli
from fljax.accounting.shared_noise import printed as shared
from fljax.accounting.subjects import printed as subjects
from fljax.papers import errata

# Figures that were derived apart from this code: (paper, erratum, place) -> as printed, as it is.
DERIVED = {
    ("subject-dp", "E1", 0): (4.0, 9.0727),
    ("subject-dp", "E2", 0): (4.0, 11.986),
    ("subject-dp", "E3", 0): (0.0, 219.535),
    ("subject-dp", "E5", 0): (3.0, 6.0),
    ("subject-dp", "E6", 0): (0.16, 1 - 0.98**8),
    ("subject-dp", "E7", 0): (4.0, 9.0847),
    ("lightdp", "E1", 0): (3.0, 2.153548),
    ("lightdp", "E2", 0): (1e-5, 8.156122e-6),
    ("lightdp", "E2", 1): (1e-5, 3.606895e-5),
    ("lightdp", "E4", 0): (3.0, 58.577014),
    ("lightdp", "E4", 1): (3.0, 10.774566),
    ("lightdp", "E4", 2): (3.0, 2.477877),
    ("lightdp", "E7", 0): (2.571303598e-5, 3.270500582e-3),
    ("lightdp", "E7", 1): (9.9255e-17, 3.2727e-3),
    ("lightdp", "E11", 0): (3.0, 3.233),
    ("lightdp", "E11", 1): (9.0, 11.918),
    ("lightdp", "E12", 0): (48, 37),
    ("lightdp", "E13", 0): (1.0, 1.125),
    ("lightdp", "E15", 0): (0.0, 1 / 6),
    ("lightdp", "E20", 0): (1.0, 14.067271),
    ("wfna", "E10", 0): (0.3, 9.6),
    ("wfna", "E11", 0): (0.0, -0.118371034763),
    ("wfna", "E14", 0): (1.96183104231, float("inf")),
    ("wfna", "E15", 0): (0.25, 0.119273235775),
    ("channel", "E1", 0): (1.0, 1.19239527029),
    ("channel", "E3", 0): (100.0, 50.0),
    ("channel", "E4", 0): (6.9554, 7.286),
    ("channel", "E5", 0): (0.693147180560, 0.549306144334),
    ("channel", "E6", 0): (100.0, 6.37892130134),
    ("bidirectional", "E4", 0): (3.0, 4.98),
    ("bidirectional", "E3", 0): (0.0, 1 / 3),
    ("bidirectional", "E5", 0): (0.0, 0.0353553391),
    ("bidirectional", "E6", 0): (4.65, 6.81),
    ("bidirectional", "E7", 0): (3.0, 6.1045187469),
    ("bidirectional", "E7", 1): (3.0, 42.2492842022),
    ("bidirectional", "E18", 0): (34.37, 35.90),
}
DRAWN = {("bidirectional", "E4"), ("bidirectional", "E3")}  # of a few thousand numbers

SHOWN = [
    pytest.param(paper, erratum, id=f"{paper} {erratum.name}")
    for paper in errata.PAPERS
    for erratum in errata.of(paper)
    if erratum.shows
]


def test_names_count_up_and_reports_name_none_that_is_not_here():
    for paper in errata.PAPERS:
        names = [erratum.name for erratum in errata.of(paper)]
        assert names == [f"E{number}" for number in range(1, len(names) + 1)]
    assert set(subjects.ERRATA) <= {erratum.name for erratum in errata.of("subject-dp")}
    assert set(shared.ERRATA) <= {erratum.name for erratum in errata.of("bidirectional")}


@pytest.mark.parametrize(("paper", "erratum"), SHOWN)
def test_a_counter_example_shows_the_derived_figures(paper, erratum):
    shown = erratum.shows()
    assert any(figure.printed != pytest.approx(figure.holds, rel=1e-3) for figure in shown)
    for place, figure in enumerate(shown):
        if (derived := DERIVED.get((paper, erratum.name, place))) is not None:
            close = 0.05 if (paper, erratum.name) in DRAWN else 1e-4
            assert tuple(figure[1:]) == pytest.approx(derived, rel=close, abs=1e-9)


def test_the_command_prints_them(capsys):
    assert cli.main(["errata", "E4", "--paper", "lightdp", "--run"]) == 0
    out = capsys.readouterr().out
    assert "lightdp E4" in out and "as printed 3, is 58.58" in out and "lightdp E5" not in out
    assert cli.main(["errata", "E21", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["result"]["rows"]
    assert [(row["paper"], row["shown"]) for row in rows] == [("subject-dp", []), ("lightdp", [])]


@pytest.mark.parametrize("arguments", [["E99"], ["E21", "--paper", "channel"], ["4"]])
def test_a_name_that_is_none_is_refused(arguments, capsys):
    assert cli.main(["errata", *arguments]) == 2
    told = capsys.readouterr().err
    assert "Expected the name of an erratum of " in told and "None" not in told
