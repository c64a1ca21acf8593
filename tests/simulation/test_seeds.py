"""Secret seeds: kept by their owner alone, needed to go on, and in nothing that is published; data
are held to them.
"""

import json
import pathlib
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest

from fljax import _keys, cli, data, schemes
from fljax.simulation import config as config_lib
from fljax.simulation import fingerprint, run, seeds, task
from fljax.simulation.config import Config, DataConfig, ModelConfig, PrivacyConfig, RunConfig
from fljax.simulation.record import folder
from fljax.simulation.report import run_page
from fljax_kernels import chacha20

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("compiled_once")


def config(seed="random"):
    return Config(
        scheme_config=schemes.get("dp_fedavg").Config(sampling_prob=1.0, noise_multiplier=4.0),
        # Of one shape, hence of one program, whatever the seed: that of test_verify.py too.
        data=DataConfig(num_clients=20, partition="iid"),
        model=ModelConfig(model="softmax"),
        privacy=PrivacyConfig(target_epsilon=None, target_delta=1e-3),
        run=RunConfig(num_rounds=4, eval_every=4, checkpoint_every=2, baseline=False, seed=seed),
    )


class Watch:
    def __init__(self, at=None):
        self.at = at

    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        if record["round"] == self.at:
            raise RuntimeError("killed")

    def stop(self):
        pass


def killed(run_dir, at, *args):
    with pytest.raises(RuntimeError, match="killed"):
        run.start(config(*args), run_dir, Watch(at))
    return run_dir


@pytest.fixture(scope="module")
def finished(tmp_path_factory, compiled_once):
    outcome = run.start(config(), tmp_path_factory.mktemp("secret") / "run", Watch())
    run_page.write(outcome)
    return outcome


def secret(run_dir):
    return bytes.fromhex((run_dir / folder.SEED).read_text().split()[1])


def test_the_seed_is_in_a_file_of_its_owner_alone_and_nowhere_else(finished):
    run_dir = finished.run_dir
    for name in (folder.SEED, folder.FINGERPRINT):
        assert (run_dir / name).stat().st_mode & 0o777 == 0o600
    bits = secret(run_dir)
    round_key = np.asarray(jax.random.key_data(finished.task.round_key)).tobytes()
    shown = [
        bits,
        bits.hex().encode(),
        str(int.from_bytes(bits, "big")).encode(),
        round_key,
        round_key.hex().encode(),
    ]
    files = [path for path in run_dir.rglob("*") if path.is_file() and path.name != folder.SEED]
    assert len(files) > 10
    for path in files:
        assert not any(word in path.read_bytes() for word in shown), path
    text = (run_dir / folder.REPORT).read_text()
    assert "An experiment with a fixed seed" not in text and "a search over keys cannot" in text


@pytest.mark.slow(reason="one more whole run", but=["random"])
@pytest.mark.parametrize("seed", ["random", 7])
def test_what_is_claimed_says_what_the_seed_is(seed, tmp_path, finished):
    outcome = finished if seed == "random" else run.start(config(seed), tmp_path / "run", Watch())
    claim = json.loads((outcome.run_dir / folder.PRIVACY).read_text())
    (sentence,) = (line for line in claim["statement"]["not_covered"] if "andomness" in line)
    text = run_page.render(outcome)
    if seed == "random":
        assert claim["seed"] == "random" and "ChaCha20" in sentence and "experiment" not in sentence
        assert (outcome.run_dir / folder.SEED).exists() and "An experiment" not in text
    else:
        assert (
            claim["seed"] == "fixed" and "experiment" in sentence and "release no model" in sentence
        )
        assert (
            not (outcome.run_dir / folder.SEED).exists()
            and text.count("An experiment with a fixed seed") == 1
        )
        assert "fixed: an experiment" in text


@pytest.mark.slow(reason="whole runs")
def test_two_runs_share_nothing_and_one_that_was_killed_goes_on_to_its_own_bits(tmp_path):
    """The same secret in another folder, run through, gives the bits that the interrupted run ends
    with.
    """
    run_dir, reference = killed(tmp_path / "run", 3), tmp_path / "reference"
    reference.mkdir()
    for name in (folder.CONFIG, folder.SEED):
        shutil.copy2(run_dir / name, reference / name)
    left, right = run.resume(run_dir, Watch()), run.resume(reference, Watch())
    for name in (folder.METRICS, folder.PRIVACY, folder.FINGERPRINT):
        assert (run_dir / name).read_bytes() == (reference / name).read_bytes()
    for a, b in zip(jax.tree.leaves(left.params), jax.tree.leaves(right.params), strict=True):
        np.testing.assert_array_equal(a, b)
    other = killed(tmp_path / "other", 1)
    assert secret(other) != secret(run_dir)
    first = [(path / folder.METRICS).read_text().splitlines()[0] for path in (run_dir, other)]
    assert first[0] != first[1]


def test_a_run_folder_without_the_secret_recomputes_no_noise(finished, tmp_path):
    """Who has everything else gets other noise from any key that the files could give; who has the
    secret gets the very noise.
    """
    copy = shutil.copytree(finished.run_dir, tmp_path / "published")
    text = (copy / folder.CONFIG).read_text()
    config_there = config_lib.from_sections(config_lib.from_toml(text))
    with_secret = seeds.keys(seeds.of_run(config_there, copy), "chacha20")[1]
    (copy / folder.SEED).unlink()
    with pytest.raises(ValueError, match="secret seed of this run"):
        seeds.of_run(config_there, copy)

    def draw(key):
        key = _keys.server_key(jax.random.clone(key), 0, _keys.Purpose.NOISE)
        return np.asarray(jax.random.normal(key, (64,)))

    noise = draw(with_secret)
    np.testing.assert_array_equal(noise, draw(finished.task.round_key))
    digests = {
        word
        for path in copy.rglob("*")
        if path.is_file()
        for word in re.findall(rb"[0-9a-f]{64}", path.read_bytes())
    }
    assert digests  # names and fingerprints are all that the secret left behind
    guesses = [seeds.keys(bytes.fromhex(word.decode()), "chacha20")[1] for word in digests]
    guesses += [chacha20.key(bytes.fromhex(word.decode())) for word in digests]
    assert not any(np.allclose(draw(guess), noise) for guess in guesses)


def test_keys_of_a_secret_have_nothing_to_do_with_one_another():
    bits = bytes(range(32))
    kinds = ("threefry", "chacha20")
    keys = [key for kind in kinds for key in seeds.keys(bits, kind)]
    both = [np.asarray(jax.random.key_data(key)) for key in keys]
    assert [data.shape for data in both] == [(2,), (2,), (2,), (8,)]
    np.testing.assert_array_equal(both[0], both[2])  # the initial model's
    both = [both[i] for i in (0, 1, 3)]
    numbers = {int.from_bytes(data.tobytes(), "little") for data in both} | {
        seeds.number(bits, "partition")
    }
    numbers |= {int(seeds.name(bits), 16), int.from_bytes(seeds.digest_key(bits), "big")}
    assert len(numbers) == 6 and 0 not in numbers
    # Every bit of the secret counts.
    for place in range(256):
        flipped = (int.from_bytes(bits, "big") ^ 1 << place).to_bytes(32, "big")
        model, rounds = seeds.keys(flipped, "chacha20")
        assert not any(
            np.array_equal(jax.random.key_data(a), b)
            for a, b in zip((model, rounds), (both[0], both[2]), strict=True)
        )


def test_a_fixed_seed_draws_what_it_always_has():
    model, rounds = jax.random.split(jax.random.key(7, impl="threefry2x32"))
    for key, wanted in zip(seeds.keys(7, "threefry"), (model, rounds), strict=True):
        np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(wanted))
    assert seeds.number(7, "partition") == 7


def _missing(path):
    path.unlink()


def _truncated(path):
    path.write_text(path.read_text()[:-3])


def _of_nobody(path):
    path.write_bytes(b"\xff\x00" * 30)


def _readable(path):
    path.chmod(0o640)


def _of_another_run(path):
    path.write_text(f"fljax-seed-2 {bytes(32).hex()}\n")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_missing, "got no such file"),
        (_truncated, "damaged"),
        (_of_nobody, "UTF-8"),
        (_readable, "mode 0640.*chmod 600"),
        (_of_another_run, "another seed"),
    ],
)
def test_nobody_goes_on_without_the_seed(harm, words, finished, tmp_path, capsys):
    run_dir = shutil.copytree(finished.run_dir, tmp_path / "run")
    harm(run_dir / folder.SEED)
    assert cli.main(["simulate", "--resume", str(run_dir)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and re.search(words, line) and str(run_dir) in line


def test_a_folder_left_between_the_seed_and_the_config_is_begun_anew(tmp_path, monkeypatch):
    """Whoever is killed there has no config: there is nothing to resume, and the next run draws its
    own seed.
    """
    write, seen = folder.write_atomically, []

    def write_once(path, text, **options):
        if path.name == folder.CONFIG:
            raise KeyboardInterrupt
        write(path, text, **options)
        seen.append((path.name, path.stat().st_mode & 0o777))

    monkeypatch.setattr(folder, "write_atomically", write_once)
    with pytest.raises(KeyboardInterrupt):
        run.start(config(), tmp_path / "run", Watch())
    assert seen == [(folder.SEED, 0o600)] and [p.name for p in (tmp_path / "run").iterdir()] == [
        folder.SEED
    ]
    first = secret(tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="no run to resume"):
        run.resume(tmp_path / "run", Watch())
    killed(tmp_path / "run", 1)
    assert secret(tmp_path / "run") != first
    shutil.rmtree(tmp_path / "run")
    seeds.begin(tmp_path / "run", config(), seeds.new(config()))
    (tmp_path / "run" / folder.CONFIG).unlink()
    seeds.begin(tmp_path / "run", config(3), seeds.new(config(3)))
    assert not (tmp_path / "run" / folder.SEED).exists()


def test_a_config_that_finds_no_room_leaves_no_seed(tmp_path, monkeypatch):
    write = folder.write_atomically

    def full(path, text, **options):
        if path.name == folder.CONFIG:
            raise folder.DiskFullError("no room")
        write(path, text, **options)

    monkeypatch.setattr(folder, "write_atomically", full)
    with pytest.raises(folder.DiskFullError):
        seeds.begin(tmp_path / "run", config(), seeds.new(config()))
    assert not (tmp_path / "run" / folder.SEED).exists()


def test_a_seed_that_others_could_read_is_not_begun_with(tmp_path, monkeypatch):
    write = folder.write_atomically
    monkeypatch.setattr(
        folder, "write_atomically", lambda path, text, mode=0o644: write(path, text, mode=0o644)
    )
    with pytest.raises(ValueError, match="mode 0600"):
        seeds.begin(tmp_path / "run", config(), seeds.new(config()))
    assert not (tmp_path / "run" / folder.SEED).exists()


def test_a_run_that_cannot_start_leaves_no_seed(tmp_path):
    with pytest.raises(ValueError, match="num_clients"):
        run.start(Config(data=DataConfig(num_clients=10**6)), tmp_path / "r", Watch())
    assert not (tmp_path / "r").exists()


def _image(dataset):
    dataset.train["x"][5, 2, 3, 0] = 1 - dataset.train["x"][5, 2, 3, 0]


def _label(dataset):
    dataset.train["y"][7] = (dataset.train["y"][7] + 1) % 10


def _held_out(dataset):
    dataset.test["x"][3, 0, 0, 0] = 1 - dataset.test["x"][3, 0, 0, 0]


@pytest.mark.slow(reason="a whole run, begun and refused", but=["held out"])
@pytest.mark.parametrize(
    ("change", "words", "seed", "at"),
    [
        (_image, r"training x of clients \(client \d+\)", "random", 1),  # there is no checkpoint
        (_image, r"training x of clients \(client \d+\)", 7, 3),
        (_label, r"training y of clients \(client \d+\)", "random", 3),
        (_held_out, r"held-out x \(rows 2 to 3\)", "random", 3),
    ],
    ids=["an image", "an image, fixed seed", "a label", "held out"],
)
def test_a_run_does_not_go_on_with_other_data(change, words, seed, at, tmp_path, monkeypatch):
    run_dir, original = killed(tmp_path / "run", at, seed), data.load

    def load(name):
        dataset = original(name)
        change(dataset)
        return dataset

    before = (run_dir / folder.METRICS).read_bytes()
    monkeypatch.setattr(task.data, "load", load)
    with pytest.raises(ValueError, match=words):
        run.resume(run_dir, Watch())
    monkeypatch.undo()
    assert (run_dir / folder.METRICS).read_bytes() == before


@pytest.mark.slow(reason="whole runs")
def test_a_run_does_not_go_on_with_another_partition_or_config(tmp_path, monkeypatch):
    run_dir, original = killed(tmp_path / "run", 1), task.client_table
    monkeypatch.setattr(task, "client_table", lambda *args: np.roll(original(*args), 1, axis=0))
    with pytest.raises(
        ValueError, match=r"another partition over clients \(client 0 and 19 more places\)"
    ):
        run.resume(run_dir, Watch())
    monkeypatch.undo()
    path = run_dir / folder.CONFIG
    path.write_text(path.read_text().replace("l2_clip_norm = ", "l2_clip_norm = 1"))
    with pytest.raises(
        ValueError, match="another config"
    ):  # before any checkpoint, which would know it
        run.resume(run_dir, Watch())


@pytest.mark.slow(reason="whole runs")
def test_a_run_of_which_nothing_tells_the_data_is_not_resumed(finished, tmp_path):
    run_dir = shutil.copytree(finished.run_dir, tmp_path / "run")
    (run_dir / folder.FINGERPRINT).unlink()
    with pytest.raises(ValueError, match=r"fingerprint\.json"):
        run.resume(run_dir, Watch())
    (run_dir / folder.FINGERPRINT).write_text("{}")
    with pytest.raises(ValueError, match=r"fingerprint\.json.*format 3"):
        run.resume(run_dir, Watch())
    early = killed(tmp_path / "early", 1)
    (early / folder.FINGERPRINT).unlink()
    with pytest.raises(ValueError, match=r"fingerprint\.json"):
        run.resume(early, Watch())


def test_a_fingerprint_of_secret_data_is_keyed():
    """Else one who knows all of a block but a label could try its values."""
    built = task.build(config(7))
    ours, theirs, open_ = (
        fingerprint.of(built, config(), seed)["data"] for seed in (bytes(16), b"1" * 16, 7)
    )
    for name, part in ours.items():
        assert not set(part["digests"]) & {*theirs[name]["digests"], *open_[name]["digests"]}


def test_a_build_without_a_seed_draws_one():
    tables = [np.asarray(task.build(config()).client_data.indices) for _ in range(2)]
    assert tables[0].shape != tables[1].shape or not np.array_equal(*tables)


def test_make_demo_repeats_itself():
    said = subprocess.run(
        ["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"fljax simulate .*--seed 0", said)


def test_data_of_another_number_of_clients_are_other_data():
    rows = np.arange(12.0).reshape(12, 1)
    before, now = (
        {
            "config": "",
            "seed": "",
            "own": {},
            "damaged": None,
            "data": {"x of clients": fingerprint._of_clients(rows, table, bytes(32))},
        }
        for table in (np.arange(12).reshape(12, 1), np.arange(12).reshape(6, 2))
    )
    (told,) = fingerprint.changed(before, now)
    assert "of 12 clients before" in told and "of 6 clients now" in told
