"""Noise on uploads in nats, attacked: what is certified holds, and less noise than that is seen."""

import dataclasses

import jax
import pytest

from fljax import schemes
from fljax.attacks import noisy_records, noisy_uploads, reconstruction, table
from fljax.data import ClientData


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
