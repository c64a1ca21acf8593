"""Makes JAX strict, gives 8 virtual devices and one fixed key; compiles cheaply, and once a run."""

import gc
import os
import pathlib
import shutil

from tests import _environment

os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu" if _environment.GPU else "cpu")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)


def pytest_unconfigure():
    if _environment.MADE:
        shutil.rmtree(_environment.MADE, ignore_errors=True)


def pytest_collection_finish():
    """What was imported stays: the garbage collector need not walk it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


# Beginnings of node ids; see the marker "slow".
SLOW = tuple((pathlib.Path(__file__).parent / "slow.txt").read_text().splitlines())


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        mark = item.get_closest_marker("optimized")
        if mark and mark.kwargs.get("only") and not _environment.OPTIMIZED:
            why = f"FLJAX_TEST_OPTIMIZED is unset: {mark.args[0]}"
            item.add_marker(pytest.mark.skip(reason=why))
        if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU, have {jax.default_backend()}"))


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Programs of one module are of no use to the next: kept, they fill gigabytes that the garbage
    collector walks.
    """
    yield
    jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(20261121)


@pytest.fixture(scope="module")
def compiled_once():
    """The folder in which equal programs are compiled once a run, for processes of a test's own."""
    from jax.experimental.compilation_cache import compilation_cache

    folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
    if jax.config.jax_compilation_cache_dir != folder:  # a command of an earlier module has moved
        jax.config.update("jax_compilation_cache_dir", folder)
        compilation_cache.reset_cache()
    return folder
