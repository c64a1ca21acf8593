"""One scheme of each family, killed at random and at operations on its files: 0 bits differ from a
run that was not, and no round of it draws its noise for other data.

FLJAX_KILL_POINTS=200 FLJAX_KILL_SEED=1 kills at other operations, and at more of them.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

from fljax import data
from fljax.data import store
from fljax.simulation.record import folder
from tests._environment import COMPILING
from tests.simulation import _killed

ROOT = pathlib.Path(__file__).parents[2]
POINTS = int(os.environ.get("FLJAX_KILL_POINTS", "7"))
SEED = int(os.environ.get("FLJAX_KILL_SEED", "0"))
# Those whose rounds hold what no other's do: rows of clients, files of clients, messages.
ALSO_BY_SIGNAL = ("clients that keep something", _killed.ON_DISK, "a secure sum")


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    path, digits = tmp_path_factory.mktemp("disk"), data.load("digits")
    rows = np.arange(60).reshape(6, 10)
    store.write(path / "train", ({k: v[mine] for k, v in digits.train.items()} for mine in rows))
    store.write(path / "test", [{k: v[:40] for k, v in digits.test.items()}])
    return path


@pytest.fixture(scope="module")
def do(disk):
    """`(**job) -> answer`, of a process that forks for each."""
    with subprocess.Popen(
        [sys.executable, _killed.__file__],
        env=COMPILING
        | {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
            "JAX_PLATFORMS": "cpu",
            "PATH": "/usr/bin:/bin",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def ask(**job):
            process.stdin.write(json.dumps({**job, "disk": str(disk)}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask


def killed_by_signal(do, name, run_dir):
    """A run that is killed as it begins, in the middle, and at any time; and then comes to its
    end. How often it was killed.
    """
    rng, kills = random.Random(f"{name} {SEED}"), 0
    early = [{"at": rng.randrange(1, 20)} for _ in range(3)]
    for when in [*early, {"at": rng.randrange(20, 120)}, {"after": rng.uniform(0, 2)}]:
        kills += do(do=name, run_dir=str(run_dir), **when)["status"] == -9
        if (run_dir / folder.FINGERPRINT).exists() and "after" in when:
            words = do(do=name, run_dir=str(run_dir), other_data=True)["words"]
            assert "to go on as it began, got another" in words and "x" in words, words
    answer = do(do=name, run_dir=str(run_dir), at=None)
    assert answer["status"] == 0, answer
    return kills


@pytest.mark.release(
    reason="one more kind of run",
    but=[
        "central, exact noise",
        "clients that keep something",
        "bins and bands",
        "uploads",
    ],
)
@pytest.mark.slow(reason="a run that is killed again and again")
@pytest.mark.parametrize("name", _killed.CASES)
def test_a_run_that_is_killed_anywhere_ends_as_if_it_had_not_been(name, do, tmp_path):
    reference, killed = tmp_path / "reference", tmp_path / "killed"
    if name in ALSO_BY_SIGNAL:
        assert killed_by_signal(do, name, killed) >= 4
        _killed.of_one_secret(killed, reference)
    answer = do(do=name, run_dir=str(reference), points=POINTS, seed=SEED)
    assert answer["status"] == 0 and answer["wrong"] == [], answer
    assert answer["operations"] > 100 and answer["kills"] >= min(POINTS, 100) / 2
    if name in ALSO_BY_SIGNAL:
        assert _killed.bits(killed) == _killed.bits(reference)
    shutil.rmtree(tmp_path)
