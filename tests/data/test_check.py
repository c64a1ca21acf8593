import jax.numpy as jnp
import numpy as np
import pytest

from fljax.data import check_examples


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
        (broken("y", 2, 5), r"Expected train\['y'\] to be in \[0, num_classes=5\), got 5 in row 2\."),
        (broken("y", 4, -1), r"got -1 in row 4"),
        (broken("y", 0, 1, float), r"Expected train\['y'\] to hold integer labels, got dtype float64"),
        ({**good(), "y": np.zeros(4, int)}, r"Expected train\['y'\] to have as many rows as train\['x'\] \(5\), got 4"),
        (good(0), r"Expected train\['x'\] to hold at least one example, got shape \(0, 3\)"),
        ({**good(), "x": np.float32(1)}, r"Expected train\['x'\] to have a leading axis"),
        ({}, r"Expected train to hold at least one array"),
    ],
    ids=["nan", "inf", "large label", "negative label", "float label", "rows", "empty", "scalar", "nothing"],
)
def test_bad_data_names_array_row_and_rule(examples, message):
    with pytest.raises(ValueError, match=message) as error:
        check_examples(examples, num_classes=5, name="train")
    assert "\n" not in str(error.value)


def test_nan_is_found_in_bfloat16():
    with pytest.raises(ValueError, match=r"examples to be finite, got nan in row 1"):
        check_examples(jnp.array([1.0, jnp.nan], jnp.bfloat16))
