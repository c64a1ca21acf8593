"""Clients that noise integers: what moves, what is drawn, what wraps around."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import accounting, data, errors, models, schemes
from fljax.accounting import events
from fljax.attacks import rounds
from fljax.upload import integer_grid, secure_sum
from fljax.upload.secure_sum import signing

NAMES = ("distributed_dgauss", "skellam")
NUM, DIM, NORM = 6, 20, 512
SMALL = {
    "num_parties": NUM,
    "max_colluders": 1,
    "straggler_law": "fixed",
    "max_stragglers": 0,
    "l2_clip_norm": 0.5,
    "local_learning_rate": 0.1,
    "num_local_epochs": 1,
    "server_learning_rate": 1.0,
    "grid_norm": NORM,
}


def config(name, **changes):
    return schemes.get(name).Config(**{**SMALL, "noise_multiplier": 0.0, **changes})


def linear_loss(params, example):
    return jnp.vdot(params["w"], example["x"])


@functools.cache
def clients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, DIM)) * rng.lognormal(0, 2, (12, 1))
    return data.ClientData(
        {"x": jnp.asarray(x, jnp.float32)}, jnp.arange(12, dtype=jnp.int32).reshape(NUM, 2)
    )


@functools.cache
def jitted(name, changes):
    algorithm = schemes.get(name).make(config(name, **dict(changes)), linear_loss, num_units=NUM)
    return algorithm.init, jax.jit(algorithm.round)


def run_round(name, key, ids=range(NUM), scale=1.0, **changes):
    init, round_fun = jitted(name, tuple(sorted(changes.items())))
    cohort = data.cohort(clients(), jnp.asarray(list(ids), jnp.int32))
    cohort = cohort._replace(examples={"x": scale * cohort.examples["x"]})
    state, info = round_fun(init({"w": jnp.zeros(DIM)}), cohort, jax.random.clone(key))
    return np.asarray(state.params["w"], np.float64), info


def grid(**changes):
    given = {"l2_clip_norm": 0.5, "most_norm": NORM, "num_clients": NUM, "most_noise": 0}
    return integer_grid.plan(DIM, **given | changes)


@pytest.mark.parametrize(
    ("field", "value"),
    [("bits", 0), ("bits", 33), ("bits", 2.5), ("l2_clip_norm", 1e-40), ("l2_clip_norm", 1e40)],
)
def test_a_grid_that_would_send_nothing_is_refused(field, value):
    with pytest.raises(ValueError, match=f"Expected {field} .*got {field}="):
        grid(**{field: value})


def mean_of_clipped(ids=range(NUM)):
    x = np.asarray(clients().examples["x"], np.float64).reshape(NUM, 2, DIM).mean(axis=1) * 0.1
    clipped = x * np.minimum(1, 0.5 / np.linalg.norm(x, axis=1, keepdims=True))
    return -clipped[list(ids)].mean(axis=0)


@pytest.mark.slow(reason="compiles one more round", but=["False"])
@pytest.mark.parametrize("narrow", [False, True])
def test_without_noise_a_round_is_the_mean_of_clipped_updates_but_for_rounding(narrow, key):
    # One bit less than what no sum can pass: updates are rotated, and these sums still fit.
    bits = grid().bits - 1 if narrow else None
    plan = grid(bits=bits)
    assert (plan.rotated, plan.size) == ((True, 32) if narrow else (False, DIM))
    got, info = run_round("distributed_dgauss", key, bits=bits)
    # Each client's rounding is off by less than one step in each place.
    most = math.sqrt(plan.size) / plan.scale
    assert np.linalg.norm(got - mean_of_clipped()) <= most
    assert np.linalg.norm(mean_of_clipped()) > 5 * most
    assert int(info.cohort_size) == NUM and not bool(info.lost)


@pytest.mark.slow(reason="compiles the round of one more scheme", but=["distributed_dgauss"])
@pytest.mark.parametrize("name", NAMES)
def test_the_noise_of_a_round_is_that_of_all_clients(name, key):
    multiplier = 2.0
    noise = np.concatenate(
        [
            run_round(name, jax.random.fold_in(key, i), scale=0.0, noise_multiplier=multiplier)[0]
            for i in range(60)
        ]
    )
    # N shares of which N - 1 hide a client: one may collude. REPLACE_ONE moves by 2 NORM steps.
    stddev = multiplier * 2 * NORM / grid().scale * math.sqrt(NUM / (NUM - 1)) / NUM
    assert abs(noise.std() / stddev - 1) <= 5 / math.sqrt(2 * noise.size)
    assert abs(noise.mean()) <= 5 * stddev / math.sqrt(noise.size)


def test_an_event_counts_the_noise_of_honest_clients_alone():
    both = {"noise_multiplier": 1.5, "max_colluders": 2, "max_stragglers": 1}
    sum_of = schemes.get("distributed_dgauss").event(config("distributed_dgauss", **both))
    local = 1.5 * 2 * NORM / math.sqrt(3)
    assert sum_of.mechanism == events.DiscreteGaussianSum(local, 3, 2.0 * NORM, 2.0 * NORM**2)
    skellam = schemes.get("skellam").event(config("skellam", **both)).mechanism
    assert skellam.variance == pytest.approx((1.5 * 2 * NORM) ** 2, rel=1e-12)
    special = config("skellam", **both, neighboring_relation="REPLACE_SPECIAL")
    assert schemes.get("skellam").event(special).mechanism.l2_sensitivity == NORM
    # It costs what the Gaussian of this noise multiplier does, but for 1 %.
    gaussian = accounting.PrivacyEvent(
        mechanism=events.Gaussian(1.5), privacy_unit="client", neighboring_relation="REPLACE_ONE"
    )
    for event in (sum_of, schemes.get("skellam").event(config("skellam", **both))):
        found = accounting.epsilon(event.repeat(10), delta=1e-5)
        assert found == pytest.approx(accounting.epsilon(gaussian.repeat(10), delta=1e-5), rel=0.01)


@pytest.mark.slow(reason="compiles the round of one more relation", but=["REPLACE_SPECIAL"])
@pytest.mark.parametrize("relation", ["REPLACE_ONE", "REPLACE_SPECIAL"])
def test_a_replay_moves_the_integers_by_no_more_than_the_event_says(relation, key):
    made = config("distributed_dgauss", neighboring_relation=relation)
    plan = grid()
    scheme = schemes.get("distributed_dgauss")
    algorithm = scheme.make(made, linear_loss, num_units=NUM)
    x = np.asarray(clients().examples["x"]).reshape(NUM, 2, DIM) * 100

    def sum_in_steps(rows, mask):
        """What a round releases, in steps of the grid, by the same keys."""
        rows = jnp.where(mask[:, None, None], rows, 0.0)  # a null client's update is zero
        pool = {"x": rows.reshape(-1, DIM)}
        cohort = data.cohort(data.ClientData(pool, clients().indices), jnp.arange(NUM))
        state = algorithm.init({"w": jnp.zeros(DIM)})
        with jax.debug_key_reuse(False):
            return algorithm.round(state, cohort, key)[0].params["w"] * NUM * plan.scale

    change = {"replacements": -x} if relation == "REPLACE_ONE" else {}
    declared = 2.0 * NORM if relation == "REPLACE_ONE" else float(NORM)
    found = fljax.check_sensitivity(
        sum_in_steps, x, sensitivity=declared, neighboring_relation=relation, **change
    )
    assert 0.98 * declared <= found.measured
    with pytest.raises(errors.SensitivityError):
        fljax.check_sensitivity(
            sum_in_steps, x, sensitivity=0.9 * declared, neighboring_relation=relation, **change
        )


def test_an_update_that_is_not_finite_adds_noise_alone(key):
    pool = np.array(clients().examples["x"])
    pool[0] = np.nan
    init, round_fun = jitted("distributed_dgauss", ())
    cohort = data.cohort(clients(), jnp.arange(NUM))._replace(examples={"x": jnp.asarray(pool)})
    state, _ = round_fun(init({"w": jnp.zeros(DIM)}), cohort, key)
    expected = mean_of_clipped(range(1, NUM)) * (NUM - 1) / NUM
    assert np.linalg.norm(state.params["w"] - expected) <= math.sqrt(32) / grid().scale


@pytest.mark.slow(reason="compiles one more round")
def test_too_few_responders_leave_the_model(key):
    got, info = run_round("skellam", key, ids=[0, 1, 2, -1, -1, -1], noise_multiplier=1.0)
    assert bool(info.lost) and not got.any()


def test_by_default_no_sum_can_wrap_around_and_one_bit_less_could(key):
    noise = integer_grid.most_noise("discrete_gaussian", 40.0)
    plan = grid(most_noise=noise)
    worst = NUM * (NORM + noise)
    assert 2 ** (plan.bits - 2) <= worst < 2 ** (plan.bits - 1)


@pytest.mark.slow(reason="compiles one more round")
def test_fewer_bits_spoil_the_model_and_no_guarantee(key):
    made = config("distributed_dgauss", noise_multiplier=1.0)
    small = dataclasses.replace(made, bits=6)
    scheme = schemes.get("distributed_dgauss")
    assert scheme.event(small) == scheme.event(made)
    got, _ = run_round("distributed_dgauss", key, noise_multiplier=0.0, bits=6)
    assert np.linalg.norm(got - mean_of_clipped()) > 5 * math.sqrt(32) / grid().scale


@pytest.mark.parametrize("bits", [None, 4])
def test_a_rounded_update_is_within_the_bound_at_nearly_the_first_draw(bits, key):
    plan = grid(most_norm=40, bits=bits)
    x = jax.random.normal(key, (200, DIM))
    x = 0.5 * x / jnp.linalg.norm(x, axis=1, keepdims=True)
    keys = jax.random.split(jax.random.fold_in(key, 1), 201)
    z = jax.vmap(lambda x, k: integer_grid.rounded(plan, x, rotation_key=keys[0], key=k))
    z = np.asarray(z(x, keys[1:]), np.int64)
    norms = np.linalg.norm(z, axis=1)
    assert norms.max() <= 40
    # All of the length is used but for what rounding may add: sqrt(32) / 2 in quadrature, and 1.
    assert norms.mean() >= 0.9 * 40 - 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: config("skellam", grid_norm=0),
        lambda: config("skellam", bits=33),
        lambda: config("skellam", bits=0),
        lambda: grid(most_norm=3),
        lambda: grid(most_norm=70_000),
        lambda: grid(most_norm=65_535, most_noise=2**31),
        lambda: grid(most_noise=-1),
        lambda: schemes.get("skellam").make(
            config("skellam", grid_norm=60_000, noise_multiplier=4.0), linear_loss, num_units=NUM
        ),
    ],
)
def test_what_is_out_of_range_is_refused(call):
    with pytest.raises(ValueError, match="Expected"):
        call()


@pytest.mark.slow(reason="plays a game of thousands of rounds; a replay of the same rounds is not")
def test_an_attacker_tells_no_more_apart_than_is_certified_and_a_quarter_of_the_noise_is_caught(
    key,
):
    scheme = schemes.get("distributed_dgauss")
    sizes = {"num_parties": 2, "max_colluders": 0, "grid_norm": 64, "max_stragglers": 0}
    made = config("distributed_dgauss", noise_multiplier=1.0, **sizes)
    scores, found = rounds.play(rounds.one_unit(scheme, made), key, 4000), []
    for told in (made, dataclasses.replace(made, noise_multiplier=4.0)):
        found.append(rounds.judge(scheme.event(told), scores, delta=0.05, confidence=0.99))
    assert found[0].holds and not found[1].holds
    assert found[0].measured > 0.1 * found[0].certified


@pytest.mark.slow(reason="compiles a round for each protocol")
@pytest.mark.parametrize("protocol", secure_sum.FAST)
def test_a_protocol_releases_the_very_bits_of_the_ideal_sum(protocol, key):
    changes = {"noise_multiplier": 0.5, "straggler_law": "fixed", "max_stragglers": 1}
    changes |= {"max_colluders": 0 if protocol == "ckks" else 1}
    ideal, _ = run_round("distributed_dgauss", key, **changes)
    changes |= {"execution": "protocol", "protocol": protocol}
    found, info = run_round("distributed_dgauss", key, **changes)
    np.testing.assert_array_equal(found, ideal)
    assert int(info.cohort_size) == NUM - 1 and not bool(info.lost) and np.any(found)


@pytest.mark.slow(reason="compiles two rounds")
def test_too_many_stragglers_lose_a_round_of_a_protocol_as_of_the_ideal_sum(key):
    ids = [*range(NUM - 2), -1, -1]
    for changes in ({}, {"execution": "protocol"}):
        found, info = run_round("skellam", key, ids=ids, **changes)
        assert bool(info.lost) and not np.any(found)


@pytest.mark.slow(reason="compiles two rounds")
def test_words_that_wrap_do_so_in_a_protocol_too(key):
    changes = {"noise_multiplier": 1.0, "bits": 9, "max_colluders": 1}
    ideal, _ = run_round("skellam", key, **changes)
    found, _ = run_round("skellam", key, **changes, execution="protocol", protocol="servers")
    np.testing.assert_array_equal(found, ideal)


def test_a_protocol_that_does_not_stand_the_colluders_is_refused():
    make = schemes.get("distributed_dgauss").make
    ckks = config("distributed_dgauss", execution="protocol", protocol="ckks")
    with pytest.raises(errors.PrivacyPreconditionError, match="max_colluders=0"):
        make(ckks, linear_loss, num_units=NUM)
    many = config("distributed_dgauss", execution="protocol", max_colluders=2, max_stragglers=2)
    with pytest.raises(errors.PrivacyPreconditionError, match="a server that deviates"):
        make(many, linear_loss, num_units=NUM)
    with pytest.raises(ValueError, match="must not wrap"):
        config("skellam", execution="protocol", protocol="light_secagg", bits=12)
    with pytest.raises(ValueError, match="execution"):
        config("skellam", execution="real")


def test_a_grid_of_more_bits_than_a_protocol_takes_is_refused_before_the_first_round(monkeypatch):
    make, num = schemes.get("distributed_dgauss").make, 2**14
    sizes = {"num_parties": num, "grid_norm": 65535, "max_colluders": 0, "max_stragglers": 0}
    wide = config("distributed_dgauss", execution="protocol", protocol="light_secagg", **sizes)
    monkeypatch.setattr(signing, "enrolled", lambda *_: (dict.fromkeys(range(num), b""), {}))
    monkeypatch.setattr(signing, "check_roster", lambda *_: None)  # thousands of keys take seconds
    make(wide, linear_loss, num_units=num)  # 2**14 * 65535 is below 2**30: 31 bits
    wider = dataclasses.replace(wide, num_parties=num + 1)
    with pytest.raises(ValueError, match=r"Expected bits <= 31.*got bits=32"):
        make(wider, linear_loss, num_units=num + 1)


@pytest.mark.release(reason="one more protocol", but=["secagg"])
@pytest.mark.slow(reason="compiles a round for each protocol")
@pytest.mark.parametrize("protocol", secure_sum.FAST)
def test_digits_train_under_a_protocol_as_under_the_ideal_sum_at_the_epsilon_of_the_event(protocol):
    num, dim = 8, 650
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], num, np.random.default_rng(0))[:, :20]
    federated = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))
    cohort = data.cohort(federated, jnp.arange(num))
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    loss = models.softmax_cross_entropy(model.apply)
    scheme = schemes.get("distributed_dgauss")
    small = {**SMALL, "num_parties": num, "noise_multiplier": 1.0, "max_stragglers": 1}
    small |= {"max_colluders": 0 if protocol == "ckks" else 1}
    found = {}
    for execution in ("ideal", "protocol"):
        made = scheme.Config(**small, execution=execution, protocol=protocol)
        algorithm = scheme.make(made, loss, num_units=num)
        state, one_round = algorithm.init(model.params), jax.jit(algorithm.round)
        for _ in range(2):
            state, info = one_round(state, cohort, jax.random.key(1))
            assert not bool(info.lost)
        found[execution] = jax.tree.leaves(state.params)
        # What is released is what is accounted: all shares but those of colluders and stragglers.
        honest = num - made.max_colluders - made.max_stragglers
        stddev = 1.0 * 2 * NORM / math.sqrt(honest)
        assert scheme.event(made).mechanism == events.DiscreteGaussianSum(
            stddev, honest, 2.0 * NORM, 2.0 * NORM**2
        )
        # and no sum can wrap around
        plan = integer_grid.plan(
            dim,
            l2_clip_norm=0.5,
            most_norm=NORM,
            num_clients=num,
            most_noise=integer_grid.most_noise("discrete_gaussian", stddev),
        )
        most = num * (NORM + integer_grid.most_noise("discrete_gaussian", stddev))
        assert most < 2 ** (plan.bits - 1)
    for ideal, ours in zip(found["ideal"], found["protocol"], strict=True):
        np.testing.assert_array_equal(ideal, ours)
