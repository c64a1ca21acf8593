"""Every scheme, as `fljax simulate` runs it, on two devices as on one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import schemes
from fljax.simulation import config as config_lib
from fljax.simulation import feed, job, run
from fljax.simulation.devices import mesh
from fljax.simulation.record import folder

ROUNDS = 3
OTHERWISE_ROUNDED = {"gsgd_dp", "dp_scaffold"}
# Runs of the others are those of a scheme that is left, but for lines of their own files; "devices"
# of tests/schemes/test_contracts.py has a round of each.
ALIKE = {
    "dp_psac": "dp_sgd",
    "embedding_channel": "white_channel",
    "he_dp": "secagg_dp",
    "hybrid_alpha": "distributed_dgauss",
    "item_sum_cap": "higradavg",
    "local_group_dp": "user_ldp",
    "local_item_dp": "user_ldp",
    "mp_dp_naive": "mp_cdp",
    "natural_channel": "white_channel",
    "pile": "distributed_dgauss",
    "sgd_dp": "gd_dp",
    "skellam": "distributed_dgauss",
    "smpc_dp": "secagg_dp",
    "swiftagg_dp": "secagg_dp",
    "tp_smc": "distributed_dgauss",
}


class Nobody:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        pass

    def stop(self):
        pass


@pytest.mark.release(
    reason="the contracts of each scheme look at two devices too",
    but=[
        "bidirectional",
        "dp_fedavg",
        "dp_fedsgd",
        "higradavg",
        "lightdp",
        "secagg_dp",
        "white_channel",
        "dp_fedper",
    ],
)
@pytest.mark.slow(reason="runs schemes of every kind on one device and on two")
@pytest.mark.parametrize("name", [name for name in schemes.NAMES if name not in ALIKE])
def test_a_scheme_of_every_kind_runs_on_two_devices_as_on_one(name, tmp_path):
    """To the same bits, added up in groups, which is how `fljax simulate` runs on a CPU unless told
    otherwise.
    """
    config = config_lib.from_sections({"scheme": {"scheme": name}})
    config = dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, num_rounds=ROUNDS, seed=0, baseline=False, groups=4),
    )
    made = job.prepare(config)
    one, two = (
        run.launch(made, tmp_path / where, lambda _: Nobody(), devices=devices)
        for where, devices in (("one", 1), ("two", 2))
    )
    same = name not in OTHERWISE_ROUNDED
    for written in (folder.PRIVACY, folder.METRICS) if same else (folder.PRIVACY,):
        assert (tmp_path / "one" / written).read_bytes() == (
            tmp_path / "two" / written
        ).read_bytes()
    for mine, others in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        np.testing.assert_allclose(others, mine, rtol=0, atol=0 if same else 1e-6)
    assert one.records[0]["train_loss"] != one.records[-1]["train_loss"]


def test_a_scheme_that_is_left_out_has_one_of_its_own_family_that_is_not():
    for name, other in ALIKE.items():
        makers = {schemes.get(each).make.__module__ for each in (name, other)}
        assert other not in ALIKE and len(makers) == 1


BANDED = {
    "data": {"num_clients": 6},
    "model": {"model": "softmax"},
    "scheme": {"scheme": "lightdp", "max_colluders": 1, "max_stragglers": 1},
    "privacy": {"target_epsilon": 8.0, "target_delta": 1e-3},
    "run": {"num_rounds": 3, "seed": 0, "baseline": False, "groups": 8},
}
BANDED["scheme"] |= {"correlation": "banded", "bands": 3, "rounds_per_start": 3}


@pytest.mark.slow(reason="compiles rounds of two schemes on one device and on eight")
@pytest.mark.parametrize("devices", [1, 8])
def test_a_round_overwrites_its_state_unless_its_sample_may_be_drawn_again(devices):
    """What correlated noise keeps is many models of each client: no run holds it twice."""
    over = mesh.client_mesh(devices, groups=8)
    sampled = BANDED | {"data": {"num_clients": 400}, "scheme": {"scheme": "dp_fedavg"}}
    for sections, overwritten in ((BANDED, True), (sampled, False)):
        made = job.prepare(config_lib.from_sections(sections))
        first = (made.algorithms[0].init(made.task.model.params),)
        kept = jax.device_get(first)
        states = mesh.spread(over, jax.tree.map(jnp.copy, first))
        with run.round_runner(made, over) as one_round:
            once, _, _ = one_round(states, 0)
            gone = [leaf.is_deleted() for leaf in jax.tree.leaves(states)]
            assert gone == [overwritten] * len(gone)
            once = mesh.here(over, once)
            before = jax.device_get(once)
            again, _, _ = one_round(mesh.spread(over, jax.tree.map(jnp.copy, first)), 0)
            one_round(again, 1)
        for mine, others in ((first, kept), (once, before)):
            jax.tree.map(np.testing.assert_array_equal, jax.device_get(mine), others)
        if not overwritten:
            continue
        beside = jax.jit(feed.round_fun(made.algorithms, 6), static_argnames="capacity")
        with mesh.over(over):
            clients = mesh.everywhere(over, made.task.client_data)
            apart, *_ = beside(mesh.spread(over, first), clients, made.task.round_key, capacity=6)
        jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(apart))


@pytest.mark.slow(reason="runs a scheme twice, on one device and on eight")
def test_a_run_that_overwrites_its_state_ends_with_the_same_bits_on_eight_devices(tmp_path):
    config = config_lib.from_sections(BANDED)
    one = run.start(config, tmp_path / "one", Nobody(), devices=1)
    eight = run.start(config, tmp_path / "eight", Nobody(), devices=8)
    jax.tree.map(np.testing.assert_array_equal, one.params, eight.params)
    assert (tmp_path / "one" / folder.METRICS).read_bytes() == (
        tmp_path / "eight" / folder.METRICS
    ).read_bytes()
