"""The parameter-space channel: its noise against the K x K definition, its certificate, and noise
used twice.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.accounting import information
from fljax.errors import NoGuaranteeError
from fljax.upload.controlled_channel import controlled_channel, gradient_values

OPTIONS = {"nats": 5.0, "learning_rate": 0.3, "batch_size": 12}
CLIPPED = {
    "l2_clip_norm": 0.5,
    "num_params": 36,
    "record_dimension": 4,
    "nats": 5.0,
    "learning_rate": 0.3,
}


def loss(params, example):
    hidden = jnp.tanh(jnp.matmul(example["x"], params["w"]) + params["b"])
    return (jnp.matmul(hidden, params["v"]) - example["y"]) ** 2


def problem(num=12):
    rng = np.random.default_rng(1)
    params = {"w": rng.normal(size=(4, 6)), "b": rng.normal(size=6), "v": rng.normal(size=6)}
    batch = {"x": rng.normal(size=(num, 4)), "y": rng.normal(size=num)}
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (params, batch))


@functools.cache
def program(l2_clip_norm):
    """`(params, batch, mask, key, round) -> Upload`, compiled once for all tests."""
    upload = controlled_channel(loss, l2_clip_norm=l2_clip_norm, **OPTIONS)

    @jax.jit
    def run(params, batch, mask, key, round_index):
        return upload(params, batch, key=key, round_index=round_index, batch_mask=mask)

    def call(params, batch, key, round_index=0, mask=None):
        return run(
            params, batch, jnp.ones(12, bool) if mask is None else mask, key, jnp.int32(round_index)
        )

    return call


@functools.cache
def gradients():
    return jax.jit(jax.vmap(jax.grad(loss), (None, 0)))


def rows64(params, batch):
    """Per-example gradients `[B, K]`."""
    grads = gradients()(params, batch)
    return np.concatenate(
        [np.asarray(g, np.float64).reshape(len(g), -1) for g in jax.tree.leaves(grads)], axis=1
    )


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def test_the_estimated_noise_has_the_capacity_asked_for(key):
    params, batch = problem()
    upload = program(None)(params, batch, key, 3)
    rows = rows64(params, batch)
    covariance = 0.3**2 / 12 * np.cov(rows, rowvar=False, ddof=0)  # K x K, of the mean step
    noise_var = math.exp(upload.log_noise_var)
    nats = np.linalg.slogdet(np.eye(len(covariance)) + covariance / noise_var)[1] / 2
    assert nats == pytest.approx(5, rel=1e-5)
    assert bool(upload.sent)
    noise = flat(upload.update) - 0.3 * rows.mean(0)
    # Five standard errors of a mean square over K = 36 entries.
    assert abs(np.mean(noise**2) / noise_var - 1) <= 5 * math.sqrt(2 / noise.size)


def test_a_mask_is_a_smaller_batch(key):
    params, batch = problem()
    spoilt = jax.tree.map(lambda a: a.at[7:].set(jnp.nan), batch)
    masked = {
        clip: program(clip)(params, spoilt, key, mask=jnp.arange(12) < 7) for clip in (None, 0.5)
    }
    rows = rows64(params, jax.tree.map(lambda a: a[:7], batch))
    covariance = 0.3**2 / 12 * np.cov(rows, rowvar=False, ddof=0)
    nats = np.linalg.slogdet(np.eye(36) + covariance / math.exp(masked[None].log_noise_var))[1] / 2
    assert nats == pytest.approx(5, rel=1e-5)
    # divided by the public constant 12; the two uploads have one noise in units of its standard
    # deviation
    clean = {
        None: rows.sum(0),
        0.5: (rows * np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1))[:, None]).sum(0),
    }
    noise = [
        (flat(one.update) - 0.3 / 12 * clean[clip]) / math.exp(one.log_noise_var / 2)
        for clip, one in masked.items()
    ]
    np.testing.assert_allclose(noise[0], noise[1], atol=1e-4)


def test_the_toy_example_needs_new_noise_as_parameters_move(key):  # A1, A2
    # F = W^2 D, D of variance 1 in the batch, W = 2 and then 6: variance of the gradient 4 W^2.
    data = jnp.array([-2.0, 0.0, -2.0, 0.0])
    toy = controlled_channel(
        lambda w, d: w**2 * d, nats=1.0, learning_rate=1.0, batch_size=4, l2_clip_norm=None
    )
    for w in (2.0, 6.0):
        found = jax.jit(toy)(jnp.float32(w), data, key=key, round_index=0)
        # a mean of four: a quarter of the variance, and of the noise
        assert math.exp(found.log_noise_var) == pytest.approx(
            4 * w**2 / math.expm1(2) / 4, rel=1e-5
        )
    assert 16 / math.expm1(2) == pytest.approx(2.50428228399)


def test_with_a_clip_norm_the_noise_is_the_certified_one_whatever_the_data(key):
    params, batch = problem()
    upload = program(0.5)
    declared = information.clipped_upload(**CLIPPED)
    rows = rows64(params, batch)
    clipped = rows * np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1))[:, None]
    many = jax.vmap(lambda t: upload(params, batch, key, t))(jnp.arange(400))
    np.testing.assert_allclose(many.log_noise_var, declared.log_noise_var, rtol=1e-6)
    sent = np.concatenate(
        [np.asarray(leaf, np.float64).reshape(400, -1) for leaf in jax.tree.leaves(many.update)], 1
    )
    noise = sent - 0.3 * clipped.mean(0)
    assert abs(np.mean(noise**2) / declared.noise_var - 1) <= 5 * math.sqrt(2 / noise.size)
    assert np.abs(noise.mean(0)).max() <= 5 * math.sqrt(
        declared.noise_var / 400
    )  # of 36, at 5 standard errors
    # The clean upload never leaves the ball that the certificate counts on.
    assert np.linalg.norm(0.3 * clipped.mean(0)) <= 0.3 * 0.5
    other = upload(params, jax.tree.map(lambda a: 100 * a, batch), key)
    assert other.log_noise_var == many.log_noise_var[0]


def test_noise_used_twice_cancels_and_is_refused(key):
    params, batch = problem()
    upload = program(0.5)
    moved = jax.tree.map(lambda a: a + 0.1, params)
    first = upload(params, batch, key)
    again = upload(moved, batch, key)
    clean = []
    for p in (params, moved):
        rows = rows64(p, batch)
        clean.append(
            0.3 * (rows * np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1))[:, None]).mean(0)
        )
    # The difference is a function of the data without any noise: infinitely many nats.
    np.testing.assert_allclose(
        flat(again.update) - flat(first.update), clean[1] - clean[0], atol=1e-6
    )
    fresh = upload(moved, batch, key, 1)
    assert np.abs(flat(fresh.update) - flat(first.update) - clean[1] + clean[0]).max() > 1e-3
    claim = information.clipped_upload(**CLIPPED).one_use()
    sent = information.count_upload(information.Uploads(), claim, key=key, round_index=0)
    with pytest.raises(NoGuaranteeError, match="round_index=0 before"):
        information.count_upload(sent, claim, key=key, round_index=0)
    sent = information.count_upload(sent, claim, key=key, round_index=1)
    sent = information.count_upload(sent, claim, key=jax.random.key(1), round_index=1)
    total = information.uploads_total(sent)
    assert (total.nats, total.mode, total.certified) == (15.0, "linear", True)
    guess = information.estimated_upload(nats=5.0, record_dimension=4)
    mixed = information.uploads_total(information.count_upload(sent, guess, key=key, round_index=2))
    assert mixed.nats == 20.0 and not mixed.certified and mixed.covariance_source == "private"
    with pytest.raises(ValueError, match="one or more uploads"):
        information.uploads_total(information.Uploads())
    with pytest.raises(ValueError, match="one upload"):
        information.count_upload(sent, total, key=key, round_index=9)


def test_what_has_no_noise_is_not_sent(key):
    params, batch = problem()
    alike = jax.tree.map(lambda a: jnp.broadcast_to(a[:1], a.shape), batch)
    spoilt = jax.tree.map(lambda a: a.at[2].set(jnp.nan), batch)
    for data, mask in (
        (alike, None),
        (spoilt, None),
        (batch, jnp.arange(12) == 4),
        (batch, jnp.zeros(12, bool)),
    ):
        held = program(None)(params, data, key, mask=mask)
        assert not bool(held.sent) and not np.any(flat(held.update))
    # so many nats that the noise's standard deviation is no float32
    options = OPTIONS | {"nats": 1e4, "l2_clip_norm": 0.5}
    toy = controlled_channel(lambda w, d: jnp.sum(w * d), **options)
    held = toy(jnp.ones(2), jnp.ones((12, 2)), key=key, round_index=0)
    assert not bool(held.sent) and not np.any(held.update)
    # a row that is not finite adds nothing where rows are clipped
    without = program(0.5)(params, batch, key, mask=jnp.arange(12) != 2)
    assert bool(without.sent)
    np.testing.assert_allclose(
        flat(program(0.5)(params, spoilt, key).update), flat(without.update), atol=1e-5
    )


def test_clients_in_one_program_get_their_own_noise_and_dtypes_stay(key):
    toy = controlled_channel(lambda w, d: jnp.sum(w * d) ** 2, l2_clip_norm=None, **OPTIONS)
    params, batch = jnp.array([1.0, -2.0]), problem()[1]["x"][:, :2]
    batches, keys = jnp.stack([batch, 2 * batch, batch[::-1]]), jax.random.split(key, 3)
    many = jax.jit(jax.vmap(lambda b, k: toy(params, b, key=k, round_index=0)))(batches, keys)
    np.testing.assert_allclose(many.log_noise_var[2], many.log_noise_var[0], rtol=1e-4)
    # gradients of (w.d)^2 grow as the square of d, variances as its fourth power
    np.testing.assert_allclose(
        many.log_noise_var[1] - many.log_noise_var[0], 4 * math.log(2), rtol=1e-4
    )
    assert np.abs(many.update[2] - many.update[0]).max() > 1e-3
    low = jax.jit(toy)(
        params.astype(jnp.bfloat16), batch.astype(jnp.bfloat16), key=key, round_index=0
    )
    assert low.update.dtype == jnp.bfloat16 and low.log_noise_var.dtype == jnp.float32


def test_gradient_values_are_those_of_the_covariance():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(9, 30)) + 0.5
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(gradient_values)(jnp.asarray(rows @ rows.T)))
    dense = np.linalg.eigvalsh(np.cov(rows, rowvar=False, ddof=0))[-9:]
    np.testing.assert_allclose(found, dense, rtol=1e-10, atol=1e-13)
    assert found[0] == 0  # the mean took one direction


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nats": 0.0}, "nats > 0"),
        ({"nats": math.inf}, "nats > 0"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"l2_clip_norm": 0.0}, "l2_clip_norm"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 5}, "at most batch_size=5"),
    ],
)
def test_bad_input_is_refused(change, words, key):
    params, batch = problem()
    with pytest.raises(ValueError, match=words):
        controlled_channel(loss, **({"l2_clip_norm": None} | OPTIONS | change))(
            params, batch, key=key, round_index=0
        )
