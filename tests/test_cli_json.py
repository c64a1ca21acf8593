"""`--json` on every verb: one document, of the schema that the docs print, and nothing beside."""

import http.server
import json
import pathlib
import re

import pytest

from fljax import cli
from fljax.cli import _bench, _output, _schemas, bench
from fljax.papers.subject_dp import compare, compare_report

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/reference/command_line.md").read_text()
RUN = "--num-clients 20 --num-rounds 2 --model softmax --no-baseline --noise-multiplier 2 --seed 0"
pytestmark = pytest.mark.usefixtures("compiled_once")


def asked(capsys, command):
    """(the document, standard error) of a command with --json"""
    code = cli.main([*command.split(), "--json"])
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    found = json.loads(out)
    assert _schemas.misfits(found, _schemas.Document) == [] and found["exit_code"] == code
    return found, err


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, compiled_once):
    where = tmp_path_factory.mktemp("json") / "run"
    assert cli.main(["simulate", *RUN.split(), "--run-dir", str(where), "--quiet"]) == 0
    return where


@pytest.fixture
def commands(run_dir, tmp_path, monkeypatch):
    """A short call of every verb."""
    nothing = {"machine": {"device": "abacus", "cores": 2, "platform": "cpu", "jax": "0"}}
    nothing = {name: {} for name in _schemas.RESULTS["bench"].__annotations__} | nothing
    nothing["model"] = "mlp"
    monkeypatch.setattr(_bench, "measure", lambda *, quick, say: nothing)
    monkeypatch.setattr(bench, "rows", lambda _: [])
    monkeypatch.setattr(http.server.ThreadingHTTPServer, "serve_forever", lambda _: None)
    monkeypatch.setattr(compare, "run", lambda settings, say: [])
    monkeypatch.setattr(compare, "group_sizes", lambda *_: [])
    monkeypatch.setattr(compare_report, "render", lambda *_: "")
    where = f"--run-dir {tmp_path}"
    return {
        "simulate": f"simulate {RUN} {where}/again",
        "predict": f"predict {run_dir} digits",
        "export": f"export {run_dir} --to npz --output {tmp_path}/model.npz",
        "data": "data describe digits",
        "report": f"report {run_dir} --output {tmp_path}/runs.html",
        "verify": f"verify {run_dir}",
        "watch": f"watch {run_dir}",
        "compare": f"compare --no-claims {where}/compare",
        "schemes": "schemes",
        "completion": "completion bash",
        "attack": f"attack --scheme dp_fedavg --attack one_unit --budgets 1 --trials 8 {where}/a",
        "audit": f"audit --scheme lightdp --trials 16 {where}/audit",
        "account": "account --noise-multiplier 2 --accountant rdp",
        "calibrate": "calibrate --epsilon 2 --accountant rdp",
        "reproduce": f"reproduce wfna --item fig4 --output {tmp_path}/wfna",
        "errata": "errata E1 --paper channel --run",
        "bench": "bench",
    }


@pytest.mark.slow(reason="plays whole games", ids=["attack", "audit"])
@pytest.mark.parametrize("verb", cli.COMMANDS)
def test_a_verb_answers_in_one_document_of_its_schema(verb, commands, capsys):
    found, err = asked(capsys, commands[verb])
    assert found["command"] == verb and found["exit_code"] == 0 and found["error"] is None
    assert _schemas.misfits(found["result"], _schemas.RESULTS[verb]) == []
    assert "error" not in err


@pytest.mark.release(reason="a third of a minute", ids=["--floating-point --trials 64"])
@pytest.mark.slow(reason="plays a game, or a round again")
@pytest.mark.parametrize("flags", ["--floating-point --trials 64", "--replay local_dp"])
def test_other_audits_answer_by_the_schema_too(flags, tmp_path, capsys):
    found, _ = asked(capsys, f"audit {flags} --run-dir {tmp_path / 'audit'}")
    assert found["exit_code"] == 0 and found["result"]["rows"]
    assert _schemas.misfits(found["result"], _schemas.Audit) == []


@pytest.mark.parametrize("verb", cli.COMMANDS)
def test_what_a_verb_refuses_is_in_the_document_too(verb, capsys):
    found, err = asked(capsys, f"{verb} --no-such-flag 1")
    assert found["exit_code"] == 2 and found["result"] is None
    assert err == f"fljax: error: {found['error']}\n"


def test_the_docs_print_every_schema():
    assert _schemas.page() in PAGE
    assert all(f"`{name}`" in PAGE for name in _schemas.Document.__annotations__)


def test_rows_of_replays_and_of_floating_point_fit():
    replayed = {
        "scheme": "gd_dp",
        "unit": "example",
        "relation": "REPLACE_ONE",
        "sees": "the model",
    }
    replayed |= {"noise": "exact", "correlation": None, "noise_multiplier": 1.0}
    replayed |= {"holds": True, "verdict": "holds"}
    replayed |= dict.fromkeys(("declared", "allowed", "measured", "control"), 1.0)
    of_law = {"attack": "low bits", "scheme": None, "noise_multiplier": 1.0, "trials": 9}
    of_law |= {"float32": 0.5, "whole_numbers": 0.0, "holds": True, "verdict": "holds"}
    of_round = of_law | {"scheme": "dp_fedavg", "float32": None, "whole_numbers": None}
    found = {"run_dir": "a", "report": "b", "rows": [replayed, of_law, of_round]}
    assert _schemas.misfits(found, _schemas.Audit) == []
    assert _schemas.misfits(found | {"rows": [replayed | {"holds": 3}]}, _schemas.Audit) != []


def test_misfits_are_seen():
    row = {"accountant": "rdp", "value": 1.0, "epsilon": "inf", "note": ""}
    good = {"parameter": "q", "target_epsilon": 1, "delta": 0.1, "rows": [row], "assumed": ""}
    assert _schemas.misfits(good, _schemas.Calibrate) == []
    bad = {**good, "rows": [{**row, "value": "1"}], "delta": True, "more": 0}
    del bad["assumed"]
    assert _schemas.misfits(bad, _schemas.Calibrate) == [
        "result.assumed is missing",
        "result.delta = True",
        "result.rows[0].value",
        "result.more is not in the schema",
    ]


@pytest.mark.slow(reason="a whole run")
def test_quiet_leaves_the_answer_and_nothing_else(tmp_path, capsys):
    assert cli.main(["simulate", *RUN.split(), "--run-dir", str(tmp_path / "run"), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert not err and not re.search("^(round|run folder)", out, flags=re.MULTILINE)
    assert "privacy " in out and "report " in out


def test_a_table_is_as_wide_as_columns_says(monkeypatch, capsys):
    call = ["account", "--noise-multiplier", "2", "--accountant", "rdp"]
    for columns, most in (("60", 60), ("", 200)):
        monkeypatch.setenv("COLUMNS", columns)
        assert cli.main(call) == 0
        table = [line for line in capsys.readouterr().out.splitlines() if "Assumed" not in line]
        assert max(map(len, table)) <= most
    assert len([line for line in table if "rdp" in line]) == 1  # one line a row


def test_numbers_without_a_json_become_words():
    assert _output.plain({"a": (float("inf"), [float("nan")])}) == {"a": ["inf", ["nan"]]}
