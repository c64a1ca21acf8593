"""An editor of a run's folder is named, whatever they edit; what no check can find, is said."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

from fljax import cli, data, schemes
from fljax.simulation import run, task, trained, verify
from fljax.simulation.config import (
    Config,
    DataConfig,
    ModelConfig,
    PrivacyConfig,
    RunConfig,
    from_sections,
    to_sections,
    to_toml,
)
from fljax.simulation.record import chain, checkpoint, folder
from fljax.simulation.report import run_page
from tests.simulation.test_seeds import Watch

pytestmark = pytest.mark.usefixtures("compiled_once")


def config(**settings):
    scheme = schemes.get("dp_fedavg").Config(sampling_prob=1.0, noise_multiplier=4.0)
    return Config(
        scheme_config=scheme,
        data=DataConfig(num_clients=20, partition="iid"),
        model=ModelConfig(model="softmax"),
        privacy=PrivacyConfig(target_epsilon=None, target_delta=1e-3),
        run=RunConfig(num_rounds=4, eval_every=4, checkpoint_every=2, baseline=False, **settings),
    )


def begun(run_dir, at=None):
    """A run that ends, or is killed in a round."""
    if at is None:
        run_page.write(run.start(config(), run_dir, Watch()))
        return run_dir
    with pytest.raises(RuntimeError, match="killed"):
        run.start(config(), run_dir, Watch(at))
    return run_dir


@pytest.fixture(scope="module")
def finished(tmp_path_factory, compiled_once):
    run_dir = begun(tmp_path_factory.mktemp("record") / "run")
    trained.export(trained.load(run_dir), "npz", run_dir / "model.npz")
    return run_dir


@pytest.fixture(scope="module")
def another(tmp_path_factory, compiled_once):
    return begun(tmp_path_factory.mktemp("another") / "run")


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def refused(run_dir, **how):
    """What does not fit, in words; it was not refused where that is empty."""
    found = verify.run(run_dir, **how)
    return "; ".join(f"{check.what}: {check.found}" for check in found.checks if not check.fits)


def test_a_run_that_nobody_edited_fits(finished):
    found = verify.run(finished, data=True)
    assert refused(finished, data=True) == "" and found.fits
    assert (found.rounds, found.closed, len(found.head)) == (4, True, 64)
    shown = {check.what for check in found.checks}
    assert {"epsilon", "second accountant", "data", "model.npz", "checkpoints/4"} <= shown
    assert any("publish" in sentence for sentence in found.not_shown)


def changed(name, old, new, count=1):
    """An edit of text."""

    def edit(run_dir):
        text = (run_dir / name).read_text()
        assert re.search(old, text)
        (run_dir / name).write_text(re.sub(old, new, text, count=count))

    return edit


def of_lines(name, do):
    """An edit of lines."""

    def edit(run_dir):
        path = run_dir / name
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(do(lines)))

    return edit


def flipped(pattern, *, redo=False):
    """A bit of the largest file; `redo`: and its checksum is made to fit."""

    def edit(run_dir):
        path = max(run_dir.glob(pattern), key=lambda path: path.is_file() and path.stat().st_size)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        if redo:
            checksums(run_dir)

    return edit


def checksums(run_dir):
    for where in (run_dir / folder.CHECKPOINTS).iterdir():
        text = json.dumps(checkpoint._checksums(where))
        (where / folder.CHECKSUMS).write_text(text)


def less_epsilon_in_the_checkpoint(run_dir):
    changed("checkpoints/4/meta/metadata", r'"epsilon": [\d.e-]+', '"epsilon": 0.01')(run_dir)
    checksums(run_dir)


def a_checkpoint_of_a_round_that_never_was(run_dir):
    shutil.copytree(run_dir / "checkpoints/4", run_dir / "checkpoints/6")


def a_file_in_a_checkpoint(run_dir):
    (run_dir / "checkpoints/2/state/more").write_text("more")


def a_folder_among_checkpoints(run_dir):
    (run_dir / "checkpoints/best").mkdir()


def removed(name):
    def edit(run_dir):
        path = run_dir / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return edit


def truncated(name):
    def edit(run_dir):
        content = (run_dir / name).read_bytes()
        (run_dir / name).write_bytes(content[: len(content) - 40])

    return edit


def another_export(run_dir):
    with np.load(run_dir / "model.npz") as arrays:
        np.savez(run_dir / "model.npz", **{name: 2 * leaf for name, leaf in arrays.items()})


def a_foreign_file(run_dir):
    (run_dir / "notes.txt").write_text("mine")


def redo(run_dir, edit):
    """The edit of each link's body, and every hash after it made to fit, as only an editor who
    knows the format does; the closing link lists the files as they are now.
    """
    head, lines = chain._FIRST, []
    checksums(run_dir)
    for link in chain.read(run_dir):
        body = edit(link.kind, dict(link.body)) or link.body
        if link.kind == "closed":
            body = {"rounds": body["rounds"], "files": chain.files(run_dir)}
        head, line = chain._next(head, link.kind, body)
        lines.append(line)
    (run_dir / folder.CHAIN).write_bytes(b"".join(lines))


def a_chain_of_less_epsilon(run_dir):
    """Chain, metrics and claim agree on an epsilon below the truth."""
    path = run_dir / folder.METRICS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["epsilon"] /= 2
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    claim = json.loads((run_dir / folder.PRIVACY).read_text())
    claim["epsilon"] /= 2
    (run_dir / folder.PRIVACY).write_text(json.dumps(claim))

    def edit(kind, body):
        if kind == "round":
            at = body["round"] - 1
            text = (run_dir / folder.METRICS).read_bytes().splitlines()[at]
            return body | {"epsilon": lines[at]["epsilon"], "metrics": chain.digest(text)}
        return None

    redo(run_dir, edit)


def a_chain_of_rounds_that_cost_nothing(run_dir):
    redo(run_dir, lambda kind, body: body | {"uses": 1} if kind == "round" else None)


def a_chain_of_other_noise(run_dir):
    """A ledger of twice the noise: the claim and the checkpoint are still those of the run."""

    def edit(kind, body):
        text = json.dumps(body).replace('"noise_multiplier": 4.0', '"noise_multiplier": 8.0')
        return json.loads(text)

    redo(run_dir, edit)


def a_chain_of_another_state(run_dir):
    redo(run_dir, lambda kind, body: body | {"state": "0" * 64} if kind == "checkpoint" else None)


FIRST_HEX = r"([0-9a-f])([0-9a-f]{31})"
EDITS = {
    "one epsilon less in the metrics": (
        changed(folder.METRICS, r'"epsilon": [\d.e-]+', '"epsilon": 0.01'),
        "metrics.jsonl: line 1 is not what round 1 wrote",
    ),
    "a loss": (
        changed(folder.METRICS, r'"train_loss": \d', '"train_loss": 0'),
        "metrics.jsonl: line 1 is not",
    ),
    "one round removed": (
        of_lines(folder.METRICS, lambda lines: [*lines[:1], *lines[2:]]),
        "metrics.jsonl: line 2 is not",
    ),
    "the last round removed": (
        of_lines(folder.METRICS, lambda lines: lines[:-1]),
        "metrics.jsonl: line 4 is missing",
    ),
    "another order of rounds": (
        of_lines(folder.METRICS, lambda lines: [lines[1], lines[0], *lines[2:]]),
        "metrics.jsonl: line 1 is not",
    ),
    "one round more": (
        of_lines(folder.METRICS, lambda lines: [*lines, lines[-1]]),
        "metrics.jsonl: 1 lines more",
    ),
    "metrics truncated": (truncated(folder.METRICS), "metrics.jsonl: line 4 is not"),
    "no metrics": (removed(folder.METRICS), "metrics.jsonl: cannot be read: FileNotFoundError"),
    "half of epsilon claimed": (
        changed(folder.PRIVACY, r'"epsilon": [\d.e-]+', '"epsilon": 0.01'),
        "privacy.json: has another epsilon than 4 rounds",
    ),
    "a smaller delta claimed": (
        changed(folder.PRIVACY, r'"delta": [\d.e-]+', '"delta": 1e-05'),
        "privacy.json: has another delta",
    ),
    "more noise in the ledger": (
        changed(folder.PRIVACY, r'"noise_multiplier": 4', '"noise_multiplier": 9'),
        "privacy.json: has another ledger",
    ),
    "more noise beside the ledger": (
        changed(folder.PRIVACY, r'"noise_multiplier": 4\.0,\n  "num', '"noise_multiplier": 9,"num'),
        "privacy.json: has another noise_multiplier than the newest checkpoint",
    ),
    "fewer rounds claimed": (
        changed(folder.PRIVACY, r'"rounds": 4', '"rounds": 2'),
        "privacy.json: is of 2 rounds, the chain of 4",
    ),
    "another unit claimed": (
        changed(folder.PRIVACY, r'"privacy_unit": "client"', '"privacy_unit": "subject"', 2),
        "privacy.json: has another (ledger|privacy_unit)",
    ),
    "a statement in nicer words": (
        changed(folder.PRIVACY, "with all its data", "for good"),
        "privacy.json: has another statement than the newest checkpoint",
    ),
    "no claim": (removed(folder.PRIVACY), "privacy.json: is missing"),
    "a claim that is no JSON": (truncated(folder.PRIVACY), "ledger: cannot be read: JSONDecode"),
    "more noise in the config": (
        changed(folder.CONFIG, r"noise_multiplier = 4", "noise_multiplier = 9"),
        "config.toml: is not the one of the run",
    ),
    "more rounds in the config": (
        changed(folder.CONFIG, r"num_rounds = 4", "num_rounds = 9"),
        "config.toml: is not the one of the run",
    ),
    "a comment in the config": (
        changed(folder.CONFIG, r"\A", "# good\n"),
        "config.toml: is not the one of the run",
    ),
    "no code in the config that anybody runs": (
        changed(folder.CONFIG, r'scheme = "dp_fedavg"', 'scheme = "nowhere.to.be.found"'),
        "config.toml: is not the one of the run",
    ),
    "a number in the report": (
        changed(folder.REPORT, r"epsilon", "Epsilon"),
        "report.html: is not the one of the run",
    ),
    "a report truncated": (truncated(folder.REPORT), "report.html: is not the one of the run"),
    "no report": (removed(folder.REPORT), "report.html: is missing"),
    "a bit of a checkpoint": (
        flipped("checkpoints/4/state/**/*"),
        "checkpoints/4: Expected checkpoint .* files with other checksums",
    ),
    "a bit of an older checkpoint": (
        flipped("checkpoints/2/state/**/*"),
        "checkpoints/2: Expected checkpoint .* files with other checksums",
    ),
    "a bit of a checkpoint, and its checksum": (
        flipped("checkpoints/4/state/**/d/*", redo=True),
        "checkpoints/4: Expected checkpoint",
    ),
    "less epsilon in a checkpoint, and its checksum": (
        less_epsilon_in_the_checkpoint,
        "checkpoints/4: Expected checkpoint .* another digest",
    ),
    "no newest checkpoint": (removed("checkpoints/4"), "checkpoints/4: is missing"),
    "a checkpoint that never was": (
        a_checkpoint_of_a_round_that_never_was,
        "checkpoints/6: is in no link",
    ),
    "a file in a checkpoint": (a_file_in_a_checkpoint, "checkpoints/2: .* other checksums"),
    "a folder among checkpoints": (a_folder_among_checkpoints, "checkpoints/best: is no check"),
    "another model description": (
        changed(folder.MODEL, '"digits"', '"letters"'),
        "model.json: is not the one of the run",
    ),
    "another time": (
        changed(folder.SESSIONS, r'"began": "20', '"began": "19'),
        "sessions.jsonl: is not the one of the run",
    ),
    "other digests of the data": (
        changed(folder.FINGERPRINT, FIRST_HEX, lambda found: f"{'1' * 32}"),
        "fingerprint.json: is not the one of the run",
    ),
    "a link removed": (
        of_lines(folder.CHAIN, lambda lines: [*lines[:3], *lines[4:]]),
        "chain: Expected line 4",
    ),
    "links in another order": (
        of_lines(folder.CHAIN, lambda lines: [lines[0], lines[2], lines[1], *lines[3:]]),
        "chain: Expected line 2",
    ),
    "no beginning": (of_lines(folder.CHAIN, lambda lines: lines[1:]), "chain: Expected line 1"),
    "one epsilon in the chain": (
        changed(folder.CHAIN, r'"epsilon": [\d.e-]+', '"epsilon": 0.01'),
        "chain: Expected line 2",
    ),
    "the last link cut off": (
        truncated(folder.CHAIN),
        "report.html: is in no link of the chain",
    ),
    "an empty chain": (of_lines(folder.CHAIN, lambda lines: []), "chain: .* got nothing"),
    "no chain": (removed(folder.CHAIN), "chain: .* got no such file"),
    "another model in its export": (another_export, "model.npz: is another model"),
    "less epsilon in an export": (
        changed("model.npz.json", r'"epsilon": [\d.e-]+', '"epsilon": 0.01'),
        "model.npz: has another claim",
    ),
    "a word more in an export's claim": (
        changed("model.npz.json", r'"claim": {', '"claim": {"audited": true,'),
        "model.npz: has another claim",
    ),
    "two epsilons in an export's claim": (
        changed("model.npz.json", r'"epsilon":', '"epsilon": 0.01, "epsilon":'),
        "model.npz: cannot be read: ValueError: Expected every name once .* got 'epsilon' twice",
    ),
    "two epsilons in a link": (
        changed(folder.CHAIN, r'"epsilon":', '"epsilon": 0.01, "epsilon":'),
        "chain: Expected line 2",
    ),
    "a blank in a link": (changed(folder.CHAIN, r'"epsilon":', '"epsilon": '), "Expected line 2"),
    "other classes beside an export": (
        changed("model.npz.json", r'"dataset": "digits"', '"dataset": "letters"'),
        "model.npz: .* another description of the model",
    ),
    "a checkpoint by another number of the same value": (
        lambda run_dir: shutil.copytree(run_dir / "checkpoints/2", run_dir / "checkpoints/02"),
        "checkpoints/02: is no checkpoint of the run",
    ),
    "no claim beside an export": (removed("model.npz.json"), "model.npz: cannot be read"),
    "a torn file where none is due": (
        lambda run_dir: (run_dir / f".{folder.PRIVACY}.tmp").write_text("{"),
        ".privacy.json.tmp: is no file of a run",
    ),
    "a foreign file": (a_foreign_file, "notes.txt: is no file of a run"),
    "less epsilon everywhere, all hashes made anew": (
        a_chain_of_less_epsilon,
        r"epsilon: .* after round 1 is less than .*second accountant: pld proves .*, more than",
    ),
    "rounds that cost nothing, all hashes made anew": (
        a_chain_of_rounds_that_cost_nothing,
        "ledger: counts 1 after round 2, where its scheme counts 2",
    ),
    "more noise in the chain, all hashes made anew": (
        a_chain_of_other_noise,
        "privacy.json: has another ledger",
    ),
    "another state, all hashes made anew": (
        a_chain_of_another_state,
        "checkpoints/4: has another state than the run wrote",
    ),
}


@pytest.mark.parametrize(
    ("values", "uses"),
    [
        ({"scheme": "dp_ftrl", "rounds_per_start": 4}, [1, 1, 1, 1, 2]),
        ({"scheme": "dp_fedavg", "correlation": "banded", "bands": 2}, [1, 1, 2, 2, 3]),
        ({"scheme": "dp_fedavg"}, [1, 2, 3, 4, 5]),
        ({"scheme": "higradavg", "num_local_steps": 3}, [1, 2, 3, 4, 5]),
    ],
)
def test_a_ledger_counts_rounds_as_the_scheme_does_and_no_fewer(values, uses, tmp_path):
    sections = to_sections(from_sections({"scheme": values}))
    (tmp_path / folder.CONFIG).write_text(to_toml(from_sections(sections)))
    assert verify._counted(tmp_path, [0, *uses]).fits
    for other in ([1, *uses[:-1]], [*uses[:-1], uses[-2]], [0, *uses[1:]], uses[::-1]):
        assert other == uses or not verify._counted(tmp_path, [0, *other]).fits


def test_with_the_data_a_scheme_from_outside_is_asked_how_often_rounds_count(copied, monkeypatch):
    monkeypatch.setattr(verify.config_lib, "scheme_of", lambda sections: None)
    assert refused(copied, data=True) == ""
    a_chain_of_rounds_that_cost_nothing(copied)
    (ledger,) = (check for check in verify.run(copied).checks if check.what == "ledger")
    assert ledger.fits and ledger.found.endswith("which --data asks")
    assert "data: another count of rounds" in refused(copied, data=True)


@pytest.mark.release(reason="one more matrix", ids=["banded"])
@pytest.mark.slow(reason="a run of two more schemes")
@pytest.mark.parametrize("correlation", ["tree", "banded"])
def test_a_run_whose_noise_is_correlated_fits(correlation, tmp_path):
    flags = ["--scheme", "dp_ftrl", "--correlation", correlation, "--num-rounds", "5"]
    where = ["--run-dir", str(tmp_path / "run"), "--target-epsilon", "none", "--baseline", "false"]
    assert cli.main(["simulate", *flags, *where, "--noise-multiplier", "4"]) == 0
    assert refused(tmp_path / "run", data=True) == ""


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_refused_by_name(name, copied):
    edit, words = EDITS[name]
    edit(copied)
    found = refused(copied)
    assert re.search(words, found), found


def test_a_run_that_has_not_ended_tells_one_epsilon_and_says_what_no_link_is_of(copied):
    of_lines(folder.CHAIN, lambda lines: lines[:-1])(copied)
    (copied / folder.REPORT).unlink()
    assert refused(copied) == ""
    changed(folder.SESSIONS, r'"began": "20', '"began": "19')(copied)
    said = " ".join(verify.run(copied).not_shown)
    assert refused(copied) == "" and "no link is of sessions.jsonl, of model.json" in said
    claim = (copied / folder.PRIVACY).read_text()
    for old, new, name in (
        (r"{", '{"audited": true,', "audited"),
        (r'"initial_model": null,', "", "initial_model"),
    ):
        changed(folder.PRIVACY, old, new)(copied)
        assert f"has another {name} than the newest checkpoint" in refused(copied)
        (copied / folder.PRIVACY).write_text(claim)
    changed(folder.PRIVACY, r'"epsilon":', '"epsilon": 0.01, "epsilon":')(copied)
    assert "got 'epsilon' twice" in refused(copied)


def test_what_a_file_of_safetensors_says_in_itself_is_read(copied):
    safetensors = pytest.importorskip("safetensors.numpy")
    path = copied / "model.safetensors"
    trained.export(trained.load(copied), "safetensors", path)
    assert refused(copied) == ""
    about = json.loads((copied / "model.safetensors.json").read_text())
    about["claim"]["epsilon"] = 0.01
    arrays = safetensors.load_file(path)
    safetensors.save_file(arrays, path, metadata={"fljax": json.dumps(about)})
    assert "model.safetensors: says something else in itself" in refused(copied)


@pytest.mark.parametrize("name", [folder.CHAIN, folder.SEED])
def test_files_of_another_run_are_refused_by_name(name, copied, another):
    shutil.copy2(another / name, copied / name)
    words = {
        folder.CHAIN: "fingerprint.json: is not the one of the run.*metrics.jsonl: line 1 is not",
        folder.SEED: "seed.secret: is of another run",
    }
    assert re.search(words[name], refused(copied))


def _image(dataset):
    dataset.train["x"][5, 2, 3, 0] = 1 - dataset.train["x"][5, 2, 3, 0]


def _label(dataset):
    dataset.train["y"][7] = (dataset.train["y"][7] + 1) % 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_image, r"data: another training x of clients \(client \d+\)"),
        (_label, r"data: another training y of clients \(client \d+\)"),
    ],
)
def test_other_data_are_refused_by_name(change, words, finished, monkeypatch):
    original = data.load

    def load(name):
        dataset = original(name)
        change(dataset)
        return dataset

    monkeypatch.setattr(task.data, "load", load)
    assert re.search(words, refused(finished, data=True))
    assert refused(finished) == ""  # and without --data nothing is said of them
    assert any("--data" in sentence for sentence in verify.run(finished).not_shown)


def test_another_deal_of_clients_is_refused_by_name(finished, monkeypatch):
    original = task.client_table
    monkeypatch.setattr(task, "client_table", lambda *args: np.roll(original(*args), 1, axis=0))
    words = r"data: another partition over clients \(client 0 and 19 more places\)"
    assert re.search(words, refused(finished, data=True))


def test_data_without_the_secret_cannot_be_held_against_it(copied):
    (copied / folder.SEED).unlink()
    with pytest.raises(ValueError, match="secret seed of this run"):
        verify.run(copied, data=True)
    found = verify.run(copied)
    assert found.fits and any(folder.SEED in sentence for sentence in found.not_shown)


def test_who_redoes_all_of_it_is_found_by_the_published_head_alone(copied):
    """What is made anew with care fits: that is said, and a head that was published tells."""
    head = verify.run(copied).head
    for name in (folder.REPORT, folder.SESSIONS):
        changed(name, "fljax", "Fljax")(copied)
    redo(copied, lambda kind, body: None)
    found = verify.run(copied)
    assert found.fits and found.head != head
    assert any("head alone" in sentence for sentence in found.not_shown)
    assert "published head: " + head + " is no link" in refused(copied, head=head)


@pytest.mark.slow(reason="whole runs")
def test_a_run_that_was_killed_fits_and_goes_on_in_one_chain(tmp_path):
    run_dir = begun(tmp_path / "run", 4)
    found = verify.run(run_dir)
    assert refused(run_dir) == "" and not found.closed and found.rounds == 4
    with (run_dir / folder.CHAIN).open("ab") as file:  # a link that a kill has cut off
        file.write(b'{"round": {"rou')
    assert verify.run(run_dir).head == found.head
    torn = run_dir / "checkpoints/6.orbax-checkpoint-tmp"
    torn.mkdir()  # and what was being written
    (run_dir / f".{folder.PRIVACY}.tmp").write_text("{")
    assert refused(run_dir) == ""
    run_page.write(run.resume(run_dir, Watch()))
    ended = verify.run(run_dir, head=chain.read(run_dir)[2].head)
    assert ended.fits and ended.closed and ended.rounds == 4
    kinds = [link.kind for link in chain.read(run_dir)]
    usual = ["begin", "round", "round", "checkpoint", "round", "round", "checkpoint", "closed"]
    assert kinds == usual


@pytest.mark.slow(reason="whole runs")
def test_a_head_that_was_published_is_in_the_chain_of_a_longer_run(copied):
    head = verify.run(copied).head
    run_page.write(run.resume(copied, Watch(), num_rounds=6))
    for name in ("model.npz", "model.npz.json"):
        (copied / name).unlink()
    found = verify.run(copied, head=head)
    assert refused(copied, head=head) == "" and found.rounds == 6
    # Gone through again, nothing is added.
    run_page.write(run.resume(copied, Watch()))
    assert verify.run(copied).head == found.head


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (removed(folder.CHAIN), "got no such file"),
        (changed(folder.CHAIN, r'"epsilon": [\d.e-]+', '"epsilon": 0.01'), "line 2 .* to follow"),
        (of_lines(folder.CHAIN, lambda lines: lines[:4]), "newest checkpoint knows it"),
        (a_chain_of_rounds_that_cost_nothing, "newest checkpoint knows it"),
    ],
)
def test_a_run_does_not_go_on_with_another_chain(edit, words, copied):
    before = (copied / folder.METRICS).read_bytes()
    edit(copied)
    with pytest.raises(chain.ChainError, match=words):
        run.resume(copied, Watch())
    assert (copied / folder.METRICS).read_bytes() == before


def test_a_run_does_not_go_on_with_other_code(copied, monkeypatch):
    monkeypatch.setattr(chain, "code", lambda: "0" * 64)
    with pytest.raises(chain.ChainError, match="another code of fljax than in chain"):
        run.resume(copied, Watch())
    assert any("another fljax" in sentence for sentence in verify.run(copied).not_shown)


def test_a_chain_of_one_secret_ends_in_the_same_head(tmp_path, finished):
    """But for the last link, which knows when the run was."""
    again = tmp_path / "again"
    again.mkdir()
    for name in (folder.CONFIG, folder.SEED):
        shutil.copy2(finished / name, again / name)
    run.resume(again, Watch())
    mine, theirs = chain.read(again), chain.read(finished)
    assert [link.head for link in mine] == [link.head for link in theirs[:-1]]


def test_a_key_of_any_generator_comes_back_from_a_checkpoint(tmp_path):
    import contextlib

    from fljax_kernels import chacha20

    state = {"a": jax.random.key(1), "b": chacha20.key(bytes(range(32))), "c/d": np.ones(2)}
    with contextlib.closing(checkpoint.Checkpoints(tmp_path, "config")) as checkpoints:
        digest = checkpoints.save(1, checkpoint.Saved(state, {}, 0))
        checkpoints.finish()
        found = checkpoints.restore(state)
    assert found is not None and found.digest == digest
    for name in ("a", "b"):
        assert found.state[name].dtype == state[name].dtype
        left, right = (jax.random.key_data(each[name]) for each in (found.state, state))
        np.testing.assert_array_equal(left, right)
    assert checkpoint.read(tmp_path, 1)[1]["digest"] == digest


@pytest.mark.parametrize(("old", "words"), [(1, "nothing to tell"), (2, "no hash chain")])
def test_an_older_checkpoint_is_refused_in_words(old, words, copied):
    changed("checkpoints/4/meta/metadata", r'"format": 3', f'"format": {old}')(copied)
    checksums(copied)
    for read in (lambda: run.resume(copied, Watch()), lambda: trained.load(copied)):
        with pytest.raises(checkpoint.CheckpointError, match=f"got format {old}. .*{words}"):
            read()


def test_the_command_answers_with_its_exit_code(copied, capsys, tmp_path):
    head = verify.run(copied).head
    assert cli.main(["verify", str(copied), "--head", head]) == 0
    out = capsys.readouterr().out
    assert f"head      {head}" in out and "not shown" in out and "REFUSED" not in out
    a_foreign_file(copied)
    assert cli.main(["verify", str(copied)]) == 1
    out = capsys.readouterr().out
    assert "REFUSED   notes.txt" in out and head not in out
    assert cli.main(["verify", str(tmp_path)]) == 2
    assert "to be the folder of a run" in capsys.readouterr().err
