"""The committed table of defaults: all schemes are in it, and learn what they learn tuned."""

import numpy as np
import pytest

from bench import _tables
from bench.rounds import defaults, defaults_search
from fljax import schemes
from fljax.simulation.config import from_sections

ROWS = _tables.rows("defaults")


def test_every_scheme_ends_within_two_points_of_its_tuned_self():
    assert sorted(row["scheme"] for row in ROWS) == sorted(schemes.NAMES)
    far = [row["scheme"] for row in ROWS if row["tuned"] - row["by default"] > 0.02]
    assert not far


def test_no_setting_that_was_drawn_is_two_points_above_the_defaults():
    rows = _tables.rows("defaults_search")
    assert {row["scheme"] for row in rows} == set(defaults_search.SCHEMES)
    assert {"lightdp", "local_dp"} <= set(defaults_search.SCHEMES)
    assert [row for row in rows if row["best drawn"] - row["by default"] > 0.02] == []
    assert all(len(row["tried"]) == row["tries"] >= 30 for row in rows)


@pytest.mark.parametrize("name", defaults_search.SCHEMES)
def test_what_is_drawn_is_a_config_of_the_same_privacy(name):
    usual, rng = defaults_search.config_of(name, 0, {}), np.random.default_rng(1)
    for _ in range(20):
        found = defaults_search.config_of(name, 0, defaults_search.draw(usual, rng))
        assert (found.privacy, found.data, found.model) == (usual.privacy, usual.data, usual.model)
        assert found.scheme_config != usual.scheme_config


def test_tuning_costs_no_privacy():
    for name in schemes.NAMES:
        config = defaults.config_of(name, 0, {}, baseline=False)
        for change in defaults.changes(config.scheme_config):
            tuned = defaults.config_of(name, 0, change, baseline=False)
            assert tuned.privacy == config.privacy and tuned.run == config.run
            assert tuned.data == config.data


def test_what_is_tuned_is_what_a_run_by_name_starts_from():
    for name in schemes.NAMES:
        by_name = from_sections({"scheme": {"scheme": name}}).scheme_config
        assert defaults.config_of(name, 0, {}, baseline=False).scheme_config == by_name
