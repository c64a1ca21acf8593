"""An old name gives what the new one gives, and says so; any other is missing as ever."""

import pytest

from fljax import _deprecation
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
