"""Schemes with noise in the data: what leaves a client depends on noisy records alone, and nats say
how much.
"""

import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, schemes
from fljax.accounting import information
from fljax.data import channel as record_noise

SHAPED = ("natural_channel", "white_channel", "personalized_channel")
NAMES = (*SHAPED, "embedding_channel")
C, N, SHAPE = 3, 8, (4, 4, 1)
D = math.prod(SHAPE)


def loss(params, example):
    logits = example["x"].reshape(-1) @ params["w"]
    return -jax.nn.log_softmax(logits)[example["y"]]


def a_task(seed=0, spread=1.0):
    """Gaussian records of a known, uneven spectrum; clients 0 and 1 have N of them, client 2 half
    as many.
    """
    rng = np.random.default_rng(seed)
    scale = spread * np.linspace(1.0, 0.1, D)

    def records(count):
        x = (rng.normal(size=(count, D)) * scale).astype(np.float32).reshape(count, *SHAPE)
        return {"x": x, "y": rng.integers(0, 5, count).astype(np.int32)}

    table = np.arange(C * N).reshape(C, N)
    table[2, N // 2 :] = -1
    train = records(C * N)
    dataset = data.Dataset(train, records(400), 5, "test")
    return SimpleNamespace(
        dataset=dataset,
        client_data=data.ClientData(jax.tree.map(jnp.asarray, train), jnp.asarray(table)),
    )


def one_round(name, task, key, *, rounds=1, **settings):
    scheme = schemes.get(name)
    config = scheme.Config(local_batch_size=4, server_momentum=0.0, **settings)
    inputs = scheme.inputs(config, task)
    algorithm = scheme.make(config, loss, num_units=C, **inputs)
    state = algorithm.init({"w": jnp.zeros((D, 5))})
    cohort = data.cohort(task.client_data, jnp.arange(C))
    step = jax.jit(algorithm.round)
    for _ in range(rounds):
        state, info = step(state, cohort, key)
    return state.params["w"], info, config, inputs


@pytest.mark.slow(
    reason="compiles rounds of each channel",
    ids=["white_channel", "personalized_channel", "embedding_channel"],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_round_is_federated_averaging_on_the_noisy_records(name, key):
    """Replayed by hand: the same noise, added before anything else; then plain SGD in the order the
    client took.
    """
    task = a_task()
    got, _, config, inputs = one_round(name, task, jax.random.clone(key), local_learning_rate=0.1)
    noise = inputs["channel"].noise
    keys = record_noise.client_keys(key, jnp.arange(C))
    noisy = np.array(task.dataset.train["x"])
    for client in range(C):
        rows = np.asarray(task.client_data.indices)[client]
        rows = rows[rows >= 0]
        record_keys = record_noise.record_keys(keys[client], jnp.arange(rows.size), 0)
        own = record_noise.of_client(noise, client)
        noisy[rows] = record_noise.noisy(own, jnp.asarray(noisy[rows]), record_keys)
    assert np.abs(noisy - task.dataset.train["x"]).mean() > 0.05
    silent = (
        dataclasses.replace(task.dataset, train={**task.dataset.train, "x": noisy})
        if dataclasses.is_dataclass(task.dataset)
        else task.dataset._replace(train={**task.dataset.train, "x": noisy})
    )
    replay = SimpleNamespace(
        dataset=silent,
        client_data=data.ClientData(
            jax.tree.map(jnp.asarray, silent.train), task.client_data.indices
        ),
    )
    plain = schemes.get(name).non_private(config)
    algorithm = schemes.get(name).make(plain, loss, num_units=C, channel=None)
    state = algorithm.init({"w": jnp.zeros((D, 5))})
    state, _ = jax.jit(algorithm.round)(state, data.cohort(replay.client_data, jnp.arange(C)), key)
    np.testing.assert_allclose(got, state.params["w"], rtol=0, atol=1e-6)


@pytest.mark.slow(reason="plays rounds of one more kind of noise", but=["fresh"])
@pytest.mark.parametrize("mode", ["fresh", "once"])
def test_noise_is_new_in_each_round_only_where_it_is_fresh(mode, key):
    """One client, one record, one class more likely: with kept noise both rounds see the same noisy
    record.
    """
    task = a_task()
    seen = []
    for rounds in (1, 2):
        scheme = schemes.get("natural_channel")
        config = scheme.Config(noise_mode=mode, num_local_epochs=2, covariance_source="public")
        channel = scheme.inputs(config, task)["channel"]
        first_use = (rounds - 1) * config.num_local_epochs if mode == "fresh" else 0
        client_key = record_noise.client_keys(jax.random.clone(key), jnp.arange(C))[1]
        keys = record_noise.record_keys(client_key, jnp.arange(2), first_use)
        seen.append(np.asarray(record_noise.noisy(channel.noise, jnp.zeros((2, *SHAPE)), keys)))
    assert np.array_equal(*seen) == (mode == "once")
    if mode == "once":
        ends = [
            one_round(
                "natural_channel",
                task,
                jax.random.clone(key),
                rounds=2,
                noise_mode=kind,
                local_learning_rate=0.3,
            )[0]
            for kind in ("once", "fresh")
        ]
        assert not np.array_equal(*ends)


@pytest.mark.parametrize("name", SHAPED)
def test_nats_are_the_capacity_of_the_noise_that_is_drawn(name):
    """(1/2) ln det(I + S N^-1), S the public covariance, N the noise's own, both written out; m
    uses divide N by m.
    """
    task = a_task()
    scheme = schemes.get(name)
    config = scheme.Config(nats=3.0, labels_public=True, covariance_source="declared")
    inputs = scheme.inputs(config, task)
    noise = inputs["channel"].noise
    own = np.exp(float(noise.log_noise_var)) * (
        np.asarray(noise.weights) * np.eye(D)
        + (0 if noise.factor is None else noise.factor @ noise.factor.T)
    )
    cov = np.cov(task.dataset.test["x"].reshape(-1, D).T, bias=True)
    floor = {"white_channel": float(np.mean(noise.weights)), "personalized_channel": 1e-4}.get(
        name, 0.0
    )
    for rounds in (1, 7):
        nats = (
            0.5
            * np.linalg.slogdet(
                np.eye(D) + rounds * (cov + floor * np.eye(D)) @ np.linalg.inv(own)
            )[1]
        )
        spent = scheme.spent(config, task, inputs, rounds)
        np.testing.assert_allclose(spent.nats, nats, rtol=1e-4)
        np.testing.assert_array_equal(spent.uses, rounds)
        np.testing.assert_allclose(spent.linear_nats, 3.0 * rounds, rtol=1e-5)
        assert spent.certified and spent.covariance_source == "declared"
    assert scheme.spent(config, task, inputs, 0).nats.max() == 0
    # The same numbers without the declaration: a sample's covariance proves nothing about the
    # clients' law.
    config = scheme.Config(nats=3.0, labels_public=True, covariance_source="public")
    spent = scheme.spent(config, task, scheme.inputs(config, task), 1)
    assert not spent.certified and not spent.mse_certified and "400" in spent.reason


@pytest.mark.parametrize("name", SHAPED)
def test_where_the_law_is_known_the_claim_is_the_mutual_information_itself(name):
    """Gaussian fields: (1/2) ln det(I + S N^-1) with the true S is exact, and no sample of the law
    enters.
    """
    known = data.fields.make(np.random.default_rng(3), num_train=60, num_test=50, side=4)
    table = np.arange(C * N).reshape(C, N)
    task = SimpleNamespace(
        dataset=known,
        client_data=data.ClientData(jax.tree.map(jnp.asarray, known.train), jnp.asarray(table)),
    )
    scheme = schemes.get(name)
    config = scheme.Config(
        nats=4.0, labels_public=True, data_model="gaussian", covariance_source="public"
    )
    inputs = scheme.inputs(config, task)
    noise = inputs["channel"].noise
    own = np.exp(float(noise.log_noise_var)) * (
        np.asarray(noise.weights) * np.eye(D)
        + (0 if noise.factor is None else noise.factor @ noise.factor.T)
    )
    basis = data.fields.basis(4)
    true = (basis.T * data.fields.spectrum(4)) @ basis
    for rounds in (1, 13):
        spent = scheme.spent(config, task, inputs, rounds)
        exact = 0.5 * np.linalg.slogdet(np.eye(D) + rounds * true @ np.linalg.inv(own))[1]
        assert spent.certified and spent.mse_certified
        # A floor under the covariance costs a little more nats than there are; float32 noise a
        # rounding.
        assert exact * (1 - 1e-5) <= spent.nats[0] <= exact * 1.05
        bound = np.asarray(
            information.distortion_rate(
                information.Leakage(
                    nats=exact,
                    dimension=D,
                    mode="joint",
                    certified=True,
                    reason="",
                    covariance_source="public",
                ),
                data.fields.spectrum(4),
                data_model="gaussian",
            ).mse
        )
        assert spent.mse[0] <= bound * (1 + 1e-5)


def test_range_certified_nats_hold_for_the_worst_data_in_the_range():
    task = a_task()
    scheme = schemes.get("natural_channel")
    config = scheme.Config(nats=3.0)
    inputs = scheme.inputs(config, task)
    low, high = inputs["channel"].value_range
    noise = inputs["channel"].noise
    assert noise.value_range == (low, high)
    # Independent coordinates at the two ends: the most variance that the range allows.
    worst = (high - low) ** 2 / 4
    assert 0.5 * D * np.log1p(worst / np.exp(float(noise.log_noise_var))) == pytest.approx(
        3.0, rel=1e-5
    )


@pytest.mark.slow(reason="compiles rounds of each channel", ids=["natural_channel"])
@pytest.mark.parametrize("name", ["natural_channel", "white_channel"])
def test_a_covariance_of_the_clients_own_certifies_nothing(name, key):
    task = a_task()
    scheme = schemes.get(name)
    config = scheme.Config(nats=3.0, covariance_source="private")
    inputs = scheme.inputs(config, task)
    assert inputs["channel"].noise.log_noise_var.shape == (C,)
    spent = scheme.spent(config, task, inputs, 2)
    assert not spent.certified and not spent.mse_certified and spent.covariance_source == "private"
    params, info, _, _ = one_round(name, task, key, covariance_source="private")
    assert np.isfinite(params).all() and int(info.cohort_size) == C


def test_labels_cost_their_entropy_once_unless_public():
    task = a_task()
    scheme = schemes.get("natural_channel")
    given = {public: scheme.Config(labels_public=public) for public in (True, False)}
    inputs = scheme.inputs(given[True], task)
    found = {public: scheme.spent(config, task, inputs, 5).nats for public, config in given.items()}
    np.testing.assert_allclose(found[False] - found[True], math.log(5), rtol=1e-9)


def test_kept_noise_spends_its_nats_once_however_long_the_run():
    task = a_task()
    scheme = schemes.get("white_channel")
    config = scheme.Config(noise_mode="once", nats=4.0, labels_public=True)
    inputs = scheme.inputs(config, task)
    np.testing.assert_allclose(scheme.spent(config, task, inputs, 1000).nats, 4.0, rtol=1e-5)


@pytest.mark.slow(
    reason="compiles rounds of each channel", ids=["white_channel", "personalized_channel"]
)
@pytest.mark.parametrize("name", SHAPED)
def test_no_linear_reconstruction_from_the_noisy_records_beats_the_certified_error(name, key):
    """Gaussian records: the best estimator of a record from m noisy copies is linear. Its measured
    error is its own closed form within 1 %, which is never below the certified bound; estimators
    that are worse stay above too.
    """
    uses, count = 5, 20_000
    task = a_task()
    scheme = schemes.get(name)
    config = scheme.Config(
        nats=6.0,
        data_model="gaussian",
        labels_public=True,
        num_local_epochs=uses,
        covariance_source="declared",
    )
    inputs = scheme.inputs(config, task)
    noise = inputs["channel"].noise._replace(value_range=None)
    cov = np.cov(task.dataset.test["x"].reshape(-1, D).T, bias=True)
    rng = np.random.default_rng(5)
    x = rng.multivariate_normal(np.zeros(D), cov, size=count).astype(np.float32)
    client_key = record_noise.client_keys(key, jnp.arange(1))[0]
    copies = [
        np.asarray(
            record_noise.noisy(
                noise,
                jnp.asarray(x).reshape(-1, *SHAPE),
                record_noise.record_keys(client_key, jnp.arange(count), use),
            )
        ).reshape(count, D)
        for use in range(uses)
    ]
    mean = np.mean(copies, axis=0)
    own = np.exp(float(noise.log_noise_var)) * (
        np.asarray(noise.weights) * np.eye(D)
        + (0 if noise.factor is None else noise.factor @ noise.factor.T)
    )
    gain = cov @ np.linalg.inv(cov + own / uses)
    errors = ((mean @ gain.T - x) ** 2).mean(axis=1)
    exact = np.trace(cov - gain @ cov) / D
    # Mean of `count` errors: five standard errors, well under the 1 % asked for.
    spread = 5 * errors.std() / math.sqrt(count)
    assert spread < 0.03 * exact and abs(errors.mean() - exact) < max(spread, 0.01 * exact)
    bound = scheme.spent(config, task, inputs, 1)
    assert bound.mse_certified
    for attack in (
        mean @ gain.T,
        mean,
        0.9 * mean,
        copies[0],
        np.zeros_like(x),
        np.clip(mean, -2, 2),
    ):
        assert ((attack - x) ** 2).mean() >= bound.mse[0] * (
            1 - 5 * errors.std() / errors.mean() / math.sqrt(count)
        )
    # The control: a hundred times less noise than accounted for breaks it.
    assert ((x + 0.01 * (mean - x) - x) ** 2).mean() < bound.mse[0]


def test_an_entropy_that_is_vouched_for_certifies_theorem_1():
    """Uniform records on [0, 1]^d have entropy 0: exp(-2 I / d) / (2 pi e)."""
    task = a_task()
    scheme = schemes.get("natural_channel")
    config = scheme.Config(entropy_nats=0.0, labels_public=True)
    spent = scheme.spent(config, task, scheme.inputs(config, task), 3)
    assert spent.mse_certified
    np.testing.assert_allclose(
        spent.mse, np.exp(-2 * spent.nats / D) / (2 * math.pi * math.e), rtol=1e-9
    )


def test_an_empty_client_tells_nothing_and_sends_nothing(key):
    task = a_task()
    table = np.array(task.client_data.indices)
    table[1] = -1
    task.client_data = task.client_data._replace(indices=jnp.asarray(table))
    scheme = schemes.get("natural_channel")
    config = scheme.Config()
    inputs = scheme.inputs(config, task)
    spent = scheme.spent(config, task, inputs, 4)
    assert spent.nats[1] == 0 and spent.uses[1] == 0 and spent.nats[0] > 0
    params, _, _, _ = one_round("natural_channel", task, key)
    assert np.isfinite(params).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "settings",
    [
        {"nats": 0.0},
        {"nats": math.nan},
        {"noise_mode": "twice"},
        {"data_model": "laplace"},
        {"num_local_epochs": 0},
        {"entropy_nats": math.inf},
    ],
    ids=str,
)
def test_bad_numbers_are_refused(name, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        schemes.get(name).Config(**settings)


def test_what_cannot_be_promised_is_refused():
    task = a_task()
    scheme = schemes.get("natural_channel")
    with pytest.raises(ValueError, match="channel=None"):
        scheme.make(scheme.Config(), loss, num_units=C, channel=None)
    with pytest.raises(ValueError, match=r"noise_multiplier=1\.0"):
        scheme.make(scheme.Config(noise_multiplier=1.0), loss, num_units=C, channel=None)
    flat = a_task(spread=0.0)
    with pytest.raises(ValueError, match="all zero"):
        scheme.inputs(scheme.Config(covariance_source="public"), flat)
    lonely = a_task()
    lonely.client_data = lonely.client_data._replace(
        indices=lonely.client_data.indices.at[1, 1:].set(-1)
    )
    with pytest.raises(ValueError, match="client 1 with 1"):
        scheme.inputs(scheme.Config(covariance_source="private"), lonely)
    with pytest.raises(ValueError, match="float32 can hold"):
        scheme.inputs(scheme.Config(nats=1e4), task)
    ints = SimpleNamespace(
        dataset=task.dataset._replace(test={"x": np.zeros((4, 3), np.int32)}),
        client_data=task.client_data,
    )
    with pytest.raises(ValueError, match="int32"):
        scheme.inputs(scheme.Config(), ints)


def test_dp_sgd_counts_half_an_inverse_square_of_its_noise_for_each_expected_use():
    task = a_task()
    for name in ("dp_sgd", "dp_psac"):
        scheme = schemes.get(name)
        config = scheme.Config(
            noise_multiplier=2.0, item_sampling_prob=0.25, num_local_steps=4, num_parties=C
        )
        spent = scheme.spent(config, task, {}, 10)
        np.testing.assert_allclose(spent.nats, 10 * 4 * 0.25 / (2 * 2.0**2), rtol=1e-12)
        assert spent.certified and scheme.event(config).privacy_unit == "example"
        assert scheme.spent(scheme.non_private(config), task, {}, 10) is None


def test_psac_scales_every_gradient_to_nearly_the_bound(key):
    """Against the formula in float64 on materialised gradients; the plain clip gives another
    sum.
    """
    from fljax.local import subject

    params = {"w": jax.random.normal(key, (D, 5))}
    task = a_task()
    rows = jnp.arange(N)
    query = subject.item_sum(
        loss, item_sampling_prob=1.0, l2_clip_norm=0.3, batch_size=4, clipping_style="psac"
    )
    examples = task.client_data.examples
    found = jax.jit(query)(params, examples, rows, jax.random.key(1)).grad_sum["w"]
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[:N], examples)
    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))
    grads = np.asarray(each(params, batch)["w"], np.float64)
    norms = np.sqrt((grads**2).sum(axis=(1, 2)))
    factors = 0.3 / (norms + 0.1 / (norms + 0.1))
    np.testing.assert_allclose(found, np.einsum("i,iab->ab", factors, grads), rtol=0, atol=1e-5)
    assert np.all(factors * norms < 0.3)


def test_schemes_with_information_are_the_ones_that_say_so():
    counted = {name for name in schemes.NAMES if schemes.get(name).spent is not None}
    assert counted == {*NAMES, "parameter_channel", "dp_sgd", "dp_psac"}


def embedded(**settings):
    """(Public covariance, directions, inputs, config) of an embedding channel."""
    task, scheme = a_task(), schemes.get("embedding_channel")
    config = scheme.Config(labels_public=True, covariance_source="declared", **settings)
    inputs = scheme.inputs(config, task)
    cov = np.cov(task.dataset.test["x"].reshape(-1, D).T, bias=True)
    return cov, np.asarray(inputs["channel"].noise.factor, np.float64), inputs, config


@pytest.mark.parametrize(("kept", "count"), [(0.25, 4), (1.0, D), (0.01, 1)])
def test_an_embedding_tells_the_capacity_of_what_it_keeps(kept, count):
    """(1/2) ln det(I + P^T S P / v): the same as a natural channel's where all is kept."""
    cov, directions, inputs, config = embedded(nats=3.0, kept=kept)
    assert directions.shape == (D, count)
    np.testing.assert_allclose(directions.T @ directions, np.eye(count), atol=1e-6)
    var = np.exp(float(inputs["channel"].noise.log_noise_var))
    scheme = schemes.get("embedding_channel")
    for rounds in (1, 7):
        told = np.eye(count) + rounds * directions.T @ cov @ directions / var
        spent = scheme.spent(config, a_task(), inputs, rounds)
        np.testing.assert_allclose(spent.nats, 0.5 * np.linalg.slogdet(told)[1], rtol=1e-4)
    if kept == 1.0:
        natural = schemes.get("natural_channel")
        config = natural.Config(nats=3.0, labels_public=True, covariance_source="declared")
        assert var == pytest.approx(
            float(natural.inputs(config, a_task())["channel"].capacity.noise_var)
        )


def test_what_an_embedding_leaves_out_changes_nothing_that_is_sent(key):
    _, directions, inputs, _ = embedded(nats=3.0)
    noise = inputs["channel"].noise
    x = jnp.asarray(a_task().dataset.train["x"][:N])
    rest = np.linalg.svd(directions, full_matrices=True)[0][:, directions.shape[1] :]
    away = jnp.asarray((rest @ np.ones(rest.shape[1])).reshape(SHAPE), jnp.float32)
    keys = record_noise.record_keys(key, jnp.arange(N), 0)
    sent, other = (record_noise.noisy(noise, records, keys) for records in (x, x + 3 * away[None]))
    np.testing.assert_allclose(sent, other, atol=1e-5)
    seen = np.asarray(sent, np.float64).reshape(N, -1) - np.asarray(noise.centre)
    np.testing.assert_allclose(seen @ rest, 0, atol=1e-5)
    clean = record_noise.noisy(noise._replace(log_noise_var=jnp.float32(-jnp.inf)), x, keys)
    assert float(jnp.abs(sent - clean).max()) > 0.1
