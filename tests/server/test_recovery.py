"""What the server recovers from a perturbed model's gradients is the true gradient, and what breaks
that is refused.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from fljax import models
from fljax.local import perturbed
from fljax.models import scaling
from fljax.server import perturbation, recovery
from tests.server import _oracle
from tests.server._oracle import ADDITIVE, R1, R2, S1, S2

SQUARED = models.squared_error(_oracle.apply).of_output


@pytest.fixture
def lax_promotion():
    """Layers of flax mix dtypes and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def norms(tree):
    return [float(np.linalg.norm(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(tree)]


def setup(form, bias=False):
    params = _oracle.weights(bias)
    plan = scaling.plan(_oracle.apply, params, jnp.zeros(4))
    secrets = perturbation.given(
        plan, out_scales=[R1, R2], in_scales=None if form == "base" else [S1, S2], additive=ADDITIVE
    )
    perturb = jax.jit(functools.partial(perturbation.perturb, plan))
    return params, plan, secrets, *perturb(params, secrets)


def everyone(batch):
    return jnp.ones(batch["y"].shape[0], bool)


def error(found, wanted):
    return max(
        float(np.abs(np.asarray(a) - np.asarray(b)).max())
        for a, b in zip(*map(jax.tree.leaves, (found, wanted)), strict=True)
    )


@pytest.mark.parametrize("form", ["base", "transitional"])
def test_oracles_a1_to_a7(form):
    params, plan, secrets, sent, transition = setup(form)
    batch = _oracle.samples(1, 4)
    loss, gradient = jax.jit(jax.value_and_grad(_oracle.true_loss(_oracle.apply)))(params, batch)
    assert float(loss) == pytest.approx(1.7084367991, abs=5e-11)  # A1
    np.testing.assert_allclose(
        norms(gradient), [1.8404805492, 1.7661756310, 2.1361119652], rtol=1e-9
    )  # A2
    firsts = [float(g[0, 0]) for g in jax.tree.leaves(gradient)]
    np.testing.assert_allclose(
        firsts, [-0.7710863039, 0.0925001124, -0.2491442939], rtol=2e-9
    )  # A2'

    @jax.jit
    def passes(params, sent, transition, x):
        body, head = scaling.split(plan, sent)
        hidden = jax.vmap(lambda x: scaling.hidden(plan, body, transition, x))(x)
        outputs = jax.vmap(lambda h: scaling.outputs(plan, head, h))(hidden)
        return hidden, outputs, jax.vmap(_oracle.apply, (None, 0))(params, x)

    hidden, outputs, true = map(np.asarray, passes(params, sent, transition, batch["x"]))
    alpha = hidden.sum(1)
    expected = {
        "base": [4.1848606613, 1.4195741296, 2.6151112325, 1.9631940637],  # A3
        "transitional": [2.7983425088, 1.0774756202, 1.9849041613, 1.4640309636],  # A4
    }
    np.testing.assert_allclose(alpha, expected[form], rtol=1e-9)
    np.testing.assert_allclose(outputs, true + alpha[:, None] * ADDITIVE, atol=1e-13)
    e = outputs - np.eye(2)[np.asarray(batch["y"])]
    polynomial = (e**2).sum(1) / 2 - alpha * (e @ ADDITIVE) + 1.7 * alpha**2 / 2
    assert float(polynomial.mean()) == pytest.approx(1.7084367991, abs=5e-11)  # A7

    triple, own_loss = jax.jit(perturbed.triples(plan))(sent, transition, batch, everyone(batch))
    if form == "transitional":
        assert float(own_loss) == pytest.approx(0.9178748383, abs=5e-11)  # A4'
        gradients = [*triple.body, *triple.head]
        np.testing.assert_allclose(
            norms(gradients), [0.6723195633, 0.7044837956, 1.5782043701], rtol=1e-9
        )  # A5
        # Psi of the last layer: row c of Psi_c is the same vector for all c.
        psi = [*norms(triple.psi), np.sqrt(2) * norms(triple.psi_head)[0]]
        np.testing.assert_allclose(
            psi, [2.1661958773, 2.7068234759, 3.7523261299], rtol=1e-9
        )  # A5'
        np.testing.assert_allclose(
            norms(triple.phi), [1.5624803439, 2.1516793688], rtol=1e-9
        )  # A5''
    recover = jax.jit(functools.partial(recovery.recover, plan))
    assert error(recover(secrets, triple), gradient) < 1e-12  # A6


def jacobian_float64(plan, sent, transition, batch):
    """(gradient, Psi, Phi) over all parameters by their definition, one backward pass each."""

    def quantities(params):
        body, head = scaling.split(plan, params)
        hidden = jax.vmap(lambda x: scaling.hidden(plan, body, transition, x))(batch["x"])
        outputs = jax.vmap(lambda h: scaling.outputs(plan, head, h))(hidden)
        alpha = hidden.reshape(len(hidden), -1).sum(1) + float(plan.has_bias)
        e = outputs - jax.nn.one_hot(batch["y"], plan.num_outputs, dtype=outputs.dtype)
        rows = jnp.concatenate(
            [(e**2).sum(1, keepdims=True) / 2, alpha[:, None] * e, alpha[:, None] ** 2 / 2], 1
        )
        return rows.mean(0)

    return jax.jacrev(quantities)(sent)


def checked(plan, apply, params, batch, key, form="transitional"):
    """Errors, in units of the gradient's largest norm, of recovery by the protocol and by the
    single pass, and of the triple against its definition; all in one program.
    """

    @jax.jit
    def errors(params, batch, key):
        mask = everyone(batch)
        loss, gradient = jax.value_and_grad(_oracle.true_loss(apply))(params, batch)
        secrets = perturbation.draw(plan, key, additive_norm=1.3, form=form, dtype=jnp.float64)
        sent, transition = perturbation.perturb(plan, params, secrets)
        triple, _ = perturbed.triples(plan)(sent, transition, batch, mask)
        fast, fast_loss = perturbed.combined(plan, secrets.additive)(sent, transition, batch, mask)
        whole, _ = scaling.split(plan, jacobian_float64(plan, sent, transition, batch))

        def far(a, b):
            return jnp.stack(
                [jnp.abs(x - y).max() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)]
            ).max()

        size = jnp.stack([jnp.linalg.norm(leaf) for leaf in jax.tree.leaves(gradient)]).max()
        defined = [
            [leaf[0] for leaf in whole],
            [leaf[1:-1] for leaf in whole],
            [leaf[-1] for leaf in whole],
        ]
        most = jnp.stack([jnp.abs(leaf).max() for leaf in jax.tree.leaves(defined)]).max()
        return {
            "protocol": far(recovery.recover(plan, secrets, triple), gradient) / size,
            "single pass": far(recovery.recover(plan, secrets, fast), gradient) / size,
            "single pass, loss": jnp.abs(fast_loss / loss - 1),
            "triple": far([triple.body, triple.psi, triple.phi], defined) / most,
            "transition": jnp.abs(transition - 1).max() if form == "base" else jnp.zeros(()),
        }

    return errors(params, batch, jax.random.clone(key))


@pytest.mark.release(reason="one more network", ids=["cnn-transitional", "residual-transitional"])
@pytest.mark.optimized(reason="bounds a rounding error", ids=["cnn-transitional"], only=True)
@pytest.mark.slow(
    reason="compiles a network and its recovery in float64",
    but=["cnn-transitional", "cnn-base"],
)
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("cnn", "transitional"),
        ("residual", "transitional"),
        ("residual", "base"),
        ("concatenation", "transitional"),
        ("concatenation", "base"),
    ],
)
def test_recovery_is_exact_on_networks_of_every_kind(name, form, key):
    """Oracle G7 too: the simulation's single pass agrees with the protocol."""
    params, apply, batch = _oracle.network(name)
    plan = scaling.plan(apply, params, batch["x"][0])
    found = checked(plan, apply, params, batch, key, form)
    assert max(map(float, found.values())) < 1e-10, found


@pytest.mark.slow(reason="compiles one more network")
def test_oracle_a13_with_biases():
    params, plan, secrets, sent, transition = setup("transitional", bias=True)
    batch = _oracle.samples(1, 4)
    loss, gradient = jax.value_and_grad(_oracle.true_loss(_oracle.apply))(params, batch)
    assert float(loss) == pytest.approx(1.8001046403, abs=5e-11)
    triple, _ = perturbed.triples(plan)(sent, transition, batch, everyone(batch))
    assert error(recovery.recover(plan, secrets, triple), gradient) < 1e-12


@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_oracle_a8_three_clients_with_ragged_batches_in_any_order():
    params, plan, secrets, sent, transition = setup("transitional")
    sizes = (3, 4, 5)
    parts = [_oracle.samples(4 * k + 1, size) for k, size in enumerate(sizes)]

    def pad(leaf):
        return jnp.concatenate([leaf, jnp.full((5 - len(leaf), *leaf.shape[1:]), 7, leaf.dtype)])

    batch = {name: jnp.stack([pad(part[name]) for part in parts]) for name in ("x", "y")}
    mask = jnp.arange(5)[None] < jnp.asarray(sizes)[:, None]
    triple, _ = jax.vmap(perturbed.triples(plan), (None, None, 0, 0))(sent, transition, batch, mask)
    for order in ([0, 1, 2], [2, 0, 1]):
        mean = jax.tree.map(lambda leaf, order=order: leaf[jnp.asarray(order)].mean(0), triple)
        found = recovery.recover(plan, secrets, mean)
        np.testing.assert_allclose(
            norms(found), [2.0835486177, 2.2237754489, 3.0986868078], rtol=1e-9
        )
    loss = _oracle.true_loss(_oracle.apply)
    each = [jax.grad(loss)(params, part) for part in parts]
    assert error(found, jax.tree.map(lambda *leaves: sum(leaves) / 3, *each)) < 1e-12
    # Other weights, the same ones for all three parts of a triple.
    weights = jnp.asarray([0.2, 0.5, 0.3])
    found = recovery.recover(
        plan, secrets, jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), triple)
    )
    wanted = jax.tree.map(
        lambda *leaves: sum(w * leaf for w, leaf in zip(weights, leaves, strict=True)), *each
    )
    assert error(found, wanted) < 1e-12
    # A client without examples adds nothing.
    empty, _ = perturbed.triples(plan)(sent, transition, parts[0], jnp.zeros(3, bool))
    assert max(norms(empty)) == 0


@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_a_factor_on_the_triple_is_a_factor_on_the_gradient():
    params, plan, secrets, sent, transition = setup("transitional")
    batch = _oracle.samples(1, 4)
    triple, _ = perturbed.triples(plan)(sent, transition, batch, everyone(batch))
    clipped, norm = perturbed.clip(triple, 0.5)
    sent_norm = np.sqrt(sum(n**2 for n in norms(triple)))
    assert float(norm) == pytest.approx(sent_norm, rel=1e-12)
    assert np.sqrt(sum(n**2 for n in norms(clipped))) == pytest.approx(0.5, rel=1e-12)
    gradient = jax.grad(_oracle.true_loss(_oracle.apply))(params, batch)
    wanted = jax.tree.map(lambda leaf: leaf * 0.5 / sent_norm, gradient)
    assert error(recovery.recover(plan, secrets, clipped), wanted) < 1e-12
    same, _ = perturbed.clip(triple, 1e3)
    assert error(same, triple) == 0
    for bad in (np.nan, np.inf):
        broken = triple._replace(phi=[leaf + bad for leaf in triple.phi])
        assert max(norms(perturbed.clip(broken, 0.5)[0])) == 0


@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_clipped_records_are_the_mean_of_each_examples_clipped_triple():
    _, plan, _, sent, transition = setup("transitional")
    batch = _oracle.samples(1, 5)
    mask = jnp.asarray([True, True, False, True, True])
    whole, alone = perturbed.triples(plan, divisor=1.0), perturbed.gradients(plan, SQUARED)
    cases = [
        (whole, perturbed.clipped_records(whole, 0.7, batch_size=6, microbatch_size=2)),
        (alone, perturbed.clipped_gradients(plan, SQUARED, 0.7, batch_size=6)),
    ]
    for fun, clipped in cases:
        found, stats = jax.jit(clipped)(sent, transition, batch, mask)
        each, norms_found = [], []
        for row in (0, 1, 3, 4):
            example = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], batch)
            one, norm = perturbed.clip(
                jax.jit(fun)(sent, transition, example, jnp.ones(1, bool))[0], 0.7
            )
            each.append(one)
            norms_found.append(float(norm))
        assert error(found, jax.tree.map(lambda *leaves: sum(leaves) / 6, *each)) < 1e-12
        assert float(stats[1]) == np.mean(np.asarray(norms_found) > 0.7)


def test_padding_reaches_no_network_and_no_loss_of_the_clients(key):
    """Padding by zeros, where neither x / |x| nor the loss has a gradient; without a record,
    zeros.
    """

    def apply(params, x):
        return _oracle.apply(params, x / jnp.linalg.norm(x))

    def of_output(outputs, label):
        return jnp.linalg.norm(outputs)

    params = _oracle.weights()
    plan = scaling.plan(apply, params, jax.ShapeDtypeStruct((4,), jnp.float64))
    real = _oracle.samples(1, 2)
    padded = jax.tree.map(lambda leaf: jnp.concatenate([jnp.zeros_like(leaf[:1]), leaf]), real)
    repeated = jax.tree.map(lambda leaf: jnp.concatenate([leaf[1:], leaf]), real)
    whole = perturbed.triples(plan, divisor=1.0)
    for fun in (
        perturbed.triples(plan),
        perturbed.combined(plan, jnp.asarray(ADDITIVE)),
        perturbed.gradients(plan, of_output),
        perturbed.clipped_records(whole, 0.7, batch_size=3, microbatch_size=2),
        perturbed.clipped_gradients(plan, of_output, 0.7, batch_size=3),
    ):
        compiled, mask = jax.jit(fun), jnp.asarray([False, True, True])
        found, expected = (compiled(params, None, batch, mask) for batch in (padded, repeated))
        chex.assert_trees_all_equal(found, expected)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
        assert sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(found)) > 1e-4
        nothing = compiled(params, None, padded, jnp.zeros(3, bool))
        assert all(not np.any(leaf) for leaf in jax.tree.leaves(nothing))


@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_noise_in_the_mean_comes_out_times_the_multipliers(key):
    _, plan, secrets, sent, transition = setup("transitional")
    batch = _oracle.samples(1, 4)
    triple, _ = perturbed.triples(plan)(sent, transition, batch, everyone(batch))
    noise = [
        jax.random.normal(jax.random.fold_in(key, k), leaf.shape)
        for k, leaf in enumerate(triple.body)
    ]
    noisy = triple._replace(body=[a + b for a, b in zip(triple.body, noise, strict=True)])
    moved = jax.tree.map(
        jnp.subtract, *(recovery.recover(plan, secrets, t) for t in (noisy, triple))
    )
    r1, r2 = jnp.asarray(R1)[:, None], jnp.asarray(R2[:, None] * S1)
    assert error([moved["w1"], moved["w2"]], [r1 * noise[0], r2 * noise[1]]) < 1e-13
    assert norms(moved["w3"]) == [0.0]


@pytest.mark.slow(reason="compiles one more network twice")
def test_without_perturbation_it_is_the_plain_model_bit_for_bit(key):
    params, apply, batch = _oracle.weights(bias=True), _oracle.apply, _oracle.samples(1, 4)
    plan = scaling.plan(apply, params, batch["x"][0])
    ones = [np.ones(layer.branches.size) for layer in plan.layers]
    secrets = perturbation.given(plan, out_scales=ones, in_scales=ones, additive=np.zeros(2))
    sent, transition = perturbation.perturb(plan, params, secrets)
    assert error(sent, params) == 0 and error(transition, jnp.ones(plan.num_branches)) == 0
    found, _ = perturbed.gradients(plan, SQUARED)(sent, transition, batch, everyone(batch))
    gradient = jax.grad(_oracle.true_loss(apply))(params, batch)
    assert error(recovery.recover(plan, secrets, found), gradient) < 1e-14
    # r = 0 with any scales: the outputs are the true ones and the gradient alone recovers.
    secrets = perturbation.draw(plan, key, additive_norm=0.0, dtype=jnp.float64)
    sent, transition = perturbation.perturb(plan, params, secrets)
    body, head = scaling.split(plan, sent)
    shown = scaling.outputs(plan, head, scaling.hidden(plan, body, transition, batch["x"][0]))
    np.testing.assert_allclose(shown, apply(params, batch["x"][0]), rtol=1e-12, atol=1e-12)
    found, _ = perturbed.gradients(plan, SQUARED)(sent, transition, batch, everyone(batch))
    assert error(recovery.recover(plan, secrets, found), gradient) < 1e-12


@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_transitions_of_one_are_the_base_form():
    params, plan, _base, sent, transition = setup("base")
    same = perturbation.given(
        plan, out_scales=[R1, R2], in_scales=[1 / R1, 1 / R2], additive=ADDITIVE
    )
    again, one = perturbation.perturb(plan, params, same)
    assert error(sent, again) < 1e-15 and error([transition], [one]) < 1e-15
    np.testing.assert_allclose(one, 1, rtol=1e-15)


def test_another_loss_scale_is_exact_if_it_is_passed_and_wrong_if_not():
    params, plan, secrets, sent, transition = setup("transitional")
    batch = _oracle.samples(1, 4)
    # A mean over the two outputs.
    gradient = jax.jit(jax.grad(_oracle.true_loss(_oracle.apply, c=0.25)))(params, batch)
    sends = perturbed.triples(plan, loss_scale=0.25), perturbed.triples(plan)
    here = sent, transition, batch, everyone(batch)
    triple, unscaled = (jax.jit(send)(*here)[0] for send in sends)
    recover = jax.jit(functools.partial(recovery.recover, plan))
    assert error(recover(secrets, triple), gradient) < 1e-12
    mixed = triple._replace(psi=unscaled.psi, phi=unscaled.phi, psi_head=unscaled.psi_head)
    assert error(recover(secrets, mixed), gradient) > 0.1


@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_regression_targets_serve_as_well():
    params, plan, secrets, sent, transition = setup("base")
    x = _oracle.samples(1, 4)["x"]
    targets = jnp.sin(jnp.arange(8.0)).reshape(4, 2)

    def loss(params):
        return (
            jnp.mean(
                jnp.sum((jax.vmap(_oracle.apply, (None, 0))(params, x) - targets) ** 2, axis=1)
            )
            / 2
        )

    triple, _ = perturbed.triples(plan)(sent, transition, {"x": x, "y": targets}, jnp.ones(4, bool))
    assert error(recovery.recover(plan, secrets, triple), jax.grad(loss)(params)) < 1e-12


def test_oracle_a11_a_negative_scale_breaks_relu_and_is_refused():
    params, plan, *_ = setup("transitional")
    negative = R1 * np.where(np.arange(5) == 1, -1, 1)
    for bad in (negative, R1 * [1, 0, 1, 1, 1], R1 * [1, np.nan, 1, 1, 1], R1[:4]):
        with pytest.raises(ValueError, match="out_scales > 0"):
            perturbation.given(plan, out_scales=[bad, R2], in_scales=[S1, S2], additive=ADDITIVE)
    with pytest.raises(ValueError, match="in_scales > 0"):
        perturbation.given(plan, out_scales=[R1, R2], in_scales=[-S1, S2], additive=ADDITIVE)
    # Why: written apart, the client's network with its transitions behind ReLU, as in the paper.
    w = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    outs = [np.tile(negative[:, None], 4), R2[:, None] * S1, np.ones((2, 1)) * S2]
    hats = [r * leaf for r, leaf in zip(outs, w, strict=True)]
    hats[2] = hats[2] + ADDITIVE[:, None]
    scales = [1 / (negative * S1), 1 / (R2 * S2)]
    batch = _oracle.samples(1, 4)

    def quantities(hats):
        h = jnp.asarray(batch["x"])
        for hat, scale in zip(hats[:2], scales, strict=True):
            h = jax.nn.relu(h @ hat.T) * jnp.asarray(scale)[None]
        e, alpha = (
            h @ hats[2].T - jax.nn.one_hot(batch["y"], 2, dtype=h.dtype),
            h.sum(1, keepdims=True),
        )
        return jnp.concatenate([(e**2).sum(1, keepdims=True) / 2, alpha * e, alpha**2 / 2], 1).mean(
            0
        )

    whole = jax.jit(jax.jacrev(quantities))([jnp.asarray(hat) for hat in hats])
    whole = [np.asarray(leaf) for leaf in whole]
    found = [
        r * (j[0] - np.tensordot(ADDITIVE, j[1:3], 1) + 1.7 * j[3])
        for r, j in zip(outs, whole, strict=True)
    ]
    true = jax.tree.leaves(jax.jit(jax.grad(_oracle.true_loss(_oracle.apply)))(params, batch))
    gaps = [np.sum((a - np.asarray(b)) ** 2) for a, b in zip(found, true, strict=True)]
    wrong = np.sqrt(sum(gaps))
    assert wrong / np.sqrt(sum(n**2 for n in norms(true))) == pytest.approx(1.0719263503, rel=1e-9)


@pytest.mark.slow(reason="one more scale")
@pytest.mark.parametrize(("factor", "budget"), [(1, 2e-6), (10, 2e-4), (100, 2e-2)])
def test_float32_recovery_stays_in_its_budget(factor, budget):
    """Orders of magnitude of section 4.9, ten times over: rounding differs by machine."""
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), _oracle.weights())
    plan = scaling.plan(_oracle.apply, params, jnp.zeros(4, jnp.float32))
    secrets = perturbation.given(plan, out_scales=[R1, R2], additive=factor * ADDITIVE)
    batch = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf,
        _oracle.samples(1, 4),
    )
    exact = jax.grad(_oracle.true_loss(_oracle.apply))(_oracle.weights(), _oracle.samples(1, 4))
    sent, transition = perturbation.perturb(plan, params, secrets)
    triple, _ = perturbed.triples(plan)(
        sent, transition.astype(jnp.float32), batch, everyone(batch)
    )
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(triple))
    found = recovery.recover(plan, secrets, triple)
    wrong = np.sqrt(
        sum(
            np.sum((np.asarray(a, np.float64) - b) ** 2)
            for a, b in zip(*map(jax.tree.leaves, (found, exact)), strict=True)
        )
    )
    assert wrong <= budget * np.sqrt(sum(n**2 for n in norms(exact)))
    ratio = float(recovery.lost_digits(plan, secrets, triple))
    assert ratio == pytest.approx(2.9 * factor**2, rel=0.02)  # 2.9, 289, 2.9e4
    if ratio > recovery.LOST_DIGITS:
        with pytest.warns(UserWarning, match="float64"):
            recovery.warn_of_lost_digits(ratio)
    else:
        recovery.warn_of_lost_digits(ratio)


def refused(apply, params, x=None, match="Expected", **options):
    with pytest.raises(ValueError, match=match):
        scaling.plan(apply, params, jnp.zeros(4) if x is None else x, **options)


@jax.custom_vjp
def smoothed(x):
    """ReLU whose derivative is a sigmoid: positively homogeneous only as far as its value goes."""
    return jnp.maximum(x, 0)


smoothed.defvjp(lambda x: (smoothed(x), x), lambda x, cotangent: (cotangent * jax.nn.sigmoid(x),))


@jax.custom_jvp
def smoothed_forward(x):
    return jnp.maximum(x, 0)


@smoothed_forward.defjvp
def _(primals, tangents):
    return smoothed_forward(*primals), tangents[0] * jax.nn.sigmoid(primals[0])


def test_derivatives_of_their_own_are_refused_or_left_plain(key):
    """The program of their value is that of ReLU, so that only the derivative's being its own tells
    them apart.
    """
    params, batch = _oracle.weights(), _oracle.samples(1, 4)
    for act, match in (
        (smoothed, "custom_vjp_call: its derivative"),
        (smoothed_forward, "custom_jvp_call: its deriv"),
    ):

        def apply(p, x, act=act):
            return p["w3"] @ jax.nn.relu(p["w2"] @ act(p["w1"] @ x))

        refused(apply, params, match=match)
        plan = scaling.plan(apply, params, batch["x"][0], allow_plain=True)
        assert len(plan.plain) == 1
        found = checked(plan, apply, params, batch, key)
        assert float(found["protocol"]) < 1e-10


def test_what_breaks_recovery_is_refused_with_its_reason(lax_promotion):
    w = _oracle.weights()

    def mlp(act):
        return lambda p, x: p["w3"] @ act(p["w2"] @ jax.nn.relu(p["w1"] @ x))

    for act, match in (
        (jnp.tanh, "tanh: it is not positively"),
        (jax.nn.gelu, "not positively|scales"),
        (jax.nn.sigmoid, "logistic"),
        (jax.nn.relu6, "custom_jvp_call: its derivative"),
    ):
        refused(mlp(act), w, match=match)
    refused(mlp(jax.nn.softmax), w, match="Expected")
    refused(
        lambda p, x: jnp.tanh(p["w3"] @ jax.nn.relu(p["w1"][:3] @ x)), w, match="last operation"
    )
    refused(lambda p, x: p["w1"] @ x, {"w1": w["w1"]}, match="two layers")
    # A last layer of which a part is used, or which is repeated, has no single row of Psi.
    h = {
        "a": jnp.ones((5, 4)),
        "o": jnp.ones((5, 5)),
        "b": jnp.ones(6),
        "o1": jnp.ones((1, 5)),
        "o3": jnp.ones((3, 5)),
    }

    def last(end, *names):
        own = {name: h[name] for name in ("a", *names)}
        return lambda p, x: end(p, jax.nn.relu(p["a"] @ x)), own

    refused(*last(lambda p, z: p["o"][:3] @ z, "o"), match="a part of o")
    refused(*last(lambda p, z: p["o3"] @ z + p["b"][:3], "o3", "b"), match="a part of b")
    refused(*last(lambda p, z: jnp.broadcast_to(p["o1"] @ z, (3,)), "o1"), match="got 1 of o1")
    refused(*last(lambda p, z: p["o1"] @ z + p["b"], "o1", "b"), match="got 1 of o1")
    scaling.plan(
        *last(lambda p, z: p["o3"] @ z + p["b"], "o3", "b")[:1],
        {**h, "b": jnp.ones(3)},
        jnp.zeros(4),
    )
    square = {"a": jnp.ones((4, 4)), "b": jnp.ones((2, 4))}
    refused(
        lambda p, x: p["b"] @ jax.nn.relu(p["a"] @ jax.nn.relu(p["a"] @ x)),
        square,
        match="several places",
    )
    refused(lambda p, x: p["b"] @ (x + jax.nn.relu(p["a"] @ x)), square, match="scale is 1")
    refused(lambda p, x: p["b"] @ jax.nn.relu(p["a"] @ x + 1.0), square, match="scale is 1")

    def step(p, x):
        return jax.lax.scan(lambda h, _: (jax.nn.relu(p["a"] @ h), None), x, None, length=2)[0]

    refused(lambda p, x: p["b"] @ step(p, x), square, match="scan")
    refused(lambda p, x: (p["b"] @ jax.nn.relu(p["a"] @ x))[None], square, match=r"\[n_L\]")
    shape = jnp.zeros((8, 8, 3))
    for norm in (
        nnx.LayerNorm(4, rngs=nnx.Rngs(0)),
        nnx.GroupNorm(4, num_groups=2, rngs=nnx.Rngs(0)),
    ):
        conv = nnx.Sequential(
            nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0)),
            norm,
            nnx.relu,
            lambda x: x.mean((1, 2)),
            nnx.Linear(4, 2, rngs=nnx.Rngs(0)),
        )
        model = models.functional(conv)
        refused(model.apply, model.params, shape, match="Expected")
    lstm = models.create("lstm", example_shape=(6,), num_classes=5, key=jax.random.key(0))
    refused(lstm.apply, lstm.params, jnp.zeros(6, jnp.int32))
    # Neighbours of what is refused are not.
    fine = [
        jax.nn.relu,
        lambda z: jax.nn.leaky_relu(z, 0.2),
        lambda z: 3 * z,
        jnp.abs,
        lambda z: jnp.maximum(z, -z),
    ]
    for act in fine:
        assert len(scaling.plan(mlp(act), w, jnp.zeros(4)).layers) == 2


class Normed(nnx.Module):
    """Convolutions behind each of which a group normalisation with affine parameters stands."""

    def __init__(self, rngs):
        self.a = nnx.Conv(2, 4, (3, 3), rngs=rngs)
        self.b = nnx.Conv(4, 4, (3, 3), rngs=rngs)
        self.norms = nnx.List([nnx.GroupNorm(4, num_groups=2, rngs=rngs) for _ in range(2)])
        self.logits = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        for conv, norm in zip((self.a, self.b), self.norms, strict=True):
            x = nnx.relu(norm(conv(x)))
        return self.logits(x.mean((1, 2)))


@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_a_normalisation_is_exact_where_its_affine_pair_takes_the_scale(key, lax_promotion):
    """Section 3.6's placement, oracle G9: the convolution before it goes out with scale 1."""
    model = models.functional(Normed(nnx.Rngs(0)))
    keys = iter(jax.random.split(jax.random.key(3), 20))
    params = jax.tree.map(
        lambda p: p.astype(jnp.float64) + 0.2 * jax.random.normal(next(keys), p.shape, jnp.float64),
        model.params,
    )
    x = jax.random.normal(next(keys), (4, 6, 6, 2), jnp.float64)
    batch = {"x": x, "y": jnp.arange(4, dtype=jnp.int32) % 3}
    plan = scaling.plan(model.apply, params, x[0], allow_plain=True)
    assert plan.plain == ("a.kernel", "b.kernel")
    assert [layer.name for layer in plan.layers if np.all(layer.streams)] == [
        "norms.0.scale",
        "norms.1.scale",
    ]
    found = checked(plan, model.apply, params, batch, key)
    assert max(map(float, found.values())) < 1e-10, found


@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_streams_that_meet_share_one_scale():
    params, apply, batch = _oracle.network("residual")
    plan = scaling.plan(apply, params, batch["x"][0])
    by_name = {layer.name: layer for layer in plan.layers}
    np.testing.assert_array_equal(by_name["stem.kernel"].streams, by_name["gain"].streams)
    np.testing.assert_array_equal(by_name["skip.kernel"].streams, by_name["d.kernel"].streams)
    assert not set(by_name["stem.kernel"].branches) & set(by_name["gain"].branches)
    ones = [np.ones(layer.branches.size) for layer in plan.layers]
    uneven = [
        np.full(layer.branches.size, 2.0 if layer.name == "gain" else 1.0) for layer in plan.layers
    ]
    with pytest.raises(ValueError, match="skip"):
        perturbation.given(plan, out_scales=ones, in_scales=uneven, additive=np.zeros(3))


@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_linen_networks_have_plans_too(key, lax_promotion):
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Conv(4, (3, 3))(x))
            x = linen.avg_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1)
            return linen.Dense(3)(linen.relu(linen.Dense(5)(x)))

    x = jax.random.normal(jax.random.key(1), (4, 6, 6, 1), jnp.float64)
    model = models.functional(Net(), variables=Net().init(jax.random.key(0), x.astype(jnp.float32)))
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), model.params)
    batch = {"x": x, "y": jnp.arange(4, dtype=jnp.int32) % 3}
    plan = scaling.plan(model.apply, params, x[0])
    found = checked(plan, model.apply, params, batch, key)
    assert max(map(float, found.values())) < 1e-10, found


def test_a_missing_end_of_an_edge_is_an_error():
    edges = np.array([[0, 1], [1, 2], [3, 4]])
    recovery.check_present(edges, [True, True, True, False, False])
    with pytest.raises(ValueError, match=r"edge \(1, 2\)"):
        recovery.check_present(edges, [True, True, False, True, True])
    everyone_else = np.stack(np.triu_indices(5, 1), 1)
    left = recovery.left_over_variance(everyone_else, [True] * 4 + [False], pair_stddev=2.0)
    assert np.sqrt(left) == pytest.approx(1.0)  # C10


@pytest.mark.release(reason="a third of a minute")
@pytest.mark.slow(reason="compiles a network and its recovery in float64")
def test_resnet20_comes_back_through_its_affine_pairs(key, lax_promotion):
    """Group normalisation with its convolutions plain: the whole published network, and a step that
    lowers its loss.
    """
    model = models.create(
        "resnet20", example_shape=(8, 8, 3), num_classes=10, key=jax.random.key(0)
    )
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), model.params)
    batch = {
        "x": jax.random.normal(jax.random.key(1), (4, 8, 8, 3), jnp.float64),
        "y": jnp.arange(4, dtype=jnp.int32),
    }
    with pytest.raises(ValueError, match="Expected"):
        scaling.plan(model.apply, params, batch["x"][0])
    plan = scaling.plan(model.apply, params, batch["x"][0], allow_plain=True)
    assert len(plan.plain) == 21  # every convolution, the two projections included
    assert (
        sum(bool(np.all(layer.streams)) for layer in plan.layers) == 21
    )  # and the affine pair behind each

    @jax.jit
    def step(params, batch, key):
        secrets = perturbation.draw(plan, key, additive_norm=0.5, dtype=jnp.float64)
        sent, transition = perturbation.perturb(plan, params, secrets)
        found, loss = perturbed.combined(plan, secrets.additive)(
            sent, transition, batch, everyone(batch)
        )
        found = recovery.recover(plan, secrets, found)
        value, gradient = jax.value_and_grad(_oracle.true_loss(model.apply))(params, batch)
        far = [
            jnp.abs(a - b).max()
            for a, b in zip(*map(jax.tree.leaves, (found, gradient)), strict=True)
        ]
        size = jnp.stack([jnp.linalg.norm(leaf) for leaf in jax.tree.leaves(gradient)]).max()
        return (
            jax.tree.map(lambda p, g: p - 0.05 * g / size, params, found),
            jnp.stack(far).max() / size,
            loss / value - 1,
            value,
        )

    values = []
    for round_index in range(5):
        params, wrong, gap, value = step(params, batch, jax.random.fold_in(key, round_index))
        assert float(wrong) < 1e-10 and abs(float(gap)) < 1e-10
        values.append(float(value))
    assert values[-1] < 0.9 * values[0], values
