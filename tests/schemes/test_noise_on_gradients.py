"""The channel of parameters as a scheme: what clients send, what hides it, and what is proved of
it.
"""

import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, schemes
from fljax.data import facts
from fljax.errors import PrivacyPreconditionError
from fljax.schemes import parameter_channel

C, N, D, CLASSES = 6, 4, 12, 5
CLIP, NATS = 0.4, 3.0


def loss(params, example):
    logits = jnp.matmul(example["x"], params["w"]) + params["b"]
    return -jax.nn.log_softmax(logits)[example["y"]]


def a_task():
    """Clients of N records, but the first of two, and the last of none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(C * N, D)).astype(np.float32)
    train = {"x": x, "y": rng.integers(0, CLASSES, C * N).astype(np.int32)}
    table = np.arange(C * N).reshape(C, N)
    table[0, 2:], table[-1] = -1, -1
    clients = data.ClientData(jax.tree.map(jnp.asarray, train), jnp.asarray(table))
    return SimpleNamespace(dataset=data.Dataset(train, train, CLASSES, "test"), client_data=clients)


def start():
    return {"w": jnp.zeros((D, CLASSES)), "b": jnp.zeros(CLASSES)}


def config_of(**changes):
    usual = {"nats": NATS, "l2_clip_norm": CLIP, "records_per_client": N}
    usual |= {"server_momentum": 0.0, "server_learning_rate": 1.0}
    return parameter_channel.Config(**usual | changes)


def moved(config, clients, keys, num_units=C):
    """Float64 `[T, K]`: how far one round moves the model, with each of `keys` `[T]`."""
    made = parameter_channel.make(config, loss, num_units=num_units)
    cohort = data.cohort(clients, jnp.arange(C))
    run = jax.jit(lambda keys: jax.lax.map(lambda key: one(made, cohort, key), keys))
    update, info = run(keys)
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(update)]
    return np.concatenate([leaf.reshape(len(keys), -1) for leaf in leaves], axis=1), info


def one(made, cohort, key):
    after, info = made.round(made.init(start()), cohort, key)
    return jax.tree.map(jnp.subtract, start(), after.params), info


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def gradients(task):
    """Float64 `[R, K]`, of all records at the start."""
    rows = jax.vmap(jax.grad(loss), (None, 0))(start(), task.client_data.examples)
    return np.stack([flat(jax.tree.map(lambda leaf, at=at: leaf[at], rows)) for at in range(C * N)])


def sums(rows, task):
    """Float64 `[C, K]`, of each client."""
    table = np.asarray(task.client_data.indices)
    return np.stack([rows[mine[mine >= 0]].sum(axis=0) for mine in table])


def test_a_round_is_the_mean_of_clipped_gradients_behind_the_noise_that_the_clip_norm_needs(key):
    """Its variance on one upload, from the formula: S^2 / (K (exp(2 nats / K) - 1))."""
    task = a_task()
    rows = gradients(task)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    clean = sums(rows * np.minimum(1, CLIP / norms), task).sum(axis=0) / N / C
    update, info = moved(config_of(), task.client_data, jax.random.split(key, 60))
    found, size = update - clean, clean.size
    expected = CLIP / math.sqrt(size * math.expm1(2 * NATS / size)) / math.sqrt(C)
    count = found.size
    assert np.std(found) == pytest.approx(expected, rel=5 / math.sqrt(2 * count))
    assert abs(np.mean(found)) < 5 * expected / math.sqrt(count)
    assert np.std(found) != pytest.approx(expected / 1.1, rel=5 / math.sqrt(2 * count))
    assert 0 < float(info.clipped_fraction[0]) <= 1 and float(info.loss[0]) > 0


def test_without_noise_a_round_is_one_step_of_fedsgd(key):
    task = a_task()
    update, info = moved(config_of(nats=math.inf), task.client_data, key[None])
    np.testing.assert_allclose(
        update[0], sums(gradients(task), task).sum(axis=0) / N / C, rtol=0, atol=1e-6
    )
    assert float(info.clipped_fraction[0]) == 0


def test_the_papers_noise_is_that_of_each_clients_own_gradients(key):
    """Uploads of one client; its covariance written out, K x K, has NATS of capacity behind it."""
    task = a_task()
    mine = gradients(task)[N : 2 * N]  # of client 1
    alone = jnp.full((C, N), -1).at[1].set(jnp.arange(N, 2 * N))
    only = task.client_data._replace(indices=alone)
    keys = jax.random.split(key, 60)
    update, _ = moved(config_of(noise_from="covariance"), only, keys, num_units=1)
    found = update - mine.mean(axis=0)
    covariance = np.cov(mine.T, bias=True) / N
    values = np.maximum(np.linalg.eigvalsh(covariance), 0)
    nats = 0.5 * np.log1p(values / np.var(found)).sum()
    assert nats == pytest.approx(NATS, rel=0.05)


@pytest.mark.parametrize("source", ["clip_norm", "covariance"])
def test_uploads_add_up_and_only_the_clip_norm_proves_anything(source):
    task = a_task()
    config = config_of(noise_from=source)
    for rounds in (0, 1, 7):
        spent = parameter_channel.spent(config, task, {}, rounds)
        np.testing.assert_allclose(spent.nats, [NATS * rounds] * (C - 1) + [0])
        np.testing.assert_array_equal(spent.nats, spent.linear_nats)
        assert spent.certified is (source == "clip_norm") and spent.label_nats == 0
    assert parameter_channel.spent(config_of(nats=math.inf), task, {}, 3) is None


def test_a_record_more_than_was_said_is_refused():
    found = facts.of(a_task().client_data)
    open_config = dataclasses.replace(config_of(), records_per_client=None)
    assert parameter_channel.fitted(open_config, found).records_per_client == N
    with pytest.raises(PrivacyPreconditionError, match=rf"records_per_client >= {N}, .*={N - 1}\."):
        parameter_channel.fitted(config_of(records_per_client=N - 1), found)
    with pytest.raises(ValueError, match="records_per_client to be a number"):
        parameter_channel.make(open_config, loss, num_units=C)
    with pytest.raises(ValueError, match="noise_multiplier=0"):
        parameter_channel.make(config_of(noise_multiplier=1.0), loss, num_units=C)


@pytest.mark.parametrize(
    "change",
    [
        {"nats": 0.0},
        {"l2_clip_norm": 0.0},
        {"noise_from": "trace"},
        {"data_model": "normal"},
        {"records_per_client": 0},
        {"sampling_prob": 0.0},
        {"entropy_nats": math.inf},
    ],
    ids=str,
)
def test_a_number_out_of_range_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        config_of(**change)


def test_the_scheme_says_that_uploads_are_seen():
    scheme = schemes.get("parameter_channel")
    assert scheme.uploads_seen and scheme.promise == "nats"
    assert scheme.inputs(config_of(), a_task()) == {}
