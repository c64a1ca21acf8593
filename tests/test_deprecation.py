"""An old name gives what the new one gives, and says so; any other is missing as ever."""

import dataclasses

import pytest

from fljax import _deprecation, schemes
from fljax.cli import simulate
from fljax.local import bounded, item


def test_an_old_path_gives_the_same_object_and_names_the_new_one():
    new = "fljax.local.bounded.BoundedSensitivityCallable"
    message = (
        f"fljax.local.item.BoundedSensitivityCallable is deprecated since fljax 0.1: use {new}."
    )
    with pytest.warns(DeprecationWarning, match=message) as told:
        assert item.BoundedSensitivityCallable is bounded.BoundedSensitivityCallable
    assert told[0].filename == __file__  # where the old name stands, not where the warning is made


def test_a_name_that_was_never_there_is_missing():
    assert not hasattr(item, "nonsense")
    with pytest.raises(AttributeError, match="module 'm' has no attribute 'b'"):
        _deprecation.moved("m", {"a": "math.pi"}, since="1.0")("b")


def test_num_parties_of_silos_is_taken_and_read_as_num_silos_too():
    message = "num_silos is deprecated since .* use num_parties"
    with pytest.warns(DeprecationWarning, match=message) as told:
        config = schemes.higradavg.Config(num_silos=3)
    assert told[0].filename == __file__
    assert config == schemes.higradavg.Config(num_parties=3)
    with pytest.warns(DeprecationWarning, match=message):
        assert dataclasses.replace(config, num_silos=5).num_parties == 5
    with pytest.warns(DeprecationWarning, match=message):
        assert config.num_silos == 3
    with pytest.warns(DeprecationWarning, match="silos is deprecated since .* use parties"):
        assert config.silos == 3


def test_the_command_line_and_files_take_num_silos_too(tmp_path):
    with pytest.warns(DeprecationWarning, match="use num_parties"):
        found, *_ = simulate.parse(["--scheme", "higradavg", "--num-silos", "3"])
    assert found.scheme_config.num_parties == 3
    path = tmp_path / "old.toml"
    path.write_text('[scheme]\nscheme = "higradavg"\nnum_silos = 4\n')
    with pytest.warns(DeprecationWarning, match="use num_parties"):
        found, *_ = simulate.parse([str(path)])
    assert found.scheme_config.num_parties == 4


def test_a_field_of_ones_own_is_no_old_name():
    given = {"num_silos": 3}
    assert _deprecation.renamed(given, ("num_silos", "num_parties")) == given
    assert _deprecation.renamed(given, ("sampling_prob",)) == given
