"""LightDP-FL's reproduction: what a round costs by protocol, and which rounds get through."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, testing
from fljax.papers.lightdp import claims, dordis, items, timing, training


def test_a_round_that_needs_all_links_is_lost_and_one_of_the_servers_is_not():
    # P(more than 10 of 50 links fail) is 2.96e-5; a client with all of its 50 links has .95^50.
    for name in ("HE + DP", "SecAgg + DP", "SwiftAgg+ + DP"):
        assert 1 - timing.gets_through(name)["server"] == pytest.approx(2.96e-5, rel=1e-2)
    assert timing.gets_through("HE + DP")["peers"] == timing.gets_through("HE + DP")["server"]
    assert 0 < timing.gets_through("SecAgg + DP")["peers"] < 1e-25
    for name in ("LightDP-FL", "local noise"):
        assert timing.gets_through(name) == {"server": 1.0, "peers": 1.0}


def test_a_cost_is_measured_at_both_sizes_and_the_cheaper_of_two_rounds(monkeypatch):
    sizes = []

    def at(name, size, bits):
        sizes.append(size)
        return None if size > 650 else timing.Cost(1.0 / len(sizes), 1.0, 3 * size, 0)

    monkeypatch.setattr(timing, "_at", at)
    timing.measured.cache_clear()
    found = timing.measured("HE + DP", 1024, 650)
    timing.measured.cache_clear()
    assert sizes == [650, 650, 5000, 5000, 11_173_962, 11_173_962]
    assert found["this network"]["client_seconds"] == 0.5 and found["ResNet-18"] is None
    # A megabyte a second and a half of megabits: 100 Mbit/s.
    assert timing.Cost(1.0, 2.0, 12.5e6, 25e6).seconds == pytest.approx(6.0)


def test_encryption_that_would_take_hours_is_not_measured_and_judged_where_it_was():
    assert timing._at("HE + DP", timing.RESNET_18, 1024) is None
    judge = next(one for one in claims.CONCLUSIONS if "HE takes" in one.statement).judge
    cost, slow, slower = (timing.Cost(t, 0.0, 0, 0)._asdict() for t in (1.0, 5.0, 20.0))
    rows = {
        name: {"costs": dict(zip(timing.SIZES, costs, strict=True))}
        for name, costs in (("LightDP-FL", [cost] * 3), ("HE + DP", [slow, slower, None]))
    }
    told = judge({"fig4": rows})
    assert told.standing == "reproduced" and "not measured at ResNet-18" in told.because
    rows["HE + DP"]["costs"] |= dict.fromkeys(timing.SIZES[1:])
    assert judge({"fig4": rows}).standing == "not reproduced"
    rows["HE + DP"]["costs"] |= dict.fromkeys(timing.SIZES)
    assert judge({"fig4": rows}).standing == "cannot tell"


@pytest.fixture
def few(monkeypatch):
    """Rounds of 8 clients, of whom two may drop out and collude."""
    monkeypatch.setattr(timing, "NUM_CLIENTS", 8)
    monkeypatch.setattr(timing, "MOST", 2)


@pytest.mark.parametrize("name", ["secagg", "light_secagg"])
def test_one_client_that_stands_for_all_sends_and_gets_as_many_bytes(name, few):
    alone, whole = timing._alone(name, 3000), timing._protocol(name, 3000, {})
    assert alone[2:] == pytest.approx(whole[2:], rel=1e-12)


@pytest.mark.parametrize("name", ["SecAgg + DP", "HE + DP", "LightDP-FL", "local noise"])
def test_a_protocol_is_measured_with_its_bytes(name, few):
    low, high = (timing._at(name, size, 512) for size in (40, 2000))
    assert low.client_seconds > 0 and high.bytes_up > low.bytes_up >= 40 * 3


@pytest.mark.slow(reason="trains where links fail")
def test_rounds_that_are_lost_teach_nothing():
    counted = {}
    for name in ("SecAgg + DP", "LightDP-FL"):
        case = training.Case(
            name=name,
            method="sound",
            epsilon=6.0,
            delta=1e-3,
            colluders=10,
            stragglers=10,
            rounds=3,
            links_fail=True,
        )
        found = training.runs(case, seeds=(3, 4), model="softmax", dataset=data.load("digits"))
        counted[name] = found.counted.tolist()
        assert found.accuracies.shape == (2, 3) and found.num_params == 650
        if name == "SecAgg + DP":
            assert np.ptp(found.accuracies, axis=1).max() == 0
    assert counted == {"SecAgg + DP": [0, 0], "LightDP-FL": [3, 3]}


def test_that_masks_lose_all_rounds_says_nothing_where_others_do_too():
    judge = next(one for one in claims.CONCLUSIONS if "one link in twenty" in one.statement).judge
    rows = {name: {"counted": [3, 3]} for name in items.OVER_LINKS}
    rows |= {name: {"counted": [0, 0]} for name in ("SecAgg + DP", "SwiftAgg+ + DP")}
    assert judge({"fig4": rows}).standing == "reproduced"
    for name in ("LightDP-FL", "SecAgg + DP"):
        odd = rows | {name: {"counted": [3, 0]}}
        assert judge({"fig4": odd}).standing == "not reproduced"


@pytest.mark.slow(reason="checks all contracts of a scheme")
def test_dordis_is_a_scheme():
    testing.check_scheme(dordis.SCHEME)


def test_dordis_adds_what_those_who_respond_need():
    config = dordis.SCHEME.Config(
        num_parties=50, max_colluders=10, max_stragglers=10, noise_multiplier=2.0, l2_clip_norm=1.5
    )
    here = SimpleNamespace(server_key=lambda purpose: jax.random.key(0))
    zeros = jnp.zeros(40_000)
    for responders in (50, 40):
        sent = SimpleNamespace(total=zeros, num_responders=jnp.int32(responders))
        total, completed = dordis.hide(config)(here, sent)[:2]
        # Exchanging a client's data moves the sum by 3; colluders know their own part.
        honest = float(total.std()) * ((responders - 10) / responders) ** 0.5
        assert completed and honest == pytest.approx(6.0, rel=5 / (2 * 40_000) ** 0.5)
    few = SimpleNamespace(total=zeros, num_responders=jnp.int32(39))
    total, completed = dordis.hide(config)(here, few)[:2]
    assert not completed and not total.any()


def test_whoever_drops_out_the_parts_that_are_kept_make_the_same_noise():
    stddevs = dordis.part_stddevs(50, 10, 5)
    for gone in range(11):
        kept = (50 - gone - 5) * np.square(stddevs[: gone + 1]).sum()
        assert kept == pytest.approx(1)
    with pytest.raises(ValueError, match="max_dropouts \\+ max_colluders < num_clients=5"):
        dordis.part_stddevs(5, 3, 2)


def test_a_part_is_drawn_again_by_its_seed():
    seeds = [bytes([k]) * 32 for k in (1, 2)]
    one, again, other = (dordis.part(seed, 20_000, 30.0) for seed in (seeds[0], *seeds))
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    # Five standard errors; a rounded normal has 1 / 12 more variance.
    assert one.std() == pytest.approx((900 + 1 / 12) ** 0.5, rel=5 / (2 * 20_000) ** 0.5)


def test_dordis_costs_what_secagg_does_and_its_noise(monkeypatch):
    monkeypatch.setattr(timing, "_protocol", lambda *given: timing.Cost(1.0, 2.0, 3.0, 4.0))
    whole, parts = timing._at("Dordis", 40, 512), timing._noise_in_parts(40)
    assert whole.client_seconds > 1 and whole.server_seconds > 2
    # Shares of 10 seeds, 16 elements each in 4 bytes and a tag of 16, for 49 others; and the seeds.
    assert parts.bytes_down == 49 * (640 + 16) and parts.bytes_up == parts.bytes_down + 320
    assert whole.bytes_up == 3 + parts.bytes_up
