import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.data import ClientData, cohort

TABLE = np.array([[0, 1, 2], [3, -1, -1], [4, 5, -1]], np.int32)
DATA = ClientData({"x": jnp.arange(6.0)[:, None], "y": jnp.arange(6)}, jnp.asarray(TABLE))


@pytest.mark.parametrize("transform", [lambda fun: fun, jax.jit], ids=["eager", "jit"])
def test_rows_follow_the_ids_and_absent_clients_have_no_rows(transform):
    result = transform(cohort)(DATA, jnp.array([2, -1, 0, -1], jnp.int32))
    none = [-1, -1, -1]
    np.testing.assert_array_equal(result.indices, [TABLE[2], none, TABLE[0], none])
    np.testing.assert_array_equal(result.client_ids, [2, -1, 0, -1])
    assert result.indices.dtype == result.client_ids.dtype == jnp.int32
    np.testing.assert_array_equal(result.examples["y"], DATA.examples["y"])


def test_a_cohort_can_be_empty():
    result = cohort(DATA, jnp.full(4, -1, jnp.int32))
    assert (result.indices == -1).all() and (result.client_ids == -1).all()


@pytest.mark.parametrize("bad", [-2, 3, 2**31 - 1])
def test_an_id_of_nobody_is_an_empty_place_and_not_another_client(bad):
    result = cohort(DATA, jnp.array([bad, 1], jnp.int32))
    np.testing.assert_array_equal(result.indices, [[-1, -1, -1], TABLE[1]])
    np.testing.assert_array_equal(result.client_ids, [-1, 1])


def test_tables_and_ids_may_be_numpy():
    data = ClientData({"x": np.zeros((6, 2))}, TABLE)
    np.testing.assert_array_equal(cohort(data, np.array([1, 2])).indices, TABLE[1:])


def test_cohort_sizes_change_without_a_new_trace():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def count(client_data, ids):
        return (cohort(client_data, ids).client_ids >= 0).sum()

    for ids in ([0, 1, 2], [-1, 2, -1], [-1, -1, -1]):
        assert count(DATA, jnp.array(ids, jnp.int32)) == sum(i >= 0 for i in ids)
