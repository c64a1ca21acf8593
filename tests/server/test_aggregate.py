"""Chunked sums and the server's step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax.server import aggregate


def chunk_sum(clients, present):
    return jax.tree.map(
        lambda leaf: jnp.sum(jnp.where(present[:, None], leaf, 0.0), axis=0), clients
    )


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
def test_the_sum_does_not_depend_on_the_chunk_size(chunk_size, key):
    rows = jax.random.normal(key, (7, 5))
    present = jnp.array([True, False, True, True, False, False, True])  # the last chunk is padded
    total = jax.jit(
        lambda r, p: aggregate.sum_in_chunks(chunk_sum, {"w": r}, p, chunk_size=chunk_size)
    )(rows, present)
    exact = np.asarray(rows, np.float64)[np.asarray(present)].sum(axis=0)
    np.testing.assert_allclose(total["w"], exact, rtol=1e-5, atol=1e-6)


def test_chunks_behind_the_last_present_client_are_not_run():
    seen = []

    def counting(clients, present):
        jax.debug.callback(lambda: seen.append(1))
        return jnp.sum(jnp.where(present, clients, 0.0))

    present = jnp.arange(10) < 3
    aggregate.sum_in_chunks(counting, jnp.ones(10), present, chunk_size=2).block_until_ready()
    jax.effects_barrier()
    assert len(seen) == 2


def test_the_work_of_a_chunk_is_traced_once():
    traced = []

    def noting(clients, present):
        traced.append(clients.shape)
        return jnp.sum(jnp.where(present, clients, 0.0))

    sums = lambda rows, p: aggregate.sum_in_chunks(noting, rows, p, chunk_size=2)
    jax.jit(sums).trace(jnp.ones(10), jnp.ones(10, bool))
    assert traced == [(2,)]


def test_an_absent_cohort_sums_to_zero():
    total = aggregate.sum_in_chunks(
        chunk_sum, jnp.full((4, 2), jnp.nan), jnp.zeros(4, bool), chunk_size=2
    )
    np.testing.assert_array_equal(total, np.zeros(2))


def test_no_slot_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one client slot"):
        aggregate.sum_in_chunks(chunk_sum, jnp.ones((0, 2)), jnp.ones(0, bool), chunk_size=2)


def test_a_step_divides_by_the_public_constant_and_counts_rounds():
    optimizer = optax.sgd(0.5)
    state = aggregate.init({"w": jnp.array([1.0, 2.0])}, optimizer)
    state = aggregate.step(
        state, {"w": jnp.array([4.0, -8.0])}, divisor=4.0, server_optimizer=optimizer
    )
    np.testing.assert_allclose(state.params["w"], [0.5, 3.0])
    assert int(state.round) == 1
    with pytest.raises(ValueError, match="divisor=0"):
        aggregate.step(state, {"w": jnp.zeros(2)}, divisor=0.0, server_optimizer=optimizer)


@pytest.mark.parametrize("groups", [None, 2, 4])
def test_rows_that_clients_keep_come_back_in_their_places(groups):
    rows = jnp.arange(14.0).reshape(7, 2)
    present = jnp.array([True, True, False, True, True, True, True])

    def twice(clients, present):
        new = jnp.where(present[:, None], 2 * clients + 1, clients)
        return jnp.sum(jnp.where(present[:, None], clients, 0.0), axis=0), new

    total, kept = aggregate.sum_in_chunks(
        twice, rows, present, chunk_size=2, groups=groups, kept=rows
    )
    np.testing.assert_allclose(total, rows[present].sum(axis=0))
    np.testing.assert_array_equal(kept, jnp.where(present[:, None], 2 * rows + 1, rows))


def test_a_cpu_takes_as_many_clients_as_fit_its_cache():
    """16,384 numbers, as `bench/rounds/round.py` measured; an accelerator takes 64 of any size."""
    sizes = {1: 32, 2**9: 32, 2**10: 16, 2**13: 2, 2**13 + 1: 1, 2**14: 1, 10**8: 1}
    assert {num: aggregate.default_chunk_size(num, "cpu") for num in sizes} == sizes
    assert {aggregate.default_chunk_size(num, "cuda") for num in sizes} == {64}
