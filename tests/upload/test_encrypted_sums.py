"""Secure sums by encryption: keys, ciphertexts, what they release and what tells nothing."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from fljax import errors
from fljax.upload.secure_sum import (
    big_numbers,
    ckks,
    curve,
    inner_product,
    joint_paillier,
    paillier,
    protocol,
)
from tests.upload._sums import (
    NUM,
    SIZE,
    VIEW,
    Tampered,
    a_ckks_key,
    a_joint_key,
    a_paillier_key,
    aborts,
    entropy,
    expected,
    flipped,
    simulated_of,
    terms,
    words_of,
)


def test_an_encrypted_sum_needs_whole_numbers_and_one_answer():
    made = terms(max_colluders=0)

    def other(step, messages):
        if step == "decrypt":
            messages[1] = flipped(messages[1], 0)

    def garbage(step, messages):
        if step == "encrypted":
            messages[1] = protocol.pack(b"no ciphertext")

    def halves(step, answers):
        if step == "encrypted":
            vector = ckks._tenseal().ckks_vector(a_ckks_key(), [0.5] * SIZE)
            answers[0] = protocol.pack(vector.serialize())

    aborts(errors.MalformedMessageError, simulated_of("ckks", made), change=other)
    aborts(errors.MalformedMessageError, simulated_of("ckks", made), change=garbage)

    def scaled(step, messages):
        if step == "encrypted":
            vector = ckks._tenseal().ckks_vector(a_ckks_key(), [1.0] * SIZE, 2.0**20)
            messages[1] = protocol.pack(vector.serialize())

    def of_another_key(step, messages):
        if step == "encrypted":
            vector = ckks._tenseal().ckks_vector(ckks.new_key(31), [1.0] * SIZE)
            messages[1] = protocol.pack(vector.serialize())

    for change in (scaled, of_another_key):
        aborts(errors.MalformedMessageError, simulated_of("ckks", made), change=change)
    aborts(errors.MalformedMessageError, simulated_of("ckks", made), answer=halves)
    with pytest.raises(errors.PrivacyPreconditionError, match="can decrypt what the server sees"):
        simulated_of("ckks", terms())
    run = simulated_of("ckks", made)
    assert not run.public.has_secret_key()


def test_a_round_has_one_key_of_one_sum():
    made = simulated_of("inner_product", terms())
    words = words_of(made.terms)
    protocol.run(made, words, round_index=3)
    with pytest.raises(errors.ReplayError, match="takes part in a round once"):
        protocol.run(made, words, round_index=3)
    with pytest.raises(errors.ReplayError, match="the difference of two sums"):
        made.authority.key(3, [0, 1, 2, 3])
    with pytest.raises(errors.DropoutError):
        made.authority.key(4, [0, 1, 2])


def test_what_is_no_point_does_not_use_a_round_s_key_up():
    made = simulated_of("inner_product", terms())

    def zero(step, messages):
        messages[1] = bytes(len(messages[1]))

    aborts(errors.MalformedMessageError, made, change=zero)
    assert made.authority.key(0, list(range(made.terms.num_clients))) > 0


def test_ciphertexts_of_another_kind_abort():
    def random(step, messages):
        messages[1] = flipped(messages[1], -1)

    def another(step, messages):  # a point, of which nobody knows the logarithm
        messages[1] = curve.as_bytes(curve.hashed(b"")) + messages[1][curve.WIDTH :]

    def opposite(step, messages):  # all cancel out but what the server adds
        made = protocol.Terms(num_clients=2, size=1, bits=8)
        first = curve.multiple(7)
        key = inner_product._factor(run.secrets[0], 0) + inner_product._factor(run.secrets[1], 0)
        base = next(run.bases(0))
        rest = [first, base.multiply(curve.scalar(-key)), curve.multiple(1 - 4 * made.most)]
        sum_of_rest = curve.library().PublicKey.combine_keys(rest)
        messages[0] = curve.as_bytes(first)
        messages[1] = curve.as_bytes(sum_of_rest.multiply(curve.scalar(-1)))

    def cut(step, messages):
        messages[1] = messages[1][:-1]

    def zero(step, messages):
        messages[1] = bytes(len(messages[1]))

    for change in (random, another, cut, zero):
        made = simulated_of("inner_product", terms(bits=8, size=3))
        aborts(errors.MalformedMessageError, made, change=change)
    run = simulated_of("inner_product", protocol.Terms(num_clients=2, size=1, bits=8))
    aborts(errors.MalformedMessageError, run, change=opposite)
    for name, change in itertools.product(("joint_paillier", "paillier"), (cut, zero)):
        made = simulated_of(name, terms(bits=8, size=3))
        aborts(errors.MalformedMessageError, made, change=change)


def test_a_ciphertext_that_shares_a_factor_with_the_modulus_aborts():
    run = simulated_of("paillier", terms(bits=8, size=3))
    key = run.key
    # Whoever has enough shares finds the factors: a power of a multiple of the order is 1.
    denominator, weights = paillier.at_zero(list(key.shares)[: key.threshold])
    root = sum(w * key.shares[i] for i, w in enumerate(weights))
    order = abs(root * key.modulus - denominator)
    odd = order >> (order & -order).bit_length() - 1
    roots = (pow(base, odd, key.modulus) - 1 for base in range(2, 99))
    factor = next(f for r in roots if 1 < (f := math.gcd(r, key.modulus)) < key.modulus)

    def shared(step, messages):
        messages[1] = factor.to_bytes(len(messages[1]))

    aborts(errors.MalformedMessageError, run, change=shared)


def test_ciphertexts_of_two_inputs_are_alike_to_who_has_no_key():
    made = terms(num_clients=2, size=VIEW // 4, bits=6, max_dropouts=0, max_colluders=0)
    seen, opened = [], []
    for word in (0, 5):
        run = inner_product.simulated(made, entropy=entropy(word))
        vector = np.full(made.size, word, np.uint32)
        sent = run.client(0, vector, 0).send("encrypted", b"")
        width = curve.WIDTH
        cut = [sent[i : i + width] for i in range(0, len(sent), width)]
        seen.append(np.array([part[0] >> 5 for part in cut]))
        back = curve.scalar(-inner_product._factor(run.secrets[0], 0))
        one = curve.multiple(1)
        plain = [
            curve.total([curve.point(part), base.multiply(back), one])
            for part, base in zip(cut, run.bases(0), strict=True)
        ]
        opened.append((curve.odd_logarithms(plain, 4 * made.most + 1) - 1) // 2)
    counts = [np.bincount(view, minlength=8) for view in seen]
    error = math.sqrt(2 * made.size * (1 / 8) * (7 / 8))
    assert np.abs(counts[0] - counts[1]).max() <= 5 * error
    # Control: with the client's key each word is read.
    assert [set(words) for words in opened] == [{made.most}, {made.most + 5}]


def test_a_server_without_the_key_sees_ciphertexts_of_two_inputs_alike():
    made = terms(size=VIEW, bits=20, max_colluders=0)
    run = ckks.Ckks(terms=made, secret=a_ckks_key())
    views = []
    for word in (0, 5):
        sent = run.client(0, np.full(VIEW, word, np.uint32), 0).send("encrypted", b"")
        views.append(np.frombuffer(sent, np.uint8)[-(2**16) :] >> 4)
        # Control: with the key it is read.
        (vector,) = ckks._read(run, run.secret, sent)
        np.testing.assert_allclose(vector.decrypt(), word, atol=0.1)
    counts = [np.bincount(view, minlength=16) for view in views]
    assert np.abs(counts[0] - counts[1]).max() <= 5 * math.sqrt(2**17 * (1 / 16) * (15 / 16))


@pytest.mark.parametrize("name", ["paillier", "joint_paillier"])
def test_a_round_of_paillier_is_simulated_from_its_sum_and_the_colluders_shares(name):
    made = terms(size=5)
    run, words = simulated_of(name, made), words_of(made)
    n, square, modulus = run.key.modulus, run.square, run.partial
    colluders = range(run.key.threshold - 1)  # as many as learn nothing
    # Whoever knows the sum encrypts it with blinds of its own ...
    shifted = (words.astype(np.int64) << 44 >> 44) + made.most
    data = shifted.sum(axis=0).astype("<u8").view(np.uint8).reshape(-1, 8)[:, : run.word].tobytes()
    length = run.words * run.word
    plain = [int.from_bytes(data[i : i + length], "little") for i in range(0, len(data), length)]
    roots = [(12345 + i) ** 2 for i in range(len(plain))]
    product = [(1 + m * n) * pow(r, n, square) % square for m, r in zip(plain, roots, strict=True)]

    # ... knows of them what the secret key makes, and so what any client tells of them.
    def told(number, plain, roots):
        points = [0, *(i + 1 for i in colluders)]
        weights = []
        for a in points:
            rest = [b for b in points if b != a]
            top = run.factorial * math.prod(number + 1 - b for b in rest)
            weights.append(top // math.prod(a - b for b in rest))
        found = []
        for c, m, r in zip(product, plain, roots, strict=True):
            whole = r**2 if name == "paillier" else 1 + 2 * run.key.scale * m * n
            powers = [pow(whole, weights[0], modulus)]
            for i, weight in zip(colluders, weights[1:], strict=True):
                powers.append(pow(c, 2 * weight * run.key.shares[i], modulus))
            found.append(math.prod(powers) % modulus)
        return paillier.as_bytes(found, modulus)

    honest = [i for i in range(NUM) if i not in colluders]
    clients = {i: run.client(i, np.zeros_like(words[i]), 0) for i in range(NUM)}
    sent = {i: client.send("encrypted", b"") for i, client in clients.items()}
    # Honest clients sent zeros; the last one's ciphertext is what makes the product.
    others = zip(*(run.elements(sent[i], square) for i in range(NUM - 1)), strict=True)
    last = [
        c * pow(int(math.prod(column)), -1, int(square)) % square
        for c, column in zip(product, others, strict=True)
    ]
    sent[NUM - 1] = paillier.as_bytes(last, square)
    server = run.server(0)
    received = server.collect("encrypted", sent)
    assert run.elements(received[0], square) == product
    real = {i: client.send("decrypt", received[i]) for i, client in clients.items()}
    simulated = {i: told(i, plain, roots) for i in honest}
    assert simulated == {i: real[i] for i in honest}
    # Control: it is the sum that it follows from.
    assert told(honest[0], [m + 1 for m in plain], [r + 1 for r in roots]) != real[honest[0]]
    server.collect("decrypt", real | simulated)
    np.testing.assert_array_equal(server.total(), expected(made, words))


def test_logarithms_are_found_on_both_sides_by_any_steps():
    most = 2**14 - 1  # some five hundred giant steps of the fewest baby steps
    numbers = np.array([1, -1, 31, -33, 63, 65, -most, most, 1001, -8191])
    points = [curve.multiple(int(number)) for number in numbers]
    np.testing.assert_array_equal(curve.odd_logarithms(points[:1], most), numbers[:1])
    np.testing.assert_array_equal(curve.odd_logarithms(points, most), numbers)
    for beyond in (most + 2, -most - 2, 2**200 + 1, 2, 64):  # the last a giant step, or several
        with pytest.raises(errors.MalformedMessageError):
            curve.odd_logarithms([*points, curve.multiple(beyond)], most)


def test_the_curve_is_secp256k1_of_prime_order():
    prime, gmpy2 = 2**256 - 2**32 - 977, big_numbers.library()
    assert gmpy2.is_prime(prime) and gmpy2.is_prime(curve.ORDER)
    for found in (curve.multiple(1), curve.multiple(-5), curve.hashed(b"any")):
        x, y = (int.from_bytes(curve.as_bytes(found)[at : at + 32]) for at in (0, 32))
        assert (y * y - x**3 - 7) % prime == 0
    with pytest.raises(errors.MalformedMessageError, match="not on it"):
        curve.point(bytes(curve.WIDTH))
    with pytest.raises(errors.MalformedMessageError, match="cancel out"):
        curve.total([curve.multiple(3), curve.multiple(-3)])
    assert curve.as_bytes(curve.total([curve.multiple(3), curve.multiple(-2)])) == curve.as_bytes(
        curve.multiple(1)
    )


def test_powers_by_tables_and_at_once_are_those_of_whole_numbers():
    modulus = 2**89 - 1
    table = big_numbers.powers_of(big_numbers.library().mpz(3), 40, modulus)
    drawn = entropy()(6)
    found = big_numbers.random_power(table, modulus, lambda length: drawn[:length])
    bits = "".join(f"{byte:08b}" for byte in drawn)
    assert found == pow(3, int(bits[::-1], 2), modulus)
    rng = np.random.default_rng(0)
    rows = [[int(x) for x in rng.integers(2, 2**62, 2)] for _ in range(5)]
    for exponents in (
        [1, -1, 0, 7, 2**70],
        [3, 0, 0, 0, 0],
        [-3, -1, -1, -2, -(2**9)],
        [-(2**40)] * 5,
    ):
        found = big_numbers.products_of_powers(rows, exponents, big_numbers.library().mpz(modulus))
        exact = [
            math.prod(pow(row[i], e, modulus) for row, e in zip(rows, exponents, strict=True))
            for i in range(2)
        ]
        assert found == [one % modulus for one in exact]


@pytest.mark.parametrize("name", ["paillier", "joint_paillier"])
def test_blinds_have_exponents_of_half_the_modulus_and_no_symbol_that_tells(name):
    run, words = simulated_of(name, terms()), words_of(terms())[0]
    n = run.key.modulus
    assert n.bit_length() // 2 <= 6 * len(run.blinds) < n.bit_length() // 2 + 24
    powers = [row[1] % n for row in run.blinds]
    assert len(set(powers)) == len(powers)
    assert all(big_numbers.library().jacobi(power, n) == 1 for power in powers)
    sent = [run.client(0, words, 0).send("encrypted", b"") for _ in range(2)]
    assert sent[0] != sent[1]


def test_partial_decryptions_that_do_not_fit_and_keys_of_other_terms_abort():
    made = terms(size=3)

    def other(step, messages):
        if step == "decrypt":
            messages[0] = messages[1]

    aborts(errors.MalformedShareError, simulated_of("paillier", made), change=other)
    key = a_paillier_key(NUM, 4)
    with pytest.raises(errors.PrivacyPreconditionError, match="3072 bits"):
        paillier.Paillier(terms=made, key=key)
    more = dataclasses.replace(made, max_dropouts=3)
    with pytest.raises(errors.PrivacyPreconditionError, match="that 3 clients decrypt"):
        paillier.Paillier(terms=more, key=key, for_tests=True)
    few = paillier.new_key(NUM, 1, bits=128, entropy=entropy())
    with pytest.raises(errors.PrivacyPreconditionError, match="decrypt with and 1 do not"):
        paillier.Paillier(terms=made, key=few, for_tests=True)
    with pytest.raises(ValueError, match="threshold"):
        paillier.new_key(3, 4)
    with pytest.raises(ValueError, match="bits"):
        paillier.new_key(3, 2, bits=32)


def test_one_share_less_than_the_threshold_decrypts_nothing():
    made = terms(size=3)
    run = simulated_of("paillier", made)
    words = words_of(made)
    seen = {}
    keep = Tampered(run, change=lambda step, messages: seen.update({step: dict(messages)}))
    np.testing.assert_array_equal(protocol.run(keep, words).total, expected(made, words))
    parts = {i: run.elements(m, run.partial) for i, m in seen["decrypt"].items()}
    server = run.server(0)
    server._summed = NUM
    columns = zip(*(run.elements(m, run.square) for m in seen["encrypted"].values()), strict=True)
    server._products = [math.prod(column) % run.square for column in columns]
    combined = lambda used: server._sums({i: parts[i] for i in used})
    np.testing.assert_array_equal(combined([1, 3, 4, 5]), expected(made, words))
    with pytest.raises(errors.MalformedShareError):
        combined([1, 3, 4])


def test_a_key_without_a_dealer_is_of_two_primes_that_no_client_knows():
    gmpy2 = big_numbers.library()
    making = joint_paillier.Making(5, 2, 128)
    drawn = entropy()
    parties = [joint_paillier.Party(making, i, drawn) for i in range(5)]
    sent = [party.candidate() for party in parties]
    p, q = (sum(getattr(party, name) for party in parties) for name in ("_p", "_q"))
    assert p % 4 == q % 4 == 3 and p.bit_length() == q.bit_length() == 64
    products = [party.multiply([s[i] for s in sent]) for i, party in enumerate(parties)]
    assert joint_paillier._opened(making, products, making.field) == p * q
    # What two of them see of p fits any other p: a third one's share makes the difference.
    seen = [sum(s[i][0] for s in sent) % making.field for i in range(5)]
    field_prime = int(making.field)

    def at_zero(points, values):
        total = 0
        for i, value in zip(points, values, strict=True):
            top = bottom = 1
            for j in points:
                if j != i:
                    top, bottom = top * j, bottom * (j - i)
            total += int(value) * top * pow(bottom, -1, field_prime)
        return total % field_prime

    assert at_zero([1, 2, 3], seen[:3]) == at_zero([2, 4, 5], [seen[1], *seen[3:]]) == p
    others = {at_zero([1, 2, 3], [*seen[:2], third]) for third in range(50)}
    assert len(others) == 50

    key = a_joint_key(5, 2)
    found = [x for x in (key.modulus,) if x.bit_length() == 128 and not gmpy2.is_prime(x)]
    assert found and (key.threshold, key.colluders) == (5, 2)
    # Their shares are of a multiple of phi(n), which makes every number's power 1 modulo n.
    weights = [paillier.weight(120, i, list(range(5))) for i in range(5)]
    secret = sum(weight * key.shares[i] for i, weight in enumerate(weights)) // 120
    assert all(pow(base, secret, key.modulus) == 1 for base in (2, 3, 5, 7))
    assert secret % 120**2 == 0 and secret % key.modulus == key.scale


def test_numbers_of_other_than_two_primes_are_refuted():
    gmpy2 = big_numbers.library()
    making = joint_paillier.Making(3, 1, 64)

    def verdict(p, q):
        parties = [joint_paillier.Party(making, i, entropy()) for i in range(3)]
        rng = np.random.default_rng(0)
        for name, whole in (("_p", p), ("_q", q)):
            cut = [4 * int(x) for x in rng.integers(1, 2**20, 2)]
            for party, part in zip(parties, [whole - sum(cut), *cut], strict=True):
                setattr(party, name, part)
        return joint_paillier._has_two_primes(parties, gmpy2.mpz(p * q))

    primes = [x for x in range(2**25 + 3, 2**25 + 4000, 4) if gmpy2.is_prime(x)][:6]
    others = [x for x in range(2**25 + 3, 2**25 + 4000, 4) if not gmpy2.is_prime(x)][:40]
    assert all(verdict(p, q) for p, q in itertools.combinations(primes, 2))
    assert not any(verdict(primes[0], x) for x in others)


def test_clients_beyond_what_a_key_without_a_dealer_stands_are_refused():
    with pytest.raises(errors.PrivacyPreconditionError, match="2 max_colluders < num_clients=4"):
        joint_paillier.new_key(4, 2, bits=128)
    with pytest.raises(ValueError, match="an even number of bits"):
        joint_paillier.new_key(4, 1, bits=41)
    with pytest.raises(errors.PrivacyPreconditionError, match="without a dealer"):
        joint_paillier.simulated(terms(max_colluders=2), key_bits=128)
    kept = joint_paillier.simulated(terms(), key_bits=128)
    assert kept.for_tests and joint_paillier.simulated(terms(), key_bits=128).key is kept.key
    small = paillier.simulated(terms(), key_bits=128)
    assert small.key.modulus.bit_length() == 128
    with pytest.raises(errors.PrivacyPreconditionError, match="3072 bits"):
        joint_paillier.simulated(terms(), key=kept.key)


def test_large_primes_are_safe():
    gmpy2 = big_numbers.library()
    prime = big_numbers.safe_prime(128, entropy())
    assert prime.bit_length() == 128
    assert gmpy2.is_prime(prime, 1) and gmpy2.is_prime((prime - 1) // 2, 1)
    n = a_paillier_key(NUM, 4).modulus
    assert n.bit_length() == 64 and not gmpy2.is_prime(n)
