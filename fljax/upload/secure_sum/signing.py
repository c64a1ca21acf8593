"""Who is who: Ed25519 identities of clients, known to all before the first round."""

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from fljax import _validate, errors

Entropy = Callable[[int], bytes]


class Identity:
    """One client's long-lived signing key, and the rounds that it has been in.

    Guarantee: nobody without the key signs in the client's name (Ed25519, RFC 8032: 128 bits). A
    client takes part in a round once: with other data, masks of the same round would give the
    difference away. Rounds are kept in memory alone: after a restart begin above the last one.

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
        """
        _validate.non_negative_int(round_index=round_index)
        if round_index < self._next:
            raise errors.ReplayError(
                f"Expected round_index >= {self._next} of client {self.client}, got "
                f"round_index={round_index}: a client takes part in a round once."
            )
        self._next = int(round_index) + 1


def enrolled(num_clients: int, entropy: Entropy) -> tuple[dict[int, bytes], dict[int, Identity]]:
    """A roster of new clients and their identities, for parties that are all in one process."""
    identities = {i: Identity(i, entropy=entropy) for i in range(num_clients)}
    return {i: identity.public_key for i, identity in identities.items()}, identities


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
