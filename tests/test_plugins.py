"""A package that fljax does not know brings a scheme, a mechanism, a data set and a model;
`tests/plugin` holds it.
"""

import ast
import importlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tomllib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import fljax
from fljax import attacks, cli, data, models, schemes, testing
from fljax.accounting import events, mechanisms
from fljax.attacks import rounds
from fljax.data import builtin
from fljax.models import classifiers
from fljax.simulation.record import folder

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = pathlib.Path(__file__).parent / "plugin"
# The same things by their entry points, and by dotted paths.
BY_NAME = ["--scheme", "bits", "--dataset", "rings", "--model", "quadratic"]
BY_PATH = ["--scheme", "own_package.bits", "--dataset", "own_package.parts.rings"]
BY_PATH += ["--model", "own_package.parts.Quadratic"]
SHORT = ["--seed", "3", "--num-rounds", "6", "--eval-every", "2", "--checkpoint-every", "2"]
SHORT += ["--groups", "2"]  # the same order of additions wherever it runs
# The same run from Python.
CALL = """
import fljax

def call(run_dir):
    settings = {"seed": 3, "num_rounds": 6, "eval_every": 2, "checkpoint_every": 2, "groups": 2}
    settings |= {"data": "rings", "model": "quadratic", "devices": 1}
    return fljax.simulate("bits", run_dir=run_dir, **settings)
"""
# A run that a kill -9 ends in its fifth round, behind the checkpoint of the fourth.
KILLED = """
import os, signal, sys
from fljax import cli
from fljax.simulation.record import folder

append = folder.Metrics.append

def until_the_fifth(metrics, line):
    append(metrics, line)
    if line.startswith('{"round": 5'):
        os.kill(os.getpid(), signal.SIGKILL)

folder.Metrics.append = until_the_fifth
"""


def installed(site, entry_points):
    """What `pip install` would leave of the package: its modules, and a dist-info with its entry
    points.
    """
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    shutil.copytree(
        PACKAGE / "own_package", site / "own_package", ignore=shutil.ignore_patterns("__pycache__")
    )
    info = site / "own_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"] if entry_points else {}
    lines = [
        f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in found.items())
        for group, found in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def forget():
    """The process as it was before the package was imported."""
    for name in [
        name for name in sys.modules if name.split(".")[0] in ("own_package", "broken_package")
    ]:
        del sys.modules[name]
    for registry in (
        schemes._registry,
        builtin._registry,
        classifiers._registry,
        attacks._registry,
    ):
        for name in ("bits", "rings", "quadratic", "votes"):
            registry.forget(name)


@pytest.fixture
def site_factory(tmp_path, monkeypatch):
    """entry_points -> the folder in which the package is installed, with its entry points or
    without.
    """
    monkeypatch.setattr(events, "RECORDS", dict(events.RECORDS))
    monkeypatch.setattr(mechanisms, "_RULES", {})
    where = tmp_path / "site"
    where.mkdir()

    def make(entry_points):
        installed(where, entry_points)
        monkeypatch.syspath_prepend(str(where))
        return where

    yield make
    forget()


@pytest.fixture
def site(site_factory, request):
    """The package, installed in a folder of its own."""
    return site_factory(getattr(request, "param", True))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_package_is_short_and_imports_public_names_only():
    files = sorted(PACKAGE.rglob("*.py"))
    assert (
        sum(len(path.read_text().splitlines()) for path in [*files, PACKAGE / "pyproject.toml"])
        < 120
    )
    ours = {
        name for path in files for name in imported(path) if name.split(".")[0].startswith("fljax")
    }
    assert ours and all(len(name.split(".")) <= 3 for name in ours)  # a room, and a name in it
    for path in files:
        words = [
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
        ]
        words += [part for name in imported(path) for part in name.split(".")]
        assert not [word for word in words if word.startswith("_")]


def simulated(args, run_dir):
    assert cli.main(["simulate", *args, "--run-dir", str(run_dir)]) == 0
    return folder.read_metrics(run_dir)


def killed(code, args, site):
    """A process of its own that runs `code` and ends with SIGKILL."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels"), str(site)])
    }
    command = [sys.executable, "-c", KILLED + code, *args]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.slow(reason="whole runs in processes of their own")
def test_a_run_of_an_installed_package_that_kill_9_ends_goes_on_to_the_same_bits(
    site, tmp_path, capsys
):
    whole = simulated([*BY_NAME, *SHORT], tmp_path / "whole")
    assert "epsilon" in capsys.readouterr().out
    said = json.loads((tmp_path / "whole" / folder.PRIVACY).read_text())
    assert said["certified"] and said["privacy_unit"] == "client" and said["epsilon"] <= 4.0
    assert "a bit flipped with chance" in said["statement"]["guarantee"]
    cut = tmp_path / "cut"
    args = ["simulate", *BY_NAME, *SHORT, "--devices", "1", "--run-dir", str(cut)]
    killed("cli.main(sys.argv[1:])", args, site)
    assert len(folder.read_metrics(cut)) == 5
    assert cli.main(["simulate", "--resume", str(cut)]) == 0
    assert folder.read_metrics(cut) == whole
    assert json.loads((cut / folder.PRIVACY).read_text()) == said


@pytest.mark.release(reason="a run of the command is killed too")
@pytest.mark.slow(reason="whole runs in processes of their own")
def test_from_python_it_is_the_same_run_and_goes_on_likewise_after_kill_9(site, tmp_path):
    by_command = simulated([*BY_NAME, *SHORT], tmp_path / "command")
    namespace = {}
    exec(CALL, namespace)
    whole = namespace["call"](tmp_path / "whole")
    cut = tmp_path / "cut"
    killed(CALL + "call(sys.argv[1])", [str(cut)], site)
    assert len(folder.read_metrics(cut)) == 5
    again = namespace["call"](cut)
    assert folder.read_metrics(cut) == folder.read_metrics(tmp_path / "whole")
    chex.assert_trees_all_equal(whole.params, again.params)
    private = ("round", "epsilon", "train_loss", "test_loss", "test_accuracy", "cohort_size")
    same = [
        [{name: row[name] for name in private if name in row} for row in rows]
        for rows in (by_command, folder.read_metrics(cut))
    ]
    assert same[0] == same[1]
    assert "a bit flipped with chance" in whole.statement


@pytest.mark.slow(reason="whole runs")
@pytest.mark.parametrize("site", [False], indirect=True)
def test_a_scheme_that_has_no_name_runs_on_arrays(site, tmp_path):
    bits, parts = (importlib.import_module(f"own_package.{name}") for name in ("bits", "parts"))
    rings = parts.rings()
    result = fljax.simulate(
        bits.SCHEME,
        data=rings.train,
        test_data=rings.test,
        model=parts.Quadratic,
        loss="cross_entropy",
        num_rounds=2,
        baseline=False,
        run_dir=tmp_path / "run",
    )
    assert result.rounds == 2 and 0 < result.epsilon <= 4.0


@pytest.mark.slow(reason="two whole runs")
@pytest.mark.parametrize("site", [False], indirect=True)
def test_dotted_paths_and_registered_names_give_the_same_run(site, tmp_path, capsys):
    by_path = simulated([*BY_PATH, *SHORT], tmp_path / "by_path")
    bits, parts = (importlib.import_module(f"own_package.{name}") for name in ("bits", "parts"))
    with pytest.raises(ValueError, match="to be one of"):
        schemes.get("bits")
    schemes.register("bits", bits.SCHEME)
    data.register("rings", parts.rings)
    models.register("quadratic", parts.Quadratic)
    assert simulated([*BY_NAME, *SHORT], tmp_path / "by_name") == by_path
    assert schemes.get("bits") is bits.SCHEME and "quadratic" in models.names()
    np.testing.assert_array_equal(data.load("rings").train["y"], parts.rings().train["y"])
    capsys.readouterr()
    assert cli.main(["schemes"]) == 0
    assert (
        "bits: one bit a client, which lies now and then; unit: client (registered by "
        "own_package.bits)" in (capsys.readouterr().out)
    )


@pytest.mark.slow(reason="whole runs, begun and refused")
@pytest.mark.parametrize("site", [False], indirect=True)
@pytest.mark.filterwarnings("ignore::fljax.accounting.OrderWarning")
def test_a_run_does_not_go_on_with_other_code_behind_its_names(site, tmp_path, monkeypatch, capsys):
    """Rounds that are taken again would draw the same noise for another sum."""
    bits, parts = (importlib.import_module(f"own_package.{name}") for name in ("bits", "parts"))
    simulated([*BY_PATH, *SHORT, "--num-rounds", "1"], tmp_path / "run")
    again = ["simulate", "--resume", str(tmp_path / "run")]
    assert cli.main(again) == 0

    class Steeper:
        take_examples = staticmethod(bits.sgd.take_examples)

        @staticmethod
        def masked_mean_loss(loss, plain=bits.sgd.masked_mean_loss):
            return lambda params, batch, mask: 2 * plain(loss)(params, batch, mask)

    changes = [
        (bits, "sgd", Steeper, "another scheme:"),
        (parts.Quadratic, "__call__", lambda self, x: self.logits(x.reshape(-1)), "another model"),
    ]
    for where, name, other, told in changes:
        with monkeypatch.context() as patched:
            patched.setattr(where, name, other)
            capsys.readouterr()
            assert cli.main(again) != 0 and told in capsys.readouterr().err


@pytest.mark.slow(reason="plays thousands of rounds")
@pytest.mark.filterwarnings("ignore::fljax.accounting.OrderWarning")
def test_an_audit_plays_against_it(site, tmp_path, capsys):
    assert (
        cli.main(
            ["audit", "--scheme", "bits", "--trials", "300", "--run-dir", str(tmp_path / "audit")]
        )
        == 0
    )
    assert "bits" in capsys.readouterr().out


def test_an_entry_point_is_found_and_said(site):
    assert "bits" in schemes.names() and schemes.get("bits").summary.startswith("one bit")
    assert schemes.origin("bits") == "own_package.bits of own-package"


def break_in(site):
    """A second package, whose modules cannot be imported, in every group."""
    (site / "broken_package.py").write_text("import a_package_that_is_not_there\n")
    info = site / "broken_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1.0\n")
    groups = ("schemes", "datasets", "models", "mechanisms", "attacks")
    (info / "entry_points.txt").write_text(
        "\n".join(f"[fljax.{g}]\nbroken = broken_package:x" for g in groups)
    )
    importlib.invalidate_caches()


@pytest.mark.slow(reason="the command, with every kind of plug-in")
def test_a_package_that_fails_breaks_nothing_else(site, capsys):
    break_in(site)
    with pytest.warns(UserWarning, match=r"'broken' cannot be loaded: .*broken-package"):
        assert "broken" in schemes.names() and "broken" not in rounds.promising()
    assert cli.main(["schemes"]) == 0
    out = capsys.readouterr().out
    assert (
        "broken: cannot be loaded." in out and "white_channel: " in out and "bits: one bit" in out
    )
    assert out.count("broken") > 8 and "  rings (own_package.parts:rings of own-package)" in out
    for kind in ("data sets", "models", "mechanisms", "attacks"):
        part = out.partition(f"\n{kind} (")[2].partition("\n\n")[0]
        assert re.search(r"^  broken.*cannot be loaded", part, flags=re.MULTILINE), kind
    for call in (schemes.get, data.load, lambda name: models.check_name(name=name)):
        with pytest.raises(
            ValueError, match=r"broken_package:x of broken-package to load: .*not_there"
        ):
            call("broken")


@pytest.mark.slow(reason="a whole run by the command")
def test_a_package_that_fails_stops_no_run(site, tmp_path):
    break_in(site)
    simulated([*BY_NAME, "--num-rounds", "1", "--no-baseline"], tmp_path / "run")
    assert (tmp_path / "run" / "report.html").is_file()


def test_two_packages_with_one_name_are_both_named(site):
    break_in(site)
    (site / "broken_package-1.0.dist-info" / "entry_points.txt").write_text(
        "[fljax.schemes]\nbits = broken_package:x"
    )
    importlib.invalidate_caches()
    with pytest.raises(
        ValueError,
        match=r"one package with scheme 'bits', got several: broken-package, own-package",
    ):
        schemes.get("bits")


@pytest.mark.parametrize("name", ["./mnist", "../x", ".x", "a..b", "x.", "a b.c"])
def test_a_path_that_is_no_dotted_name_is_an_unknown_name(name):
    for call in (schemes.get, data.load, lambda name: models.check_name(name=name)):
        with pytest.raises(ValueError, match="to be one of"):
            call(name)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: schemes.register("dp_fedavg", schemes.get("dp_fedavg")),
            "does not use itself, got name='dp_fedavg'",
        ),
        (lambda: schemes.register("own", object()), "to be a fljax.Scheme, got object"),
        (lambda: schemes.get("own_package.parts"), "to have 'SCHEME'"),
        (lambda: schemes.get("own_package.parts.rings"), "to be a fljax.Scheme, got function"),
        (lambda: schemes.get("own_package.nothing"), "own_package.nothing"),
        (lambda: schemes.get("no_package.scheme"), "got scheme=.no_package"),
        (lambda: schemes.get("dp_fedavgg"), "Did you mean 'dp_fedavg'"),
        (lambda: data.register("digits", lambda: None), "does not use itself, got name='digits'"),
        (lambda: data.register("a/b", lambda: None), "got name='a/b'"),
        (lambda: data.load("own_package.parts.Quadratic"), "argument"),
        (lambda: models.register("", None), "got name=''"),
        (lambda: models.register("own", None), "to be a function, got NoneType"),
        (
            lambda: models.check_name(name="os.path"),
            "os.path of fljax.models to be a function, got module",
        ),
        (
            lambda: data.load("json.tool"),
            "json.tool of fljax.datasets to be a function, got module",
        ),
        (lambda: models.check_name(model="own_package.parts.nothing"), "to have 'nothing'"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(call, told, site):
    with pytest.raises((ValueError, TypeError), match=told):
        call()


@pytest.mark.parametrize("site", [False], indirect=True)
def test_one_name_is_of_one_module(site):
    parts = importlib.import_module("own_package.parts")
    for registry, thing in ((data, parts.rings), (models, parts.Quadratic)):
        for _ in range(2):  # as importing the module anew does
            registry.register("rings", thing)
        with pytest.raises(ValueError, match=r"'rings', registered by own_package\.parts already"):
            registry.register("rings", lambda: None)
    classifiers._registry.forget("rings")


def event_file(path, **changes):
    path.write_text(
        json.dumps(
            {
                "format": 1,
                "privacy_unit": "client",
                "neighboring_relation": "REPLACE_ONE",
                "mechanism": {"type": "Bit", "flip": 0.4, **changes},
            }
        )
    )
    return str(path)


def randomized_response(flip, count, delta):
    """Epsilon of `count` flipped bits at `delta`, by the binomial law of lies: float64, written
    apart.
    """
    lies = np.arange(count + 1)
    p, q = (stats.binom.pmf(lies, count, chance) for chance in (flip, 1 - flip))

    def excess(epsilon):
        return np.maximum(p - np.exp(epsilon) * q, 0).sum() - delta

    return optimize.brentq(excess, 0, 50)


def pld_row(out):
    (line,) = [line for line in out.splitlines() if line.startswith("│ pld")]
    return [cell.strip() for cell in line.strip("│").split("│")]


@pytest.mark.parametrize("of", ["scheme", "event"])
def test_account_and_calibrate_say_of_a_mechanism_from_outside_what_the_binomial_law_says(
    of, site, tmp_path, capsys
):
    cache = [
        "--cache-dir",
        str(tmp_path / "cache"),
        "--accountant",
        "pld",
        "--rounds",
        "20",
        "--delta",
        "1e-3",
    ]
    noise = 1 / np.log(0.6 / 0.4)
    given = (
        ["--scheme", "bits"] if of == "scheme" else ["--event", event_file(tmp_path / "bit.json")]
    )
    numbers = ["--noise-multiplier", repr(float(noise))] if of == "scheme" else []
    assert cli.main(["account", *given, *numbers, *cache]) == 0
    out = capsys.readouterr().out
    low, high = (float(cell) for cell in pld_row(out)[1:3])
    exact = randomized_response(0.4, 20, 1e-3)
    assert low <= exact <= high <= exact * 1.002
    assert "20 times a bit flipped with chance 0.4" in out and "REPLACE_ONE" in out
    sought = [] if of == "scheme" else ["--parameter", "flip", "--bracket", "0.1", "0.49"]
    assert cli.main(["calibrate", *given, *sought, "--epsilon", "4", *cache]) == 0
    found = float(pld_row(capsys.readouterr().out)[1])
    flip = 1 / (1 + np.exp(1 / found)) if of == "scheme" else found
    assert 3.98 <= randomized_response(flip, 20, 1e-3) <= 4.0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["account", "--scheme", "bitz"], "Did you mean 'bits'?"),
        (["account", "--scheme", "bits"], "fljax calibrate --scheme bits"),
        (["account", "--scheme", "bits", "--stepp", "1"], "Did you mean '--step'?"),
        (["account", "--scheme", "bits", "--event", "x.json"], "--scheme or --event, got both"),
        (["account", "--event", "nowhere.json"], "to be a file, got 'nowhere.json'"),
        (["account", "--scheme", "own_package.parts.Quadratic"], "to be a fljax.Scheme, got"),
        (
            ["calibrate", "--scheme", "bits", "--epsilon", "1", "--parameter", "noise"],
            "Did you mean 'noise_multiplier'?",
        ),
        (["audit", "--attack", "one_unitt"], "Did you mean 'one_unit'?"),
        (["audit", "--attack", "lira"], "a program of `fljax attack`"),
        (
            ["audit", "--attack", "one_unit", "--scheme", "white_channel"],
            "promises an epsilon with attack='one_unit'",
        ),
        (
            ["audit", "--attack", "uploads", "--scheme", "dp_fedavg"],
            "with upload_noise, got one without",
        ),
        (["attack", "--attack", "inversions"], "Did you mean 'inversion'?"),
        (["attack", "--attack", "one_unit", "--trials", "3"], "Expected trials >= 8"),
    ],
)
def test_a_command_says_what_is_wrong_in_one_line(args, told, site, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(args) == 2
    said = capsys.readouterr().err
    assert told in said and len(said.splitlines()) == 1


def test_an_event_of_an_unknown_record_names_the_package_that_fails(site, tmp_path, capsys):
    break_in(site)
    assert cli.main(["account", "--event", event_file(tmp_path / "event.json", type="Bitt")]) == 2
    said = capsys.readouterr().err
    assert "Did you mean 'Bit'?" in said and "broken of broken-package cannot be loaded" in said
    args = ["--rounds", "20", "--accountant", "pld", "--cache-dir", str(tmp_path)]
    assert cli.main(["account", "--event", event_file(tmp_path / "bit.json"), *args]) == 0


def votes(scheme, config, *, num_rounds=1):
    """An attack of one's own: it sees the first client's bit itself, which `one_unit` sees in a sum
    only.
    """

    def score(key, present):
        lies = jax.random.bernoulli(key, scheme.event(config).mechanism.flip, (num_rounds,))
        return jnp.where(present, 1.0, -1.0) * jnp.sum(jnp.where(lies, -1.0, 1.0))

    return rounds.Game(score, scheme.event(config).repeat(num_rounds), "each bit")


@pytest.mark.filterwarnings("ignore::fljax.accounting.OrderWarning")
def test_an_attack_of_ones_own_is_played_by_attack_and_audit(site, tmp_path, capsys):
    attacks.register("votes", votes)
    try:
        args = ["--scheme", "bits", "--trials", "4000"]
        assert (
            cli.main(
                [
                    "attack",
                    "--attack",
                    "votes",
                    "--budgets",
                    "1",
                    "2",
                    *args,
                    "--run-dir",
                    str(tmp_path / "a"),
                ]
            )
            == 0
        )
        plain, *rows = json.loads((tmp_path / "a" / "attack.json").read_text())["rows"]
        assert plain["budget"] == "inf" and plain["measured"] > 5
        # A bit of odds e^epsilon is told just so well: nothing is lost but what counting leaves
        # open.
        assert [row["holds"] for row in rows] == [True, True]
        for row in rows:
            assert (
                0.75 * row["budget"]
                <= row["measured"]
                <= row["bound"]
                <= row["budget"] * (1 + 1e-6)
            )
        assert "each bit" in (tmp_path / "a" / "report.html").read_text()
        assert (
            cli.main(["audit", "--attack", "votes", *args, "--run-dir", str(tmp_path / "b")]) == 0
        )
        assert json.loads((tmp_path / "b" / "audit.json").read_text())["rows"][0]["measured"] > 0.6

        # The positive control: bits that lie half as often as they say.
        def half(scheme, config, **rest):
            return votes(scheme, type(config)(noise_multiplier=0.4), **rest)

        attacks.register(
            "votes",
            lambda scheme, config, **rest: half(scheme, config, **rest)._replace(
                event=scheme.event(config)
            ),
        )
        assert (
            cli.main(["audit", "--attack", "votes", *args, "--run-dir", str(tmp_path / "c")]) == 1
        )
        capsys.readouterr()
        assert cli.main(["schemes"]) == 0
        assert "  votes (registered by " in capsys.readouterr().out
    finally:
        attacks._registry.forget("votes")


# What a call says of the package's parts, by the way in which they were made known.
NAMED = {"scheme": "bits", "dataset": "rings", "model": "quadratic", "attack": "votes"}
DOTTED = {
    "scheme": "own_package.bits",
    "dataset": "own_package.parts.rings",
    "model": "own_package.parts.Quadratic",
    "attack": "own_package.parts.votes",
}
WAYS = [("entry points", True, NAMED), ("dotted paths", False, DOTTED), ("register", False, NAMED)]


@pytest.fixture(params=WAYS, ids=[way[0] for way in WAYS])
def ours(request, site_factory):
    """The names of the package's parts, known by one of the three ways."""
    way, entry_points, names = request.param
    site_factory(entry_points)
    if way == "register":
        bits, parts = (importlib.import_module(f"own_package.{name}") for name in ("bits", "parts"))
        for name in ("bits", "rings", "quadratic", "votes"):
            assert name not in {
                *schemes.names(),
                *builtin.names(),
                *models.names(),
                *attacks.names(),
            }
        schemes.register("bits", bits.SCHEME)
        data.register("rings", parts.rings)
        models.register("quadratic", parts.Quadratic)
        attacks.register("votes", parts.votes)
    return names


@pytest.mark.release(reason="one more way to be found", but=["entry points"])
@pytest.mark.slow(reason="two whole runs")
def test_simulate_of_the_command_line_and_of_python_find_all_of_it(ours, tmp_path):
    parts = ["--scheme", ours["scheme"], "--dataset", ours["dataset"], "--model", ours["model"]]
    few = ["--seed", "3", "--num-rounds", "2", "--no-baseline"]
    rows = simulated([*parts, *few], tmp_path / "command")
    result = fljax.simulate(
        ours["scheme"],
        data=ours["dataset"],
        model=ours["model"],
        seed=3,
        num_rounds=2,
        baseline=False,
        run_dir=tmp_path / "python",
    )
    assert result.rounds == len(rows) == 2 and 0 < result.epsilon <= 4.0
    assert result.epsilon == rows[-1]["epsilon"] and "a bit flipped with chance" in result.statement


def test_account_finds_its_scheme_and_its_mechanism(ours, tmp_path, capsys):
    args = [
        "--accountant",
        "pld",
        "--rounds",
        "20",
        "--delta",
        "1e-3",
        "--cache-dir",
        str(tmp_path),
    ]
    noise = ["--noise-multiplier", repr(float(1 / np.log(0.6 / 0.4)))]
    assert cli.main(["account", "--scheme", ours["scheme"], *noise, *args]) == 0
    low, high = (float(cell) for cell in pld_row(capsys.readouterr().out)[1:3])
    assert low <= randomized_response(0.4, 20, 1e-3) <= high


def test_calibrate_finds_its_scheme(ours, tmp_path, capsys):
    args = [
        "--accountant",
        "pld",
        "--rounds",
        "20",
        "--delta",
        "1e-3",
        "--cache-dir",
        str(tmp_path),
    ]
    assert cli.main(["calibrate", "--scheme", ours["scheme"], "--epsilon", "4", *args]) == 0
    noise = float(pld_row(capsys.readouterr().out)[1])
    assert 3.98 <= randomized_response(1 / (1 + np.exp(1 / noise)), 20, 1e-3) <= 4.0


@pytest.mark.release(
    reason="one more way to be found", but=["entry points-attack", "register-audit"]
)
@pytest.mark.slow(
    reason="compiles rounds for one more way to a name",
    but=["register-attack", "entry points-audit"],
)
@pytest.mark.filterwarnings("ignore::fljax.accounting.OrderWarning")
@pytest.mark.parametrize("command", ["attack", "audit"])
def test_attack_and_audit_find_its_scheme_and_its_attack(command, ours, tmp_path):
    given = ["--scheme", ours["scheme"], "--attack", ours["attack"], "--trials", "2000"]
    given += ["--budgets", "2"] if command == "attack" else ["--epsilon", "2"]
    assert cli.main([command, *given, "--run-dir", str(tmp_path / "run")]) == 0
    row = json.loads((tmp_path / "run" / f"{command}.json").read_text())["rows"][-1]
    # The attack is the best there is: of a certified epsilon of 2 it proves most, and no more.
    assert row["holds"] and 1.5 <= row["measured"] <= 2.0


@pytest.mark.slow(reason="compiles five programs of a scheme")
@pytest.mark.parametrize("site", [False], indirect=True)
def test_its_scheme_keeps_the_contracts_of_all_schemes(site):
    report = testing.check_scheme(importlib.import_module("own_package.bits").SCHEME)
    assert not report.failed
    assert {check.name for check in report.checks if check.outcome == "passed"} >= {"event", "keys"}
