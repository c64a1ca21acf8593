"""Runs on several OS processes with two devices each, over loopback: the bits of one process, and
clean failures.
"""

import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from fljax.data import store
from fljax.simulation import config as config_lib
from fljax.simulation import run, task
from fljax.simulation.devices import processes
from fljax.simulation.record import checkpoint, folder
from tests.simulation import _one_of_several

ROOT = pathlib.Path(__file__).parents[2]
TWO_DEVICES = "--xla_force_host_platform_device_count=2"
LIMIT_S = 60.0  # what the documentation promises of a failure

pytestmark = pytest.mark.usefixtures("compiled_once")
optimized = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")


class Silent:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        pass

    def stop(self):
        pass


def sections(dataset="digits", **changes):
    settings = {
        "num_rounds": 6,
        "eval_every": 3,
        "checkpoint_every": 2,
        "seed": 3,
        "baseline": False,
        "groups": 12,
    }
    return {
        "scheme": {"scheme": "dp_fedavg", "sampling_prob": 0.25},
        "model": {"model": "softmax"},
        "data": {"num_clients": 40, "dataset": dataset},
        "run": settings | changes,
    }


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    built = task.build(config_lib.from_sections(sections()))
    examples, table = built.dataset.train, np.asarray(built.client_data.indices)
    path = tmp_path_factory.mktemp("disk")
    store.write(
        path / "train", ({k: v[rows[rows >= 0]] for k, v in examples.items()} for rows in table)
    )
    store.write(path / "test", [built.dataset.test])
    return path


@pytest.fixture(scope="module")
def alone(disk, tmp_path_factory, compiled_once):
    """The run on one process and one device."""
    config = config_lib.from_sections(sections(f"disk:{disk}"))
    return run.start(config, tmp_path_factory.mktemp("alone") / "run", Silent(), devices=1).run_dir


@pytest.fixture(scope="module")
def forked():
    """A process that has imported what the processes of a run need, and forks each of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_one_of_several.__name__, "pytest"])
    return context


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Folders of what processes compile, each for the same place among as many."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def launch(tmp_path, forked, programs):
    """`(processes, what, run_dir, sections) -> (processes, their logs of clients read)`."""
    started = []

    def start(count, what, run_dir, given=None, hold_s=0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mine, logs = [], []
        for i in range(count):
            logs.append(tmp_path / f"read-{len(started)}.json")
            words = tmp_path / f"words-{len(started)}"
            kept = programs / f"{i} of {count}"
            given_all = (port, count, i, what, run_dir, given, logs[-1], words, kept, hold_s)
            process = forked.Process(target=_one_of_several.main, args=given_all)
            process.words = words
            process.start()
            mine.append(process)
            started.append(process)
        return mine, logs

    yield start
    for process in started:
        process.kill()
        process.join()


def ended(running):
    """Exit codes and last words."""
    for process in running:
        process.join(timeout=300)
    return [process.exitcode for process in running], [p.words.read_text() for p in running]


def written(run_dir):
    """What must be the same, to the bit. The state, not the newest checkpoint's digest: that covers
    the chain so far, in which an interrupted run has one more checkpoint.
    """
    [step] = checkpoint.committed(run_dir)[-1:]
    assert step == 6
    leaves = jax.tree.leaves_with_path(checkpoint.read(run_dir, step)[0])
    state = [(jax.tree_util.keystr(path), np.asarray(leaf).tobytes()) for path, leaf in leaves]
    return state, [
        (run_dir / name).read_bytes() for name in (folder.CONFIG, folder.METRICS, folder.PRIVACY)
    ]


@optimized
@pytest.mark.slow(reason="runs in processes of their own")
def test_two_processes_write_what_one_writes_and_read_their_own_clients(
    alone, disk, launch, tmp_path
):
    running, logs = launch(2, "start", tmp_path / "run", sections(f"disk:{disk}"))
    codes, words = ended(running)
    assert codes == [0, 0], words
    assert written(tmp_path / "run") == written(alone)
    read = [set(json.loads(log.read_text())) for log in logs]
    everybody = read[0] | read[1]
    # A client that two rounds sample may be dealt to either; in one round it is read once.
    assert all(0 < len(one) < len(everybody) for one in read)


def at_round_3(launch, run_dir, given, count=2):
    """Two processes, or `count`, of which the first waits for three seconds after its third
    round. The others wait for it and compute all the while.
    """
    running, _ = launch(count, "start", run_dir, given, hold_s=3)
    metrics = run_dir / folder.METRICS
    until = time.monotonic() + 240
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") == 3):
        assert time.monotonic() < until and running[0].is_alive()
        time.sleep(0.01)
    return running


@pytest.mark.release(reason="one more process, one more round", ids=["3-2"])
@optimized
@pytest.mark.slow(reason="starts several processes that run, die and go on")
@pytest.mark.parametrize(("count", "killed"), [(2, 0), (3, 2)])
def test_a_killed_process_ends_the_run_and_one_process_goes_on_to_the_same_bits(
    count, killed, alone, disk, launch, tmp_path
):
    running = at_round_3(launch, tmp_path / "run", sections(f"disk:{disk}"), count)
    running[killed].kill()
    since = time.monotonic()
    codes, words = ended(running)
    assert time.monotonic() - since < LIMIT_S
    assert codes.pop(killed) == -signal.SIGKILL and not {0, None} & set(codes)
    if killed != 0:  # where the first one dies, JAX's own runtime may speak before we do
        gone = f"Expected all {count} processes to stay, one of them is gone"
        assert codes[0] == 2 and gone in words[0]
        assert "Traceback" not in words[0]
    run.resume(tmp_path / "run", Silent())
    assert written(tmp_path / "run") == written(alone)


@optimized
@pytest.mark.slow(reason="starts several processes that run, die and go on")
def test_two_interrupted_processes_stop_after_a_checkpoint_and_go_on(alone, disk, launch, tmp_path):
    running = at_round_3(launch, tmp_path / "run", sections(f"disk:{disk}"))
    for process in running:
        process.terminate()
    codes, words = ended(running)
    assert codes == [130, 130], words
    assert all("stopped after 3 of 6 rounds" in word for word in words)
    assert (tmp_path / "run" / folder.CHECKPOINTS / "3").is_dir()
    run.resume(tmp_path / "run", Silent())
    assert written(tmp_path / "run") == written(alone)


class Crash(Exception):
    pass


class Crashing(Silent):
    def round(self, record):
        if record["round"] == 3:
            raise Crash


@optimized
@pytest.mark.slow(reason="starts several processes that run, die and go on")
def test_three_processes_go_on_where_one_was(alone, disk, launch, tmp_path):
    with pytest.raises(Crash):
        run.start(config_lib.from_sections(sections(f"disk:{disk}")), tmp_path / "run", Crashing())
    codes, words = ended(launch(3, "resume", tmp_path / "run")[0])
    assert codes == [0] * 3, words
    assert written(tmp_path / "run") == written(alone)


@optimized
@pytest.mark.slow(reason="starts several processes that run, die and go on")
def test_a_damaged_client_is_named_and_stops_all_processes(disk, launch, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(disk, damaged)
    with (damaged / "train" / "x.bin").open("r+b") as file:
        for client in range(40):  # all: whoever reads first finds one
            file.seek(int(store.open_store(disk / "train").offsets[client]) * 64 * 4)
            file.write(b"\xff")
    codes, words = ended(launch(2, "start", tmp_path / "run", sections(f"disk:{damaged}"))[0])
    assert codes == [2, 2]
    assert any("Expected the bytes of client" in word for word in words), words


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="starts several processes that run, die and go on")
def test_the_command_finds_its_processes_in_slurms_variables(tmp_path):
    """JAX reads them; the first of two processes speaks and writes."""
    command = [sys.executable, "-m", "fljax", "simulate", "--no-baseline", "--model", "softmax"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    # Each compiles for itself: kept are programs of the first alone, which would run ahead.
    env = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": ""}
    running = []
    for place in range(2):
        slurm = {
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_NTASKS": "2",
        }
        slurm |= {"SLURM_PROCID": str(place), "SLURM_LOCALID": str(place)}
        running.append(
            subprocess.Popen(
                [
                    *command,
                    "--distributed",
                    "--num-rounds",
                    "2",
                    "--run-dir",
                    str(tmp_path / "run"),
                ],
                env=env | slurm | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {TWO_DEVICES}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    spoken = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], spoken
    assert "held-out accuracy" in spoken[0][0] and "held-out accuracy" not in spoken[1][0]
    assert (tmp_path / "run" / folder.REPORT).is_file()
    assert "groups = 16" in (tmp_path / "run" / folder.CONFIG).read_text()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (("127.0.0.1:1", None, None), "num_processes=None"),
        (("127.0.0.1:1", 2, 2), "process_id < num_processes=2"),
        (("127.0.0.1:1", 0, 0), "num_processes"),
    ],
)
def test_bad_addresses_are_refused_before_anything_starts(given, word):
    with pytest.raises(ValueError, match=word):
        processes.join(*given)


def test_one_process_alone_has_nobody_to_ask():
    assert processes.alone() and processes.first()
    tree = {"a": np.float32([-0.0, np.nan])}
    assert processes.from_first(tree) is tree and processes.words_from_first("x") == "x"
    assert bool(processes.either(True)) and not bool(processes.either(False))
