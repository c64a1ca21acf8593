"""Losses that draw and optimizers of clients, in every scheme whose rounds take them."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax
from fljax import data, models, schemes
from fljax.local import keyed, sgd, silo, subject
from fljax.schemes import Performance
from fljax.simulation.devices import mesh

C, N, D = 5, 4, 6
NETWORKS = ("bidirectional", "mp_cdp", "mp_dp_naive")
SEVERAL = ["dp_fedavg", "dp_fedsgd", "higradavg", "local_dp", "gsgd_dp", "user_ldp"]
STEPPING = [
    "dp_fedavg",
    "natural_channel",
    "lightdp",
    "local_dp",
    "secagg_dp",
    "higradavg",
    "user_ldp",
    "fedavg",
]


def apply(params, x):
    return x @ params["w"]


def plain(params, example):
    return models.softmax_cross_entropy(apply)(params, example)


def ignores_its_key(params, example, key):
    del key
    return plain(params, example)


def dropout(params, example, key):
    kept = jax.random.bernoulli(key, 0.5, (D,)).astype(jnp.float32)
    return plain(params, example | {"x": 2.0 * kept * example["x"]})


def a_cohort():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(C * N, D)).astype(np.float32)
    labels, ids = (
        rng.integers(0, 3, C * N).astype(np.int32),
        (np.arange(C * N) // 2).astype(np.int32),
    )
    examples = {"x": jnp.asarray(x), "y": jnp.asarray(labels), "subject": jnp.asarray(ids)}
    table = np.arange(C * N).reshape(C, N)
    table[1, 2:], table[3, 1:] = -1, -1
    return data.cohort(data.ClientData(examples, jnp.asarray(table)), jnp.arange(C))


@functools.cache
def algorithm(name, loss, groups=None, chunk_size=None, local_optimizer=None, **changes):
    scheme, fields = schemes.get(name), schemes.get(name).Config.__dataclass_fields__
    sizes = {
        "num_parties": C,
        "max_colluders": 1,
        "max_stragglers": 1,
        "records_per_client": N,
    }
    sizes |= {
        "local_batch_size": 2,
        "num_local_epochs": 2,
        "batch_size": 2,
        "nats": math.inf,
        "sampling_prob": 1.0,
    }
    sizes |= {
        "noise_multiplier": 0.0 if name == "fedavg" or "nats" in fields else 1.0,
        "item_sampling_prob": 0.7,
    }
    config = scheme.Config(
        **{field: value for field, value in (sizes | changes).items() if field in fields}
    )
    options = {"channel": None} if "channel" in inspect.signature(scheme.make).parameters else {}
    options |= {} if local_optimizer is None else {"local_optimizer": local_optimizer}
    performance = Performance(groups=groups, chunk_size=chunk_size, microbatch_size=3)
    return scheme.make(config, loss, num_units=C, performance=performance, **options)


def two_rounds(name, loss, key, **options):
    made = algorithm(name, loss, **options)
    state, run = made.init({"w": jnp.zeros((D, 3))}), jax.jit(made.round)
    for _ in range(2):
        state, _ = run(state, a_cohort(), key)
    return np.asarray(state.params["w"])


@pytest.mark.release(
    reason="one more scheme", but=["dp_fedsgd", "gsgd_dp", "higradavg", "user_ldp"]
)
@pytest.mark.slow(reason="compiles two rounds of one more scheme", but=["dp_fedavg"])
@pytest.mark.parametrize("name", sorted({*SEVERAL, *STEPPING}))
def test_a_loss_that_ignores_its_key_trains_as_one_without(name, key):
    with jax.debug_key_reuse(False):  # the run's key is the same in every round
        bits = two_rounds(name, plain, key)
        assert two_rounds(name, ignores_its_key, key).tobytes() == bits.tobytes()
    assert np.abs(bits).max() > 1e-3


@pytest.mark.release(reason="one more scheme", but=["dp_fedavg", "local_dp"])
@pytest.mark.slow(reason="compiles four rounds of a scheme")
@pytest.mark.parametrize("name", SEVERAL)
def test_what_a_loss_draws_is_the_same_on_any_devices_and_in_any_chunks(name, key):
    """Against sums in one order; without dropout the model would be another one."""
    with jax.debug_key_reuse(False):
        one = two_rounds(name, dropout, key, groups=4, chunk_size=1)
        for devices, chunk_size in ((1, 3), (4, 1)):
            with mesh.over(mesh.client_mesh(devices, groups=4)):
                other = two_rounds(name, dropout, key, groups=4, chunk_size=chunk_size)
            np.testing.assert_allclose(other, one, rtol=0, atol=2e-6)
        assert np.abs(two_rounds(name, plain, key, groups=4, chunk_size=1) - one).max() > 1e-3


def uniforms(name, ids, state, key, rows=None):
    """Of each record the number that the loss drew: the gradient of record i is that times its own
    unit vector.
    """
    made = algorithm(
        name,
        lambda params, example, key: jax.random.uniform(key) * jnp.vdot(params["w"], example["x"]),
        privacy_unit="example",
        noise_multiplier=0.0,
        l2_clip_norm=10.0,
        server_learning_rate=1.0,
        server_momentum=0.0,
    )
    order = np.arange(C * N) if rows is None else rows
    pool = {"x": jnp.eye(C * N)[np.argsort(order)]}
    cohort = data.cohort(data.ClientData(pool, jnp.asarray(order.reshape(C, N))), jnp.asarray(ids))
    state = made.init({"w": jnp.zeros(C * N)})._replace(round=jnp.int32(state))
    return -np.asarray(jax.jit(made.round)(state, cohort, key)[0].params["w"]) * C


def test_every_client_round_and_example_has_a_draw_of_its_own(key):
    with jax.debug_key_reuse(False):
        found = np.stack([uniforms("dp_fedsgd", range(C), r, key) for r in range(2)])
        assert ((found > 0) & (found < 1)).all() and np.unique(found).size == 2 * C * N
        alone = uniforms("dp_fedsgd", (3, -1, -1, -1, -1), 1, key)
        shuffled = uniforms(
            "dp_fedsgd", range(C), 1, key, np.random.default_rng(1).permutation(C * N)
        )
    np.testing.assert_allclose(alone, np.where(np.arange(C * N) // N == 3, found[1], 0), atol=1e-6)
    # Rows of the pool lie elsewhere, as where a cohort is read from disk; places are the same.
    np.testing.assert_allclose(shuffled, found[1], atol=1e-6)


def test_a_record_moves_a_clipped_sum_by_no_more_than_the_bound_whatever_its_loss_draws(key):
    cohort, bound = a_cohort(), 0.3
    query = subject.item_sum(dropout, item_sampling_prob=1.0, l2_clip_norm=bound, batch_size=3)
    rows = jnp.arange(N, dtype=jnp.int32)
    run = jax.jit(lambda rows: query({"w": jnp.ones((D, 3))}, cohort.examples, rows, key).grad_sum)
    with jax.debug_key_reuse(False):
        gaps = [jnp.linalg.norm(run(rows)["w"] - run(rows.at[i].set(-1))["w"]) for i in range(N)]
    assert max(gaps) <= bound * (1 + 1e-5)
    assert max(gaps) > 0.9 * bound  # the control: a bound a tenth smaller would be broken


def test_a_third_parameter_of_another_name_is_refused(key):
    for loss in (lambda params, x, y: 0.0, lambda params, example, rng: 0.0):
        assert not keyed.draws(loss)
        with pytest.raises(ValueError, match="Expected loss"):
            algorithm.__wrapped__("dp_fedavg", loss)
    with pytest.raises(ValueError, match=r"Expected loss to be models\.squared_error"):
        algorithm.__wrapped__("mp_cdp", dropout)


def quadratic(params, example):
    return 0.5 * jnp.sum(jnp.square(params["w"] - example["x"]))


def heavy_ball(start, target, steps, rate, decay):
    """Float64 NumPy: momentum on the gradient w - target."""
    w, trace = np.asarray(start, np.float64), 0.0
    for _ in range(steps):
        trace = (w - target) + decay * trace
        w = w - rate * trace
    return w


def adam(start, target, steps, rate):
    w, m, v = np.asarray(start, np.float64), 0.0, 0.0
    for t in range(1, steps + 1):
        g = w - target
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


STEPS = 6
EXPECTED = {
    "momentum": (optax.sgd(0.1, momentum=0.9), lambda s, t: heavy_ball(s, t, STEPS, 0.1, 0.9)),
    "adam": (optax.adam(0.1), lambda s, t: adam(s, t, STEPS, 0.1)),
    "schedule": (
        optax.sgd(lambda count: 0.1 / (1 + count)),
        lambda s, t: t + (s - t) * np.prod([1 - 0.1 / (1 + k) for k in range(STEPS)]),
    ),
    "decay": (
        optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1)),
        lambda s, t: t / 1.5 + (s - t / 1.5) * (1 - 0.15) ** STEPS,
    ),
}


@pytest.mark.slow(reason="compiles one more optimizer", but=["momentum"])
@pytest.mark.parametrize("which", EXPECTED)
def test_a_client_takes_the_steps_of_its_optimizer(which, key):
    with jax.numpy_dtype_promotion("standard"):  # optax counts its steps in integers
        takes_the_steps(which, key)


def takes_the_steps(which, key):
    optimizer, expected = EXPECTED[which]
    rng = np.random.default_rng(2)
    start, x = rng.normal(size=3), rng.normal(size=(4, 3))
    params, pool = {"w": jnp.asarray(start, jnp.float32)}, {"x": jnp.asarray(x, jnp.float32)}
    train = sgd.local_sgd(
        quadratic, learning_rate=1.0, batch_size=4, num_epochs=STEPS, optimizer=optimizer
    )
    update = jax.jit(train)(params, pool, jnp.arange(4)[None], key[None]).update["w"][0]
    np.testing.assert_allclose(
        start - update, expected(start, x.mean(axis=0)), rtol=1e-5, atol=1e-5
    )
    query = subject.item_sum(quadratic, item_sampling_prob=1.0, l2_clip_norm=1e6, batch_size=4)
    steps = silo.noisy_steps(
        query, num_steps=STEPS, learning_rate=1.0, stddev=0.0, divisor=4.0, optimizer=optimizer
    )
    pool |= {"subject": jnp.arange(4, dtype=jnp.int32)}
    keys = jax.random.split(jax.random.clone(key))
    update = jax.jit(steps)(params, pool, jnp.arange(4), *keys, jnp.float32(1)).update["w"]
    np.testing.assert_allclose(
        start - update, expected(start, x.mean(axis=0)), rtol=1e-5, atol=1e-5
    )


def test_a_client_that_is_done_stands_still_whatever_its_optimizer_would_do(key):
    """Momentum and decay would go on in steps that other clients of the chunk still take."""
    optimizer = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1, momentum=0.9))
    train = jax.jit(
        sgd.local_sgd(quadratic, learning_rate=1.0, batch_size=1, num_epochs=2, optimizer=optimizer)
    )
    pool = {"x": jnp.arange(12.0).reshape(4, 3)}
    indices, keys = jnp.asarray([[0, -1, -1], [1, 2, 3]]), jax.random.split(key)
    params = {"w": jnp.ones(3)}
    together = train(params, pool, indices, keys).update["w"]
    alone = train(
        params, pool, jnp.asarray([[0, -1, -1], [0, -1, -1]]), jax.random.clone(keys)
    ).update["w"]
    np.testing.assert_array_equal(together[0], alone[0])


@pytest.mark.release(reason="one more scheme", but=["lightdp", "local_dp", "fedavg"])
@pytest.mark.slow(reason="compiles three rounds of one more scheme", but=["dp_fedavg"])
@pytest.mark.parametrize("name", STEPPING)
def test_every_scheme_with_local_steps_takes_an_optimizer_and_claims_the_same(name, key):
    with jax.debug_key_reuse(False), jax.numpy_dtype_promotion("standard"):
        by_sgd = two_rounds(name, plain, key)
        same = two_rounds(name, plain, key, local_optimizer=_sgd(name))
        by_adam = two_rounds(name, plain, key, local_optimizer=ADAM)
    np.testing.assert_allclose(same, by_sgd, rtol=0, atol=1e-5)
    assert np.abs(by_adam - by_sgd).max() > 1e-3


ADAM = optax.adam(0.05)


@functools.cache
def _sgd(name):
    return optax.sgd(schemes.get(name).Config().local_learning_rate)


def test_an_update_is_clipped_however_far_the_optimizer_goes(key):
    made = algorithm(
        "dp_fedavg",
        plain,
        local_optimizer=optax.sgd(1e6),
        noise_multiplier=0.0,
        l2_clip_norm=0.3,
        server_learning_rate=1.0,
        server_momentum=0.0,
    )
    start = {"w": jnp.zeros((D, 3))}

    def released(examples):
        cohort = a_cohort()
        keep = jnp.asarray(examples["here"])
        cohort = cohort._replace(client_ids=jnp.where(keep, cohort.client_ids, -1))
        return jax.jit(made.round)(made.init(start), cohort, key)[0].params["w"] * C

    with jax.debug_key_reuse(False):
        everybody = np.ones(C, bool)
        gaps = []
        for client in range(C):
            rest = everybody.copy()
            rest[client] = False
            gaps.append(np.linalg.norm(released({"here": everybody}) - released({"here": rest})))
    assert max(gaps) <= 0.3 * (1 + 1e-5)
    assert max(gaps) > 0.29


@pytest.mark.parametrize("name", ["dp_fedsgd", "gd_dp", "mp_cdp"])
def test_an_optimizer_for_clients_without_steps_is_refused(name):
    loss = models.squared_error(apply) if name in NETWORKS else plain
    with pytest.raises(ValueError, match="Expected local_optimizer=None"):
        algorithm.__wrapped__(name, loss, local_optimizer=ADAM)


def test_the_record_is_reached_by_one_import():
    assert fljax.schemes.Performance is Performance
    with pytest.raises(ValueError, match="Expected microbatch_size"):
        Performance(microbatch_size=0)


@pytest.mark.slow(reason="a whole run")
def test_the_host_loop_takes_a_loss_that_draws_and_measures_it_by_one_draw(tmp_path):
    cohort = a_cohort()
    examples = {name: np.asarray(cohort.examples[name]) for name in ("x", "y")}
    found = fljax.simulate(
        "dp_fedavg",
        data=examples,
        test_data=examples,
        clients=np.asarray(cohort.indices),
        model=({"w": np.zeros((D, 3), np.float32)}, apply),
        loss=dropout,
        run_dir=tmp_path / "run",
        num_rounds=1,
        noise_multiplier=1.0,
        target_epsilon=None,
        seed=3,
    )
    settled = keyed.settled(dropout)
    mean = np.mean(
        [
            settled(found.params, {"x": x, "y": y})
            for x, y in zip(examples["x"], examples["y"], strict=True)
        ]
    )
    assert found.loss == pytest.approx(mean, rel=1e-5)
    assert np.abs(np.asarray(found.params["w"])).max() > 1e-3
