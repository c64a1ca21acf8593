"""Chunks within a memory budget: what XLA says a round needs decides, and too little is an error
that says how much.
"""

import jax
import jax.numpy as jnp
import pytest

from fljax.simulation import config as config_lib
from fljax.simulation import run
from fljax.simulation.devices import memory

KIB = 2**10


def lowered(size):
    """A program that holds `size` arrays of 64 KiB beside its argument and result; None: 32."""
    size = size or 32

    def fun(x):
        many = jnp.sin(jnp.arange(float(size))[:, None] + x[None])
        return jnp.sort(many, axis=0).sum(axis=0)

    return jax.jit(fun).lower(jnp.zeros(2**14))


@pytest.mark.parametrize(
    ("text", "count"), [("4GiB", 2**32), ("1.5 MiB", 3 * 2**19), ("500MB", 500_000_000)]
)
def test_amounts(text, count):
    assert memory.parse(text) == count


@pytest.mark.parametrize("bad", ["", "4", "GiB", "0GiB", "-1MiB", "4 gallons", "nanGiB"])
def test_what_is_no_amount_is_refused(bad):
    with pytest.raises(ValueError, match="memory="):
        memory.parse(bad)


def test_the_largest_chunk_that_fits_is_taken():
    needed = {size: memory.program_bytes(lowered(size)) for size in (1, 2, 4, 8, 16)}
    assert needed[16] > needed[4] > needed[1] >= 128 * KIB
    assert memory.chunk_size("1GiB", 16, lowered) is None
    assert memory.chunk_size(f"{needed[16] / KIB}KiB", 16, lowered) == 16
    assert memory.chunk_size(f"{needed[4] / KIB}KiB", 16, lowered) == 4
    assert memory.chunk_size(f"{(needed[4] - 1024) / KIB}KiB", 16, lowered) == 2
    with pytest.raises(ValueError, match=r"Expected memory >= 1MiB, .* in its smallest chunks"):
        memory.chunk_size("1KiB", 16, lowered)


@pytest.mark.slow(reason="whole runs under several memory limits")
def test_a_run_takes_smaller_chunks_and_says_what_it_needs(tmp_path, monkeypatch):
    sections = {
        "model": {"model": "softmax"},
        "data": {"num_clients": 40},
        "run": {"num_rounds": 1, "seed": 0, "baseline": False, "memory": "2GiB"},
    }
    asked, needed = (
        [],
        iter([3 * 2**30, 3 * 2**30, 2**30]),
    )  # as fast as can be, 25 at a time, 12 at a time
    real = memory.chunk_size
    monkeypatch.setattr(memory, "chunk_size", lambda *args: asked.append(real(*args)) or asked[-1])
    monkeypatch.setattr(memory, "program_bytes", lambda lowered: next(needed))

    class Silent:
        def start(self, plan, rounds_done):
            pass

        def round(self, record):
            pass

        def stop(self):
            pass

    run.start(config_lib.from_sections(sections), tmp_path / "run", Silent())
    assert asked == [12]
    monkeypatch.undo()
    sections["run"]["memory"] = "1KiB"
    with pytest.raises(ValueError, match="Expected memory >= "):
        run.start(config_lib.from_sections(sections), tmp_path / "small", Silent())
    assert not (tmp_path / "small").exists()
