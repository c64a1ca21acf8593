"""No test is left out of `make test` without a reason."""

import types

import pytest

from tests import _marks


def item(mark, parameters="a-1"):
    """What pytest hands over of a test with this mark."""
    return types.SimpleNamespace(
        nodeid="test_it",
        callspec=types.SimpleNamespace(id=parameters),
        get_closest_marker=lambda name: mark.mark if mark and mark.name == name else None,
    )


@pytest.mark.parametrize("name", ["slow", "optimized", "release"])
def test_a_mark_without_a_reason_stops_the_collection(name):
    for mark in (getattr(pytest.mark, name), getattr(pytest.mark, name)(reason="")):
        with pytest.raises(pytest.UsageError, match="no reason"):
            _marks.reason(item(mark), name)


def test_a_mark_may_be_for_some_parameters_only():
    mark = pytest.mark.slow(reason="trains", ids=["a-1", "b"])
    assert _marks.reason(item(mark), "slow") == "trains"
    assert _marks.reason(item(mark, "a-11"), "slow") is None
    assert _marks.reason(item(None), "slow") is None


def test_a_mark_may_be_for_all_parameters_but_some():
    mark = pytest.mark.slow(reason="trains", but=["a-1", "b"])
    assert _marks.reason(item(mark), "slow") is None
    assert _marks.reason(item(mark, "a-11"), "slow") == "trains"
