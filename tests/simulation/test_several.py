"""Runs side by side, and one as it goes."""

import http.client
import json
import re
import subprocess
import threading

import pytest

from fljax import cli
from fljax.cli import watch
from fljax.simulation.record import folder, provenance
from fljax.simulation.report import several

# Rounds by twos: of one program.
RUN = "--num-rounds 4 --model softmax --noise-multiplier 2 --target-epsilon none --no-baseline"
RUN += " --seed 1234567 --eval-every 2 --checkpoint-every 2"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, compiled_once):
    where = tmp_path_factory.mktemp("several") / "run"
    args = ["simulate", *RUN.split(), "--num-clients", "20", "--run-dir", str(where), "--quiet"]
    assert cli.main(args) == 0
    return where


def unfinished(run_dir, path):
    """The same run after two rounds, its third line half written."""
    path.mkdir()
    (path / folder.CONFIG).write_bytes((run_dir / folder.CONFIG).read_bytes())
    lines = (run_dir / folder.METRICS).read_text().splitlines(keepends=True)
    (path / folder.METRICS).write_text("".join(lines[:2]) + lines[2][:20])
    return path


@pytest.mark.slow(reason="whole runs")
def test_a_page_of_runs_has_each_ones_numbers_and_a_link_to_its_report(run_dir, tmp_path, capsys):
    going_on = unfinished(run_dir, tmp_path / "going on & on")
    page = tmp_path / "pages" / "runs.html"
    page.parent.mkdir()
    assert cli.main(["report", str(run_dir), str(going_on), "--output", str(page)]) == 0
    text, out = page.read_text(), capsys.readouterr().out
    last = json.loads((run_dir / folder.METRICS).read_text().splitlines()[-1])
    second = json.loads((run_dir / folder.METRICS).read_text().splitlines()[1])
    for line in (last, second):
        assert f"{line['test_accuracy']:.1%}" in text and f"{line['test_accuracy']:.1%}" in out
    (link,) = re.findall('<a href="([^"]*)"', text)
    assert (page.parent / link).resolve() == (run_dir / folder.REPORT).resolve()
    assert "going on &amp; on" in text and text.count("<svg") == 4


@pytest.mark.parametrize("args", [["report"], ["report", "nowhere"], ["watch", "nowhere"]])
def test_what_is_no_run_costs_one_line(args, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(args) == 2
    assert re.fullmatch(r"fljax: error: Expected [^\n]+\n", capsys.readouterr().err)


def asked(server, path="/", host=None):
    """(status, body) of a request."""
    address, port = server.server_address[:2]
    connection = http.client.HTTPConnection(address, port, timeout=10)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.slow(reason="a whole run in a process of its own")
def test_a_run_is_shown_as_it_goes_and_on_this_machine_alone(run_dir, tmp_path):
    path = unfinished(run_dir, tmp_path / "run")
    with watch.server(path, 0, 7) as server:
        assert server.server_address[0] == "127.0.0.1"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            status, text = asked(server)
            assert status == 200 and "2 of 4" in text
            assert '<meta http-equiv="refresh" content="7">' in text
            with (path / folder.METRICS).open(
                "a"
            ) as file:  # the half line ends, and the last comes
                lines = (run_dir / folder.METRICS).read_text().splitlines(keepends=True)
                file.write("".join(lines[2:])[20:])
            assert "4 of 4" in asked(server)[1]
            assert asked(server, "/report.html")[0] == 404
            (path / folder.REPORT).write_text("the report")
            assert asked(server, "/report.html") == (200, "the report")
            assert "refresh" not in asked(server)[1]
            for bad in ("/seed.secret", "/../seed.secret", "/config.toml", "/checkpoints"):
                assert asked(server, bad)[0] == 404
            # A page of another site whose name was made to point here.
            assert asked(server, host="evil.example:80")[0] == 403
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow(reason="a whole run by the command")
def test_a_run_says_how_it_was_made_and_not_its_seed(run_dir):
    (one,) = provenance.sessions(run_dir)
    assert one["rounds"] == [0, 4] and one["wall_s"] > 0 and one["jax"]
    assert one["began"] <= one["ended"]
    report = (run_dir / folder.REPORT).read_text()
    assert one["began"] in report and 'href="metrics.jsonl"' in report
    for text in (report, json.dumps(one)):
        assert "1234567" not in text


def test_a_seed_on_the_command_line_is_left_out(monkeypatch):
    for words in (["--seed", "77"], ["--seed=77"]):
        monkeypatch.setattr("sys.argv", ["/a/b/fljax", "simulate", *words, "--model", "a b"])
        said = provenance.command()
        assert "77" not in said and said.startswith("fljax simulate --seed")
        assert said.endswith("--model 'a b'")


def test_the_commit_of_another_project_is_not_taken_for_that_of_the_code(tmp_path, monkeypatch):
    """An environment that lies in a checkout of something else."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "own.txt").write_text("")
    for words in (["init", "-q"], ["add", "own.txt"], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *words], check=True)
    installed = tmp_path / ".venv" / "provenance.py"
    installed.parent.mkdir()
    installed.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(installed))
    assert provenance.commit() is None
    subprocess.run([*git, "add", "-f", str(installed)], check=True)
    assert re.fullmatch("[0-9a-f]{12}-dirty", provenance.commit())


def test_rows_are_plain_data(run_dir):
    row = several.row(several.read(run_dir))
    assert json.loads(json.dumps(row)) == row and row["rounds"] == 4
