"""Keys that two clients share and nobody else knows: X25519 and HKDF for real clients, fold_in for simulated ones.

Both kinds have one interface: `round_keys(round_index, peers)` and `own_key(round_index)`, whose results feed
`fljax.upload.pair_noise.client_noise`. Either refuses a round number that is not above the last one: the same noise on
other data gives away their difference.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys, _validate

_LABEL = b"fljax pair noise 1"


class _Rounds:
    """Numbers of clients, and of rounds, each used once."""

    def __init__(self, client: int):
        _validate.non_negative_int(client=client)
        self.client = int(client)
        self._next = {"round_keys": 0, "own_key": 0}

    def _begin(self, purpose: str, round_index: int) -> None:
        _validate.non_negative_int(round_index=round_index)
        if round_index < self._next[purpose]:
            raise ValueError(
                f"Expected round_index >= {self._next[purpose]}, got round_index={round_index}: keys of a round are "
                "given out once, since a second use would repeat its noise."
            )
        self._next[purpose] = int(round_index) + 1


class KeyAgreement(_Rounds):
    """One real client's keys, from one exchange of public keys before the first round.

    Guarantee: keys of a pair are equal at both ends; towards semi-honest parties that run the protocol they are
    pseudo-random (X25519, HKDF-SHA256 over the shared secret, both public keys, both numbers and the round). The noise
    generator, threefry, takes 64 of their bits: whoever can try 2**64 keys, or break threefry, removes the noise.
    Public keys are not authenticated here: a server that replaces them reads everything; sign them outside.

    Args:
      client: this client's number, known to its peers.

    Raises:
      ImportError: the package `cryptography` is missing (extra `crypto`).
    """

    def __init__(self, client: int):
        super().__init__(client)
        self._x25519 = _x25519()
        self._private = self._x25519.X25519PrivateKey.generate()
        self._own_secret = self._private.private_bytes_raw()
        self._secrets: dict[int, bytes] = {}
        self._bound: dict[int, bytes] = {}

    @property
    def public_key(self) -> bytes:
        """32 bytes to be published."""
        return self._private.public_key().public_bytes_raw()

    def agree(self, peer: int, public_key: bytes) -> None:
        """Takes a peer's public key.

        Raises:
          ValueError: `peer` is this client or known already, or its key is none. The pair then has no shared noise:
            its variance is 0, also for the accountant.
        """
        _validate.non_negative_int(peer=peer)
        if peer == self.client or peer in self._secrets:
            raise ValueError(f"Expected peer other than client={self.client} and each once, got peer={peer}.")
        try:
            theirs = self._x25519.X25519PublicKey.from_public_bytes(public_key)
            secret = self._private.exchange(theirs)
        except ValueError as reason:
            raise ValueError(f"Expected public_key of peer={peer} to be an X25519 key, got another: {reason}") from None
        ours = self.public_key
        self._secrets[peer] = secret
        self._bound[peer] = ours + public_key if self.client < peer else public_key + ours

    def round_keys(self, round_index: int, peers: Sequence[int]) -> jax.Array:
        """Typed keys `[K]`, one for each of `peers`, the same as theirs for this client.

        Raises:
          ValueError: `round_index` is not above that of the last call, or a peer has not agreed.
        """
        missing = sorted(set(peers) - set(self._secrets))
        if missing:
            raise ValueError(f"Expected peers among {sorted(self._secrets)}, which agreed on keys, got {missing}.")
        self._begin("round_keys", round_index)
        data = []
        for peer in peers:
            pair = min(self.client, peer), max(self.client, peer)
            numbers = b"".join(int(number).to_bytes(8, "big") for number in (*pair, round_index))
            data.append(_derive(self._secrets[peer], _LABEL + b" pair" + self._bound[peer] + numbers))
        return _as_keys(data)

    def own_key(self, round_index: int) -> jax.Array:
        """Typed key `[]` for this client's own noise; nobody else can compute it. Raises ValueError as `round_keys`."""
        self._begin("own_key", round_index)
        return _as_keys([_derive(self._own_secret, _LABEL + b" own" + int(round_index).to_bytes(8, "big"))])[0]


class SimulatedKeyAgreement(_Rounds):
    """The same interface on the keys of a simulated cohort (`pair_noise.cohort_noise` with the run's key).

    Args:
      client: this client's number.
      key: `[]` typed threefry key of the run; whoever has it knows all noise.
    """

    def __init__(self, client: int, key: jax.Array):
        super().__init__(client)
        _validate.threefry_key(key=key)
        self._key = key

    def round_keys(self, round_index: int, peers: Sequence[int]) -> jax.Array:
        """As `KeyAgreement.round_keys`."""
        self._begin("round_keys", round_index)
        pairs = np.sort([(self.client, peer) for peer in peers], axis=1).reshape(-1, 2)
        return fljax_kernels.pair_keys(jax.random.fold_in(self._key, round_index), pairs)

    def own_key(self, round_index: int) -> jax.Array:
        """As `KeyAgreement.own_key`."""
        self._begin("own_key", round_index)
        return _keys.client_keys(self._key, round_index, jnp.asarray([self.client]), _keys.Purpose.NOISE)[0]


def _x25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError:
        raise ImportError("Key agreement needs the package cryptography: pip install 'fljax[crypto]'.") from None
    return x25519


def _derive(secret: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=hashes.SHA256(), length=8, salt=None, info=info).derive(secret)


def _as_keys(data: list[bytes]) -> jax.Array:
    words = np.frombuffer(b"".join(data), ">u4").astype(np.uint32).reshape(-1, 2)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
