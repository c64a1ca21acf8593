"""A homomorphic sum: clients encrypt under one key of theirs, the server adds up ciphertexts.

Ciphertexts are CKKS, whose numbers carry a small error: integers are scaled so far above it that
rounding gives them back exactly, and nothing of the error is told.

Threat model: the server keeps to the protocol, only looks on, and colludes with no client: all
clients hold the one secret key, and whoever has it reads every upload. Clients keep to the protocol
too; one that reads the channel of another and pools with nobody sees ciphertexts that it can open.
So channels to the server must be secret (TLS), and `max_colluders` must be 0. The key reaches
clients outside this module.

Security level: 128 bits, ring dimension 8192 with a modulus of 120 bits, where the Homomorphic
Encryption Standard (2018) allows 218. What is decrypted is rounded before anybody sees it, since
the error of CKKS would tell of the key (Li, Micciancio 2021).

Bounds: any dropouts up to max_dropouts, else the round aborts. So many clients and one more are
asked to decrypt, and all that answer must agree. Sums are those of integers within 2**bits:
`protocol.signed` checks each client's, so that no sum wraps around.

Source: Cheon et al. (2017), "Homomorphic Encryption for Arithmetic of Approximate Numbers".
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from fljax import errors
from fljax.upload.secure_sum import protocol

STEPS = ("encrypted", "decrypt")
DIMENSION, SLOTS = 8192, 4096
_MODULUS_BITS, _TOP_BITS = (60, 60), 58
# The scale is 2**(58 - bits), 2**26 at least. A new ciphertext is off by some 2**15 / scale, and K
# of them by that times the root of K: far from a half for any number of clients that bits can hold.


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise ImportError(
            "Homomorphic sums need the package tenseal: pip install 'fljax[secure]'."
        ) from None
    return tenseal


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Ckks:
    """A `protocol.SecureSumProtocol`.

    Raises:
      PrivacyPreconditionError: max_colluders > 0.
      ImportError: the package `tenseal` is missing (extra `secure`).
    """

    terms: protocol.Terms
    """What all parties agree on."""
    secret: Any
    """TenSEAL's context with the secret key, which clients have: see `new_key`."""
    steps = STEPS
    upload_step = "encrypted"

    def __post_init__(self) -> None:
        if self.terms.max_colluders:
            raise errors.PrivacyPreconditionError(
                "Expected max_colluders=0, since every client can decrypt what the server sees, "
                f"got max_colluders={self.terms.max_colluders}."
            )

    @functools.cached_property
    def public(self) -> Any:
        """The context without the secret key, for the server."""
        parts = {"save_galois_keys": False, "save_relin_keys": False}
        return _tenseal().context_from(self.secret.serialize(save_secret_key=False, **parts))

    def client(self, number: int, words: np.ndarray, round_index: int) -> "Client":
        """A client, with its vector; encryption is randomised, so rounds need no number."""
        del number, round_index
        return Client(self, words)

    def server(self, round_index: int) -> "Server":
        """The server of a round."""
        del round_index
        return Server(self)

    @property
    def num_ciphertexts(self) -> int:
        """Of a vector."""
        return -(-self.terms.size // SLOTS)


def new_key(bits: int) -> Any:
    """A context of TenSEAL with a new secret key, for integers modulo 2**bits.

    Raises:
      ImportError: the package `tenseal` is missing (extra `secure`).
    """
    ts = _tenseal()
    context = ts.context(
        ts.SCHEME_TYPE.CKKS,
        DIMENSION,
        coeff_mod_bit_sizes=list(_MODULUS_BITS),
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,  # all who encrypt have the key
    )
    context.global_scale = 2.0 ** (_TOP_BITS - bits)
    return context


def simulated(terms: protocol.Terms) -> Ckks:
    """The protocol with all its parties in this process, and a new key. Raises as `Ckks`."""
    return Ckks(terms=terms, secret=new_key(terms.bits))


class Client:
    """One client in one round."""

    def __init__(self, setting: Ckks, words: np.ndarray):
        self._integers = protocol.signed(setting.terms, words)
        self._setting, self._next = setting, 0

    def send(self, step: str, received: bytes) -> bytes:
        """Ciphertexts, then the sum."""
        protocol.in_order(step, STEPS, self._next)
        self._next += 1
        return self._encrypted() if step == "encrypted" else self._decrypted(received)

    def _encrypted(self) -> bytes:
        ts, slots = _tenseal(), range(0, self._setting.terms.size, SLOTS)
        parts = (self._integers[i : i + SLOTS].astype(np.float64) for i in slots)
        sent = [ts.ckks_vector(self._setting.secret, part).serialize() for part in parts]
        return protocol.pack(*sent)

    def _decrypted(self, received: bytes) -> bytes:
        terms = self._setting.terms
        vectors = _read(self._setting, self._setting.secret, received)
        found = np.concatenate([np.array(vector.decrypt()) for vector in vectors])
        whole = np.rint(found)
        near = found.shape == (terms.size,) and np.abs(found - whole).max() < 0.25
        if not near or np.abs(whole).max() >= 2 ** (terms.bits - 1):
            raise errors.MalformedMessageError(
                "Expected a sum that decrypts to whole numbers of the ring, got another."
            )
        return protocol.packed_words(terms, protocol.as_words(terms, whole.astype(np.int64)))


def _read(setting: Ckks, context: Any, message: bytes) -> list[Any]:
    """A message's ciphertexts. Raises MalformedMessageError where it holds none, or others."""
    ts = _tenseal()
    parts = protocol.unpack(message, setting.num_ciphertexts)
    try:
        vectors = [ts.ckks_vector_from(context, part) for part in parts]
    except (ValueError, RuntimeError) as reason:
        raise errors.MalformedMessageError(f"Expected CKKS ciphertexts, got: {reason}") from None
    if sum(vector.size() for vector in vectors) != setting.terms.size:
        raise errors.MalformedMessageError("Expected ciphertexts of a vector of the terms' size.")
    return vectors


def _added(one: list[Any], other: list[Any]) -> list[Any]:
    """Raises MalformedMessageError where ciphertexts are of another scale."""
    try:
        return [a + b for a, b in zip(one, other, strict=True)]
    except (ValueError, RuntimeError) as reason:
        raise errors.MalformedMessageError(
            f"Expected CKKS ciphertexts that add up, got: {reason}"
        ) from None


class Server:
    """The server of one round."""

    def __init__(self, setting: Ckks):
        self._setting, self._roll = setting, protocol.Roll(setting.terms, STEPS)
        self._total: np.ndarray | None = None

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """The encrypted sum, for as many clients as may drop out and one more; then the sum."""
        terms = self._setting.terms
        self._roll.call(step, messages, fewest=1 if step == "decrypt" else None)
        if step == "encrypted":
            total: list[Any] = []
            for message in messages.values():
                vectors = _read(self._setting, self._setting.public, message)
                total = _added(total, vectors) if total else vectors
            answer = protocol.pack(*(vector.serialize() for vector in total))
            return dict.fromkeys(sorted(messages)[: terms.max_dropouts + 1], answer)
        answers = set(messages.values())
        if len(answers) > 1:
            raise errors.MalformedMessageError(
                "Expected one sum of all clients that decrypt it, got several."
            )
        self._total = protocol.unpacked_words(terms, answers.pop())
        return {}

    def total(self) -> np.ndarray:
        """Uint32 `[size]`. Raises SecureSumError before the last step is done."""
        return protocol.done(self._total)
