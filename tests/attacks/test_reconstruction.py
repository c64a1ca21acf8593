"""Reconstruction through the rounds of schemes: bounded by what they certify, and perfect where
nothing defends.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from fljax import accounting, data, models, schemes
from fljax.accounting import events
from fljax.attacks import audit, metrics, reconstruction, rounds, table, victims
from fljax.attacks import gradient_inversion as inversion

CANDIDATES, REPEATS = 8, 150
DIGITS = data.load("digits")


def loss(params, example):
    """Its gradient is the example: candidates are orthogonal, so that picking is as easy as the
    bound allows.
    """
    return jnp.vdot(params["w"], example["x"]) + 0 * example["y"].astype(jnp.float32)


@pytest.mark.slow(reason="compiles one more scheme", but=["dp_fedsgd"])
@pytest.mark.parametrize("name", ["higradavg", "dp_fedsgd"])
def test_nobody_picks_the_record_behind_a_round_more_often_than_certified(name, key):
    params = {"w": jnp.zeros(CANDIDATES)}
    x = 100 * jnp.tile(jnp.eye(CANDIDATES), (REPEATS, 1))
    examples = {"x": x, "y": jnp.zeros(len(x), jnp.int32)}
    plain = reconstruction.gradients_of(
        loss, params, jax.tree.map(lambda v: v[:CANDIDATES], examples)
    )
    bound = reconstruction.identification_bound(
        schemes.get(name).event(reconstruction.config(name, noise_multiplier=0.5)), CANDIDATES
    )
    # Gaussian with mu 2: 1 - f(1 / K) = Phi(Phi^-1(1 / K) + 2), up to the grid of epsilons.
    assert bound == pytest.approx(special.ndtr(special.ndtri(1 / CANDIDATES) + 2.0), abs=5e-3)
    for noise, holds in ((0.5, True), (0.25, False)):
        config = reconstruction.config(name, noise_multiplier=noise)
        keys = jax.random.split(jax.random.fold_in(key, int(holds)), len(x))
        moved = reconstruction.updates(name, config, loss, params, examples, keys, DIGITS)
        right = reconstruction.best_match(moved, plain) == np.arange(len(x)) % CANDIDATES
        low, _ = audit.clopper_pearson(int(right.sum()), right.size, 1e-4)
        assert bool(low <= bound) is holds  # half the noise is caught


@pytest.mark.slow(reason="makes 600 updates twice")
def test_a_channels_error_is_above_its_certified_bound_for_gaussian_records(key):
    # Records that are Gaussian with a known covariance, and say so: the bound is certified, the
    # attack linear, exact.
    rng = np.random.default_rng(0)
    scale = np.sqrt(1 / np.arange(1, 17.0))
    draws = (rng.normal(size=(4000, 16)) * scale).astype(np.float32)
    known = data.Dataset(
        {"x": draws, "y": np.zeros(4000, np.int32)},
        {"x": draws, "y": np.zeros(4000, np.int32)},
        1,
        "",
    )
    targets = (rng.normal(size=(600, 16)) * scale).astype(np.float32)
    examples = {"x": jnp.asarray(targets), "y": jnp.zeros(600, jnp.int32)}
    seen = reconstruction.Seen(known, data.ClientData(known.train, jnp.zeros((1, 1), jnp.int32)))
    scheme = schemes.get("natural_channel")
    config = reconstruction.config(
        "natural_channel",
        nats=6.0,
        covariance_source="declared",
        data_model="gaussian",
        labels_public=True,
    )
    keys = jax.random.split(key)
    moved = reconstruction.updates(
        "natural_channel",
        config,
        loss,
        {"w": jnp.zeros(16)},
        examples,
        jax.random.split(keys[0], 600),
        known,
    )
    # The update is a multiple of the noisy record.
    noisy = np.asarray(moved["w"]) / config.local_learning_rate / config.server_learning_rate
    estimate = table.linear_estimate(noisy, draws)
    errors = np.square(estimate - targets).mean(1)
    spent = scheme.spent(config, seen, scheme.inputs(config, seen), 1)
    bound = float(spent.mse[0])
    margin = stats.norm.ppf(1 - 1e-4) * errors.std() / errors.size**0.5
    assert spent.mse_certified and errors.mean() + margin >= bound
    # The attack is not a weak one: its error is that of the best estimate, which is near the bound
    # here.
    assert errors.mean() <= 1.35 * bound
    # Control: without noise, nothing is left of the error.
    silent = reconstruction.config("natural_channel", nats=float("inf"))
    clean = reconstruction.updates(
        "natural_channel",
        silent,
        loss,
        {"w": jnp.zeros(16)},
        examples,
        jax.random.split(keys[1], 600),
        known,
    )
    assert (
        np.square(np.asarray(clean["w"]) / silent.local_learning_rate - targets).mean()
        < 0.01 * bound
    )


@pytest.mark.slow(reason="reconstructs digits from a whole training run")
def test_the_uninformed_attacker_reads_digits_through_a_scheme_without_noise(key):
    count = 4
    examples = {name: jnp.asarray(v[:count]) for name, v in DIGITS.test.items()}
    victim = victims.smooth_lenet(example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    config = reconstruction.config("higradavg", noise_multiplier=1e-5)
    one, two = jax.random.split(key)
    moved = reconstruction.updates(
        "higradavg",
        config,
        models.softmax_cross_entropy(victim.apply),
        victim.params,
        examples,
        jax.random.split(one, count),
        DIGITS,
    )
    settings = inversion.Settings(num_iterations=400, tv_weight=0.0)
    found = reconstruction.invert(
        victim.apply, victim.params, moved, examples["y"], two, shape=(8, 8, 1), settings=settings
    )
    assert (np.asarray(jax.vmap(metrics.psnr)(found, examples["x"])) > 25).sum() >= 3
    np.testing.assert_array_equal(reconstruction.nearest(found, examples["x"]), np.arange(count))


def test_identification_bound_of_a_release_without_guarantee_is_one():
    config = reconstruction.config("natural_channel", nats=1.0)
    assert (
        reconstruction.identification_bound(schemes.get("natural_channel").event(config), 10) == 1.0
    )


def gaussian_event(noise_multiplier):
    return events.PrivacyEvent(
        mechanism=events.Gaussian(noise_multiplier),
        privacy_unit="example",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )


@pytest.mark.parametrize("mu", [0.0, 1.0, 2.0])
def test_the_least_error_of_orthogonal_records_is_the_integral_in_closed_form(mu):
    """M records, all D apart, fit into a ball of radius^2 D^2 (m - 1) / (2 m) and no smaller."""
    count, apart, size = 12, 0.7, 30
    records = np.eye(size)[:count] * apart / 2**0.5
    event = gaussian_event(1 / mu if mu else 1e9)
    many = np.arange(1, count)
    fnr = special.ndtr(-special.ndtri(many / count) - mu)
    exact = (fnr * apart**2 / 2 / (many * (many + 1))).sum() / size
    found = reconstruction.error_bound(event, records.reshape(count, 5, 6))
    assert exact * (1 - 2e-2) <= found <= exact * (1 + 1e-6)
    # Copies of one record are no candidates to tell apart, and one record has no error.
    assert reconstruction.error_bound(event, np.tile(records[:1], (5, 1))) == 0
    assert reconstruction.error_bound(event, records[:1]) == 0


def test_no_estimate_is_nearer_than_the_least_error_and_with_half_the_noise_one_is():
    """The posterior mean, which no estimate is ahead of in squared error."""
    count, mu, trials = 8, 2.0, 4000
    rng = np.random.default_rng(0)
    records = rng.uniform(size=(count, 16))
    bound = reconstruction.error_bound(gaussian_event(1 / mu), records)
    # Uploads are orthogonal and as long as the sensitivity: the worst case of the certificate.
    for truth, told in ((mu, False), (2 * mu, True)):
        own = rng.integers(count, size=trials)
        seen = truth * np.eye(count)[own] + rng.normal(size=(trials, count))
        guess = special.softmax(truth * seen, axis=1) @ records
        errors = np.square(guess - records[own]).mean(1)
        margin = 5 * errors.std() / trials**0.5
        assert (errors.mean() + margin < bound) is np.bool_(told)


def test_records_that_are_no_numbers_have_no_least_error():
    with pytest.raises(ValueError, match="candidates of finite numbers"):
        reconstruction.error_bound(None, np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match="candidates of finite numbers"):
        reconstruction.error_bound(None, np.zeros((0, 3)))


def test_configs_take_what_fits_and_refuse_what_does_not():
    assert reconstruction.config("gsgd_dp", noise_multiplier=1.0).batch_size == 1.0
    assert rounds.config("higradavg", noise_multiplier=1.0, num_parties=3).num_parties == 3
    with pytest.raises(TypeError, match="sampling_prob"):
        rounds.config("lightdp", sampling_prob=0.5)
    with pytest.raises(ValueError, match="num_candidates"):
        reconstruction.identification_bound(None, 0)


@pytest.mark.parametrize("name", ["distributed_dgauss", "skellam"])
def test_a_lone_client_of_integer_schemes_may_have_the_noise_of_epsilon_1(name):
    """All of it, in steps of the grid, of which a client's generator draws at most 4,096."""
    scheme, config = schemes.get(name), reconstruction.config(name, noise_multiplier=4.5)
    assert accounting.epsilon(scheme.event(config), delta=1e-5) < 1
    scheme.make(config, loss, num_units=2)
    more = reconstruction.config(name, noise_multiplier=6.5)
    with pytest.raises(ValueError, match="at most 4096 steps a client"):
        scheme.make(more, loss, num_units=2)


def test_a_search_that_never_saw_a_finite_loss_found_nothing(key):
    params = {"w": jnp.eye(4, 3)}
    apply = lambda p, x: x.reshape(-1) @ p["w"]
    moved = {"w": jnp.ones((3, 4, 3)).at[1].set(jnp.nan).at[2, 0, 0].set(jnp.inf)}
    found = reconstruction.invert(
        apply,
        params,
        moved,
        jnp.zeros(3, jnp.int32),
        key,
        shape=(2, 2, 1),
        settings=inversion.Settings(num_iterations=3),
    )
    np.testing.assert_array_equal(reconstruction.diverged(found), [False, True, True])


def test_the_estimate_of_what_diverged_is_the_mean_and_leaves_the_others_alone():
    rng = np.random.default_rng(0)
    known = rng.normal(size=(500, 3)) * [1.0, 2.0, 3.0] + 5
    noisy = known[:40] + rng.normal(size=(40, 3))
    broken = noisy.copy()
    broken[3, 0], broken[7] = np.nan, np.inf
    estimate = table.linear_estimate(broken, known)
    np.testing.assert_allclose(estimate[[3, 7]], np.tile(known.mean(0), (2, 1)), rtol=1e-12)
    rest = np.delete(np.arange(40), [3, 7])
    np.testing.assert_allclose(
        estimate[rest], table.linear_estimate(noisy[rest], known), rtol=1e-12
    )
    nothing = table.linear_estimate(np.full((2, 3), np.nan), known)
    np.testing.assert_allclose(nothing, np.tile(known.mean(0), (2, 1)), rtol=1e-12)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_an_attack_on_a_channel_that_diverges_breaks_no_bound(share, key, monkeypatch):
    def updates(name, config, loss, params, examples, keys, dataset):
        found = rng.normal(size=(len(keys), 64, 1))
        found[: int(share * len(keys))] = np.nan
        slopes = jnp.ones((len(keys), 1, 4), jnp.float32)
        return {"kernel": jnp.asarray(found, jnp.float32) * slopes, "bias": slopes[:, 0]}

    rng = np.random.default_rng(0)
    monkeypatch.setattr(reconstruction, "updates", updates)
    row = table.row("natural_channel", key, table.Settings())
    # What is read has nothing to do with the records, so that no noise would be missed.
    assert row.holds is None and np.isfinite(row.measured) and row.measured >= row.certified
    assert row.diverged == 3200 * share and f"; {row.diverged} updates told no record" in row.attack


def test_identification_precision_counts_those_that_are_nearest_to_their_own():
    rng = np.random.default_rng(4)
    candidates = rng.normal(size=(7, 3, 2))
    own = np.asarray([6, 0, 3, 3, 5])
    found = candidates[own] + 0.01 * rng.normal(size=(5, 3, 2))
    assert reconstruction.iip(found, candidates, own) == 1.0
    found[1], found[4] = np.nan, candidates[2]
    assert reconstruction.iip(found, candidates, own) == 3 / 5
    # By features that see the sign of the first value alone the first of equals is nearest.
    sign = lambda x: np.sign(np.asarray(x)[:, 0, :1])
    named = [
        min(range(7), key=lambda k, x=x: abs(sign(x[None]) - sign(candidates))[k, 0])
        for x in np.nan_to_num(found[[0, 2, 3, 4]])
    ]
    expected = np.mean(np.asarray(named) == own[[0, 2, 3, 4]])
    told = reconstruction.iip(found[[0, 2, 3, 4]], candidates, own[[0, 2, 3, 4]], features=sign)
    assert told == expected
    for wrong in ([0, 1], [0, 1, 2, 3, 7], [0, 1, 2, 3, -1], [0.0, 1, 2, 3, 4]):
        with pytest.raises(ValueError, match="own to be 5 places of 7 candidates"):
            reconstruction.iip(found, candidates, wrong)


def test_what_is_not_finite_is_no_guess():
    candidates = np.asarray([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    found = np.asarray([[np.nan, 1.0], [0.0, 1.9], [np.inf, 0.0], [0.9, 0.1]])
    np.testing.assert_array_equal(reconstruction.nearest(found, candidates), [-1, 2, -1, 1])
    # The first candidate has no direction, which is no reason to pick it, except against all
    # others.
    np.testing.assert_array_equal(
        reconstruction.best_match({"w": found}, {"w": candidates}), [-1, 2, -1, 1]
    )
    np.testing.assert_array_equal(
        reconstruction.best_match({"w": -found[1:2]}, {"w": candidates}), [0]
    )
    for call in (
        reconstruction.nearest,
        lambda a, b: reconstruction.best_match({"w": a}, {"w": b}),
    ):
        with pytest.raises(ValueError, match="candidates of finite numbers"):
            call(candidates, found)


# What their files say: the others clip each record, or the mean of each subject's.
OF_SUMS = {
    *("dp_fedavg", "dp_fedbuff", "dp_fedper", "dp_ftrl", "dp_scaffold"),
    *("distributed_dgauss", "he_dp", "hybrid_alpha", "lightdp", "local_dp", "pile", "secagg_dp"),
    *("skellam", "smpc_dp", "swiftagg_dp", "tp_smc", "user_ldp"),
}


@pytest.mark.release(
    reason="one more scheme",
    but=[
        "dp_fedavg",
        "dp_sgd",
        "dp_fedbuff",
        "higradavg",
        "lightdp",
        "local_dp",
        "secagg_dp",
        "distributed_dgauss",
        "gsgd_dp",
        "bidirectional",
    ],
)
@pytest.mark.slow(reason="compiles one more scheme", but=["dp_fedavg", "gsgd_dp"])
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in rounds.promising()
        if schemes.get(name).promise == "epsilon" and not schemes.get(name).needs_network
    ],
)
def test_how_a_scheme_clips_a_batch_is_seen_in_rounds_of_two_records(name):
    """Random weights of records, rotations and rounding to a grid do not hide it."""
    config = reconstruction.config(name, 4, noise_multiplier=0.0)
    found = reconstruction.clips_each(name, config, DIGITS)
    assert found is (name not in OF_SUMS)
    if name == "dp_fedavg":  # whose server may step along signs alone
        adam = dataclasses.replace(config, server_optimizer="adam")
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by counts
            assert not reconstruction.clips_each(name, adam, DIGITS)


def test_a_client_is_in_every_round_of_a_buffer():
    """Of two, where a release waits for one, the other one would be in half of them alone."""
    config = reconstruction.config("dp_fedbuff", noise_multiplier=0.0)
    loss = lambda params, example: jnp.vdot(params["w"], example["x"])
    x = np.ones((16, 3), np.float32)
    keys = jax.random.split(jax.random.key(0), 16)
    moved = reconstruction.updates(
        "dp_fedbuff", config, loss, {"w": jnp.zeros(3)}, {"x": jnp.asarray(x)}, keys, DIGITS
    )
    assert (np.linalg.norm(moved["w"], axis=1) > 0).all()
