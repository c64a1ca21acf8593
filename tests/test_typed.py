"""A user's file passes `mypy --strict`, and no public name is `Any` in it."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import pytest

from fljax.simulation import result
from tests import public_api

pytestmark = [
    pytest.mark.slow(reason="reads JAX and all of fljax with mypy"),
    pytest.mark.release(reason="three quarters of a minute"),
]
ROOT = pathlib.Path(__file__).parents[1]
USER = """
import jax
import jax.numpy as jnp

import fljax
from fljax import accounting, data, models
from fljax.schemes import dp_fedavg

model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
loss = models.softmax_cross_entropy(model.apply)
config = dp_fedavg.Config(sampling_prob=0.5, noise_multiplier=2.0)
algorithm: fljax.FederatedAlgorithm = dp_fedavg.make(config, loss, num_units=100)
event: fljax.PrivacyEvent = dp_fedavg.event(config).repeat(10)
epsilon: float = accounting.epsilon(event, delta=1e-5) + fljax.accounting.epsilon(event, delta=1e-6)
digits: fljax.data.Dataset = data.load("digits")
grad = fljax.clipped_grad(lambda w, x: jnp.vdot(w, x[0]), l2_clip_norm=1.0)
bound: float = grad.sensitivity("ADD_OR_REMOVE_ONE")
"""
# Each line is wrong, so that a checker which sees `Any` behind a name finds nothing.
WRONG = {
    "fljax.nonsense": "attr-defined",
    "fljax.accounting.nonsense": "attr-defined",
    "fljax.attacks.audit.nonsense": "attr-defined",
    "fljax_kernels.spectral.nonsense": "attr-defined",
    "fljax.accounting.epsilon(1.0, delta=1e-5)": "arg-type",
    "fljax.clipped_grad(1.0, l2_clip_norm=1.0)": "arg-type",
    "fljax.schemes.dp_fedavg.Config(sampling_prob='often')": "arg-type",
    "fljax.RoundInfo()": "call-arg",
}
# optax has annotations but no py.typed, so that a checker must be told to read them.
CONFIG = "[mypy]\nstrict = true\n[mypy-optax.*]\nfollow_untyped_imports = true\n"


RESULT = [field.name for field in dataclasses.fields(result.Result)]
CALL = """import numpy as np
import fljax
data = {"x": np.zeros((3, 2))}
result = fljax.simulate(data=data, test_data=data, num_rounds=3)
accuracy: float | None = result.history[-1].test.get("accuracy")
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says of each file: name -> lines. One run for all: it reads JAX first."""
    folder = tmp_path_factory.mktemp("user")
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    files = {f"readme_{i}.py": code for i, code in enumerate(snippets)}
    files["user.py"] = USER
    head = "import fljax\nimport fljax_kernels\n"
    files["wrong.py"] = head + "\n".join(WRONG) + "\n"
    files["names.py"] = head + "".join(f"reveal_type({name})\n" for name in public_api.public())
    files["result.py"] = CALL + "".join(f"reveal_type(result.{name})\n" for name in RESULT)
    for name, code in files.items():
        (folder / name).write_text(code)
    (folder / "mypy.ini").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--follow-imports", "silent"]
        + ["--cache-dir", str(ROOT / ".mypy_cache" / "users"), *files]
        + [str(path) for path in sorted((ROOT / "examples").glob("*.py"))],
        env=os.environ | {"MYPYPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode in (0, 1), done.stderr
    found = {name: [] for name in files} | {
        path.name: [] for path in (ROOT / "examples").glob("*.py")
    }
    for line in done.stdout.splitlines():
        path, _, rest = line.partition(":")
        if pathlib.Path(path).name in found:
            found[pathlib.Path(path).name].append(rest)
    return found


def test_a_users_file_and_the_readme_pass_a_strict_checker(checked):
    names = [name for name in checked if name.startswith(("user", "readme"))]
    assert len(names) >= 3
    assert {name: checked[name] for name in names} == {name: [] for name in names}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem
)
def test_an_example_passes_a_strict_checker(path, checked):
    assert checked[path.name] == []


def test_a_mistake_in_a_users_file_is_found(checked):
    text = "\n".join(checked["wrong.py"])
    for number, (line, code) in enumerate(WRONG.items(), 3):
        assert re.search(rf"^{number}: error: .*\[{code}\]$", text, flags=re.MULTILINE), (
            line,
            text,
        )


def test_the_result_of_a_run_has_no_any(checked):
    found = [line for line in checked["result.py"] if "Revealed type" in line]
    assert len(found) == len(checked["result.py"]) == len(RESULT) >= 15
    any_shape = "tuple[Any, ...]"  # what NumPy calls the shape of each of its arrays
    assert [line for line in found if "Any" in line.replace(any_shape, "")] == []


def test_no_public_name_is_any(checked):
    pattern = re.compile(r'^(\d+): note: Revealed type is "(.*)"')
    found = [pattern.match(line) for line in checked["names.py"]]
    kinds = {int(line.group(1)): line.group(2) for line in found if line}
    shown = {name: kinds.get(number) for number, name in enumerate(public_api.public(), 3)}
    assert len(shown) > 150
    assert {name: kind for name, kind in shown.items() if kind in ("Any", None)} == {}
