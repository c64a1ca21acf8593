import importlib.util
import pathlib

import pytest

EXAMPLES = sorted((pathlib.Path(__file__).parents[1] / "examples").glob("*.py"))
# The constants at the top of an example that make it tiny; an example without an entry here fails.
TINY = {
    "fedavg_custom_model": {"NUM_CLIENTS": 40, "NUM_ROUNDS": 2, "HIDDEN": 4},
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_prints_epsilon_delta_and_accuracy(path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location(f"examples.{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in TINY[path.stem].items():
        assert hasattr(module, name), f"{path.name} has no constant {name}"
        monkeypatch.setattr(module, name, value)
    module.main()
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("epsilon", "delta", "accuracy"))
