"""The committed sweep: the control succeeds, and nothing is above what is certified."""

from bench import _tables
from bench.papers import scheme_attacks, sweep
from fljax import schemes

ROWS = _tables.rows("sweep")


def test_every_scheme_that_an_inversion_fits_is_there_at_four_budgets():
    wanted = {name for name in schemes.NAMES if sweep.ATTACK in scheme_attacks.fitting(name)}
    told = [row["scheme"] for row in ROWS]
    assert set(told) == wanted and all(told.count(name) == 5 for name in wanted)


def test_images_are_read_without_noise_and_none_beyond_what_is_certified():
    for name in {row["scheme"] for row in ROWS}:
        plain, *noisy = (row for row in ROWS if row["scheme"] == name)
        assert plain["measured"] > 30 and plain["noise"] == 0
        assert noisy[0]["measured"] < 15  # epsilon 1, or one nat
        assert [row["noise"] for row in noisy] == sorted((r["noise"] for r in noisy), reverse=True)
        for row in noisy:
            assert row["holds"] is not False
            if row["standing"] == "certified":
                assert row["measured"] <= float(row["bound"])
