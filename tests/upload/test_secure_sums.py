"""Secure sums by protocols: what they release, when they abort, what is seen on the way."""

import dataclasses
import functools
import itertools
import math
import sys

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from fljax import errors
from fljax.upload import key_agreement, secure_sum
from fljax.upload.secure_sum import (
    channels,
    field,
    light_secagg,
    paillier,
    protocol,
    secagg,
    secagg_plus,
    servers,
    shamir_servers,
    signing,
    stream,
)
from fljax_kernels.chacha20 import reference
from tests.upload._sums import (
    NUM,
    SIZE,
    VIEW,
    Tampered,
    aborts,
    entropy,
    expected,
    flipped,
    simulated_of,
    terms,
    words_of,
)

# Each example is a whole round of a protocol.
FEWER = hypothesis.settings(max_examples=min(60, hypothesis.settings.default.max_examples))


@pytest.mark.release(
    reason="one more protocol",
    ids=["ckks", "inner_product", "joint_paillier", "light_secagg", "secagg_plus"],
)
@pytest.mark.slow(reason="draws large primes in each example", ids=["paillier"])
@pytest.mark.parametrize("name", secure_sum.NAMES)
@FEWER
@hypothesis.given(data=st.data())
def test_any_permitted_dropouts_leave_the_exact_sum_of_who_is_left(name, data):
    num = data.draw(st.integers(3, 6))
    most = data.draw(st.integers(0, (num - 1) // 2))
    made = terms(
        num_clients=num,
        max_dropouts=most,
        max_colluders=0,
        size=data.draw(st.sampled_from([1, 7, 33])),
        bits=data.draw(st.sampled_from([8, 13, 16 if name == "inner_product" else 31])),
    )
    run = simulated_of(name, made)
    gone = data.draw(st.permutations(range(num)))[: data.draw(st.integers(0, most))]
    dropouts = {i: data.draw(st.sampled_from(run.steps)) for i in gone}
    words = words_of(made, seed=num)
    summed = run.steps.index(run.upload_step)
    absent = [i for i, step in dropouts.items() if run.steps.index(step) <= summed]
    found = protocol.run(run, words, dropouts=dropouts)
    np.testing.assert_array_equal(found.total, expected(made, words, absent))
    assert [cost.step for cost in found.costs] == list(run.steps)


@pytest.mark.parametrize("name", secure_sum.NAMES)
def test_one_dropout_too_many_aborts_in_every_step(name):
    made = terms(max_colluders=0, bits=14, size=5)
    for step in simulated_of(name, made).steps:
        run = simulated_of(name, made)
        with pytest.raises(errors.DropoutError, match=r"at least 4|at least 1 clients"):
            protocol.run(run, words_of(made), dropouts=dict.fromkeys(range(3), step))


@pytest.mark.parametrize("name", ["secagg", "secagg_plus"])
def test_sums_are_modulo_the_ring_even_where_they_wrap(name):
    made = terms(bits=5)
    words = np.random.default_rng(0).integers(0, 32, (NUM, SIZE)).astype(np.uint32)
    found = protocol.run(secure_sum.simulated(name, made, entropy=entropy()), words)
    np.testing.assert_array_equal(found.total, expected(made, words))


def with_keys(number, change):
    """Keys as the server passes them on to one client, changed."""

    def answer(step, answers):
        if step == "keys":
            seed, everybody, *keys = protocol.unpack(answers[number])
            change(keys)
            answers[number] = protocol.pack(seed, everybody, *keys)

    return answer


def simulated(**changes):
    return secagg.simulated(terms(**changes), entropy=entropy())


def test_a_key_that_its_client_did_not_sign_aborts():
    def replace(keys):
        parts = protocol.unpack(keys[3])
        parts[3] = signing.session("a key of the server's")
        keys[3] = protocol.pack(*parts)

    aborts(errors.SignatureError, simulated(), answer=with_keys(0, replace))

    def forge(step, messages):
        if step == "keys":
            messages[2] = flipped(messages[2], -1)

    aborts(errors.SignatureError, simulated(), change=forge)


def test_keys_in_another_clients_place_abort():
    def exchange(keys):
        keys[2], keys[3] = keys[3], keys[2]

    def own(keys):
        keys[0] = keys[1]

    for change in (exchange, own):
        aborts(errors.SwappedKeyError, simulated(), answer=with_keys(0, change))


def test_keys_of_an_earlier_round_and_a_round_a_second_time_abort():
    made = simulated()
    old = {}

    def keep(step, messages):
        if step == "keys":
            old.update(messages)

    protocol.run(Tampered(made, change=keep), words_of(made.terms), round_index=4)

    def replay(step, messages):
        if step == "keys":
            messages[1] = old[1]

    with pytest.raises(errors.ReplayError, match="of client 1 for round 5"):
        protocol.run(Tampered(made, change=replay), words_of(made.terms), round_index=5)
    with pytest.raises(errors.ReplayError, match="takes part in a round once"):
        protocol.run(made, words_of(made.terms), round_index=5)
    client = made.client(0, words_of(made.terms)[0], 6)
    client.send("keys", b"")
    with pytest.raises(errors.ReplayError, match="no step is taken twice"):
        client.send("keys", b"")


def test_a_client_with_two_numbers_aborts():
    one = signing.Identity(0, entropy=entropy())
    roster = dict.fromkeys(range(NUM), one.public_key)
    with pytest.raises(errors.SybilError, match="one key for two"):
        secagg.SecAgg(terms=terms(), roster=roster, identities={0: one})

    made = simulated()

    def copy(step, messages):
        if step == "keys":  # client 2 signs the mask key of client 1 as its own
            *body, _ = protocol.unpack(messages[2])
            body[3] = protocol.unpack(messages[1])[3]
            signed = protocol.pack(*body)
            signature = made.identities[2].sign(b"fljax secagg 1 keys" + signed)
            messages[2] = signed + protocol.pack(signature)

    # client 2 itself hears its own keys back, so the first to see it is another
    aborts(errors.SybilError, made, change=copy)


def test_a_share_that_was_changed_on_the_way_aborts():
    def flip(step, messages):
        if step == "shares":
            first, *rest = protocol.unpack(messages[1])
            messages[1] = protocol.pack(flipped(first, 20), *rest)

    aborts(errors.MalformedShareError, simulated(), change=flip)


@pytest.mark.parametrize("dropped", [True, False], ids=["key", "seed"])
def test_a_share_that_is_none_aborts_the_sum(dropped):
    made = simulated()

    def change(step, messages):
        if step == "masked" and dropped:
            del messages[5]
        if step == "unmask":  # a holder tells another share of client 5, or of client 1
            number = protocol.number_bytes(5 if dropped else 1)
            bad = number + field.packed(np.arange(16))
            parts = protocol.unpack(messages[0])
            messages[0] = protocol.pack(*(bad if p[:8] == number else p for p in parts))

    aborts(errors.MalformedShareError, made, change=change)


def test_lists_of_survivors_that_differ_abort_before_a_share_is_told():
    shown = []

    def split(step, answers):
        if step == "masked":
            answers[0] = channels.listed([0, 1, 2, 3, 4])
        if step == "survivors":
            shown.append(sorted(answers))

    aborts(errors.InconsistentSurvivorsError, simulated(), answer=split)
    assert shown == [list(range(NUM))]

    def left_out(step, answers):
        if step == "masked":
            answers[0] = channels.listed([1, 2, 3, 4, 5])

    aborts(errors.InconsistentSurvivorsError, simulated(), answer=left_out)

    def few(step, answers):
        if step == "masked":
            answers[0] = channels.listed([0, 1, 2])

    aborts(errors.DropoutError, simulated(), answer=few)


@pytest.mark.parametrize("step", secagg.STEPS)
def test_messages_of_any_other_form_abort(step):
    for change in (lambda m: m[:-1], lambda m: m + b"\0", lambda m: b"\xff" * 9):

        def forge(now, messages, change=change):
            if now == step:
                messages[1] = change(messages[1])

        with pytest.raises(errors.SecureSumError):
            protocol.run(Tampered(simulated(), change=forge), words_of(terms()))


@pytest.mark.parametrize("name", secure_sum.NAMES)
def test_messages_of_who_is_not_in_the_step_abort(name):
    made = terms(max_colluders=0, bits=14, size=3)
    steps = simulated_of(name, made).steps
    strangers = (99, -1, 2**40, "0")
    for now, stranger in itertools.product(steps, strangers):

        def add(step, messages, now=now, stranger=stranger):
            if step == now:
                messages[stranger] = messages[0]

        aborts(errors.MalformedMessageError, simulated_of(name, made), change=add)
    for now in steps:

        def nothing(step, messages, now=now):
            if step == now:
                messages[0] = None

        def nobody(step, messages, now=now):
            if step == now:
                messages.clear()

        aborts(errors.MalformedMessageError, simulated_of(name, made), change=nothing)
        aborts(errors.DropoutError, simulated_of(name, made), change=nobody)
    for gone, back in itertools.combinations(steps, 2):

        def again(step, messages, gone=gone, back=back):
            if step == gone:
                del messages[1]
            if step == back:
                messages[1] = messages[0]

        aborts(errors.MalformedMessageError, simulated_of(name, made), change=again)


def test_a_client_that_leaves_a_peer_without_a_share_aborts():
    def leave_out(step, messages):
        if step == "shares":
            _, *rest = protocol.unpack(messages[1])
            messages[1] = protocol.pack(*rest)

    def elsewhere(step, messages):
        if step == "shares":
            first, *rest = protocol.unpack(messages[1])
            messages[1] = protocol.pack(protocol.number_bytes(99) + first[8:], *rest)

    for change in (leave_out, elsewhere):
        aborts(errors.MalformedShareError, simulated(), change=change)


def test_no_graph_and_no_ciphertext_of_any_form_is_taken():
    for answer in (b"", protocol.pack(bytes(31), b""), protocol.pack(bytes(32))):

        def told(step, answers, answer=answer):
            if step == "keys":
                answers[0] = answer

        aborts(errors.MalformedMessageError, simulated(), answer=told)
    made = simulated_of("paillier", terms(bits=8, size=3))
    n = made.key.modulus
    for element in (n, 5 * n, n**2 - n, n**2):

        def forge(step, messages, element=element):
            messages[1] = paillier.as_bytes([element] * made.num_ciphertexts, made.square)

        aborts(errors.MalformedMessageError, made, change=forge)


def test_terms_beyond_what_the_protocol_stands_are_refused():
    with pytest.raises(errors.PrivacyPreconditionError, match="nobody honest"):
        terms(max_colluders=4)
    with pytest.raises(errors.PrivacyPreconditionError, match="a server that deviates"):
        secagg.simulated(terms(max_colluders=2))
    secagg.simulated(terms(max_colluders=2), server_kind="semi_honest")
    with pytest.raises(errors.PrivacyPreconditionError, match="a graph that the server draws"):
        secagg.simulated(terms(), graph_of=lambda seed: None)
    with pytest.raises(ValueError, match="uint32 of shape"):
        simulated().client(0, np.zeros(3, np.uint32), 0)
    with pytest.raises(ValueError, match="below 2"):
        simulated().client(0, np.full(SIZE, 2**21, np.uint32), 0)


def residual(inputs, seed, *, knows_a_key=False):
    """Client 0's words as far as the adversary can strip them of masks: it knows all messages, the
    seeds that were told, and all of client 2; with `knows_a_key` client 0's private key, too.
    """
    made = terms(num_clients=3, size=VIEW, bits=3, max_dropouts=0)
    run = secagg.simulated(made, entropy=entropy(seed))
    clients, seen = {}, {}
    run_client = run.client

    class Watched(Tampered):
        def __init__(self):
            super().__init__(run, change=lambda step, m: seen.update({step: dict(m)}))
            self.client = self.watched

        def watched(self, number, words, round_index):
            clients[number] = run_client(number, words, round_index)
            return clients[number]

    found = protocol.run(Watched(), inputs).total
    stripped = protocol.unpacked_words(made, seen["masked"][0]).copy()
    stream.add(stripped, secagg._self_mask_key(clients[0]._seed), -1)  # told to the server

    def pair(me, other):
        again = key_agreement.KeyAgreement.from_private_key(me, clients[me]._masks.private_key)
        again.agree(other, clients[other]._masks.public_key)
        return again.round_secrets(0, [other])[0]

    stream.add(stripped, pair(2, 0), -1)
    if knows_a_key:
        stream.add(stripped, pair(0, 1), -1)
    return stripped & np.uint32(7), found


def distance(a, b):
    """Largest difference of the counts of 8 values, in standard errors."""
    counts = [np.bincount(x, minlength=8) for x in (a, b)]
    return np.abs(counts[0] - counts[1]).max() / math.sqrt(2 * VIEW * (1 / 8) * (7 / 8))


def test_a_server_without_one_honest_key_cannot_tell_two_inputs_apart():
    rng = np.random.default_rng(0)
    third = rng.integers(0, 8, VIEW).astype(np.uint32)
    total = np.full(VIEW, 5, np.uint32)
    zeros, fives = np.zeros(VIEW, np.uint32), total
    worlds = [np.stack([zeros, fives, third]), np.stack([fives, zeros, third])]
    views, sums = zip(*(residual(w, seed) for seed, w in enumerate(worlds)), strict=True)
    np.testing.assert_array_equal(*sums)  # the worlds have the same sum
    assert distance(*views) <= 5
    # and the view is what a simulator draws that knows the sum alone: uniform
    for view in views:
        assert distance(view, rng.integers(0, 8, VIEW)) <= 5
    # Control: with that key it tells them apart in every word.
    leaks = [residual(w, seed, knows_a_key=True)[0] for seed, w in enumerate(worlds)]
    for leak, world in zip(leaks, worlds, strict=True):
        np.testing.assert_array_equal(leak, world[0])
    assert distance(*leaks) > 50


@pytest.mark.slow(reason="counts in fractions of thousands of digits", but=["50-5-5"])
@pytest.mark.parametrize(
    ("num", "colluders", "dropouts"), [(50, 5, 5), (100, 10, 10)], ids=["50-5-5", "100-10-10"]
)
def test_degrees_are_safe_by_counting_and_graphs_are_regular(num, colluders, dropouts):
    scipy_stats = pytest.importorskip("scipy.stats")
    k, threshold = secagg_plus.degree(num, colluders, dropouts)
    assert k % 2 == 0 and k < num - 1
    bad = scipy_stats.hypergeom.sf(threshold - 1, num - 1, colluders, k)
    lost = scipy_stats.hypergeom.sf(k - threshold, num - 1, dropouts, k)
    assert num * bad <= 2.0**-41 and num * lost <= 2.0**-30
    graph = secagg_plus.ring(num, k, threshold, bytes(32))
    for i, neighbours in enumerate(graph.neighbours):
        assert len(set(neighbours)) == k and i not in neighbours
        assert all(i in graph.neighbours[j] for j in neighbours)
    other = secagg_plus.ring(num, k, threshold, bytes([1]) * 32)
    assert other.neighbours != graph.neighbours
    assert secagg_plus.degree(6, 1, 2) == (5, 4)  # too few for anything but all pairs
    with pytest.raises(ValueError, match="an even degree"):
        secagg_plus.ring(10, 3, 2, bytes(32))


def test_the_bound_on_graphs_that_fall_apart_is_above_how_often_they_do():
    num, k, gone, trials = 30, 4, 4, 400
    rng = np.random.default_rng(0)
    apart = in_a_row = 0
    for _ in range(trials):
        graph = secagg_plus.ring(num, k, 2, rng.bytes(32))
        left, seen, waiting = set(range(gone, num)), set(), [gone]
        while waiting:
            seen.add(node := waiting.pop())
            waiting += [j for j in graph.neighbours[node] if j in left - seen]
        apart += seen != left
        around = [set(neighbours) for neighbours in graph.neighbours]
        # at k = 4 those next to each other have two neighbours in common, other neighbours one
        in_a_row += any(
            j in around[i] and len(around[i] & around[j]) == 2
            for i, j in itertools.combinations(range(gone), 2)
        )
    bound = secagg_plus._split(gone, num, k)
    # the bound is one on two in a row that are gone, without which no graph falls apart, and near
    assert 0 < apart / trials < in_a_row / trials <= bound < 1.3 * in_a_row / trials
    assert secagg_plus._split(2, 12, 6) == 0  # three in a row of two


@pytest.mark.slow(reason="agrees on keys for every two of forty clients")
def test_a_sparse_graph_sums_and_survives_its_dropouts():
    made = terms(num_clients=40, size=9, max_dropouts=2, max_colluders=1)
    k, _ = secagg_plus.degree(40, 1, 2)
    assert k < 20
    words = words_of(made)
    run = secure_sum.simulated("secagg_plus", made, entropy=entropy())
    found = protocol.run(run, words, dropouts={3: "masked", 17: "unmask"})
    np.testing.assert_array_equal(found.total, expected(made, words, [3]))
    complete = secure_sum.simulated("secagg", made, entropy=entropy())
    most = protocol.run(complete, words).costs[1].bytes_up
    assert found.costs[1].bytes_up < 0.6 * most


def test_field_products_and_shares_are_those_of_whole_numbers():
    rng = np.random.default_rng(0)
    a = rng.integers(0, field.PRIME, (3, 50))
    b = rng.integers(0, field.PRIME, (50, 4))
    a[0], b[:, 0] = field.PRIME - 1, field.PRIME - 1
    exact = (a.astype(object) @ b.astype(object)) % field.PRIME
    np.testing.assert_array_equal(field.matmul(a, b), exact.astype(np.int64))
    secret = rng.integers(0, field.PRIME, 5)
    random = rng.integers(0, field.PRIME, (2, 5))
    holders = [0, 3, 5, 9]
    made = field.shares(secret, random, holders)
    for some in itertools.combinations(range(4), 3):
        got = field.combine(made[list(some)], [holders[i] for i in some])
        np.testing.assert_array_equal(got, secret)
    # Two shares fit any other secret: a third one with them gives it.
    other = rng.integers(0, field.PRIME, 5)
    third = field.matmul(field.lagrange([10], [0, 1, 4]), np.stack([other, made[0], made[1]]))
    forged = np.stack([made[0], made[1], third[0]])
    np.testing.assert_array_equal(field.combine(forged, [0, 3, 9]), other)
    assert np.all(field.inverse(b[:, 1]) * b[:, 1] % field.PRIME == 1)
    with pytest.raises(ValueError, match="points that differ"):
        field.lagrange([0], [1, 1])
    with pytest.raises(errors.MalformedShareError):
        field.unpacked(field.packed(np.array([field.PRIME])), 1)
    with pytest.raises(errors.MalformedShareError):
        field.to_bytes(np.array([2**16]))


def test_streams_are_those_of_the_cipher():
    key = bytes(range(32))
    words = np.frombuffer(key, "<u4").tolist()
    exact = reference.block(words, 0, [0, 0, 0]) + reference.block(words, 1, [0, 0, 0])
    assert stream.words(key, 20).tolist() == exact[:20]
    long = stream.words(key, 2**16 + 5)
    taken = long.copy()
    stream.add(taken, key, -1)
    assert not taken.any() and len(np.unique(long[-16:])) == 16
    drawn = stream.field_elements(key, 1000)
    assert drawn.max() < field.PRIME and drawn.size == 1000


def test_words_travel_in_whole_bytes():
    for bits in (1, 8, 17, 24, 32):
        made = terms(bits=bits, num_clients=3, max_dropouts=1)
        words = np.random.default_rng(0).integers(0, 2**bits, SIZE).astype(np.uint32)
        sent = protocol.packed_words(made, words)
        assert len(sent) == SIZE * -(-bits // 8)
        np.testing.assert_array_equal(protocol.unpacked_words(made, sent), words)
    with pytest.raises(errors.MalformedMessageError, match="larger"):
        protocol.unpacked_words(terms(bits=17), b"\xff" * 3 * SIZE)
    made = terms(bits=8)
    near = np.array([made.most, -made.most] * (SIZE // 2))
    np.testing.assert_array_equal(protocol.signed(made, protocol.as_words(made, near)), near)
    with pytest.raises(ValueError, match="so that no sum"):
        protocol.signed(made, protocol.as_words(made, near + 1))


@pytest.mark.parametrize("name", ["inner_product", "secagg"])
def test_a_round_whose_number_has_no_eight_bytes_is_refused(name):
    made = simulated_of(name, terms(size=2))
    with pytest.raises(ValueError, match=r"below 2\*\*64"):
        protocol.run(made, words_of(made.terms), round_index=2**64)
    protocol.run(made, words_of(made.terms), round_index=2**64 - 1)  # which nobody was in


def test_an_unknown_protocol_or_step_is_refused():
    with pytest.raises(ValueError, match="secagg"):
        secure_sum.simulated("sekagg", terms())
    with pytest.raises(ValueError, match="step"):
        protocol.run(simulated(), words_of(terms()), dropouts={0: "mask"})
    with pytest.raises(ValueError, match=r"clients 0 to 5, got those of \[6\]"):
        protocol.run(simulated(), {NUM: words_of(terms())[0]})
    for state in (b"", b"x", protocol.pack(*[b""] * 13), protocol.pack(*[b"1"] * 13)):
        with pytest.raises(errors.MalformedMessageError):
            simulated().resumed(state)
    assert dataclasses.replace(terms(), bits=3).most == 0


def test_servers_release_nothing_where_shares_do_not_fit():
    def cut(step, messages):
        *keys, words = protocol.unpack(messages[1])
        messages[1] = protocol.pack(*keys, words[:-1])

    def short(step, messages):
        key, words = protocol.unpack(messages[1])
        messages[1] = protocol.pack(key[:-1], words)

    def more(step, messages):
        messages[1] += protocol.pack(bytes(32))

    for change, error in (
        (cut, errors.MalformedMessageError),
        (short, errors.MalformedShareError),
        (more, errors.MalformedMessageError),
    ):
        aborts(error, simulated_of("servers", terms()), change=change)
    with pytest.raises(ValueError, match="num_servers >= 2"):
        servers.simulated(terms(), num_servers=1)


def test_shamir_servers_outlive_lost_ones_and_see_a_wrong_sum():
    made, words = terms(), words_of(terms())
    five = functools.partial(
        shamir_servers.simulated, made, num_servers=5, max_colluding_servers=2, entropy=entropy()
    )
    for lost in ((), (0,), (1, 4)):
        found = protocol.run(five(lost_servers=frozenset(lost)), words)
        np.testing.assert_array_equal(found.total, expected(made, words))
    with pytest.raises(errors.DropoutError, match="at least 3 of 5 servers"):
        protocol.run(five(lost_servers=frozenset({0, 1, 2})), words)

    def wrong(step, messages):
        first, *rest = protocol.unpack(messages[1])
        messages[1] = protocol.pack(field.packed(field.unpacked(first, SIZE) ^ 1), *rest)

    def short(step, messages):
        messages[1] = messages[1][:-4]

    aborts(errors.MalformedShareError, five(), change=wrong)
    aborts(errors.MalformedMessageError, five(), change=short)
    for bad in (0, 5):
        with pytest.raises(errors.PrivacyPreconditionError, match="max_colluding_servers"):
            shamir_servers.simulated(made, num_servers=5, max_colluding_servers=bad)
    with pytest.raises(ValueError, match="lost_servers"):
        five(lost_servers=frozenset({5}))
    with pytest.raises(ValueError, match="bits <= 31"):
        shamir_servers.simulated(terms(bits=32))


def test_shares_of_servers_that_may_collude_are_uniform_and_one_more_tells_all():
    made = terms(num_clients=2, size=VIEW, bits=3, max_dropouts=0, max_colluders=0)
    seen = []
    for seed, word in enumerate((0, 1)):
        run = shamir_servers.simulated(
            made, num_servers=4, max_colluding_servers=2, entropy=entropy(seed)
        )
        sent = run.client(0, np.full(VIEW, word, np.uint32), 0).send("shared", b"")
        shares = [field.unpacked(share, VIEW) for share in protocol.unpack(sent)]
        np.testing.assert_array_equal(field.combine(np.stack(shares[1:]), [1, 2, 3]), word)
        seen.append(shares)
    for one, two in itertools.combinations(range(4), 2):
        # any combination of two shares is as uniform for one word as for the other
        views = [((s[one] + 12345 * s[two]) % field.PRIME) >> 28 for s in seen]
        assert distance(*views) <= 5
    # control: with a straight line two shares are one too many
    bare = shamir_servers.simulated(made, num_servers=4, entropy=entropy())
    sent = protocol.unpack(bare.client(0, np.ones(VIEW, np.uint32), 0).send("shared", b""))
    pair = np.stack([field.unpacked(sent[k], VIEW) for k in (0, 3)])
    np.testing.assert_array_equal(field.combine(pair, [0, 3]), 1)


def test_all_servers_but_one_see_uniform_words_and_all_of_them_the_input():
    made = terms(num_clients=2, size=VIEW, bits=3, max_dropouts=0, max_colluders=0)
    zeros, fives = np.zeros(VIEW, np.uint32), np.full(VIEW, 5, np.uint32)
    seen = []
    for seed, word in enumerate((zeros, fives)):
        run = servers.simulated(made, num_servers=3, entropy=entropy(seed))
        first, second, last = protocol.unpack(run.client(0, word, 0).send("shared", b""))
        views = [stream.words(key, VIEW) for key in (first, second)]
        views.append(protocol.unpacked_words(made, last))
        seen.append([view & np.uint32(7) for view in views])
        np.testing.assert_array_equal(sum(seen[-1][1:], seen[-1][0]) & np.uint32(7), word)
    for missing in range(3):
        views = [sum(v for k, v in enumerate(views) if k != missing) & 7 for views in seen]
        assert distance(*views) <= 5
    assert distance(*(sum(views) & 7 for views in seen)) > 50


def test_coded_shares_of_colluders_tell_nothing_and_enough_of_them_tell_all():
    made = terms(num_clients=5, size=VIEW, bits=3, max_dropouts=1, max_colluders=2)
    run = light_secagg.simulated(made, entropy=entropy())
    near = lambda shares: shares >> 28  # the top 3 of 31 bits
    seen = []
    for mask in (0, field.PRIME // 2):
        client = run.client(len(seen), np.zeros(VIEW, np.uint32), 0)
        client._mask = np.full(VIEW, mask, np.int64)
        seen.append(client._coded())
        back = field.lagrange(run.points[: run.num_pieces], [1, 2, 3, 4])
        found = field.matmul(back, seen[-1][:4]).reshape(-1)[:VIEW]
        np.testing.assert_array_equal(found, client._mask)  # control: U shares
    width = seen[0].shape[1]
    for pair in itertools.combinations(range(5), 2):
        # any combination of two shares is as uniform for one mask as for the other
        for weight in (1, 12345):
            views = [near((s[pair[0]] + weight * s[pair[1]]) % field.PRIME) for s in seen]
            counts = [np.bincount(view, minlength=8) for view in views]
            error = math.sqrt(2 * width * (1 / 8) * (7 / 8))
            assert np.abs(counts[0] - counts[1]).max() <= 5 * error
    # control: with T = 0 a share alone tells them apart
    open_terms = dataclasses.replace(made, max_colluders=0)
    bare = light_secagg.simulated(open_terms, entropy=entropy())
    client = bare.client(0, np.zeros(VIEW, np.uint32), 0)
    client._mask = np.zeros(VIEW, np.int64)
    assert not client._coded().any()


def test_a_wrong_sum_of_coded_shares_and_a_survivor_unknown_abort():
    made = terms(max_dropouts=1)

    def wrong(step, messages):
        if step == "unmask":
            messages[5] = field.packed(field.unpacked(messages[5], len(messages[5]) // 4) ^ 1)

    def unknown(step, answers):
        if step == "masked":
            answers[0] = channels.listed([1, 2, 3, 4, 5])

    def own(step, answers):
        if step == "keys":
            entries = channels.parts(answers[0])
            entries[0] = entries[1]
            answers[0] = channels.addressed(entries)

    aborts(errors.MalformedShareError, simulated_of("light_secagg", made), change=wrong)
    aborts(errors.InconsistentSurvivorsError, simulated_of("light_secagg", made), answer=unknown)
    aborts(errors.SwappedKeyError, simulated_of("light_secagg", made), answer=own)
    with pytest.raises(ValueError, match="bits <= 31"):
        simulated_of("light_secagg", terms(bits=32))
    with pytest.raises(errors.MalformedMessageError, match="for each client"):
        channels.parts(protocol.pack(bytes(8), bytes(8)))


def test_integers_that_might_wrap_are_refused_outside_the_ring():
    made = terms(bits=8, max_colluders=0)
    large = np.full(SIZE, made.most + 1, np.uint32)
    for name in sorted(set(secure_sum.NAMES) - set(secure_sum.IN_THE_RING)):
        with pytest.raises(ValueError, match="does not sum modulo 2"):
            simulated_of(name, made).client(0, large, 0)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("ckks", "tenseal"),
        ("inner_product", "coincurve"),
        ("joint_paillier", "gmpy2"),
        ("paillier", "gmpy2"),
        ("secagg", "cryptography.hazmat.primitives.asymmetric"),
        ("servers", "cryptography.hazmat.primitives"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install 'fljax\[secure\]'"):
        secure_sum.simulated(name, terms(max_colluders=0))


def test_an_identity_is_saved_encrypted_and_goes_on_above_its_rounds(tmp_path):
    path = tmp_path / "client"
    mine = signing.Identity(2, entropy=entropy())
    mine.save(path, passphrase="a long one")
    mine.begin(4)
    assert path.stat().st_mode & 0o777 == 0o600 and b"ENCRYPTED" in path.read_bytes()
    again = signing.Identity.load(path, passphrase="a long one")
    assert (again.client, again.public_key) == (2, mine.public_key)
    signing.check({2: mine.public_key}, 2, b"message", again.sign(b"message"))
    with pytest.raises(errors.ReplayError):
        again.begin(4)
    again.begin(5)
    with pytest.raises(errors.ReplayError):
        signing.Identity.load(path, passphrase="a long one").begin(5)
    for wrong in ("another one", None):
        with pytest.raises(ValueError, match=r"Identity\.save wrote"):
            signing.Identity.load(path, passphrase=wrong)
    with pytest.raises(ValueError, match="a new file"):
        signing.Identity(1).save(path, passphrase=None)
    edited = path.read_bytes().replace(b'"next": 6', b'"next": 0')
    (tmp_path / "edited").write_bytes(edited)
    with pytest.raises(ValueError, match="edited or missing"):
        signing.Identity.load(tmp_path / "edited", passphrase="a long one")
    key_agreement.KeyAgreement(0).save(tmp_path / "other")
    with pytest.raises(ValueError, match="another kind of key"):
        signing.Identity.load(tmp_path / "other", passphrase=None)


def test_a_key_is_rotated_by_the_old_one_alone():
    roster, identities = signing.enrolled(3, entropy())
    identities[1].begin(7)
    new, certificate = identities[1].rotated(entropy=entropy(1))
    changed = signing.renewed(roster, 1, new.public_key, certificate)
    signing.check(changed, 1, b"message", new.sign(b"message"))
    with pytest.raises(errors.SignatureError):
        signing.check(changed, 1, b"message", identities[1].sign(b"message"))
    with pytest.raises(errors.ReplayError):
        new.begin(7)
    with pytest.raises(errors.SignatureError):
        signing.renewed(roster, 2, new.public_key, certificate)
    forged = identities[0].sign(signing._renewal(1, roster[0]))
    with pytest.raises(errors.SignatureError):
        signing.renewed(roster, 1, roster[0], forged)
    own = identities[1].sign(signing._renewal(1, roster[0]))
    with pytest.raises(errors.SybilError):
        signing.renewed(roster, 1, roster[0], own)
