"""Own data from one file: what was written comes back; what is wrong is named by file and line."""

import csv
import json

import numpy as np
import pytest

import fljax
from fljax import data
from fljax.cli import main
from fljax.data.sources.tables import Columns

WHO = ("ann", "bob", "cem", "dee")


@pytest.fixture
def table(tmp_path):
    """Forty people's readings: two features, a class that they tell, a site and a person."""
    path = tmp_path / "my data" / "readings.csv"
    path.parent.mkdir()
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["height", "site", "ill", "weight", "who"])
        for row in range(40):
            ill = row % 2
            height, weight = rng.normal(3.0 * ill, 1.0, 2)
            writer.writerow([height, WHO[row // 10], ["no", "yes"][ill], weight, row // 2])
    return path


def columns(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in ("height", "ill")}


def test_a_table_comes_back_as_a_dataset(table):
    found = data.load(f"csv:{table}", Columns("ill", "site", "who"))
    assert found.num_classes == 2 and found.name == "readings.csv"
    assert set(found.train) == {"x", "y", "site", "subject"}
    assert found.train["x"].dtype == np.float32 and found.train["x"].shape == (32, 2)
    assert found.train["y"].dtype == np.int32 and found.test["y"].sum() == 4
    written = columns(table)
    heights = np.asarray(written["height"], np.float32)
    classes = {
        h: ["no", "yes"].index(name) for h, name in zip(heights, written["ill"], strict=True)
    }
    for part in (found.train, found.test):
        assert [classes[height] for height in part["x"][:, 0]] == part["y"].tolist()
    assert set(found.train["site"]) == set(WHO)
    seen = np.concatenate([found.train["subject"], found.test["subject"]])
    assert np.array_equal(np.bincount(seen), np.full(20, 2))


def test_held_out_examples_are_the_same_at_each_load_and_a_fifth_of_each_class(table):
    one, two = (data.load(f"csv:{table}", Columns("ill", "site", "who")) for _ in range(2))
    assert all(np.array_equal(one.test[name], two.test[name]) for name in one.test)
    assert np.array_equal(np.bincount(one.test["y"]), [4, 4])


def test_arrays_come_back_with_their_own_held_out_part(tmp_path):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (9, 4, 4, 1)).astype(np.uint8)
    given = {"x": images[:6], "y": np.arange(6) % 3, "site": np.arange(6) // 2}
    held_out = {f"{name}_test": values[:3] for name, values in given.items()}
    np.savez(tmp_path / "images.npz", **given, **held_out)
    found = data.load(f"npz:{tmp_path / 'images.npz'}", Columns(client="site"))
    np.testing.assert_array_equal(found.train["x"], images[:6] / np.float32(255))
    np.testing.assert_array_equal(found.test["y"], [0, 1, 2])
    assert found.num_classes == 3 and found.train["x"].dtype == np.float32


def test_without_a_held_out_part_a_fifth_of_each_class_is_held_out(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(20.0)[:, None], y=np.arange(20) % 2)
    found = data.load(f"npz:{tmp_path / 'a.npz'}")
    assert (len(found.train["y"]), len(found.test["y"])) == (16, 4)


def lines(*texts):
    return ("\n".join(texts) + "\n").encode()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (lines("a,label", "1,x", "2"), r"own\.csv to hold 2 values a line, got 1 in line 3"),
        (lines("a,label", "1,x", "two,x"), r"number in line 3, column 'a', got 'two'"),
        (lines("a,label", "nan,x"), r"finite number in line 2, column 'a', got 'nan'"),
        (lines("a,label", "1e39,x"), r"finite number in line 2, column 'a', got '1e39'"),
        (lines("a,b", "1,2"), r"own\.csv to have 'label', got \['a', 'b'\]"),
        (lines("a,a,label", "1,2,x"), r"name each column once, got 'a' twice"),
        (lines("label", "x"), r"to have a column of features, got \['label'\]"),
        (lines("a,label"), r"at least one line below its header, got none"),
        (b"", r"to have 'label', got \[\]"),
        (
            lines("a,label", "1,-1", "2,0"),
            r"'label' of .* integers in \[0, 1048576\) or text, got -1",
        ),
        (lines("a,label", "1,0", "2,99999999"), r"or text, got 99999999"),
        (lines("a,label", "1,0", "2,1"), r"3 examples of some class, to hold one out, got 2"),
        (b"a,label\n1,\xff\n", r"to be a table in UTF-8"),
        (lines("a,label", '1,"x'), r"to be a table in UTF-8"),
    ],
)
def test_a_bad_table_is_named(tmp_path, raw, message):
    (tmp_path / "own.csv").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        data.load(f"csv:{tmp_path / 'own.csv'}")


X, Y = np.arange(12.0)[:, None], np.arange(12) % 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"own\.npz to have 'y', got \['x'\]"),
        ({"x": X, "y": Y, "x_test": X}, r"to have 'y', got \['x'\]"),
        (
            {"x": X, "y": Y[:5]},
            r"'x' of .*own\.npz to have 5 rows, as the labels have, got shape \[12, 1\]",
        ),
        ({"x": X, "y": np.where(Y, 0.5, 1)}, r"'y' of .* integers or strings"),
        ({"x": np.where(X > 3, np.nan, X), "y": Y}, r"own\.npz .*finite, got nan in row"),
        ({"x": X, "y": Y, "note": np.asarray(["a"] * 12)}, r"own\.npz .*'note'.*hold numbers"),
        ({"x": X.astype(object), "y": Y}, r"whole \.npz file of plain arrays"),
    ],
)
def test_bad_arrays_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        data.load(f"npz:{tmp_path / 'own.npz'}")


def test_a_truncated_a_foreign_and_an_absent_file_are_named(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=X, y=Y)
    whole = path.read_bytes()
    for raw in (whole[: len(whole) // 2], b"no zip at all", b""):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=r"own\.npz to be a whole \.npz file"):
            data.load(f"npz:{path}")
    with pytest.raises(ValueError, match=r"none\.csv to be a file, got none"):
        data.load(f"csv:{tmp_path / 'none.csv'}")


def test_columns_are_for_files_that_have_some():
    with pytest.raises(
        ValueError, match=r"label_column=none, .*got label_column='z' with .*digits"
    ):
        fljax.simulate("dp_fedavg", data="digits", label_column="z", num_rounds=1)


@pytest.mark.slow(reason="a whole run")
def test_a_table_trains_from_the_command_line(table, tmp_path, capsys):
    run_dir = tmp_path / "run"
    flags = ["--dataset", f"csv:{table}", "--label-column", "ill", "--client-column", "site"]
    flags += ["--subject-column", "who", "--model", "softmax", "--num-rounds", "2", "--seed", "0"]
    flags += ["--target-delta", "0.01", "--run-dir", str(run_dir)]
    assert main(["simulate", *flags]) == 0
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["round"] == 2 and 0 <= last["test_accuracy"] <= 1
    assert "unit client, 4 units" in capsys.readouterr().out
