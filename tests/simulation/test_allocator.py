"""Freed memory is kept where glibc can, and left alone where somebody has said otherwise."""

import os
import platform
import subprocess
import sys

import pytest

CODE = """
import ctypes, resource
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages, whose faults would hide what is counted
from fljax.simulation import allocator
print(allocator.keep_freed_memory() if {keep} else None)
import jax, jax.numpy as jnp
turn = lambda _, y: y[::-1] + 1
large = jax.jit(lambda x: jax.lax.fori_loop(0, 2, turn, jnp.tile(x, 2**21)).sum())
faults = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    large(jnp.arange(16.0)).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults[2:]) * resource.getpagesize() >> 20)
"""
GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


def in_a_process(keep, **environment):
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(keep=keep)],
        env=clean
        | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "JAX_NUM_CPU_DEVICES": "1"}
        | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said, mebibytes = done.stdout.split()
    return said, int(mebibytes)


@pytest.mark.slow(reason="a process of its own")
@pytest.mark.skipif(not GLIBC, reason="malloc is not glibc's")
def test_scratch_memory_is_cleared_once_and_not_at_each_call():
    said, without = in_a_process(keep=False)
    assert said == "None" and without > 64
    said, kept = in_a_process(keep=True)
    assert said == "True" and kept < 8


@pytest.mark.slow(reason="a process of its own")
@pytest.mark.parametrize(
    "said", [{"MALLOC_TRIM_THRESHOLD_": "1000000"}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}]
)
def test_what_the_environment_says_stands(said):
    assert in_a_process(keep=True, **said)[0] == "False"
