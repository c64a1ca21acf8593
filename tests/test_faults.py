"""The list of planted faults is about code and tests that are there, and none went unseen."""

import json

import pytest

from tests import faults


@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_planted_fault_changes_one_place_and_its_test_is_there(name):
    fault = faults.FAULTS[name]
    assert (faults.ROOT / fault.path).read_text().count(fault.sound) == 1
    path, _, test = fault.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (faults.ROOT / "tests" / path).read_text()


def test_every_planted_fault_was_caught_when_the_list_was_last_run():
    assert json.loads(faults.RESULT.read_text()) == dict.fromkeys(faults.FAULTS, True)
