"""Signed keys, and sealed messages of one client to another that the server passes on."""

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from fljax import errors
from fljax.upload.secure_sum import protocol, signing


def announced(
    label: bytes,
    session: bytes,
    round_index: int,
    identity: signing.Identity,
    keys: Sequence[bytes],
) -> bytes:
    """A client's public keys of a round, signed.

    Args:
      label: of the protocol. session: 32 bytes that stand for its terms. keys: 32 bytes each.
    """
    at, whose = protocol.number_bytes(round_index), protocol.number_bytes(identity.client)
    body = protocol.pack(session, at, whose, *keys)
    return body + protocol.pack(identity.sign(label + b"keys" + body))


def heard(
    label: bytes,
    session: bytes,
    round_index: int,
    number: int,
    roster: Mapping[int, bytes],
    message: bytes,
    count: int,
) -> list[bytes]:
    """The `count` keys that a client announced.

    Raises:
      MalformedMessageError: the message has another form.
      SwappedKeyError: it is another client's.
      SignatureError: the client did not sign it.
      ReplayError: it is of another round, or of other terms.
    """
    said, at, whose, *keys, signature = protocol.unpack(message, 4 + count)
    if any(len(key) != 32 for key in keys):
        raise errors.MalformedMessageError(f"Expected keys of 32 bytes of client {number}.")
    if whose != protocol.number_bytes(number):
        raise errors.SwappedKeyError(
            f"Expected keys of client {number}, got those of client {int.from_bytes(whose)}."
        )
    body = protocol.pack(said, at, whose, *keys)
    signing.check(roster, number, label + b"keys" + body, signature)
    if said != session or at != protocol.number_bytes(round_index):
        raise errors.ReplayError(
            f"Expected keys of client {number} for round {round_index}, got those of another "
            "round or of other terms."
        )
    return keys


def sealed(key: bytes, sender: int, receiver: int, data: bytes) -> bytes:
    """Encrypted and authenticated; a key of a pair and a round seals one message each way."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    found: bytes = ChaCha20Poly1305(key).encrypt(
        sender.to_bytes(12, "big"), data, protocol.number_bytes(receiver)
    )
    return found


def opened(key: bytes, sender: int, receiver: int, data: bytes) -> bytes:
    """What `sealed` hid. Raises MalformedShareError where it was changed or is another's."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        found: bytes = ChaCha20Poly1305(key).decrypt(
            sender.to_bytes(12, "big"), data, protocol.number_bytes(receiver)
        )
    except (InvalidTag, ValueError):
        raise errors.MalformedShareError(
            f"Expected a share that client {sender} encrypted for client {receiver}, got another."
        ) from None
    return found


def addressed(boxes: Mapping[int, bytes]) -> bytes:
    """One message of many, each to or from a client of that number."""
    return protocol.pack(*(protocol.number_bytes(i) + part for i, part in boxes.items()))


def parts(message: bytes) -> dict[int, bytes]:
    """What `addressed` joined. Raises MalformedMessageError where a client is there twice."""
    found: dict[int, bytes] = {}
    for part in protocol.unpack(message):
        number = int.from_bytes(part[:8])
        if len(part) < 8 or number in found:
            raise errors.MalformedMessageError("Expected one part for each client, got another.")
        found[number] = part[8:]
    return found


def passed_on(messages: Mapping[int, bytes]) -> dict[int, bytes]:
    """What the server tells each sender: what all others addressed to it."""
    boxes: dict[int, dict[int, bytes]] = {number: {} for number in messages}
    for sender, message in messages.items():
        for receiver, part in parts(message).items():
            if receiver in boxes:
                boxes[receiver][sender] = part
    return {number: addressed(box) for number, box in boxes.items()}


def listed(numbers: Sequence[int]) -> bytes:
    """A list of clients, in order."""
    return struct.pack(f"<{len(numbers)}I", *sorted(numbers))


def numbers(data: bytes, terms: protocol.Terms) -> list[int]:
    """The clients of `listed`. Raises MalformedMessageError for anything else."""
    if len(data) % 4:
        raise errors.MalformedMessageError("Expected a list of clients, got one cut short.")
    found: list[int] = np.frombuffer(data, "<u4").tolist()
    if found != sorted(set(found)) or (found and found[-1] >= terms.num_clients):
        raise errors.MalformedMessageError("Expected clients of the roster in order, each once.")
    return found
