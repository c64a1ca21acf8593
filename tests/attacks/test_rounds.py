"""Schemes attacked at what they certify: no attack beats its bound, and the same check fails a
broken mechanism.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import fljax_kernels
from fljax import accounting, models, schemes
from fljax.accounting import events, gaussian
from fljax.accounting.renyi import conversion
from fljax.attacks import audit, one_run, rounds, table
from fljax.data import canaries
from fljax.schemes.uploads import lightdp, secure_sums

SCHEMES = (
    "bidirectional",
    "dp_fedavg",
    "dp_fedbuff",
    "dp_fedper",
    "dp_fedsgd",
    "dp_ftrl",
    "dp_psac",
    "dp_scaffold",
    "distributed_dgauss",
    "dp_sgd",
    "gd_dp",
    "gsgd_dp",
    "he_dp",
    "higradavg",
    "higradavg_sum",
    "hybrid_alpha",
    "item_sum_cap",
    "lightdp",
    "local_dp",
    "local_group_dp",
    "local_item_dp",
    "mp_cdp",
    "pile",
    "secagg_dp",
    "sgd_dp",
    "skellam",
    "smpc_dp",
    "subject_sampled",
    "swiftagg_dp",
    "tp_smc",
    "user_ldp",
)
# Sums by other protocols, of the round and the event of a scheme that is played; `check_scheme` of
# tests/schemes/test_contracts.py plays each of them at fewer trials.
OF_ANOTHER = {
    "he_dp": "secagg_dp",
    "hybrid_alpha": "distributed_dgauss",
    "pile": "distributed_dgauss",
    "smpc_dp": "secagg_dp",
    "swiftagg_dp": "secagg_dp",
    "tp_smc": "distributed_dgauss",
}
FEW, TRIALS, DELTA = 5_000, 10_000, 0.05
SHARE = 0.5  # of what so many trials prove of the worst that the event allows; counting scatters
# They certify so little at DELTA that by 10,000 trials this share is .3 to .8, and by 40,000 .95.
FAINT = {"dp_fedsgd", "dp_psac", "dp_sgd", "local_item_dp"}


def config(name, **changes):
    return rounds.config(name, noise_multiplier=1.0, **changes)


def test_what_is_reachable_of_sampled_steps_is_below_what_is_certified():
    # At the far end of the curve no lattice resolves the delta, which is no news to anybody.
    step = events.PoissonSampled(0.75, events.Gaussian(1.0))
    event = events.PrivacyEvent(
        mechanism=events.SelfComposed(step, 2),
        privacy_unit="subject",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )
    known = rounds.reachable(event, TRIALS, delta=DELTA, confidence=1 - 1e-4)
    assert 1.0 < known < accounting.epsilon(event, delta=DELTA)


def test_few_trials_cannot_tell_and_more_can(key):
    event = schemes.get("lightdp").event(config("lightdp"))
    certified = rounds.certified_epsilon(event, DELTA)
    for trials, known in ((16, False), (10_000, True)):
        apart = np.ones(trials), np.zeros(trials)  # nobody could be told apart better
        found = rounds.judge(event, apart, delta=DELTA, confidence=0.99)
        assert found.measured == found.ceiling and (found.ceiling > certified) is known
        assert found.holds is (False if known else None)
    nothing = rounds.judge(event, apart, delta=DELTA, confidence=0.99, certified=np.inf)
    assert nothing.holds is None


@pytest.mark.slow(reason="audits rounds by thousands of trials and compiles each scheme for them")
def test_a_round_that_draws_half_of_its_noise_is_caught_although_uploads_say_nothing_of_it(
    key, monkeypatch
):
    """The sound scheme's row holds: `test_audit_prints_what_is_certified_and_what_was_measured`."""
    scheme, name = lightdp.SCHEME, "lightdp"

    def other(config, loss, **given):
        return scheme.make(
            dataclasses.replace(config, noise_multiplier=0.5 * config.noise_multiplier),
            loss,
            **given,
        )

    monkeypatch.setattr(lightdp, "SCHEME", dataclasses.replace(scheme, make=other))
    found = table.row(name, key, table.Settings(trials=TRIALS))
    assert found.holds is False and found.standing == "certified"
    # Uploads alone are played by the law that the config names, whatever the rounds do.
    first, _ = rounds.games(name, config(name))
    assert rounds.verdict(first._replace(control=None), key, delta=DELTA).holds


def test_a_game_that_does_not_run_the_scheme_says_so():
    law, own = rounds.games("bidirectional", config("bidirectional"))
    assert "not the scheme's rounds" in law.sees and "the model" in own.sees


def test_a_channel_is_used_once(key):
    with pytest.raises(ValueError, match="num_rounds=1 for the channel"):
        table.row("natural_channel", key, table.Settings(num_rounds=2))


def test_every_scheme_with_an_epsilon_is_attacked_here():
    assert {name for name in rounds.promising() if not name.endswith("_channel")} == set(SCHEMES)
    for name, other in OF_ANOTHER.items():
        one, two = schemes.get(name), schemes.get(other)
        assert one.make.__module__ == two.make.__module__
        assert one.event(config(name)) == two.event(config(other))
    needs = {name: secure_sums.LINKS.get(name) for name in (*OF_ANOTHER, *OF_ANOTHER.values())}
    assert needs["smpc_dp"] == needs["he_dp"] and needs["swiftagg_dp"] == needs["secagg_dp"]
    assert all(needs[name] is None for name in ("hybrid_alpha", "pile", "tp_smc"))


def record_event(noise):
    return events.PrivacyEvent(
        mechanism=events.Gaussian(noise),
        privacy_unit="example",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )


def played(scheme, key, trials):
    """[({noise multiplier: game}, {noise multiplier: scores})] of each kind, the sharpest first, at
    1 and 2 and with half of that: three programs a kind. The first is played `trials` times at 1.
    """
    found = []
    for kind in rounds.kinds(scheme):
        values = rounds.sizes(scheme)
        of_noise = lambda z, values=values: rounds.small(
            scheme.Config, values | {"noise_multiplier": z}, required={"noise_multiplier": z}
        )
        games = {z: kind(scheme, of_noise(z)) for z in (0.5, 1.0, 2.0)}
        times = {0.5: FEW, 1.0: FEW if found else trials, 2.0: FEW}
        scores = {
            z: rounds.play(games[z], jax.random.fold_in(key, int(2 * z)), times[z]) for z in games
        }
        found.append((games, scores))
    return found


def halves(plays):
    """[(noise multiplier, verdict)] at 1 and 2, each with half of its noise as the control."""
    settings = {"delta": DELTA, "confidence": 0.99}
    found = []
    for games, scores in plays:
        few = {z: tuple(each[..., :FEW] for each in both) for z, both in scores.items()}
        for z in (1.0, 2.0):
            event = games[z].event
            honest = rounds.judge(event, few[z], **settings)
            control = rounds.judge(event, few[z / 2], **settings, certified=honest.certified)
            found.append((z, dataclasses.replace(honest, control=control.measured)))
    return found


@pytest.mark.slow(reason="audits rounds by thousands of trials and compiles each scheme for them")
@pytest.mark.parametrize("name", [name for name in SCHEMES if name not in OF_ANOTHER])
def test_no_attack_beats_what_a_scheme_certifies_and_half_the_noise_is_caught(name, key):
    trials = 4 * TRIALS if name in FAINT else TRIALS
    plays = played(schemes.get(name), key, trials)
    verdicts = halves(plays)
    for noise in (1.0, 2.0):
        told = [verdict.holds for z, verdict in verdicts if z == noise]
        assert True in told and False not in told, verdicts
    # The whole trade-off curve: at any delta. Each bound is wrong with chance 1e-4 at most.
    event, scores = plays[0][0][1.0].event, plays[0][1][1.0]
    told = []
    for delta in (1e-3, 0.02, DELTA, 0.2):
        found = rounds.judge(event, scores, delta=delta, confidence=1 - 1e-4)
        if found.holds is None:  # no scores of so many trials could refute it
            assert found.ceiling <= found.certified
            continue
        told.append(delta)
        assert found.holds and found.measured <= found.certified < found.ceiling
        if delta == DELTA:
            known = rounds.reachable(event, trials, delta=delta, confidence=1 - 1e-4)
            assert found.measured >= SHARE * known
    assert {DELTA, 0.2} <= set(told)


def test_every_scheme_with_an_epsilon_is_in_the_grid_of_half_the_noise():
    # Those of others too: their registration is all that an audit needs, see test_plugging_in.py.
    promising = {name for name in schemes.names() if schemes.get(name).promise == "epsilon"}
    assert promising == set(SCHEMES)


def test_a_sensitivity_of_2c_taken_for_c_is_caught(key):
    # Noise for records that come and go (C), where a record is replaced (2C).
    game = rounds.game("gd_dp", config("gd_dp"))
    claimed = rounds.certified_epsilon(record_event(2.0), DELTA)
    judged = functools.partial(rounds.judge, game.event, rounds.play(game, key, TRIALS))
    assert not judged(delta=DELTA, confidence=0.99, certified=claimed).holds
    assert judged(delta=DELTA, confidence=0.99).holds


@pytest.mark.slow(reason="audits rounds by thousands of trials and compiles each scheme for them")
@pytest.mark.parametrize("realised", [True, False])
def test_the_realised_batch_size_as_divisor_is_caught_by_the_length_of_the_release(realised, key):
    noise, others, dim = 1.0, 4, 512

    def score(key, present):
        rows = jnp.zeros((others + 1, dim)).at[-1, 0].set(100.0)
        mask = jnp.arange(others + 1) < others + present.astype(jnp.int32)
        total, _ = fljax_kernels.clip_and_sum(rows, 1.0, mask=mask)
        divisor = jnp.sum(mask).astype(jnp.float32) if realised else float(others)
        released = (total + noise * jax.random.normal(key, (dim,))) / divisor
        return -jnp.linalg.norm(released)

    event = record_event(noise)
    found = rounds.verdict(rounds.Game(score, event, "the mean"), key, num_trials=4000, delta=DELTA)
    assert found.holds is not realised


@pytest.mark.slow(reason="audits rounds by thousands of trials and compiles each scheme for them")
def test_several_rounds_are_told_apart_as_well_as_their_composition_says(key):
    game = rounds.game("gd_dp", config("gd_dp", num_parties=1), num_rounds=3)
    found = rounds.verdict(game, key, delta=DELTA)
    assert game.event == schemes.get("gd_dp").event(config("gd_dp", num_parties=1)).repeat(3)
    assert found.holds and found.gaussian > 0.8 * found.certified


def linear(params, example):
    return jnp.vdot(params["a"]["w"], example["x"])


PARAMS = {"a": {"w": jnp.zeros((40, 30))}, "b": jnp.zeros(50)}


@pytest.mark.parametrize("kind", ["axes", "sphere"])
def test_canaries_have_the_gradient_they_were_designed_with(kind, key):
    direction = (
        canaries.axes(10, PARAMS, l2_norm=3.0)
        if kind == "axes"
        else canaries.sphere(jax.random.key(1), l2_norm=3.0)
    )
    batch = {"x": jnp.ones((11, 40, 30)), canaries.CANARY: jnp.arange(-1, 10)}
    ids, included = jnp.arange(10), np.arange(10) % 3 == 0

    @jax.jit
    def measured(batch):
        made = fljax_kernels.per_example_grads(canaries.with_canaries(linear, direction))
        rows = made(PARAMS, batch)
        added = canaries.insert(PARAMS, direction, PARAMS, ids, jnp.asarray(included))
        return rows.row_norms(), rows.gram(), canaries.scores(added, direction, PARAMS, ids)

    norms, gram, scores = map(np.asarray, measured(batch))
    np.testing.assert_allclose(norms[1:], 3.0, rtol=1e-5)
    np.testing.assert_allclose(norms[0], 1200**0.5, rtol=1e-5)
    gram = gram[1:, 1:]
    assert np.abs(gram - 9 * np.eye(10)).max() <= (1e-4 if kind == "axes" else 9 * 5 / 1250**0.5)
    np.testing.assert_allclose(scores, gram @ included, rtol=1e-4, atol=1e-4)


@pytest.mark.slow(reason="audits rounds by thousands of trials and compiles each scheme for them")
def test_one_run_of_a_scheme_with_canaries_stays_below_its_certificate_and_catches_half_the_noise(
    key,
):
    # Each canary is an example of DP-FedSGD, in by a coin; one round, all of them at once, real
    # clipping and noise.
    num, noise = 800, 1.0
    direction = canaries.axes(num, PARAMS, l2_norm=100.0)
    loss = canaries.with_canaries(linear, direction)
    coin_key, round_key = jax.random.split(key)
    included = jax.random.bernoulli(coin_key, 0.5, (num,))
    examples = {"x": jnp.zeros((num, 40, 30)), canaries.CANARY: jnp.arange(num)}
    scheme = schemes.get("dp_fedsgd")

    @jax.jit
    def release(multiplier):
        grads = fljax_kernels.per_example_grads(loss, method="microbatch", microbatch_size=100)(
            PARAMS, examples
        )
        total, _ = grads.weighted_sum(
            lambda norms, w: w / jnp.maximum(norms, 1.0), included.astype(jnp.float32)
        )
        noisy = fljax_kernels.add_gaussian_noise(round_key, total, multiplier)
        return canaries.scores(noisy, direction, PARAMS, jnp.arange(num))

    event = scheme.event(scheme.Config(sampling_prob=1.0, noise_multiplier=noise))
    certified = accounting.epsilon(event, delta=1e-5, method="gdp")
    honest = one_run.audit(release(noise), included, delta=1e-5)
    assert 0.3 * certified < honest.gdp_epsilon <= certified
    assert one_run.audit(release(0.3 * noise), included, delta=1e-5).gdp_epsilon > certified


@pytest.mark.slow(reason="audits rounds by thousands of trials and compiles each scheme for them")
def test_nobody_picks_the_right_record_more_often_than_the_reconstruction_bound(key):
    # K equally likely records with orthogonal gradients of the clipping norm; the best guess is the
    # closest.
    candidates, trials, mu = 10, 20_000, 2.0

    @jax.jit
    def rate(key, noise):
        truth_key, noise_key = jax.random.split(key)
        truth = jax.random.randint(truth_key, (trials,), 0, candidates)
        seen = jax.nn.one_hot(truth, candidates) + noise * jax.random.normal(
            noise_key, (trials, candidates)
        )
        return jnp.sum(seen.argmax(-1) == truth)

    bound = conversion.reconstruction_bound(
        lambda a: float(gaussian.trade_off(mu, a)), 1 / candidates
    )
    assert bound == pytest.approx(special.ndtr(special.ndtri(1 / candidates) + mu))
    for noise, holds in ((1 / mu, True), (0.5 / mu, False)):
        low, _ = audit.clopper_pearson(
            int(rate(jax.random.fold_in(key, int(holds)), noise)), trials, 1e-4
        )
        assert bool(low <= bound) is holds


def test_bad_arguments_raise_in_one_line(key):
    game = rounds.Game(
        lambda key, present: jnp.zeros(()), schemes.get("lightdp").event(config("lightdp")), ""
    )
    for call, text in (
        (lambda: rounds.game("nobody", None), "scheme to be one of"),
        (lambda: rounds.game("lightdp", config("lightdp"), num_rounds=0), "num_rounds"),
        (lambda: rounds.play(game, jnp.zeros(2), 10), "typed PRNG key"),
        (lambda: rounds.play(game, key, 0), "num_trials"),
        (lambda: canaries.axes(2000, PARAMS, l2_norm=1.0), "num_canaries <= 1250"),
        (lambda: canaries.axes(2, PARAMS, l2_norm=0.0), "l2_norm > 0"),
        (lambda: canaries.sphere(jnp.zeros(2), l2_norm=1.0), "typed PRNG key"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.slow(reason="audits rounds by thousands of trials and compiles each scheme for them")
def test_a_model_with_canaries_still_trains_on_ordinary_examples():
    loss = models.softmax_cross_entropy(lambda p, x: x @ p["w"])
    both = canaries.with_canaries(loss, canaries.axes(2, {"w": jnp.zeros((4, 3))}, l2_norm=1.0))
    params, example = {"w": jnp.ones((4, 3))}, {"x": jnp.arange(4.0), "y": jnp.asarray(1)}
    one, two = (
        jax.grad(loss)(params, example),
        jax.grad(both)(params, example | {canaries.CANARY: jnp.asarray(-1)}),
    )
    np.testing.assert_allclose(one["w"], two["w"], rtol=1e-6)
