"""Compressed updates: what is sent of an update, and that nothing is promised of it."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import accounting, data, schemes
from fljax.schemes import compressed_updates, natural_channel

C, N, D, CLASSES = 4, 6, 8, 5


def loss(params, example):
    logits = jnp.matmul(example["x"], params["w"]) + params["b"]
    return -jax.nn.log_softmax(logits)[example["y"]]


def clients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(C * N, D)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(0, CLASSES, C * N).astype(np.int32)}
    table = jnp.arange(C * N).reshape(C, N)
    return data.ClientData(jax.tree.map(jnp.asarray, examples), table)


@functools.cache
def program(scheme, config, **more):
    made = scheme.make(config, loss, num_units=C, **more)
    return made.init, jax.jit(made.round)


def moved(scheme, config, key, chosen=range(C), **more):
    """Float32 `[K]`: how far one round of these clients moves the model; -1: of nobody."""
    start = {"w": jnp.zeros((D, CLASSES)), "b": jnp.zeros(CLASSES)}
    init, run = program(scheme, config, **more)
    cohort = data.cohort(clients(), jnp.arange(C))
    ids = jnp.asarray([c if c in chosen else -1 for c in range(C)], cohort.client_ids.dtype)
    after, _ = run(init(start), cohort._replace(client_ids=ids), key)
    step = jax.tree.map(jnp.subtract, start, after.params)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(step)])


def config_of(**changes):
    return compressed_updates.Config(**{"server_momentum": 0.0, "kept": 0.2} | changes)


def test_the_largest_numbers_of_the_whole_update_are_sent():
    rng = np.random.default_rng(1)
    tree = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=8)}
    update = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
    part = compressed_updates.kept_part(config_of(kept=0.25), update, jax.random.key(0))
    whole = np.concatenate([np.ravel(update["a"]), update["b"]])
    left = np.sort(abs(whole))[-5:]
    found = np.concatenate([np.ravel(part["a"]), part["b"]])
    np.testing.assert_array_equal(found, np.where(abs(whole) >= left[0], whole, 0))
    assert part["a"].shape == (3, 4)


def test_random_places_are_as_many_and_others_for_each_key():
    update = {"a": jnp.arange(1.0, 101.0)}
    config = config_of(choice="random")
    masks = [
        np.asarray(compressed_updates.kept_part(config, update, key)["a"]) != 0
        for key in jax.random.split(jax.random.key(3), 200)
    ]
    assert {int(mask.sum()) for mask in masks} == {20}
    hits = np.sum(masks, axis=0)  # 40 of 200 in the mean, with a standard deviation of 5.7
    assert 10 < hits.min() and hits.max() < 70


def test_whole_updates_are_federated_averaging(key):
    """As a channel's clients train without noise."""
    plain = natural_channel.Config(nats=math.inf, server_momentum=0.0)
    expected = moved(natural_channel, plain, jax.random.clone(key), channel=None)
    found = moved(compressed_updates, compressed_updates.non_private(config_of()), key)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow(reason="compiles one more round", ids=["random"])
@pytest.mark.parametrize("choice", ["largest", "random"])
def test_the_server_adds_up_what_each_client_sends_of_its_own(choice, key):
    with jax.debug_key_reuse(False):  # the same round, of some of its clients
        each = [moved(compressed_updates, config_of(choice=choice), key, [c]) for c in range(C)]
        total = moved(compressed_updates, config_of(choice=choice), key)
    num_sent = compressed_updates.sent(config_of(), total.size)
    assert [np.count_nonzero(update) for update in each] == [num_sent] * C
    assert len({tuple(np.flatnonzero(update)) for update in each}) > 1
    np.testing.assert_allclose(total, np.sum(each, axis=0), rtol=0, atol=1e-6)


def test_nothing_is_promised_and_bytes_are_counted():
    scheme = schemes.get("compressed_updates")
    assert scheme.promise == "none" and scheme.spent is None
    assert accounting.epsilon(scheme.event(config_of()), delta=1e-5) == math.inf
    bytes_sent = {
        choice: scheme.costs(config_of(choice=choice), 1000).upload_bytes
        for choice in ("largest", "random")
    }
    assert bytes_sent == {"largest": 200 * 8, "random": 200 * 4}
    assert compressed_updates.sent(config_of(kept=0.001), 10) == 1


def test_numbers_out_of_range_are_refused():
    for change in ({"kept": 0.0}, {"kept": 1.5}, {"choice": "smallest"}, {"sampling_prob": 0.0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            config_of(**change)
    noisy = dataclasses.replace(config_of(), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="noise_multiplier=0"):
        compressed_updates.make(noisy, loss, num_units=C)
