"""Keys that two clients share and nobody else knows: X25519 and HKDF for real clients, fold_in for
simulated ones.

Both kinds have one interface: `round_keys(round_index, peers)` and `own_key(round_index)`, whose
results feed `fljax.upload.pair_noise.client_noise`. Either refuses a round number that is not above
the last one: the same noise on other data gives away their difference.
"""

import hmac
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys, _validate
from fljax_kernels.chacha20 import api as chacha20

_LABEL = b"fljax pair noise 1"


class _Rounds:
    """Numbers of clients, and of rounds, each used once."""

    def __init__(self, client: int):
        _validate.non_negative_int(client=client)
        self.client = int(client)
        self._next = {"round_keys": 0, "own_key": 0}

    def _begin(self, purpose: str, round_index: int, peers: Sequence[int] = ()) -> None:
        _validate.non_negative_int(round_index=round_index)
        if self.client in peers or len(set(peers)) < len(peers):
            raise ValueError(
                f"Expected peers other than client={self.client}, each once, got "
                f"peers={list(peers)}."
            )
        if round_index < self._next[purpose]:
            raise ValueError(
                f"Expected round_index >= {self._next[purpose]}, got round_index={round_index}: "
                "keys of a round are given out once, since a second use would repeat its noise."
            )
        self._next[purpose] = int(round_index) + 1
        self._write()

    def _write(self) -> None:
        """Keeps what was used, where it is kept."""


class KeyAgreement(_Rounds):
    """One real client's keys, from one exchange of public keys before the first round.

    Guarantee: keys of a pair are equal at both ends; towards semi-honest parties that run the
    protocol they are pseudo-random (X25519, HKDF-SHA256 over the shared secret, both public keys,
    both numbers and the round). They are keys of ChaCha20, of 256 bits. Public keys are not
    authenticated here: a server that replaces them reads everything; sign them outside. That two
    peers with two keys are two parties is not known here either.

    `save` and `load` let a client go on after a restart, with the same keys and without a second
    use of a round.

    Args:
      client: this client's number, known to its peers.

    Raises:
      ImportError: the package `cryptography` is missing (extra `crypto`).
    """

    def __init__(self, client: int):
        super().__init__(client)
        self._x25519 = _x25519()
        self._private = self._x25519.X25519PrivateKey.generate()
        self._secrets: dict[int, bytes] = {}
        self._public: dict[int, bytes] = {}
        self._path: pathlib.Path | None = None
        self._pem = b""

    @property
    def public_key(self) -> bytes:
        """32 bytes to be published."""
        return self._private.public_key().public_bytes_raw()

    @property
    def private_key(self) -> bytes:
        """32 bytes that nobody else may have, for a protocol that shares them out as a secret."""
        found: bytes = self._private.private_bytes_raw()
        return found

    @classmethod
    def from_private_key(cls, client: int, private_key: bytes) -> "KeyAgreement":
        """The client with that X25519 key, 32 secret bytes. No peer and no round is known to it.

        Raises:
          ValueError: these are not 32 bytes.
          ImportError: as for a new client.
        """
        agreement = cls(client)
        agreement._private = agreement._x25519.X25519PrivateKey.from_private_bytes(private_key)
        return agreement

    def agree(self, peer: int, public_key: bytes) -> None:
        """Takes a peer's public key.

        Raises:
          ValueError: `peer` is this client or known already, or its key is none, this client's own
            or that of another peer (also in other bytes). The pair then has no shared noise: its
            variance is 0, also for the accountant.
        """
        _validate.non_negative_int(peer=peer)
        if peer == self.client or peer in self._secrets:
            raise ValueError(
                f"Expected peer other than client={self.client} and each once, got peer={peer}."
            )
        try:
            theirs = self._x25519.X25519PublicKey.from_public_bytes(public_key)
            secret = self._private.exchange(theirs)
        except (TypeError, ValueError) as reason:
            raise ValueError(
                f"Expected public_key of peer={peer} to be an X25519 key, got another: {reason}"
            ) from None
        # Secrets, not bytes: several public keys are one point to X25519, which drops a bit and the
        # point's small part.
        if secret == self._private.exchange(self._private.public_key()):
            raise ValueError(
                f"Expected public_key of peer={peer} to be the peer's, got that of "
                f"client={self.client} itself: their noise would be known to whoever sent it back."
            )
        for other, known in self._secrets.items():
            if secret == known:
                raise ValueError(
                    f"Expected a public_key of its own for each peer, got that of peer={other} for "
                    f"peer={peer} too: whoever has it holds both pairs."
                )
        self._secrets[int(peer)], self._public[int(peer)] = secret, public_key
        self._write()

    def round_keys(self, round_index: int, peers: Sequence[int]) -> jax.Array:
        """Typed keys `[K]`, one for each of `peers`, the same as theirs for this client.

        Raises:
          ValueError: `round_index` is not above that of the last call, or a peer has not agreed or
            is given twice.
        """
        return _as_keys(self.round_secrets(round_index, peers))

    def round_secrets(self, round_index: int, peers: Sequence[int]) -> list[bytes]:
        """The keys of `round_keys` as 32 bytes each, for ciphers outside JAX; the same round is
        never asked of both. Raises ValueError as `round_keys`.
        """
        missing = sorted(set(peers) - set(self._secrets))
        if missing:
            raise ValueError(
                f"Expected peers among {sorted(self._secrets)}, which agreed on keys, got "
                f"{missing}."
            )
        self._begin("round_keys", round_index, peers)
        data = []
        for peer in peers:
            low, high = sorted([(self.client, self.public_key), (int(peer), self._public[peer])])
            numbers = b"".join(
                int(number).to_bytes(8, "big") for number in (low[0], high[0], round_index)
            )
            data.append(derive(self._secrets[peer], _LABEL + b" pair" + low[1] + high[1] + numbers))
        return data

    def own_key(self, round_index: int) -> jax.Array:
        """Typed key `[]` for this client's own noise; nobody else can compute it. Raises ValueError
        as `round_keys`.
        """
        self._begin("own_key", round_index)
        return _as_keys([self._of_own_secret(b" own" + int(round_index).to_bytes(8, "big"))])[0]

    def save(self, path: str | os.PathLike[str], *, passphrase: str | bytes | None = None) -> None:
        """Writes keys, peers and the rounds that were used to a new file, for `load`; the file
        follows from then on.

        Guarantee: the file's mode is 0600. A peer or a round number is in it before its keys are
        given out, so a client that is killed at any time and loads the file repeats no noise. One
        process at a time may have the file, and an older copy must never be put in its place: its
        rounds would be used twice.

        Args:
          path: of the file, which must be new. The private key is in PEM (PKCS8); a line of JSON
            and a check follow it.
          passphrase: encrypts the private key, with 2048 rounds of a key derivation: choose a long
            one. The rest of the file is no secret. None: the private key is readable for whoever
            can read the file.

        Raises:
          ValueError: `path` exists and is not this client's file, the client is saved elsewhere
            already, or the passphrase is empty or no text.
        """
        from cryptography.hazmat.primitives import serialization as formats

        file = pathlib.Path(path).absolute()
        if self._path not in (None, file):
            raise ValueError(
                f"Expected path={str(self._path)!r}, where this client is saved already, got "
                f"path={str(path)!r}: a "
                "second file would be left behind with rounds that are used later."
            )
        if file != self._path and file.exists():
            raise ValueError(
                f"Expected path of a new file, got path={str(path)!r}, which exists: it may hold "
                "keys."
            )
        secret = passphrase_bytes(passphrase)
        hidden = (
            formats.NoEncryption() if secret is None else formats.BestAvailableEncryption(secret)
        )
        pem = self._private.private_bytes(formats.Encoding.PEM, formats.PrivateFormat.PKCS8, hidden)
        before = self._path, self._pem
        self._path, self._pem = file, pem
        try:
            self._write()
        except OSError:
            self._path, self._pem = before
            raise

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, passphrase: str | bytes | None = None
    ) -> "KeyAgreement":
        """The client that `save` wrote: its keys, its peers, and the next round that it may use.

        Raises:
          ValueError: the file is cut short or edited, was not written by `save`, holds another kind
            of key, or does not fit the passphrase.
          ImportError: as for a new client.
        """
        x25519 = _x25519()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization as formats

        secret, shown = passphrase_bytes(passphrase), f"path={str(path)!r}"
        content = pathlib.Path(path).read_bytes()
        rule = "Expected path of a whole file that KeyAgreement.save wrote"
        if content.startswith(b"-----BEGIN ENCRYPTED") != (secret is not None):
            given = (
                "encrypted and no passphrase"
                if secret is None
                else "with a passphrase, which is not encrypted"
            )
            if content.startswith((b"-----BEGIN ENCRYPTED PRIVATE KEY", b"-----BEGIN PRIVATE KEY")):
                raise ValueError(
                    f"Expected a passphrase exactly where the file is encrypted, got {shown} "
                    f"{given}."
                )
        try:
            private = formats.load_pem_private_key(content, secret)
        except (TypeError, ValueError, UnsupportedAlgorithm) as reason:
            what = rule if secret is None else f"{rule} with this passphrase"
            raise ValueError(f"{what}, got {shown}: {reason}") from None
        if not isinstance(private, x25519.X25519PrivateKey):
            kind = type(private).__name__
            raise ValueError(
                f"Expected path of a file with an X25519 private key, got {shown} with {kind}."
            )
        pem, state, check = (content.rstrip(b"\n").rsplit(b"\n", 2) + [b"", b""])[:3]
        agreement = cls(0)
        agreement._private = private
        if not hmac.compare_digest(check, agreement._check(state)):
            raise ValueError(
                f"{rule}, got {shown}: its lines behind the key are missing or edited."
            )
        known = json.loads(state)
        agreement.client, agreement._next = known["client"], known["next"]
        for peer, public_key in known["peers"].items():
            agreement.agree(int(peer), bytes.fromhex(public_key))
        agreement._path, agreement._pem = pathlib.Path(path).absolute(), pem + b"\n"
        return agreement

    def _of_own_secret(self, purpose: bytes) -> bytes:
        return derive(self._private.private_bytes_raw(), _LABEL + purpose)

    def _check(self, state: bytes) -> bytes:
        return self._of_own_secret(b" file" + state).hex().encode()

    def _write(self) -> None:
        """Replaces the file, if there is one, as a whole: who reads it meets the old one or the new
        one.
        """
        if self._path is None:
            return
        peers = {str(peer): key.hex() for peer, key in self._public.items()}
        state = json.dumps({"client": self.client, "next": self._next, "peers": peers}).encode()
        replace_file(self._path, self._pem + state + b"\n" + self._check(state) + b"\n")


class SimulatedKeyAgreement(_Rounds):
    """The same interface on the keys of a simulated cohort (`pair_noise.cohort_noise` with the
    run's key).

    Args:
      client: this client's number.
      key: `[]` typed threefry or ChaCha20 key of the run; whoever has it knows all noise.
    """

    def __init__(self, client: int, key: jax.Array):
        super().__init__(client)
        _validate.stream_key(key=key)
        self._key = key

    def round_keys(self, round_index: int, peers: Sequence[int]) -> jax.Array:
        """As `KeyAgreement.round_keys`."""
        self._begin("round_keys", round_index, peers)
        pairs = np.sort(
            np.reshape([(self.client, peer) for peer in peers], (-1, 2)).astype(np.int32), axis=1
        )
        return fljax_kernels.pair_keys(jax.random.fold_in(self._key, round_index), pairs)

    def own_key(self, round_index: int) -> jax.Array:
        """As `KeyAgreement.own_key`."""
        self._begin("own_key", round_index)
        return _keys.client_keys(
            self._key, round_index, jnp.asarray([self.client]), _keys.Purpose.NOISE
        )[0]


def replace_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file of mode 0600 as a whole: a process or a machine that stops at any time leaves
    the old one or the new one.
    """
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)  # of a process that was killed
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    # Without this a power cut could bring the old file back, and with it rounds that were used.
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _x25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError:
        raise ImportError(
            "Key agreement needs the package cryptography: pip install 'fljax[crypto]'."
        ) from None
    return x25519


def passphrase_bytes(passphrase: str | bytes | None) -> bytes | None:
    """A passphrase as bytes. Raises ValueError where it is empty or no text."""
    if passphrase is None:
        return None
    if not isinstance(passphrase, str | bytes) or not passphrase:
        raise ValueError(
            "Expected passphrase to be text, not empty, got one of type "
            f"{type(passphrase).__name__}."
        )
    return passphrase.encode() if isinstance(passphrase, str) else passphrase


def derive(secret: bytes, info: bytes) -> bytes:
    """32 bytes of a secret for one purpose: HKDF-SHA256."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    made = HKDF(algorithm=hashes.SHA256(), length=chacha20.BYTES, salt=None, info=info)
    return made.derive(secret)


def _as_keys(data: list[bytes]) -> jax.Array:
    words = np.frombuffer(b"".join(data), "<u4").astype(np.uint32).reshape(-1, chacha20.BYTES // 4)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=chacha20.IMPL)
