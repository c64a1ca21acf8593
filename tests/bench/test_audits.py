"""The committed audits: every scheme with an epsilon, as sharp as so many runs allow."""

from bench import _tables
from fljax import schemes

ROWS = _tables.rows("audits")
# Their certificates are Renyi's, and no attack gets near: docs/explain/attacks.md has the bounds.
LOOSE = {"distributed_dgauss", "gsgd_dp", "hybrid_alpha", "pile", "skellam", "tp_smc"}


def test_every_scheme_with_an_epsilon_is_there():
    promising = {name for name in schemes.NAMES if schemes.get(name).promise == "epsilon"}
    assert {row["scheme"] for row in ROWS} == promising


def test_no_attack_beats_a_certificate_and_half_the_noise_is_caught():
    for row in ROWS:
        assert max(row["old"], row["new"]) <= row["certified"]
        assert row["half_the_noise_caught_at_1"] and row["half_the_noise_caught_at_2"]


def test_an_attack_finds_four_fifths_of_what_can_be_found():
    weak = {row["scheme"] for row in ROWS if row["new"] < 0.8 * row["reachable"]}
    assert weak <= LOOSE
