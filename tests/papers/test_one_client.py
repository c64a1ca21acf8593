"""One client for all: its messages are as long as true ones, and their sum is right."""

import numpy as np
import pytest

from fljax.papers import one_client
from fljax.upload import secure_sum
from fljax.upload.secure_sum import protocol
from tests.upload import _sums


@pytest.mark.parametrize("name", one_client.NAMES)
def test_messages_in_the_name_of_all_are_as_long_as_in_a_true_round_and_sum_up(name):
    terms, there = _sums.terms(bits=16), [0, 2, 3, 5]
    words = _sums.words_of(terms)
    bits = {} if name == "inner_product" else {"key_bits": 128}
    made = one_client.alike(name, terms, **bits)
    sent = one_client.sent(made, words[1])
    costs, total = one_client.served(made, sent, there)
    np.testing.assert_array_equal(total, 4 * words[1] % 2**16)
    true = secure_sum.simulated(name, terms, **bits)
    found = protocol.run(true, words, dropouts=dict.fromkeys((1, 4), true.upload_step))
    for cost, other in zip(costs, found.costs, strict=True):
        assert cost.step == other.step and cost.clients == other.clients == len(there)
        assert cost.bytes_up == other.bytes_up and cost.bytes_down == other.bytes_down
        assert cost.client_seconds == 4 * sent.seconds[cost.step]
    if bits:  # exponents too: of a share, which six clients have parts in
        lengths = [abs(run.key.shares[0]).bit_length() for run in (made, true)]
        assert abs(lengths[0] - lengths[1]) < 16
        assert made.key.threshold == true.key.threshold and made.for_tests


def test_there_is_no_such_client_of_fast_sums():
    with pytest.raises(ValueError, match="paillier"):
        one_client.alike("secagg", _sums.terms())
