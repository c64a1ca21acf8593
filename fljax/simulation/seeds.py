"""Where a run's randomness begins: 256 secret bits of the operating system, in a file of their own,
or a fixed seed.

What is drawn from the secret bits comes by way of SHA-256 and a purpose: whoever finds one of the
keys, or the state of the generator that dealt the examples, has neither the bits nor another key.
"""

import hashlib
import pathlib
import secrets

import jax
import jax.numpy as jnp
import numpy as np

from fljax.simulation import config as config_lib
from fljax.simulation import secret_file
from fljax.simulation.config import Config, Generator
from fljax.simulation.devices import processes
from fljax.simulation.record import folder
from fljax_kernels.chacha20 import api as chacha20

Seed = int | bytes  # fixed, below 2**32; or 32 secret bytes


def drawn() -> bytes:
    """32 bytes of the operating system."""
    return secrets.token_bytes(secret_file.BYTES)


def new(config: Config) -> Seed:
    """The seed of a new run: the config's, or bits that the first of several processes draws for
    all.
    """
    if isinstance(config.run.seed, int):
        return config.run.seed
    return bytes.fromhex(processes.words_from_first(drawn().hex() if processes.first() else ""))


def check_kept(config: Config, kept: secret_file.Kept) -> None:
    """Raises ValueError where a fixed seed, which stands in config.toml, is to be kept secret."""
    if isinstance(config.run.seed, int) and kept != secret_file.IN_FOLDER:
        raise ValueError("Expected a random seed with secret or passphrase, got a fixed one.")


def begin(
    run_dir: pathlib.Path,
    config: Config,
    seed: Seed,
    kept: secret_file.Kept = secret_file.IN_FOLDER,
) -> None:
    """As `folder.begin`, with the secret bits of a run that has some: they are there before the
    config is.

    Raises:
      ValueError, DiskFullError: as `folder.begin`; or a secret cannot be kept so, or a fixed seed
        is to be.
    """
    check_kept(config, kept)
    if isinstance(seed, int):
        folder.begin(run_dir, config_lib.to_toml(config))
        return
    secret_file.check(kept, run_dir)
    text = secret_file.text(seed, kept)
    if kept.file is None:
        folder.begin(run_dir, config_lib.to_toml(config), text)
        return
    folder.check_free(run_dir)
    folder.write_secret(kept.path(run_dir), text)
    try:
        folder.begin(run_dir, config_lib.to_toml(config))
    except Exception:
        kept.path(run_dir).unlink(missing_ok=True)
        raise


def discard(run_dir: pathlib.Path, kept: secret_file.Kept = secret_file.IN_FOLDER) -> None:
    """As `folder.discard`, with the run's secret, wherever it is."""
    kept.path(run_dir).unlink(missing_ok=True)
    folder.discard(run_dir)


def of_run(
    config: Config, run_dir: pathlib.Path, kept: secret_file.Kept = secret_file.IN_FOLDER
) -> Seed:
    """The seed of the run in `run_dir`; of several processes the first one reads it, and it goes to
    the others.

    Raises:
      ValueError: as `secret_file.read`; or the seed is fixed, and is taken to be kept secret.
    """
    check_kept(config, kept)
    if isinstance(config.run.seed, int):
        return config.run.seed
    text = secret_file.read(kept, run_dir).hex() if processes.first() else ""
    return bytes.fromhex(processes.words_from_first(text))


def _derived(secret: bytes, purpose: str, size: int) -> bytes:
    return hashlib.sha256(f"fljax {purpose} ".encode() + secret).digest()[:size]


def number(seed: Seed, purpose: str) -> int:
    """What seeds a generator of NumPy: a fixed seed as it is, else 128 bits of their own for each
    purpose.
    """
    return seed if isinstance(seed, int) else int.from_bytes(_derived(seed, purpose, 16), "big")


def generator(config: Config) -> Generator:
    """What the rounds of a run draw from."""
    if config.run.generator != "auto":
        return config.run.generator
    return "threefry" if isinstance(config.run.seed, int) else "chacha20"


def uniform(seed: Seed, purpose: str) -> float:
    """A number of [0, 1), of 53 bits of its own for each purpose."""
    secret = seed if isinstance(seed, bytes) else str(seed).encode()
    return (int.from_bytes(_derived(secret, purpose, 8), "big") >> 11) / 2**53


def keys(seed: Seed, kind: Generator, attempt: int | None = None) -> tuple[jax.Array, jax.Array]:
    """Two typed keys `[]`: of the initial model, which is public and drawn by threefry, and of all
    rounds.

    attempt: which try of a search the rounds are of: each has a key of its own, and all the same
      initial model.
    """
    if isinstance(seed, int):
        model, rounds = jax.random.split(jax.random.key(seed, impl="threefry2x32"))
        if kind == "chacha20":
            rounds = jax.random.key(seed, impl=chacha20.IMPL)
        return model, rounds if attempt is None else jax.random.fold_in(rounds, attempt)
    purpose = "rounds" if attempt is None else f"rounds of try {attempt}"
    if kind == "chacha20":
        return _threefry_key(seed, "model"), chacha20.key(_derived(seed, purpose, chacha20.BYTES))
    return _threefry_key(seed, "model"), _threefry_key(seed, purpose)


def _threefry_key(secret: bytes, purpose: str) -> jax.Array:
    data = np.frombuffer(_derived(secret, purpose, 8), "<u4").astype(np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(data), impl="threefry2x32")


def name(seed: Seed) -> str:
    """A word that tells seeds apart; of a secret one it says nothing to who has less than 2**256
    tries.
    """
    return "fixed" if isinstance(seed, int) else _derived(seed, "name", 32).hex()


def digest_key(seed: Seed) -> bytes:
    """Key of digests, which only who has the secret bits can then compare with guesses; none for a
    fixed seed.
    """
    return b"" if isinstance(seed, int) else _derived(seed, "digests", 32)
