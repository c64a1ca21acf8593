"""Reconstruction from gradients: positive controls without defence, and the same attacks with noise
in the way.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, models
from fljax.attacks import _descent, _lbfgs, analytic, metrics, victims
from fljax.attacks import gradient_inversion as inversion
from fljax.papers.channel.rounds import photographs

SHAPE = (8, 8, 1)
QUICK = inversion.Settings(num_iterations=400, tv_weight=0.0)


@pytest.fixture(scope="module")
def digits():
    test = data.load("digits").test
    return jnp.asarray(test["x"]), jax.nn.one_hot(test["y"], 10)


@pytest.fixture(scope="module")
def lenet():
    return victims.smooth_lenet(example_shape=SHAPE, num_classes=10, key=jax.random.key(0))


@pytest.fixture(scope="module")
def ten_gradients(digits, lenet):
    """Gradients of ten real digits, one each."""
    observe = inversion.gradient(inversion.soft_cross_entropy(lenet.apply))
    x, y = (v[:10, None] for v in digits)
    return observe, x, y, jax.jit(jax.vmap(observe, (None, 0, 0)))(lenet.params, x, y)


def psnrs(found, truth):
    return np.asarray(jax.vmap(metrics.psnr)(found, truth))


@pytest.mark.slow(reason="inverts gradients of a LeNet")
def test_inverting_gradients_recovers_real_digits_from_a_lenet(ten_gradients, lenet, key):
    observe, x, y, uploads = ten_gradients
    labels = analytic.label(uploads["dense"]["bias"])
    np.testing.assert_array_equal(labels, y[:, 0].argmax(-1))  # all of them: iDLG
    run = jax.jit(
        lambda u, k: inversion.invert(
            observe, lenet.params, u, y, k, shape=(1, *SHAPE), settings=QUICK
        )
    )
    keys = jax.random.split(key, 3)
    found = run(uploads, keys[0])
    good = psnrs(found.x, x) > 25
    assert good.sum() >= 8
    # With noise as long as the gradient the same program finds nothing; the loss tells.
    scale = jax.vmap(lambda u: jnp.sqrt(sum(jnp.vdot(v, v) for v in jax.tree.leaves(u))))(uploads)
    size = sum(v[0].size for v in jax.tree.leaves(uploads))
    leaves, tree = jax.tree.flatten(uploads)
    noise_keys = jax.random.split(keys[1], len(leaves))
    noisy = [
        v + jax.random.normal(k, v.shape) * scale.reshape(-1, *(1,) * (v.ndim - 1)) / size**0.5
        for k, v in zip(noise_keys, leaves, strict=True)
    ]
    hidden = run(jax.tree.unflatten(tree, noisy), keys[2])
    assert (psnrs(hidden.x, x) < 20).all()
    assert (hidden.loss > 0.1).all() and (found.loss[good] < 1e-3).all()


@pytest.mark.slow(reason="inverts gradients by hundreds of optimiser steps")
def test_dlg_finds_image_and_label_together(ten_gradients, lenet, key):
    observe, x, y, uploads = ten_gradients
    settings = inversion.Settings(
        distance="l2",
        signed=False,
        fit_labels=True,
        tv_weight=0.0,
        num_iterations=600,
        num_restarts=2,
    )
    three = jax.tree.map(lambda v: v[:3], (uploads, y))
    run = jax.jit(
        lambda u, y: inversion.invert(
            observe, lenet.params, u, y, key, shape=(1, *SHAPE), settings=settings
        )
    )
    found = run(three[0], jnp.zeros_like(three[1]))
    assert found.losses.shape == (3, 2)
    np.testing.assert_array_equal(found.loss, found.losses.min(1))
    assert (psnrs(found.x, x[:3]) > 25).sum() >= 2
    np.testing.assert_array_equal(found.y[:, 0].argmax(-1), y[:3, 0].argmax(-1))


@pytest.fixture(scope="module")
def tanh_mlp():
    """A dense model: quick to compile, unrolled several times."""
    one, two = jax.random.split(jax.random.key(3))
    params = {"a": jax.random.normal(one, (64, 96)) / 8, "b": jax.random.normal(two, (96, 10)) / 8}
    return params, lambda p, x: jnp.tanh(x.reshape(-1) @ p["a"]) @ p["b"]


@pytest.mark.slow(reason="inverts gradients by hundreds of optimiser steps")
def test_local_steps_and_sums_of_users_are_inverted_too(digits, tanh_mlp, key):
    params, apply = tanh_mlp
    loss = inversion.soft_cross_entropy(apply)
    update = inversion.local_update(loss, learning_rate=0.5, batch_size=1, num_epochs=2)
    settings = dataclasses.replace(QUICK, distance="l2", signed=False, num_iterations=800)
    # Two users with two digits each, three local steps more than one: the server sees the mean of
    # their updates.
    x, y = digits[0][:4].reshape(1, 2, 2, *SHAPE), digits[1][:4].reshape(1, 2, 2, 10)
    for observe, a, b in (
        (update, x[:, 0], y[:, 0]),
        (inversion.aggregate(update), x, y),
    ):
        uploads = jax.vmap(observe, (None, 0, 0))(params, a, b)
        found = jax.jit(
            lambda u, b, k, observe=observe, a=a: inversion.invert(
                observe, params, u, b, k, shape=a.shape[1:], settings=settings
            )
        )(uploads, b, jax.random.fold_in(key, a.ndim))
        flat = [v.reshape(-1, *SHAPE) for v in (found.x, a)]
        order = metrics.assignment(*flat)
        assert (psnrs(flat[0], flat[1][order]) > 20).mean() >= 0.5


@pytest.mark.slow(reason="inverts updates by hundreds of optimiser steps")
def test_epochs_in_orders_that_nobody_knows_are_inverted_by_one_order(digits, tanh_mlp, key):
    params, apply = tanh_mlp
    loss = inversion.soft_cross_entropy(apply)
    epoch = inversion.local_update(loss, learning_rate=0.1, batch_size=2)
    x, y = digits[0][:4], digits[1][:4]
    now = params
    for order in ([2, 0, 3, 1], [1, 2, 0, 3]):  # of a client that shuffles
        update = epoch(now, x[np.asarray(order)], y[np.asarray(order)])
        now = jax.tree.map(jnp.subtract, now, update)
    upload = jax.tree.map(lambda a, b: (a - b)[None], params, now)
    assumed = inversion.local_update(loss, learning_rate=0.1, batch_size=2, num_epochs=2)
    settings = dataclasses.replace(QUICK, distance="l2", signed=False, num_iterations=800)
    run = jax.jit(
        lambda u: inversion.invert(
            assumed, params, u, y[None], key, shape=(4, *SHAPE), settings=settings
        )
    )
    found = run(upload).x[0]
    order = metrics.assignment(found, x)
    assert (psnrs(found, x[order]) > 20).mean() >= 0.5


SHARP = inversion.Settings(optimizer="gauss_newton", tv_weight=0.0)


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="inverts gradients of colour images")
def test_gauss_newton_recovers_colour_images_alone_and_in_batches_but_not_from_noise(key):
    public, others = photographs()
    prior = inversion.gaussian_prior(public["x"])
    net = victims.smooth_lenet(example_shape=(32, 32, 3), num_classes=10, key=jax.random.key(0))
    observe = inversion.gradient(inversion.soft_cross_entropy(net.apply))
    seen = jax.jit(jax.vmap(observe, (None, 0, 0)))
    every = jnp.asarray(others["x"][np.random.default_rng(0).choice(len(others["y"]), 4, False)])
    labels = jax.nn.one_hot(jnp.arange(4), 10)

    def search(batch, prior, num_iterations=400):
        return jax.jit(
            lambda u, y: inversion.invert(
                observe,
                net.params,
                u,
                y,
                jax.random.clone(key),
                shape=(batch, 32, 32, 3),
                settings=dataclasses.replace(SHARP, num_iterations=num_iterations),
                prior=prior,
            )
        )

    alone, y = every[:2, None], labels[:2, None]
    uploads = seen(net.params, alone, y)
    informed = search(1, prior)
    sharp = informed(uploads, y)
    assert (psnrs(sharp.x, alone) > 30).all() and (sharp.loss < 1e-4).all()
    assert np.mean(psnrs(search(1, None, 1000)(uploads, y).x, alone)) > 17  # without a prior
    together = search(4, prior)(seen(net.params, every[None], labels[None]), labels[None])
    assert np.mean(psnrs(together.x[0], every)) > 20
    # A thousand times the gradient's length of noise; ten times still leave 15 dB and more.
    size = sum(v[0].size for v in jax.tree.leaves(uploads))
    lengths = jax.vmap(lambda u: jnp.sqrt(_descent.square(u)))(uploads)
    rng = np.random.default_rng(0)
    noisy = jax.tree.map(
        lambda v: (
            v
            + (1000 * lengths / size**0.5).reshape(-1, *(1,) * (v.ndim - 1))
            * jnp.asarray(rng.normal(size=v.shape), jnp.float32)
        ),
        uploads,
    )
    assert (psnrs(informed(noisy, y).x, alone) < 20).all()


@pytest.mark.release(reason="ten seconds")
@pytest.mark.slow(reason="inverts a gradient with its label")
def test_gauss_newton_finds_label_distance_and_variation_too(ten_gradients, lenet, key):
    observe, x, y, uploads = ten_gradients
    settings = dataclasses.replace(
        SHARP, distance="l2", fit_labels=True, tv_weight=1e-6, num_restarts=4
    )
    run = lambda u, y: inversion.invert(
        observe, lenet.params, u, y, key, shape=(1, *SHAPE), settings=settings
    )
    found = jax.jit(run)(*jax.tree.map(lambda v: v[:4], (uploads, jnp.zeros_like(y))))
    right = np.asarray(found.y[:, 0].argmax(-1) == y[:4, 0].argmax(-1))
    assert (right & (psnrs(found.x, x[:4])[:, None].reshape(4) > 25)).sum() >= 2


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="inverts gradients of colour images")
def test_lbfgs_climbs_over_the_jumps_of_a_gradient_of_relus(monkeypatch):
    _, others = photographs()
    picks = np.random.default_rng(0).choice(len(others["y"]), 4, False)
    x, y = (
        jnp.asarray(others["x"][picks])[:, None],
        jax.nn.one_hot(jnp.zeros((4, 1), jnp.int32), 10),
    )
    net = models.create("cnn", example_shape=(32, 32, 3), num_classes=10, key=jax.random.key(0))
    observe = inversion.gradient(inversion.soft_cross_entropy(net.apply))
    uploads = jax.jit(jax.vmap(observe, (None, 0, 0)))(net.params, x, y)
    settings = inversion.Settings(optimizer="lbfgs", num_iterations=300)

    def found():
        run = lambda u, k: inversion.invert(
            observe, net.params, u, y, k, shape=(1, 32, 32, 3), settings=settings
        )
        return jax.jit(run)(uploads, jax.random.key(0))

    climbing = found()
    monkeypatch.setattr(_lbfgs, "_ENDS", 1)
    caught = found()
    assert np.mean(psnrs(climbing.x, x)) > np.mean(psnrs(caught.x, x)) + 5
    assert np.median(climbing.loss) < 0.5 * np.median(caught.loss)


def test_a_gaussian_prior_has_the_moments_of_its_examples():
    rng = np.random.default_rng(1)
    mixing = rng.normal(size=(2, 6)) * [[3.0], [1.0]]
    public = (rng.normal(size=(400, 2)) @ mixing + 2.0).reshape(400, 3, 2, 1)
    prior = inversion.gaussian_prior(public, rank=2)
    flat = np.asarray(prior.roots).reshape(2, 6)
    np.testing.assert_allclose(prior.mean, public.mean(0), atol=1e-5)
    np.testing.assert_allclose(flat.T @ flat, np.cov(public.reshape(400, 6).T), atol=1e-4)
    spread = np.sqrt(np.trace(np.cov(public.reshape(400, 6).T)) / 6)
    np.testing.assert_allclose(prior.rest, 2e-3 * spread, rtol=1e-3)  # nothing is left: the floor
    assert inversion.gaussian_prior(public[:4]).roots.shape == (2, 3, 2, 1)
    for bad, text in ((public[:2], "at least 3"), (public * np.nan, "not finite|is not")):
        with pytest.raises(ValueError, match=text):
            inversion.gaussian_prior(bad)
    with pytest.raises(ValueError, match="rank"):
        inversion.gaussian_prior(public, rank=0)


def test_the_gradient_of_a_transformers_patches_holds_each_patch_up_to_what_meets_in_it():
    """Kernel and places: outer products of patches with what the places' gradient is, exactly."""
    make = functools.partial(models.create, "small_vit", num_classes=3, key=jax.random.key(0))
    net = make(example_shape=(8, 8, 1))
    x = jax.random.uniform(jax.random.key(1), (8, 8, 1))
    loss = lambda params: -jax.nn.log_softmax(net.apply(params, x))[1]
    grads = jax.jit(jax.grad(loss))(net.params)
    patches = np.asarray(x).reshape(2, 4, 2, 4).transpose(0, 2, 1, 3).reshape(4, 16)
    found = np.linalg.lstsq(np.asarray(grads["places"]).T, np.asarray(grads["patches"]["kernel"]).T)
    np.testing.assert_allclose(found[0], patches, atol=1e-3)
    with pytest.raises(ValueError, match="sides that 4 divides"):
        make(example_shape=(10, 8, 1))


def test_a_prior_goes_with_gauss_newton_alone_and_fits_the_shape():
    prior = inversion.gaussian_prior(np.random.default_rng(0).normal(size=(9, *SHAPE)))

    def run(shape=(1, *SHAPE), settings=SHARP, **options):
        return jax.eval_shape(
            lambda: inversion.invert(
                lambda p, x, y: x,
                {},
                jnp.zeros((2, *shape)),
                jnp.zeros((2, 1)),
                jax.random.key(0),
                shape=shape,
                settings=settings,
                prior=prior,
                **options,
            )
        )

    assert run().x.shape == (2, 1, *SHAPE)
    assert run(shape=(3, 2, *SHAPE)).x.shape == (2, 3, 2, *SHAPE)
    for case, text in (
        ({"settings": QUICK}, "got optimizer='adam' and no start"),
        ({"start": jnp.zeros((1, *SHAPE))}, "and a start"),
        ({"shape": (1, 4, 4, 1)}, r"prior.mean of shape \(8, 8, 1\)"),
        ({"penalty": jnp.sum}, "no penalty with optimizer='gauss_newton'"),
    ):
        with pytest.raises(ValueError, match=text):
            run(**case)


def test_local_update_of_one_step_is_the_gradient_and_bad_batches_raise(digits, tanh_mlp):
    params, apply = tanh_mlp
    loss = inversion.soft_cross_entropy(apply)
    x, y = digits[0][:3], digits[1][:3]
    step = inversion.local_update(loss, learning_rate=0.25, batch_size=3)(params, x, y)
    grads = inversion.gradient(loss)(params, x, y)
    np.testing.assert_allclose(step["a"], 0.25 * grads["a"], atol=1e-6)
    with pytest.raises(ValueError, match="batch_size to divide the 3 examples"):
        inversion.local_update(loss, learning_rate=0.25, batch_size=2)(params, x, y)
    with pytest.raises(ValueError, match="learning_rate"):
        inversion.local_update(loss, learning_rate=0.0, batch_size=2)


def test_examples_that_are_clipped_each_send_the_mean_of_their_directions(digits, tanh_mlp):
    params, apply = tanh_mlp
    loss = inversion.soft_cross_entropy(apply)
    x, y = digits[0][:3], digits[1][:3]
    rows = [inversion.gradient(loss)(params, x[i : i + 1], y[i : i + 1]) for i in range(3)]
    flat = np.stack([np.concatenate([np.ravel(v) for v in jax.tree.leaves(r)]) for r in rows])
    expected = (flat / np.linalg.norm(flat, axis=1, keepdims=True)).mean(0)
    sent = inversion.clipped(inversion.gradient(loss))(params, x, y)
    found = np.concatenate([np.ravel(v) for v in jax.tree.leaves(sent)])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # Their sum goes another way: an attacker who takes it for that looks for other examples.
    whole = np.concatenate(
        [np.ravel(v) for v in jax.tree.leaves(inversion.gradient(loss)(params, x, y))]
    )
    assert whole @ expected < 0.999 * np.linalg.norm(whole) * np.linalg.norm(expected)


@pytest.mark.slow(reason="inverts gradients by hundreds of optimiser steps")
def test_mean_restoration_finds_the_batch_mean_better_than_an_image(digits, tanh_mlp, key):
    # App. D of arXiv:2403.01268: one image is sought that explains the gradient of a whole batch.
    params, apply = tanh_mlp
    observe = inversion.gradient(inversion.soft_cross_entropy(apply))
    same = np.flatnonzero(np.asarray(digits[1][:, 3]))[:8]
    x, y = digits[0][same], digits[1][same]
    uploads = jax.tree.map(lambda v: v[None], observe(params, x, y))
    found = inversion.invert(
        observe, params, uploads, y.mean(0)[None, None], key, shape=(1, *SHAPE), settings=QUICK
    ).x[0, 0]
    to_mean = float(metrics.mse(found, x.mean(0)))
    to_images = [float(metrics.mse(found, image)) for image in x]
    assert to_mean < min(to_images) and to_mean <= np.mean(to_images)


@pytest.mark.slow(reason="inverts gradients by hundreds of optimiser steps")
def test_tag_finds_the_tokens_of_a_text(key):
    vocabulary, length, width, classes = 40, 6, 16, 8
    a, b, c, d = jax.random.split(jax.random.key(5), 4)
    table = jax.random.normal(a, (vocabulary, width))
    params = {
        "a": jax.random.normal(b, (length * width, 64)) / 10,
        "b": jax.random.normal(c, (64, classes)) / 8,
    }
    apply = lambda p, e: jnp.tanh(e.reshape(-1) @ p["a"]) @ p["b"]
    tokens = jax.random.randint(d, (5, length), 0, vocabulary)
    y = jax.nn.one_hot(jnp.arange(5) % classes, classes)[:, None]
    observe = inversion.gradient(inversion.soft_cross_entropy(apply))
    uploads = jax.vmap(observe, (None, 0, 0))(params, table[tokens][:, None], y)
    settings = inversion.Settings(
        distance="tag", signed=False, tv_weight=0.0, box=None, num_iterations=800
    )
    found = jax.jit(
        lambda u: inversion.invert(
            observe, params, u, y, key, shape=(1, length, width), settings=settings
        )
    )(uploads)
    assert (analytic.nearest_tokens(found.x[:, 0], table) == tokens).mean() > 0.9


def test_the_gradient_of_an_embedding_names_its_tokens():
    table, tokens = jnp.ones((7, 3)), jnp.asarray([2, 5, 2])
    grads = jax.grad(lambda t: jnp.sum(jnp.square(t[tokens])))(table)
    np.testing.assert_array_equal(np.flatnonzero(analytic.tokens_present(grads)), [2, 5])


def test_a_first_dense_layer_gives_its_input_away(digits):
    x = digits[0][0].reshape(-1)
    params = {"kernel": jax.random.normal(jax.random.key(0), (64, 32)) / 8, "bias": jnp.zeros(32)}
    loss = lambda p: jnp.sum(jax.nn.relu(x @ p["kernel"] + p["bias"])[:3] ** 2)
    grads = jax.grad(loss)(params)
    np.testing.assert_allclose(analytic.first_dense(grads["kernel"], grads["bias"]), x, atol=1e-5)


def test_label_counts_of_a_batch_at_the_start_of_training():
    counts = np.asarray([3, 0, 0, 1, 0, 0, 2, 0, 2, 0])
    probs = np.full(10, 0.1) + 0.01 * np.sin(np.arange(10))
    np.testing.assert_array_equal(analytic.label_counts(probs - counts / 8, 8), counts)
    assert analytic.label_counts(np.zeros(10), 3).sum() == 3


def test_label_counts_add_up_to_the_batch_whatever_the_gradient():
    # Nothing is left of the shares, or they are all alike: as even as can be.
    for gradient, size in ((0.2, 20), (0.1, 20), (-5.0, 20), (-1e308, 23)):
        counts = analytic.label_counts(np.full(10, gradient), size)
        assert counts.sum() == size and set(counts) <= {size // 10, -(-size // 10)}
    rng = np.random.default_rng(0)
    for size in range(1, 60):
        counts = analytic.label_counts(rng.normal(size=10), size)
        assert counts.sum() == size and counts.min() >= 0
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="bias_gradient of finite numbers"):
            analytic.label_counts(np.full(10, bad), 4)
        with pytest.raises(ValueError, match="mean_probs of finite numbers"):
            analytic.label_counts(np.zeros(10), 4, mean_probs=np.full(10, bad))
    with pytest.raises(ValueError, match="one shape"):
        analytic.label_counts(np.zeros(10), 4, mean_probs=np.zeros(9))


@pytest.mark.release(reason="a third of a minute")
@pytest.mark.slow(reason="inverts gradients by hundreds of optimiser steps")
def test_restarts_that_are_drawn_together_agree_and_find_the_digit(ten_gradients, lenet):
    observe, x, y, uploads = ten_gradients
    few = jax.tree.map(lambda v: v[:3], uploads)
    many = dataclasses.replace(QUICK, num_restarts=3)

    def found(weight):
        settings = dataclasses.replace(many, group_weight=weight)
        run = lambda u, k: inversion.invert(
            observe, lenet.params, u, y[:3], k, shape=(1, *SHAPE), settings=settings
        )
        return jax.jit(run)(few, jax.random.key(7))

    pulled = found(0.1)
    assert pulled.losses.shape == (3, 3) and (psnrs(pulled.x, x[:3]) > 25).sum() >= 2
    np.testing.assert_allclose(pulled.loss, pulled.losses.min(1))
    # Pulled hard, all are the same, whatever the upload says.
    assert np.ptp(np.asarray(found(1e6).losses), axis=1).max() < 1e-2
    # Alone, by a weight that says next to nothing.
    apart, alone = found(1e-12), found(0.0)
    assert (psnrs(apart.x, x[:3]) > 25).sum() >= 2 and (psnrs(alone.x, x[:3]) > 25).sum() >= 2


def test_total_variation_of_a_step():
    x = jnp.zeros((1, 4, 4, 1)).at[:, 2:].set(1.0)
    assert float(inversion.total_variation(x)) == pytest.approx(4 / 12)


def test_bad_settings_and_axes_raise_in_one_line(key):
    for change, text in (
        ({"distance": "l3"}, "distance to be one of"),
        ({"tv_weight": -1.0}, "tv_weight >= 0"),
        ({"num_iterations": 0}, "num_iterations"),
        ({"box": (1.0, 1.0)}, "low < high"),
        ({"optimizer": "gauss_newton", "distance": "tag"}, "cosine or l2"),
        ({"group_weight": -1.0}, "group_weight >= 0"),
        ({"group_weight": 1.0, "optimizer": "lbfgs"}, "group_weight=0 without"),
        ({"group_weight": 1.0}, "num_restarts >= 2 for group_weight"),
    ):
        with pytest.raises(ValueError, match=text):
            inversion.Settings(**change)
    with pytest.raises(ValueError, match="one leading axis T"):
        inversion.invert(
            lambda p, x, y: x, {}, jnp.zeros((2, 1)), jnp.zeros((3, 1)), key, shape=(1, 1)
        )
    with pytest.raises(ValueError, match="typed PRNG key"):
        inversion.invert(
            lambda p, x, y: x, {}, jnp.zeros((2, 1)), jnp.zeros((2, 1)), jnp.zeros(2), shape=(1, 1)
        )


def test_a_start_of_another_shape_or_not_finite_is_refused(ten_gradients, lenet, key):
    observe, _, y, uploads = ten_gradients

    def run(start):
        return inversion.invert(
            observe, lenet.params, uploads, y, key, shape=(1, *SHAPE), settings=QUICK, start=start
        )

    with pytest.raises(ValueError, match=r"start of shape \(8, 8, 1\)"):
        run(jnp.zeros(SHAPE))
    with pytest.raises(ValueError, match=r"start of shape \(8, 8, 1\)"):
        jax.eval_shape(run, jax.ShapeDtypeStruct(SHAPE, jnp.float32))
    with pytest.raises(ValueError, match="finite"):
        run(jnp.zeros((1, *SHAPE)).at[0, 0].set(jnp.nan))


@pytest.mark.slow(reason="compiles one more search", but=["adam-float32", "gauss_newton-float64"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "settings",
    [
        inversion.Settings(num_iterations=200),
        inversion.Settings(num_iterations=200, tv_weight=0.0, fit_labels=True, distance="tag"),
        inversion.Settings(num_iterations=200, num_restarts=2, group_weight=1e-3),
        inversion.Settings(optimizer="lbfgs", tv_weight=0.0, num_iterations=60),
        inversion.Settings(optimizer="gauss_newton", tv_weight=0.0, num_iterations=400),
        inversion.Settings(optimizer="gauss_newton", num_iterations=100, fit_labels=True),
    ],
    ids=["adam", "labels", "together", "lbfgs", "gauss_newton", "variation"],
)
def test_a_search_has_its_uploads_dtype_where_x64_is_enabled(settings, dtype):
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        x = jnp.asarray(rng.uniform(0.2, 0.8, (1, 1, 4, 4, 1)), dtype)
        y = jax.nn.one_hot(jnp.asarray([[1]]), 5, dtype=dtype)
        weights = jnp.asarray(0.5 * rng.normal(size=(16, 5)), dtype)
        apply = lambda params, x: jnp.tanh(x.reshape(-1) @ params)
        observe = inversion.gradient(inversion.soft_cross_entropy(apply))
        uploads = jax.vmap(observe, (None, 0, 0))(weights, x, y)
        prior = None
        if settings.optimizer == "gauss_newton":
            public = rng.uniform(0.2, 0.8, (20, 4, 4, 1))
            prior = inversion.gaussian_prior(public)
        run = jax.jit(
            lambda u, k, p: inversion.invert(
                observe, weights, u, y, k, shape=(1, 4, 4, 1), settings=settings, prior=p
            )
        )
        found = run(uploads, jax.random.key(0), prior)
        assert {leaf.dtype for leaf in found} == {np.dtype(dtype)}
        assert np.isfinite(found.x).all()
        if settings.optimizer == "lbfgs":
            # 1 - cosine is of the order of a rounding, or of its dtype's.
            assert float(found.loss[0]) < (1e-5 if dtype == np.float32 else 1e-9)
