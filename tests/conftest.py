"""Makes JAX strict, gives 8 virtual devices, and one fixed key."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu" if not os.environ.get("FLJAX_TEST_GPU") else "cuda,cpu")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)


def pytest_collection_modifyitems(items):
    if jax.default_backend() == "gpu":
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU, have {jax.default_backend()}"))


@pytest.fixture
def key():
    return jax.random.key(20261121)
