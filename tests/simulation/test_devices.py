"""Every scheme, as `fljax simulate` runs it, on two devices as on one."""

import dataclasses

import jax
import numpy as np
import pytest

from fljax import schemes
from fljax.simulation import config as config_lib
from fljax.simulation import run
from fljax.simulation.record import folder

ROUNDS = 3
OTHERWISE_ROUNDED = {"gsgd_dp", "dp_scaffold"}


class Nobody:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        pass

    def stop(self):
        pass


@pytest.mark.slow(reason="runs every scheme on one device and on two")
@pytest.mark.parametrize("name", schemes.NAMES)
def test_every_scheme_runs_on_two_devices_as_on_one(name, tmp_path):
    """To the same bits, added up in groups, which is how `fljax simulate` runs on a CPU unless told
    otherwise.
    """
    config = config_lib.from_sections({"scheme": {"scheme": name}})
    config = dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, num_rounds=ROUNDS, seed=0, baseline=False, groups=4),
    )
    one = run.start(config, tmp_path / "one", Nobody(), devices=1)
    two = run.start(config, tmp_path / "two", Nobody(), devices=2)
    same = name not in OTHERWISE_ROUNDED
    for written in (folder.PRIVACY, folder.METRICS) if same else (folder.PRIVACY,):
        assert (tmp_path / "one" / written).read_bytes() == (
            tmp_path / "two" / written
        ).read_bytes()
    for mine, others in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        np.testing.assert_allclose(others, mine, rtol=0, atol=0 if same else 1e-6)
    assert one.records[0]["train_loss"] != one.records[-1]["train_loss"]
