"""What a newcomer gets stands first in the table, and is of a process that nothing tunes."""

import jax.numpy as jnp
import numpy as np
import pytest

from bench import headline
from bench.kernels import _newcomer, per_example, workloads


@pytest.mark.parametrize(
    "name", ["MALLOC_MMAP_MAX_", "GLIBC_TUNABLES", "LD_PRELOAD", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES"]
)
def test_a_tuned_process_is_no_newcomers(name):
    plain = {"PATH": "/bin", "JAX_PLATFORMS": "cpu", "MALLOC_ARENA_MAX": ""}
    assert _newcomer.tuning(plain) == []
    assert _newcomer.tuning(plain | {name: "1"}) == [name]


def linear(steps=1.0):
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.normal(size=(300, 200)), jnp.float32)}
    batch = {"x": jnp.asarray(steps * rng.normal(size=(4, 300)), jnp.float32)}
    return workloads.Workload("t", "T", lambda p, e: jnp.sum(e["x"] @ p["w"]), params, batch)


@pytest.mark.slow(reason="compiles two steps")
def test_a_newcomers_step_is_the_clipped_sum_and_its_noise(monkeypatch):
    workload = linear()
    runs = {peer: _newcomer.step(peer, workload) for peer in _newcomer.PEERS}
    rows = _newcomer.checked(list(_newcomer.PEERS), runs)
    # Every example's gradient is x_i in all 200 columns, far longer than the bound.
    x = np.asarray(workload.batch["x"], np.float64)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    # Clipped to 1, each column of it is x_i / (|x_i| sqrt(200)).
    assert rows[_newcomer.SUM]["l2_of_sum"] == pytest.approx(np.linalg.norm(unit.sum(0)), rel=1e-4)
    for peer in (_newcomer.PRIVATE, _newcomer.BY_HAND):
        assert rows[peer]["noise_stddev"] == pytest.approx(1, abs=0.01)
    monkeypatch.setattr(_newcomer, "STDDEV", 1.1)  # control: noise that is not what was asked for
    assert "failed" in _newcomer.checked([_newcomer.PRIVATE], runs)[_newcomer.PRIVATE]


def rows(newcomer):
    here = {"workload": "t", "title": "T", "platform": "cpu", "median_ms": 2.0, "temp_ratio": 1.0}
    told = {"ours_auto": 1.1, "opacus_ghost": 3.0, "non_private": 1.0}
    if newcomer:
        told |= {"as it comes: private": 1.5, "memory kept: private": 1.3}
        told |= {"as it comes: vmap_private": 0.1, "memory kept: non_private": 1.0}
    return [
        here | {"peer": peer, "ratio": ratio, "ratio_cpu": ratio, "median_ms": ratio}
        for peer, ratio in told.items()
    ]


def test_as_it_comes_is_the_first_column_and_no_peer_of_the_others():
    head, _, body = per_example.table(rows(newcomer=True)).splitlines()
    assert head.split(" | ")[1:3] == [
        "private step / mean gradient, as it comes",
        "the same, freed memory kept",
    ]
    assert body.split(" | ")[1:5] == ["1.50x (1.5 ms)", "1.30x (1.3 ms)", "1.10x (1.10x)", "1.1 ms"]
    assert "opacus_ghost" in body
    assert per_example.table(rows(newcomer=False)).splitlines()[2].split(" | ")[1:3] == ["", ""]


def test_the_readme_gives_both_columns(monkeypatch):
    round_of = [{"peer": peer, "clients": 9, "median_ms": 1.0} for peer in ("fljax", "fedjax_pad")]
    round_of.append({"peer": "fedjax_var", "clients": 9, "median_ms": 1.0})
    on_gpu = {"peer": "ours_auto", "platform": "gpu", "device": "D", "batch": 8, "ratio": 1.0}
    epsilon = {"case": "one", "speedup": 2.0}
    monkeypatch.setattr(headline.cold, "column", lambda *_: {"one": "1x"})
    table = headline.table([*round_of, *rows(newcomer=True), on_gpu, epsilon])
    assert "1.50x to 1.50x the time as it comes, 1.30x to 1.30x where freed memory is kept" in table
