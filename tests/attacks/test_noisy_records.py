"""The sharp attack on channels: what it gets of Gaussian and two-valued records, and which lack of
noise it sees.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fljax import cli, data, schemes
from fljax.attacks import noisy_records, reconstruction, table
from fljax.data import channel as record_noise
from fljax.data.sources import fields

DIM, COUNT = 5, 4000
VALUES = np.array([4.0, 2.0, 1.0, 0.5, 0.1])


def gaussian_world(noise_var, rng):
    turn = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    x = rng.standard_normal((COUNT, DIM)) * np.sqrt(VALUES) @ turn
    noisy = x + math.sqrt(noise_var) * rng.standard_normal(x.shape)
    return noisy_records.World(x, noisy, x, turn.T * VALUES @ turn, None, np.eye(DIM))


def two_valued_world(noise_var, rng):
    x = rng.choice([-1.0, 3.0], (COUNT, DIM))
    noisy = x + math.sqrt(noise_var) * rng.standard_normal(x.shape)
    return noisy_records.World(x, noisy, x, None, (-1.0, 3.0), np.eye(DIM))


@pytest.mark.parametrize("noise_var", [0.01, 1.0, 5.0])
def test_gaussian_records_tell_their_capacity_and_leave_the_least_error(noise_var):
    world = gaussian_world(noise_var, np.random.default_rng(1))
    nats = 0.5 * np.log1p(VALUES / noise_var).sum()
    error = (VALUES * noise_var / (VALUES + noise_var)).mean()
    errors, ratios = noisy_records._attacked(world)
    assert len(errors) == len(ratios) == COUNT // 2
    for found, truth in ((ratios, nats), (errors, error)):
        assert abs(found.mean() - truth) < 5 * found.std() / math.sqrt(len(found))
    claims = {"mse": error, "nats": nats, "confidence": 0.999}
    verdict = noisy_records.judge((world,), **claims)
    assert verdict.error_holds and verdict.nats_hold and verdict.nats < nats
    for factor in (2.0, 4.0, 300.0):
        verdict = noisy_records.judge((noisy_records.with_less_noise(world, factor),), **claims)
        assert not verdict.error_holds and not verdict.nats_hold
    # What is told grows with the factor; a verdict needs it beyond the quantile of its mean, five
    # standard errors off.
    beyond = (
        (stats.t.ppf(1 - 0.001 / 2, len(ratios) - 1) + 5)
        * ratios.std(ddof=1)
        / math.sqrt(len(ratios))
    )
    grid = 1.1 ** np.arange(1, 20)
    enough = grid[
        np.argmax([0.5 * np.log1p(VALUES * f / noise_var).sum() > nats + beyond for f in grid])
    ]
    assert 1 < noisy_records.seen_from((world,), **claims) <= enough


@pytest.mark.parametrize("noise_var", [1.0, 10.0])
def test_two_valued_records_tell_the_capacity_of_their_channel(noise_var):
    """By quadrature: ln 2 less the mean of ln(1 + exp(-2 s - 2 sqrt(s) z)), s = 2^2 / noise_var,
    for each number.
    """
    z, weights = np.polynomial.hermite_e.hermegauss(80)
    snr = 4.0 / noise_var
    lost = weights @ np.logaddexp(0, -2 * snr - 2 * math.sqrt(snr) * z) / weights.sum()
    nats = DIM * (math.log(2) - lost)
    found = noisy_records._attacked(two_valued_world(noise_var, np.random.default_rng(2)))[1]
    assert abs(found.mean() - nats) < 5 * found.std() / math.sqrt(len(found))


@pytest.mark.parametrize("world", [gaussian_world, two_valued_world])
def test_updates_that_tell_nothing_are_worth_the_mean(world):
    known = world(1.0, np.random.default_rng(3))
    silent = known._replace(noisy=np.full(known.x.shape, np.nan))
    errors, ratios = noisy_records._attacked(silent)
    mean = 0.0 if known.value_range is None else 1.0
    np.testing.assert_allclose(errors, np.square(known.x[COUNT // 2 :] - mean).mean(1))
    assert not ratios.any()
    half = known._replace(noisy=np.where(np.arange(COUNT)[:, None] % 2, np.nan, known.noisy))
    told = [noisy_records._attacked(each)[1].mean() for each in (half, known)]
    assert told[0] == pytest.approx(told[1] / 2, rel=0.2)


def test_where_nothing_could_be_seen_nothing_is_said():
    """Five numbers tell a thousand nats only if they are read to 87 digits each; updates have
    seven.
    """
    world = gaussian_world(1.0, np.random.default_rng(4))
    world = world._replace(
        bare=world.x + 1e-3 * np.random.default_rng(5).standard_normal(world.x.shape)
    )
    claims = {"mse": 0.0, "nats": 1000.0, "confidence": 0.99}
    assert (
        noisy_records.judge((world,), **claims).nats_hold
        and noisy_records.seen_from((world,), **claims) == math.inf
    )


@pytest.mark.slow(reason="audits one more channel by thousands of records")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("natural_channel", {"covariance_source": "range"}),
        ("natural_channel", {"covariance_source": "public"}),
        ("white_channel", {}),
        ("personalized_channel", {}),
        ("embedding_channel", {}),
    ],
    ids=["range", "public", "white", "personalized", "embedding"],
)
def test_honest_channels_hold_and_half_the_noise_is_seen(name, changes, key):
    known = fields.make(np.random.default_rng(0), num_train=4000, num_test=4000, side=8)
    config = reconstruction.config(name, nats=8.0, data_model="gaussian", **changes)
    seen = reconstruction.Seen(
        known, data.ClientData(known.train, jnp.zeros((1, 1), jax.numpy.int32))
    )
    inputs = schemes.get(name).inputs(config, seen)
    spent = schemes.get(name).spent(config, seen, inputs, 1)
    played = noisy_records.worlds(name, config, inputs, key, known)
    claims = {"mse": float(spent.mse[0]), "nats": 8.0, "confidence": 0.999}
    verdict = noisy_records.judge(played, **claims)
    assert verdict.error_holds and verdict.nats_hold and verdict.unread == 0
    # Not a weak attack: it proves most of what the channel does tell.
    assert verdict.nats > 7.0 and noisy_records.seen_from(played, **claims) < 1.5
    for factor in (2.0, 4.0, 300.0):
        less = tuple(noisy_records.with_less_noise(world, factor) for world in played)
        assert not noisy_records.judge(less, **claims).nats_hold
    assert verdict.error > noisy_records.judge(less, **claims).error


@pytest.mark.slow(reason="audits by the command, from records to report")
def test_an_audit_of_a_channel_that_adds_too_little_noise_says_no_and_exits_with_1(
    monkeypatch, tmp_path, capsys
):
    """The cheat is in the rounds alone: all that the scheme states is as it was."""
    honest = record_noise.draw
    monkeypatch.setattr(record_noise, "draw", lambda *given: honest(*given) / math.sqrt(300.0))
    flags = ["audit", "--scheme", "natural_channel", "--run-dir", str(tmp_path / "run")]
    assert cli.main(flags) == 1
    out = capsys.readouterr().out
    assert "violated" in out and "got past what is certified: natural_channel. Exit code 1." in out


@pytest.mark.parametrize(
    ("seen_from", "holds"), [(1.1, True), (4.0, True), (4.1, None), (math.inf, None)]
)
def test_a_channel_holds_only_where_a_quarter_of_its_noise_would_have_been_seen(
    seen_from, holds, key, monkeypatch
):
    def updates(name, config, loss, params, examples, keys, dataset):
        x = examples["x"].reshape(len(keys), -1, 1)
        found = x + 10.0 * jax.random.normal(
            jax.random.wrap_key_data(np.zeros(2, np.uint32)), x.shape
        )
        return {
            "kernel": jnp.broadcast_to(found, (len(keys), 64, 4)),
            "bias": jnp.ones((len(keys), 4)),
        }

    monkeypatch.setattr(reconstruction, "updates", updates)
    monkeypatch.setattr(noisy_records, "seen_from", lambda *_, **__: seen_from)
    row = table.row("white_channel", key, table.Settings())
    assert row.holds is holds and row.seen_from == seen_from and row.diverged == 0
