"""Makes JAX strict, gives 8 virtual devices, and one fixed key."""

import os
import pathlib

os.environ.setdefault(
    "JAX_PLATFORMS", "cpu" if not os.environ.get("FLJAX_TEST_GPU") else "cuda,cpu"
)
# Tests compile thousands of small programs: splitting each among threads costs more than it saves.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_cpu_parallel_codegen_split_count=1"
)

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)


# Beginnings of node ids; see the marker "slow".
SLOW = tuple((pathlib.Path(__file__).parent / "slow.txt").read_text().splitlines())


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    if jax.default_backend() == "gpu":
        return
    for item in items:
        if item.get_closest_marker("gpu"):
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


@pytest.fixture(scope="session")
def xla_folder(tmp_path_factory):
    """Where `compiled_once` keeps compiled programs."""
    return str(tmp_path_factory.mktemp("xla"))


@pytest.fixture(scope="module")
def compiled_once(xla_folder):
    """Equal programs are compiled once for all modules that ask for this; yields the folder they
    are kept in.
    """
    from jax.experimental.compilation_cache import compilation_cache

    options = {
        "jax_compilation_cache_dir": xla_folder,
        "jax_persistent_cache_min_compile_time_secs": 0.1,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield options["jax_compilation_cache_dir"]
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
