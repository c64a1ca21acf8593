"""Searches find roots known in closed form, and stay within the target."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.accounting import search, x64
from fljax.errors import PrivacyPreconditionError


@given(root=st.floats(1e-9, 1e9), power=st.sampled_from([-3.0, -1.0, -0.2, 0.5, 2.0]))
def test_a_value_is_within_the_target_and_next_to_its_root(root, power):
    asked = []

    def cost(value):
        asked.append(value)
        return (value / root) ** power

    found = search.within(cost, 1.0, of="cost")
    assert cost(found) <= 1.0
    assert abs(math.log(found / root)) <= 2e-6
    assert len(asked) < 100


@given(count=st.integers(1, 10**9))
def test_the_last_whole_number_within_is_found(count):
    assert search.within(lambda steps: steps / count, 1.0, of="cost", integer=True) == count
    assert search.last_whole(lambda value: value <= count, 0, 2 * count + 1) == count


def test_a_start_that_is_near_saves_questions():
    def asked(start):
        questions = []

        def cost(value):
            questions.append(value)
            return 1e6 / value

        assert search.within(cost, 1.0, of="cost", start=start) == pytest.approx(1e6, rel=2e-6)
        return len(questions)

    assert asked(9e5) < asked(1.0)


def test_what_cannot_be_reached_is_an_error_in_the_words_of_the_cost():
    with pytest.raises(PrivacyPreconditionError, match=r"nats <= 1\.0, got nats 5\.0"):
        search.within(lambda _: 5.0, 1.0, of="nats")
    with pytest.raises(PrivacyPreconditionError, match="bracket="):
        search.within(lambda value: 1 / value, 1.0, of="cost", bracket=(0.1, 0.5))
    with pytest.raises(ValueError, match="bracket to rise"):
        search.within(lambda value: 1 / value, 1.0, of="cost", bracket=(2.0, 1.0))


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
def test_bisection_of_arrays_finds_square_roots(as_array):
    squares = np.array([0.25, 2.0, 9.0])
    with x64():
        target = as_array(squares)

        def above(middle):
            return middle**2 < target

        low, high = search.bisect(above, 0 * target, 4 + 0 * target, 60)
        traced = jax.jit(lambda low, high: search.bisect(above, low, high, 60))
        again = traced(0 * jnp.asarray(squares), 4 + 0 * jnp.asarray(squares))
    np.testing.assert_allclose(low, np.sqrt(squares), rtol=1e-14)
    np.testing.assert_allclose(high, np.sqrt(squares), rtol=1e-14)
    np.testing.assert_array_equal(again[0], low)
