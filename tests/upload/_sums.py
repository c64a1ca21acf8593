"""Secure sums for tests: small terms, bytes that are the same in every run, messages that somebody
changes on the way.
"""

import functools
import hashlib
import itertools

import numpy as np
import pytest

from fljax import errors
from fljax.upload import secure_sum
from fljax.upload.secure_sum import (
    ckks,
    joint_paillier,
    paillier,
    protocol,
)

NUM, SIZE = 6, 40


def terms(**changes):
    given = {"num_clients": NUM, "size": SIZE, "bits": 20, "max_dropouts": 2, "max_colluders": 1}
    return protocol.Terms(**given | changes)


def words_of(made, seed=0):
    """Words of all clients, none so large that a sum wraps around."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(-made.most, made.most + 1, (made.num_clients, made.size))
    return protocol.as_words(made, integers)


def entropy(seed=0, *, first=()):
    """Bytes that look random and are the same in every run. first: numbers of draws that come
    before all others, which a test may know to be lucky.
    """
    count = itertools.chain(first, itertools.count())

    def draw(length):
        numbered = f"{seed} {next(count)}".encode()
        return hashlib.shake_256(numbered).digest(length)

    return draw


def expected(made, words, absent=()):
    here = [i for i in range(made.num_clients) if i not in absent]
    return words[here].sum(axis=0, dtype=np.uint32) & np.uint32(2**made.bits - 1)


@functools.cache
def a_ckks_key():
    return ckks.new_key(31)


@functools.cache
def a_paillier_key(num_clients, threshold):
    return paillier.new_key(num_clients, threshold, bits=64, entropy=entropy())


@functools.cache
def a_joint_key(num_clients, max_colluders):
    return joint_paillier.new_key(num_clients, max_colluders, bits=128, entropy=entropy())


def simulated_of(name, made):
    """A protocol of any name, with bytes that are the same in every run where it takes them."""
    if name == "joint_paillier":
        key = a_joint_key(made.num_clients, made.max_colluders)
        return paillier.Paillier(terms=made, key=key, for_tests=True, entropy=entropy())
    if name == "ckks":
        return ckks.Ckks(terms=made, secret=a_ckks_key())
    if name == "paillier":
        key = a_paillier_key(made.num_clients, made.least)
        return paillier.Paillier(terms=made, key=key, for_tests=True, entropy=entropy())
    return secure_sum.simulated(name, made, entropy=entropy())


class Tampered:
    """A protocol whose messages somebody in the middle changes: `change(step, messages)` what
    clients send, `answer(step, answers)` what they get.
    """

    def __init__(self, inner, change=None, answer=None):
        self.inner, self.terms, self.steps = inner, inner.terms, inner.steps
        self.change, self.answer = change, answer
        self.client = inner.client

    def server(self, round_index):
        server = self.inner.server(round_index)
        self.made = server

        class Between:
            def collect(_, step, messages):
                messages = dict(messages)
                if self.change:
                    self.change(step, messages)
                answers = dict(server.collect(step, messages))
                if self.answer:
                    self.answer(step, answers)
                return answers

            total = server.total

        return Between()


def aborts(error, made, **how):
    """Runs a round that must abort by that very error, after which there is no sum."""
    tampered = Tampered(made, **how)
    with pytest.raises(error) as raised:
        protocol.run(tampered, words_of(made.terms))
    assert raised.type is error
    with pytest.raises(errors.SecureSumError):
        tampered.made.total()


def flipped(data, at):
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


# What a server and a client that colludes see of two honest clients, beside the sum.
VIEW = 4096
