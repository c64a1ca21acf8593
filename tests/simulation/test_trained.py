"""After training: the model of a run is loaded, used, written, trained further, and its claim goes
with it.
"""

import json
import math
import os
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy import stats

import fljax
from fljax import cli, data, schemes
from fljax.errors import PrivacyPreconditionError
from fljax.simulation import budget, job, predictions, run, trained, warm_start
from fljax.simulation.config import Config, DataConfig, PrivacyConfig, RunConfig

QUICK = {
    "num_clients": 40,
    "num_rounds": 3,
    "checkpoint_every": 2,
    "model": "softmax",
    "noise_multiplier": 2.0,
    "target_epsilon": 4.0,
    "target_delta": 1e-3,
    "accountant": "rdp",
    "seed": 0,
    "baseline": False,
}
pytestmark = pytest.mark.usefixtures("compiled_once")


def table(path, rows):
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory, compiled_once):
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    return fljax.simulate("dp_fedavg", run_dir=run_dir, **QUICK)


@pytest.fixture(scope="module")
def of_a_table(tmp_path_factory, compiled_once):
    """A run on a table whose classes have names; (its folder, the table's rows)."""
    where = tmp_path_factory.mktemp("a table, with ~ and spaces")
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 2, 60)
    heights, widths = rng.normal(size=(2, 60)).round(3) + np.array([[3], [-3]]) * kinds
    names = np.array(["cat", "dog"])[kinds]
    rows = list(zip(heights, widths, names, strict=True))
    path = table(where / "pets.csv", [("height", "width", "label"), *rows])
    settings = {**QUICK, "num_clients": 10, "noise_multiplier": 0.3, "target_epsilon": None}
    fljax.simulate("dp_fedavg", data=f"csv:{path}", run_dir=where / "run", **settings)
    return where / "run", rows


def test_the_model_of_a_run_is_loaded_without_its_data(finished):
    found = trained.load(finished.run_dir)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), found.params, finished.params)
    assert all(jax.tree.leaves(same)) and found.rounds == 3
    assert found.claim["epsilon"] == pytest.approx(finished.epsilon)


def test_a_model_goes_out_and_comes_back_with_its_claim(finished, tmp_path):
    import orbax.checkpoint as ocp

    found = trained.load(finished.run_dir)
    wanted = {"logits.kernel", "logits.bias"}
    for form in trained.FORMS:
        path = tmp_path / f"model.{form}"
        beside = json.loads(trained.export(found, form, path).read_text())
        assert beside["claim"] == found.claim and beside["rounds"] == 3
        if form == "orbax":
            with ocp.StandardCheckpointer() as reader:
                tree = reader.restore(path)
            arrays = {f"logits.{name}": leaf for name, leaf in tree["logits"].items()}
        else:
            arrays = load_file(path) if form == "safetensors" else dict(np.load(path))
        assert set(arrays) == wanted
        for name, leaf in arrays.items():
            np.testing.assert_array_equal(leaf, finished.params["logits"][name.split(".")[1]])
        with pytest.raises(ValueError, match="not to be there yet"):
            trained.export(found, form, path)


def test_predictions_are_the_softmax_of_a_linear_model(finished):
    x = data.load("digits").test["x"]
    said = predictions.of(trained.load(finished.run_dir), x)
    kernel, bias = (np.asarray(finished.params["logits"][name]) for name in ("kernel", "bias"))
    odds = np.exp(x.reshape(len(x), -1).astype(np.float64) @ kernel + bias)
    probabilities = odds / odds.sum(-1, keepdims=True)
    np.testing.assert_array_equal(said.classes, probabilities.argmax(-1))
    np.testing.assert_allclose(said.sure, probabilities.max(-1), rtol=1e-4)
    assert predictions.met(said, data.load("digits").test["y"])["accuracy"] == pytest.approx(
        finished.accuracy
    )


@pytest.mark.parametrize(
    ("about", "lines", "met"),
    [
        (
            {"task": "binary", "class_names": ("no", "yes"), "num_classes": 2},
            [{"class": "no", "probability": 0.75}, {"class": "yes", "probability": 0.9}],
            {"accuracy": 0.5},
        ),
        (
            {"task": "multi_label", "class_names": ("red",)},
            [{"red": 0.25}, {"red": 0.9}],
            {"accuracy": 0.5},
        ),
        (
            {"task": "regression", "label_column": "age"},
            [{"age": -math.log(3)}, {"age": math.log(9)}],
            {"absolute_error": (math.log(3) + math.log(9)) / 2},
        ),
    ],
)
def test_what_outputs_say_is_by_their_task(about, lines, met, monkeypatch):
    outputs = np.log([[1 / 3], [9.0]]).astype(np.float32)
    monkeypatch.setattr(trained, "outputs", lambda *given: outputs)
    found = types.SimpleNamespace(about=about)
    said = predictions.of(found, np.zeros((2, 3), np.float32))
    for line, wanted in zip(said.lines(), lines, strict=True):
        assert line.pop("class", None) == wanted.pop("class", None)
        assert line == pytest.approx(wanted, rel=1e-6)
    labels = np.asarray([0, 0] if about["task"] == "binary" else [[0.0], [0.0]])
    assert predictions.met(said, labels, about) == pytest.approx(met, rel=1e-6)
    assert predictions.met(said, None, about) == {}


def test_outputs_that_are_no_classes_are_shown_by_number(monkeypatch):
    monkeypatch.setattr(trained, "outputs", lambda *given: np.asarray([[1.5, 2.5]]))
    found = types.SimpleNamespace(about={"num_classes": 0})
    said = predictions.of(found, np.zeros((1, 3)))
    assert list(said.lines()) == [{"output_0": 1.5, "output_1": 2.5}]
    assert predictions.met(said, np.zeros(1), found.about) == {}


def test_predictions_of_many_examples_are_those_of_each(finished):
    x = np.concatenate([data.load("digits").train["x"]] * 2)[:2100]
    found = trained.load(finished.run_dir)
    parts = [trained.outputs(found, part) for part in np.split(x, [7, 1030])]
    np.testing.assert_allclose(trained.outputs(found, x), np.concatenate(parts), atol=1e-5)


@pytest.mark.slow(reason="a whole run")
def test_a_table_may_have_its_columns_in_another_order_and_no_labels(of_a_table, tmp_path, capsys):
    run_dir, rows = of_a_table
    shuffled = [("who", "width", "height"), *(("x", w, h) for h, w, _ in rows)]
    path = table(tmp_path / "new.csv", shuffled)
    assert cli.main(["predict", str(run_dir), f"csv:{path}"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split(",") for line in out.splitlines()]
    assert lines[0] == ["row", "class", "probability"] and len(lines) == 61 and not err
    params = trained.named(trained.load(run_dir).params)
    features = np.array([(h, w) for h, w, _ in rows], np.float32)
    places = (features @ params["logits.kernel"] + params["logits.bias"]).argmax(-1)
    assert [line[1] for line in lines[1:]] == [("cat", "dog")[place] for place in places]


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (("height", "label"), "to have 'width'"),
        (("height", "width"), "finite number in line 2 of .*, column 'width', got 'nan'"),
    ],
)
def test_a_table_that_the_model_cannot_read_is_refused(tmp_path, columns, what):
    path = table(tmp_path / "bad.csv", [columns, (1.0, "nan")])
    about = {
        "label_column": "label",
        "class_names": ("cat", "dog"),
        "feature_names": ("height", "width"),
    }
    with pytest.raises(ValueError, match=what):
        predictions.examples(f"csv:{path}", about)


def test_a_run_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"with a model\.json, got none"):
        trained.load(tmp_path)


@pytest.mark.slow(reason="a whole run")
def test_a_model_without_a_name_is_refused(tmp_path):
    params = {"w": jnp.zeros((64, 10))}
    model = (params, lambda p, x: x.reshape(-1) @ p["w"])
    own = fljax.simulate("dp_fedavg", run_dir=tmp_path / "own", **{**QUICK, "model": model})
    assert "given by the caller and is taken to be public" in own.statement
    found = trained.load(own.run_dir)
    assert set(trained.named(found.params)) == {"w"}
    with pytest.raises(ValueError, match="a model by a name"):
        trained.outputs(found, np.zeros((1, 8, 8, 1), np.float32))


def test_no_code_runs_because_a_folder_names_it(finished, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(os, "system", lambda command: asked.append(command))
    shutil.copytree(finished.run_dir, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "model.json").read_text())
    crafted = about | {"model": "os:system", "options": {"command": "true"}}
    (tmp_path / "run" / "model.json").write_text(json.dumps(crafted))
    assert cli.main(["predict", str(tmp_path / "run"), "digits"]) == 2
    assert "Expected model='os:system' to be given" in capsys.readouterr().err and not asked
    del about["options"]  # of a run that began before there were some
    (tmp_path / "run" / "model.json").write_text(json.dumps(about))
    assert cli.main(["predict", str(tmp_path / "run"), "digits"]) == 0


@pytest.mark.slow(reason="a whole run")
def test_a_model_without_the_layers_that_clients_keep_predicts_nothing(tmp_path, capsys):
    personal = {"model": "mlp", "num_rounds": 1}
    run_dir = fljax.simulate("dp_fedper", run_dir=tmp_path / "run", **QUICK | personal).run_dir
    assert cli.main(["predict", str(run_dir), "digits"]) == 2
    assert "without the layers that each client keeps" in capsys.readouterr().err
    trained.export(trained.load(run_dir), "npz", tmp_path / "shared.npz")


@pytest.mark.slow(reason="two whole runs")
def test_a_run_that_begins_with_another_ones_model_adds_both_up(finished, tmp_path):
    second = fljax.simulate(
        "dp_fedavg", run_dir=tmp_path / "second", init=str(finished.run_dir), **QUICK
    )
    claim = json.loads((second.run_dir / "privacy.json").read_text())
    origin = claim["initial_model"]
    assert origin["dataset"] == "digits" and origin["epsilon"] == finished.epsilon
    # Basic composition, by hand: both epsilons and both deltas.
    assert f"epsilon {np.ceil(1e3 * (2 * finished.epsilon)) / 1e3:.3f}" in second.statement
    assert "at delta 0.00200 (the sums)" in second.statement
    assert any("the model after" not in note and "(the sums)" in note for note in second.notes)
    third = fljax.simulate(
        "dp_fedavg", run_dir=tmp_path / "third", init=str(second.run_dir), **QUICK
    )
    assert "at delta 0.00300 (the sums)" in third.statement


@pytest.mark.slow(reason="two whole runs")
def test_no_epsilon_is_claimed_after_a_model_that_saw_the_same_data_unprotected(tmp_path):
    plain = {"num_rounds": 1, "model": "softmax", "seed": 0, "baseline": False}
    plain |= {"data": "writers", "target_epsilon": None}
    first = fljax.simulate("fedavg", run_dir=tmp_path / "plain", **plain)
    after = {"run_dir": tmp_path / "after", "init": str(first.run_dir), "data": "writers"}
    with pytest.raises(PrivacyPreconditionError, match="whose model nothing protects"):
        fljax.simulate("dp_fedavg", **after, **QUICK)
    assert not (tmp_path / "after").exists()


def test_a_model_that_goes_back_to_an_unprotected_one_is_refused_too():
    """The run before it had other data: their own claims were good."""
    first = {"epsilon": "inf", "dataset": "writers", "seed": "random", "before": None}
    second = {**first, "epsilon": 1.0, "dataset": "digits", "before": first, "run": "runs/second"}
    plan = types.SimpleNamespace(origin=second, epsilons=(0.0, 1.0))
    for name in ("writers", "digits"):
        config = Config(data=DataConfig(dataset=name))
        with pytest.raises(PrivacyPreconditionError, match="or one that it goes back to"):
            job._check_origin(config, plan)
    job._check_origin(Config(data=DataConfig(dataset="roles")), plan)


@pytest.mark.slow(reason="whole runs")
def test_nats_after_another_runs_model_do_not_count_what_that_one_told(finished, tmp_path):
    found = fljax.simulate(
        "natural_channel",
        run_dir=tmp_path / "run",
        init=str(finished.run_dir),
        **QUICK | {"noise_multiplier": 0.0, "target_epsilon": None, "num_rounds": 1},
    )
    claim = json.loads((found.run_dir / "privacy.json").read_text())
    for said in (found.statement, " ".join(claim["information"]["not_promised"])):
        assert f"that of another run ({finished.run_dir}" in said
        assert "is not counted here" in said
    # The nats go out with the model.
    assert trained.load(found.run_dir).claim == claim
    beside = trained.export(trained.load(found.run_dir), "npz", tmp_path / "model.npz")
    assert json.loads(beside.read_text())["claim"]["information"]["nats_per_record"]


def test_a_fixed_seed_of_an_earlier_run_is_told(tmp_path):
    first = {"run": "a", "rounds": 1, "dataset": "digits", "epsilon": 1.0, "delta": 1e-3}
    first |= {"privacy_unit": "client", "neighboring_relation": "ADD_OR_REMOVE_ONE"}
    first |= {"seed": "fixed", "before": None}
    second = {**first, "run": "b", "seed": "random", "before": first}
    said = warm_start.sentence(second, {**second, "epsilon": 1.0})
    assert "from a fixed seed, with which its noise is removed" in said
    assert "seed" not in warm_start.sentence({**second, "before": None}, second)


@pytest.mark.parametrize("epsilon", [1.0, "inf"])
def test_public_weights_that_an_earlier_run_began_with_are_told(epsilon, tmp_path, monkeypatch):
    told = "The model began with the weights in W, which are taken to be public."
    claim = {"epsilon": epsilon, "delta": 1e-3, "seed": "random", "initial_model": told}
    claim |= {"privacy_unit": "client", "neighboring_relation": "ADD_OR_REMOVE_ONE"}
    params = {"w": np.zeros(2, np.float32)}
    monkeypatch.setattr(warm_start.checkpoint, "read_model", lambda _: (params, 1, claim))
    (tmp_path / "config.toml").write_text('[data]\ndataset = "digits"\n')
    _, origin = warm_start.model(str(tmp_path), params)
    later = {**origin, "run": "later", "before": origin}  # of a run that began with that one
    for start in (origin, later):
        for unit in ("client", "example"):
            said = warm_start.sentence(start, {**claim, "epsilon": 1.0, "privacy_unit": unit})
            assert said.endswith(told)
        assert warm_start.uncounted(start).endswith(told)
        assert warm_start.is_private(start) == (epsilon != "inf")


def test_a_model_of_another_shape_is_no_beginning(finished, tmp_path):
    with pytest.raises(ValueError, match="same model on examples of the same shape"):
        fljax.simulate(
            run_dir=tmp_path / "x", init=str(finished.run_dir), **{**QUICK, "model": "mlp"}
        )


@pytest.mark.slow(reason="whole runs")
def test_more_rounds_from_python_are_those_of_a_longer_run(tmp_path):
    settings = {**QUICK, "accountant": "auto"}
    first = fljax.simulate(run_dir=tmp_path / "run", **settings)
    more = fljax.simulate(run_dir=tmp_path / "run", more_rounds=2, **settings)
    again = fljax.simulate(run_dir=tmp_path / "run", more_rounds=1, **settings)
    longer = fljax.simulate(run_dir=tmp_path / "longer", **{**settings, "num_rounds": 6})
    assert (first.rounds, more.rounds, again.rounds) == (3, 5, 6)
    assert first.epsilon < more.epsilon < again.epsilon == longer.epsilon
    for one, other in zip(
        jax.tree.leaves(again.params), jax.tree.leaves(longer.params), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="run_dir to hold a run with more_rounds=1"):
        fljax.simulate(run_dir=tmp_path / "none", more_rounds=1, **settings)


def test_the_rounds_that_are_left_are_those_that_the_budget_takes():
    config = Config(
        scheme_config=schemes.get("dp_fedavg").Config(sampling_prob=1.0, noise_multiplier=5.0),
        data=DataConfig(num_clients=40),
        privacy=PrivacyConfig(target_epsilon=2.0, target_delta=1e-4),
        run=RunConfig(num_rounds=3, seed=0, baseline=False),
    )
    plan = run.prepare(config).plan

    def delta(rounds):  # of a Gaussian mechanism at epsilon 2, in closed form
        mu = np.sqrt(rounds) / 5.0
        below, above = -2.0 / mu + mu / 2, -2.0 / mu - mu / 2
        return stats.norm.cdf(below) - np.exp(2.0) * stats.norm.cdf(above)

    most = max(rounds for rounds in range(1, 100) if delta(rounds) <= 1e-4)
    assert budget.rounds_left(plan, config.implementation, 3) == most - 3 > 0
    assert budget.rounds_left(plan, config.implementation, most) == 0
