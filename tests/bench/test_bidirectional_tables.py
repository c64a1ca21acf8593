"""The bidirectional paper's tables: every method in every setting, and no number that was not
measured.
"""

import dataclasses
import math

import pytest

from bench.papers import bidirectional_accuracy
from bench.papers import bidirectional_tables as tables
from fljax import schemes


@pytest.fixture(scope="module")
def rows():
    name = "mlp, breast cancer"
    few = dataclasses.replace(tables.SETTINGS[name].search, num_iterations=100)
    small = tables.SETTINGS[name]._replace(victims=2, search=few, members=40, seeds=1)
    return {row["method"]: row for row in tables.run(name, small, num_steps=500)}


@pytest.mark.slow(reason="makes a small table of the bench")
def test_every_method_has_its_columns(rows):
    assert list(rows) == [*tables.METHODS, tables.BLIND]
    for label, method in tables.METHODS.items():
        row = rows[label]
        assert {
            "search psnr",
            "search mse",
            "search feature_mse",
            "read psnr",
            "asr as sent",
        } <= set(row)
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
        # Only a disguise can be corrected, and only Psi tells features.
        assert ("asr corrected" in row) == (method.secrets is not None)
        assert ("features off Psi" in row) == (method.sends == "triple")


@pytest.mark.slow(reason="makes a small table of the bench")
def test_who_hides_what(rows):
    blind = rows[tables.BLIND]["search psnr"]
    for label in ("FedAvg", "central"):
        assert rows[label]["search psnr"] > blind + 2 and rows[label]["read psnr"] > 60
    for label in ("local", "naive, equation (4)", "paper", "upload_gaussian", "r0_gaussian"):
        assert rows[label]["search psnr"] < blind + 2
    for label in ("naive, equation (4)", "paper"):  # Psi and Phi without noise
        assert rows[label]["read psnr"] > 40 and rows[label]["features off Psi"] < 1e-4
        assert rows[label]["gradient off Psi and Phi"] < 1e-2
    assert rows["upload_gaussian"]["gradient off Psi and Phi"] > 0.9
    for label in ("local", "upload_gaussian", "r0_gaussian"):
        assert rows[label]["read psnr"] < blind + 2


def test_an_accuracy_is_one_that_was_measured_or_none(monkeypatch, tmp_path):
    setting = tables.SETTINGS["ResNet20-GN, digits"]
    assert tables.accuracy(setting, tables.METHODS["upload_gaussian"]) == {}
    known = tables.accuracy(setting, tables.METHODS["central"])
    assert known["accuracy of"] == "central" and known["epsilon"] == 8
    digits = tables.accuracy(tables.SETTINGS["mlp, digits"], tables.METHODS["local"])
    # The most that epsilon 3 at delta 1e-5 allows: half a total variation above one half.
    assert digits["epsilon"] == 3 and 0.6 < digits["ceiling"] < 0.7
    assert "epsilon" not in tables.accuracy(setting, tables.METHODS["FedAvg"])
    monkeypatch.setattr(tables._harness, "RESULTS", tmp_path)
    assert tables.accuracy(setting, tables.METHODS["central"]) == {}


def test_the_papers_figures_are_labelled():
    rows = tables.reported()
    assert len(rows) == 22 and {row["source"] for row in rows} == {"reported, not measured"}
    own = next(
        row for row in rows if row["setting"].startswith("CIFAR10,") and row["method"] == "its own"
    )
    assert own["search psnr"] == 9.22 and own["asr as sent"] == pytest.approx(0.503)


@pytest.mark.parametrize(
    "label", [label for label, method in tables.METHODS.items() if method.secrets is not None]
)
def test_a_disguise_is_that_of_its_accuracy(label):
    method = tables.METHODS[label]
    name, numbers = bidirectional_accuracy.METHODS[method.accuracy]
    config = schemes.get(name).Config(**numbers)
    secrets = method.secrets
    assert secrets.get("law", "dn") == config.scale_law
    assert tuple(secrets.get("scale_range", ())) == config.scale_range
    assert secrets.get("form", "transitional") == config.form
    # Without Psi and Phi there is nothing to recover r with: the mode draws none, whatever the
    # configuration says.
    assert secrets["additive_norm"] == (
        0.0 if method.noise == "r0_gaussian" else config.additive_norm
    )


def test_what_is_not_disguised_has_an_accuracy_of_its_own_name():
    plain = {
        label: method.accuracy for label, method in tables.METHODS.items() if method.secrets is None
    }
    assert plain == {"FedAvg": "none", "central": "central", "local": "local"}
    assert set(plain.values()) <= set(bidirectional_accuracy.METHODS)
