"""Membership attacks: positive controls on an overfitted model, closed forms, and models that
nobody trained.
"""

import dataclasses
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from fljax import data, models
from fljax.attacks import (
    membership,
    metrics,
    model_inversion,
    rounds,
    shadow,
    trained,
    white_box,
)

NUM, SHADOWS, HIDDEN = 200, 32, 32


def init(key):
    one, two = jax.random.split(key)
    return {
        "hidden": {"kernel": jax.random.normal(one, (64, HIDDEN)) / 8, "bias": jnp.zeros(HIDDEN)},
        "logits": {
            "kernel": jax.random.normal(two, (HIDDEN, 10)) / HIDDEN**0.5,
            "bias": jnp.zeros(10),
        },
    }


def apply(params, x):
    hidden = jnp.tanh(x.reshape(-1) @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["logits"]["kernel"] + params["logits"]["bias"]


LOSS = models.softmax_cross_entropy(apply)


@pytest.fixture(scope="module")
def overfitted():
    """Real digits, a fifth with labels of chance; models 0 (the target) to SHADOWS on halves of
    them, one program.

    Also: confidences on the pool and on examples that no model saw.
    """
    rng, digits = np.random.default_rng(0), data.load("digits")
    x, y = digits.train["x"][:NUM], digits.train["y"][:NUM].copy()
    wrong = rng.random(NUM) < 0.2
    y[wrong] = rng.integers(0, 10, wrong.sum())
    included = shadow.halves(jax.random.key(1), SHADOWS + 2, NUM)[
        1:
    ]  # the first would be the target's complement
    train = jax.jit(shadow.trainer(LOSS, init, num_steps=200))
    params = train({"x": x, "y": y}, included, jax.random.split(jax.random.key(2), SHADOWS + 1))
    both = jax.jit(lambda p, x, y: shadow.confidences(apply, p, x, y))
    rest = digits.test["x"][:NUM], digits.test["y"][:NUM]
    return (
        (x, y),
        np.asarray(included),
        params,
        np.asarray(both(params, x, y)),
        np.asarray(both(params, *rest)),
    )


def area(scores, included):
    return metrics.auc(scores[included], scores[~included])


@pytest.fixture(scope="module")
def remembering():
    """Models whose logits are a table, an entry an example: sure of their members, and as sure as
    an example is easy, which differs more.
    """
    rng, size, count = np.random.default_rng(7), 24, 9
    included = np.asarray(shadow.halves(jax.random.key(3), count + 1, size // 2))[1:].repeat(2, 1)
    sure = 3.0 * included + rng.uniform(-9, 9, size) + 0.1 * rng.normal(size=included.shape)
    y = rng.integers(0, 2, size)
    kernel = jnp.asarray(sure[..., None] * np.eye(2)[y], jnp.float32)
    pool = {"x": jnp.eye(size), "y": jnp.asarray(y)}
    table = lambda params, x: x @ params["logits"]["kernel"]
    whose = np.arange(size) // 2
    loss = models.softmax_cross_entropy(table)
    return trained.Trained(
        table, {"logits": {"kernel": kernel}}, pool, included, pool, loss=loss, subjects=whose
    )


@pytest.mark.parametrize(
    "attack", ["lira", "lira_offline", "rmia", "reference", "subject_lira", "white_box"]
)
def test_who_compares_models_tells_members_however_hard_an_example_is(attack, remembering, key):
    found = trained.attacked(attack, remembering, key)
    if attack == "reference":  # where losses are near 0 anyway, being a member changes them little
        assert 0.85 < found.auc < 1
    else:
        assert found.auc == 1 and all(rate.tpr == 1 for rate in found.rates)
    assert found.largest_auc == 1  # nothing is certified
    of_persons = attack == "subject_lira"
    assert np.array_equal(found.members, remembering.included[0][:: 2 if of_persons else 1])
    assert trained.attacked("loss_threshold", remembering, key).auc < 0.8


def test_the_attack_network_learns_from_one_model_and_is_asked_of_the_target(
    remembering, key, monkeypatch
):
    learnt = []

    def fit(known, members, key):
        learnt.append((known, members))
        return lambda asked: -asked["loss"][:, 0] - known["loss"][:, 0] * 0

    monkeypatch.setattr(white_box, "fit", fit)
    found = trained.attacked("attack_network", remembering, key)
    ((known, members),) = learnt
    assert np.array_equal(members, remembering.included[1])
    margins = np.asarray(remembering.params["logits"]["kernel"], np.float64)
    own = [table @ [[1], [-1]] for table in margins[:2]]
    sign = 1 - 2 * np.asarray(remembering.pool["y"])
    losses = [np.logaddexp(0, -each[:, 0] * sign) for each in own]
    np.testing.assert_allclose(found.scores, -losses[0], atol=1e-5)
    np.testing.assert_allclose(known["loss"][:, 0], losses[1], atol=1e-5)
    assert "gradient" not in known


def test_a_model_is_trained_on_its_members_alone():
    """Along one parameter an example: it moves where the example is a member."""
    name, size, num_rounds = "dp_fedsgd", 6, 2
    config = dataclasses.replace(rounds.config(name, noise_multiplier=1.0), noise_multiplier=0.0)
    pool = {"x": np.eye(size, dtype=np.float32)}
    included = jnp.asarray([[True, False] * 3, [False] * 5 + [True]])
    found = trained.models(
        name,
        dataclasses.replace(config, sampling_prob=1.0),
        lambda params, example: -jnp.vdot(params["w"], example["x"]),
        {"w": jnp.zeros(size)},
        pool,
        included,
        jax.random.split(jax.random.key(0), 2),
        num_rounds=num_rounds,
        every_round=True,
    )["w"]
    assert found.shape == (2, 1 + num_rounds, size) and not np.any(found[:, 0])
    assert np.array_equal(found[:, 1] > 0, included)
    assert np.array_equal(found[:, 2] > found[:, 1], included) and not np.any(found[:, 2] < 0)


@pytest.mark.slow(reason="trains shadow models")
def test_lira_beats_the_loss_threshold_on_an_overfitted_model(overfitted):
    _, included, _, own, _ = overfitted
    scores = membership.lira(own[0], own[1:], included[1:])
    plain = area(membership.loss_threshold(own[0]), included[0])
    assert area(scores, included[0]) > max(0.8, plain)
    found = metrics.tpr_at_fpr(scores[included[0]], scores[~included[0]], 0.05)
    assert found > 2 * 0.05
    assert area(membership.lira(own[0], own[1:], included[1:], online=False), included[0]) > 0.65
    # Against coins that the target never saw, nothing is left: five standard errors of 100 against
    # 100.
    coins = np.random.default_rng(3).permutation(included[0])
    assert abs(area(scores, coins) - 0.5) < 5 * 0.5 / np.sqrt(NUM / 2)


def test_rmia_beats_guessing_and_offline_comes_close(overfitted):
    _, included, _, own, rest = overfitted
    online = membership.rmia(own[0], own[1:], included[1:], rest[0], rest[1:])
    offline = membership.rmia(own[0], own[1:], included[1:], rest[0], rest[1:], online=False)
    assert area(online, included[0]) > 0.8
    assert area(offline, included[0]) > 0.65


@pytest.mark.slow(reason="trains networks to attack with")
def test_the_attack_network_learns_from_partial_knowledge_and_from_a_surrogate(overfitted):
    (x, y), included, params, _, _ = overfitted
    model = lambda at: jax.tree.map(lambda v: v[at], params)
    seen = jax.jit(lambda p: white_box.features(apply, p, x, y, last_layer="logits"))
    target, surrogate = seen(model(0)), seen(model(1))
    assert {name: v.shape[1] for name, v in target.items()} == {
        "posteriors": 10,
        "loss": 1,
        "label": 10,
        "gradient": HIDDEN * 10 + 10,
    }
    known = np.arange(NUM) < NUM // 2
    part = lambda features, rows: {name: v[rows] for name, v in features.items()}
    score = white_box.fit(part(target, known), included[0][known], jax.random.key(3), num_steps=100)
    assert area(np.asarray(score(part(target, ~known))), included[0][~known]) > 0.6
    carried = white_box.fit(surrogate, included[1], jax.random.key(4), num_steps=100)
    assert area(np.asarray(carried(target)), included[0]) > 0.6


@pytest.fixture(scope="module")
def pulled():
    """Weights that each member moved by the same length against its gradient, which is its x, and
    a little noise: target, shadow models, who was in, pool, loss, x.
    """
    rng, size, count, width = np.random.default_rng(30), 60, 24, 200
    shared = rng.normal(size=(size, 3)) @ rng.normal(size=(3, width))  # directions of many
    x = rng.normal(size=(size, width)) + 3 * shared
    x *= rng.uniform(0.1, 10, (size, 1))  # clipping makes them as long as each other
    inside = np.asarray(shadow.halves(jax.random.key(4), count + 2, size))[1:]
    moved = -(inside * 1.0) @ (x / np.linalg.norm(x, axis=1, keepdims=True))
    weights = 5 + moved + 0.01 * rng.normal(size=moved.shape)
    loss = lambda params, example: jnp.vdot(params["w"], example["x"]) + 3.0
    model = lambda rows: {"w": jnp.asarray(weights[rows], jnp.float32)}
    return model(0), model(slice(1, None)), inside, {"x": jnp.asarray(x, jnp.float32)}, loss, x


def test_pulls_are_a_ridge_regression_on_all_unit_gradients_which_tells_shadow_models_best(pulled):
    target, shadows, inside, pool, loss, x = pulled
    own, theirs = white_box.pulls(loss, target, shadows, inside[1:], pool)
    assert own.shape == (60,) and theirs.shape == (24, 60)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    weights = np.concatenate([target["w"][None], shadows["w"]]).astype(np.float64)
    apart = weights[1:].mean(0) - weights

    def regressed(ridge):
        """By least squares, of a matrix with a row more for each coefficient."""
        rows = np.concatenate([unit.T, ridge**0.5 * np.eye(60)])
        wanted = np.concatenate([apart.T, np.zeros((60, len(apart)))])
        return np.linalg.lstsq(rows, wanted, rcond=None)[0].T

    def told(found):
        at = lambda where: np.where(where, found, np.nan)
        sides = [at(inside[1:]), at(~inside[1:])]
        gap = np.mean(np.nanmean(sides[0], 0) - np.nanmean(sides[1], 0))
        return gap / np.sqrt(sum(np.nansum((v - np.nanmean(v, 0)) ** 2) for v in sides))

    each = [regressed(ridge) for ridge in white_box._RIDGES]
    best = max(each, key=lambda found: told(found[1:]))
    np.testing.assert_allclose(np.concatenate([own[None], theirs]), best, atol=2e-3)
    # One example's gradient alone is no more than a hint: the others pull along it, too.
    alone = apart[0] @ unit.T
    assert area(own, inside[0]) == 1 and area(alone, inside[0]) < 0.8
    # Of weights that nobody pulled nothing is told: five standard errors of 30 against 30.
    rng = np.random.default_rng(31)
    nobody = lambda *shape: {"w": jnp.asarray(rng.normal(size=(*shape, 200)), jnp.float32)}
    guessed, _ = white_box.pulls(loss, nobody(), nobody(24), inside[1:], pool)
    assert abs(area(guessed, inside[0]) - 0.5) < 5 * (61 / (12 * 30**2)) ** 0.5
    with pytest.raises(ValueError, match=r"included \[S, N\] = \[24, 60\]"):
        white_box.pulls(loss, target, shadows, inside, pool)
    with pytest.raises(ValueError, match="out of one at least"):
        white_box.pulls(loss, target, shadows, inside[1:] | True, pool)


def test_several_numbers_together_are_the_likelihood_ratio_of_two_normals_of_one_covariance():
    rng = np.random.default_rng(32)
    number, size, count = 20, 7, 3
    inside = np.asarray(shadow.halves(jax.random.key(5), number, size))
    mix = rng.normal(size=(count, count))
    own = rng.normal(size=(number, size, count)) @ mix + rng.normal(size=(size, count)) * 9
    own = own + inside[..., None] * [1.0, 0.5, -2.0]
    target = rng.normal(size=(size, count)) * 5
    found = white_box.likelihood_ratio(target, own, inside)
    means = {side: [own[inside[:, i] == side, i].mean(0) for i in range(size)] for side in (0, 1)}
    rest = [own[s, i] - means[int(inside[s, i])][i] for s in range(number) for i in range(size)]
    covariance = np.transpose(rest) @ np.asarray(rest) / (number * size - 2 * size)
    gap = np.subtract(means[1], means[0]).mean(0)
    for i in range(size):
        level = (means[0][i] + means[1][i]) / 2
        logs = [
            stats.multivariate_normal(level + part * gap, covariance).logpdf(target[i])
            for part in (0.5, -0.5)
        ]
        assert found[i] == pytest.approx(logs[0] - logs[1], rel=1e-4, abs=1e-4)
    with pytest.raises(ValueError, match="N, A"):
        white_box.likelihood_ratio(target[:, 0], own, inside)
    with pytest.raises(ValueError, match="out of one at least"):
        white_box.likelihood_ratio(target, own, ~inside | inside)


def test_a_white_box_wants_the_loss_that_was_trained_by(remembering, key):
    with pytest.raises(ValueError, match="Expected loss with white_box"):
        trained.attacked("white_box", remembering._replace(loss=None), key)


def test_lira_is_the_likelihood_ratio_of_two_normals():
    rng = np.random.default_rng(5)
    shadows, included = rng.normal(size=(40, 7)), rng.random((40, 7)) < 0.5
    target = rng.normal(size=7)
    found = membership.lira(target, shadows, included, pooled=False)
    for i in range(7):
        inside, outside = shadows[included[:, i], i], shadows[~included[:, i], i]
        logs = [stats.norm.logpdf(target[i], v.mean(), v.std(ddof=1)) for v in (inside, outside)]
        assert found[i] == pytest.approx(logs[0] - logs[1])


@pytest.mark.parametrize("pooled", [True, False])
def test_lira_of_views_is_the_likelihood_ratio_of_normals_of_several_numbers(pooled):
    rng = np.random.default_rng(21)
    number, size, views = 60, 5, 3
    inside = np.arange(number)[:, None] % 2 == np.zeros(size)
    mix = rng.normal(size=(views, views))
    own = rng.normal(size=(number, size, views)) @ mix + 2.0 * inside[..., None]
    target = rng.normal(size=(size, views))
    found = membership.lira_of_views(target, own, inside, pooled=pooled)
    sides = {}
    for side in (True, False):
        groups = [own[inside[:, at] == side, at] for at in range(size)]
        covariances = [np.cov(group.T) for group in groups]
        if pooled:
            covariances = [np.mean(covariances, 0)] * size
        sides[side] = [
            stats.multivariate_normal(group.mean(0), covariance).logpdf(target[at])
            for at, (group, covariance) in enumerate(zip(groups, covariances, strict=True))
        ]
    np.testing.assert_allclose(found, np.subtract(sides[True], sides[False]), rtol=1e-3)
    # One view is LiRA's.
    single = membership.lira_of_views(target[:, :1], own[..., :1], inside, pooled=pooled)
    alone = membership.lira(target[:, 0], own[..., 0], inside, pooled=pooled)
    np.testing.assert_allclose(single, alone, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="N, A"):
        membership.lira_of_views(target[:, 0], own, inside)
    with pytest.raises(ValueError, match="at least 2"):
        membership.lira_of_views(target, own, np.ones_like(inside))


@pytest.mark.parametrize(
    ("attack", "more"),
    [
        (membership.lira, ()),
        (membership.reference, ()),
        (membership.lira_of_views, (3,)),
        (white_box.likelihood_ratio, (3,)),
    ],
)
def test_what_shadow_models_say_has_the_shape_of_what_the_target_says(attack, more):
    target, own, inside = np.zeros((5, *more)), np.zeros((8, 5, *more)), np.arange(8) % 2 == 0
    inside = np.tile(inside[:, None], (1, 5))
    assert np.isfinite(attack(target, own, inside)).all()
    for wrong in ((target[0], own, inside), (target, own[:, 1:], inside), (target, own, inside.T)):
        shapes = ", ".join(re.escape(str(np.shape(part))) for part in wrong)
        with pytest.raises(ValueError, match=rf"included \[S, N\], got shapes {shapes}\."):
            attack(*wrong)


def test_rmia_counts_pairs():
    rng = np.random.default_rng(6)
    shadows, included = rng.normal(size=(12, 5)), np.arange(60).reshape(12, 5) % 2 == 0
    target, others, references = rng.normal(size=5), rng.normal(size=9), rng.normal(size=(12, 9))
    found = membership.rmia(target, shadows, included, others, references, gamma=1.1)
    p = special.expit
    for i in range(5):
        sides = [p(shadows[where, i]).mean() for where in (included[:, i], ~included[:, i])]
        ratio = p(target[i]) / np.mean(sides)
        assert found[i] == np.mean(
            [ratio / (p(z) / p(references[:, k]).mean()) >= 1.1 for k, z in enumerate(others)]
        )


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
def test_rmia_offline_corrects_both_probabilities_as_its_authors_do(slope):
    """Their program, written apart: one correction for examples and for the population."""
    rng = np.random.default_rng(16)
    shadows, included = rng.normal(size=(12, 5)), np.arange(60).reshape(12, 5) % 2 == 0
    target, others, references = rng.normal(size=5), rng.normal(size=9), rng.normal(size=(12, 9))
    found = membership.rmia(
        target, shadows, included, others, references, online=False, offline_slope=slope
    )
    p = lambda value: 1 / (1 + np.exp(-value))
    for i in range(5):
        mean_x = (1 + slope) / 2 * p(shadows[~included[:, i], i]).mean() + (1 - slope) / 2
        above = 0
        for k in range(9):
            mean_z = (1 + slope) / 2 * p(references[:, k]).mean() + (1 - slope) / 2
            above += (p(target[i]) / mean_x) / (p(others[k]) / mean_z) > 1
        assert found[i] == above / 9


# Of 40 examples of the population, how many each of 12 examples beats by the authors' own program
# (privacytrustlab/ml_privacy_meter at e384af8, run on the inputs below), by slope.
BEATEN_BY_THE_AUTHORS_PROGRAM = {
    0.0: (10, 27, 31, 20, 37, 8, 16, 7, 29, 38, 40, 11),
    0.3: (11, 28, 34, 20, 39, 8, 16, 7, 35, 37, 40, 13),
    1.0: (14, 36, 36, 20, 40, 9, 16, 8, 37, 37, 40, 18),
}


@pytest.mark.parametrize("slope", BEATEN_BY_THE_AUTHORS_PROGRAM)
def test_offline_rmia_is_that_of_ml_privacy_meter_on_the_same_inputs(slope):
    """It takes half of its reference models for those that saw an example, by their confidence; of
    a population that none of them saw that leaves the more confident half.
    """
    rng = np.random.default_rng(2312)
    confidences, population = rng.normal(1, 2, (10, 12)), rng.normal(1, 2, (10, 40))
    included = np.zeros((10, 12), bool)
    for pair in range(0, 10, 2):
        half = rng.permutation(12) < 6
        included[pair], included[pair + 1] = half, ~half
    confidences += 1.5 * included
    references = np.sort(population[2:], axis=0)[4:]
    found = membership.rmia(
        confidences[0],
        confidences[2:],
        included[2:],
        population[0],
        np.concatenate([references, references]),
        online=False,
        offline_slope=slope,
    )
    np.testing.assert_array_equal(40 * found, BEATEN_BY_THE_AUTHORS_PROGRAM[slope])


def test_the_slope_of_offline_rmia_is_the_one_that_tells_a_reference_model_best(overfitted):
    _, included, _, own, rest = overfitted
    slope = membership.rmia_slope(own[1:], included[1:], rest[1:])
    areas = {
        s: area(
            membership.rmia(
                own[1],
                own[2:],
                included[2:],
                rest[1],
                rest[2:],
                online=False,
                offline_slope=s,
            ),
            included[1],
        )
        for s in (0.0, slope, 1.0)
    }
    assert areas[slope] == max(areas.values())
    offline = membership.rmia(
        own[0], own[1:], included[1:], rest[0], rest[1:], online=False, offline_slope=slope
    )
    assert area(offline, included[0]) > 0.6


def test_labels_alone_tell_members_by_how_much_noise_they_stand(overfitted):
    (x, y), included, params, _, _ = overfitted
    target = jax.tree.map(lambda v: v[0], params)
    predict = jax.jit(lambda x: jax.vmap(apply, (None, 0))(target, x).argmax(-1))
    scores = membership.label_only(predict, x, y, np.random.default_rng(0))
    assert area(scores, included[0]) > 0.56
    coins = np.random.default_rng(3).permutation(included[0])
    assert abs(area(scores, coins) - 0.5) < 5 * 0.5 / np.sqrt(NUM / 2)
    # Of a line, an example at distance d keeps its label as often as a normal is below d.
    at = np.array([[-1.0], [0.3], [2.0]])
    found = membership.label_only(
        lambda x: x[:, 0] > 0,
        at,
        [0, 1, 1],
        np.random.default_rng(1),
        stddevs=[0.5],
        num_copies=4000,
    )
    np.testing.assert_allclose(found, stats.norm.cdf([2.0, 0.6, 4.0]), atol=0.05)


def test_quantile_regression_knows_how_hard_an_example_is():
    """Confidences lie about a level that the example says; members are one unit above theirs."""
    rng = np.random.default_rng(17)
    draw = lambda n: (rng.normal(size=(n, 2)).astype(np.float32), rng.integers(0, 2, n))
    level = lambda x, y: 4 * np.tanh(x[:, 0]) + 2 * y
    public, judged = draw(1500), draw(600)
    members = rng.random(600) < 0.5
    told = level(*judged) + members + 0.5 * rng.normal(size=600)
    known = (*public, level(*public) + 0.5 * rng.normal(size=1500))
    scores = membership.quantile_regression(known, *judged, told, jax.random.key(0))
    best = stats.norm.cdf(1 / 0.5 / np.sqrt(2))
    assert best - 0.1 < area(scores, members) < best + 0.03
    assert area(membership.loss_threshold(told), members) < 0.65
    # At most a tenth of examples that nobody was trained on are above it, and not far fewer.
    assert 0.04 < np.mean(scores[~members] > 0) < 0.2


def test_a_persons_examples_tell_more_together(overfitted):
    _, _, _, own, _ = overfitted
    rng, per, people, models = np.random.default_rng(18), 5, 60, 40
    owners = np.repeat(np.arange(people) + 7, per)
    inside = rng.random((models, people)) < 0.5
    each = rng.normal(size=(models, people * per)) + np.repeat(inside, per, axis=1)
    ids, together = membership.of_subjects(each, owners)
    np.testing.assert_array_equal(ids, np.arange(people) + 7)
    np.testing.assert_allclose(together, each.reshape(models, people, per).mean(-1))
    alone = membership.lira(each[0], each[1:], np.repeat(inside[1:], per, axis=1))
    person = membership.lira(together[0], together[1:], inside[1:])
    assert area(person, inside[0]) > area(alone, np.repeat(inside[0], per)) + 0.1
    with pytest.raises(ValueError, match="subjects"):
        membership.of_subjects(own, owners)


@pytest.mark.slow(reason="trains many shadow models")
def test_models_in_chunks_are_the_same_models(overfitted):
    (x, y), included, _, _, _ = overfitted
    found = [
        jax.jit(shadow.trainer(LOSS, init, num_steps=5, batch_size=16, models_at_once=size))(
            {"x": x, "y": y}, included[:3], jax.random.split(jax.random.key(7), 3)
        )
        for size in (None, 1)
    ]
    chex.assert_trees_all_close(*found, rtol=2e-3, atol=1e-5)


def test_a_model_learns_nothing_from_examples_that_are_no_members(overfitted):
    (x, y), included, _, _, _ = overfitted
    train = jax.jit(shadow.trainer(LOSS, init, num_steps=3, batch_size=16))
    poisoned = np.where(included[0][:, None, None, None], x, np.float32(1e6))
    one, two = (
        train({"x": v, "y": y}, included[:1], jax.random.split(jax.random.key(8), 1))
        for v in (x, poisoned)
    )
    chex.assert_trees_all_equal(one, two)


def test_halves_are_halves_and_every_example_is_in_half_of_the_models():
    found = np.asarray(shadow.halves(jax.random.key(9), 6, 11))
    assert found.shape == (6, 11) and (found.sum(0) == 3).all()
    assert (shadow.halves(jax.random.key(9), 5, 11) == found[:5]).all()


def test_model_inversion_finds_inputs_that_look_like_their_class(overfitted):
    (x, y), _, params, _, _ = overfitted
    model = jax.tree.map(lambda v: v[0], params)
    start = jnp.asarray(data.load("digits").test["x"].mean(0))
    found = jax.jit(lambda p: model_inversion.invert(apply, p, start, 10))(model)
    assert found.shape == (10, 8, 8, 1)
    np.testing.assert_array_equal(
        jax.vmap(apply, (None, 0))(model, found).argmax(-1), np.arange(10)
    )
    # The image of a class is nearer to that class's mean than to the others' on average.
    means = np.stack([x[y == c].mean(0) for c in range(10)])
    table = np.square(np.asarray(found)[:, None] - means[None]).mean((2, 3, 4))
    assert np.mean(np.diag(table)) < np.mean(table)
    assert model_inversion.error(found, x, y) == pytest.approx(np.median(np.diag(table)), rel=1e-4)


@pytest.mark.parametrize("mu", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("num", [11, 2001])
def test_the_largest_area_is_never_below_the_curves_own(mu, num):
    at = np.linspace(0, 1, num)
    found = trained.largest_auc(stats.norm.cdf(stats.norm.isf(at) - mu), at)
    exact = stats.norm.cdf(mu / 2**0.5)
    # Of a falling curve from 1 to 0 a step's two ends differ by 1 in sum.
    assert exact <= found <= exact + 1 / (num - 1)


def test_bad_arguments_raise_in_one_line(overfitted, key):
    _, included, params, own, rest = overfitted
    never = included[1:] & (np.arange(NUM) > 0)
    for call, text in (
        (lambda: membership.lira(own[0], own[1:, 1:], included[1:]), "shadows"),
        (lambda: membership.lira(own[0], own[1:], never), "in at least 2 shadow models"),
        (
            lambda: membership.rmia(own[0], own[1:], never, rest[0], rest[1:]),
            "in a reference model",
        ),
        (lambda: membership.rmia(own[0], own[1:], included[1:], rest[0], rest[2:]), "population"),
        (
            lambda: membership.rmia(own[0], own[1:], included[1:], rest[0], rest[1:], gamma=0.0),
            "gamma > 0",
        ),
        (
            lambda: white_box.features(apply, params, rest, rest, last_layer="head"),
            "last_layer to be a key",
        ),
        (lambda: white_box.fit({"loss": jnp.zeros((3, 1))}, [True] * 3, key), "both kinds"),
        (lambda: white_box.fit({"loss": jnp.zeros((4, 1))}, [True] * 3, key), r"members \[N\]"),
        (lambda: shadow.trainer(LOSS, init, num_steps=0), "num_steps"),
        (
            lambda: model_inversion.invert(apply, params, jnp.zeros(1), 2, box=(1.0, 0.0)),
            "low < high",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_gradient_alignment_is_the_cosine_over_all_rounds():
    rng = np.random.default_rng(20)
    passed = rng.normal(size=(2, 4, 3)).astype(np.float32)  # two models, three rounds
    pool = {"x": rng.normal(size=(5, 3)), "y": rng.normal(size=5)}
    # Of a linear model and half the squared error the gradient is (w x - y) x.
    expected = np.zeros((2, 5))
    for at, models_of in enumerate(passed.astype(np.float64)):
        moved = models_of[:-1] - models_of[1:]
        for row in range(5):
            x, y = pool["x"][row], pool["y"][row]
            own = (models_of[:-1] @ x - y)[:, None] * x
            lengths = np.linalg.norm(own) * np.linalg.norm(moved)
            expected[at, row] = (own * moved).sum() / lengths
    loss = lambda params, e: 0.5 * jnp.square(jnp.vdot(params["w"], e["x"]) - e["y"])
    given = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in pool.items()}
    found = jax.jit(lambda p: membership.gradient_alignment(loss, p, given))({"w": passed})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    still = jnp.zeros((1, 3, 3))
    assert not np.any(membership.gradient_alignment(loss, {"w": still}, given))


def test_who_did_not_keep_the_rounds_is_told_so():
    given = trained.Trained(apply, {}, {}, np.ones((1, 1), bool), {})
    with pytest.raises(ValueError, match="gradient_alignment"):
        trained.attacked("gradient_alignment", given, jax.random.key(0))
