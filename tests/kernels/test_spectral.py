"""Water-filling noise from the Gram matrix: its law against the K x K definition, its floor in
float32.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fljax_kernels import spectral
from fljax_kernels.spectral import eigh, reference
from fljax_kernels.spectral.cases import CASES

optimized = pytest.mark.optimized(reason="reads the compiled program")

DRAWS = {"filling": spectral.filling_draw, "lifted": spectral.lifted_draw}
# Batch size 2, floor 0.25; the expected numbers were computed apart, in NumPy float64.
ROWS = np.array([[3.0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0]])
Z = np.array([1.0, -1.0, 0.5, 2.0])


def linear_map(draw, rows, scale, stddev, dtype):
    """The matrix M `[K, K]` with draw(z) = M z, one column per unit vector."""

    @functools.partial(jax.jit, static_argnums=2)
    def columns(rows, scale, stddev):
        system = spectral.spectrum(jnp.matmul(rows, rows.T, precision="highest"), scale)
        one = jax.vmap(
            lambda p: DRAWS[draw](system, p, stddev), in_axes=1, out_axes=spectral.Draw(None, 1)
        )(rows)
        push = one.stddev * jnp.eye(rows.shape[1], dtype=rows.dtype)
        return push + jnp.matmul(rows.T, one.weights, precision="highest")

    return np.asarray(
        columns(jnp.asarray(rows, dtype), jnp.asarray(scale, dtype), stddev), np.float64
    )


@pytest.mark.slow(
    reason="compiles the draw of one more spectrum",
    but=[
        "filling-random",
        "filling-rank_deficient",
        "filling-zero",
        "filling-one_row",
        "filling-low_floor",
        "lifted-random",
        "lifted-repeated_at_the_floor",
        "lifted-steep",
        "lifted-more_rows_than_columns",
        "lifted-high_floor",
    ],
)
@optimized
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("draw", DRAWS)
def test_the_draw_has_the_covariance_of_the_dense_definition(draw, case):
    rows, scale = case.rows(), 1 / case.num_rows
    with jax.enable_x64(True):
        push = linear_map(draw, rows, scale, case.stddev, jnp.float64)
    dense = reference.filling_covariance if draw == "filling" else reference.lifted_covariance
    largest = max(np.linalg.eigvalsh(reference.covariance(rows, scale))[-1], case.stddev**2)
    # Rounding of an eigenvalue is a few units of the largest one; at the floor the filling noise is
    # a square root of what is missing, so its covariance is continuous there.
    np.testing.assert_allclose(
        push @ push.T, dense(rows, scale, case.stddev), rtol=1e-10, atol=1e-12 * largest
    )


@pytest.mark.slow(
    reason="compiles the draw of one more spectrum",
    but=[
        "filling-repeated",
        "filling-repeated_at_the_floor",
        "filling-steep",
        "filling-more_rows_than_columns",
        "filling-high_floor",
        "lifted-rank_deficient",
        "lifted-repeated",
        "lifted-zero",
        "lifted-one_row",
        "lifted-low_floor",
    ],
)
@optimized
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("draw", DRAWS)
def test_in_float32_no_direction_stays_below_the_floor(draw, case):
    rows, scale = case.rows(), 1 / case.num_rows
    push = linear_map(draw, rows, scale, case.stddev, jnp.float32)
    total = push @ push.T + (reference.covariance(rows, scale) if draw == "filling" else 0)
    lowest = np.linalg.eigvalsh(total)[0]
    assert lowest >= case.stddev**2 * (1 - 1e-5)
    # And no more than the margins above it, in the directions that lay below.
    largest = np.linalg.eigvalsh(reference.covariance(rows, scale))[-1]
    if case.dim > case.num_rows:
        assert lowest <= case.stddev**2 * (1 + 3e-5) + 12 * np.finfo(np.float32).eps * largest


def test_without_a_fill_the_floor_is_missed():
    # The control: isotropic noise of the same total size leaves the null directions of S low.
    rows = ROWS
    total = reference.covariance(rows, 1 / 6) + np.eye(4) * 0.438341358756 / 4
    assert np.linalg.eigvalsh(total)[0] < 0.25 * (1 - 1e-5)


def test_the_oracle_of_three_rows():
    with jax.enable_x64(True):
        gram = jnp.asarray(ROWS @ ROWS.T)
        system = spectral.spectrum(gram, 1 / 6)
        np.testing.assert_allclose(
            system.values, [0.061658641244, 0.395236125262, 1.709771900161], rtol=1e-9
        )
        projections, stddev = jnp.asarray(ROWS @ Z), 0.5
        draw = spectral.filling_draw(system, projections, stddev)
        added = draw.stddev * Z + ROWS.T @ draw.weights
        np.testing.assert_allclose(
            added, [-0.014427488706, -0.197619692647, 0.33655710361, 1], rtol=1e-9
        )
        draw = spectral.lifted_draw(system, projections, stddev)
        fused = ROWS.mean(axis=0) + draw.stddev * Z + ROWS.T @ draw.weights
        np.testing.assert_allclose(
            fused, [2.574165915921, 0.179219387943, 0.6224619641, 1], rtol=1e-9
        )
    assert np.trace(reference.filling_covariance(ROWS, 1 / 6, 0.5)) == pytest.approx(
        0.438341358756, rel=1e-9
    )
    assert np.trace(reference.lifted_covariance(ROWS, 1 / 6, 0.5)) == pytest.approx(
        2.60500802542, rel=1e-9
    )


@pytest.mark.parametrize("draw", DRAWS)
def test_two_hundred_thousand_draws_have_the_lifted_covariance(draw, key):
    n, rows = 200_000, jnp.asarray(ROWS, jnp.float32)
    system = spectral.spectrum(jnp.asarray(ROWS @ ROWS.T, jnp.float32), 1 / 6)
    z_key, xi_key = jax.random.split(key)

    def one(z, xi):
        noise = DRAWS[draw](system, jnp.matmul(rows, z, precision="highest"), 0.5)
        weights = noise.weights + (
            xi / jnp.sqrt(6.0) if draw == "filling" else 0
        )  # fills up the sampling noise
        return noise.stddev * z + jnp.matmul(rows.T, weights, precision="highest")

    drawn = jax.jit(jax.vmap(one))(
        jax.random.normal(z_key, (n, 4)), jax.random.normal(xi_key, (n, 3))
    )
    expected = reference.lifted_covariance(ROWS, 1 / 6, 0.5)
    found = np.cov(np.asarray(drawn, np.float64).T)
    # E |found - expected|_F^2 = (tr(S)^2 + tr(S^2)) / n: 0.4 % of |S|_F here.
    assert np.linalg.norm(found - expected) <= 0.02 * np.linalg.norm(expected)
    assert np.linalg.norm(reference.covariance(ROWS, 1 / 6) - expected) > 0.1 * np.linalg.norm(
        expected
    )


def test_blocks_that_share_a_sampling_noise_miss_the_floor():
    # Lifting each half of the columns by itself, as if the sampling noise had no covariance across
    # them.
    filled = reference.covariance(ROWS, 1 / 6)
    for block in (slice(0, 2), slice(2, 4)):
        filled[block, block] += reference.filling_covariance(ROWS[:, block], 1 / 6, 0.5)
    assert np.linalg.eigvalsh(filled)[0] == pytest.approx(0.119273235775, rel=1e-9)


def test_rows_above_the_floor_in_every_direction_get_nothing():
    with jax.enable_x64(True):
        push = linear_map("filling", 3 * np.eye(5), 1.0, 1.0, jnp.float64)
    np.testing.assert_allclose(push, 0, atol=1e-12)


def test_zero_rows_get_isotropic_noise():
    push = linear_map("filling", np.zeros((4, 6)), 0.25, 0.7, jnp.float32)
    np.testing.assert_allclose(push, 0.7 * np.eye(6), rtol=1e-5)


@optimized
def test_the_order_of_the_rows_does_not_matter():
    rows = CASES[0].rows()
    with jax.enable_x64(True):
        a, b = (linear_map("filling", r, 0.1, 0.2, jnp.float64) for r in (rows, rows[::-1].copy()))
    np.testing.assert_allclose(a, b, atol=1e-12)


@optimized
def test_clients_side_by_side_and_on_eight_devices_get_what_each_gets_alone():
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(8, 5, 12)), jnp.float32)
    z = jnp.asarray(np.random.default_rng(1).normal(size=(8, 12)), jnp.float32)

    def one(rows, z):
        system = spectral.spectrum(rows @ rows.T, 0.2)
        draw = spectral.filling_draw(system, rows @ z, 0.4)
        return draw.stddev * z + rows.T @ draw.weights

    mesh = jax.make_mesh((8,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("clients"))) for x in (rows, z)]
    mapped = jax.jit(jax.vmap(one))(*spread)
    alone = jnp.stack([jax.jit(one)(rows[i], z[i]) for i in range(8)])
    np.testing.assert_allclose(mapped, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: spectral.spectrum(jnp.zeros((2, 3)), 1.0),
            r"gram of shape \[B, B\], B >= 1, got shape \(2, 3\)",
        ),
        (lambda s: spectral.spectrum(jnp.zeros((0, 0)), 1.0), "B >= 1"),
        (
            lambda s: spectral.spectrum(jnp.eye(2, dtype=jnp.bfloat16), 1.0),
            "float32 or float64, got bfloat16",
        ),
        (lambda s: spectral.spectrum(jnp.eye(2), 0.0), "scale > 0 and finite, got scale=0.0"),
        (
            lambda s: spectral.filling_draw(s, jnp.zeros(3), 1.0),
            r"projections of shape \(2,\), got shape \(3,\)",
        ),
        (
            lambda s: spectral.lifted_draw(s, jnp.zeros(2), -1.0),
            "stddev > 0 and finite, got stddev=-1.0",
        ),
        (lambda s: spectral.filling_draw(s, jnp.zeros(2), float("nan")), "stddev > 0 and finite"),
        (lambda s: spectral.filling_draw(s, jnp.zeros(2), jnp.ones(2)), "stddev to be a scalar"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(spectral.spectrum(jnp.eye(2), 1.0))


@optimized
def test_many_spectra_on_a_cpu_are_found_one_at_a_time():
    """One LAPACK call for many matrices waits for XLA's other threads, on one of them: on several
    devices, for ever.
    """
    if jax.default_backend() != "cpu":
        pytest.skip("LAPACK is a CPU's")
    grams = jnp.stack([jnp.eye(100), 2 * jnp.eye(100), jnp.diag(jnp.arange(100.0))])
    many = jax.jit(jax.vmap(lambda gram: spectral.spectrum(gram, 2.0)))
    calls = [
        line
        for line in many.lower(grams).compile().as_text().splitlines()
        if 'target="lapack' in line
    ]
    assert calls
    assert all("f32[100,100]" in line and "f32[3," not in line for line in calls)
    one = spectral.spectrum(grams[2], 2.0)
    for all_of_them, alone in zip(many(grams), one, strict=True):
        np.testing.assert_array_equal(all_of_them[2], alone)
    in_a_batch = jax.jit(jnp.linalg.eigh).lower(grams).compile().as_text()
    assert any('target="lapack' in line and "f32[3," in line for line in in_a_batch.splitlines())


@pytest.mark.parametrize("of", ["values", "vectors"])
def test_gradients_of_a_spectrum_are_those_of_eigh(of):
    rng = np.random.default_rng(0)
    rows, probe = (jnp.asarray(rng.normal(size=(3, 5, 7)), jnp.float32) for _ in range(2))

    def read(find):
        def score(rows):
            values, vectors = find(rows @ rows.T)
            # Columns are known up to their signs.
            return (
                jnp.sum(values**2)
                if of == "values"
                else jnp.sum((vectors.T @ probe[0]) ** 2 * values[:, None])
            )

        return jax.jit(jax.vmap(jax.grad(score)))(rows)

    mine = read(lambda gram: spectral.spectrum(gram, 1.0)[:2])
    np.testing.assert_allclose(mine, read(jnp.linalg.eigh), rtol=2e-4, atol=1e-3)
    # Rows that shrink lower all values: not zero, and of the sign that it must have.
    assert of == "vectors" or float(jnp.min(jnp.sum(mine * rows, axis=(1, 2)))) > 0


def test_gradients_of_eigenvalues_alone():
    gram = jnp.asarray([[2.0, 0.5], [0.5, 1.0]])
    mine = jax.grad(lambda g: jnp.sum(eigh.eigvalsh(g) ** 2))(gram)
    np.testing.assert_allclose(mine, 2 * gram, rtol=1e-6)  # the sum of squares of all entries
