"""A CPU's cores as devices: only where JAX has not started and nobody has said otherwise."""

import os
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from fljax import cli
from fljax.cli import simulate
from fljax.simulation import config
from fljax.simulation.devices import mesh

optimized = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")

# Each in a fork of one process that has imported all of it: in a process JAX starts only once.
STATES = {
    "in time": ("pass", {}, 3),
    "too late": ("jax.device_count()", {}, 1),
    "configured": ("jax.config.update('jax_num_cpu_devices', 2)", {}, 2),
    "by a flag": ("pass", {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, 4),
}
COUNT = f"""
import os
import jax
from fljax.simulation import mesh
for before, environment, _ in {list(STATES.values())!r}:
    child = os.fork()
    if not child:
        os.environ.update(environment)
        exec(before)
        mesh.as_devices(3)
        print(jax.device_count(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def in_a_process(command, **extra):
    env = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    return subprocess.run(
        command, env=env | {"JAX_PLATFORMS": "cpu"} | extra, capture_output=True, text=True
    )


def test_cores_become_devices_unless_it_is_too_late_or_decided():
    done = in_a_process([sys.executable, "-c", COUNT])
    assert done.stdout.split() == [str(count) for _, _, count in STATES.values()], done.stderr


def test_no_device_is_one_line_and_leaves_no_folder(tmp_path, capsys):
    assert cli.main(["simulate", "--devices", "0", "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "devices=0" in said and said.count("\n") == 1 and not (tmp_path / "run").exists()


@pytest.mark.slow(reason="a process of its own")
def test_devices_that_are_not_there_are_refused_and_leave_no_folder(tmp_path):
    """In a process of its own, where JAX has not started: a CPU would become 99 devices that wait
    for one another.
    """
    run_dir = tmp_path / "run"
    done = in_a_process(
        [sys.executable, "-m", "fljax", "simulate", "--devices", "99999", "--run-dir", str(run_dir)]
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not run_dir.exists()
    assert (
        f"devices <= {max(16, mesh.available())}" in done.stderr
        and "got devices=99999" in done.stderr
    )


def test_more_devices_than_cores_are_said(monkeypatch):
    monkeypatch.setattr(mesh, "available", lambda: 2)
    assert simulate._devices(2) == "devices 2"
    assert simulate._devices(3).startswith("devices 3, on 2 cores:")


@optimized
@pytest.mark.slow(reason="whole runs in processes of their own")
def test_a_run_on_two_cores_gives_the_bits_of_one_device(tmp_path):
    """With groups; without them sums are rounded in another order."""
    small = [
        "--num-rounds",
        "2",
        "--seed",
        "0",
        "--num-clients",
        "20",
        "--groups",
        "2",
        "--no-baseline",
    ]
    command = [sys.executable, "-m", "fljax", "simulate", *small, "--devices"]
    done = in_a_process([*command, "2", "--run-dir", str(tmp_path / "two")])
    assert done.returncode == 0, done.stderr
    assert cli.main(["simulate", *small, "--devices", "1", "--run-dir", str(tmp_path / "one")]) == 0
    assert (tmp_path / "one/metrics.jsonl").read_text() == (
        tmp_path / "two/metrics.jsonl"
    ).read_text()


@pytest.mark.release(reason="a third of a minute")
@pytest.mark.slow(reason="whole runs in processes of their own")
@optimized
def test_a_run_that_asks_for_nothing_takes_a_device_a_core_and_others_can_go_on(tmp_path):
    small = ["--num-rounds", "2", "--seed", "0", "--num-clients", "20", "--no-baseline"]
    small += ["--model", "softmax"]
    done = in_a_process(
        [sys.executable, "-m", "fljax", "simulate", *small, "--run-dir", str(tmp_path / "many")]
    )
    assert done.returncode == 0, done.stderr
    groups = tomllib.loads((tmp_path / "many/config.toml").read_text())["run"]["groups"]
    assert groups == (2 * mesh.cores() if mesh.cores() > 1 else config.NONE)
    said = ["--groups", str(groups)] if mesh.cores() > 1 else []
    assert (
        cli.main(["simulate", *small, *said, "--devices", "1", "--run-dir", str(tmp_path / "one")])
        == 0
    )
    assert (tmp_path / "one/metrics.jsonl").read_text() == (
        tmp_path / "many/metrics.jsonl"
    ).read_text()


@pytest.mark.release(reason="one more flag", but=["devices", "memory"])
@pytest.mark.slow(reason="whole runs")
@pytest.mark.parametrize(
    ("flags", "devices"),
    [([], 4), (["--groups", "6"], 3), (["--devices", "1"], 1), (["--memory", "4GiB"], None)],
    ids=["nothing", "groups", "devices", "memory"],
)
def test_the_devices_of_a_run_are_those_that_its_flags_ask_for(
    flags, devices, tmp_path, monkeypatch
):
    monkeypatch.setattr(mesh, "cores", lambda: 4)
    taken, make = [], mesh.client_mesh

    def client_mesh(num_devices=None, **options):
        taken.append(num_devices)
        return make(num_devices, **options)

    monkeypatch.setattr(mesh, "client_mesh", client_mesh)
    small = [
        "--num-rounds",
        "1",
        "--num-clients",
        "20",
        "--no-baseline",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    assert cli.main(["simulate", *small, *flags]) == 0
    assert taken == [devices]
    if not flags:
        assert cli.main(["simulate", "--resume", str(tmp_path / "run")]) == 0
        assert taken == [devices, devices]


def test_what_a_run_reads_of_its_state_is_on_one_device():
    over = mesh.client_mesh(4)
    (state,) = mesh.spread(over, (np.arange(3.0, dtype=np.float32),))
    assert len(state.devices()) == 4
    (read,) = mesh.here(over, (state,))
    assert len(read.devices()) == 1
    np.testing.assert_array_equal(read, [0, 1, 2])


@pytest.mark.parametrize(
    ("limit", "count"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("", 8)]
)
def test_a_container_may_have_fewer_cores(limit, count, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(mesh, "_of_container", lambda name: limit if name == "cpu.max" else "")
    assert mesh.cores() == count


@pytest.mark.parametrize(
    ("cores", "groups", "num_params", "devices"),
    [
        (8, None, 10, None),  # the order of additions would depend on it
        (8, 16, 10, 8),
        (2, 16, 10, 2),
        (8, 6, 10, 3),
        (8, 2, 10, 1),  # a group each would be another program
        (1, 16, 10, 1),
        (8, 16, 2**50, 1),  # copies of that model do not fit
    ],
)
def test_devices_that_a_run_takes_unasked(cores, groups, num_params, devices, monkeypatch):
    monkeypatch.setattr(mesh, "cores", lambda: cores)
    assert mesh.side_by_side(num_params, groups) == devices


@pytest.mark.parametrize(("free", "count"), [(1, 1), (2, 2), (6, 4), (16, 16), (100, 16)])
def test_a_cpu_is_worth_a_power_of_two_of_devices(free, count, monkeypatch):
    monkeypatch.setattr(mesh, "_of_container", lambda _: "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(free)), raising=False)
    assert mesh.cores() == count


@optimized
def test_devices_of_a_cpu_share_the_data():
    for first in (0, 1):  # whatever the alignment of NumPy's memory
        data = np.ones(1000, np.float32)[first:]
        (placed,) = mesh.everywhere(mesh.client_mesh(4), (data,))
        at = {shard.data.unsafe_buffer_pointer() for shard in placed.addressable_shards}
        assert len(at) == 1 and len(placed.addressable_shards) == 4
        np.testing.assert_array_equal(placed, data)
