"""Counts of a run's data, against counting by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from fljax.data import facts, store, subjects
from fljax.data.cohorts import ClientData
from fljax.errors import PrivacyPreconditionError

# Three clients, the last one empty. Subject 9 has two items at client 0 and one at client 1;
# subject 4 one at client 1.
CLIENTS = [np.array([9, 9, 2**30]), np.array([4, 9]), np.array([], np.int64)]
BY_HAND = facts.Facts(3, 5, 3, num_subjects=3, most_clients_of_subject=2, most_items_of_subject=2)


def in_memory(ids):
    examples = {"x": jnp.zeros((6, 2))} | (
        {} if ids is None else {subjects.SUBJECT: jnp.asarray(ids)}
    )
    # Row 3 is nobody's.
    return ClientData(examples, jnp.asarray([[5, 0, 2], [1, 4, -1], [-1, -1, -1]], jnp.int32))


def test_clients_examples_and_subjects_are_counted_in_memory_and_on_disk(tmp_path):
    assert facts.of(in_memory([9, 4, 2**30, 7, 9, 9])) == BY_HAND
    clients = [{"x": np.zeros((ids.size, 2)), subjects.SUBJECT: ids} for ids in CLIENTS]
    assert facts.of(store.write(tmp_path / "store", clients)) == BY_HAND
    assert facts.of(in_memory(None)) == facts.Facts(3, 5, 3)


def test_units_are_those_of_the_claim():
    assert [BY_HAND.num_units(unit) for unit in ("client", "example", "subject")] == [3, 5, 3]
    assert facts.Facts(3, 5, 3).num_units("subject") == 0


def test_an_example_without_a_subject_among_others_is_refused():
    with pytest.raises(PrivacyPreconditionError, match="every example to have a subject"):
        facts.of(in_memory([9, 4, -1, 7, 9, 9]))
