"""Local SGD and the local gradient against closed forms written in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.local import sgd


def linear_loss(params, example):
    """Its gradient is the example itself, whatever the parameters."""
    return jnp.dot(params["w"], example["x"])


def squared_loss(params, example):
    return 0.5 * jnp.square(jnp.dot(params["w"], example["x"]) - example["y"])


def ragged(num_clients=4, capacity=7, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    sizes = [capacity, 1, 0, 4][:num_clients]
    indices = np.full((num_clients, capacity), -1, np.int32)
    start = 0
    for row, size in zip(indices, sizes, strict=True):
        row[:size] = np.arange(start, start + size)
        start += size
    x = rng.normal(size=(start, dim)).astype(np.float32)
    y = rng.normal(size=start).astype(np.float32)
    return {"x": jnp.asarray(x), "y": jnp.asarray(y)}, jnp.asarray(indices), sizes


def squared_gradient_float64(w, x, y):
    return ((x @ w - y)[:, None] * x).mean(axis=0)


def test_full_batch_steps_are_gradient_descent(key):
    examples, indices, sizes = ragged()
    params = {"w": jnp.array([0.5, -1.0, 2.0])}
    fun = sgd.local_sgd(squared_loss, learning_rate=0.1, batch_size=16, num_epochs=3)
    result = jax.jit(fun)(params, examples, indices, jax.random.split(key, 4))
    for client, size in enumerate(sizes):
        rows = np.asarray(indices)[client, :size]
        x, y = (np.asarray(examples[name], np.float64)[rows] for name in ("x", "y"))
        w = np.asarray(params["w"], np.float64)
        for _ in range(3 if size else 0):
            last_loss = 0.5 * np.mean((x @ w - y) ** 2)
            w = w - 0.1 * squared_gradient_float64(w, x, y)
        # 3 steps on values of order 10: a few float32 roundings.
        np.testing.assert_allclose(
            result.update["w"][client], np.asarray(params["w"]) - w, rtol=1e-5, atol=5e-6
        )
        np.testing.assert_allclose(
            result.loss[client], last_loss if size else 0.0, rtol=1e-5, atol=1e-6
        )


def test_an_epoch_visits_every_example_once_in_random_order(key):
    capacity, batch_size = 7, 3
    examples = {"x": jnp.eye(capacity)}
    indices = jnp.arange(capacity, dtype=jnp.int32)[None]
    params = {"w": jnp.zeros(capacity)}
    fun = jax.jit(
        sgd.local_sgd(linear_loss, learning_rate=1.0, batch_size=batch_size, num_epochs=1)
    )
    last = []
    for k in jax.random.split(key, 40):
        update = np.asarray(fun(params, examples, indices, k[None]).update["w"][0])
        # Two batches of 3 weigh 1/3 an example, the last batch of one weighs 1.
        np.testing.assert_allclose(np.sort(update), [1 / 3] * 6 + [1.0], rtol=1e-6)
        last.append(int(np.argmax(update)))
    # 40 draws from 7 places: P(some two places never come last) < 21 * (5/7)^40 < 1e-4.
    assert len(set(last)) >= 6


@pytest.mark.slow(reason="compiles one more loss", ids=["<lambda>0"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: sgd.local_sgd(squared_loss, learning_rate=0.05, batch_size=2, num_epochs=2),
        lambda: sgd.local_gradient(squared_loss, batch_size=2),
    ],
)
def test_side_by_side_clients_do_what_each_does_alone(make, key):
    examples, indices, _ = ragged()
    params = {"w": jnp.array([0.5, -1.0, 2.0])}
    keys = jax.random.split(key, 4)
    together = jax.jit(make())(params, examples, indices, keys)
    for client in range(4):
        alone = jax.jit(make())(
            params, examples, indices[client : client + 1], keys[client : client + 1]
        )
        np.testing.assert_allclose(
            alone.update["w"][0], together.update["w"][client], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(alone.loss[0], together.loss[client], rtol=1e-5, atol=1e-6)


@pytest.mark.slow(reason="compiles the training for one more number of batches", but=["5"])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 5])
def test_a_client_alone_is_exact_however_full_its_last_batch_is(batch_size, key):
    """A last batch of at most half is computed at half size; beside others, whose sizes vary, it is
    not.
    """
    rng = np.random.default_rng(1)
    examples = {"x": jnp.asarray(rng.normal(size=(11, 3)), jnp.float32)}
    params = {"w": jnp.zeros(3)}
    fun = jax.jit(
        sgd.local_sgd(linear_loss, learning_rate=1.0, batch_size=batch_size, num_epochs=2)
    )
    # Here the order of steps counts, and each step's start.
    settings = {
        "batch_size": batch_size,
        "num_epochs": 2,
        "proximal": 0.7,
        "view": lambda batch, places, own, e: batch,
    }
    squared = jax.jit(sgd.local_sgd(squared_loss, learning_rate=0.1, **settings))
    data = examples | {"y": jnp.asarray(rng.normal(size=11), jnp.float32)}

    def both(indices, key):
        """(rows, keys) of the client alone, and beside one with all examples."""
        yield indices, jax.random.clone(key)[None]
        yield jnp.stack([indices[0], jnp.arange(11)]), jnp.stack([jax.random.clone(key)] * 2)

    for size in range(12):
        indices = jnp.where(jnp.arange(11) < size, jnp.arange(11), -1)[None]
        result, beside = (fun(params, examples, rows, keys) for rows, keys in both(indices, key))
        np.testing.assert_allclose(
            result.update["w"][0], beside.update["w"][0], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(result.loss[0], beside.loss[0], rtol=1e-5, atol=1e-6)
        curved = [squared(params, data, rows, keys) for rows, keys in both(indices, key)]
        np.testing.assert_allclose(
            curved[0].update["w"][0], curved[1].update["w"][0], rtol=1e-5, atol=1e-6
        )
        if size and size % batch_size == 0:  # every batch is whole: the order does not matter
            exact = 2 * np.asarray(examples["x"], np.float64)[:size].sum(0) / batch_size
            np.testing.assert_allclose(result.update["w"][0], exact, rtol=1e-5, atol=1e-6)


def test_a_client_that_overflows_sends_the_same_beside_a_longer_one(key):
    """Its loss is not finite after its first step: steps that it only waits through must leave it
    alone.
    """
    examples, indices, _ = ragged()
    examples = {**examples, "x": examples["x"].at[7].set(1e18)}  # the only record of client 1
    params = {"w": jnp.ones(3)}
    keys = jax.random.split(key, 4)
    for make in (
        lambda: sgd.local_sgd(squared_loss, learning_rate=0.1, batch_size=2, num_epochs=1),
        lambda: sgd.local_gradient(squared_loss, batch_size=2),
    ):
        together = jax.jit(make())(params, examples, indices, jax.random.clone(keys)).update["w"]
        alone = jax.jit(make())(params, examples, indices[1:2], jax.random.clone(keys)[1:2]).update[
            "w"
        ]
        assert np.abs(alone).max() > 1e15
        np.testing.assert_allclose(together[1], alone[0], rtol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_local_gradient_is_the_mean_gradient_for_any_batch_size(batch_size, key):
    examples, indices, sizes = ragged()
    params = {"w": jnp.array([0.5, -1.0, 2.0])}
    fun = jax.jit(sgd.local_gradient(squared_loss, batch_size=batch_size))
    result = fun(params, examples, indices, jax.random.split(key, 4))
    for client, size in enumerate(sizes):
        rows = np.asarray(indices)[client, :size]
        x, y = (np.asarray(examples[name], np.float64)[rows] for name in ("x", "y"))
        exact = (
            squared_gradient_float64(np.asarray(params["w"], np.float64), x, y)
            if size
            else np.zeros(3)
        )
        np.testing.assert_allclose(result.update["w"][client], exact, rtol=1e-5, atol=1e-6)


def test_a_broken_record_of_another_client_reaches_nobody(key):
    examples, indices, _ = ragged()
    examples = {
        **examples,
        "x": examples["x"].at[0].set(jnp.nan),
    }  # row 0 is what padding would read
    params = {"w": jnp.ones(3)}
    for fun in (
        sgd.local_sgd(squared_loss, learning_rate=0.1, batch_size=2, num_epochs=1),
        sgd.local_gradient(squared_loss, batch_size=2),
    ):
        key, used = jax.random.split(key)
        update = jax.jit(fun)(params, examples, indices, jax.random.split(used, 4)).update["w"]
        assert not np.isfinite(update[0]).all()
        assert np.isfinite(update[1:]).all()


def test_a_loss_without_a_gradient_at_zero_survives_padding(key):
    def norm_loss(params, example):
        return jnp.linalg.norm(params["w"] * example["x"])

    examples, indices, _ = ragged()
    params = {"w": jnp.ones(3)}
    for fun in (
        sgd.local_sgd(norm_loss, learning_rate=0.1, batch_size=2, num_epochs=1),
        sgd.local_gradient(norm_loss, batch_size=2),
    ):
        key, used = jax.random.split(key)
        update = jax.jit(fun)(params, examples, indices, jax.random.split(used, 4)).update["w"]
        with_data = np.array([0, 1, 3])
        assert np.isfinite(update[with_data]).all()
        assert (np.abs(update[with_data]).max(axis=1) > 0).all()


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0.0), ("batch_size", 0), ("num_epochs", 0)]
)
def test_a_number_out_of_range_is_named(name, value):
    good = {"learning_rate": 0.1, "batch_size": 2, "num_epochs": 1}
    with pytest.raises(ValueError, match=f"{name}={value}"):
        sgd.local_sgd(squared_loss, **{**good, name: value})


def test_the_proximal_term_pulls_towards_the_servers_model(key):
    examples, indices, sizes = ragged()
    params = {"w": jnp.array([0.5, -1.0, 2.0])}
    fun = sgd.local_sgd(squared_loss, learning_rate=0.1, batch_size=16, num_epochs=4, proximal=0.7)
    result = jax.jit(fun)(params, examples, indices, jax.random.split(key, 4))
    start = np.asarray(params["w"], np.float64)
    for client, size in enumerate(sizes):
        rows = np.asarray(indices)[client, :size]
        x, y = (np.asarray(examples[name], np.float64)[rows] for name in ("x", "y"))
        w = start
        for _ in range(4 if size else 0):
            w = w - 0.1 * (squared_gradient_float64(w, x, y) + 0.7 * (w - start))
        np.testing.assert_allclose(result.update["w"][client], start - w, rtol=1e-5, atol=5e-6)
