"""The committed table of schemes and attacks: bounds hold, controls succeed, noise hides."""

import pytest

from bench import _tables
from bench.papers import scheme_attacks
from fljax import schemes

ROWS = {row["scheme"]: row for row in _tables.rows("scheme_attacks")}


def test_every_scheme_that_an_attack_fits_is_there():
    assert set(ROWS) == {name for name in schemes.NAMES if scheme_attacks.fitting(name)}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_without_noise_each_attack_succeeds_and_with_it_none_passes_its_bound(name):
    row = ROWS[name]
    assert set(scheme_attacks.fitting(name)) <= set(row)
    game = row.get("uploads") or row.get("one_unit")
    if game is not None:
        plain, noisy = game["without"], game["with"]
        assert plain["measured"] > noisy["bound"] >= noisy["measured"] > 0.4 * noisy["bound"]
        assert plain["rates"][0]["tpr"] > 0.5  # of those who were sampled, all
        assert noisy["rates"][0]["low"] <= noisy["largest_tpr"] < 0.2
    if "lira" in row:
        plain, noisy = row["lira"]["without"], row["lira"]["with"]
        assert plain["auc"] > 0.6 and abs(noisy["auc"] - 0.5) < 0.12 and noisy["auc"] < plain["auc"]
    plain, noisy = (row["inversion_gauss_newton"][how] for how in ("without", "with"))
    assert plain["psnr"] > 30 and noisy["psnr"] < 15 and noisy["holds"] is not False
