"""Makes JAX strict, gives 8 virtual devices and one fixed key; compiles cheaply, and once a run."""

import contextlib
import gc
import importlib
import os
import pathlib
import shutil

from tests import _environment, _marks

os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu" if _environment.GPU else "cpu")

import hypothesis
import jax
import pytest
from jax._src.interpreters import mlir
from jax.extend.mlir import ir

gc.disable()  # until all tests are collected: what is imported stays

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)


# `make test` looks for counterexamples for a short while, `make test-rest` for longer, both among
# the same examples on every machine; "search" goes on with others each time.
hypothesis.settings.register_profile("fast", max_examples=20, deadline=None, derandomize=True)
hypothesis.settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", max_examples=200, deadline=None)
hypothesis.settings.load_profile(os.environ.get("FLJAX_TEST_HYPOTHESIS", "fast"))


def pytest_unconfigure():
    if _environment.MADE:
        shutil.rmtree(_environment.MADE, ignore_errors=True)


def pytest_configure(config):
    """Of two workers that read all tests the second begins with the last file: where no asserts
    have been rewritten and nothing is compiled, each then does half of it for both.
    """
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" and config.args == ["tests"]:
        top = pathlib.Path(__file__).parent
        for path in sorted(top.rglob("test_*.py"), reverse=True):
            with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection says why
                importlib.import_module(".".join(("tests", *path.relative_to(top).parts))[:-3])


def pytest_collection_finish():
    """What was imported stays: the garbage collector need not walk it again and again."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items):
    for item in items:
        for name in ("slow", "optimized", "release"):
            if item.get_closest_marker(name) and not _marks.reason(item, name):
                item.own_markers = [mark for mark in item.own_markers if mark.name != name]
        why, mark = _marks.reason(item, "optimized"), item.get_closest_marker("optimized")
        if why and mark.kwargs.get("only") and not _environment.OPTIMIZED:
            item.add_marker(pytest.mark.skip(reason=f"FLJAX_TEST_OPTIMIZED is unset: {why}"))
        if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU, have {jax.default_backend()}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """On a machine with fewer GPUs than a test's mesh has devices, it is skipped."""
    try:
        return (yield)
    except ValueError as error:
        if _environment.GPU and str(error).startswith("Number of devices"):
            pytest.skip(f"has {jax.device_count()} GPU: {error}")
        raise


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Programs of one module are of no use to the next: kept, they fill gigabytes that the garbage
    collector walks. They are lowered in one MLIR context: JAX makes one for each program, which is
    half of what lowering a small one takes. One that is lowered within another has its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        if new := getattr(mlir, "make_ir_context", None):
            one = new()
            patch.setattr(mlir, "make_ir_context", lambda: new() if ir.Context.current else one)
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
