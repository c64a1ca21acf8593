"""A package that fljax does not know brings a scheme, a data set and a model; `tests/plugin` holds it."""

import importlib
import json
import pathlib
import sys

import numpy as np
import pytest

from fljax import _plugins, cli, data, models, schemes
from fljax.simulation.record import folder

PACKAGE = pathlib.Path(__file__).parent / "plugin"
OWN = ["--scheme", "own_package.mean_gradient", "--dataset", "own_package.parts.rings"]
OWN += ["--model", "own_package.parts.Quadratic", "--seed", "3", "--num-rounds", "6", "--eval-every", "2"]


@pytest.fixture(autouse=True)
def package(monkeypatch):
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.setattr(_plugins, "_REGISTERED", {})
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "own_package"]:
        del sys.modules[name]


def test_the_package_is_short_and_imports_public_names_only():
    text = "\n".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
    assert len(text.splitlines()) < 120
    assert "import _" not in text and "._" not in text


def test_a_run_of_ones_own_scheme_data_and_model_goes_on_to_the_same_bits(tmp_path, monkeypatch, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert cli.main(["simulate", *OWN, "--run-dir", str(whole)]) == 0
    assert "epsilon" in capsys.readouterr().out
    said = json.loads((whole / folder.PRIVACY).read_text())
    assert said["certified"] and said["privacy_unit"] == "client" and said["epsilon"] <= 4.0
    # The same run, stopped after its first checkpoint.
    from fljax.simulation import run

    played = run._rounds

    def stopped(job, take, over, states, *rest, **named):
        def few(states, done):
            if done == 4:
                raise KeyboardInterrupt
            return take(states, done)

        return played(job, few, over, states, *rest, **named)

    monkeypatch.setattr(run, "_rounds", stopped)
    assert cli.main(["simulate", *OWN, "--checkpoint-every", "2", "--run-dir", str(cut)]) != 0
    monkeypatch.setattr(run, "_rounds", played)
    assert cli.main(["simulate", "--resume", str(cut)]) == 0
    ends = [folder.read_metrics(path)[-1] for path in (whole, cut)]
    assert ends[0]["round"] == 6 and ends[0] == ends[1]


def test_what_was_registered_is_listed_with_where_it_came_from(capsys):
    mean_gradient, parts = (importlib.import_module(f"own_package.{name}") for name in ("mean_gradient", "parts"))
    schemes.register("mean_gradient", mean_gradient)
    data.register("rings", parts.rings)
    models.register("quadratic", parts.Quadratic)
    assert schemes.get("mean_gradient") is mean_gradient
    np.testing.assert_array_equal(data.load("rings").train["y"], parts.rings().train["y"])
    assert "quadratic" in models.names()
    assert cli.main(["schemes"]) == 0
    assert "mean_gradient: one clipped mean gradient" in capsys.readouterr().out
    assert schemes.origin("mean_gradient") == "registered by own_package.mean_gradient"


@pytest.mark.filterwarnings("ignore::fljax.accounting.OrderWarning")
def test_an_audit_plays_against_it(tmp_path, capsys):
    args = ["--trials", "300", "--run-dir", str(tmp_path / "audit")]
    assert cli.main(["audit", "--scheme", "own_package.mean_gradient", *args]) == 0
    assert "own_package.mean_gradient" in capsys.readouterr().out


def test_an_entry_point_names_a_scheme(monkeypatch):
    import importlib.metadata as metadata

    entry = metadata.EntryPoint("ours", "own_package.mean_gradient", "fljax.schemes")

    def found(*, group, name=None):
        return [entry] if group == "fljax.schemes" and name in (None, "ours") else []

    monkeypatch.setattr(metadata, "entry_points", found)
    assert "ours" in schemes.names()
    assert schemes.get("ours").SUMMARY.startswith("one clipped mean gradient")
    assert schemes.origin("ours") == "own_package.mean_gradient of an unnamed package"
    broken = metadata.EntryPoint("ours", "own_package.nothing", "fljax.schemes")
    monkeypatch.setattr(metadata, "entry_points", lambda *, group, name=None: [broken])
    with pytest.raises(ValueError, match=r"own_package\.nothing of an unnamed package to be importable"):
        schemes.get("ours")


def test_a_package_that_fails_breaks_nothing_else(monkeypatch, capsys):
    import importlib.metadata as metadata

    from fljax.attacks import rounds

    entry = metadata.EntryPoint("broken", "own_package.raises", "fljax.schemes")
    monkeypatch.setitem(sys.modules, "own_package.raises", None)  # whose import fails
    monkeypatch.setattr(
        metadata, "entry_points", lambda *, group, name=None: [entry] if name in (None, "broken") else []
    )
    assert "broken" in schemes.names() and "broken" not in rounds.promising()
    assert cli.main(["schemes"]) == 0
    out = capsys.readouterr().out
    assert "broken: cannot be loaded." in out and "white_channel: " in out


@pytest.mark.parametrize("name", ["./mnist", "../x", ".x", "a..b", "x.", "a b.c"])
def test_a_path_that_is_no_dotted_name_is_an_unknown_name(name):
    for call in (schemes.get, data.load, lambda name: models.check_name(name=name)):
        with pytest.raises(ValueError, match="to be one of"):
            call(name)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: schemes.register("dp_fedavg", object()), "to have SUMMARY"),
        (lambda: schemes.get("own_package.parts"), "got none of these: make, event, fitted, non_private, SUMMARY"),
        (lambda: schemes.get("own_package.nothing"), "own_package.nothing"),
        (lambda: schemes.get("no_package.scheme"), "got scheme=.no_package"),
        (lambda: schemes.get("dp_fedavgg"), "Did you mean 'dp_fedavg'"),
        (lambda: data.register("digits", lambda: None), "does not use itself, got name='digits'"),
        (lambda: data.register("a/b", lambda: None), "got name='a/b'"),
        (lambda: data.load("own_package.parts.Quadratic"), "argument"),
        (lambda: models.register("", None), "got name=''"),
        (lambda: models.check_name(name="os.path"), "os.path of fljax.models to be a function, got module"),
        (lambda: data.load("json.tool"), "json.tool of fljax.datasets to be a function, got module"),
        (lambda: models.check_name(model="own_package.parts.nothing"), "to have 'nothing'"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(call, told):
    with pytest.raises((ValueError, TypeError), match=told):
        call()
