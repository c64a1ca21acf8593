"""A scheme is one typed object, `fljax.Scheme`: nobody asks it, its config or its module what
attributes it has.
"""

import ast
import dataclasses
import pathlib

import pytest

import fljax
from fljax import schemes
from fljax.schemes import base

PACKAGE = pathlib.Path(fljax.__file__).parent
REFLECTION = {"getattr", "hasattr", "setattr", "vars", "signature", "getmembers"}
# What may be asked all the same, by file: objects of other libraries, of the operating system, and
# one's own.
ALLOWED = {
    "_plugins.py": set(),
    "_rooms.py": {"importlib.import_module(inside[name])", "sys.modules[package]"},
    "_deprecation.py": {"importlib.import_module(where)"},
    "_sensitivity.py": {"neighboring_relation"},
    "_validate.py": {"key", "value"},
    "accounting/_arrays.py": {
        "importlib.import_module('jax.scipy.special')",
        "importlib.import_module('scipy.special')",
        "importlib.import_module(self._name)",
        "self._on_host",
        "tree",
    },
    "accounting/dp_accountants.py": {"neighboring_relation"},
    "accounting/events.py": {"self", "value"},
    "accounting/interop.py": {"event", "neighboring_relation", "noise_relative_to"},
    "cli/_attack_classes.py": {"images"},
    "cli/_bench.py": {"os"},
    "cli/_flags.py": {"default"},
    "cli/_output.py": {"value"},
    "cli/account.py": {"options"},
    "cli/calibrate.py": {"options"},
    "cli/simulate.py": {"ended", "options"},
    "local/_batched.py": {"x"},
    "local/bounded.py": {"neighboring_relation"},
    "local/keyed.py": {"loss"},
    "models/_keras.py": {"model.call"},
    "models/_scale_of_jaxpr.py": {"eqn.outvars[0].aval", "v.aval"},
    "models/functions.py": {"step"},
    "models/lora.py": {"part", "part.parent"},
    "models/others.py": {
        *("maker", "model.apply", "module", "new", "norm", "part", "shape", "start", "thing"),
    },
    "models/scaling.py": {"out"},
    "simulation/api.py": {"observer"},
    "simulation/config.py": {"self"},
    "simulation/evaluation.py": {"out"},
    "simulation/own.py": {"fun"},
    "simulation/devices/allocator.py": {"ctypes.CDLL(None)"},
    "simulation/devices/mesh.py": {"os"},
    "simulation/record/folder.py": {"os"},
    "simulation/record/run_record.py": {"self"},
    "papers/lightdp/timing.py": {"small"},
    "papers/reproduce.py": {"Settings"},
    "simulation/trained.py": {"step"},
}


def asked(path):
    """What is asked for its attributes in a file: the source of each first argument."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in REFLECTION:
                yield ast.unparse(node.args[0])
        elif isinstance(node, ast.Attribute) and node.attr == "__dict__":
            yield ast.unparse(node.value)


def test_nobody_asks_a_scheme_a_config_or_a_module_for_its_attributes():
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {name: set(asked(path)) - ALLOWED.get(name, set()) for name, path in paths.items()}
    assert len(found) > 400 and not any(found.values()), found


def test_asking_is_seen(tmp_path):
    path = tmp_path / "asks.py"
    path.write_text(
        "a = getattr(config, 'x', 1)\nb = inspect.signature(scheme.make)\nc = module.__dict__\n"
    )
    assert list(asked(path)) == ["config", "scheme.make", "module"]


@pytest.mark.parametrize("name", schemes.NAMES)
def test_every_scheme_is_typed_and_its_members_go_together(name):
    scheme = schemes.get(name)
    assert isinstance(scheme, fljax.Scheme) and scheme is schemes.get(name)
    assert dataclasses.is_dataclass(scheme.Config) and scheme.Config.__dataclass_params__.frozen
    assert (scheme.promise == "nats") <= (scheme.spent is not None and scheme.inputs is not None)
    assert (scheme.upload_noise is not None) <= (scheme.noise_at == "client")
    assert set(scheme.start) <= {"data", "model", "scheme", "privacy", "run"}
    counts = scheme.population(scheme.Config())
    stated = "num_parties" in {field.name for field in dataclasses.fields(scheme.Config)}
    assert (counts.num_clients is not None) is stated


def test_a_schemes_functions_are_reached_by_its_module_too():
    assert schemes.dp_fedavg.event is schemes.get("dp_fedavg").event
    assert (
        schemes.lightdp.SCHEME is schemes.get("lightdp")
        and schemes.lightdp.Config is schemes.get("lightdp").Config
    )


@dataclasses.dataclass(frozen=True)
class Nothing:
    pass


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"promise": "epsilom"}, "Did you mean 'epsilon'"),
        ({"noise_at": "cloud"}, "Expected noise_at to be one of"),
        ({"summary": ""}, "Expected summary to be a line of text"),
        ({"make": None}, "Expected make to be a function, got make=None"),
        ({"fitted": 3}, "Expected fitted to be a function, got fitted=3"),
        ({"Config": dict}, "Expected Config to be a frozen dataclass"),
        ({"Config": Nothing}, "to have the fields \\['noise_multiplier'\\], got \\[\\]"),
        ({"promise": "nats"}, "'data_model', 'nats', 'noise_multiplier'"),
        (
            {"promise": "nats", "Config": schemes.white_channel.Config},
            "Expected inputs and spent with promise='nats'",
        ),
    ],
)
def test_a_member_that_is_wrong_is_refused_by_name(changes, told):
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(schemes.get("dp_fedavg"), **changes)


def test_a_scheme_without_a_member_is_no_scheme():
    with pytest.raises(TypeError, match="non_private"):
        base.Scheme(summary="x", promise="none", Config=Nothing, make=max, event=max, fitted=max)
