"""Attacks on arithmetic get past float32 noise, and not past whole numbers."""

import json
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax import cli, data, schemes
from fljax.attacks import floating_point, released_bits
from fljax.data.subjects import SUBJECT
from fljax.schemes.base import Performance
from tests import _environment

TRIALS = 4000
# Rows of a sum are clients' updates or gradients, examples', items', whole silos', or have noise of
# their own; the other schemes with exact noise add up rows of one of these kinds.
OF_EACH_KIND = ("dp_fedavg", "dp_fedsgd", "dp_sgd", "higradavg", "user_ldp", "local_dp")


@pytest.fixture(scope="module")
def told():
    found = floating_point.play(jax.random.key(0), stddev=1.0, trials=TRIALS)
    return {(one.attack, one.noise): one.told for one in found}


@pytest.fixture(scope="module")
def draws():
    return floating_point.half_variance_normals()


@pytest.mark.slow(reason="tries thousands of sums")
@pytest.mark.parametrize(
    ("attack", "least"),
    # A normal of stddev 1 is within 1/4 of zero, with a unit moved by one, in 6 to 17 % of draws.
    [("low bits", 0.3), ("precision", 0.05), ("order of summation", 0.99)],
)
def test_float32_gives_sums_away_and_whole_numbers_do_not(told, attack, least):
    assert told[attack, "float32"] > least
    assert told[attack, "whole numbers"] == (None if attack == "precision" else 0)


def test_whole_numbers_that_not_all_sums_make_give_them_away():
    single = floating_point.whole_numbers(2.0)
    assert np.array_equal(single, np.arange(single[0], single[-1] + 1)) and single[-1] >= 30
    # Noise of even numbers alone tells the parity of a sum.
    noisy = 2 * floating_point._whole(jax.random.key(4), 0, 2.0, 100)
    assert floating_point._not_among(noisy, 1, 2 * single).all()
    assert not floating_point._not_among(noisy, 0, 2 * single).any()
    assert not floating_point._not_among(noisy // 2, 1, single).any()


@pytest.mark.slow(reason="tries thousands of sums")
def test_large_noise_does_not_help_float32():
    found = floating_point.play(jax.random.key(1), stddev=30.0, trials=TRIALS)
    low_bits = {one.noise: one.told for one in found if one.attack == "low bits"}
    assert low_bits["float32"] > 0.3 and low_bits["whole numbers"] == 0


@pytest.mark.slow(reason="tries thousands of sums", but=["1.0-False", "1.0-True"])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("total", [0.0, 1.0])
def test_an_attack_never_blames_the_sum_that_was_meant(total, joined, draws):
    key, stddev = jax.random.key(2), 3.0
    if joined:
        few = np.random.default_rng(2).choice(draws, TRIALS)
        noisy = floating_point.reach(total, stddev, few, joined=True)
    else:
        noisy = floating_point._float32(key, total, stddev, TRIALS)
    assert not floating_point.cannot_be(noisy, total, stddev, draws, joined=joined).any()
    assert not floating_point.too_fine(noisy, total, stddev, joined=joined).any()
    # The control: the other way to add is not the one that was taken.
    other_way = floating_point.cannot_be(noisy, total, stddev, draws, joined=not joined)
    assert other_way.mean() > 0.1
    # All sums that there are say the same.
    every = floating_point.reach(total, stddev, draws, joined=not joined)
    np.testing.assert_array_equal(other_way, ~np.isin(noisy, every))


@pytest.mark.parametrize("total", [0.0, 1.0, -0.3, 2.0**-20, 1e6])
def test_a_product_that_is_joined_to_a_sum_is_rounded_once(total):
    """Against exact fractions, which NumPy's float32 rounds to nearest."""
    draws = np.random.default_rng(3).standard_normal(300).astype(np.float32)
    scale = Fraction(float(np.float32(3) * np.float32(np.sqrt(2))))
    made = floating_point.reach(total, 3.0, draws, joined=True)
    for draw, got in zip(draws, made, strict=True):
        exact = scale * Fraction(float(draw)) + Fraction(float(np.float32(total)))
        beside = [np.nextafter(got, np.float32(side)) for side in (-np.inf, np.inf)]
        off = abs(Fraction(float(got)) - exact)
        assert all(off <= abs(Fraction(float(each)) - exact) for each in beside)


def test_next_to_the_middle_of_two_numbers_one_rounding_is_not_two(monkeypatch):
    monkeypatch.setattr(floating_point, "_ROOT", np.float32(1))
    least = 2.0**-23  # the exact sum is 2**-70 short of 1 + 3 / 2 least: float64 cannot tell
    draw, odd = np.float32([2.0**-24 * (1 - least)]), 1 + least
    assert float(draw[0]) * odd + odd == 1 + 1.5 * least
    assert floating_point.reach(odd, odd, draw, joined=True) == np.float32(odd)
    assert floating_point.reach(-odd, odd, -draw, joined=True) == np.float32(-odd)


@pytest.mark.release(
    reason="one more kind of row", ids=["higradavg", "dp_sgd", "user_ldp", "dp_fedsgd"]
)
@pytest.mark.slow(reason="compiles rounds of each scheme; the command plays those of one")
@pytest.mark.optimized(reason="products that a compiler joins to sums are rounded once")
@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_rounds_in_float32_give_data_away_and_exact_ones_do_not(name):
    found = released_bits.play(schemes.get(name), jax.random.key(5), trials=1000)
    told = {(one.attack, one.noise): one.told for one in found}
    assert told["low bits", "float32"] > 0.3 and told["low bits", "exact"] == 0
    assert told["precision", "exact"] is None
    # Where a unit moves two norms, noise is twice as wide, and its steps are no finer than a sum's,
    # but for products that a compiler joins to sums.
    wide = name in {"local_dp", "user_ldp"} and not _environment.OPTIMIZED
    assert (told["precision", "float32"] > 0.01) == (not wide)
    both = [told["order of summation", noise] for noise in ("float32", "exact")]
    if name == "local_dp":
        assert both == [None, None]  # nobody sees a sum
    else:
        least = 0.1 if name == "user_ldp" else 0.2  # its noise is twice as wide, as above
        assert both[0] > least and both[1] == 0


@pytest.mark.parametrize(
    ("name", "honest"), [("dp_fedavg", True), ("dp_fedavg", False), ("local_dp", True)]
)
def test_rounds_that_numpy_plays_are_told_by_what_they_draw(name, honest, monkeypatch, key):
    """In float32, and where noise that is said to be exact is float32 all the same."""
    few = np.sort(np.random.default_rng(0).standard_normal(4000).astype(np.float32))
    few *= np.float32(np.sqrt(0.5))
    tiny = np.full(released_bits._ROWS - 1, released_bits._SMALL, np.float32)
    rows = np.append(np.float32(1), tiny)
    totals = {
        "_neighbours": [np.float32(0), np.float32(1)],
        "_orders": [np.add.accumulate(each)[-1] for each in (rows, rows[::-1])],
    }
    assert totals["_orders"][1] > totals["_orders"][0] == 1  # each single small one is lost

    def played(sums):
        def make(scheme, config):
            def released(keys, world):
                rng = np.random.default_rng(world)
                if honest and config.noise == "exact":
                    whole = rng.integers(-3000, 3000, (len(keys), 2)) + np.round(sums[world])
                    return whole.astype(np.float32) * np.float32(0.0037)
                scale = np.float32(config.noise_multiplier * np.sqrt(2))
                noise = scale * rng.choice(few, (len(keys), 2))
                noise[:, 0] += sums[world]
                return -noise

            return released

        return make

    for world, sums in totals.items():
        monkeypatch.setattr(released_bits, world, played(sums))
    monkeypatch.setattr(floating_point, "half_variance_normals", lambda: few)
    found = released_bits.play(schemes.get(name), key, trials=10)
    assert {one.trials for one in found} == {1000}
    told = {(one.attack, one.noise): one.told for one in found}
    for attack in ("low bits", "order of summation"):
        if attack != "low bits" and name == "local_dp":  # nobody sees a sum without its noise
            assert told[attack, "float32"] is told[attack, "exact"] is None
            continue
        assert told[attack, "float32"] > 0.9
        assert told[attack, "exact"] == 0 if honest else told[attack, "exact"] > 0.5
    # Beside a sum of 0 nothing is too fine; beside 1 a normal of mean 0 within 1/4 is, but for last
    # bits that happen to fit: half and more of the 20 % there, in one of two worlds.
    assert 0.05 < told["precision", "float32"] < 0.13 and told["precision", "exact"] is None


def test_releases_that_are_no_whole_numbers_are_seen():
    draw = lambda seed: np.asarray(jax.random.normal(jax.random.key(seed), (1000,)))
    steps = [np.round(2048 * draw(seed)).astype(np.float32) * np.float32(0.0037) for seed in (0, 1)]
    step = released_bits._step(steps[0])
    assert step == pytest.approx(0.0037, rel=1e-6)
    assert not released_bits._off(step, steps[1]).any()
    assert released_bits._off(step, steps[1] + np.float32(0.3 * step)).all()
    assert released_bits._off(step, 2048 * np.float32(0.0037) * draw(2)).mean() > 0.98


def of_a_layer(noise_multiplier, noise):
    """Rounds of a silo whose examples' gradients are outer products, in two orders of a sum."""
    scheme, rows = schemes.get("higradavg"), released_bits._ROWS
    numbers = {"noise": noise, "noise_multiplier": noise_multiplier}
    made = released_bits._config(scheme, released_bits._orders, **numbers)
    x, y = np.zeros((rows, 8), np.float32), np.zeros((rows, 8), np.float32)
    x[0, 0], x[1:, 0], y[:, 0] = 1.0, released_bits._SMALL, 1.0
    pool = {"x": jnp.asarray(x), "y": jnp.asarray(y), SUBJECT: jnp.arange(rows)}
    loss = lambda params, example: jnp.vdot(example["x"] @ params["w"], example["y"])
    one_by_one = Performance(chunk_size=1, microbatch_size=1)
    algorithm = scheme.make(made, loss, num_units=1, performance=one_by_one)
    table = jnp.arange(rows, dtype=jnp.int32)

    def one(key, world):
        order = jnp.where(world == 1, table[::-1], table)
        here = data.cohort(data.ClientData(pool, order[None]), jnp.zeros(1, jnp.int32))
        state, _ = algorithm.round(algorithm.init({"w": jnp.zeros((8, 8))}), here, key)
        return state.params["w"].ravel()

    return released_bits._mapped(one)


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="plays thousands of rounds")
def test_rounds_of_a_layer_give_their_order_away_in_float32_alone(draws):
    keys = jax.random.split(jax.random.key(5), 2000).reshape(2, 1000)
    silent = {noise: of_a_layer(0.0, noise) for noise in ("float32", "exact")}
    with jax.debug_key_reuse(False):
        same = {
            noise: [-fun(keys[0, :1], w)[0, 0] for w in (0, 1)] for noise, fun in silent.items()
        }
        seen = {noise: [of_a_layer(1.0, noise)(keys[w], w) for w in (0, 1)] for noise in silent}
    sums = same["float32"]
    assert sums[0] != sums[1] and same["exact"][0] == same["exact"][1]
    noisy = [-each[:, 0] for each in seen["float32"]]
    assert released_bits._told(noisy, sums, 1.0, draws)[1] > 0.5
    first, second = (each[:, 0] for each in seen["exact"])
    for mine, other in ((first, second), (second, first)):
        assert not released_bits._off(released_bits._step(other), mine).any()


def test_schemes_without_exact_noise_are_not_attacked(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["audit", "--floating-point", "--scheme", "lightdp"]) == 2
    assert "Expected a scheme that offers" in capsys.readouterr().err


@pytest.mark.slow(reason="lists all normals that there are")
def test_every_draw_is_among_the_normals_that_there_are():
    draws = np.asarray(
        fljax_kernels.add_gaussian_noise(jax.random.key(3), np.zeros(2**16, np.float32), 1.0)
    )
    assert np.isin(draws, np.float32(np.sqrt(2)) * floating_point.half_variance_normals()).all()


@pytest.mark.parametrize("wrong", [{"stddev": 0.5}, {"stddev": 65.0}, {"trials": 0}])
def test_arguments_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=f"Expected {next(iter(wrong))}"):
        floating_point.play(jax.random.key(0), **{"stddev": 1.0, "trials": 8} | wrong)


@pytest.mark.slow(reason="plays rounds of two schemes; their parts are played above")
def test_the_command_shows_both_and_holds(tmp_path, capsys):
    args = ["audit", "--floating-point", "--scheme", "dp_fedsgd", "--trials", "1000"]
    assert cli.main([*args, "--run-dir", str(tmp_path / "a")]) == 0
    out = capsys.readouterr().out
    assert "summation" in out and "holds" in out and "violated" not in out
    rows = json.loads((tmp_path / "a" / "audit.json").read_text())["rows"]
    assert len(rows) == 6 and all(row["float32"] > 0 for row in rows)
    assert [row["scheme"] for row in rows] == 3 * [None] + 3 * ["dp_fedsgd"]
    for three in (rows[:3], rows[3:]):
        told = {row["attack"]: row["whole_numbers"] for row in three}
        assert told == {"low bits": 0, "precision": None, "order of summation": 0}
        verdicts = {row["attack"]: row["verdict"] for row in three}
        held = {"low bits": "holds", "order of summation": "holds"}
        assert verdicts == {"precision": "does not apply", **held}
    assert cli.main([*args[:2], "--all"]) == 2
    assert "floating_point" in capsys.readouterr().err
