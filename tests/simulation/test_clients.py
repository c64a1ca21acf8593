"""Accuracy client by client, in memory and on disk."""

import jax.numpy as jnp
import numpy as np

from fljax.data import ClientData, store
from fljax.simulation.report import client_accuracy


def apply(params, x):
    return jnp.stack([params - x, x - params])  # class 1 above the threshold


def some(rng, num=40):
    """Clients of 0 to 9 examples: x and labels that are right half the time."""
    sizes = rng.integers(0, 10, num)
    return [
        {"x": rng.normal(size=n).astype(np.float32), "y": rng.integers(0, 2, n).astype(np.int32)}
        for n in sizes
    ]


def by_hand(everybody):
    return [((one["x"] > 0.25) == one["y"]).mean() for one in everybody if len(one["y"])]


def test_in_memory_and_on_disk_it_is_what_a_loop_counts(tmp_path):
    everybody = some(np.random.default_rng(0))
    sizes = [len(one["y"]) for one in everybody]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    table = np.full((40, 9), -1, np.int32)
    for place, mine in enumerate(rows):
        table[place, : mine.size] = mine
    pooled = {
        name: jnp.asarray(np.concatenate([one[name] for one in everybody])) for name in ("x", "y")
    }
    found = client_accuracy.accuracies(
        apply, jnp.float32(0.25), ClientData(pooled, jnp.asarray(table))
    )
    np.testing.assert_allclose(found.accuracy, by_hand(everybody))
    assert found.examples.tolist() == [n for n in sizes if n] and len(found.client_ids) < 40
    np.testing.assert_allclose(client_accuracy.percentiles(found)[2], np.median(by_hand(everybody)))
    on_disk = client_accuracy.accuracies(
        apply, jnp.float32(0.25), store.write(tmp_path / "clients", everybody)
    )
    for a, b in zip(found[:3], on_disk[:3], strict=True):
        np.testing.assert_array_equal(a, b)


def test_many_examples_go_in_parts_of_one_size():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=2500).astype(np.float32), rng.integers(0, 2, 2500).astype(np.int32)
    whole = ClientData({"x": jnp.asarray(x), "y": jnp.asarray(y)}, jnp.arange(2500).reshape(5, 500))
    found = client_accuracy.accuracies(apply, jnp.float32(0.25), whole)
    np.testing.assert_allclose(found.accuracy, ((x > 0.25) == y).reshape(5, 500).mean(1))


def test_nobody_holds_anything():
    nothing = ClientData({"x": jnp.zeros(3), "y": jnp.zeros(3, jnp.int32)}, jnp.full((4, 2), -1))
    found = client_accuracy.accuracies(apply, jnp.float32(0.0), nothing)
    assert found.accuracy.size == 0 and np.isnan(client_accuracy.percentiles(found)).all()


def test_a_damaged_client_is_left_out_and_named(tmp_path):
    everybody = some(np.random.default_rng(0))
    kept = store.write(tmp_path / "clients", everybody)
    first = next(i for i, one in enumerate(everybody) if len(one["y"]))
    with (tmp_path / "clients" / "x.bin").open("r+b") as file:
        file.write(b"\xff\xff")
    found = client_accuracy.accuracies(apply, jnp.float32(0.25), kept)
    assert found.damaged == [first] and first not in found.client_ids
    np.testing.assert_allclose(found.accuracy, by_hand(everybody)[1:])
