"""Folders of text by client, and the tokens of a file of tokenizers."""

import numpy as np
import pytest

from fljax import data
from fljax.data import tables, text
from fljax.data.sources import texts
from fljax.simulation import budget, description, fingerprint, job, predictions, task
from fljax.simulation import config as config_lib

TOKENS = tables.Columns(task="tokens", length=4)
NAMES = text.BYTES


def said(part, client):
    """What a client says in a part, from the bytes of its pieces."""
    rows = part["y"][part["subject"] == client]
    return bytes(rows[rows >= 0].astype(np.uint8).tolist()).decode()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "1.txt").write_text("abcdefghijklmnopqrstuv")
    (tmp_path / "anna" / "2.md").write_text("xyz")
    (tmp_path / "bert.txt").write_text("0123456789" * 4)
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / "picture.png").write_bytes(b"\xff\xfe")
    return tmp_path


def test_files_are_cut_into_pieces_and_the_last_fifth_of_each_is_held_out(folder):
    found = texts.load(str(folder), TOKENS)
    assert (found.task, found.num_classes) == ("tokens", 257)
    assert said(found.train, 0) == "abcdefghijklmnopqrstxyz" and said(found.test, 0) == "uv"
    assert said(found.train, 1) == ("0123456789" * 4)[:32] and said(found.test, 1) == "23456789"
    # Each piece goes on where the last one ended; a file begins with the start.
    first = found.train["x"][:2].tolist()
    assert first == [[256, *b"abc"], [*b"defg"]]


def test_clients_of_train_and_test_are_the_same_by_name(tmp_path):
    for part, whom in (("train", ("b", "c")), ("test", ("a", "b"))):
        for name in whom:
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "x.txt").write_text(f"{part} {name}")
    found = texts.load(str(tmp_path), TOKENS)
    assert [said(found.train, n) for n in range(3)] == ["", "train b", "train c"]
    assert [said(found.test, n) for n in range(3)] == ["test a", "test b", ""]


def test_a_run_takes_the_clients_and_the_task_of_a_folder(folder):
    given = {"dataset": f"text:{folder}", "sequence_length": 4}
    config = config_lib.from_sections({"data": given, "model": {"model": "decoder:tiny"}})
    assert (config.data.task, config.data.client_column) == ("tokens", "subject")
    found, table = task.pool(config.data)
    assert (table >= 0).sum(axis=1).tolist() == [6, 8] and found.num_classes == 257


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "bert.txt").write_bytes(b"\xff"), "bert.txt to be text in UTF-8"),
        (lambda folder: [path.unlink() for path in folder.rglob("*.[tm]*")], "hold files of text"),
        (
            lambda folder: [path.write_text("short") for path in folder.rglob("*.[tm]*")],
            "hold text to hold out, got none",
        ),
    ],
)
def test_a_folder_that_cannot_be_read_is_named(change, message, folder):
    change(folder)
    with pytest.raises(ValueError, match=message):
        texts.load(str(folder), TOKENS)


def test_text_is_told_symbol_by_symbol_and_not_classified(folder):
    with pytest.raises(ValueError, match="task='tokens' for text"):
        texts.load(str(folder), TOKENS._replace(task="classes"))
    with pytest.raises(ValueError, match="to be a folder, got none there"):
        texts.load(str(folder / "none"), TOKENS)


def test_lines_of_shakespeare_by_leaf_are_sequences_whose_end_is_told(tmp_path):
    import json

    users = {name: {"x": ["to be or "], "y": ["n"]} for name in ("hamlet", "ophelia")}
    whole = {"users": list(users), "num_samples": [1, 1], "user_data": users}
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.json").write_text(json.dumps(whole))
    found = data.load(f"leaf:{tmp_path}", TOKENS)
    letters = [data.sources.leaf.ALPHABET[n] for n in found.train["y"][0]]
    assert "".join(letters) == "o be or n" and found.train["x"].shape == (2, 9)


@pytest.fixture
def tokenizer(tmp_path):
    """A small file of tokenizers, and what it makes of a text, by hand."""
    tokenizers = pytest.importorskip("tokenizers", reason="extra `tokenizers` is not installed")
    words = {"<s>": 0, "the": 1, "cat": 2, "sat": 3, "?": 5}  # nothing has the number 4
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made.enable_truncation(2)  # which is not obeyed: sequence_length is
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def test_tokens_are_those_of_the_file_with_what_it_begins_a_text_with(tokenizer):
    names = text.symbols(tokenizer)
    assert names == ("<s>", "the", "cat", "sat", "<4>", "?")
    x, y = text.encode(["the dog sat", "cat"], names, 3, ["0", "1"], tokenizer)
    assert x.tolist() == [[0, 1, 5], [0, 0, 0]] and y.tolist() == [[1, 5, 3], [2, -1, -1]]
    with pytest.raises(ValueError, match="at least one symbol, got '' in row 1"):
        text.encode(["the", ""], names, 3, ["row 0", "row 1"], tokenizer)


def test_a_folder_of_text_becomes_the_tokens_of_a_file(tokenizer, tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        (tmp_path / "texts" / f"{name}.txt").write_text("the cat sat " * 5)
    found = texts.load(str(tmp_path / "texts"), TOKENS._replace(vocabulary=tokenizer, length=3))
    assert found.num_classes == 6 and found.class_names[2] == "cat"
    assert np.array_equal(np.unique(found.train["y"]), [1, 2, 3])


def test_what_is_no_file_of_tokenizers_is_named(tmp_path):
    pytest.importorskip("tokenizers", reason="extra `tokenizers` is not installed")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json to be a file of tokenizers"):
        text.symbols(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="vocabulary to be a file of tokenizers"):
        text.symbols(str(tmp_path / "none.json"))


def test_a_list_of_words_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "words.txt").write_bytes(b"hello\n\xff\n")
    with pytest.raises(ValueError, match=r"vocabulary .*words\.txt to be in UTF-8"):
        text.symbols(str(tmp_path / "words.txt"))


def test_a_claim_names_the_vocabulary_and_a_run_and_its_model_are_held_to_it(folder):
    path = folder / "words.list"
    path.write_text("the\ncat\n")
    given = {"dataset": f"text:{folder}", "sequence_length": 1, "vocabulary": str(path)}
    model = {"model": "token_lstm", "embedding": 2, "cells": [2], "hidden": [2]}
    for name in ("anna/1.txt", "bert.txt"):
        (folder / name).write_text("the dog " * 5)
    sections = {"data": given, "model": model, "run": {"seed": 0, "num_rounds": 1}}
    sections["scheme"] = {"scheme": "dp_fedavg", "noise_multiplier": 9.0}
    config = config_lib.from_sections(sections)
    first = job.prepare(config)
    (said,) = [line for line in budget.statement(first.plan, 1)["not_covered"] if str(path) in line]
    assert "taken to be public" in said
    plain = budget.statement(first.plan._replace(vocabulary=None), 1)["not_covered"]
    assert not any("symbols of" in line for line in plain)
    about = description.of(config, first.task, False)
    assert (
        predictions._symbols(f"text:{folder}", about)[0].shape == first.task.dataset.test["x"].shape
    )
    path.write_text("the\nhat\n")  # which nobody says either: the numbers are the same
    again = job.prepare(config)
    assert fingerprint.changed(first.began_with, again.began_with) == ["vocabulary"]
    with pytest.raises(ValueError, match="as the model was trained with it, got another"):
        predictions._symbols(f"text:{folder}", about)
