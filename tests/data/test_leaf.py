import json

import numpy as np
import pytest

from fljax.data import load
from fljax.data.sources import leaf
from fljax.data.subjects import subject_ids


def femnist_user(num_items, label=3, value=0.5):
    return {"x": [[value] * 784 for _ in range(num_items)], "y": [label] * num_items}


def content(users):
    return {
        "users": list(users),
        "num_samples": [len(u["y"]) for u in users.values()],
        "user_data": users,
    }


def write(path, data):
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_the_alphabet_has_80_symbols_in_order():
    assert len(leaf.ALPHABET) == 80 and list(leaf.ALPHABET) == sorted(set(leaf.ALPHABET))


def test_femnist_users_become_subjects_also_across_files(tmp_path):
    first = write(
        tmp_path / "a.json",
        content({"w2": femnist_user(2, label=61), "w1": femnist_user(1, label=0)}),
    )
    second = write(tmp_path / "b.json", content({"w2": femnist_user(3, label=7, value=1.0)}))
    data = leaf.read([first, second], task="femnist")
    assert data.subjects == ("w1", "w2") and data.num_classes == 62
    np.testing.assert_array_equal(subject_ids(data.examples), [0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(data.examples["y"], [0, 61, 61, 7, 7, 7])
    assert data.examples["x"].shape == (6, 28, 28, 1) and data.examples["x"].dtype == np.float32
    np.testing.assert_array_equal(data.examples["x"][:, 5, 5, 0], [0.5, 0.5, 0.5, 1, 1, 1])


def test_pixels_are_row_by_row(tmp_path):
    user = {"x": [[i / 784 for i in range(784)]], "y": [1]}
    data = leaf.read([write(tmp_path / "a.json", content({"w": user}))], task="femnist")
    assert data.examples["x"][0, 2, 3, 0] == np.float32((2 * 28 + 3) / 784)


def test_test_files_share_the_ids_of_the_training_files(tmp_path):
    test = write(tmp_path / "test.json", content({"w3": femnist_user(1)}))
    data = leaf.read([test], task="femnist", subjects=("w1", "w2", "w3"))
    np.testing.assert_array_equal(data.examples["subject"], [2])
    with pytest.raises(ValueError, match="among the 1 subjects, got 'w3'"):
        leaf.read([test], task="femnist", subjects=("w1",))


def test_shakespeare_windows_become_positions_in_the_alphabet(tmp_path):
    lines = {"x": ["abc ", "bc z"], "y": ["z", "\n"]}
    path = write(tmp_path / "a.json", {**content({"ROLE": lines}), "hierarchies": ["PLAY"]})
    data = leaf.read([path], task="shakespeare", window=4)
    assert data.num_classes == 80
    assert "".join(leaf.ALPHABET[i] for i in data.examples["x"][1]) == "bc z"
    assert [leaf.ALPHABET[i] for i in data.examples["y"]] == ["z", "\n"]
    assert data.examples["x"].dtype == np.int32


MALFORMED = {
    "not json": ("{", "to be JSON"),
    "a list": ("[1]", "a JSON object, got a list"),
    "no users": ({"num_samples": [], "user_data": {}}, "list 'users', got nothing"),
    "user_data a list": (
        {"users": [], "num_samples": [], "user_data": []},
        "dict 'user_data', got list",
    ),
    "too few counts": (
        {"users": ["w"], "num_samples": [], "user_data": {"w": femnist_user(1)}},
        "each of 1 users.*got 0",
    ),
    "unlisted user": (
        {**content({}), "user_data": {"w": femnist_user(1)}},
        "listed in users, got 'w'",
    ),
    "user without data": (
        {"users": ["w"], "num_samples": [1], "user_data": {}},
        "x and y of user 'w'",
    ),
    "wrong count": (
        {**content({"w": femnist_user(2)}), "num_samples": [3]},
        "num_samples=3 labels of user 'w'.*got 2",
    ),
    "x shorter": (content({"w": {"x": [[0.0] * 784], "y": [1, 1]}}), "same length, in user 'w'"),
    "few pixels": (
        content({"w": {"x": [[0.0] * 783], "y": [1]}}),
        r"784 numbers.*\[1, 783\], in user 'w'",
    ),
    "ragged pixels": (
        content({"w": {"x": [[0.0] * 784, [0.0]], "y": [1, 1]}}),
        "784 numbers, in user 'w'",
    ),
    "bright pixel": (content({"w": femnist_user(1, value=255)}), r"pixels in \[0, 1\], got 255"),
    "nan pixel": (
        content({"w": femnist_user(1, value=float("nan"))}),
        r"pixels in \[0, 1\], got nan",
    ),
    "text label": (content({"w": femnist_user(1, label="a")}), "integer labels y, got 'a'"),
    "label 62": (content({"w": femnist_user(1, label=62)}), r"labels in \[0, 62\), got 62"),
    "no examples": (content({}), "at least one example"),
}


@pytest.mark.parametrize(("data", "message"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_femnist_file_gives_one_line_that_names_it(tmp_path, data, message):
    path = write(tmp_path / "bad.json", data)
    with pytest.raises(ValueError, match=message) as error:
        leaf.read([path], task="femnist")
    assert "\n" not in str(error.value) and "bad.json" in str(error.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"x": ["abc"], "y": ["z"]}, "every x to be text of 4 characters, got 3 characters"),
        ({"x": ["abcd"], "y": ["zz"]}, "every y to be text of 1 characters, got 2 characters"),
        ({"x": [7], "y": ["z"]}, "every x to be text of 4 characters, got int"),
        ({"x": ["ab~d"], "y": ["z"]}, "80-symbol alphabet, got '~'"),
    ],
    ids=range(4),
)
def test_a_malformed_shakespeare_file_gives_one_line_that_names_it(tmp_path, lines, message):
    path = write(tmp_path / "bad.json", content({"ROLE": lines}))
    with pytest.raises(ValueError, match=message) as error:
        leaf.read([path], task="shakespeare", window=4)
    assert (
        "\n" not in str(error.value)
        and "bad.json" in str(error.value)
        and "'ROLE'" in str(error.value)
    )


def test_bad_arguments_name_rule_and_value(tmp_path):
    with pytest.raises(ValueError, match="task='cifar'"):
        leaf.read(["x.json"], task="cifar")
    with pytest.raises(ValueError, match="paths to name at least one"):
        leaf.read([], task="femnist")
    with pytest.raises(ValueError, match="window=0"):
        leaf.read(["x.json"], task="shakespeare", window=0)


def test_a_folder_of_leaf_is_a_data_set_by_name(tmp_path):
    def user(*labels):
        return {"x": [[label / 10] * 784 for label in labels], "y": list(labels)}

    parts = {"train": {"b": user(1, 2), "a": user(3)}, "test": {"c": user(4), "b": user(5)}}
    for part, users in parts.items():
        (tmp_path / part).mkdir()
        sizes = [len(each["y"]) for each in users.values()]
        content = {"users": list(users), "num_samples": sizes, "user_data": users}
        (tmp_path / part / "all.json").write_text(json.dumps(content))
    found = load(f"leaf:{tmp_path}")
    # Users are numbered by the alphabet over both parts: a, b, c.
    whose = {int(y): int(s) for y, s in zip(found.train["y"], found.train["subject"], strict=True)}
    assert whose == {1: 1, 2: 1, 3: 0}
    held = {int(y): int(s) for y, s in zip(found.test["y"], found.test["subject"], strict=True)}
    assert held == {4: 2, 5: 1}
    assert found.train["x"].shape == (3, 28, 28, 1) and found.num_classes == 62
