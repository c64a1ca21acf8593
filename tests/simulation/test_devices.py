"""Every scheme, as `fljax simulate` runs it, on two devices as on one."""

import dataclasses

import jax
import numpy as np
import pytest

from fljax import schemes
from fljax.simulation import config as config_lib
from fljax.simulation import folder, run

ROUNDS = 3


class Nobody:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        pass

    def stop(self):
        pass


@pytest.mark.parametrize("name", schemes.NAMES)
def test_every_scheme_runs_on_two_devices_as_on_one(name, tmp_path):
    """The same cohorts and ledger; weights up to the order in which float32 numbers are added up, each round anew."""
    config = config_lib.from_sections({"scheme": {"scheme": name}})
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, num_rounds=ROUNDS, baseline=False))
    one = run.start(config, tmp_path / "one", Nobody(), devices=1)
    two = run.start(config, tmp_path / "two", Nobody(), devices=2)
    assert (tmp_path / "one" / folder.PRIVACY).read_bytes() == (tmp_path / "two" / folder.PRIVACY).read_bytes()
    assert [r["cohort_size"] for r in one.records] == [r["cohort_size"] for r in two.records]
    for mine, others in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        scale = max(1.0, float(np.abs(mine).max()))
        np.testing.assert_allclose(others, mine, rtol=0, atol=1e-4 * scale)
    assert one.records[0]["train_loss"] != one.records[-1]["train_loss"]
