"""A full disk costs one line, and nothing that was written before."""

import os
import resource
import subprocess

import pytest

from fljax import cli
from fljax.simulation.record import folder

FLAGS = [
    "--num-clients",
    "20",
    "--num-rounds",
    "12",
    "--eval-every",
    "6",
    "--checkpoint-every",
    "1",
]
FLAGS += [
    "--seed",
    "0",
    "--model",
    "softmax",
    "--no-baseline",
    "--noise-multiplier",
    "2",
    "--target-epsilon",
    "none",
]
pytestmark = pytest.mark.usefixtures("compiled_once")


def simulate(*args):
    return cli.main(["simulate", *args])


def written(run_dir):
    return [
        (run_dir / name).read_bytes() for name in (folder.CONFIG, folder.METRICS, folder.PRIVACY)
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, compiled_once):
    run_dir = tmp_path_factory.mktemp("full") / "reference"
    assert simulate(*FLAGS, "--run-dir", str(run_dir)) == 0
    return run_dir


def one_line(capsys, run_dir):
    err = capsys.readouterr().err
    assert (
        err.startswith("fljax: error: ")
        and err.count("\n") == 1
        and str(run_dir) in err
        and "full disk" in err
    )


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own with room for a few checkpoints, and the command that enlarges it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=420k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip(
            "mounting a small disk needs root; the test of the file size limit runs instead"
        )
    yield disk, lambda: subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow(reason="whole runs on a disk of their own")
def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(
    capsys, finished, small_disk
):
    disk, enlarge = small_disk
    run_dir = disk / "run"
    (disk / "ballast").write_bytes(bytes(100_000))
    assert simulate(*FLAGS, "--run-dir", str(run_dir)) == 2
    one_line(capsys, run_dir)
    committed = [p.name for p in (run_dir / folder.CHECKPOINTS).iterdir() if p.name.isdigit()]
    assert committed, "the disk was full before the first checkpoint: make it larger"
    assert simulate("--resume", str(run_dir)) == 2  # still no room
    one_line(capsys, run_dir)
    enlarge()
    assert simulate("--resume", str(run_dir)) == 0
    assert written(run_dir) == written(finished)


@pytest.mark.slow(reason="whole runs under a limit of file size, in processes of their own")
def test_a_file_size_limit_is_one_line_and_the_run_goes_on_without_it(capsys, finished, tmp_path):
    run_dir = tmp_path / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # metrics.jsonl outgrows this after some rounds; the arrays of a checkpoint are larger from the
    # start.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        assert simulate(*FLAGS, "--run-dir", str(run_dir)) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    one_line(capsys, run_dir)
    assert simulate("--resume", str(run_dir)) == 0
    assert written(run_dir) == written(finished)
