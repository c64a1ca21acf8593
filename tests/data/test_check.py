import jax.numpy as jnp
import numpy as np
import pytest

from fljax.data import check_examples, check_partition


def good(rows=5):
    return {"x": np.zeros((rows, 3), np.float32), "y": np.arange(rows, dtype=np.int32)}


def broken(name, row, value, dtype=None):
    examples = good()
    if dtype is not None:
        examples[name] = examples[name].astype(dtype)
    examples[name][row] = value
    return examples


def test_good_examples_pass_and_are_counted():
    assert check_examples(good(), num_classes=5) == 5
    assert check_examples([jnp.ones(2, jnp.bfloat16), jnp.ones((2, 1), bool)]) == 2


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (broken("x", 3, np.nan), r"Expected train\['x'\] to be finite, got nan in row 3\."),
        (broken("x", 1, -np.inf), r"Expected train\['x'\] to be finite, got -inf in row 1\."),
        (
            broken("y", 2, 5),
            r"Expected train\['y'\] to be in \[0, num_classes=5\), got 5 in row 2\.",
        ),
        (broken("y", 4, -1), r"got -1 in row 4"),
        (
            broken("y", 0, 1, float),
            r"Expected train\['y'\] to hold integer labels, got dtype float64",
        ),
        (
            {**good(), "y": np.zeros(4, int)},
            r"Expected train\['y'\] to have as many rows as train\['x'\] \(5\), got 4",
        ),
        (good(0), r"Expected train\['x'\] to hold at least one example, got shape \(0, 3\)"),
        ({**good(), "x": np.float32(1)}, r"Expected train\['x'\] to have a leading axis"),
        ({}, r"Expected train to hold at least one array"),
    ],
    ids=[
        "nan",
        "inf",
        "large label",
        "negative label",
        "float label",
        "rows",
        "empty",
        "scalar",
        "nothing",
    ],
)
def test_bad_data_names_array_row_and_rule(examples, message):
    with pytest.raises(ValueError, match=message) as error:
        check_examples(examples, num_classes=5, name="train")
    assert "\n" not in str(error.value)


def test_nan_is_found_in_bfloat16():
    with pytest.raises(ValueError, match=r"examples to be finite, got nan in row 1"):
        check_examples(jnp.array([1.0, jnp.nan], jnp.bfloat16))


def test_a_record_in_two_places_is_refused_with_its_clients():
    check_partition(np.array([[0, 2, -1], [3, -1, -1], [1, 4, -1]], np.int32), 5)
    check_partition(np.full((2, 3), -1, np.int32), 0)
    with pytest.raises(ValueError, match="row 2 at clients 0 and 2"):
        check_partition(np.array([[0, 2, -1], [3, -1, -1], [1, 2, -1]], np.int32), 5)
    with pytest.raises(ValueError, match="row 1 at clients 1 and 1"):
        check_partition(jnp.array([[0, 2], [1, 1]], jnp.int32), 5)
    with pytest.raises(ValueError, match="num_examples=3, got 3"):
        check_partition(np.array([[0, 3]], np.int32), 3)
    with pytest.raises(ValueError, match=r"int \[num_clients, N\]"):
        check_partition(np.zeros((2, 2)), 3)
