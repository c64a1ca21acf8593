"""A run's secret elsewhere, or under a passphrase: without it nobody goes on, and no noise can be
made again from the folder.
"""

import re

import jax
import numpy as np
import pytest

import fljax
from fljax import _keys, cli
from fljax.simulation import run, secret_file, seeds, verify
from fljax.simulation.record import folder
from fljax.simulation.report import run_page
from fljax.simulation.secret_file import Kept
from fljax_kernels import chacha20
from tests.simulation.test_seeds import Watch
from tests.simulation.test_verify import config

pytestmark = pytest.mark.usefixtures("compiled_once")
WORDS = "correct horse battery staple"
CHEAP = 2**6


@pytest.fixture
def cheap(monkeypatch):
    """Scrypt with a sixteenth of a MiB, as no user has it."""
    monkeypatch.setattr(secret_file, "_COST", CHEAP)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory, compiled_once):
    """A run that was killed in its third round, and where its encrypted secret is."""
    where = tmp_path_factory.mktemp("apart")
    kept = Kept(where / "run.key", WORDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret_file, "_COST", CHEAP)
        with pytest.raises(RuntimeError, match="killed"):
            run.start(config(), where / "run", Watch(3), secret=kept)
    return where / "run", kept


@jax.jit
def noise(key):
    key = _keys.server_key(key, 0, _keys.Purpose.NOISE)
    return jax.random.normal(key, (64,))


def test_from_the_folder_alone_no_noise_can_be_made_again(elsewhere, cheap):
    """Every run of 32 bytes, and every word of 64 hexadecimal digits, of every file is tried."""
    run_dir, kept = elsewhere
    bits = secret_file.read(kept, run_dir)
    truth = noise(seeds.keys(bits, "chacha20")[1])
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert len(files) > 10 and not (run_dir / folder.SEED).exists()
    guesses = {bytes(32)}
    for path in files:
        content = path.read_bytes()
        words = re.findall(rb"[0-9a-f]{64}", content)
        guesses |= {bytes.fromhex(word.decode()) for word in words}
        round_key = np.asarray(jax.random.key_data(seeds.keys(bits, "chacha20")[1])).tobytes()
        for word in (bits, bits.hex().encode(), round_key, round_key.hex().encode()):
            assert word not in content, path
    assert len(guesses) > 5
    for guess in guesses:
        for key in (seeds.keys(guess, "chacha20")[1], chacha20.key(guess)):
            assert not np.allclose(noise(key), truth)


@pytest.mark.slow(reason="whole runs")
def test_a_run_goes_on_with_its_secret_and_not_without(elsewhere, cheap):
    run_dir, kept = elsewhere
    before = (run_dir / folder.METRICS).read_bytes()
    wrong = {
        Kept(): "secret seed of this run.* began with --secret FILE",
        Kept(kept.file): "passphrase under which .* got none: give --passphrase",
        Kept(kept.file, "another"): "passphrase under which .* got another one",
        Kept(run_dir / "none", WORDS): "got no such file",
    }
    for one, words in wrong.items():
        with pytest.raises(ValueError, match=words):
            run.resume(run_dir, Watch(), secret=one)
    assert (run_dir / folder.METRICS).read_bytes() == before
    run_page.write(run.resume(run_dir, Watch(), secret=kept))
    found = verify.run(run_dir, data=True, secret=kept)
    assert found.fits and found.closed
    with pytest.raises(ValueError, match="secret seed of this run"):
        verify.run(run_dir, data=True)


def test_sealed_bits_come_back_and_no_edit_does(tmp_path, cheap):
    bits, kept = bytes(range(32)), Kept(tmp_path / "key", WORDS)
    text = secret_file.text(bits, kept)
    folder.write_secret(kept.file, text)
    assert secret_file.read(kept, tmp_path) == bits and secret_file.is_sealed(kept.file)
    assert bits.hex() not in text and secret_file.text(bits, kept) != text  # salt and nonce are new
    words = text.split()
    for place in (1, 2, 3):
        flipped = f"{int(words[place][0], 16) ^ 1:x}{words[place][1:]}"
        edited = " ".join([*words[:place], flipped, *words[place + 1 :]])
        folder.write_secret(kept.file, f"{edited}\n")
        with pytest.raises(ValueError, match="got another one; or the file is damaged"):
            secret_file.read(kept, tmp_path)
    folder.write_secret(kept.file, text[:-3])
    with pytest.raises(ValueError, match="it is damaged, or no seed"):
        secret_file.read(kept, tmp_path)


def test_a_sealed_file_is_what_rfc_8439_and_7914_say(tmp_path, cheap):
    """Opened by the standard library's scrypt and the package's AEAD, apart from our reader."""
    import hashlib

    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    bits = bytes(range(32))
    _, salt, nonce, sealed = secret_file.text(bits, Kept(None, WORDS)).split()
    key = hashlib.scrypt(WORDS.encode(), salt=bytes.fromhex(salt), n=2**6, r=8, p=1, dklen=32)
    label = secret_file._SEALED.encode()
    opened = ChaCha20Poly1305(key).decrypt(bytes.fromhex(nonce), bytes.fromhex(sealed), label)
    assert opened == bits


def test_a_passphrase_alone_seals_the_file_in_the_folder(tmp_path):
    kept = Kept(None, WORDS)
    seed = seeds.new(config())
    seeds.begin(tmp_path / "run", config(), seed, kept)
    path = tmp_path / "run" / folder.SEED
    assert path.stat().st_mode & 0o777 == 0o600 and seed.hex() not in path.read_text()
    assert seeds.of_run(config(), tmp_path / "run", kept) == seed


def test_a_plain_file_is_refused_to_who_believes_it_encrypted(tmp_path):
    bits, kept = bytes(range(32)), Kept(tmp_path / "key")
    folder.write_secret(kept.file, secret_file.text(bits, kept))
    assert secret_file.read(kept, tmp_path) == bits
    for passphrase in (WORDS, ""):
        with pytest.raises(ValueError, match=r"key to be encrypted.*got a plain one"):
            secret_file.read(Kept(kept.file, passphrase), tmp_path)


def test_a_secret_is_not_put_where_it_must_not_be(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("")
    wrong = {
        Kept(taken): "exists: another run may need it",
        Kept(tmp_path / "run" / "key"): "outside of the run's folder",
        Kept(tmp_path / "no" / "key"): "in a folder that exists",
        Kept(None, ""): "not empty",
    }
    for kept, words in wrong.items():
        with pytest.raises(ValueError, match=words):
            seeds.begin(tmp_path / "run", config(), seeds.new(config()), kept)
    with pytest.raises(ValueError, match="Expected a random seed"):
        seeds.begin(tmp_path / "run", config(seed=3), 3, Kept(tmp_path / "key"))
    assert not (tmp_path / "run").exists() and not (tmp_path / "key").exists()


def test_a_run_that_cannot_begin_leaves_no_secret(tmp_path, monkeypatch):
    def full(*_, **__):
        raise folder.DiskFullError("no room")

    monkeypatch.setattr(folder, "begin", full)
    with pytest.raises(folder.DiskFullError):
        seeds.begin(tmp_path / "run", config(), seeds.new(config()), Kept(tmp_path / "key"))
    assert not (tmp_path / "key").exists()


@pytest.mark.slow(reason="runs of the command")
def test_the_command_asks_for_a_passphrase_by_a_variable(tmp_path, monkeypatch, capsys, cheap):
    flags = "--num-clients 20 --num-rounds 1 --model softmax --no-baseline --noise-multiplier 2"
    where = f"--run-dir {tmp_path}/run --secret {tmp_path}/key --passphrase --quiet"
    monkeypatch.delenv("FLJAX_PASSPHRASE", raising=False)
    assert cli.main(["simulate", *flags.split(), *where.split()]) == 2
    assert "FLJAX_PASSPHRASE" in capsys.readouterr().err and not (tmp_path / "run").exists()
    monkeypatch.setenv("FLJAX_PASSPHRASE", WORDS)
    assert cli.main(["simulate", "--seed", "0", *flags.split(), *where.split()]) == 2
    assert "random seed" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert cli.main(["simulate", *flags.split(), *where.split()]) == 0
    again = ["simulate", "--resume", f"{tmp_path}/run", "--secret", f"{tmp_path}/key"]
    assert cli.main([*again, "--passphrase"]) == 0 and cli.main(again) == 2
    assert "give --passphrase" in capsys.readouterr().err


def called(run_dir, **how):
    """`config()` by a call."""
    return fljax.simulate(
        "dp_fedavg",
        data="digits",
        model="softmax",
        run_dir=run_dir,
        num_clients=20,
        partition="iid",
        sampling_prob=1.0,
        noise_multiplier=4.0,
        target_epsilon=None,
        target_delta=1e-3,
        num_rounds=2,
        eval_every=4,
        baseline=False,
        **how,
    )


@pytest.mark.slow(reason="a whole run; the command has one")
def test_a_call_keeps_its_secret_as_the_command_does(tmp_path, cheap):
    run_dir, kept = tmp_path / "run", {"secret": tmp_path / "run.key", "passphrase": WORDS}
    called(run_dir, **kept)
    bits = secret_file.read(Kept(tmp_path / "run.key", WORDS), run_dir)
    assert not (run_dir / folder.SEED).exists() and len(bits) == secret_file.BYTES
    before = (run_dir / folder.METRICS).read_bytes()
    for how, words in (
        ({}, "secret seed of this run"),
        ({"secret": kept["secret"]}, "got none: give --passphrase"),
        ({**kept, "passphrase": "another"}, "got another one"),
    ):
        with pytest.raises(ValueError, match=words):
            called(run_dir, **how)
    called(run_dir, **kept)
    assert (run_dir / folder.METRICS).read_bytes() == before
    found = verify.run(run_dir, secret=Kept(kept["secret"], WORDS))
    assert found.fits and "run.key" in {check.what for check in found.checks}


def test_another_runs_secret_is_found_without_the_data(elsewhere, tmp_path, cheap):
    run_dir, _ = elsewhere
    folder.write_secret(tmp_path / "key", secret_file.text(bytes(32), Kept()))
    found = verify.run(run_dir, secret=Kept(tmp_path / "key"))
    assert [check.found for check in found.checks if not check.fits] == ["is of another run"]


@pytest.mark.slow(reason="a whole run of the command")
def test_a_fixed_seed_is_no_secret_at_any_time(tmp_path, capsys):
    with pytest.raises(ValueError, match="Expected a random seed with secret"):
        called(tmp_path / "run", seed=3, passphrase=WORDS)
    assert not (tmp_path / "run").exists()
    called(tmp_path / "run", seed=3)
    with pytest.raises(ValueError, match="Expected a random seed with secret"):
        called(tmp_path / "run", seed=3, secret=tmp_path / "key")
    with pytest.raises(ValueError, match="Expected a random seed with secret"):
        verify.run(tmp_path / "run", secret=Kept(None, WORDS))
    where = ["simulate", "--resume", str(tmp_path / "run"), "--secret", str(tmp_path / "key")]
    assert cli.main(where) == 2
    assert "Expected a random seed with secret" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "text"),
    [({"secret": b"k"}, "secret to be a path"), ({"passphrase": 5}, "passphrase to be text")],
)
def test_a_secret_of_another_kind_is_refused_before_anything_is_written(given, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        fljax.simulate("dp_fedavg", run_dir=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
