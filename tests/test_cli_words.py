"""What the command line understands and advises: spellings of flags, near misses, help, a reader
who leaves.
"""

import contextlib
import dataclasses
import functools
import io
import os
import pathlib
import shlex
import subprocess
import sys
import tomllib
import typing

import pytest

from fljax import cli, schemes
from fljax.cli import _args, account, attack, audit, bench, calibrate, compare, simulate

ROOT = pathlib.Path(__file__).parents[1]
OPTIONS = {
    "account": account.Options,
    "attack": attack.Options,
    "audit": audit.Options,
    "bench": bench.Options,
    "calibrate": calibrate.Options,
    "compare": compare.Options,
}


def refused(capsys, *args):
    """The line on stderr of a call that must fail."""
    assert cli.main([str(arg) for arg in args]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fljax: error: ") and err.count("\n") == 1
    return err


@functools.cache
def printed():
    """{scheme: the flags under its name in the output of `fljax schemes`}"""
    out, found = io.StringIO(), {}
    with contextlib.redirect_stdout(out):
        assert cli.main(["schemes"]) == 0
    flags = []
    for line in out.getvalue().splitlines():
        if line.startswith("  "):
            flags.append(line.split())
        else:
            found[line.partition(":")[0]] = flags = []
    return found


@pytest.mark.slow(
    reason="parses the flags of one more scheme",
    but=[
        "bidirectional",
        "dp_fedavg",
        "dp_fedbuff",
        "higradavg",
        "lightdp",
        "natural_channel",
        "user_ldp",
    ],
)
@pytest.mark.parametrize("name", schemes.NAMES)
def test_the_settings_of_a_scheme_are_read_as_python_and_as_the_shell_write_them(name):
    start = simulate.parse(["--scheme", name])[0]
    joined = [f"{flag}={values[0]}" for flag, *values in printed()[name] if len(values) == 1]
    assert simulate.parse(["--scheme", name, *joined])[0] == start
    words = []
    for field, setting in vars(start.scheme_config).items():
        values = setting if isinstance(setting, tuple) and setting else (setting,)
        words += ["--" + field.replace("_", "-"), *map(str, values)]
    assert simulate.parse(["--scheme", name, *words])[0] == start


def given(cls, *args):
    """The dataclass that the arguments make, every required number at 1."""
    needed = [
        part
        for field in dataclasses.fields(cls)
        if field.default is field.default_factory is dataclasses.MISSING
        for part in ("--" + field.name.replace("_", "-"), "1")
    ]
    return _args.parse(cls, [*needed, *args], prog="fljax x", description="")


def value(options, flag):
    """The field behind a flag, in the dataclass or in one within it."""
    name = flag[2:].replace("-", "_")
    if hasattr(options, name):
        return getattr(options, name)
    parts = [part for part in vars(options).values() if dataclasses.is_dataclass(part)]
    return next(getattr(part, name) for part in parts if hasattr(part, name))


@pytest.mark.parametrize("command", [*OPTIONS, "simulate"])
def test_switches_and_nothing_are_understood_however_they_are_written(command):
    cls = simulate.Machine if command == "simulate" else OPTIONS[command]
    for flag, hint in _args.flags(cls).items():
        if hint is bool:
            off = "--no-" + flag[2:]
            yes = [
                [flag],
                [flag, "True"],
                [flag, "true"],
                [f"{flag}=TRUE"],
                [off, "False"],
                [f"{off}=false"],
            ]
            no = [
                [off],
                [flag, "False"],
                [flag, "false"],
                [f"{flag}=False"],
                [off, "True"],
                [flag.replace("-", "_").replace("__", "--", 1) + "=false"],
            ]
            assert all(value(given(cls, *args), flag) is True for args in yes), flag
            assert all(value(given(cls, *args), flag) is False for args in no), flag
            for wrong in ([flag, "maybe"], [f"{flag}=1"], [f"{flag}="]):
                with pytest.raises(
                    ValueError, match=f"Expected {flag} alone, or with True or False"
                ):
                    given(cls, *wrong)
        if type(None) in typing.get_args(hint):
            for args in (
                [flag, "none"],
                [flag, "None"],
                [flag, "NONE"],
                [f"{flag}=none"],
                [f"{flag}=None"],
            ):
                assert value(given(cls, *args), flag) is None, args


def test_switches_of_a_run_and_of_a_scheme():
    of = lambda *args: simulate.parse(["--scheme", "dp_fedsgd", *args])[0]
    for args in (
        ["--no-baseline"],
        ["--baseline", "False"],
        ["--baseline=false"],
        ["--no_baseline"],
    ):
        assert of(*args).run.baseline is False
    assert of("--no-baseline", "False", "--seed", "3").run == dataclasses.replace(of().run, seed=3)
    assert of("--target-delta=none", "--memory", "None").privacy.target_delta is None
    assert (
        simulate.parse(["--scheme", "lightdp", "--straggler-probs", "()"])[
            0
        ].scheme_config.straggler_probs
        == ()
    )


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("simulate --nu-rounds 3", "--num-rounds"),
        ("simulate --round 3", "--num-rounds"),
        ("simulate --noise-mult=3", "--noise-multiplier"),
        ("simulate --no-basline", "--no-baseline"),
        ("simulate --learning_rate 1", "--local-learning-rate"),
        ("simulate --resume x --device 2", "--devices"),
        ("simulate --scheme dp-fedavg", "dp_fedavg"),
        ("simulate --scheme HiGradAvg2", "higradavg"),
        ("simulate --dataset digit", "digits"),
        ("simulate --model resnet-20", "resnet20"),
        ("simulate --loss cross-entropy", "cross_entropy"),
        ("simulate --partition dirichelt", "dirichlet"),
        ("simulate --accountant rpd", "rdp"),
        ("audit --schem lightdp", "--scheme"),
        ("audit --scheme ligtdp", "lightdp"),
        ("attack --budget 3", "--budgets"),
        ("attack --attack lyra", "lira"),
        ("attack --scheme higradav", "higradavg"),
        ("account --noise-multiplier 1 --accountant pdl", "pld"),
        ("calibrate --epsilo 3", "--epsilon"),
        ("compare --dataset writer", "writers"),
        ("bench --quik", "--quick"),
        ("simulat", "simulate"),
        ("scheme", "schemes"),
        ("help acount", "account"),
        ("completion bsh", "bash"),
    ],
)
def test_a_near_miss_is_told_what_it_may_have_meant(line, meant, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"Did you mean '{meant}'?" in refused(capsys, *shlex.split(line))
    assert not list(tmp_path.iterdir())


def test_a_module_that_is_not_there_is_named(capsys):
    found = refused(capsys, "simulate", "--model", "no_such_nets:Net")
    assert "No module 'no_such_nets' is installed, or lies in the working folder." in found
    found = refused(capsys, "simulate", "--model", "./my/nets.py:Net")
    assert "Did you mean 'my.nets:Net', as Python imports it?" in found
    found = refused(capsys, "simulate", "--model", "flax.nnx:Linea")
    assert "Expected flax.nnx to have 'Linea'" in found and "Did you mean 'Linear'?" in found


def test_a_near_miss_in_a_file_is_told_too(capsys, tmp_path):
    path = tmp_path / "my.toml"
    for text, meant in (("[runs]\n", "run"), ("[run]\nnum_round = 3\n", "num_rounds")):
        path.write_text(text)
        assert f"Did you mean '{meant}'?" in refused(capsys, "simulate", path)


def test_nothing_is_guessed_where_nothing_is_near(capsys):
    assert "Did you mean" not in refused(capsys, "simulate", "--xyzzy", "3")
    assert "Did you mean" not in refused(capsys, "fly")


def test_a_value_of_the_wrong_type_is_named_with_its_rule(capsys):
    assert "Expected --steps to be an integer, got '2.5'." in refused(
        capsys, "account", "--steps", "2.5"
    )
    assert "Expected --delta to be a number, got 'x'." in refused(capsys, "account", "--delta", "x")


@pytest.mark.parametrize("lines", ["╭│─╮╰╯", " +-+++", "      "], ids=["drawn", "typed", "blank"])
def test_the_message_is_found_in_any_box(lines):
    corner, side, rule = lines[0], lines[1], lines[2]
    title = f"{corner}{rule} Value error {rule * 40}{lines[3]}\n"
    if lines[0] == " ":  # terminals without drawn boxes have a rule under the title
        title = f" Value error\n{'-' * 60}\n"
    text = "Error parsing --steps: invalid literal for int() with base 10: '2.5'"
    box = (
        f"{title}{side} {text} {side}\n{side} {'-' * 60 if rule == ' ' else rule * 60} "
        f"{side}\n{side} For help {side}\n"
    )
    assert _args._message(box) == "Expected --steps to be an integer, got '2.5'."


def test_a_missing_package_is_named_with_the_extra_that_brings_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: " ".join(lines) for name, lines in project["optional-dependencies"].items()}
    called = {"PIL": "pillow", "sklearn": "scikit-learn", "tomli_w": "tomli-w", "orbax": "orbax-"}
    for package, extra in cli._EXTRAS.items():
        assert called.get(package, package) in extras[extra] and extra in cli._missing(package)
    assert len(cli._EXTRAS) == sum(extras[extra].count(">=") for extra in set(cli._EXTRAS.values()))
    assert cli._missing("my.nets").endswith("my.nets to be installed, found none.")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_a_command_is_its_own_however_it_is_asked_for(command, capsys):
    texts = []
    for args in ([command, "--help"], ["help", command], ["--help", command]):
        assert cli.main(args) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0].startswith(f"usage: fljax {command}") and len(set(texts)) == 1


def test_help_of_a_scheme_by_the_word(capsys):
    assert cli.main(["help", "simulate", "--scheme", "dp_fedsgd"]) == 0
    assert "--privacy-unit" in capsys.readouterr().out
    assert cli.main(["help"]) == cli.main(["help", "--help"]) == 0


@pytest.mark.slow(reason="one more command in a process of its own")
@pytest.mark.parametrize(
    ("line", "buffered"),
    [("help", True), ("schemes", False), ("account --noise-multiplier 1 --accountant gdp", True)],
)
def test_a_reader_who_leaves_is_no_error(line, buffered, tmp_path):
    read, write = os.pipe()
    os.close(read)
    env = os.environ | ({} if buffered else {"PYTHONUNBUFFERED": "1"}) | {"JAX_PLATFORMS": "cpu"}
    args = [sys.executable, "-m", "fljax", *line.split()]
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(
        args,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=tmp_path,
        env=env | {"PYTHONPATH": path},
    )
    os.close(write)
    assert done.stderr == "" and done.returncode in (0, 141)


def test_a_broken_pipe_of_somebody_else_is_an_error(capsys, monkeypatch):
    def main(args):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(account, "main", main)
    assert "Broken pipe" in refused(capsys, "account")


def test_a_folder_of_another_command_is_not_to_be_resumed(capsys, tmp_path):
    (tmp_path / "config.toml").write_text('scheme = "lightdp"\ntrials = 20\n')
    (tmp_path / "audit.json").write_text("{}")
    for args in (["audit", "--run-dir"], ["simulate", "--run-dir"], ["attack", "--run-dir"]):
        err = refused(capsys, *args, tmp_path)
        assert "to be empty or new" in err and "--resume" not in err
    assert "neither goes on" in refused(capsys, "simulate", "--resume", tmp_path)
