"""What attackers of the channel paper make of uploads, where the answer is known: the gradient of a
record is the record, a search reads it back, and pixels are independent.
"""

import dataclasses
import math
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from fljax.papers import paper as records
from fljax.papers.channel import attacks, overhead, rounds, sent, victims

SHAPE, SIZE, CLASSES = (4, 4, 1), 16, 3
SETTINGS = records.Settings(seeds=1)


def as_images(rows, shape=SHAPE):
    return rows.reshape(-1, *shape).astype(np.float32)


def mse(found, truth):
    return np.square(np.asarray(found, np.float64) - truth).reshape(len(truth), -1).mean(axis=1)


@pytest.fixture
def attack(monkeypatch):
    """`attack(rows, public)`: victims that hold these rows, of covariance 1 in all directions."""

    def made(rows, public):
        task = victims.Task(
            "normals",
            CLASSES,
            members={"x": as_images(rows)[None], "y": np.zeros((1, len(rows)), np.int32)},
            others=None,
            test=None,
            public={"x": as_images(public), "y": np.zeros(len(public), np.int32)},
            values=np.ones(SIZE),
            covariance=np.eye(SIZE),
            factor=np.eye(SIZE, dtype=np.float32),
            gaussian=True,
            box=(-5.0, 5.0),
            functionals=[SimpleNamespace(params=None)],
            first_seed=0,
        )
        monkeypatch.setattr(victims, "task_of", lambda *_, **__: task)

    def tools(_):
        gradients = lambda params, x, y: {"w": np.asarray(x).mean(axis=1).reshape(len(x), -1)}
        search = lambda params, seen, *_: np.asarray(seen["w"]).reshape(
            *seen["w"].shape[:-1], *SHAPE
        )
        return gradients, search, search

    looks = lambda task, found, truth: {"mse": mse(found, np.asarray(truth))}
    monkeypatch.setattr(sent, "_tools", tools)
    monkeypatch.setattr(attacks, "looks", looks)
    return made


def solved(capacity):
    """The variance of noise by which a falling function of it is 0."""
    return math.exp(optimize.brentq(lambda log: capacity(math.exp(log)), -20, 20))


def balanced(rng, count, size=SIZE):
    half = rng.normal(size=(count // 2, size))
    return np.concatenate([half, -half])


def test_uploads_that_are_searched_for_side_by_side_come_back_in_their_order(attack):
    rows = np.random.default_rng(3).normal(size=(4, SIZE))
    attack(rows, rows)
    one = sent._Seed("normals", SETTINGS, 0)
    labels = np.zeros((4, 1), np.int32)
    uploads = [({"w": one.x.reshape(4, -1) + shift}, labels, one.x) for shift in (2.0, 0.0, 1.0)]
    found = one.each_found(uploads)
    assert [looks["mse"] for looks in found] == pytest.approx([4, 0, 1], abs=1e-5)
    assert one.found(*uploads[0])["mse"] == pytest.approx(4, abs=1e-5)


def test_equal_uploads_are_searched_for_from_equal_starts(monkeypatch):
    few = dataclasses.replace(attacks.SEARCH, num_iterations=2)
    monkeypatch.setattr(attacks, "SEARCH", few)
    sent._tools.cache_clear()
    one = sent._Seed("digits", SETTINGS, 0)
    x, y = one.x[:2], one.y[:2, None]
    upload = one.sent(x[:, None], y), y, x
    first, second = one.each_found([upload, upload])
    assert first == pytest.approx(second)
    sent._tools.cache_clear()  # its search is short


def test_errors_behind_channels_of_equal_nats_are_what_shannon_says(attack, monkeypatch):
    rng, budget = np.random.default_rng(0), 1536  # one nat for two coordinates
    rows, public = rng.normal(size=(512, SIZE)), balanced(rng, SIZE)
    attack(rows, public)
    monkeypatch.setattr(sent, "TARGETS", len(rows))
    monkeypatch.setattr(sent, "BUDGETS", (budget,))
    monkeypatch.setattr(victims, "LOW", (budget,))
    monkeypatch.setattr(victims, "HIGH", ())
    monkeypatch.setattr(victims, "CHANNELS", ("natural", "white"))
    found = {row["kind"]: row for row in sent.one_record("normals", SETTINGS)["rows"]}
    error = lambda kind, way="mse": found[kind][way][0]
    near = 5 * math.sqrt(2 / rows.size)  # five standard errors of a variance
    nats, var = SIZE / 2, 1 / math.expm1(1)
    assert error("none") == 0 and "linear" not in found["none"]
    for kind in ("natural", "white"):
        assert error(kind) == pytest.approx(var, rel=near)
        assert error(kind, "linear") == pytest.approx(math.exp(-1), rel=near)
    # The label, which is told beside the record, may say more of it.
    told = nats + math.log(CLASSES)
    for kind in ("natural", "white"):
        row = found[kind]
        assert row["nats"] == pytest.approx(told) and row["certified"]
        bound = math.exp(-2 * told / SIZE)
        assert row["bound"] == pytest.approx(bound) == pytest.approx(row["theorem1"])
    # Noise on gradients follows the spread of public ones, or the clip norm.
    spread = np.linalg.eigvalsh(public.T @ public / len(public))
    var = solved(lambda v: 0.5 * np.log1p(spread / v).sum() - nats)
    assert error("parameters") == pytest.approx(var, rel=near)
    norms = np.linalg.norm(rows, axis=1)
    lost = np.mean(np.maximum(norms - victims.CLIP, 0) ** 2) / SIZE
    var = victims.CLIP**2 / SIZE / math.expm1(1)
    assert error("parameters, clipped") == pytest.approx(lost + var, rel=0.05)
    # Three quarters of the directions are not sent, and none tells of another.
    assert error("embedding", "linear") > 0.75 * (1 - near)


def test_noise_on_a_batchs_gradient_hides_its_mean_as_much_as_its_variance_says(
    attack, monkeypatch
):
    rng, multiplier = np.random.default_rng(1), 0.1

    def of_norm_2(count):
        rows = balanced(rng, count)
        return 2 * rows / np.linalg.norm(rows, axis=1, keepdims=True)

    rows, public = of_norm_2(64), of_norm_2(24)
    attack(rows, public)
    monkeypatch.setattr(sent, "TARGETS", 256)
    monkeypatch.setattr(sent, "BATCHES", (1, 4))
    monkeypatch.setattr(sent, "DP_MULTIPLIER", multiplier)
    found = sent.means_of_batches("normals", SETTINGS)
    error = lambda series, batch: found["rows"][series][batch][0]
    near = 5 * math.sqrt(2 / (256 * SIZE))
    stddev = sent.CONSTANT * 2 / math.sqrt(SIZE)
    for batch in ("1", "4"):
        assert error("no defence", batch) < 1e-12
        assert error("constant noise", batch) == pytest.approx(stddev**2, rel=near)
    # Clipped to 1 a record of norm 2 loses half; behind that is the noise, and 0 between the two.
    across = 5 * 2 * multiplier / math.sqrt(SIZE) / math.sqrt(256 * SIZE)
    expected = 1 / SIZE + multiplier**2
    assert error("DP", "1") == pytest.approx(expected, abs=near * multiplier**2 + across)
    # Of four of 64 with a mean of 0 that of their squared mean is 4 / 4 * 60 / 63.
    expected = (60 / 63) / 4 / SIZE + (multiplier / 4) ** 2
    assert error("DP", "4") == pytest.approx(expected, rel=5 * math.sqrt(2 / SIZE / 256))
    # One record among others that are noise to it, by determinants.
    unit = public / 2
    spread = unit.T @ unit / len(unit)
    told = lambda count: 0.5 * np.linalg.slogdet(np.eye(SIZE) + count * spread / multiplier**2)[1]
    for batch in (1, 4):
        assert found["rows"]["nats"][str(batch)] == [
            pytest.approx(told(batch) - told(batch - 1), rel=1e-5)
        ]
    one = 1 / (2 * multiplier**2)
    assert found["nats"]["record"] == pytest.approx([one, one])
    assert found["nats"]["batch_mean"] == pytest.approx([one, 4 * one])


def test_directions_that_are_not_sent_cost_more_than_noise_of_equal_nats(attack, monkeypatch):
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(512, SIZE))
    attack(rows, balanced(rng, 24))
    monkeypatch.setattr(sent, "TARGETS", len(rows))
    monkeypatch.setattr(sent, "DROPPED", (0, 4))
    found = sent.compressed("normals", SETTINGS)
    error = {name: values[0] for name, values in found["rows"].items()}
    near = 5 * math.sqrt(2 / rows.size)
    for number in (0, 4):
        kept = SIZE - number
        dropped = (number + kept / 2) / SIZE  # noise as strong as a direction halves its variance
        assert error[f"directions set to 0, {number}"] == pytest.approx(dropped, rel=near)
        equal = 2 ** (-kept / SIZE)
        assert error[f"noise of equal nats, {number}"] == pytest.approx(equal, rel=near)
    assert [nats for _, nats, _ in found["equal nats"]] == pytest.approx(
        [SIZE / 2 * math.log(2), (SIZE - 4) / 2 * math.log(2)]
    )
    assert error["whole"] < 1e-12 and found["eigenvalues"] == [1.0] * len(sent.DIRECTIONS)
    for at in sent.DIRECTIONS:
        off = 5 * math.sqrt(2 / len(rows))
        assert error[f"without direction {at}"] == pytest.approx(1 / SIZE, rel=off)
    for share, kept in ((0.1, 2), (0.01, 1)):
        small = np.sort(np.square(rows), axis=1)[:, :-kept].sum(axis=1).mean() / SIZE
        assert error[f"largest {share:g}"] == pytest.approx(small, rel=1e-5)
        assert error[f"random {share:g}"] == pytest.approx((SIZE - kept) / SIZE, rel=near)


class Found(NamedTuple):
    x: jax.Array


def test_in_colour_the_linear_error_is_the_posterior_variance(monkeypatch):
    """Public patches and others are the same, so that their covariance is the very one."""
    shape, nats, (low, step) = (4, 4, 3), 20, (0.1, 0.05)
    size, rng = math.prod(shape), np.random.default_rng(3)
    rows = balanced(rng, 200, size) * np.sqrt(low + step * np.arange(size))
    patches = {"x": as_images(rows, shape), "y": np.zeros(len(rows), np.int32)}
    model = SimpleNamespace(params={}, apply=None)
    mirror = SimpleNamespace(
        soft_cross_entropy=lambda apply: None,
        gradient=lambda loss: lambda params, x, y: x,
        invert=lambda observe, params, seen, labels, key, **_: Found(seen),
    )
    monkeypatch.setattr(rounds, "SHAPE", shape)
    monkeypatch.setattr(rounds, "COLOUR_NATS", (nats,))
    monkeypatch.setattr(rounds, "_COLOUR_TARGETS", len(rows))
    monkeypatch.setattr(rounds, "photographs", lambda: (patches, patches))
    monkeypatch.setattr(rounds, "models", SimpleNamespace(create=lambda *_, **__: model))
    monkeypatch.setattr(rounds, "gradient_inversion", mirror)
    monkeypatch.setattr(attacks, "ssim", lambda found, truth, wide: jnp.zeros(1))
    told = rounds.in_colour(SETTINGS)
    found = {row["kind"]: row for row in told["rows"]}
    values = np.linalg.eigvalsh(rows.T @ rows / len(rows))
    assert told["variance"] == pytest.approx(values.mean(), rel=1e-5)
    natural = solved(lambda v: 0.5 * np.log1p(values / v).sum() - nats)
    white = (values + 1e-4 * values.mean()) / math.expm1(2 * nats / size)
    assert found["none"]["mse"] == [0] and "linear" not in found["none"]
    for kind, added in (("natural", np.full(size, natural)), ("white", white)):
        near = 5 * math.sqrt(2 * np.square(added).mean() / added.mean() ** 2 / rows.size)
        assert found[kind]["mse"] == [pytest.approx(added.mean(), rel=near)]
        left = values * added / (values + added)
        assert found[kind]["linear"] == [pytest.approx(left.mean(), rel=near)]


def softmax(params, x):
    return jnp.matmul(x.reshape(-1), params["logits"])


def gradients(weights, x, y):
    """Of softmax cross-entropy, one a record, float64 `[N, d, classes]`."""
    logits = x @ weights
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    residual = odds / odds.sum(axis=1, keepdims=True) - np.eye(weights.shape[1])[y]
    return x[:, :, None] * residual[:, None]


@pytest.fixture
def victim():
    """A linear victim of four records, which are one batch."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(4, SIZE)) * [[0.3], [1], [1], [1]], np.array([0, 1, 2, 0])
    weights = rng.normal(size=(SIZE, CLASSES)) / 4
    member = {"x": jnp.asarray(as_images(x))[None], "y": jnp.asarray(y)[None]}
    own = SimpleNamespace(params={"logits": jnp.asarray(weights, jnp.float32)}, apply=softmax)
    task = SimpleNamespace(
        members=member, functionals=[own], apply=softmax, first_seed=0, num_classes=CLASSES
    )
    return task, x, y, weights


SIZES = victims.Size(records=4, batch=4, rate=0.5, epochs=(1, 3))


def test_behind_no_noise_a_victim_trains_by_gradient_descent(victim):
    task, x, y, weights = victim
    none = victims.channel.RecordNoise(jnp.float32(-jnp.inf), jnp.ones(SIZE), jnp.zeros((SIZE, 1)))
    found = victims.train_channels(task, [victims.Case("none", noise=none)], SIZES)
    expected = weights
    for epoch in range(SIZES.epochs[-1]):
        expected = expected - SIZES.rate * gradients(expected, x, y).mean(axis=0)
        if epoch + 1 in SIZES.epochs:
            seen = found[SIZES.epochs.index(epoch + 1)]["logits"]
            np.testing.assert_allclose(seen, expected[None, None], atol=1e-6)
    assert victims.taken(found[0], [0])["logits"].shape == (1, 1, SIZE, CLASSES)


def test_private_victims_weigh_each_record_as_their_papers_say(victim):
    """Clipping, and DP-PSAC's weights 1 / (n + r / (n + r)), without noise."""
    task, x, y, weights = victim
    cases = [victims.Case(name) for name in victims.PRIVATE]
    found = victims.train_private(task, cases, SIZES._replace(epochs=(1,)))[0]["logits"]
    each = gradients(weights, x, y)
    norms = np.linalg.norm(each, axis=(1, 2))
    assert norms.min() < victims.CLIP < norms.max()
    r = victims.PSAC
    scales = (np.minimum(1, victims.CLIP / norms), victims.CLIP / (norms + r / (norms + r)))
    for place, scale in enumerate(scales):
        expected = weights - SIZES.rate * np.einsum("n,ndk->dk", scale, each) / 4
        np.testing.assert_allclose(found[place, 0], expected, atol=1e-6)


@pytest.mark.parametrize("name", victims.PRIVATE)
def test_each_private_step_has_noise_of_its_own_of_the_stddev_that_its_nats_are_of(name, victim):
    """So much that gradients, whose sum is at most the batch, do not show."""
    task, _, _, weights = victim
    multiplier, num_epochs = 1e4, 30
    sizes = SIZES._replace(epochs=tuple(range(1, num_epochs + 1)))
    found = victims.train_private(task, [victims.Case(name, multiplier=multiplier)], sizes)
    after = np.stack([weights, *(np.asarray(one["logits"], np.float64)[0, 0] for one in found)])
    steps = np.diff(after, axis=0).reshape(num_epochs, -1)
    near = 5 / math.sqrt(steps.size)
    stddev = SIZES.rate * multiplier * victims.CLIP / SIZES.batch
    assert np.mean(steps**2) == pytest.approx(stddev**2, rel=near * math.sqrt(2))
    assert abs(np.mean(steps[1:] * steps[:-1])) < near * stddev**2


def test_nats_of_private_steps_add_up_and_no_defence_has_none():
    task = SimpleNamespace(num_classes=CLASSES)
    assert victims.nats_after(task, victims.Case("DP-SGD", multiplier=2.0), 6) == 6 / 8
    assert victims.nats_after(task, victims.Case("none"), 6) is None


def test_members_are_told_by_what_a_victim_says_of_them(victim, monkeypatch):
    """Areas and accuracies by float64, of a network that learns nothing but the loss."""
    _, x, y, weights = victim
    rng = np.random.default_rng(5)
    others, labels = rng.normal(size=(4, SIZE)), np.array([1, 1, 0, 2])
    parts = [(x, y), (others, labels)]
    told = [{"x": jnp.asarray(as_images(a))[None], "y": jnp.asarray(b)[None]} for a, b in parts]
    world = SimpleNamespace(members=told[0], others=told[1], apply=softmax)
    params = {"logits": jnp.asarray(np.stack([weights, -weights])[:, None], jnp.float32)}
    fit = lambda known, inside, key, num_steps: lambda asked: -asked["loss"][:, 0]
    monkeypatch.setattr(attacks.white_box, "fit", fit)
    found = attacks.memberships(world, params)
    for row, sign in zip(found, (1, -1), strict=True):
        losses = []
        for a, b in parts:
            logits = sign * a @ weights
            losses.append(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(4), b])
        area = lambda mine, their: np.mean(mine[:, None] < their)
        assert row["auc"] == [pytest.approx(area(*losses))]
        assert row["network"] == [pytest.approx(area(losses[0][2:], losses[1][2:]))]
    assert [set(row) for row in attacks.memberships(world, params, network=False)] == [{"auc"}] * 2


def test_an_inversion_is_held_against_the_mean_of_its_class(victim, monkeypatch):
    task, x, y, weights = victim  # two records of class 0, and none of class 3
    rng = np.random.default_rng(6)
    images = rng.normal(size=(2, 1, 4, SIZE))  # of two cases and one seed, one a class
    wider = np.concatenate([weights, np.full((SIZE, 1), -9.0) * np.sign(x[:1].T)], axis=1)
    params = {"logits": np.tile(wider, (2, 1, 1, 1)), "found": images}
    invert = lambda apply, params, start, classes, box: params["found"].reshape(classes, *SHAPE)
    monkeypatch.setattr(attacks.model_inversion, "invert", invert)
    looks = lambda task, found, truth: {"mse": jnp.square(found - truth).mean((1, 2, 3))}
    monkeypatch.setattr(attacks, "looks", looks)
    world = SimpleNamespace(
        apply=softmax,
        num_classes=4,
        public={"x": jnp.zeros((2, *SHAPE))},
        box=(-1, 1),
        members=task.members,
        test=task.members,
    )
    found = attacks.inverted(world, jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), params))
    hits = np.mean((x @ wider).argmax(axis=1) == y)
    for row, seen in zip(found, images[:, 0], strict=True):
        errors = [np.mean((seen[c] - x[y == c].mean(axis=0)) ** 2) for c in range(3)]
        assert row["mse"] == [pytest.approx(np.median(errors), rel=1e-5)]
        assert row["accuracy"] == [pytest.approx(hits)]


def test_steps_that_are_timed_are_those_of_sgd_and_dp_sgd(monkeypatch):
    """The quicker form is the plain step; all take turns, as often as ten seconds allow."""
    batch, shape, classes = 3, (2, 2, 1), 3
    for name, value in (("BATCH", batch), ("SHAPE", shape), ("CLASSES", classes)):
        monkeypatch.setattr(overhead, name, value)
    monkeypatch.setattr(overhead, "MULTIPLIER", 0.0)
    slow, quick = [9.0, 5.0, 6.0], [9.0, 0.25, 0.5]
    warm, rounds_of_10_s = [9.0] * 4, 10
    script = iter([*slow, *quick, *warm, *range(4 * rounds_of_10_s)])
    calls, made = [], []

    def seconds(step, params, given, use):
        calls.append(step)
        if len(calls) in (7, 10):  # the first time of the plain step and of DP-SGD
            made.append((params, given, step(params, given, jnp.int32(use))))
        return next(script)

    monkeypatch.setattr(overhead, "_seconds", seconds)
    found = overhead.measured("softmax")
    assert found["parameters"] == 4 * classes + classes and found["quicker"] == "loop_friendly"
    assert calls[6] is calls[3] is not calls[0] and calls[10:14] == calls[6:10] == calls[-4:]
    for place, name in enumerate(("plain", "natural", "white", "DP-SGD")):
        assert found["seconds"][name] == list(range(place, 4 * rounds_of_10_s, 4))
    for way, (params, given, after) in zip(("plain", "DP-SGD"), made, strict=True):
        before, there = (
            {name: np.asarray(leaf, np.float64) for name, leaf in tree["logits"].items()}
            for tree in (params, after)
        )
        x = np.asarray(given["x"], np.float64).reshape(batch, -1)
        with_one = np.concatenate([x, np.ones((batch, 1))], axis=1)
        weights = np.concatenate([before["kernel"], before["bias"][None]])
        each = gradients(weights, with_one, np.asarray(given["y"]))
        norms = np.linalg.norm(each, axis=(1, 2))
        scale = np.minimum(1, victims.CLIP / norms) if way == "DP-SGD" else np.ones(batch)
        expected = weights - overhead.RATE * np.einsum("n,ndk->dk", scale, each) / batch
        np.testing.assert_allclose(there["kernel"], expected[:-1], atol=1e-6)
        np.testing.assert_allclose(there["bias"], expected[-1], atol=1e-6)
