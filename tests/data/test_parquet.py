"""Parquet and saved `datasets`: written by pyarrow, read as they were."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from fljax import data
from fljax.data.sources.tables import Columns

pa = pytest.importorskip("pyarrow", reason="extra parquet")


def parquet(path, columns, metadata=None):
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, path)


def png(value):
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 3), value, np.uint8)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": "x.png"}


def test_numbers_are_features_and_files_named_test_are_held_out(tmp_path):
    columns = {"height": [1.5, 2.5, 3.5], "label": ["b", "a", "b"], "who": ["u", "v", "u"]}
    parquet(tmp_path / "data" / "train-0.parquet", {**columns, "width": [1, 2, 3]})
    parquet(tmp_path / "data" / "train-1.parquet", {**columns, "width": [4, 5, 6]})
    parquet(tmp_path / "data" / "test-0.parquet", {**columns, "width": [7, 8, 9]})
    found = data.load(f"hf:{tmp_path}", Columns(client="who"))
    assert found.feature_names == ("height", "width") and found.class_names == ("a", "b")
    assert found.train["x"].tolist() == [
        [1.5, 1],
        [2.5, 2],
        [3.5, 3],
        [1.5, 4],
        [2.5, 5],
        [3.5, 6],
    ]
    assert found.test["x"][:, 1].tolist() == [7, 8, 9] and found.test["y"].tolist() == [1, 0, 1]
    assert found.train["who"].tolist() == ["u", "v", "u"] * 2


def test_images_and_names_of_classes_come_as_datasets_saves_them(tmp_path):
    features = {"label": {"names": ["zebra", "ant", "cow"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": [png(v) for v in range(0, 60, 10)], "label": [0, 1, 0, 1, 0, 1]})
    folder = tmp_path / "saved" / "train"
    folder.mkdir(parents=True)
    table = table.replace_schema_metadata(metadata)
    path = str(folder / "data-00000-of-00001.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found = data.load(f"hf:{tmp_path / 'saved'}")
    # Numbers stay what they are, whatever the alphabet says of their names.
    assert found.class_names == ("zebra", "ant", "cow") and found.num_classes == 3
    assert found.train["x"].shape[1:] == (2, 3, 1) and len(found.test["y"]) == 2
    values = np.concatenate([found.train["x"], found.test["x"]])[:, 0, 0, 0] * 255
    assert sorted(values.round().astype(int).tolist()) == list(range(0, 60, 10))


def test_lists_of_one_length_are_one_array(tmp_path):
    rows = np.arange(24).reshape(6, 2, 2).tolist()
    parquet(tmp_path / "all.parquet", {"pixels": rows, "label": [0, 1] * 3})
    found = data.load(f"hf:{tmp_path}")
    assert found.train["x"].shape == (4, 2, 2)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": [1.0, None, 3.0], "label": [0, 1, 0]}, "in column 'x', row 1"),
        ({"x": [1.0, 2.0, 3.0]}, "to have the column 'label', got"),
        ({"text": ["a", "b", "c"], "x": [1, 2, 3], "label": [0, 1, 0]}, r"got \['text'\]"),
        ({"x": [[1.0], [1.0, 2.0], [1.0]], "label": [0, 1, 0]}, "lists of numbers of one length"),
        ({"x": [float("nan"), 1.0, 2.0], "label": [0, 0, 0]}, "finite"),
    ],
    ids=["missing value", "no label", "text", "ragged", "nan"],
)
def test_what_does_not_fit_is_named(tmp_path, columns, words):
    parquet(tmp_path / "all.parquet", columns)
    with pytest.raises(ValueError, match=words):
        data.load(f"hf:{tmp_path}")


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"x\.parquet to be a whole file"):
        data.load(f"hf:{tmp_path}")


def test_texts_numbers_of_symbols_and_several_targets_are_tasks(tmp_path):
    from fljax.data.sources import tables

    texts = [*["abc"] * 6, "ab"]
    parquet(tmp_path / "t" / "train.parquet", {"text": texts, "who": list("uvuvuvu")})
    found = data.load(f"hf:{tmp_path / 't'}", Columns(client="who", task="tokens", length=3))
    assert found.num_classes == 257 and set(found.train) == {"x", "y", "who"}
    pool = np.concatenate([found.train["y"], found.test["y"]])
    assert sorted(map(bytes, pool.clip(0).astype(np.uint8))) == [b"ab\0", *[b"abc"] * 6]
    ids = [[1, 2, 3, 4], [5, 6], [1, 2, 3, 4]]
    parquet(tmp_path / "i" / "train.parquet", {"text": ids})
    found = data.load(f"hf:{tmp_path / 'i'}", Columns(task="tokens", length=2))
    pool = np.concatenate([found.train["y"], found.test["y"]]).tolist()
    assert sorted(pool) == [[2, 3], [2, 3], [6, -1]] and found.num_classes == 7
    columns = {"h": [1.0, 2, 3], "p": [0, 1, 0], "q": [1, 1, 0]}
    parquet(tmp_path / "m" / "train.parquet", columns)
    found = data.load(f"hf:{tmp_path / 'm'}", tables.Columns("p,q", task="multi_label"))
    assert found.class_names == ("p", "q") and found.train["x"].shape[1] == 1
    found = data.load(f"hf:{tmp_path / 'm'}", tables.Columns("h", task="regression"))
    assert found.train["y"].dtype == np.float32 and found.feature_names == ("p", "q")
    parquet(tmp_path / "bad" / "train.parquet", {"text": ["abc", ""]})
    with pytest.raises(ValueError, match="row 1 of column 'text'"):
        data.load(f"hf:{tmp_path / 'bad'}", Columns(task="tokens"))
