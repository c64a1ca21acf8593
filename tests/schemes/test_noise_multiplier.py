"""A noise multiplier is one number in all schemes: noise by sensitivity, whoever sees what."""

import dataclasses

import pytest

from fljax import schemes
from fljax.accounting import events
from fljax.attacks import rounds

Z = 1.7


def leaves(mechanism):
    """Mechanisms at the end of a tree of sampled and composed ones."""
    for part in getattr(mechanism, "events", None) or [getattr(mechanism, "event", None)]:
        if part is None:
            yield mechanism
        else:
            yield from leaves(part)


def gaussians(name, **changes):
    event = schemes.get(name).event(rounds.config(name, noise_multiplier=Z, **changes))
    return {leaf for leaf in leaves(event.mechanism) if isinstance(leaf, events.Gaussian)}


PROMISING = [name for name in schemes.NAMES if schemes.get(name).promise == "epsilon"]


@pytest.mark.slow(
    reason="compiles the round of one more scheme",
    but=[
        "dp_fedavg",
        "dp_fedbuff",
        "dp_fedsgd",
        "gsgd_dp",
        "higradavg",
        "lightdp",
        "local_dp",
        "local_group_dp",
        "mp_cdp",
        "secagg_dp",
        "user_ldp",
    ],
)
@pytest.mark.parametrize("name", PROMISING)
def test_a_round_with_noise_multiplier_z_is_a_gaussian_mechanism_of_z(name):
    found = gaussians(name)
    own_laws = (
        "distributed_dgauss",
        "dp_ftrl",
        "gsgd_dp",
        "higradavg_sum",
        "item_sum_cap",
        "skellam",
    )
    own_laws += ("hybrid_alpha", "pile", "tp_smc")
    if name in own_laws:
        assert not found
    else:
        assert found == {events.Gaussian(Z)}


@pytest.mark.slow(
    reason="compiles the round of one more setting",
    but=["lightdp-changes1", "local_dp-changes3", "bidirectional-changes6"],
)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("lightdp", {"neighboring_relation": "REPLACE_SPECIAL"}),
        ("lightdp", {"graph": "k_regular", "degree": 2, "max_colluders": 0}),
        ("lightdp", {"pair_variance_ratio": 100.0, "l2_clip_norm": 3.0}),
        ("local_dp", {"neighboring_relation": "REPLACE_SPECIAL"}),
        ("smpc_dp", {"neighboring_relation": "REPLACE_SPECIAL", "l2_clip_norm": 3.0}),
        ("bidirectional", {"unit": "client_addremove", "max_colluders": 0}),
        ("bidirectional", {"graph": "n_out", "out_degree": 1, "l2_clip_norm": 3.0}),
        ("bidirectional", {"noise": "r0_gaussian", "local_batch_size": 7}),
        ("mp_cdp", {"unit": "client_replace"}),
    ],
)
def test_neither_relation_nor_graph_nor_colluders_change_what_it_means(name, changes):
    assert gaussians(name, **changes) == {events.Gaussian(Z)}


@pytest.mark.parametrize("name", ["lightdp", "bidirectional"])
def test_more_colluders_ask_for_more_noise_of_each_client(name):
    scheme, own = schemes.get(name), []
    for colluders in (0, 1, 2):
        config = rounds.config(name, noise_multiplier=Z, max_colluders=colluders)
        assert scheme.event(config).mechanism == events.Gaussian(Z)
        own.append(scheme.upload_noise(config).own_stddev)
        halved = dataclasses.replace(config, noise_multiplier=Z / 2)
        assert scheme.upload_noise(halved).own_stddev == pytest.approx(own[-1] / 2, rel=1e-12)
    assert own == sorted(own) and own[2] > 1.1 * own[0]
