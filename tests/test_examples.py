import importlib.util
import pathlib

import jax
import pytest

EXAMPLES = sorted((pathlib.Path(__file__).parents[1] / "examples").glob("*.py"))
# The constants at the top of an example that make it tiny; an example without an entry here fails.
TINY = {
    "bidirectional": {"NUM_ROUNDS": 2},
    "after_training": {"NUM_CLIENTS": 40, "NUM_ROUNDS": 2, "MORE_ROUNDS": 1},
    "attacks": {
        "TARGETS": 2,
        "ITERATIONS": 20,
        "TRIALS": 400,
        "SHADOWS": 4,
        "POOL": 40,
        "STEPS": 10,
    },
    "accounting": {
        "NUM_ROUNDS": 200,
        "METHODS": ("rdp", "gdp"),
        "ORDERS": (2.0, 3.0, 4.0, 8.0, 16.0, 64.0),
    },
    "channel": {"NUM_CLIENTS": 4, "NUM_ROUNDS": 2, "NUM_TARGETS": 20},
    "client_state": {"NUM_CLIENTS": 12, "NUM_ROUNDS": 2},
    "clipped_statistics": {"NUM_CLIENTS": 50},
    "clipping_styles": {"NUM_STEPS": 2, "HIDDEN": (4,)},
    "correlated_noise": {"NUM_CLIENTS": 40, "NUM_ROUNDS": 2},
    "dealt_clients": {"NUM_CLIENTS": 40, "NUM_ROUNDS": 2},
    "defences": {"NUM_CLIENTS": 8, "NUM_ROUNDS": 1, "NUM_RECORDS": 70},
    "deployment": {},
    "dropout_and_adam": {"NUM_CLIENTS": 40, "NUM_ROUNDS": 2, "HIDDEN": 4},
    "fedavg_custom_model": {"NUM_CLIENTS": 40, "NUM_ROUNDS": 2, "HIDDEN": 4},
    "search": {"NUM_ROUNDS": 3},
    "tune": {"NUM_CLIENTS": 40, "NUM_ROUNDS": 2},
    "secure_sum": {"NUM_CLIENTS": 8, "SIZE": 100, "GRID_NORM": 20, "MAX_DROPOUTS": 1},
    "subject_level": {"NUM_ROUNDS": 10},
    "language_model": {
        "WIDTH": 8,
        "LAYERS": 1,
        "RANK": 1,
        "PUBLIC_STEPS": 2,
        "TEXTS": 2,
        "NUM_ROUNDS": 1,
    },
    "information": {"USES": (1, 13), "NUM_RECORDS": 100},
    "model_inversion": {
        "PLACES": 3,
        "EACH": 2,
        "ROUNDS": {"softmax": (1, 0.01), "mlp": (1, 0.05)},
    },
    "own_data_and_model": {"NUM_USERS": 20, "NUM_READINGS": 200, "NUM_ROUNDS": 2},
    "own_scheme": {"CHECKS": ("event",), "NUM_ROUNDS": 2},
    "integer_noise": {
        "NUM_CLIENTS": 12,
        "NUM_ROUNDS": 1,
        "SCHEMES": ("skellam",),
        "NOISES": ("exact",),
    },
    "pair_noise": {"NUM_CLIENTS": 12, "NUM_ROUNDS": 1, "SCHEMES": ("lightdp",)},
    "tasks": {
        "NUM_CLIENTS": 20,
        "NUM_ROWS": 100,
        "NUM_ROUNDS": 2,
        "TOKEN_ROUNDS": 1,
        "CELLS": (4,),
    },
    "verify": {"NUM_CLIENTS": 40, "NUM_ROUNDS": 2},
    "water_filling": {"NUM_ROUNDS": 2},
    "what_uploads_tell": {
        "TARGETS": 2,
        "LEARNING": 2,
        "CLIENTS": 16,
        "SHADOWS": 4,
        "POOL": 40,
        "NUM_ROUNDS": 2,
    },
}
LEARN_NOTHING = {
    "accounting",
    "attacks",
    "deployment",
    "information",
    "own_scheme",
    "secure_sum",
    "what_uploads_tell",
}


@pytest.mark.release(
    reason="more examples",
    ids=[
        "model_inversion",
        "what_uploads_tell",
        "defences",
        "after_training",
        "tune",
        "deployment",
        "accounting",
        "channel",
        "own_data_and_model",
    ],
)
@pytest.mark.slow(
    reason="runs a whole example",
    but=["information", "own_scheme"],
)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_prints_what_it_spent_and_learned(path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location(f"examples.{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in TINY[path.stem].items():
        assert hasattr(module, name), f"{path.name} has no constant {name}"
        monkeypatch.setattr(module, name, value)
    # Optax's Adam mixes integers and floats, which JAX by default allows.
    strict = "standard" if "optax" in vars(module) else "strict"
    with jax.numpy_dtype_promotion(strict):
        module.main()
    printed = capsys.readouterr().out
    learned = [] if path.stem in LEARN_NOTHING else ["accuracy"]
    assert all(word in printed for word in ["epsilon", "delta", *learned])
