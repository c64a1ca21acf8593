"""`fljax data`: counts that were counted by hand, and forms that hold the same data."""

import json

import numpy as np
import pytest

from fljax import cli, data

ROWS = [(i, i % 3, ("red", "blue")[i % 2], f"site {i % 4}") for i in range(40)]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "a table.csv"
    lines = ["size,kind,label,site", *(",".join(map(str, row)) for row in ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_counts_are_those_of_the_table(table, capsys, tmp_path):
    picture = tmp_path / "classes.svg"
    args = ["data", "describe", f"csv:{table}", "--client-column", "site", "--json"]
    assert cli.main([*args, "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)["result"]
    assert found["training"] == 32 and found["held_out"] == 8  # a fifth of 20 and of 20
    assert found["classes"] == {"blue": 16, "red": 16}
    assert found["clients"]["count"] == 4 and found["subjects"] is None
    assert picture.read_text().startswith("<svg")
    assert cli.main(args[:-1]) == 0
    out = capsys.readouterr().out
    assert "classes    blue 16, red 16" in out and "clients    count 4" in out


def test_clients_who_are_held_out_alone_are_counted(table, capsys):
    rows = "".join(f"{row},0,red,lonely {row}\n" for row in range(40, 60))
    table.write_text(table.read_text() + rows)
    # The same by the short names of the columns.
    assert cli.main(["data", "describe", f"csv:{table}", "--client", "site", "--json"]) == 0
    clients = json.loads(capsys.readouterr().out)["result"]["clients"]
    alone = clients["held out alone"]
    assert clients["count"] + alone == 24 and alone > 0
    run = ["simulate", "--dataset", f"csv:{table}", "--client", "site", "--num-clients", "24"]
    assert cli.main(run) == 2
    named = f"num_clients={24 - alone}, as 'site' names ({alone} more have held-out examples alone)"
    assert named in capsys.readouterr().err


def test_an_npz_holds_what_the_table_holds(table, tmp_path, capsys):
    out = tmp_path / "same.npz"
    call = ["data", "convert", f"csv:{table}", "--output", str(out), "--client-column", "site"]
    assert cli.main(call) == 0
    columns = data.tables.Columns(client="site")
    ours, theirs = data.load(f"npz:{out}", columns), data.load(f"csv:{table}", columns)
    for part in ("train", "test"):
        for name in ("x", "y"):
            np.testing.assert_array_equal(getattr(ours, part)[name], getattr(theirs, part)[name])
    assert ours.class_names == theirs.class_names == ("blue", "red")
    assert cli.main(call) == 2 and "not to be there yet" in capsys.readouterr().err


def test_clients_on_disk_are_those_of_the_column(table, tmp_path):
    out = tmp_path / "clients"
    call = ["data", "convert", f"csv:{table}", "--output", str(out), "--client-column", "site"]
    assert cli.main(call) == 0
    opened = data.store.open_store(out / "train")
    sizes = np.diff(opened.offsets)
    assert opened.num_clients == 4 and sizes.sum() == 32
    first = opened.fields["x"][: sizes[0], 0].astype(int)
    assert {ROWS[row][3] for row in first} == {"site 0"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["describe"], "WHAT DATA before all flags"),
        (["describes", "digits"], "what"),
        (["convert", "digits"], "--output with convert"),
        (["describe", "digit"], "Did you mean 'digits'"),
        (["convert", "digits", "--output", "folder"], "client_column to name the clients"),
    ],
)
def test_a_bad_call_costs_one_line(args, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["data", *args]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fljax: error: ") and err.count("\n") == 1 and words in err
