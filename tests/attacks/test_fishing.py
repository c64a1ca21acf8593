"""A malicious head isolates most of a large batch one by one, and what it catches is inverted like
one image; none through a clipped sum with noise.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax import models
from fljax.attacks import fishing, gradient_inversion, metrics, victims
from fljax.models import Functional
from fljax.papers.channel.rounds import photographs

BATCH, CLASSES = 64, 10


def network(size, rng):
    weights = {
        "a": jnp.asarray(rng.normal(size=(size, 16)) / size**0.5, jnp.float32),
        "b": jnp.asarray(rng.normal(size=(16, CLASSES)), jnp.float32),
    }
    return Functional(weights, lambda p, x: jnp.tanh(x.reshape(-1) @ p["a"]) @ p["b"])


def each_gradient(model, x, y):
    loss = models.softmax_cross_entropy(model.apply)
    return jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(model.params, {"x": x, "y": y})


def of_features(model, x, direction):
    """Gradients in the network's weights of a feature alone, with no head: `[B, ...]`."""
    line = jnp.asarray(direction, jnp.float32)
    feature = lambda params, x: jnp.vdot(line, model.apply(params, x))
    return jax.jit(jax.vmap(jax.grad(feature), (None, 0)))(model.params, x)


def test_only_the_class_and_what_is_above_the_threshold_have_gradients():
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.random((BATCH, 4, 4, 1)), jnp.float32), np.arange(BATCH) % CLASSES
    plain = network(16, rng)
    logits = np.asarray(jax.vmap(plain.apply, (None, 0))(plain.params, x), np.float64)
    direction = rng.normal(size=CLASSES)
    features = logits @ direction
    own = np.flatnonzero(y == 3)
    first, second = own[np.argsort(-features[own])][:2]
    for how, above in (
        ({}, own),
        ({"direction": direction, "threshold": features[[first, second]].mean()}, [first]),
        ({"direction": direction, "threshold": features[own].min() - 1}, own),
        ({"direction": direction, "threshold": features[own].max() + 1}, []),
    ):
        line = how.get("direction", np.eye(CLASSES)[3])
        grads = each_gradient(fishing.fished(plain, 3, CLASSES, **how), x, jnp.asarray(y))
        expected = of_features(plain, x, line)
        kept = np.isin(np.arange(BATCH), above).astype(np.float32)
        for found, slope in zip(
            jax.tree.leaves(grads["model"]), jax.tree.leaves(expected), strict=True
        ):
            shape = (-1,) + (1,) * (slope.ndim - 1)
            np.testing.assert_allclose(found, -slope * kept.reshape(shape), rtol=1e-5, atol=1e-6)
        behind = fishing.num_behind(jnp.mean(grads["head"]["bias"]), BATCH)
        assert behind == pytest.approx(len(above), abs=1e-5)


def test_a_head_without_a_class_in_the_batch_catches_nothing():
    rng = np.random.default_rng(1)
    model = fishing.fished(network(16, rng), 9, CLASSES)
    grads = each_gradient(model, jnp.ones((2, 4, 4, 1)), jnp.asarray([0, 1]))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(grads))


def test_casts_are_passed_by_one_of_as_many_as_expected(key):
    rng = np.random.default_rng(2)
    mixing = rng.normal(size=(5, 5)) * [1, 1, 1, 1, 0.1]
    public, others = rng.normal(size=(2, 4000, 5)) @ mixing
    directions, thresholds = fishing.casts(public, key, 40, expected=8)
    np.testing.assert_allclose((directions @ public.T).std(1, ddof=1), 1.0, rtol=1e-6)
    above = directions @ others.T > thresholds[:, None]
    np.testing.assert_allclose(above.mean(), 1 / 8, atol=0.01)
    alone = (above.reshape(40, 500, 8).sum(2) == 1).mean()
    assert alone == pytest.approx(0.39, abs=0.03)  # 8 / 8 * (7 / 8)**7
    assert len(set(np.argmax(directions @ others.T, 1))) > 20


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="inverts gradients of colour images")
def test_most_of_a_batch_is_fished_out_and_nothing_through_noise(key):
    public, others = photographs()
    picks = np.random.default_rng(0).choice(len(others["y"]), BATCH, replace=False)
    x, y = jnp.asarray(others["x"][picks]), np.arange(BATCH) % CLASSES
    keys = list(jax.random.split(key, 4))
    plain = victims.smooth_lenet(example_shape=(32, 32, 3), num_classes=CLASSES, key=keys[0])
    logits = jax.jit(jax.vmap(plain.apply, (None, 0)))
    directions, thresholds = fishing.casts(
        logits(plain.params, jnp.asarray(public["x"])), keys[1], 40, expected=BATCH / CLASSES
    )
    # One program: classes are alike to the head, so that class c is fished for by naming it 0.
    shared = fishing.fished(plain, 0, CLASSES, direction=directions[0], threshold=thresholds[0])
    loss = models.softmax_cross_entropy(shared.apply)

    def sent(cast):
        head = fishing.fished(
            plain, 0, CLASSES, direction=directions[cast], threshold=float(thresholds[cast])
        )
        return head.params

    def mean_loss(params, labels):
        return jnp.mean(jax.vmap(loss, (None, 0))(params, {"x": x, "y": labels}))

    upload = jax.jit(jax.grad(mean_loss))
    feature = lambda params, line, x: jnp.vdot(line, plain.apply(params, x))
    alone = jax.jit(jax.grad(feature))
    above = np.asarray(logits(plain.params, x), np.float64) @ directions.T > thresholds
    fished: dict[int, tuple] = {}
    for target in range(CLASSES):
        own = np.flatnonzero(y == target)
        for cast in np.flatnonzero(above[own].sum(0) == 1):  # other rounds show that they failed
            labels = jnp.asarray((y - target) % CLASSES)
            caught = int(own[np.argmax(above[own, cast])])
            if caught in fished:
                continue
            seen = upload(sent(cast), labels)
            assert fishing.num_behind(seen["head"]["bias"], BATCH) == pytest.approx(1, abs=1e-4)
            line = jnp.asarray(directions[cast], jnp.float32)
            truth = alone(plain.params, line, x[caught])
            gap = jax.tree.map(lambda a, b: BATCH * a + b, seen["model"], truth)
            far = [sum(np.sum(np.square(v)) for v in jax.tree.leaves(t)) for t in (gap, truth)]
            assert far[0] < 1e-6 * far[1]
            fished[caught] = (cast, seen, labels)
    assert len(fished) >= BATCH / 2
    # Two of them are inverted; the same rounds clipped, with noise multiplier 1, are not.
    prior = gradient_inversion.gaussian_prior(public["x"])
    sharp = gradient_inversion.Settings(optimizer="gauss_newton", tv_weight=0.0)
    bare = fishing.fished(plain, 0, CLASSES)
    observe = gradient_inversion.gradient(gradient_inversion.soft_cross_entropy(bare.apply))
    clipped = jax.jit(
        lambda params, labels: fljax_kernels.clip_and_sum(
            jax.vmap(jax.grad(loss), (None, 0))(params, {"x": x, "y": labels}), 1.0
        )[0]
    )
    search = jax.jit(
        lambda params, seen, key: gradient_inversion.invert(
            observe,
            params,
            seen,
            jax.nn.one_hot(jnp.zeros((2, 1), jnp.int32), CLASSES),
            key,
            shape=(1, 32, 32, 3),
            settings=sharp,
            prior=prior,
        ).x[:, 0]
    )
    rng = np.random.default_rng(5)
    for caught in sorted(fished)[:2]:
        cast, seen, labels = fished[caught]
        noisy = jax.tree.map(
            lambda leaf: leaf + rng.normal(size=leaf.shape).astype(np.float32),
            clipped(sent(cast), labels),
        )
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), seen, noisy)
        found = search(sent(cast), both, keys.pop())
        clear, hidden = (float(metrics.psnr(image, x[caught])) for image in found)
        assert clear > 20 > 15 > hidden, (caught, clear, hidden)
        assert float(metrics.cosine(noisy, seen)) < 0.1


def test_bad_arguments_raise_in_one_line(key):
    plain, logits = (
        network(4, np.random.default_rng(3)),
        np.random.default_rng(3).normal(size=(9, 2)),
    )
    for how, text in (
        ({"target": -1}, "target"),
        ({"target": CLASSES}, "target < num_classes"),
        ({"num_classes": 0}, "num_classes"),
        ({"direction": np.zeros(CLASSES)}, "direction"),
        ({"direction": np.ones(3)}, "direction"),
        ({"direction": np.full(CLASSES, np.nan)}, "direction"),
        ({"threshold": np.inf}, "threshold"),
    ):
        with pytest.raises(ValueError, match=text):
            fishing.fished(**({"model": plain, "target": 0, "num_classes": CLASSES} | how))
    for how, text in (
        ({"logits": logits[:1]}, "N >= 2"),
        ({"logits": logits * np.nan}, "finite"),
        ({"num_casts": 0}, "num_casts"),
        ({"expected": 0.5}, "expected"),
        ({"expected": np.nan}, "expected"),
        ({"key": jax.random.PRNGKey(0)}, "key"),
    ):
        with pytest.raises(ValueError, match=text):
            fishing.casts(**({"logits": logits, "key": key, "num_casts": 2, "expected": 4} | how))
    with pytest.raises(ValueError, match="batch_size"):
        fishing.num_behind(-0.1, 0)
