"""Own data from one file: what was written comes back; what is wrong is named by file and line."""

import csv
import json

import numpy as np
import pytest

import fljax
from fljax import data
from fljax.cli import main
from fljax.data.sources.tables import Columns, read_features, read_x
from fljax.simulation.config import DataConfig

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
        (
            lines("a,label", "1,x", "two,x"),
            r"number in line 3 of .*, column 'a', got 'two'\. feature_columns",
        ),
        (
            lines("a,label", "nan,x"),
            r"finite number in line 2 of .*, column 'a', got 'nan'\. missing_value",
        ),
        (lines("a,label", "1e39,x"), r"finite number in line 2 of .*, column 'a', got '1e39'\.$"),
        (
            lines("a,b", "1,2"),
            r"own\.csv to have 'label', or label_column to name another column, got \['a', 'b'\]",
        ),
        (lines("a,a,label", "1,2,x"), r"name each column once, got 'a' twice"),
        (lines("label", "x"), r"to have a column of features, got \['label'\]"),
        (lines("a,label"), r"at least one line below its header, got none"),
        (lines("a,label", "1,x", "2, "), r"value in line 3 of .*, column 'label', got none"),
        (b"", r"to have 'label', or .*, got \[\]"),
        (lines(",a,label", "0,1,x"), r"got none for column 1 \(an index of pandas\?\)"),
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


def shop(tmp_path, *rows):
    """Ages, who smokes, a note and a class, as a spreadsheet writes them."""
    path = tmp_path / "shop.csv"
    path.write_text("\n".join([";age;smoker;note;Risk", *rows]))
    return path


PEOPLE = [
    f"{row};{age};{smoker};-;{risk}"
    for row, (age, smoker, risk) in enumerate(
        [("20", "no", "low"), ("", "yes", "high"), ("130", "no", "low"), ("65", "NA", "high")] * 3
    )
]
FEATURES = "age=20..100,smoker=no|yes"


def test_columns_become_numbers_by_public_bounds_and_values_alone(tmp_path):
    path = shop(tmp_path, *PEOPLE)
    found = data.load(f"csv:{path}", Columns("Risk", features=FEATURES, missing=0.5))
    assert found.feature_names == ("age=20..100", "smoker=no", "smoker=yes")
    assert found.class_names == ("high", "low")
    rows = {tuple(row) for part in (found.train, found.test) for row in part["x"].tolist()}
    # 20 and 130 are moved to the bounds, 65 lies between, and an empty cell is 0.5 or no value.
    assert rows == {(0.0, 1.0, 0.0), (0.5, 0.0, 1.0), (1.0, 1.0, 0.0), (0.5625, 0.0, 0.0)}


@pytest.mark.parametrize(
    ("features", "missing", "message"),
    [
        ("age", None, r"number in line 3 of .*, column 'age', got ''\. missing_value"),
        ("age,smoker", 0.0, r"line 2 of .*'smoker', got 'no'\. feature_columns.*'smoker=no\|\.\.'"),
        ("smoker=no", 0.0, r"one of \['no'\] in line 3 of .*, column 'smoker', got 'yes'"),
        ("smoker=no|yes", None, r"one of \['no', 'yes'\] in line 5 of .*, got 'NA'"),
        ("Age", 0.0, r"to have 'Age', got .*\. Did you mean 'age'\?"),
        ("age=9..1", 0.0, r"COLUMN=LOW\.\.HIGH with LOW < HIGH, got 'age=9\.\.1'"),
        ("age=1..x", 0.0, r"COLUMN=LOW\.\.HIGH"),
        ("age,age", 0.0, r"each feature once, got 'age' twice"),
        ("age,Risk=low|high", 0.0, r"features other than \['Risk'\], got 'Risk'"),
        (None, 0.0, r"an index of pandas"),
    ],
)
def test_a_feature_that_cannot_be_read_is_named_with_what_to_do(
    tmp_path, features, missing, message
):
    path = shop(tmp_path, *PEOPLE)
    with pytest.raises(ValueError, match=message):
        data.load(f"csv:{path}", Columns("Risk", features=features, missing=missing))


def test_a_model_reads_new_tables_as_it_read_the_old_one(tmp_path):
    names = data.load(
        f"csv:{shop(tmp_path, *PEOPLE)}", Columns("Risk", features=FEATURES, missing=0.5)
    ).feature_names
    new = tmp_path / "new.csv"
    new.write_text("smoker,age\nyes,40\n,n/a\n")
    x, labels = read_features(str(new), names, "Risk", ("high", "low"), 0.5)
    assert x.tolist() == [[0.25, 0.0, 1.0], [0.5, 0.0, 0.0]] and labels is None
    with pytest.raises(ValueError, match=r"line 3 of .*new\.csv, column 'age', got 'n/a'"):
        read_features(str(new), names[:1], "Risk", ("high", "low"))


def test_cells_are_told_of_tables_alone():
    with pytest.raises(ValueError, match=r"=none, since it is of csv:FILE or npz:FILE alone"):
        DataConfig(dataset="digits", feature_columns="a")
    with pytest.raises(ValueError, match=r"=none, since it is of csv:FILE alone"):
        DataConfig(dataset="npz:a.npz", missing_value=0.0)
    with pytest.raises(ValueError, match=r"missing_value to be finite"):
        DataConfig(dataset="csv:a.csv", missing_value=float("nan"))


def test_a_file_without_its_prefix_is_understood():
    for name, meant in (("~/my/a.csv", "csv:~/my/a.csv"), ("a.npz", "npz:a.npz")):
        with pytest.raises(ValueError, match=f"Did you mean '{meant}'"):
            DataConfig(dataset=name)


X, Y = np.arange(12.0)[:, None], np.arange(12) % 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"own\.npz to have 'y', got \['x'\]"),
        ({"images": X, "y": Y}, r"to have 'x', or feature_columns .*, got \['images', 'y'\]"),
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


def test_an_array_of_another_name_is_x(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, images=X, y=Y, images_test=X[:2], y_test=Y[:2])
    found = data.load(f"npz:{path}", Columns(features="images"))
    assert np.array_equal(found.train["x"], X) and np.array_equal(found.test["x"], X[:2])
    x, labels = read_x(str(path), "y", ("0", "1"), "images")
    assert np.array_equal(x, X) and np.array_equal(labels, Y)


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
