"""Noise on uploads in nats, attacked: what is certified holds, and less noise than that is seen."""

import dataclasses

import jax
import numpy as np
import pytest

from fljax import schemes
from fljax.attacks import noisy_records, noisy_uploads, reconstruction, table
from fljax.data import ClientData, Dataset


@pytest.mark.slow(reason="audits one more channel by thousands of records", but=[2.0])
@pytest.mark.parametrize("nats", [0.5, 2.0, 8.0])
def test_an_honest_channel_holds_and_half_the_noise_is_seen(nats, key, monkeypatch):
    monkeypatch.setattr(noisy_uploads, "_RECORDS", 1600 if nats > 2 else 800)
    known = noisy_uploads.records(4)
    config = reconstruction.config("parameter_channel", nats=nats, data_model="gaussian")
    seen = reconstruction.Seen(known, ClientData(known.train, jax.numpy.zeros((1, 1), int)))
    spent = schemes.get("parameter_channel").spent(config, seen, {}, 1)
    assert spent.certified and spent.mse_certified and spent.nats[0] == nats
    played = noisy_uploads.worlds("parameter_channel", config, key, known)
    claims = {"mse": float(spent.mse[0]), "nats": nats, "confidence": 0.99}
    verdict = noisy_records.judge(played, **claims)
    assert verdict.error_holds and verdict.nats_hold
    assert noisy_records.seen_from(played, **claims) < 2.5


@pytest.mark.slow(reason="plays rounds of the scheme once more, with too little noise")
def test_a_scheme_that_draws_half_the_variance_is_told(key, monkeypatch):
    """The cheat is in the rounds alone: all that the scheme states is as it was."""
    honest = reconstruction.updates

    def cheating(name, config, *rest):
        less = dataclasses.replace(config, nats=2 * config.nats)
        return honest(name, less if config.nats < 100 else config, *rest)

    assert table.row("parameter_channel", jax.random.clone(key)).holds
    monkeypatch.setattr(reconstruction, "updates", cheating)
    row = table.row("parameter_channel", key)
    assert row.holds is False and row.certified > row.measured


def test_along_its_label_a_clipped_gradient_is_the_record(key, monkeypatch):
    """Uploads by float64: outer products of record and residual, of norm 1, behind noise."""
    rng, side, classes, stddev = np.random.default_rng(0), 3, 4, 0.25
    x = rng.normal(size=(200, side, side, 1))
    x /= np.linalg.norm(x, axis=(1, 2), keepdims=True) / 2  # of norm 2: clipping shortens all alike
    y = rng.integers(0, classes, len(x)).astype(np.int32)
    part = {"x": x.astype(np.float32), "y": y}
    known = Dataset(part, part, classes, "normals", covariance=np.eye(side**2))

    def updates(name, config, loss, params, examples, keys, dataset):
        residual = 1 / classes - np.eye(classes)[y]
        outer = np.einsum("td,tk->tdk", x.reshape(len(x), -1), residual)
        outer /= np.linalg.norm(outer, axis=(1, 2), keepdims=True)
        noise = stddev if config.nats == 1 else 0
        return {"kernel": outer + noise * rng.normal(size=outer.shape)}

    monkeypatch.setattr(reconstruction, "updates", updates)

    @dataclasses.dataclass
    class Config:
        nats: float

    (world,) = noisy_uploads.worlds("parameter_channel", Config(1), key, known)
    truth = x.reshape(len(x), -1)
    np.testing.assert_allclose(world[2], truth, rtol=1e-6)
    away = np.asarray(world[1]) - truth
    # The scale from a norm of 1 back to 2 is that of the noise, too; five standard errors.
    assert np.mean(away**2) == pytest.approx((2 * stddev) ** 2, rel=5 * (2 / away.size) ** 0.5)
