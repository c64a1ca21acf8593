"""What a round costs of secure sums by long numbers or points, where all clients would compute for
hours: one client computes, and its messages arrive in the name of all.

Its steps, the server's and all messages are of true sizes, and the server reads and sums the same
bytes once for each client, so that memory does not grow with them. What clients send must be alike
for that: they have one secret, or one share of a key, as long as another's. That protects nobody.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate
from fljax.upload.secure_sum import (
    big_numbers,
    curve,
    inner_product,
    joint_paillier,
    paillier,
    protocol,
)

NAMES = ("paillier", "joint_paillier", "inner_product")


def alike(name: str, terms: protocol.Terms, *, key_bits: int = paillier.MODULUS_BITS) -> Any:
    """A protocol whose clients' messages may be one client's.

    Args:
      name: one of NAMES. key_bits: of the modulus of Paillier's.

    Raises:
      ValueError: another name.
      ImportError: a package is missing (extra `secure`).
    """
    _validate.one_of(NAMES, name=name)
    num, least, colluders = terms.num_clients, terms.least, terms.max_colluders
    if name == "inner_product":
        return inner_product.InnerProduct(terms=terms, secrets=dict.fromkeys(range(num), bytes(32)))
    if name == "paillier":
        # Of a threshold of one, so that all shares are the same, and the terms' threshold for them.
        key = paillier.new_key(num, 1, bits=key_bits)
        key = key._replace(threshold=least, colluders=least - 1)
    else:
        # A multiple of phi(n) as long as a share of a key that all make.
        p, q = (big_numbers.safe_prime(key_bits // 2, os.urandom) for _ in range(2))
        making = joint_paillier.Making(num, colluders, key_bits)
        party = joint_paillier.Party(making, 1, os.urandom)
        party.settle(p * q, [party.key_shares(p * q)[-1]] * num)
        phi = (p - 1) * (q - 1)
        share = phi * (party.share // phi)
        shares = dict.fromkeys(range(num), share)
        key = paillier.Key(p * q, shares, 2 * colluders + 1, colluders, share % (p * q))
    made = paillier.Paillier(terms=terms, key=key, for_tests=key_bits < paillier.MODULUS_BITS)
    made.blinds  # noqa: B018  the table of a key's blinds is made with the key, once
    return made


class Sent(NamedTuple):
    """Of the one client, by step: seconds of this process, and the message."""

    seconds: dict[str, float]
    messages: dict[str, bytes]


def sent(made: Any, words: np.ndarray) -> Sent:
    """What a client of `alike` computes and sends: its words encrypted, uint32 `[size]`, and where
    clients decrypt, its part of that, of ciphertexts of its own: those of a sum take as long.
    """
    client = made.client(0, words, 0)
    seconds, messages, received = {}, {}, b""
    for step in made.steps:
        seconds[step], received = _timed(client.send, step, received)
        messages[step] = received
    return Sent(seconds, messages)


def served(made: Any, sent: Sent, there: Sequence[int]) -> tuple[list[protocol.StepCost], Any]:
    """(What each step costs, the sum, uint32 `[size]`) of a round with the messages of one client
    in the name of those who are there. A step's client seconds are one client's times as many.
    """
    curve.baby_steps.cache_clear()  # a server's own, in each round here
    num, received = len(there), b""
    server, costs = dataclasses.replace(made).server(0), []
    for step in made.steps:
        message = sent.messages[step]
        given = _powers(made, message, num) if step == "decrypt" else message
        spent, _ = _timed(server.collect, step, dict.fromkeys(there, given))
        up, down = num * len(message), num * len(received)
        costs.append(protocol.StepCost(step, num, num * sent.seconds[step], spent, up, down))
        received = message
    return costs, server.total()


def _powers(made: paillier.Paillier, share: bytes, num: int) -> bytes:
    """What a client would tell of the product of `num` ciphertexts, from what it told of one."""
    elements = made.elements(share, made.partial)
    powers = big_numbers.library().powmod_base_list(elements, num, made.partial)
    return paillier.as_bytes(powers, made.partial)


def _timed(work: Callable[..., bytes], *arguments: Any) -> tuple[float, bytes]:
    start = time.process_time()
    found = work(*arguments)
    return time.process_time() - start, found
