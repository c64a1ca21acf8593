"""kill -9, at any moment, leaves a folder from which the same run comes out."""

import json
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from fljax.simulation.record import folder
from tests._environment import COMPILING

ROOT = pathlib.Path(__file__).parents[2]
# A checkpoint every round, so that most moments are moments of writing one.
FLAGS = [
    "--num-clients",
    "30",
    "--num-rounds",
    "24",
    "--eval-every",
    "10",
    "--checkpoint-every",
    "1",
]
FLAGS += [
    "--sampling-prob",
    "0.3",
    "--seed",
    "0",
    "--model",
    "softmax",
    "--no-baseline",
    "--target-delta",
    "0.01",
]


def process(*args):
    """`fljax simulate` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fljax", "simulate", *args],
        env=COMPILING
        | {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
            "JAX_PLATFORMS": "cpu",
            "PATH": "/usr/bin:/bin",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(child):
    out, _ = child.communicate(timeout=120)
    assert child.returncode == 0, out
    return out


def kill_when(child, happens, limit=120):
    """Kills the process as soon as `happens()`, which is asked every half millisecond."""
    end = time.monotonic() + limit
    while not happens():
        assert child.poll() is None, child.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.0005)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    return child.returncode == -signal.SIGKILL


def half_written(run_dir):
    return list((run_dir / folder.CHECKPOINTS).glob("*orbax-checkpoint-tmp*"))


def lines(run_dir):
    path = run_dir / folder.METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def final_bits(run_dir):
    """Files and, from the last checkpoint, every array of the final state."""
    import orbax.checkpoint as ocp

    steps = sorted(int(p.name) for p in (run_dir / folder.CHECKPOINTS).iterdir())
    with ocp.CheckpointManager(run_dir / folder.CHECKPOINTS) as manager:
        state = manager.restore(
            steps[-1], args=ocp.args.Composite(state=ocp.args.StandardRestore())
        )["state"]
    arrays = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]
    return (
        steps[-1],
        arrays,
        [(run_dir / name).read_bytes() for name in (folder.METRICS, folder.PRIVACY, folder.CONFIG)],
    )


@pytest.mark.release(reason="a minute and more")
@pytest.mark.slow(reason="whole runs in processes of their own")
@pytest.mark.filterwarnings("ignore:.*sharding.*:UserWarning")  # restored without saying where to
def test_a_run_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    reference, run_dir = tmp_path / "reference", tmp_path / "run"
    finish(process(*FLAGS, "--run-dir", str(reference)))
    # Before the first checkpoint, then while one is written, then wherever a random line has been
    # reached.
    some = random.Random(7).randrange(10, 20)
    moments = [
        lambda: (run_dir / folder.CONFIG).exists(),
        lambda: bool(half_written(run_dir)),
        lambda: lines(run_dir) >= some,
    ]
    args, torn, progress = [*FLAGS, "--run-dir", str(run_dir)], 0, []
    for moment in moments:
        assert kill_when(process(*args), moment), "the run ended before it could be killed"
        torn += bool(half_written(run_dir))
        progress.append(lines(run_dir))
        args = ["--resume", str(run_dir)]
    assert progress[0] == 0 and progress[-1] >= some
    out = finish(process(*args))
    assert torn, "no kill came while a checkpoint was being written"
    assert final_bits(run_dir) == final_bits(reference)
    assert "held-out accuracy" in out and (run_dir / folder.REPORT).is_file()
    assert json.loads((run_dir / folder.PRIVACY).read_text())["rounds"] == 24
