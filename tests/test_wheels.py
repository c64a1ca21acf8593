"""`pip install .` and `pip install ./kernels`, from built wheels, each in an empty virtual
environment.
"""

import os
import pathlib
import subprocess
import sys
import venv
import zipfile

import pytest

pytestmark = pytest.mark.slow(reason="builds and installs both wheels")
ROOT = pathlib.Path(__file__).parents[1]
USE_KERNELS = """
import jax, jax.numpy as jnp, fljax_kernels
assert "site-packages" in fljax_kernels.__file__, fljax_kernels.__file__
total, norms = fljax_kernels.clip_and_sum(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
assert abs(float(jnp.linalg.norm(total)) - 1.5) < 1e-6, total
"""
USE_FLJAX = """
import jax.numpy as jnp, fljax
from fljax import accounting, schemes
assert "site-packages" in fljax.__file__, fljax.__file__
grad = fljax.clipped_grad(lambda w, x: jnp.dot(w, x), l2_clip_norm=1.0, keep_batch_dim=False)
assert float(jnp.linalg.norm(grad(jnp.zeros(2), jnp.array([[30.0, 40.0]])))) < 1 + 1e-5
scheme = schemes.get("dp_fedavg")
event = scheme.event(scheme.Config(sampling_prob=1.0, noise_multiplier=10.0))
assert 0 < accounting.epsilon(event, delta=1e-5, method="rdp") < 1
"""


def run(*command, **kwargs):
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, **kwargs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def empty_python(tmp_path_factory):
    """The interpreter of an environment that has pip only, kept from seeing this checkout."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def built(source, folder):
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        source,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.release(reason="`make release-check` installs both", ids=["fljax"])
@pytest.mark.parametrize(
    ("source", "packages", "code"),
    [
        ("kernels", {"fljax_kernels"}, USE_KERNELS),
        (".", {"fljax", "fljax_kernels"}, USE_KERNELS + USE_FLJAX),
    ],
    ids=["kernels", "fljax"],
)
def test_a_wheel_works_in_an_empty_environment(source, packages, code, empty_python, tmp_path):
    wheel = built(ROOT / source, tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == packages
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    run(empty_python, "-m", "pip", "uninstall", "-q", "-y", "fljax-kernels", "fljax")
    quick = ("-q", "--disable-pip-version-check", "--no-compile")
    run(empty_python, "-m", "pip", "install", *quick, wheel)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run(empty_python, "-c", code, cwd=tmp_path, env={**clean, "JAX_PLATFORMS": "cpu"})
    if "fljax" in packages:
        # The core comes without the command line's helpers: it says which extra brings them.
        done = subprocess.run(
            [str(empty_python.parent / "fljax"), "simulate"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert "fljax[sim]" in done.stderr
