"""`fljax bench`: what it writes, that it times the same work twice, and its errors. No test looks
at a time.
"""

import json
import math
import re

import jax
import numpy as np
import pytest

from fljax import cli
from fljax.cli import _bench

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    """One layer compiles in a fraction of the time."""
    monkeypatch.setattr(_bench, "QUICK_WIDTHS", (12, 10))


def numbers(tree, path=""):
    """Every number of nested JSON, with its path."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from numbers(value, f"{path}.{name}")
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield path, tree


@pytest.mark.slow(reason="runs benchmarks")
def test_quick_prints_a_table_and_writes_numbers(tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert cli.main(["bench", "--quick", "--output", str(path)]) == 0
    out = capsys.readouterr().out
    for word in (
        "GFLOP/s",
        "normals/s",
        "private gradient",
        "clients/s",
        "of the limit",
        "side by side",
        "about",
    ):
        assert word in out
    found = json.loads(path.read_text())
    assert found["quick"] is True and found["machine"]["platform"] == jax.default_backend()
    for name in (
        "matmul",
        "gaussian_noise",
        "private_gradient",
        "round",
        "chunk_size",
        "simulate",
        "wall_s",
    ):
        assert name in found
    for part in ("dp_fedavg", "plain_scan", "products"):
        assert found["round"][part]["repeats"] >= 5
    assert str(found["chunk_size"]["fastest"]) in found["chunk_size"]["clients_per_s"]
    for where, value in numbers(found):
        assert math.isfinite(value) and (value > 0 or where.endswith(".spread")), where


def test_the_table_shows_what_was_measured(tmp_path, capsys, monkeypatch):
    def timed(speed):
        return {
            "median_ms": 2.5,
            "clients_per_s": speed,
            "compile_s": 1.25,
            "spread": 0.25,
            "clients": 1000,
        }

    found = {
        "machine": {"device": "abacus", "platform": "cpu", "cores": 2, "jax": "1.2.3"},
        "model": "MLP 12-10",
        "matmul": {"gflops_per_s": 123.4},
        "gaussian_noise": {"normals_per_s": 5e8},
        "private_gradient": {
            "batch": 512,
            "ratio": 1.25,
            "private": timed(1),
            "non_private": timed(1),
        },
        "round": {
            "dp_fedavg": {**timed(600.0), "share_of_matmul_limit": 0.75},
            "plain_scan": timed(400.0),
            "products": timed(800.0),
        },
        "chunk_size": {"fastest": 8, "chosen": 1, "clients_per_s": {"1": 600.0, "8": 700.0}},
        "simulate": {"how": "scaled", "rounds": 60, "round_ms": 50.0, "estimated_s": 14.4},
    }
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(_bench, "measure", lambda *, quick, say: found)
    path = tmp_path / "bench.json"
    assert cli.main(["bench", "--output", str(path)]) == 0
    assert json.loads(path.read_text()) == found
    out = capsys.readouterr().out
    for words in (
        "abacus, 2 cores",
        "123 GFLOP/s",
        "500 million",
        "1.25x",
        "600 clients/s",
        "75% of the limit",
    ):
        assert words in out
    for words in (
        "plain JAX scan 400",
        "limit 800 clients/s",
        "1: 600/s, 8: 700/s; chosen: 1",
        "about 14 s",
    ):
        assert words in out


def test_the_plain_scan_does_the_work_of_the_round():
    # One batch a client: in which order its examples come makes no difference then.
    task = _bench.make_task((12, 10), 6, least=3, most=_bench.BATCH_SIZE)
    ours = _bench.private_round(task, noise_multiplier=0.0).run()
    plain = _bench.plain_scan(task, noise_multiplier=0.0).run()
    for a, b, start in zip(*map(jax.tree.leaves, (ours, plain, task.params)), strict=True):
        np.testing.assert_allclose(a - start, b - start, atol=1e-6)
        assert float(abs(a - start).max()) > 1e-5


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--fast"], "--fast"),
        (["--output"], "--output"),
        (["--output", "/no/such/folder/bench.json"], "output"),
        (["--output", "/"], "output"),
        (["quickly"], "quickly"),
    ],
    ids=["unknown", "no value", "no folder", "a folder", "positional"],
)
def test_a_bad_flag_costs_one_line(flags, named, capsys):
    assert cli.main(["bench", *flags]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"fljax: error: [^\n]+\n", err) and named in err
