"""Runs of each type of task from files of one's own, to what they say of held-out examples."""

import csv
import json
import re

import numpy as np
import pytest

import fljax
from fljax.cli import main

RUN = [
    *("--num-rounds", "2", "--no-baseline", "--seed", "0"),
    *("--target-delta", "0.01", "--noise-multiplier", "0.1"),
]
FREE = [*RUN, "--target-epsilon", "none"]
USUAL = {
    "regression": ("squared", "absolute_error"),
    "binary": ("binary_cross_entropy", "f1"),
    "multi_label": ("binary_cross_entropy", "f1"),
    "tokens": ("next_token", "perplexity"),
}


@pytest.fixture
def table(tmp_path):
    """Ninety rows: a number, a bit, two bits and a text that depend on two features."""
    path = tmp_path / "mine.csv"
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "price", "ill", "red", "big", "text", "who"])
        for row in range(90):
            a, b = rng.normal(size=2)
            bits = [int(a > 0), int(b > 0)]
            writer.writerow([a, b, a - b, ["no", "yes"][bits[0]], *bits, "ab" * (1 + row % 3), row])
    return path


def kept(path, columns):
    """The same table with these columns alone."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    short = path.with_name(f"{columns[-1]}.csv")
    with short.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([row[column] for column in columns] for row in rows)
    return short


COLUMNS = {
    "regression": (["a", "b", "price"], "price"),
    "binary": (["a", "b", "ill"], "ill"),
    "multi_label": (["a", "b", "red", "big"], "red,big"),
    "tokens": (["text"], "text"),
}


@pytest.mark.slow(reason="a whole run of each task")
@pytest.mark.parametrize("task", COLUMNS)
def test_a_table_of_each_task_is_learned_measured_and_predicted(table, tmp_path, capsys, task):
    columns, label = COLUMNS[task]
    path, run = kept(table, columns), tmp_path / "run"
    said = ["--task", task, "--label-column", label, "--num-clients", "10"]
    small = ["--sequence-length", "4", "--cells", "4"] if task == "tokens" else []
    code = main(
        ["simulate", "--dataset", f"csv:{path}", *said, *small, *FREE, "--run-dir", str(run)]
        + ["--json"]
    )
    assert code == 0
    found = json.loads(capsys.readouterr().out)["result"]
    loss, name = USUAL[task]
    assert f'loss = "{loss}"' in (run / "config.toml").read_text()
    assert np.isfinite(found["metrics"][name]) and np.isfinite(found["loss"])
    assert (found["accuracy"] is None) == (task == "regression")
    assert f"{name.replace('_', ' ')} over rounds" in (run / "report.html").read_text()
    assert main(["predict", str(run), f"csv:{path}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["result"]
    assert told["examples"] == 90
    wanted = {
        "regression": {"price"},
        "binary": {"class", "probability"},
        "multi_label": {"red", "big"},
        "tokens": {"symbols", "right", "perplexity"},
    }
    assert set(told["predictions"][0]) == {"row", *wanted[task]}
    assert ("absolute_error" if task == "regression" else "accuracy") in told


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--task", "multi_label", "--label-column", "red,price"], "0 or 1 in line 2.*'price'"),
        (["--task", "regression", "--label-column", "ill"], "finite number in line 2.*'ill'"),
        (["--task", "binary", "--label-column", "price"], "integers or strings|two values"),
        (["--task", "binary", "--label-column", "who"], "two values"),
        (["--task", "regression", "--loss", "cross_entropy"], r"among \['squared'\]"),
        (["--task", "tokens", "--model", "lstm"], r"outputs \[T, symbols\]"),
        (["--task", "tokens", "--vocabulary", "nowhere"], "file of words"),
        (["--task", "guesses"], "task to be one of|Expected task"),
    ],
)
def test_what_does_not_fit_a_task_is_said_in_a_line(table, capsys, flags, words):
    wide = {"tokens": ["text"], "multi_label": ["a", "red", "price"]}
    columns = wide.get(flags[1], ["a", *(["ill"] if "ill" in flags else ["price", "who"])])
    path = kept(table, columns)
    code = main(["simulate", "--dataset", f"csv:{path}", *flags, "--num-clients", "9", *FREE])
    said = capsys.readouterr().err
    assert code == 2 and len(said.splitlines()) == 1
    assert re.search(words, said), said


def test_data_describe_counts_what_a_task_has(table, capsys):
    path = kept(table, ["a", "red", "big"])
    flags = ["--task", "multi_label", "--label-column", "red,big", "--json"]
    assert main(["data", "describe", f"csv:{path}", *flags]) == 0
    found = json.loads(capsys.readouterr().out)["result"]
    assert found["task"] == "multi_label" and set(found["classes"]) == {"red", "big"}


@pytest.mark.slow(reason="a whole run of a task")
def test_arrays_of_ones_own_are_a_task_by_one_setting(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = (x @ np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])).astype(np.float32)
    ended = fljax.simulate(
        data={"x": x, "y": y},
        test_data={"x": x, "y": y},
        task="regression",
        model="softmax",
        num_clients=10,
        num_rounds=2,
        noise_multiplier=0.0,
        target_epsilon=None,
        baseline=False,
        seed=0,
        run_dir=tmp_path / "run",
    )
    assert ended.accuracy is None and set(ended.metrics) == {"absolute_error", "rmse"}
    assert ended.params["logits"]["bias"].shape == (2,)
    assert ended.history[-1].test["rmse"] < ended.history[0].test["rmse"] or ended.rounds == 2


def test_a_metric_may_not_take_the_name_of_a_number_of_the_task(tmp_path):
    x = np.zeros((20, 2), np.float32)
    data = {"x": x, "y": np.arange(20.0)}
    with pytest.raises(ValueError, match=r"identifiers other than.*'rmse'"):
        fljax.simulate(
            data=data,
            test_data=data,
            task="regression",
            num_clients=4,
            metrics={"rmse": lambda params, apply, examples: examples["y"]},
            run_dir=tmp_path / "run",
        )
