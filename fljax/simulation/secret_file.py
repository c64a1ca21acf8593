"""The file of a run's 256 secret bits: one line of text, plain or encrypted under a passphrase.

Encrypted, the key is made of the passphrase by scrypt (128 MiB of memory a guess) and the bits are
sealed by ChaCha20-Poly1305: a wrong passphrase, or an edited file, is found.
"""

import os
import pathlib
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from fljax.simulation.record import folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

BYTES = 32
_LINE = "fljax-seed-2 {}\n"
_SEALED = "fljax-seed-2-scrypt-chacha20poly1305 {} {} {}\n"  # salt, nonce, what is sealed
_SALT, _NONCE, _TAG = 16, 12, 16  # bytes
_COST, _BLOCK = 2**17, 8  # scrypt: 128 * _COST * _BLOCK bytes of memory


class Kept(NamedTuple):
    """Where a run's secret is. file: outside of the run's folder; None: seed.secret in it.
    passphrase: it is encrypted under; None: it is not.
    """

    file: pathlib.Path | None = None
    passphrase: str | None = None

    def path(self, run_dir: pathlib.Path) -> pathlib.Path:
        """The file."""
        return run_dir / folder.SEED if self.file is None else self.file.expanduser()


IN_FOLDER = Kept()


def check(kept: Kept, run_dir: pathlib.Path) -> None:
    """Raises ValueError where a new run cannot keep its secret so."""
    if kept.passphrase == "":
        raise ValueError("Expected a passphrase that is not empty, got an empty one.")
    if kept.file is None:
        return
    path = kept.path(run_dir)
    if path.exists():
        raise ValueError(
            f"Expected secret to be a new file, got secret={path}, which exists: another run may "
            "need it."
        )
    if path.resolve().is_relative_to(run_dir.resolve()):
        raise ValueError(
            f"Expected secret outside of the run's folder {run_dir}, got secret={path} in it."
        )
    if not path.parent.is_dir():
        raise ValueError(f"Expected secret in a folder that exists, got secret={path}.")


def text(bits: bytes, kept: Kept) -> str:
    """What the file holds. Raises ImportError where the package cryptography is needed, and not
    installed.
    """
    if kept.passphrase is None:
        return _LINE.format(bits.hex())
    salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
    sealed = _cipher(kept.passphrase, salt).encrypt(nonce, bits, _SEALED.encode())
    return _SEALED.format(salt.hex(), nonce.hex(), sealed.hex())


def _cipher(passphrase: str, salt: bytes) -> "ChaCha20Poly1305":
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    key = Scrypt(salt=salt, length=BYTES, n=_COST, r=_BLOCK, p=1).derive(passphrase.encode())
    return ChaCha20Poly1305(key)


def is_sealed(path: pathlib.Path) -> bool:
    """Whether the file is encrypted."""
    return path.read_bytes().startswith(_SEALED.partition(" ")[0].encode())


def read(kept: Kept, run_dir: pathlib.Path) -> bytes:
    """The secret bits of a run.

    Raises:
      ValueError: the file is missing, damaged, readable by others than its owner, or encrypted
        under another passphrase, or under one that is not given; or a passphrase is given, and it
        is not encrypted.
      ImportError: it is encrypted, and the package cryptography is not installed.
    """
    path = kept.path(run_dir)
    if not path.is_file():
        elsewhere = " If the run began with --secret FILE, name that." if kept.file is None else ""
        raise ValueError(
            f"Expected {path} to hold the secret seed of this run, got no such file: without it "
            f"nobody can go on with the run.{elsewhere}"
        )
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ValueError(
            f"Expected {path} to be readable by its owner alone (mode 0600), got mode {mode:04o}: "
            f"whoever has read it can remove the run's noise. If nobody has: chmod 600 {path}"
        )
    found = folder.read_text(path)
    plain = re.fullmatch(_LINE.format(_hex(BYTES)), found)
    if plain is not None:
        if kept.passphrase is not None:
            raise ValueError(
                f"Expected {path} to be encrypted, as a passphrase is given, got a plain one: "
                "whoever reads it can remove the run's noise. Without --passphrase it is read."
            )
        return bytes.fromhex(plain[1])
    sealed = re.fullmatch(_SEALED.format(_hex(_SALT), _hex(_NONCE), _hex(BYTES + _TAG)), found)
    if sealed is None:
        raise ValueError(
            f"Expected {path} to hold 256 bits as fljax writes them, got another text: it is "
            "damaged, or no seed."
        )
    if not kept.passphrase:
        raise ValueError(
            f"Expected the passphrase under which {path} is encrypted, got none: give --passphrase."
        )
    from cryptography.exceptions import InvalidTag

    salt, nonce, data = (bytes.fromhex(part) for part in sealed.groups())
    try:
        return bytes(_cipher(kept.passphrase, salt).decrypt(nonce, data, _SEALED.encode()))
    except InvalidTag:
        raise ValueError(
            f"Expected the passphrase under which {path} is encrypted, got another one; or the "
            "file is damaged."
        ) from None


def _hex(size: int) -> str:
    return f"([0-9a-f]{{{2 * size}}})"
