"""What an update says of its data as a whole, with a control that must fail."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax import data, models
from fljax.attacks import metrics, properties
from fljax.cli import _attack, _attack_properties

KNOWN, ASKED, EACH = 120, 80, 20


def made(turned, noise=0.0):
    """(Clipped gradients of clients of 20 digits, whether they are turned, shares of labels): the
    digits of those who know are none of those who are asked; noise in clip norms.
    """
    train = data.load("digits").train
    x, y = np.asarray(train["x"]), np.asarray(train["y"])
    rng = np.random.default_rng(0)
    half = np.arange(len(y)) < len(y) // 2
    mixes = rng.dirichlet(np.ones(10), KNOWN + ASKED)
    has = rng.random(KNOWN + ASKED) < 0.5
    picks = []
    for client, mix in enumerate(mixes):
        mine = np.flatnonzero(half == (client < KNOWN))
        chances = mix[y[mine]] / np.bincount(y[mine], minlength=10)[y[mine]]
        picks.append(rng.choice(mine, EACH, p=chances / chances.sum()))
    picks = np.asarray(picks)
    images = x[picks]
    if turned:
        images = np.where(has[:, None, None, None, None], np.rot90(images, axes=(2, 3)), images)
    net = models.create("mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(1))
    loss = models.softmax_cross_entropy(net.apply)
    grads = jax.vmap(jax.grad(loss), (None, 0))
    clipped = lambda e: fljax_kernels.clip_and_sum(grads(net.params, e), 1.0)[0]
    batch = {"x": jnp.asarray(images), "y": jnp.asarray(y[picks])}
    sums = jax.jit(lambda e: jax.lax.map(clipped, e))(batch)
    draw = lambda leaf: np.asarray(leaf) + noise * rng.normal(size=leaf.shape)
    shares = np.stack([np.bincount(y[own], minlength=10) / EACH for own in picks])
    return jax.tree.map(draw, sums), has, shares


def parts(tree):
    return (
        jax.tree.map(lambda leaf: leaf[:KNOWN], tree),
        jax.tree.map(lambda leaf: leaf[KNOWN:], tree),
    )


@pytest.mark.slow(reason="trains for one more property")
def test_turned_images_are_told_by_a_gradient_and_not_through_noise():
    for noise, low, high in ((0.0, 0.95, 1.0), (1.0, 0.3, 0.7)):
        sums, has, _ = made(True, noise)
        known, asked = parts(sums)
        found = properties.scores(known, has[:KNOWN], asked)
        auc = metrics.auc(found[has[KNOWN:]], found[~has[KNOWN:]])
        assert low <= auc <= high


def test_shares_of_labels_are_told_by_a_gradient_and_not_through_noise():
    errors = []
    for noise in (0.0, 1.0):
        sums, _, shares = made(False, noise)
        known, asked = parts(sums)
        found = properties.label_shares(known, shares[:KNOWN], asked)
        np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-9)
        assert (found >= 0).all()
        errors.append(np.square(found - shares[KNOWN:]).sum(1).mean())
    guess = np.square(shares[:KNOWN].mean(0) - shares[KNOWN:]).sum(1).mean()
    assert errors[0] < 0.1 * guess and errors[1] > 0.7 * guess


def test_the_regression_is_the_one_by_its_definition():
    """Apart from the code: each known one left out by hand, all penalties tried."""
    rng = np.random.default_rng(2)
    known, asked = rng.normal(size=(12, 5)), rng.normal(size=(3, 5))
    answers = known @ rng.normal(size=(5, 2)) + 0.3 * rng.normal(size=(12, 2))
    centred = known - known.mean(0)
    unit = np.mean(np.maximum(np.linalg.eigvalsh(centred @ centred.T), 0))

    def fit(x, y, penalty, at, about):
        """Around the mean of all: leaving one out leaves its pull on the mean out, too."""
        x1 = np.column_stack([np.ones(len(x)), x - about])
        ridge = penalty * unit * np.diag([0.0] + [1.0] * x.shape[1])
        return np.concatenate([[1.0], at - about]) @ np.linalg.solve(x1.T @ x1 + ridge, x1.T @ y)

    mean = known.mean(0)
    errors = []
    for penalty in properties._PENALTIES:
        gaps = [
            answers[i]
            - fit(np.delete(known, i, 0), np.delete(answers, i, 0), penalty, known[i], mean)
            for i in range(12)
        ]
        errors.append(np.square(gaps).sum())
    best = properties._PENALTIES[int(np.argmin(errors))]
    expected = [fit(known, answers, best, one, mean) for one in asked]
    np.testing.assert_allclose(properties.regress(known, answers, asked), expected, rtol=1e-6)


def test_bad_arguments_raise_in_one_line():
    known, has, asked = np.eye(6), np.arange(6) < 3, np.ones((2, 6))
    for call, text in (
        (lambda: properties.scores(known, has[:5], asked), "one answer to each"),
        (lambda: properties.scores(known, has & False, asked), "both answers"),
        (lambda: properties.scores(known[:3], has[[0, 1, 5]], asked), "at least 4 known"),
        (lambda: properties.scores(known, has, asked[:, :5]), "of 6 numbers each, got 5"),
        (lambda: properties.scores(known * np.nan, has, asked), "known of finite"),
        (lambda: properties.scores(known, has, asked + np.inf), "asked of finite"),
        (lambda: properties.scores({"a": known, "b": known[:2]}, has, asked), "one leading axis"),
        (lambda: properties.label_shares(known, np.ones((6, 2)), asked), "rows of sum 1"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_the_command_tells_turned_images_and_mixes_that_an_update_shows(monkeypatch):
    """Updates by float64: a direction for turned images, one for each label, and noise."""
    options = types.SimpleNamespace(pool=120, batch_size=20, seed=0, model=None, dataset="digits")
    rng, classes = np.random.default_rng(8), 10
    there = _attack_properties.clients(data.load("digits"), options.pool, 20, 0)
    along = rng.normal(size=(1 + classes, 16))
    shown = np.concatenate([there.has[:, None], there.mixes], axis=1) @ along

    def played(options, here, promise, say):
        # Each has a batch of its own: what is beside the first image are the other 19.
        assert here.beside["x"].shape[1] == 19
        told = [(np.inf, None, 0.0), (8.0, None, 1e3)]
        moved = [{"w": shown + noise * rng.normal(size=shown.shape)} for _, _, noise in told]
        return told, moved

    picture = []
    monkeypatch.setattr(_attack, "images", lambda *_: data.load("digits"))
    monkeypatch.setattr(_attack, "promised", lambda *_: types.SimpleNamespace(unit="epsilon"))
    monkeypatch.setattr(_attack, "played", played)
    monkeypatch.setattr(
        _attack_properties.attack_figures,
        "success",
        lambda *given, **_: picture.append(given) or "",
    )
    made = types.SimpleNamespace(params={"w": jnp.zeros(16)}, apply=None)
    monkeypatch.setattr(models, "create", lambda *_, **__: made)
    found = _attack_properties.run(options, None, print)
    plain, noisy = found.lines
    assert plain.auc == 1 and plain.label_mix > 0.95 and plain.rates[0].tpr == 1
    # 15 of each kind are asked: a standard error of 0.11.
    assert abs(noisy.auc - 0.5) < 0.5 and abs(noisy.label_mix) < 0.3 and noisy.bound == 1
    assert picture == []
    text = "".join(_attack_properties.sections(options, found))
    assert "120 clients of 20 images of digits" in text and "no noise" in text
    assert picture[0][:3] == ([8.0], {"images are turned": [noisy.auc]}, [1.0])
    assert _attack_properties.cells(plain)[-1].endswith("%")
    wide = data.Dataset({"x": np.zeros((4, 2, 3, 1)), "y": np.zeros(4, int)}, {}, 1, "wide")
    with pytest.raises(ValueError, match="square images"):
        _attack_properties.clients(wide, 2, 1, 0)
