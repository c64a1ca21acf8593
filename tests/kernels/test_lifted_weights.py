"""The lifted draw from the few eigenpairs above the floor: its law against the dense definition,
and who refuses.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax_kernels import spectral
from fljax_kernels.spectral import api, dominant, reference

B, K = 128, 140  # the smallest system of which only a part is taken, in a space with room beside it


def _above(*values, rest=0.2):
    return np.concatenate([np.asarray(values, float), np.full(B - len(values), rest)])


# Eigenvalues, the floor being 1, and whether the few are enough.
SPECTRA = {
    "none": (_above(0.9, 0.5), True),
    "none_nearly": (_above(1 - 1e-3, 1 - 1e-3), True),
    "nine_far_above": (_above(*np.linspace(80, 60, 9)), True),
    "around_the_floor": (_above(5, 1 + 1e-2, 1 + 1e-3, 1 + 1e-4, 1, 1 - 1e-4, 1 - 1e-3), True),
    "repeated": (_above(*[5] * 8), True),
    "repeated_below": (_above(5, 3, rest=0.999), None),
    "fifteen": (_above(*np.linspace(9, 3, 15)), True),
    "sixteen": (_above(*np.linspace(9, 3, 16)), False),
    "seventeen": (_above(*np.linspace(9, 3, 17)), False),
    "all": (np.linspace(2, 1.1, B), False),
    "tiny_gap": (_above(*[1 + 1e-3] * 8, rest=1 - 1e-3), False),
    "decay": ((6.5 / np.arange(1, B + 1)) ** 2, True),
    "steep": (_above(*np.geomspace(1e4, 2, 10)), None),
    "rank_deficient": (_above(3, 2, 1.5, rest=0), True),
    "zero": (np.zeros(B), True),
}


def rows_of(values, seed=0, first=None):
    """`[B, K]` whose products have these eigenvalues; `first`: the eigenvector of the first of
    them.
    """
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(B, B))
    if first is not None:
        vectors[:, 0] = first
    left, right = np.linalg.qr(vectors)[0], np.linalg.qr(rng.normal(size=(K, K)))[0]
    return (left * np.sqrt(values)) @ right[:, :B].T


def _by_few(gram, projections, stddev):
    return spectral.lifted_weights(gram, projections, stddev, 1.0)


def _by_all(gram, projections, stddev):
    return spectral.lifted_draw(spectral.spectrum(gram, 1.0), projections, stddev)


by_few, by_all = jax.jit(_by_few), jax.jit(_by_all)


@functools.partial(jax.jit, static_argnames="draw")
def push(rows, stddev, draw):
    """The matrix M `[K, K]` with draw(z) = M z."""
    gram = jnp.matmul(rows, rows.T, precision="highest")
    drawn = jax.vmap(draw, (None, 1, None), spectral.Draw(None, 1))(gram, rows, stddev)
    return drawn.stddev * jnp.eye(K, dtype=rows.dtype) + jnp.matmul(
        rows.T, drawn.weights, precision="highest"
    )


def covariance(rows, dtype, draw=by_few, stddev=1.0):
    matrix = np.asarray(
        push(jnp.asarray(rows, dtype), jnp.asarray(stddev, dtype), draw), np.float64
    )
    return matrix @ matrix.T


above = jax.jit(dominant.above, static_argnums=2)


def complete(rows, dtype):
    """Whether the few eigenpairs sufficed."""
    gram = rows @ rows.T
    unit = np.trace(gram) or 1.0
    rounding = float(api.SPECTRUM_MARGIN * np.finfo(dtype).eps)
    return bool(
        above(
            jnp.asarray(gram / unit, dtype), jnp.asarray(min(1 / unit, 2.0), dtype), rounding
        ).complete
    )


@pytest.mark.slow(
    reason="draws 140 columns of one more spectrum",
    but=["around_the_floor", "repeated"],
)
@pytest.mark.parametrize("name", SPECTRA)
def test_the_draw_has_the_covariance_of_the_dense_definition(name):
    values, few = SPECTRA[name]
    rows = rows_of(values)
    with jax.enable_x64(True):
        found = covariance(rows, jnp.float64)
        assert few is None or complete(rows, np.float64) == few
    expected = reference.lifted_covariance(rows, 1.0, 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12 * max(values[0], 1))


@pytest.mark.slow(
    reason="draws 140 columns of one more spectrum, in two ways",
    but=["none_nearly", "tiny_gap"],
)
@pytest.mark.parametrize("name", SPECTRA)
def test_in_float32_the_floor_holds_and_the_law_is_as_near_as_by_the_whole_system(name):
    values, few = SPECTRA[name]
    rows = rows_of(values).astype(np.float32)
    exact = reference.lifted_covariance(rows, 1.0, 1.0)
    found = covariance(rows, jnp.float32)
    assert np.linalg.eigvalsh(found)[0] >= 1 - 1e-5
    errors = [np.linalg.norm(c - exact, 2) for c in (found, covariance(rows, jnp.float32, by_all))]
    # A residual of 16 units of rounding is allowed, of the largest eigenvalue.
    assert (
        errors[0]
        <= errors[1] + 2e-5 + dominant.RESIDUAL_MARGIN * np.finfo(np.float32).eps * values[0]
    )
    assert few is None or complete(rows, np.float32) == few


def test_an_eigenvector_orthogonal_to_the_start_is_not_forgotten():
    start = np.asarray(dominant.start(B, jnp.float32), np.float64)
    hidden = np.random.default_rng(5).normal(size=B)
    hidden -= start @ np.linalg.lstsq(start, hidden, rcond=None)[0]
    rows = rows_of(_above(50, 3, 2), first=hidden / np.linalg.norm(hidden)).astype(np.float32)
    exact = reference.lifted_covariance(rows, 1.0, 1.0)
    assert np.linalg.norm(covariance(rows, jnp.float32) - exact, 2) <= 1e-4 * 50


def test_pairs_that_the_iteration_cannot_see_are_refused(monkeypatch):
    # On a diagonal matrix unit vectors stay in their coordinates: the value at place 0 never enters
    # the block.
    monkeypatch.setattr(
        dominant, "start", lambda size, dtype: jnp.eye(size, dominant.BLOCK, -40, dtype=dtype)
    )
    unseeing = jax.jit(
        lambda diagonal, floor: dominant.above(jnp.diag(diagonal), floor, 1e-6).complete
    )
    for seen in (3.0, 0.2):
        for hidden, expected in ((0.9, True), (1.01, False), (50.0, False)):
            values = np.full(B, 0.1, np.float32)
            values[0], values[40] = hidden, seen
            assert bool(unseeing(values / values.sum(), 1 / values.sum())) == expected


@pytest.mark.slow(reason="takes two whole systems of 128 rows", but=["place1-inf", "place3-nan"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (100, 3), (3, 100), slice(None)])
def test_a_gram_that_is_not_finite_gives_nan_and_not_isotropic_noise(bad, place):
    for values in (_above(0.5), _above(5, 4)):
        rows = rows_of(values)
        gram = rows @ rows.T
        gram[place] = bad
        draw = by_few(jnp.asarray(gram, jnp.float32), jnp.ones(B), 1.0)
        assert np.isnan(draw.stddev) and np.isnan(draw.weights).all()


def test_a_trace_that_overflows_is_no_zero_gram():
    gram = jnp.diag(jnp.full(B, 1e37, jnp.float32))
    draw, expected = (form(gram, jnp.ones(B), 1.0) for form in (by_few, by_all))
    np.testing.assert_allclose(draw.weights, expected.weights, rtol=1e-5)
    assert np.abs(draw.weights).min() > 0


@pytest.mark.slow(
    reason="compiles two systems of one more size",
    but=["0.0-5", "1e-30-128", "1.0-1", "1.0-5", "1e+30-128"],
)
@pytest.mark.parametrize("size", [1, 5, B])
@pytest.mark.parametrize("gram_scale", [0.0, 1e-30, 1.0, 1e30])
def test_any_size_and_unit_gives_what_the_whole_system_gives(size, gram_scale):
    rows = (
        np.random.default_rng(3).normal(size=(size, 3)) + 1
    )  # three directions above the floor at most
    gram = jnp.asarray(gram_scale * rows @ rows.T, jnp.float32)
    stddev = np.float32(max(gram_scale, 1e-30) ** 0.5)
    draw, expected = (
        form(gram, jnp.asarray(rows[:, 0], jnp.float32), stddev) for form in (by_few, by_all)
    )
    np.testing.assert_allclose(draw.stddev, expected.stddev, rtol=1e-5)
    np.testing.assert_allclose(
        draw.weights, expected.weights, rtol=1e-3, atol=1e-5 * np.abs(expected.weights).max()
    )


def test_systems_side_by_side_each_take_their_own_way():
    rows = jnp.asarray(
        np.stack([rows_of(SPECTRA[name][0]) for name in ("none", "repeated", "all")]), jnp.float32
    )
    grams, projections = jnp.einsum("nbk,nck->nbc", rows, rows), rows[:, :, 0]
    together, one = jax.jit(jax.vmap(by_few, (0, 0, None))), (grams[0], projections[0], 1.0)
    mapped = together(grams, projections, 1.0)
    for place in range(3):
        alone = by_few(grams[place], projections[place], 1.0)
        np.testing.assert_allclose(mapped.weights[place], alone.weights, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mapped.stddev[place], alone.stddev, rtol=1e-6)
    assert np.all(np.asarray(mapped.weights[0]) == 0)
    # One after the other: a choice that depends on the data is not turned into both.
    texts = [
        str(jax.make_jaxpr(f)(*a))
        for f, a in ((together, (grams, projections, 1.0)), (by_few, one))
    ]
    assert texts[0].count("cond[") == texts[1].count("cond[") > 0


@pytest.mark.slow(reason="compiles for eight devices")
def test_systems_dealt_over_devices():
    """With `shard_map`'s own check of what varies over them."""
    rows = [rows_of(SPECTRA[name][0]) for name in ("nine_far_above", "sixteen")]
    grams = jnp.stack([jnp.asarray(r @ r.T, jnp.float32) for r in rows])
    z = jnp.asarray(np.random.default_rng(3).standard_normal((2, B)), jnp.float32)
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("clients",))
    spec = jax.sharding.PartitionSpec("clients")

    def one(gram, projections):
        return spectral.lifted_weights(gram[0], projections[0], 1.0, 1.0).weights[None]

    dealt = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=(spec, spec), out_specs=spec))(grams, z)
    alone = [
        spectral.lifted_weights(gram, p, 1.0, 1.0).weights for gram, p in zip(grams, z, strict=True)
    ]
    np.testing.assert_allclose(dealt, alone, rtol=1e-4, atol=1e-6)


def test_it_is_exported_for_accelerators_which_take_the_whole_system():
    rows = jnp.asarray(rows_of(SPECTRA["repeated"][0]), jnp.float32)
    arguments = rows @ rows.T, rows[:, 0], jnp.float32(1.0)
    exported = jax.export.export(by_few, platforms=("cpu", "cuda", "tpu"))(*arguments)
    np.testing.assert_allclose(
        exported.call(*arguments).weights, by_all(*arguments).weights, rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (jnp.zeros((2, 3)), jnp.zeros(2), 1.0, 1.0),
            r"gram of shape \[B, B\], B >= 1, got shape \(2, 3\)",
        ),
        ((jnp.eye(2), jnp.zeros(3), 1.0, 1.0), r"projections of shape \(2,\), got shape \(3,\)"),
        ((jnp.eye(2), jnp.zeros(2), 0.0, 1.0), "stddev > 0 and finite, got stddev=0.0"),
        ((jnp.eye(2), jnp.zeros(2), 1.0, -1.0), "scale > 0 and finite, got scale=-1.0"),
        (
            (jnp.eye(2, dtype=jnp.bfloat16), jnp.zeros(2), 1.0, 1.0),
            "float32 or float64, got bfloat16",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        spectral.lifted_weights(*arguments)
