"""The committed sweep: the control succeeds (of two schemes it tells images), and nothing is above
what is certified.
"""

from bench import _tables
from bench.papers import scheme_attacks, sweep
from fljax import schemes

ROWS = _tables.rows("sweep")
# Their rounds leave out some images of ten: of those the attack has nothing, without noise either.
DRAWN = {"gsgd_dp", "dp_fedbuff"}


def test_every_scheme_that_an_inversion_fits_is_there_at_three_budgets_at_least():
    wanted = {name for name in schemes.NAMES if sweep.ATTACK in scheme_attacks.fitting(name)}
    told = [row["scheme"] for row in ROWS]
    assert set(told) == wanted and all(told.count(name) >= 4 for name in wanted)


def test_images_are_read_without_noise_and_none_beyond_what_is_certified():
    for name in {row["scheme"] for row in ROWS}:
        plain, *noisy = (row for row in ROWS if row["scheme"] == name)
        assert plain["noise"] == 0
        if name in DRAWN:
            assert plain["picked"] >= 0.5 > noisy[0]["picked"]
        else:
            assert plain["measured"] > 30 and plain["picked"] == 1
        assert noisy[0]["measured"] < min(15, plain["measured"])  # epsilon 1, or one nat
        assert all(float(row["bound"]) < 40 for row in noisy[:2])
        assert [row["noise"] for row in noisy] == sorted((r["noise"] for r in noisy), reverse=True)
        for row in noisy:
            assert row["holds"] is not False
            if row["standing"] == "certified":
                assert row["measured"] <= float(row["bound"])
