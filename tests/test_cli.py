"""The command line: what it answers, and that each mistake costs one line and exit code 2."""

import dataclasses
import itertools
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from fljax import accounting, cli, schemes
from fljax.accounting import events
from fljax.accounting.words import rounded_up
from fljax.cli import _args, _sweep, simulate
from fljax.data import builtin, store
from fljax.simulation import budget
from fljax.simulation import config as config_lib
from fljax.simulation.observers import progress
from fljax.simulation.record import folder

QUICK = ["--num-clients", "20", "--num-rounds", "4", "--eval-every", "2", "--checkpoint-every", "2"]
QUICK += [
    "--seed",
    "0",
    "--model",
    "softmax",
    "--no-baseline",
    "--noise-multiplier",
    "2",
    "--target-epsilon",
    "none",
]


pytestmark = pytest.mark.usefixtures("compiled_once")


def call(capsys, *args):
    """(exit code, stdout, stderr)"""
    code = cli.main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *args):
    """The line on stderr of a call that must fail."""
    code, _, err = call(capsys, *args)
    assert code == 2 and re.fullmatch(r"fljax: error: [^\n]+\n", err), (code, err)
    return err


@pytest.fixture(scope="module")
def finished(tmp_path_factory, compiled_once):
    run_dir = tmp_path_factory.mktemp("cli") / "run"
    assert cli.main(["simulate", *QUICK, "--run-dir", str(run_dir)]) == 0
    return run_dir


@pytest.mark.parametrize(
    "args", [[], ["--help"], *([name, "--help"] for name in cli.COMMANDS)], ids=" ".join
)
def test_help_is_help(capsys, args):
    code, out, err = call(capsys, *args)
    assert code == 0 and "usage: fljax" in out and not err


def test_help_of_simulate_explains_every_flag_of_the_scheme(capsys):
    _, out, _ = call(capsys, "simulate", "--scheme", "dp_fedsgd", "--help")
    for flag in (
        "--privacy-unit",
        "--l2-clip-norm",
        "--num-clients",
        "--target-epsilon",
        "--resume",
        "--no-baseline",
    ):
        assert flag in out
    assert "--num-local-epochs" not in out


def test_schemes_lists_all_with_their_flags(capsys):
    code, out, _ = call(capsys, "schemes")
    assert code == 0
    for name in schemes.NAMES:
        assert f"{name}: {schemes.get(name).summary}" in out
    assert "--noise-multiplier calibrated" in out


def test_account_prints_what_the_accountants_say(capsys, compiled_once):
    flags = [
        "--noise-multiplier",
        1.1,
        "--sampling-prob",
        0.01,
        "--steps",
        1000,
        "--accountant",
        "rdp",
    ]
    code, out, _ = call(capsys, "account", *flags, "--cache-dir", compiled_once)
    one = events.PoissonSampled(0.01, events.Gaussian(1.1))
    event = events.PrivacyEvent(
        mechanism=one,
        privacy_unit="example",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    assert (
        code == 0
        and rounded_up(accounting.epsilon(event.repeat(1000), delta=1e-5, method="rdp")) in out
    )
    for word in ("Assumed", "1000 steps", "chance 0.01", "ADD_OR_REMOVE_ONE", "delta = 1e-05"):
        assert word in out


def test_a_sweep_writes_a_table_and_a_picture(capsys, compiled_once, tmp_path):
    out = tmp_path / "new" / "grid.csv"
    sweeps = ["--sweep", "noise=0.8:1.6:3", "--sweep", "q=0.01,0.02"]
    flags = ["--steps", 1000, "--accountant", "rdp", "--output", out, "--cache-dir", compiled_once]
    code, text, err = call(capsys, "account", *sweeps, *flags)
    assert code == 0 and "6 configurations" in text and "Assumed" in text, err
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert rows[0] == ["noise_multiplier", "sampling_prob", "steps", "delta", "epsilon_upper_rdp"]
    for noise, prob, steps, delta, epsilon in (map(float, row) for row in rows[1:]):
        step = events.PoissonSampled(prob, events.Gaussian(noise))
        event = accounting.PrivacyEvent(
            mechanism=events.SelfComposed(step, int(steps)),
            privacy_unit="example",
            neighboring_relation="ADD_OR_REMOVE_ONE",
        )
        expected = accounting.epsilon(event, delta=delta, method="rdp")
        assert expected * (1 - 1e-9) <= epsilon <= expected * (1 + 1e-8)
    drawn = out.with_suffix(".svg").read_text().partition("</desc>")[2]
    assert drawn.count("sampling_prob") == 2  # one legend entry for each rate


def test_a_trade_off_curve_is_drawn(capsys, compiled_once, tmp_path):
    picture = tmp_path / "curve.svg"
    flags = [
        "--noise-multiplier",
        1.0,
        "--accountant",
        "gdp",
        "--tradeoff",
        picture,
        "--cache-dir",
        compiled_once,
    ]
    code, text, err = call(capsys, "account", *flags)
    assert code == 0 and str(picture) in text, err
    assert "false-negative rate" in picture.read_text()


def test_the_trade_off_curve_is_just_below_the_exact_one_of_a_gaussian():
    event = accounting.PrivacyEvent(
        mechanism=events.Gaussian(1.0),
        privacy_unit="example",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )
    fpr, fnr = _sweep.trade_off(event)
    exact = np.asarray(accounting.gaussian.trade_off(1.0, fpr))
    assert np.all(fnr <= exact + 1e-12)
    assert np.max(exact - fnr) < 0.02 and fnr[-1] == 0


def test_account_says_who_has_no_bound(capsys, compiled_once):
    flags = [
        "--noise-multiplier",
        2.0,
        "--neighboring-relation",
        "REPLACE_SPECIAL",
        "--cache-dir",
        compiled_once,
    ]
    code, out, err = call(capsys, "account", *flags, "--sampling-prob", 0.5, "--accountant", "gdp")
    assert code == 2 and "no bound" in out and "Assumed" not in out
    assert "got accountant='gdp'" in err and err.count("\n") == 1
    code, out, _ = call(capsys, "account", *flags, "--accountant", "gdp")
    assert code == 0 and "0.5-GDP" in out and "every unit joins" in out


def test_no_bound_by_anybody_is_an_error(capsys, compiled_once):
    sampled = ["--sampling-prob", 0.01, "--cache-dir", compiled_once]
    for command in (["account", "--noise-multiplier", 2.0], ["calibrate", "--epsilon", 1.0]):
        code, out, err = call(capsys, *command, *sampled, "--accountant", "gdp")
        assert code == 2 and "no bound" in out and "certified: yes" not in out
        assert "Expected an accountant with a bound for this mechanism, got accountant=" in err


def test_a_sampled_unit_that_is_exchanged_counts_with_its_own_norm_and_the_others(
    capsys, compiled_once
):
    """dp-accounting's PLD accountant, whose noise is relative to one unit's norm, says 0.344366 at
    2 clip norms and 0.160220 at 4.
    """
    flags = ["--neighboring-relation", "REPLACE_ONE", "--sampling-prob", 0.01, "--steps", 100]
    flags += ["--delta", 1e-5, "--cache-dir", compiled_once, "--json"]
    for noise, theirs in ((1.0, 0.344366), (2.0, 0.160220)):
        code, out, _ = call(capsys, "account", "--noise-multiplier", noise, *flags)
        told = json.loads(out)["result"]
        assert code == 0 and "exchanging it by at most twice that" in told["assumed"]
        assert told["rows"][0]["epsilon_lower"] < theirs < told["rows"][0]["epsilon_upper"]
        assert told["rows"][0]["epsilon_upper"] < theirs + 1e-4


def test_more_steps_than_can_be_counted_are_refused_by_name(capsys):
    for command in (["account", "--noise-multiplier", 1.0], ["calibrate", "--epsilon", 1.0]):
        line = refused(
            capsys, *command, "--sampling-prob", 0.01, "--steps", 99999999999999999999999
        )
        assert "Expected steps <= 9007199254740992, got steps=99999999999999999999999" in line


@pytest.mark.slow(reason="a whole run, for its warning")
def test_a_warning_is_one_plain_line_of_the_terminal_and_of_the_report(tmp_path):
    """In processes of their own: in this one warnings are errors."""
    little = ["--noise-multiplier", "0.001", "--cache-dir", str(tmp_path / "cache")]
    simulate = [
        "--target-delta",
        "1e-5",
        "--sampling-prob",
        "1",
        "--num-rounds",
        "1",
        "--accountant",
        "rdp",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    for args in (
        ["account", *little, "--accountant", "rdp"],
        ["simulate", *QUICK, *little[:2], *simulate],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "fljax", *args], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        said = done.stdout + done.stderr
        (line,) = [line for line in said.splitlines() if "best Renyi order" in line]
        assert (
            line.startswith(("fljax: note: ", "note               "))
            and "Warning" not in said
            and ".py:" not in said
        )
    report = (tmp_path / "run" / folder.REPORT).read_text()
    assert report.count("The best Renyi order, 1.005, is at the end of the grid") == 1


def test_noise_that_hides_nothing_is_never_certified(capsys):
    for prob in (1.0, 0.01):
        code, out, err = call(capsys, "account", "--noise-multiplier", 0, "--sampling-prob", prob)
        assert (
            code == 2
            and not out
            and "Expected noise_multiplier > 0 and finite, got noise_multiplier=0" in err
        )
    code, out, err = call(capsys, "account", "--noise-multiplier", 1e-200, "--accountant", "gdp")
    assert code == 2 and "yes" not in out and "epsilon is infinite" in err


def test_calibrate_finds_the_noise_for_a_risk(capsys):
    # Of four Gaussian releases in closed form: mu is the difference of two normal quantiles.
    for flags in (
        ["--tpr", 0.1, "--fpr", 0.01],
        ["--reconstruction", 0.1, "--prior", 0.01],
    ):
        code, out, _ = call(capsys, "calibrate", *flags, "--steps", 4, "--accountant", "gdp")
        assert code == 0 and "1.91426" in out and f"at {flags[2][2:]} 0.01" in out
    code, out, _ = call(capsys, "calibrate", "--advantage", 0.2, "--accountant", "gdp")
    assert code == 0 and "1.9735" in out and "advantage with it" in out


def test_calibrate_and_account_are_inverse(capsys, compiled_once):
    flags = [
        "--sampling-prob",
        0.01,
        "--steps",
        500,
        "--accountant",
        "rdp",
        "--cache-dir",
        compiled_once,
    ]
    _, out, _ = call(capsys, "calibrate", "--epsilon", 2.0, *flags)
    noise_multiplier = re.search(r"rdp\D+([\d.]+)", out).group(1)
    _, out, _ = call(capsys, "account", "--noise-multiplier", noise_multiplier, *flags)
    at_most = re.search(r"rdp\D+[\d.e-]+\D+([\d.]+)", out).group(1)
    assert float(at_most) == pytest.approx(2.0, abs=1e-4)


def test_simulate_writes_the_folder_and_says_how_it_ended(capsys, tmp_path):
    code, out, _ = call(capsys, "simulate", *QUICK, "--run-dir", tmp_path / "run", "--seed", 9)
    assert code == 0
    claim = json.loads((tmp_path / "run" / folder.PRIVACY).read_text())
    record = folder.read_metrics(tmp_path / "run")[-1]
    assert f"private      {record['test_accuracy']:.1%}" in out and "non-private" not in out
    assert f"epsilon {budget.shown_epsilon(claim['epsilon'])}" in out
    assert f"delta {rounded_up(claim['delta'], 3)}" in out
    assert (
        str(tmp_path / "run" / folder.REPORT) in out
        and (tmp_path / "run" / folder.REPORT).is_file()
    )
    assert re.search(r"round 4/4 .*accuracy .*epsilon .*rounds/s", out)


def test_a_run_that_cannot_start_leaves_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(capsys, "simulate", "--num-clients", "100000")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow(reason="a whole run")
def test_data_in_a_folder_need_no_run_dir(capsys, tmp_path, monkeypatch):
    """The run folder's name is made of the data's, which here is a path."""
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((2, 4, 4, 1), np.float32), np.array([0, 1], np.int32)
    store.write(tmp_path / "Mine" / "train", [{"x": x, "y": y}] * 20)
    store.write(tmp_path / "Mine" / "test", [{"x": x, "y": y}])
    code, out, err = call(
        capsys, "simulate", *QUICK, "--num-rounds", 1, "--dataset", f"disk:{tmp_path}/Mine"
    )
    assert code == 0, err
    (made,) = (tmp_path / "runs").iterdir()
    assert (
        re.fullmatch(r"disk-[a-z0-9._-]+-mine-dp_fedavg-001", made.name)
        and f"runs/{made.name}" in out
    )
    assert (made / folder.REPORT).is_file()
    for name in ("idx:/no/where", "cifar:./x"):
        assert name.split(":")[1].strip("./") in refused(capsys, "simulate", "--dataset", name)
    assert list((tmp_path / "runs").iterdir()) == [made]


@pytest.mark.slow(reason="a whole run by the command, stopped and resumed")
def test_ctrl_c_stops_after_a_checkpoint_and_says_how_to_go_on(capsys, tmp_path, monkeypatch):
    class Impatient(progress.Lines):
        def round(self, record):
            if record["round"] == 3:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress, "observer", lambda console: Impatient())
    run_dir = tmp_path / "run"
    code, _, err = call(capsys, "simulate", *QUICK, "--run-dir", run_dir)
    assert code == 130
    assert (
        err == f"fljax: stopped after 3 of 4 rounds; to go on: fljax simulate --resume {run_dir}\n"
    )
    assert (run_dir / "checkpoints" / "3").is_dir()


def test_help_comes_without_importing_jax():
    """And so does an error in the command's name: the whole package is importable in a blink."""
    code = "import sys, fljax.cli; fljax.cli.main(['--help']); sys.exit('jax' in sys.modules)"
    root = pathlib.Path(__file__).parents[1]
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={"PYTHONPATH": "."},
        check=True,
        capture_output=True,
    )


@pytest.mark.slow(reason="whole runs")
def test_resuming_a_finished_run_says_the_same(capsys, finished):
    code, out, _ = call(capsys, "simulate", "--resume", finished)
    assert code == 0 and "held-out accuracy" in out and "round 4/4" not in out


@pytest.mark.slow(
    reason="parses the flags of one more scheme",
    but=[
        "bidirectional",
        "dp_fedavg",
        "dp_fedbuff",
        "fedavg",
        "gsgd_dp",
        "higradavg",
        "lightdp",
        "user_ldp",
        "white_channel",
    ],
)
@pytest.mark.parametrize("name", schemes.NAMES)
def test_what_schemes_prints_is_what_simulate_starts_from(capsys, name):
    _, out, _ = call(capsys, "schemes")
    lines = f"\n{out}".partition(f"\n{name}: ")[2].splitlines()[1:]
    mine = itertools.takewhile(lambda line: line.startswith("  --"), lines)
    flags = [word for line in mine for word in line.split()]
    assert simulate.parse(["--scheme", name, *flags])[0] == config_lib.from_sections(
        {"scheme": {"scheme": name}}
    )
    settings = dataclasses.fields(schemes.get(name).Config)
    assert all(
        f"--{field.name.replace('_', '-')}" in re.sub("--no-", "--", " ".join(flags))
        for field in settings
    )


BAD_FLAGS = [
    (["fly"], ["'fly'", "simulate"]),
    (
        ["simulate", "--sampling-prob", "0"],
        ["sampling_prob=0", "(0, 1]"],
    ),  # no cohort can be anything but empty
    (["simulate", "--num-clients", "0"], ["num_clients=0", ">= 1"]),
    (["simulate", "--num-clients", "100000"], ["num_clients=100000", "<= 1438"]),
    (["simulate", "--target-delta", "0"], ["target_delta=0", "(0, 1)"]),
    (["simulate", "--l2-clip-norm", "-1"], ["l2_clip_norm=-1", "> 0"]),
    (["simulate", "--l2-clip-norm", "nan"], ["l2_clip_norm=nan", "> 0"]),
    (["simulate", "--target-epsilon", "-3"], ["target_epsilon=-3", "> 0"]),
    (
        ["simulate", "--noise-multiplier", "0.1", "--target-epsilon", "1"],
        ["target_epsilon=1", "noise_multiplier=0.1"],
    ),
    (["simulate", "--num-rounds", "2.5"], ["--num-rounds", "2.5"]),
    (["simulate", "--num-rounds"], ["--num-rounds"]),
    (["simulate", "--number-of-rounds", "3"], ["--number-of-rounds"]),
    (["simulate", "--scheme", "dp_sgdd"], ["scheme='dp_sgdd'", "dp_fedavg"]),
    (["simulate", "--scheme", "dp_fedsgd", "--num-local-epochs", "3"], ["--num-local-epochs"]),
    (["simulate", "nowhere.toml"], ["nowhere.toml"]),
    (["simulate", "--resume", "nowhere"], ["nowhere", "config.toml"]),
    (["simulate", "--resume", "nowhere", "--seed", "3"], ["--resume", "no other flag"]),
    (["account"], ["--noise-multiplier"]),
    (["account", "--noise-multiplier", "-1"], ["noise_multiplier=-1", ">= 0"]),
    (
        ["account", "--noise-multiplier", "1", "--accountant", "moments"],
        ["--accountant", "moments"],
    ),
    (["account", "--noise-multiplier", "1", "--delta", "0"], ["delta=0", "(0, 1)"]),
    (
        ["account", "--noise-multiplier", "1", "--sampling-prob", "1.5"],
        ["sampling_prob=1.5", "(0, 1]"],
    ),
    (["account", "--noise-multiplier", "1", "--steps", "0"], ["steps=0", ">= 1"]),
    (
        ["account", "--noise-multiplier", "1", "--sweep", "sigma=1:2:3"],
        ["sweep='sigma=1:2:3'", "noise"],
    ),
    (["account", "--sweep", "noise=1:2"], ["sweep='noise=1:2'", "LOW:HIGH:COUNT"]),
    (["account", "--sweep", "noise=1,2", "--sweep", "noise=3"], ["once", "noise_multiplier"]),
    (["account", "--sweep", "noise=0:1:5"], ["noise_multiplier=0.0", "> 0"]),
    (["account", "--sweep", "q=0.01,0.02"], ["noise_multiplier=0.0", "> 0"]),
    (["account", "--sweep", "noise=1,2", "--neighboring-relation", "REPLACE_ONE"], ["REPLACE_ONE"]),
    (["account", "--sweep", "noise=1,2", "--accountant", "gdp"], ["accountant='gdp'"]),
    (["calibrate", "--epsilon", "0"], ["epsilon=0", "> 0"]),
    (["calibrate"], ["--epsilon, or a risk"]),
    (["calibrate", "--tpr", "0.1"], ["tpr with fpr"]),
    (["calibrate", "--advantage", "2"], ["advantage=2", "(0, 1)"]),
    (["calibrate", "--epsilon", "1", "--advantage", "0.1"], ["--epsilon or a risk"]),
    (["calibrate", "--epsilon", "1", "--delta", "1"], ["delta=1", "(0, 1)"]),
    (["schemes", "all"], ["'all'"]),
]


@pytest.mark.parametrize(
    ("args", "words"), BAD_FLAGS, ids=[" ".join(args) for args, _ in BAD_FLAGS]
)
def test_a_bad_flag_is_one_line_that_names_it(capsys, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, *args)
    for word in words:
        assert word in line


def test_an_unknown_key_in_the_config_is_one_line_that_names_it(capsys, tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("[run]\nrounds = 3\n")
    line = refused(capsys, "simulate", path)
    assert "'rounds'" in line and "[run]" in line and "num_rounds" in line
    path.write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(capsys, "simulate", path)


def test_nan_data_is_one_line_that_names_the_row(capsys, tmp_path, monkeypatch):
    original = builtin.load("digits")
    x = original.train["x"].copy()
    x[17] = np.nan
    broken = original._replace(train=original.train | {"x": x})
    monkeypatch.setattr("fljax.data.load", lambda name: broken)
    line = refused(capsys, "simulate", *QUICK, "--run-dir", tmp_path / "run")
    assert "train['x']" in line and "finite" in line and "row 17" in line


@pytest.mark.slow(reason="a whole run")
def test_a_folder_in_use_is_one_line_that_says_how_to_resume(capsys, finished):
    before = sorted(p.name for p in finished.iterdir())
    assert f"--resume {finished}" in refused(capsys, "simulate", *QUICK, "--run-dir", finished)
    assert sorted(p.name for p in finished.iterdir()) == before


def _foreign(run_dir):
    shutil.rmtree(run_dir / "checkpoints" / "4")
    (run_dir / "checkpoints" / "4").mkdir()
    (run_dir / "checkpoints" / "4" / "model.bin").write_bytes(b"foreign")


def _truncated(run_dir):
    biggest = max(
        (p for p in (run_dir / "checkpoints" / "4").rglob("*") if p.is_file()),
        key=lambda p: p.stat().st_size,
    )
    biggest.write_bytes(biggest.read_bytes()[:-10])


def _of_another_config(run_dir):
    path = run_dir / folder.CONFIG
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))


@pytest.mark.slow(reason="whole runs")
@pytest.mark.parametrize("damage", [_foreign, _truncated, _of_another_config])
def test_a_bad_checkpoint_is_one_line_and_the_one_before_stays_usable(
    capsys, finished, tmp_path, damage
):
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    damage(run_dir)
    assert "checkpoints/4" in refused(capsys, "simulate", "--resume", run_dir)
    if damage is _of_another_config:
        return
    shutil.rmtree(run_dir / "checkpoints" / "4")  # as the error says
    assert call(capsys, "simulate", "--resume", run_dir)[0] == 0
    for name in (folder.METRICS, folder.PRIVACY):
        assert (run_dir / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.slow(reason="a whole run")
def test_metrics_that_lost_lines_are_one_line(capsys, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / folder.METRICS).write_text("")
    assert "metrics.jsonl" in refused(capsys, "simulate", "--resume", tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("epsilon", 0.001, ["Line 2 has epsilon=0.001, the ledger"]),
        ("round", 3, ["Line 2 has round=3, the ledger 2"]),
        ("test_accuracy", 0.99, ["lines that were changed"]),
        ("cohort_size", 20, ["lines that were changed"]),
    ],
)
def test_metrics_that_were_edited_are_refused(capsys, finished, tmp_path, name, value, words):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / folder.METRICS
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {name: value})
    edited = "\n".join(lines) + "\n"
    path.write_text(edited + " " * max(0, (finished / folder.METRICS).stat().st_size - len(edited)))
    before = path.read_bytes()
    line = refused(capsys, "simulate", "--resume", tmp_path / "run")
    assert "metrics.jsonl" in line and all(word in line for word in words)
    assert path.read_bytes() == before


def test_the_terminal_is_as_wide_as_before():
    import os

    before = os.environ.get("COLUMNS")
    with _args._columns(2000):
        assert os.environ["COLUMNS"] == "2000"
    assert os.environ.get("COLUMNS") == before


def test_help_beside_resume_is_help(capsys):
    code, out, err = call(capsys, "simulate", "--resume", "nowhere", "--help")
    assert code == 0 and "--devices" in out and not err


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        (None, [], "Expected --tune to name a file"),
        ("[search\n", [], "to be TOML"),
        ("[scheme]\nl2_clip_norm = [1.0]\n", [], "Expected mean in [search]"),
        ("[search]\nmeen = 2\n[scheme]\nl2_clip_norm = [1.0]\n", [], "unknown key 'meen'"),
        ("[search]\nmean = 2\n", [], "Expected a grid with values"),
        ("[search]\nmean = 2\n[scheme]\nl2_clip_norm = 1.0\n", [], "to be a list of values"),
        ("[search]\nmean = 2\n[scheme]\nl2_clip_norm = [1.0]\n", ["--tensorboard"], "tensorboard"),
    ],
)
def test_a_grid_that_is_none_is_refused_in_one_line(capsys, tmp_path, text, flags, said):
    path = tmp_path / "grid.toml"
    if text is not None:
        path.write_text(text)
    code, _, err = call(capsys, "simulate", "--tune", path, *flags)
    assert code == 2 and said in err and err.count("\n") == 1
