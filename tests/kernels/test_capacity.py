"""Capacity in nats and its inverse: closed forms, printed oracles, float64 in NumPy, properties of
random spectra.
"""

import functools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fljax_kernels import spectral

optimized = pytest.mark.optimized(reason="reads the memory of the compiled program")

LAM = np.array([4.0, 1.0, 0.25])
S3 = np.array([[4.0, 1.0, 0.5], [1.0, 2.0, 0.3], [0.5, 0.3, 1.0]])
BETA = np.array([1.0, 2.0, 5.0])
NUM_RANDOM = 320


def capacity64(values, log_noise_var):
    """NumPy, by another formula than the kernel's."""
    values = np.asarray(values, np.float64)
    noise = np.broadcast_to(np.asarray(log_noise_var, np.float64), values.shape)[values > 0]
    return np.logaddexp(0, np.log(values[values > 0]) - noise).sum() / 2


def root64(values, nats):
    """Ln noise variance by 200 bisections."""
    low, high = -3e4, 3e4
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if capacity64(values, middle) > nats else (low, middle)
    return high


def in64(fun, *args, static=()):
    """`fun(*args)` compiled in float64."""
    with jax.enable_x64(True):
        out = jax.jit(fun, static_argnums=static)(*args)
        return jax.tree.map(np.asarray, out)


def random_spectra(num=NUM_RANDOM, d=12):
    """`[num, d]` spectra over up to 20 decades, some constant, some with zeros, and `[num]` nats
    from 1e-3 to 1e4.
    """
    rng = np.random.default_rng(7)
    spread = rng.uniform(0, 23, (num, 1))
    values = np.exp(rng.uniform(-1, 1, (num, d)) * spread) * 10 ** rng.uniform(-3, 3, (num, 1))
    values[: num // 16] = values[: num // 16, :1]
    zero = rng.uniform(size=(num, d)) < np.where(np.arange(num) % 4 == 0, 0.5, 0.0)[:, None]
    zero[:, 0] = zero[: num // 16] = False
    return np.where(zero, 0.0, values), 10 ** rng.uniform(-3, 4, num)


def random_covariances(num=NUM_RANDOM, d=6):
    rng = np.random.default_rng(8)
    rows = rng.normal(size=(num, d, 2 * d)) * np.exp(rng.uniform(-1.5, 1.5, (num, d, 1)))
    return (
        rows @ rows.transpose(0, 2, 1) / (2 * d),
        np.exp(rng.uniform(-1.5, 1.5, (num, d))),
        rng.uniform(0.05, 8, num),
    )


ORACLES = {
    "A4": (lambda: spectral.capacity(LAM, math.log(0.5)), 1.85065098706),
    "A2": (
        lambda: jax.vmap(lambda w: spectral.capacity(4 * w[None] ** 2, math.log(2.50428228399)))(
            jnp.array([2.0, 6.0, 0.5])
        ),
        [1, 2.03452623926, 0.167991775111],
    ),
    "B1": (
        lambda: jnp.exp(
            jax.vmap(spectral.solve_log_noise_var, (None, 0))(
                LAM, jnp.array([0.001, 0.1, 1, 3, 10], jnp.float64)
            )
        ),
        [2623.37556651, 24.6806280172, 1.45863123592, 0.172368123838, 0.00127547170697],
    ),
    "B2": (lambda: spectral.solve_log_noise_var(LAM, 300), -200.0),
    "B3": (
        lambda: jnp.exp(spectral.solve_log_noise_var(np.array([4, 1, 0.25, 0, 0]), 1)),
        1.45863123592,
    ),
    "B4": (
        lambda: jnp.exp(spectral.solve_log_noise_var(np.arange(1, 65.0) ** -2, 10)),
        0.0159481969418,
    ),
    "B4b": (
        lambda: jnp.exp(spectral.solve_log_noise_var(1 / np.arange(1, 3073.0), 300)),
        0.00671218906677,
    ),
    "C1": (
        lambda: LAM / jnp.exp(spectral.white_log_snr(1, 3)),
        [4.22059335924, 1.05514833981, 0.263787084952],
    ),
    "C1b": (
        lambda: LAM / jnp.exp(spectral.white_log_snr(3.0, 3)),
        [0.626070570999, 0.15651764275, 0.0391294106874],
    ),
    "C2": (
        lambda: jnp.exp(spectral.white_log_snr(jnp.array([50, 300, 1500], jnp.float64), 3072)),
        [0.0330876983937, 0.215690830521, 1.65531289772],
    ),
    "D1": (
        lambda: spectral.personalized_values(S3, BETA),
        [0.182739082378, 0.844576242443, 4.17268467518],
    ),
    "D2": (
        lambda: spectral.capacity(spectral.personalized_values(S3, BETA), math.log(0.5)),
        1.76780585886,
    ),
    "D2 dense": (lambda: spectral.capacity_dense(S3, jnp.diag(0.5 * BETA)), 1.76780585886),
    "D3": (
        lambda: jnp.exp(
            jax.vmap(
                lambda k: spectral.solve_log_noise_var(spectral.personalized_values(S3, BETA), k)
            )(jnp.array([0.1, 1, 3]))
        ),
        [24.316422109, 1.37342959406, 0.153173855414],
    ),
    "D4": (
        lambda: jnp.exp(
            jax.vmap(lambda k: spectral.solve_log_noise_var_hadamard(S3, BETA, k))(
                jnp.array([0.1, 1, 3])
            )
        ),
        [24.4175483702, 1.38117723796, 0.153200682784],
    ),
    "D5": (
        lambda: spectral.capacity(
            spectral.personalized_values(S3, BETA),
            spectral.solve_log_noise_var_hadamard(S3, BETA, 1),
        ),
        0.996486772366,
    ),
    "E1": (
        lambda: jnp.concatenate(spectral.hadamard_terms(S3, BETA)),
        [4, 2, 1, 4, 1.75, 0.92, 1, 2.0625, 5.03],
    ),
    "F2": (
        lambda: jax.vmap(lambda k: spectral.mse_entropy_bound(4.256815599614019, k, 3))(
            jnp.array([0.0, 1, 3])
        ),
        [1, 0.513417119033, 0.135335283237],
    ),
    "F3": (
        lambda: jax.vmap(
            lambda k: spectral.mse_linear(LAM, jnp.exp(spectral.solve_log_noise_var(LAM, k)))
        )(jnp.array([1.0, 3])),
        [0.625184301396, 0.13809923275],
    ),
    "F4": (
        lambda: jax.vmap(
            lambda k: spectral.mse_linear(LAM, LAM / jnp.exp(spectral.white_log_snr(k, 3)))
        )(jnp.array([1.0, 3])),
        [0.898479958307, 0.236836745664],
    ),
    "F5": (
        lambda: jax.vmap(spectral.mse_distortion_rate, (None, 0))(LAM, jnp.array([0.1, 1, 3])),
        [1.50830767077, 0.573839254895, 0.135335283237],
    ),
    "N4": (
        lambda: jax.vmap(spectral.mse_projected, (None, 0))(LAM, jnp.array([0.1, 1, 3])),
        [1.20644989071, 0.513417119033, 0.135335283237],
    ),
    "F6": (lambda: spectral.mse_entropy_bound(0.0, 0.0, 1), 0.0585498315243),
    "F8": (
        lambda: spectral.min_power_noise_var(LAM, 1),
        [1.92989129972, 1.26380594366, 0.729913944046],
    ),
    "H1 paper": (
        lambda: jax.vmap(lambda z: spectral.clipped_capacity(64, 1, z**2, paper=True))(
            jnp.array([0.8, 0.57, 0.46, 0.2066, 1.3])
        ),
        [100, 196.983687288, 302.457466919, 1499.40632881, 37.8698224852],
    ),
    "H1": (
        lambda: jnp.stack(
            [spectral.clipped_capacity(64, 1, 0.64), spectral.clipped_capacity(64, 1, 0.64, 62006)]
        ),
        [50, 49.959724618],
    ),
    "H4": (
        lambda: jax.vmap(lambda b: spectral.capacity(LAM / b, math.log(0.1)))(
            jnp.array([1.0, 8, 64])
        ),
        [3.682115154, 1.43731170046, 0.334504344964],
    ),
    "H5": (
        lambda: jax.vmap(lambda b: spectral.capacity(b * LAM, math.log(0.1)))(
            jnp.array([1.0, 8, 64])
        ),
        [3.682115154, 6.60520635776, 9.69629345405],
    ),
    "I1": (
        lambda: jnp.stack(
            [
                spectral.capacity_gram(S3, 0.5),
                spectral.capacity_gram(S3[:2, :2], 0.5),
                spectral.compression_drop(S3, 0.5, np.array([True, True, False])),
            ]
        ),
        [2.38177026098, 1.85678603335, 0.524984227628],
    ),
    "I3": (
        lambda: jax.vmap(lambda l: spectral.capacity(l[None], 0.0))(
            jnp.array([222.21, 85.08, 9.91])
        ),
        [2.70405651619, 2.22763854821, 1.19483989992],
    ),
    "J2": (
        lambda: jax.vmap(
            lambda m: 1536 * jnp.log1p(m * jnp.exp(spectral.white_log_snr(300, 3072)))
        )(jnp.array([13.0, 1e4])),
        [2052.16987623, 11791.710189],
    ),
    "J3": (
        lambda: spectral.compose_capacity(
            jnp.array([0.0, 1, 2, 10, 100]) / jnp.exp(spectral.solve_log_noise_var(LAM, 1)), LAM
        ),
        [0, 1, 1.51377550922, 3.20342110856, 6.37892130134],
    ),
    "J4": (
        lambda: spectral.capacity_dense(S3, jnp.linalg.inv(jnp.eye(3) * 1.5 + jnp.diag(1 / BETA))),
        2.42940789193,
    ),
    "N3": (lambda: 0.25 / jnp.exp(spectral.white_log_snr(300, 3072)), 1.15906642576),
    "N3b": (lambda: 0.25 / jnp.exp(spectral.white_log_snr(5, 64)), 1.47825388456),
    "N7": (
        lambda: spectral.log_expm1(jnp.array([1e-9, 1, 800])),
        [-20.7232658364, 0.541324854613, 800],
    ),
}


@functools.cache
def answers():
    """Those of all oracles, by one program."""
    return in64(lambda: {name: make() for name, (make, _) in ORACLES.items()})


@pytest.mark.parametrize("name", ORACLES)
def test_the_oracles_of_the_spec(name):
    # J2 prints 12 digits of a number whose log1p was taken of 12-digit ones
    np.testing.assert_allclose(answers()[name], ORACLES[name][1], rtol=1e-9)


def test_the_gram_form_is_the_dense_one():  # L1
    jac = np.cos(np.outer(np.arange(1, 6), np.arange(1, 41)))
    jac = jac - jac.mean(0)
    rows, columns = in64(
        lambda: (
            spectral.capacity_gram(jac @ jac.T / 5, 0.1),
            spectral.capacity_gram(jac.T @ jac / 5, 0.1),
        )
    )
    np.testing.assert_allclose([rows, columns], 7.43267420311, rtol=1e-9)


def test_theorem_3_on_the_printed_cases():  # E2, E3
    ar = 0.9 ** np.abs(np.subtract.outer(np.arange(4), np.arange(4)))

    def bounds(cov, beta):
        c, u, k = spectral.hadamard_terms(cov, beta)
        return jnp.stack(
            [
                jnp.linalg.slogdet(cov + jnp.diag(beta))[1],
                jnp.sum(jnp.log(c + beta)),
                jnp.sum(jnp.log(u + k)),
            ]
        )

    np.testing.assert_allclose(
        in64(bounds, S3, BETA), [4.72605950326, 4.78749174278, 4.73111427393], rtol=1e-9
    )
    found = in64(bounds, ar, np.full(4, 0.01))
    np.testing.assert_allclose(found, [-4.70339335543, 0.0398013234127, -4.69925930589], rtol=1e-9)


@functools.cache
def digits():
    from sklearn import datasets

    return np.cov(datasets.load_digits().data / 16, rowvar=False, ddof=0)


def test_the_digits():  # M1, M2, M4
    cov = digits()
    values = np.linalg.eigvalsh(cov)
    values[values < 1e-12] = 0
    np.testing.assert_allclose(
        [(values > 0).sum(), values.sum(), values.max()],
        [61, 4.69327631782, 0.698856702264],
        rtol=1e-9,
    )
    nats = np.array([1.0, 5, 20, 50])

    def natural(values, nats):
        noise = jnp.exp(jax.vmap(spectral.solve_log_noise_var, (None, 0))(values, nats))
        return noise, jax.vmap(spectral.mse_linear, (None, 0))(values, noise)

    noise, mse = in64(natural, values, nats)
    np.testing.assert_allclose(
        noise, [2.18087467838, 0.338887057284, 0.0426147865721, 0.0061133973185], rtol=1e-9
    )
    np.testing.assert_allclose(
        mse, [0.0636500159443, 0.0412173055903, 0.0149595764719, 0.00370926087263], rtol=1e-9
    )
    beta = np.ones((8, 8))
    beta[3:5, 2:6] = 50
    beta, floored = beta.reshape(64), cov + 1e-4 * np.eye(64)

    def personalized(cov, beta):
        exact = spectral.solve_log_noise_var(spectral.personalized_values(cov, beta), 5)
        return jnp.exp(jnp.stack([exact, spectral.solve_log_noise_var_hadamard(cov, beta, 5)]))

    np.testing.assert_allclose(
        in64(personalized, floored, beta), [0.251273438479, 0.306377420081], rtol=1e-9
    )


def test_log_expm1_agrees_with_mpmath_and_has_a_finite_derivative():
    x = np.concatenate([10 ** np.linspace(-12, 4, 33), [1.0, np.nextafter(1.0, 2)]])
    with mpmath.workdps(30):
        exact = np.array([float(mpmath.log(mpmath.expm1(mpmath.mpf(v)))) for v in x])
        slopes = np.array([float(1 / -mpmath.expm1(-mpmath.mpf(v))) for v in x])
    value, slope = in64(
        lambda x: (spectral.log_expm1(x), jax.vmap(jax.grad(spectral.log_expm1))(x)), x
    )
    np.testing.assert_allclose(value, exact, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(slope, slopes, rtol=1e-12)


def test_the_solved_noise_has_the_capacity_asked_for():  # P1
    values, nats = random_spectra()
    found = in64(jax.vmap(spectral.solve_log_noise_var), values, nats)
    reached = np.array([capacity64(v, s) for v, s in zip(values, found, strict=True)])
    # ln sigma is a float64 of size up to 1e4: half a spacing of it, times at most d / 2 nats per
    # unit, and 1e-13.
    np.testing.assert_allclose(reached, nats, rtol=1e-12, atol=0)
    exact = np.array([root64(v, k) for v, k in zip(values[:40], nats[:40], strict=True)])
    np.testing.assert_allclose(found[:40], exact, rtol=1e-12, atol=1e-11)


@optimized
def test_float32_solves_three_thousand_directions_to_one_in_a_million():
    rng = np.random.default_rng(3)
    values = np.exp(rng.uniform(-1, 1, (24, 3072)) * rng.uniform(0, 10, (24, 1)))
    values[:4] = values[:4, :1]
    values[4:8] = 1 / np.arange(1, 3073.0) ** rng.uniform(0.5, 3, (4, 1))
    values = (values / values.max(1, keepdims=True)).astype(np.float32)
    nats = np.array([1e-3, 1e-2, 0.1, 1, 10, 100, 1e3, 1e4], np.float32)
    found = jax.jit(jax.vmap(jax.vmap(spectral.solve_log_noise_var, (None, 0)), (0, None)))(
        values, nats
    )
    assert found.dtype == jnp.float32 and np.max(found) < 16
    reached = np.array(
        [[capacity64(v, s) for s in row] for v, row in zip(values, np.asarray(found), strict=True)]
    )
    np.testing.assert_allclose(
        reached, np.broadcast_to(nats.astype(np.float64), reached.shape), rtol=1e-6
    )


@optimized
def test_extreme_budgets_in_float32_are_as_good_as_the_spacing_of_the_result():
    values, nats = random_spectra()
    values, nats = values.astype(np.float32), nats.astype(np.float32)
    found = np.asarray(jax.jit(jax.vmap(spectral.solve_log_noise_var))(values, nats))
    exact = np.array([root64(v, k) for v, k in zip(values, nats.astype(np.float64), strict=True)])
    # a few roundings of the result, of the logarithms, and of the budget against d / 2 nats per
    # unit
    assert np.all(
        np.abs(found - exact)
        <= 4 * np.finfo(np.float32).eps * (1 + np.abs(exact) + np.abs(np.log(values.max(1))))
    )


def test_the_noise_falls_with_the_budget_and_scales_with_the_data():  # P2, P12
    values, _ = random_spectra(40)
    nats = 10 ** np.linspace(-3, 4, 30)
    grid = jax.vmap(jax.vmap(spectral.solve_log_noise_var, (None, 0)), (0, None))
    found, scaled = in64(grid, values, nats), in64(grid, 3.7 * values, nats)
    assert np.all(np.diff(found, axis=1) < 0)
    np.testing.assert_allclose(scaled, found + math.log(3.7), rtol=1e-12, atol=1e-11)
    with np.errstate(divide="ignore"):
        logs = np.where(values > 0, np.log(values), np.nan)
    rank = (values > 0).sum(1)
    few, many = in64(grid, values, np.array([1e-9, 1e4]))[:, 0], found[:, -1]
    np.testing.assert_allclose(few, np.log(values.sum(1) / 2e-9), atol=1e-7)
    # relative to the mean, up to exp(-2 * 1e4 / 12) at most
    np.testing.assert_allclose(many, np.nanmean(logs, 1) - 2e4 / rank, rtol=1e-12)


def test_noise_powers_and_errors_are_ordered():  # P3, P4, P5, P8 of min-power
    values, nats = random_spectra()
    values = np.where(
        values > 0, values, values.max(1, keepdims=True) * 1e-6
    )  # white needs every direction
    nats = np.minimum(nats, 300.0)

    @jax.vmap
    def all_of(values, nats):
        d = values.shape[0]
        natural = jnp.exp(spectral.solve_log_noise_var(values, nats))
        white = values * jnp.exp(-spectral.white_log_snr(nats, d))
        least = spectral.min_power_noise_var(values, nats)
        entropy = jnp.sum(jnp.log(values)) / 2 + d / 2 * math.log(2 * math.pi * math.e)
        powers = jnp.stack([jnp.sum(least), d * natural, jnp.sum(white)])
        errors = jnp.stack(
            [
                spectral.mse_entropy_bound(entropy, nats, d),
                spectral.mse_projected(values, nats),
                spectral.mse_distortion_rate(values, nats),
                spectral.mse_linear(values, natural),
                spectral.mse_linear(values, white),
            ]
        )
        return (
            powers,
            errors,
            spectral.capacity(values, jnp.log(least)),
            spectral.capacity(values, jnp.log(white)),
        )

    powers, errors, at_least, at_white = in64(all_of, values, nats)
    assert np.all(np.diff(powers, axis=1) >= -1e-10 * powers[:, :-1])
    assert np.all(np.diff(errors, axis=1) >= -1e-10 * errors[:, :-1])
    np.testing.assert_allclose(at_least, nats, rtol=1e-11)
    np.testing.assert_allclose(at_white, nats, rtol=1e-11)
    np.testing.assert_allclose(
        errors[:, 4], values.mean(1) * np.exp(-2 * nats / values.shape[1]), rtol=1e-9
    )
    constant = errors[: NUM_RANDOM // 16]
    np.testing.assert_allclose(
        constant, np.broadcast_to(constant[:, :1], constant.shape), rtol=1e-8
    )
    # the control: with an uneven spectrum the order is strict somewhere
    assert (np.diff(errors, axis=1) > 1e-3 * errors[:, :-1]).any(0).all()


def test_distortion_rate_is_reverse_water_filling():
    values, nats = random_spectra(64)
    found = in64(jax.vmap(spectral.mse_distortion_rate), values, nats)
    for v, k, mse in zip(values, nats, found, strict=True):
        low, high = -2e4, np.log(v.max())
        for _ in range(200):  # bisection on ln theta, in place of the kernel's closed form
            theta = (low + high) / 2
            rate = np.maximum(0, np.log(v[v > 0]) - theta).sum() / 2
            low, high = (theta, high) if rate > k else (low, theta)
        assert mse == pytest.approx(np.minimum(np.exp(high), v).mean(), rel=1e-9, abs=1e-300)


def test_many_draws_tell_less_than_their_sum():  # P6
    values, nats = random_spectra()
    nats = np.minimum(nats, 100)
    uses = np.arange(0.0, 65)

    @jax.vmap
    def joint(values, nats):
        return spectral.compose_capacity(
            uses * jnp.exp(-spectral.solve_log_noise_var(values, nats)), values
        )

    found = in64(joint, values, nats)
    np.testing.assert_allclose(found[:, 1], nats, rtol=1e-12)
    assert np.all(found[:, 0] == 0)
    assert np.all(found <= uses * nats[:, None] * (1 + 1e-12))
    assert np.all(np.diff(found, n=2, axis=1) <= 1e-10 * found[:, 2:])


def test_theorem_3_holds_and_over_noises():  # P7, P8, P9, P10, P11, P13
    cov, beta, nats = random_covariances()

    @jax.vmap
    def one(cov, beta, nats):
        d = cov.shape[0]
        c, u, k = spectral.hadamard_terms(cov, beta)
        exact = spectral.solve_log_noise_var(spectral.personalized_values(cov, beta), nats)
        bound = spectral.solve_log_noise_var_hadamard(cov, beta, nats)
        diagonal = jnp.diag(jnp.diagonal(cov))
        plain = spectral.solve_log_noise_var(jnp.linalg.eigvalsh(cov), nats)
        ones = spectral.solve_log_noise_var(spectral.personalized_values(cov, jnp.ones(d)), nats)
        keep = jnp.arange(d) % 2 == 0
        noise = jnp.exp(plain)
        trace = jnp.trace(cov)
        dense = spectral.capacity_dense(cov, jnp.diag(jnp.exp(exact) * beta))
        turned = spectral.capacity_dense(
            beta[:, None] * cov * beta[None, :], beta[:, None] * cov * beta[None, :] / 3
        )
        return {
            "logdet": jnp.linalg.slogdet(cov + jnp.diag(beta))[1],
            "branches": jnp.stack([jnp.sum(jnp.log(c + beta)), jnp.sum(jnp.log(u + k))]),
            "exact": exact,
            "bound": bound,
            "at_bound": spectral.capacity_hadamard(c, u, k, beta, bound),
            "diagonal": spectral.solve_log_noise_var_hadamard(diagonal, beta, nats)
            - spectral.solve_log_noise_var(spectral.personalized_values(diagonal, beta), nats),
            "ones": ones - plain,
            "drop": spectral.compression_drop(cov, noise, keep),
            "trace": jnp.stack([nats, d / 2 * jnp.log1p(trace / (d * noise)), trace / (2 * noise)]),
            "dense": dense,
            "white": turned - d / 2 * math.log(4),
            "noise": noise,
        }

    found = in64(one, cov, beta, nats)
    assert np.all(found["branches"] >= found["logdet"][:, None] - 1e-10)
    assert np.all(found["bound"] >= found["exact"] - 1e-12)
    assert (found["bound"] > found["exact"] + 1e-3).any()
    # bisection ends on the safe side, within rounding
    np.testing.assert_allclose(found["at_bound"], nats, rtol=1e-11)
    np.testing.assert_allclose(found["diagonal"], 0, atol=1e-11)
    np.testing.assert_allclose(found["ones"], 0, atol=1e-11)
    np.testing.assert_allclose(found["dense"], nats, rtol=1e-10)
    np.testing.assert_allclose(found["white"], 0, atol=1e-11)
    assert np.all(np.diff(found["trace"], axis=1) >= -1e-11)
    for s, noise, drop in zip(
        cov, found["noise"], found["drop"], strict=True
    ):  # Schur's form, NumPy
        keep = np.arange(len(s)) % 2 == 0
        p, q, r = s[keep][:, keep], s[~keep][:, ~keep], s[keep][:, ~keep]
        p, q = p + noise * np.eye(len(p)), q + noise * np.eye(len(q))
        schur = q - r.T @ np.linalg.solve(p, r)
        assert drop == pytest.approx(
            (np.linalg.slogdet(schur)[1] - len(q) * np.log(noise)) / 2, rel=1e-9, abs=1e-11
        )
        assert drop >= 0


def test_vmap_is_the_loop():  # P14
    values, nats = random_spectra(9)
    with jax.enable_x64(True):
        many = jax.jit(jax.vmap(spectral.solve_log_noise_var))(values, nats)
        one = jax.jit(spectral.solve_log_noise_var)
        loop = [one(v, k) for v, k in zip(values, nats, strict=True)]
    np.testing.assert_allclose(many, loop, rtol=1e-14)


def test_the_solvers_derivative_is_that_of_its_differences():
    values = np.array([4.0, 1.0, 0.25, 1e-3, 0.0])
    solve = spectral.solve_log_noise_var

    def differences(values, nats):
        h = 1e-5
        by_nats = (solve(values, nats * (1 + h)) - solve(values, nats * (1 - h))) / (2 * h * nats)
        steps = jnp.diag(jnp.where(values > 0, h * values, 0))
        by_values = jax.vmap(lambda e: solve(values + e, nats) - solve(values - e, nats))(steps)
        return by_nats, by_values[:4] / (2 * h * values[:4])

    def all_of(nats):
        more = (solve(values + 1e-9 * (values == 0), nats) - solve(values, nats)) / 1e-9
        return jax.grad(solve, (0, 1))(values, nats), differences(values, nats), more

    (by_values, by_nats), expected, more = in64(jax.vmap(all_of), np.array([1e-3, 1.0, 20.0]))
    # central differences: h^2 and rounding 1e-16 / h, relative to derivatives of order one over the
    # argument
    np.testing.assert_allclose(by_nats, expected[0], rtol=1e-6)
    np.testing.assert_allclose(by_values[:, :4], expected[1], rtol=1e-6)
    # at zero the derivative is one-sided: of a direction that starts to vary
    np.testing.assert_allclose(by_values[:, 4], more, rtol=1e-3)
    assert np.all(np.isfinite(jax.jit(jax.grad(solve))(jnp.asarray(values, jnp.float32), 1000.0)))


def test_capacity_has_finite_derivatives_beside_zeros():
    grads = jax.jit(jax.grad(spectral.capacity, (0, 1)))(
        jnp.array([4.0, 0.0, 1.0]), jnp.float32(0.0)
    )
    np.testing.assert_allclose(grads[0], [0.1, 0, 0.25], rtol=1e-6)
    np.testing.assert_allclose(grads[1], -(0.8 + 0.5) / 2, rtol=1e-6)


def test_edges_give_the_documented_values():
    @jax.jit
    def edges():
        lam = jnp.asarray(LAM, jnp.float32)
        flat, broken = lam.at[2].set(0), lam.at[0].set(jnp.nan)
        solve = jax.vmap(spectral.solve_log_noise_var, (None, 0))(
            lam, jnp.array([0, jnp.inf, -1, jnp.nan])
        )
        inf = jnp.inf
        return [
            (solve, [inf, -inf, math.nan, math.nan]),
            (spectral.solve_log_noise_var(jnp.zeros(3), 1.0), math.nan),
            (spectral.solve_log_noise_var(broken, 1.0), math.nan),
            (spectral.capacity(jnp.zeros(3), -inf), 0),
            (spectral.capacity(lam, -inf), inf),
            (spectral.capacity(lam, inf), 0),
            (spectral.capacity(lam, jnp.nan), math.nan),
            (spectral.capacity(broken, 0.0), math.nan),
            # white noise on a rank-deficient spectrum: no noise where there is no variance, and no
            # NaN
            (spectral.capacity(flat, jnp.log(flat)), math.log(2)),
            (spectral.capacity_gram(jnp.eye(3), 0.0), inf),
            (spectral.capacity_dense(jnp.eye(2), -jnp.eye(2)), math.nan),
            (spectral.min_power_noise_var(jnp.array([1.0, 0.0]), 0.0), [inf, 0]),
            (spectral.min_power_noise_var(jnp.zeros(2), 1.0), [math.nan, math.nan]),
            (
                spectral.solve_log_noise_var_hadamard(
                    jnp.ones((2, 2)) - 2 * jnp.eye(2), jnp.ones(2), 1.0
                ),
                math.nan,
            ),
            (spectral.mse_entropy_bound(-inf, 1.0, 3), 0),
            (spectral.mse_entropy_bound(1.0, inf, 3), 0),
            (spectral.mse_distortion_rate(jnp.zeros(3), 1.0), 0),
            (spectral.mse_distortion_rate(lam, inf), 0),
            (spectral.mse_projected(jnp.zeros(3), 1.0), 0),
            (spectral.mse_projected(broken, 1.0), math.nan),
            (spectral.mse_linear(lam, 0.0), 0),
            (spectral.mse_linear(lam, inf), 1.75),
            (spectral.compose_capacity(jnp.array([inf]), lam), [inf]),
            (spectral.compression_drop(jnp.eye(2), 0.0, jnp.array([False, False])), inf),
            (spectral.log_expm1(jnp.array([0, inf])), [-inf, inf]),
            (jnp.float32(found_dtypes()), 1),
        ]

    def found_dtypes():
        low = jnp.asarray(LAM, jnp.bfloat16)
        outs = [
            spectral.capacity(low, 0.0),
            spectral.min_power_noise_var(low, 1.0),
            spectral.mse_linear(low, 1.0),
        ]
        return all(out.dtype == jnp.float32 for out in outs)

    for number, (found, expected) in enumerate(edges()):
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=str(number))


def test_a_spectrum_without_variance_in_a_cohort_leaves_the_others_alone():
    values = jnp.asarray(np.stack([LAM, 0 * LAM, LAM]), jnp.float32)

    @jax.jit
    def both(values):
        return jax.vmap(jax.value_and_grad(spectral.solve_log_noise_var), (0, None))(values, 1.0)

    found, slopes = both(values)
    np.testing.assert_allclose(np.exp(found[::2]), 1.45863123592, rtol=1e-6)
    assert np.isnan(found[1]) and np.all(np.isfinite(slopes[::2]))


def test_bfloat16_is_computed_and_returned_in_float32():
    @jax.jit
    def both(values, cov, beta):
        return jnp.exp(
            spectral.solve_log_noise_var(values, 1.0)
        ), spectral.solve_log_noise_var_hadamard(cov, beta, 1.0)

    found = both(*(jnp.asarray(x, jnp.bfloat16) for x in (LAM, S3, BETA)))
    assert [x.dtype for x in found] == [jnp.float32] * 2
    np.testing.assert_allclose(
        found[0], 1.45863123592, rtol=1e-6
    )  # 4, 1, 0.25 are exact in bfloat16


@optimized
def test_clients_split_among_devices_get_the_same_noise():
    values, nats = random_spectra(64)
    values, nats = jnp.asarray(values, jnp.float32), jnp.asarray(nats, jnp.float32)
    solve = jax.jit(jax.vmap(spectral.solve_log_noise_var))
    mesh = jax.make_mesh((8,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("clients"))
    split = solve(jax.device_put(values, rows), jax.device_put(nats, rows))
    assert len(split.sharding.device_set) == 8
    np.testing.assert_allclose(split, solve(values, nats), rtol=1e-6, atol=1e-6)


@optimized
def test_a_thousand_clients_of_3072_directions_need_no_copy_of_their_spectra():
    solve = jax.jit(jax.vmap(spectral.solve_log_noise_var))
    lowered = solve.lower(
        jax.ShapeDtypeStruct((1000, 3072), jnp.float32), jax.ShapeDtypeStruct((1000,), jnp.float32)
    )
    spectra = 1000 * 3072 * 4
    # logarithms, a mask of bytes and the two summands of a step, and not one array per step
    assert lowered.compile().memory_analysis().temp_size_in_bytes <= 5 * spectra


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: spectral.capacity(jnp.ones((2, 2)), 0.0), "values of shape"),
        (lambda: spectral.capacity(jnp.ones(3), jnp.ones(2)), "log_noise_var of shape"),
        (lambda: spectral.solve_log_noise_var(jnp.ones(3), jnp.ones(2)), "nats to be a scalar"),
        (lambda: spectral.solve_log_noise_var(jnp.ones(0), 1.0), "d >= 1"),
        (lambda: spectral.capacity_dense(jnp.ones((2, 3)), jnp.eye(2)), "cov of shape"),
        (lambda: spectral.capacity_dense(jnp.eye(2), jnp.eye(3)), "noise_cov of shape"),
        (lambda: spectral.personalized_values(jnp.eye(2), jnp.ones(3)), "weights of shape"),
        (lambda: spectral.compose_capacity(1.0, jnp.ones(3)), "precision_sum of shape"),
        (
            lambda: spectral.compression_drop(jnp.eye(2), 1.0, jnp.ones(3, bool)),
            "keep_mask of shape",
        ),
        (lambda: spectral.mse_linear(jnp.ones(2), jnp.ones(3)), "noise_var of shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
