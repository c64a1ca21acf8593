"""Channels attacked through their own rounds, with records of known law: no attack gets below the
error certified.

One client holds one record, all else is known to the attacker: the model, the label, the law of
records and of noise.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, models, schemes
from fljax.attacks import analytic, gradient_inversion, reconstruction
from fljax.data.cohorts import ClientData
from fljax.data.sources import fields

SIDE, T, USES, NATS = 4, 400, 3, 8.0
D = SIDE * SIDE


@functools.cache
def dataset():
    """As many public records as make the sample's covariance that of the law within a few per
    cent.
    """
    return fields.make(np.random.default_rng(11), num_train=T, num_test=4000, side=SIDE)


def truth():
    return dataset().train["x"].reshape(T, D)


def network(name, **options):
    return models.create(
        name, example_shape=(SIDE, SIDE, 1), num_classes=4, key=jax.random.key(3), **options
    )


def settings(name, **changes):
    public = {"covariance_source": "public"} if name == "natural_channel" else {}
    # A mask of 50 on a quarter of so small an image leaves the rest nearly bare; 5 is a channel of
    # its own as well.
    masked = {"mask_weight": 5.0} if name == "personalized_channel" else {}
    return reconstruction.config(
        name, nats=NATS, data_model="gaussian", **public, **masked, **changes
    )


def one_record():
    """A run whose only client holds the first record."""
    table = jnp.zeros((1, 1), jnp.int32)
    return reconstruction.Seen(
        dataset(), ClientData(jax.tree.map(jnp.asarray, dataset().train), table)
    )


def certified(name, config, uses):
    """(error, noise) that the scheme states for a client with one record after so many rounds."""
    scheme = schemes.get(name)
    inputs = scheme.inputs(config, one_record())
    spent = scheme.spent(config, one_record(), inputs, uses)
    assert (
        spent.certified and spent.mse_certified and spent.label_nats == pytest.approx(math.log(4))
    )
    return float(spent.mse[0]), inputs["channel"].noise


def uploads(name, config, functional, key, uses):
    """What each record's client sends in `uses` runs of one round, each with noise of its own:
    leaves [uses, T, ..].
    """
    loss = models.softmax_cross_entropy(functional.apply)
    examples = {k: np.tile(v, (uses,) + (1,) * (v.ndim - 1)) for k, v in dataset().train.items()}
    keys = jax.random.split(key, uses * T)
    moved = reconstruction.updates(name, config, loss, functional.params, examples, keys, dataset())
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(uses, T, *leaf.shape[1:]), moved)


def noisy_records(moved):
    """The noisy record itself, from the update of a softmax model's only layer: exact."""
    (layer,) = moved.values()
    found = jax.vmap(jax.vmap(analytic.first_dense))(layer["kernel"], layer["bias"])
    return np.asarray(found, np.float64)


def posterior_mean(copies, noise):
    """The best estimate from independent noisy copies [uses, T, D], by the records' true law."""
    rows = fields.basis(SIDE)
    cov = rows.T * fields.spectrum(SIDE) @ rows
    own = np.exp(float(noise.log_noise_var)) * (
        np.asarray(noise.weights) * np.eye(D)
        + (0 if noise.factor is None else noise.factor @ noise.factor.T)
    )
    return copies.mean(axis=0) @ np.linalg.solve(cov + own / len(copies), cov)


def holds(found, bound):
    """Whether the mean error over records is at least the bound, up to five standard errors of that
    mean.
    """
    errors = np.square(np.asarray(found, np.float64).reshape(T, D) - truth()).mean(axis=1)
    return errors.mean() + 5 * errors.std(ddof=1) / math.sqrt(T) >= bound


@pytest.mark.slow(reason="attacks the uploads of many repeated rounds")
@pytest.mark.parametrize("name", ["natural_channel", "white_channel", "personalized_channel"])
def test_the_best_attack_on_the_uploads_of_a_linear_model_stays_above_the_certified_error(
    name, key
):
    config = settings(name)
    functional = network("softmax")
    bound, noise = certified(name, config, USES)
    copies = noisy_records(uploads(name, config, functional, key, USES))
    # The uploads do hold the noisy records, whole: their noise has the variance that the channel
    # was solved for.
    own = np.exp(float(noise.log_noise_var)) * (
        np.broadcast_to(noise.weights, D)
        + (0 if noise.factor is None else np.square(noise.factor).sum(axis=1))
    )
    spread = np.square(copies - truth()).mean(axis=(0, 1))
    np.testing.assert_allclose(spread, own, rtol=5 * math.sqrt(2 / (USES * T)))
    best = posterior_mean(copies, noise)
    for attack in (best, copies.mean(axis=0), copies[0], 0.8 * best, np.zeros((T, D))):
        assert holds(attack, bound)
    # The control: the same attack on a hundredth of the noise that was declared.
    quiet = noise._replace(log_noise_var=noise.log_noise_var + math.log(0.01))
    assert not holds(posterior_mean(truth() + 0.1 * (copies - truth()), quiet), bound)


@pytest.mark.slow(reason="inverts gradients, twice")
def test_gradient_inversion_stays_above_the_certified_error_and_too_little_noise_is_caught(
    key,
):
    """The attack that searches, on a network of two layers, where a scheme declares 8 nats: with
    the noise that this takes, and with that of 100.
    """
    name = "natural_channel"
    functional = network("mlp", hidden=(32,))
    low, high = float(truth().min()), float(truth().max())
    search = gradient_inversion.Settings(num_iterations=400, tv_weight=0.0, box=(2 * low, 2 * high))
    run_key, start_key = jax.random.split(key)
    bound, noise = certified(name, settings(name), 1)
    for nats in (NATS, 100.0):
        config = dataclasses.replace(settings(name), nats=nats)
        moved = uploads(name, config, functional, jax.random.clone(run_key), 1)
        first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), moved)
        found = reconstruction.invert(
            functional.apply,
            functional.params,
            first,
            jnp.asarray(dataset().train["y"]),
            jax.random.clone(start_key),
            shape=(SIDE, SIDE, 1),
            settings=search,
        )
        assert holds(found, bound) == (nats == NATS)
        shrunk = posterior_mean(np.asarray(found, np.float64).reshape(1, T, D), noise)
        assert holds(shrunk, bound) or nats != NATS


@pytest.mark.slow(reason="compiles the rounds of two channels")
def test_noise_that_is_kept_is_the_same_in_each_round_of_a_run(key):
    """Read off the uploads of two rounds: with noise_mode once the second tells nothing that the
    first did not.
    """
    functional = network("softmax")
    scheme = schemes.get("natural_channel")
    for mode in ("once", "fresh"):
        config = settings("natural_channel", noise_mode=mode)
        inputs = scheme.inputs(config, one_record())
        algorithm = scheme.make(
            config, models.softmax_cross_entropy(functional.apply), num_units=1, **inputs
        )
        state, run_key, found = algorithm.init(functional.params), jax.random.clone(key), []
        cohort = data.cohort(one_record().client_data, jnp.arange(1))
        step = jax.jit(algorithm.round)
        for _ in range(2):
            after, _ = step(state, cohort, run_key)
            found.append(
                noisy_records(
                    jax.tree.map(lambda a, b: (a - b)[None, None], state.params, after.params)
                )
            )
            state = after
        assert np.allclose(*found, atol=1e-3) == (mode == "once")
        assert np.abs(found[0] - truth()[0]).max() > 0.05
