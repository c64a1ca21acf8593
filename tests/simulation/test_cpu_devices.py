"""A CPU's cores as devices: only where JAX has not started and nobody has said otherwise."""

import os
import subprocess
import sys

import pytest

from fljax import cli

COUNT = "import jax; from fljax.simulation import mesh; {before}; mesh.as_devices(3); print(jax.device_count())"


def in_a_process(command, **extra):
    env = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    return subprocess.run(command, env=env | {"JAX_PLATFORMS": "cpu"} | extra, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("before", "flags", "count"),
    [
        ("pass", "", 3),
        ("jax.device_count()", "", 1),
        ("jax.config.update('jax_num_cpu_devices', 2)", "", 2),
        ("pass", "--xla_force_host_platform_device_count=4", 4),
    ],
)
def test_cores_become_devices_unless_it_is_too_late_or_decided(before, flags, count):
    done = in_a_process([sys.executable, "-c", COUNT.format(before=before)], **({"XLA_FLAGS": flags} if flags else {}))
    assert done.stdout.split() == [str(count)], done.stderr


def test_no_device_is_one_line_and_leaves_no_folder(tmp_path, capsys):
    assert cli.main(["simulate", "--devices", "0", "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "devices=0" in said and said.count("\n") == 1 and not (tmp_path / "run").exists()


def test_a_run_on_two_cores_gives_the_bits_of_one_device(tmp_path):
    """With groups; without them sums are rounded in another order."""
    small = ["--num-rounds", "2", "--num-clients", "20", "--groups", "2", "--no-baseline"]
    command = [sys.executable, "-m", "fljax", "simulate", *small, "--devices"]
    done = in_a_process([*command, "2", "--run-dir", str(tmp_path / "two")])
    assert done.returncode == 0, done.stderr
    assert cli.main(["simulate", *small, "--devices", "1", "--run-dir", str(tmp_path / "one")]) == 0
    assert (tmp_path / "one/metrics.jsonl").read_text() == (tmp_path / "two/metrics.jsonl").read_text()
