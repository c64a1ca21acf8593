"""Who is who: Ed25519 identities of clients, known to all before the first round."""

import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from fljax import _validate, errors
from fljax.upload import key_agreement

Entropy = Callable[[int], bytes]
_STATE = b"fljax secure sum 1 state"


class Identity:
    """One client's long-lived signing key, and the rounds that it has been in.

    Guarantee: nobody without the key signs in the client's name (Ed25519, RFC 8032: 128 bits). A
    client takes part in a round once: with other data, masks of the same round would give the
    difference away. `save` and `load` keep key and rounds over a restart; what is not saved must
    begin above its last round.

    Args:
      client: its number.
      entropy: where 32 secret bytes come from.

    Raises:
      ImportError: the package `cryptography` is missing (extra `secure`).
    """

    def __init__(self, client: int, *, entropy: Entropy = os.urandom):
        _validate.non_negative_int(client=client)
        self.client = int(client)
        self._private = _ed25519().Ed25519PrivateKey.from_private_bytes(entropy(32))
        self._next = 0
        self._path: pathlib.Path | None = None
        self._pem = b""

    @property
    def public_key(self) -> bytes:
        """32 bytes for the roster."""
        found: bytes = self._private.public_key().public_bytes_raw()
        return found

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        found: bytes = self._private.sign(message)
        return found

    def begin(self, round_index: int) -> None:
        """Enters a round.

        Raises:
          ReplayError: it is not above the last one.
          ValueError: it is below 0, or has no eight bytes.
        """
        _validate.non_negative_int(round_index=round_index)
        if round_index >= 2**64:
            raise ValueError(f"Expected round_index below 2**64, got {round_index}.")
        if round_index < self._next:
            raise errors.ReplayError(
                f"Expected round_index >= {self._next} of client {self.client}, got "
                f"round_index={round_index}: a client takes part in a round once."
            )
        self._next = int(round_index) + 1
        self._write()

    def save(self, path: str | os.PathLike[str], *, passphrase: str | bytes | None) -> None:
        """Writes key and rounds to a new file, for `load`; the file follows from then on.

        Guarantee: the file's mode is 0600. A round is in it before its first message is made, so a
        client that is killed at any time and loads the file is in no round twice. One process at a
        time may have the file, and an older copy must never be put in its place.

        Args:
          path: of the file, which must be new.
          passphrase: encrypts the key (PKCS8, with 2048 rounds of a key derivation: choose a long
            one). None: whoever can read the file has the key.

        Raises:
          ValueError: `path` exists, or the passphrase is empty or no text.
        """
        from cryptography.hazmat.primitives import serialization as formats

        file = pathlib.Path(path).absolute()
        if self._path is not None or file.exists():
            raise ValueError(
                f"Expected path of a new file, and a client saved nowhere else, got "
                f"path={str(path)!r}."
            )
        secret = key_agreement.passphrase_bytes(passphrase)
        hidden = (
            formats.NoEncryption() if secret is None else formats.BestAvailableEncryption(secret)
        )
        self._pem = self._private.private_bytes(
            formats.Encoding.PEM, formats.PrivateFormat.PKCS8, hidden
        )
        self._path = file
        self._write()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, passphrase: str | bytes | None) -> "Identity":
        """The client that `save` wrote.

        Raises:
          ValueError: the file is cut short or edited, holds another kind of key, or does not fit
            the passphrase.
          ImportError: as for a new client.
        """
        ed25519 = _ed25519()
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization as formats

        file = pathlib.Path(path).absolute()
        content = file.read_bytes()
        rule = f"Expected path of a whole file that Identity.save wrote, got path={str(path)!r}"
        secret = key_agreement.passphrase_bytes(passphrase)
        try:
            private = formats.load_pem_private_key(content, secret)
        except (TypeError, ValueError, UnsupportedAlgorithm) as reason:
            raise ValueError(f"{rule}: {reason}") from None
        if not isinstance(private, ed25519.Ed25519PrivateKey):
            raise ValueError(f"{rule} with another kind of key.")
        pem, state, signature = (content.rstrip(b"\n").rsplit(b"\n", 2) + [b"", b""])[:3]
        try:
            private.public_key().verify(bytes.fromhex(signature.decode()), _STATE + state)
        except (InvalidSignature, ValueError):
            raise ValueError(f"{rule}: its lines behind the key are edited or missing.") from None
        known = json.loads(state)
        identity = cls(known["client"])
        identity._private, identity._next = private, known["next"]
        identity._path, identity._pem = file, pem + b"\n"
        return identity

    def _write(self) -> None:
        """Replaces the file, if there is one."""
        if self._path is not None:
            state = json.dumps({"client": self.client, "next": self._next}).encode()
            signature = self.sign(_STATE + state).hex().encode()
            key_agreement.replace_file(self._path, self._pem + state + b"\n" + signature + b"\n")

    def rotated(self, *, entropy: Entropy = os.urandom) -> tuple["Identity", bytes]:
        """(the client with a new key, and what `renewed` needs to take it into the roster).

        Rounds go on where they were. Whoever stole the old key can sign until the roster is
        renewed, and nothing after that.
        """
        new = Identity(self.client, entropy=entropy)
        new._next = self._next
        return new, self.sign(_renewal(self.client, new.public_key))


def enrolled(num_clients: int, entropy: Entropy) -> tuple[dict[int, bytes], dict[int, Identity]]:
    """A roster of new clients and their identities, for parties that are all in one process."""
    identities = {i: Identity(i, entropy=entropy) for i in range(num_clients)}
    return {i: identity.public_key for i, identity in identities.items()}, identities


def _renewal(client: int, public_key: bytes) -> bytes:
    return b"fljax secure sum 1 renewal" + client.to_bytes(8, "big") + public_key


def renewed(
    roster: Mapping[int, bytes], client: int, public_key: bytes, certificate: bytes
) -> dict[int, bytes]:
    """The roster with a client's new key, which its old one signed (`Identity.rotated`).

    Raises:
      SignatureError: the old key did not sign it.
      SybilError: another client has that key.
    """
    check(roster, client, _renewal(client, public_key), certificate)
    found = {**roster, client: public_key}
    check_roster(found, len(found))
    return found


def check(roster: Mapping[int, bytes], client: int, message: bytes, signature: bytes) -> None:
    """Raises SignatureError unless the client of that number signed the message."""
    from cryptography.exceptions import InvalidSignature

    try:
        key = _ed25519().Ed25519PublicKey.from_public_bytes(roster[client])
        key.verify(signature, message)
    except (InvalidSignature, ValueError, KeyError):
        raise errors.SignatureError(
            f"Expected a signature of client {client}, got one that its key in the roster did not "
            "make."
        ) from None


def check_roster(roster: Mapping[int, bytes], num_clients: int) -> None:
    """Raises SybilError where two clients have one key, ValueError where one has none."""
    if sorted(roster) != list(range(num_clients)):
        raise ValueError(
            f"Expected a roster of clients 0 to {num_clients - 1}, got {sorted(roster)[:9]}."
        )
    if len(set(roster.values())) < num_clients:
        raise errors.SybilError(
            "Expected a signing key of its own for each client, got one key for two: one party "
            "would count as several."
        )


def session(*parts: object) -> bytes:
    """32 bytes that stand for what all parties agree on, in every message that is signed."""
    return hashlib.sha256(repr(parts).encode()).digest()


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ImportError(
            "Secure sums need the package cryptography: pip install 'fljax[secure]'."
        ) from None
    return ed25519
