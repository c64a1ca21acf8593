"""The laws of the server's secret scales, against closed forms; drawing them; one key a round."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from fljax.models import scaling
from fljax.server import perturbation
from fljax.upload import split_noise
from tests.server import _oracle

NUM = 100_000


@functools.cache
def samples():
    """|DN*(1)|, |DN*(2)| twice and DN(1.5, 1), DN(1.5, 2), `[NUM]` each."""

    @jax.jit
    def draw(key):
        keys = jax.random.split(key, 5)
        laws = [
            lambda k: perturbation.dn_star(k, (NUM,), 1),
            *[lambda k: perturbation.dn_star(k, (NUM,), 2)] * 2,
        ]
        laws += [
            lambda k: split_noise.dn(k, (NUM,), 1.5, 1),
            lambda k: split_noise.dn(k, (NUM,), 1.5, 2),
        ]
        return [law(k) for law, k in zip(laws, keys, strict=True)]

    return [np.asarray(x, np.float64) for x in draw(jax.random.key(7))]


def star_moment(p, m):
    return (special.gamma((3 + p) / 2) / special.gamma(1.5)) ** (1 / m)


def test_oracles_b1_and_b2_moments():
    for m, first in ((1, 0), (2, 1)):
        x = samples()[first]
        assert np.all(x > 0) and np.all(np.isfinite(x))
        log_mean, log_variance = special.digamma(1.5) / (2 * m), (np.pi**2 / 8 - 1) / m
        if m == 1:
            np.testing.assert_allclose(
                [log_mean, log_variance], [0.0182449870, 0.2337005501], rtol=1e-8
            )  # B1
        assert abs(np.log(x).mean() - log_mean) < 5 * math.sqrt(log_variance / NUM)
        for p in (1, 2, 4, -1):  # p = -2 has no variance
            exact, square = star_moment(p, m), star_moment(2 * p, m)
            assert abs((x**p).mean() - exact) < 5 * math.sqrt((square - exact**2) / NUM)
    oracle_b2 = [1.1283791671, 1.5, 3.75, 1.1283791671, 2]
    oracle_b2_prime = [1.0622519320, 1.2247448714, 1.9364916731, 1.0622519320, 1.4142135624]
    np.testing.assert_allclose([star_moment(p, 1) for p in (1, 2, 4, -1, -2)], oracle_b2, rtol=1e-9)
    np.testing.assert_allclose(
        [star_moment(p, 2) for p in (1, 2, 4, -1, -2)], oracle_b2_prime, rtol=1e-9
    )


def test_oracle_b3_moments_of_the_clients_share():
    oracle = {1: [1.0606601718, 1.5, 4.05], 2: [1.0298835720, 1.2247448714, 2.0124611797]}
    for n, x in zip((1, 2), samples()[3:], strict=True):
        for p, printed in zip((1, 2, 4), oracle[n], strict=True):

            def moment(q, n=n):
                return (math.sqrt(2) * 1.5) ** (q / n) * (1 + q) ** (-1 / n)

            assert moment(p) == pytest.approx(printed, rel=1e-9)
            assert abs((np.abs(x) ** p).mean() - printed) < 5 * math.sqrt(
                (moment(2 * p) - printed**2) / NUM
            )
        assert abs(np.sign(x).mean()) < 5 / math.sqrt(NUM)
    assert np.abs(samples()[3]).max() <= 1.5 * math.sqrt(2)
    assert stats.kstest(samples()[3] / (1.5 * math.sqrt(2)), "uniform", (-1, 2)).pvalue > 0.01


def test_oracles_b5_and_b12_the_first_law_is_maxwells():
    x = samples()[0]
    assert abs((x <= 1).mean() - 0.4275932955) < 5 * math.sqrt(0.25 / NUM)
    law = stats.maxwell(scale=math.sqrt(0.5))
    assert law.cdf(1) == pytest.approx(0.4275932955, rel=1e-9)
    assert law.median() == pytest.approx(1.0876520318, rel=1e-9)
    assert stats.kstest(x, law.cdf).pvalue > 0.01
    # The least of N draws, which is why no bounded noise hides under a known multiplier.
    least = [law.ppf(1 - 0.5 ** (1 / count)) for count in (16, 64, 1024)]
    np.testing.assert_allclose(least, [0.3954749348, 0.2457759079, 0.0967127121], rtol=1e-9)


def test_oracle_b6_the_series_and_its_tail():
    with jax.enable_x64(True):
        for m, value in ((1, 1.0184124225), (2, 1.0091642198)):
            found = perturbation.series(jnp.full(1000, 1 / m, jnp.float64), m)
            assert float(found) == pytest.approx(value, rel=1e-9)
    assert perturbation.series_tail(1000, 1) == pytest.approx(
        (-2.079173e-08, 2.497502e-04), rel=1e-6
    )
    assert perturbation.series_tail(32, 1) == pytest.approx((-1.912763e-05, 7.575178e-03), rel=1e-6)


def test_products_of_scales_and_shares_are_normal():
    one, two, again, share, _ = samples()
    for product in (one * share, two * again * share):
        assert stats.kstest(product, stats.norm(scale=1.5).cdf).pvalue > 0.01
    # The control: the square root of the first law has the second law's moments and is another law.
    assert (
        stats.kstest(
            np.sqrt(one) * np.sqrt(np.roll(one, 1)) * share, stats.norm(scale=1.5).cdf
        ).pvalue
        < 0.01
    )


def test_oracle_b8_and_b10_the_aggregate_is_not_normal():
    rng = np.random.default_rng(3)
    num = 400_000
    for count, kurtosis in ((1, 3), (5, 4.6), (100, 4.98)):
        assert (5 / 3) * (3 - 1.2 / count) == pytest.approx(kurtosis, abs=0.005)
    r = np.sqrt(rng.gamma(1.5, size=num))
    z = r * rng.uniform(-1, 1, (5, num)).mean(0) * math.sqrt(2)
    kurtosis = (z**4).mean() / (z**2).mean() ** 2
    blocks = (z.reshape(40, -1) ** 4).mean(1) / (z**2).mean() ** 2
    assert abs(kurtosis - 4.6) < 5 * blocks.std() / math.sqrt(40)
    # Entries of one row share r: squares correlate by (E r^4 - E[r^2]^2) / (9/5 E r^4 - E[r^2]^2) =
    # 1/3 in layer 1.
    four, two = star_moment(4, 1), star_moment(2, 1)
    assert (four - two**2) / (1.8 * four - two**2) == pytest.approx(1 / 3, rel=1e-12)
    half_four, half_two = star_moment(4, 2), star_moment(2, 2)
    middle = (half_four * half_two**2 - half_two**4) / (1.8 * half_four**2 - half_two**4)
    assert middle == pytest.approx(0.1454972244, rel=1e-8)


def plan():
    return scaling.plan(_oracle.apply, _oracle.weights(), jnp.zeros(4))


def test_draws_follow_the_form_and_the_range_and_depend_on_the_key(key):
    the_plan = plan()
    draw = functools.partial(perturbation.draw, the_plan)
    found = draw(jax.random.clone(key), additive_norm=1.5)
    assert np.all(np.asarray(found.scales) > 0) and float(found.scales[0]) == 1
    assert float(jnp.linalg.norm(found.additive)) == pytest.approx(1.5, rel=1e-6)
    assert not np.allclose(found.scales, draw(jax.random.key(1), additive_norm=1.5).scales)
    base = draw(
        jax.random.clone(key),
        additive_norm=0.0,
        form="base",
        law="log_uniform",
        scale_range=(0.1, 10.0),
    )
    assert (
        np.all((np.asarray(base.scales) >= 0.1) & (np.asarray(base.scales) <= 10))
        and not base.additive.any()
    )
    np.testing.assert_allclose(perturbation.transition(the_plan, base), 1)
    same = draw(jax.random.clone(key), additive_norm=2.0, constant_additive=True).additive
    np.testing.assert_allclose(same, [math.sqrt(2)] * 2, rtol=1e-6)
    for bad, match in (
        ({"additive_norm": -1.0}, "additive_norm"),
        ({"additive_norm": 1.0, "form": "none"}, "form"),
        ({"additive_norm": 1.0, "law": "log_uniform"}, "scale_range"),
        ({"additive_norm": 1.0, "scale_range": (0.0, 1.0)}, "scale_range"),
        ({"additive_norm": 1.0, "scale_range": (2.0, 1.0)}, "scale_range"),
    ):
        with pytest.raises(ValueError, match=match):
            draw(jax.random.clone(key), **bad)


def test_the_multipliers_second_moment_is_three_halves_in_every_layer():
    """Equation (13) is made so: R times uniform noise of variance 2/3 has variance 1."""
    the_plan = plan()
    many = jax.jit(
        jax.vmap(
            lambda k: perturbation.multipliers(
                the_plan, perturbation.draw(the_plan, k, additive_norm=0.0)
            )
        )
    )
    squares = [
        np.asarray(leaf, np.float64) ** 2
        for leaf in many(jax.random.split(jax.random.key(5), 4000))
    ]
    for leaf in squares:
        each = leaf.reshape(4000, -1).mean(1)
        assert abs(each.mean() - 1.5) < 5 * each.std() / math.sqrt(4000)


def test_a_round_gets_its_secrets_key_once(key):
    keys = perturbation.OneTime(key)
    first = keys.take(0)
    assert not np.array_equal(jax.random.key_data(first), jax.random.key_data(keys.take(1)))
    with pytest.raises(ValueError, match="round_index=0 again"):
        keys.take(0)


def test_the_sum_of_the_clients_uniform_noise_has_their_variance_and_bound():
    like = {"a": jnp.zeros((300, 100)), "b": jnp.zeros(7)}
    for count in (1, 5):
        found = jax.jit(lambda k, n=count: split_noise.sum_of_uniform(k, like, 1.5, n))(
            jax.random.key(3)
        )
        assert found["a"].shape == (300, 100) and found["b"].shape == (7,)
        x = np.asarray(found["a"], np.float64).ravel()
        assert np.abs(x).max() <= count * 1.5 * math.sqrt(2)
        variance = count * 2 * 1.5**2 / 3
        kurtosis = 3 - 1.2 / count
        assert abs(x.var() / variance - 1) < 5 * math.sqrt((kurtosis - 1) / x.size)
        assert abs(x.mean()) < 5 * math.sqrt(variance / x.size)
        if count == 1:
            assert stats.kstest(x / (1.5 * math.sqrt(2)), "uniform", (-1, 2)).pvalue > 0.01
