"""`fljax.simulate`: anyone's arrays, module, loss, metrics and algorithm get the host loop."""

import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fljax
from fljax import accounting, models, schemes
from fljax.accounting import events
from fljax.errors import PrivacyPreconditionError
from fljax.schemes.central import dp_fedavg
from fljax.simulation import run
from tests._environment import COMPILING
from tests.simulation import _own_task as task

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("compiled_once")


def program(scheme, run_dir):
    """The task in a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "simulation" / "_own_task.py"), scheme, str(run_dir)],
        env=COMPILING
        | {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
            "JAX_PLATFORMS": "cpu",
            "PATH": "/usr/bin:/bin",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(run_dir):
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow(reason="whole runs, in processes of their own")
def test_a_killed_run_goes_on_to_the_same_bits_by_the_same_call(tmp_path):
    scheme = "lightdp"  # whose clients keep their uploads; the others: test_kill_everywhere.py

    def finished(run_dir):
        child = program(scheme, run_dir)
        out, err = child.communicate(timeout=300)
        assert child.returncode == 0, err
        return out.strip()

    reference = finished(tmp_path / "reference")
    child, run_dir, end = (
        program(scheme, tmp_path / "run"),
        tmp_path / "run",
        time.monotonic() + 300,
    )
    while lines(run_dir) < 3:
        assert child.poll() is None and time.monotonic() < end, child.communicate()
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    before = lines(run_dir)
    assert before < task.SETTINGS[scheme]["num_rounds"], "the run ended before it was killed"
    assert finished(run_dir) == reference
    assert (run_dir / "report.html").is_file()


@pytest.fixture(scope="module")
def ended(tmp_path_factory, compiled_once):
    return task.call(
        "dp_fedavg", tmp_path_factory.mktemp("own") / "run", baseline=True, num_rounds=12
    )


def by_hand(params, x):
    """The network in float64 NumPy."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    hidden = np.tanh(x @ p["hidden"]["kernel"] + p["hidden"]["bias"])
    return (hidden @ p["out"]["kernel"] + p["out"]["bias"])[:, 0]


@pytest.mark.slow(reason="a whole run")
def test_loss_and_metrics_are_those_of_the_final_model(ended):
    train, test = task.arrays()
    error = np.abs(by_hand(ended.params, test["x"]) - test["y"])
    np.testing.assert_allclose(
        [ended.loss, ended.metrics["mae"]], [(error**2).mean(), error.mean()], rtol=1e-5
    )
    assert ended.accuracy is None and ended.history[-1].test == {
        "loss": ended.loss,
        **ended.metrics,
    }
    own = np.abs(by_hand(ended.params, train["x"]) - train["y"])
    wanted = {name: own[train["user"] == name].mean() for name in np.unique(train["user"])}
    assert ended.client_metrics["mae"] == pytest.approx(wanted, rel=1e-5)
    assert [r.number for r in ended.history if r.test] == [1, 10, 12]
    assert ended.baseline_params is not None and set(ended.history[-1].baseline_test) == {
        "loss",
        "mae",
    }


@pytest.mark.slow(reason="whole runs")
def test_the_epsilon_is_that_of_the_rounds_at_the_calibrated_noise(ended):
    config = dp_fedavg.Config(sampling_prob=0.5, noise_multiplier=ended.noise_multiplier)
    event = dp_fedavg.event(config).repeat(12)
    assert ended.epsilon == accounting.epsilon(event, delta=0.01) <= 8.0
    assert ended.epsilon > 7.9 and (ended.num_units, ended.privacy_unit) == (12, "client")
    written = json.loads((ended.run_dir / "privacy.json").read_text())
    assert (
        written["epsilon"] == ended.epsilon and written["statement"]["guarantee"] == ended.statement
    )


@pytest.mark.slow(reason="a whole run and its report")
def test_the_report_has_the_metrics_and_no_accuracy(ended):
    text = ended.report.read_text()
    assert "mae over rounds" in text and "Your own metrics" in text and "held-out loss" in text
    assert "user-0 to user-9" in text and "one for each user" in text
    assert "Accuracy over rounds" not in text and "What the private model says" not in text


def test_the_same_call_again_returns_the_run_that_has_ended(ended):
    before = (ended.run_dir / "metrics.jsonl").read_bytes()
    again = task.call("dp_fedavg", ended.run_dir, baseline=True, num_rounds=12)
    assert (
        task.bits(again) == task.bits(ended)
        and (ended.run_dir / "metrics.jsonl").read_bytes() == before
    )


def without_ids(**changes):
    """The call's data without the users' column, and `changes`."""
    train, test = task.arrays()
    return {"data": {"x": train["x"], "y": train["y"]}, "test_data": test, **changes}


def changed_loss(params, example):
    return 2 * task.loss(params, example)


changed_loss.__name__ = "loss"  # by its name it is the same


def moved(**fields):
    train, test = task.arrays()
    return {"data": {**train, **fields}, "test_data": test}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"local_learning_rate": 0.06},
            r"local_learning_rate=0.05 in \[scheme\], got local_learning_rate=0.06",
        ),
        ({"num_rounds": 13}, r"num_rounds=12 in \[run\], got num_rounds=13"),
        ({"seed": "random"}, r"seed=5 in \[run\], got seed='random'"),
        ({"loss": changed_loss}, "another loss"),
        ({"metrics": {"mae": lambda p, a, e: 2 * task.mae(p, a, e)}}, "another metric mae"),
        (moved(x=np.roll(task.arrays()[0]["x"], 1, axis=0)), r"training x of clients \(client"),
        (moved(user=np.roll(task.arrays()[0]["user"], 1)), "another partition over clients"),
    ],
    ids=["setting", "rounds", "seed", "loss", "metric", "data", "clients"],
)
def test_what_changed_since_the_run_began_is_refused_by_name(ended, changes, words):
    before = (ended.run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=words):
        task.call("dp_fedavg", ended.run_dir, **{"baseline": True, "num_rounds": 12, **changes})
    assert (ended.run_dir / "metrics.jsonl").read_bytes() == before


def test_another_initial_model_or_program_is_refused_as_another_model(ended):
    params, apply = models.functional(task.net())
    given = {"baseline": True, "num_rounds": 12}
    for params_now, apply_now in (
        (jax.tree.map(lambda leaf: leaf + 1e-7, params), apply),
        (params, lambda params, x: apply(params, 1.0 * jnp.abs(x))),
    ):
        apply_now.__name__ = "Net"
        with pytest.raises(
            ValueError, match=r"go on as it began, got another (metric mae, )?model:"
        ):
            task.call("dp_fedavg", ended.run_dir, model=(params_now, apply_now), **given)


def test_the_command_line_says_why_it_cannot_go_on_with_it(ended, capsys):
    from fljax import cli

    assert cli.main(["simulate", "--resume", str(ended.run_dir)]) != 0
    said = capsys.readouterr().err
    assert "began with fljax.simulate: call that again" in said and said.count("\n") == 1


def mean_loss(params, example):
    return jnp.square(params["w"] - example["x"])


def algorithm(num_clients=20, noise_multiplier=2.0):
    config = dp_fedavg.Config(
        sampling_prob=0.5, noise_multiplier=noise_multiplier, local_learning_rate=0.01
    )
    return dp_fedavg.make(config, mean_loss, num_units=num_clients), dp_fedavg.event(config)


POINTS = {"x": np.linspace(-1, 1, 40).astype(np.float32)}
PAIRS = np.arange(40).reshape(20, 2)


def bare(run_dir, made, event, **changes):
    given = {
        "data": POINTS,
        "clients": PAIRS,
        "test_data": POINTS,
        "model": ({"w": np.float32(2.0)}, lambda p, x: p["w"]),
        "loss": mean_loss,
        "run_dir": run_dir,
        "seed": 1,
        "target_delta": 0.01,
        "num_rounds": 10,
        "accountant": "rdp",
        **changes,
    }
    return fljax.simulate(made, event=event, **given)


@pytest.mark.slow(reason="a whole run")
def test_a_bare_algorithm_stops_where_its_event_has_spent_the_budget(tmp_path):
    made, event = algorithm()
    after = [accounting.epsilon(event.repeat(count), delta=0.01) for count in range(1, 11)]
    budget = (after[5] + after[6]) / 2
    result = bare(tmp_path / "run", made, event, target_epsilon=budget)
    assert result.rounds == 6 and result.epsilon == after[5] and result.noise_multiplier is None
    assert [r.epsilon for r in result.history] == after[:6]
    assert result.loss < result.history[0].test["loss"]
    none = bare(tmp_path / "free", made, event, target_epsilon=None, baseline=False)
    assert none.rounds == 10 and none.epsilon == after[9]
    # The loop adds nothing to what the algorithm does: the same cohorts, the same keys.
    assert none.params["w"] != result.params["w"]
    with pytest.raises(ValueError, match="another scheme"):
        bare(
            tmp_path / "free",
            algorithm(noise_multiplier=3.0)[0],
            event,
            target_epsilon=None,
            baseline=False,
        )


def test_an_event_that_the_cohorts_or_the_data_contradict_is_refused(tmp_path):
    made, event = algorithm()  # of clients that join with chance 0.5
    rare = events.PoissonSampled(0.01, events.Gaussian(2.0))
    composed = events.Composed((events.Gaussian(9.0), events.SelfComposed(rare, 2)))
    for mechanism in (rare, composed):
        with pytest.raises(
            PrivacyPreconditionError, match=r"<= 0\.01, .*client_sampling_prob=0\.5"
        ):
            bare(tmp_path / "run", made, dataclasses.replace(event, mechanism=mechanism))
    with pytest.raises(PrivacyPreconditionError, match="subjects unknown"):
        bare(tmp_path / "run", made, dataclasses.replace(event, privacy_unit="subject"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow(reason="two whole runs")
def test_a_scheme_object_and_its_name_give_the_same_model(tmp_path):
    given = {"num_rounds": 2, "metrics": None}
    by_name = task.call("dp_fedavg", tmp_path / "name", **given)
    itself = task.call(
        schemes.get("dp_fedavg"), tmp_path / "object", **task.SETTINGS["dp_fedavg"] | given
    )
    assert (
        np.asarray(by_name.params["out"]["kernel"]).tobytes()
        == np.asarray(itself.params["out"]["kernel"]).tobytes()
    )
    assert by_name.epsilon == itself.epsilon


@pytest.mark.slow(reason="four whole runs")
def test_clients_are_the_same_by_column_by_table_by_rows_and_one_by_one(tmp_path):
    train, _ = task.arrays()
    names, owner = np.unique(train["user"], return_inverse=True)
    rows = [np.flatnonzero(owner == client) for client in range(names.size)]
    table = np.full((names.size, max(map(len, rows)) + 1), -1)
    for place, mine in zip(table, rows, strict=True):
        place[: mine.size] = mine
    bare_train = {"x": train["x"], "y": train["y"]}
    each = [{"x": train["x"][mine], "y": train["y"][mine]} for mine in rows]
    numbers = {**bare_train, "id": 10**12 + owner}
    found = [
        task.call(
            "dp_fedavg", tmp_path / str(at), num_rounds=2, data=data, clients=clients, metrics=None
        )
        for at, (data, clients) in enumerate(
            [
                (train, "user"),
                (bare_train, table),
                (bare_train, rows),
                (each, None),
                (numbers, "id"),
            ]
        )
    ]
    first = np.asarray(found[0].params["out"]["kernel"]).tobytes()
    assert all(np.asarray(one.params["out"]["kernel"]).tobytes() == first for one in found)
    assert {one.num_units for one in found} == {12}


def labelled(classes=3):
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 60)
    return {"x": (rng.normal(size=(60, 4)) + y[:, None]).astype(np.float32), "y": y}


@pytest.mark.slow(reason="a whole run")
def test_labels_and_a_named_loss_give_an_accuracy(tmp_path):
    data = labelled()
    shape = {
        "sampling_prob": 0.5,
        "num_rounds": 3,
        "target_epsilon": None,
        "noise_multiplier": 0.0,
        "seed": 0,
    }
    result = fljax.simulate(
        data=data,
        clients=np.arange(60).reshape(20, 3),
        test_data=data,
        model=models.Softmax,
        run_dir=tmp_path / "run",
        **shape,
    )
    logits = data["x"] @ np.asarray(result.params["logits"]["kernel"]) + np.asarray(
        result.params["logits"]["bias"]
    )
    assert result.accuracy == pytest.approx((logits.argmax(-1) == data["y"]).mean(), abs=1e-6)
    assert result.epsilon == float("inf") and "held-out accuracy" in result.report.read_text()


WRONG = {
    "nan": (
        moved(x=np.full((300, 5), np.nan, np.float32)),
        r"data\['x'\] to be finite, got nan in row 0",
    ),
    "rows": (moved(y=np.zeros(299, np.float32)), r"data\['[xy]'\] to have as many rows"),
    "shape": (
        moved(x=np.zeros((300, 4), np.float32)),
        r"x of data and of test_data to be alike, got float32\[4\]",
    ),
    "field": ({"clients": "owner"}, r"clients to name a field of data.*got clients='owner'"),
    "no test": ({"test_data": None}, "Expected test_data, held-out"),
    "test field": (
        {"test_data": {"x": np.zeros((3, 5), np.float32)}},
        r"test_data to have the fields \['x', 'y'\]",
    ),
    "empty client": (without_ids(clients=[np.arange(300), np.arange(0)]), "none at client 1"),
    "empty list": (
        without_ids(clients=None, data=[{"x": np.zeros((0, 5)), "y": np.zeros(0)}]),
        "at least one example",
    ),
    "twice": (without_ids(clients=[np.arange(300), np.array([5])]), "row 5 at clients 0 and 1"),
    "beyond": (without_ids(clients=[np.array([300])]), "indices < num_examples=300, got 300"),
    "floats": (without_ids(clients=np.zeros((2, 3))), "integers, got dtype float64"),
    "strings": ({"clients": None}, "ids that clients= names"),
    "mixed ids": (
        moved(user=np.array(["a", 1] * 150, object)),
        "all strings or all integers, got 1 in row 1",
    ),
    "float ids": (moved(user=np.zeros(300)), "to be integers or strings, got dtype float64"),
    "a flag's name": ({"client_column": "user"}, r"client_column='user'. Did you mean 'clients'"),
    "setting": ({"num_round": 3}, r"got unknown num_round=3. Did you mean 'num_rounds'"),
    "range": ({"num_rounds": 0}, "num_rounds to be an integer >= 1"),
    "type": ({"num_rounds": "ten"}, r"num_rounds in \[run\] to be of type int"),
    "model": ({"model": 3}, "Expected model to be a name, a flax nnx or linen module"),
    "loss shape": ({"loss": lambda params, example: example["x"]}, "to be one float"),
    "loss fails": (
        {"loss": lambda params, example: example["z"]},
        "to take one example {.*KeyError",
    ),
    "named loss": ({"loss": "cross_entropy"}, "integer labels y"),
    "metric name": ({"metrics": {"loss": task.mae}}, "identifiers other than"),
    "metric": (
        {"metrics": {"two": lambda p, a, e: jnp.zeros(2)}},
        "metric 'two' to be one number, or one for each",
    ),
    "event": (
        {"event": dp_fedavg.event(dp_fedavg.Config(noise_multiplier=1.0))},
        "event=None with a scheme",
    ),
    "observer": ({"observers": [print]}, "observers with start, round and stop"),
    "devices": ({"devices": 99}, "devices <= 8"),
    "budget": (
        {"noise_multiplier": 0.3, "target_epsilon": 0.1},
        "target_epsilon >= .* which one round spends",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_one_error_before_anything_is_compiled_or_written(
    case, tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "_run", None)
    changes, words = WRONG[case]
    with pytest.raises(ValueError, match=words) as refused:
        task.call("dp_fedavg", tmp_path / "run", **changes)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_labels_beyond_the_model_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_run", None)
    data, clients = labelled(), np.arange(60).reshape(20, 3)
    three = models.functional(models.Softmax((4,), 3, rngs=nnx.Rngs(0)), batched=False)
    data["y"][7] = 3
    with pytest.raises(
        ValueError, match=r"data\['y'\] to be in \[0, num_classes=3\), got 3 in row 7"
    ):
        fljax.simulate(
            data=data, clients=clients, test_data=labelled(), model=three, run_dir=tmp_path / "run"
        )
    with pytest.raises(
        ValueError, match=r"data\['y'\] to be in \[0, num_classes=2\), got 2 in row"
    ):
        fljax.simulate(
            data=labelled(),
            clients=clients,
            test_data=labelled(),
            num_classes=2,
            model=models.Softmax,
            run_dir=tmp_path,
        )
    assert not (tmp_path / "run").exists()


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="run_dir to be empty or new"):
        task.call("dp_fedavg", tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


@pytest.mark.slow(reason="whole runs")
def test_a_column_names_the_clients_on_the_command_line(tmp_path, capsys):
    from fljax import cli

    flags = [
        "--dataset",
        "writers",
        "--client-column",
        "subject",
        "--num-rounds",
        "1",
        "--sampling-prob",
        "0.05",
    ]
    flags += [
        "--model",
        "softmax",
        "--no-baseline",
        "--seed",
        "0",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    assert cli.main(["simulate", *flags]) == 0, capsys.readouterr().err
    claim = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert (
        claim["num_units"] == 400
        and 'client_column = "subject"' in (tmp_path / "run" / "config.toml").read_text()
    )
    assert (
        cli.main(["simulate", "--client-column", "author", "--run-dir", str(tmp_path / "other")])
        != 0
    )
    assert "client_column to be a field of the data, ['x', 'y']" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.slow(reason="a whole run")
def test_the_docs_program_runs(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "explain" / "runs.md").read_text()
    code = (
        text[text.index("```python\nimport jax\nimport numpy") :]
        .split("```")[1]
        .removeprefix("python\n")
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "runs.md", "exec"), {})
    epsilon, delta, mae, report = capsys.readouterr().out.split()
    assert 7.9 < float(epsilon) <= 8.0 and delta == "0.01" and report == "runs/mine/report.html"
    assert float(mae) < 2.0, "the model has learned nothing"
