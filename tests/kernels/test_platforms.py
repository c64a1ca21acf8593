"""One traced program holds the form of each platform, and lowering takes the right one."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fljax_kernels import _platforms, add_gaussian_noise, loop_friendly, per_example_grads

PLATFORMS = _platforms.PLATFORMS


def _forms():
    return {"cpu": jnp.sin, "cuda": jnp.cos, "tpu": jnp.tanh}


def _three(x):
    return _platforms.choose(x, default=jnp.exp, **_forms())


def _conv_loss(params, example):
    x = lax.conv_general_dilated(
        example["x"][None],
        params["k"],
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )[0]
    x = lax.reduce_window(jnp.tanh(x), -jnp.inf, lax.max, (2, 2, 1), (2, 2, 1), "VALID")
    return jnp.square(x.ravel() @ params["w"] - example["y"]).sum()


def _conv_arguments():
    # More numbers than the form that suits all platforms takes: 40 examples, 3 * 3 * 2 * 8 + 4800.
    params = {"k": jnp.full((3, 3, 2, 8), 0.1), "w": jnp.full((6 * 6 * 8, 16), 0.1)}
    return params, {"x": jnp.ones((40, 12, 12, 2)), "y": jnp.ones((40, 16))}


def _clipped(params, batch):
    grads = per_example_grads(_conv_loss)(params, batch)
    return grads.weighted_sum(lambda norms: jnp.minimum(1.0, 1.0 / norms))[0]


def _lowered(fun, arguments, platform):
    return jax.jit(fun).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def _exported(fun, arguments):
    return jax.export.export(jax.jit(fun), platforms=PLATFORMS)(*arguments)


@pytest.mark.parametrize(
    ("platform", "operation"), [("cpu", "sine"), ("cuda", "cosine"), ("tpu", "tanh")]
)
def test_a_program_that_is_lowered_for_one_platform_holds_its_form_alone(platform, operation):
    text = _lowered(_three, (1.0,), platform)
    found = {name for name in ("sine", "cosine", "tanh", "exponential") if f".{name} " in text}
    assert found == {operation}


def test_a_program_that_is_exported_for_all_platforms_holds_all_forms_and_here_runs_the_cpus():
    exported = _exported(_three, (1.0,))
    assert exported.platforms == PLATFORMS
    text = exported.mlir_module()
    assert all(f".{name} " in text for name in ("sine", "cosine", "tanh"))
    platform = _platforms.named(None)
    np.testing.assert_allclose(exported.call(1.0), _forms()[platform](1.0))


def test_what_jax_has_cached_for_one_platform_is_not_taken_for_another():
    inner = jax.jit(_three)

    def outer(x):
        return _platforms.choose(x, cpu=lambda x: inner(x), default=lambda x: inner(2 * x))

    for platform, operation in (("cpu", "sine"), ("cuda", "cosine"), ("tpu", "tanh")):
        text = _lowered(outer, (1.0,), platform)
        assert f".{operation} " in text
        assert sum(f".{name} " in text for name in ("sine", "cosine", "tanh")) == 1


def test_platforms_with_one_form_are_traced_once():
    traces = []

    def form(x):
        traces.append(_platforms.candidates())
        return x

    jax.make_jaxpr(lambda x: _platforms.choose(x, cpu=jnp.sin, default=form))(1.0)
    assert traces == [("cuda", "tpu")]
    traces.clear()
    jaxpr = jax.make_jaxpr(lambda x: _platforms.choose(x, default=form))(1.0)
    assert traces == [PLATFORMS]
    assert "cond" not in str(jaxpr)


def test_an_unknown_platform_is_refused():
    with pytest.raises(ValueError, match=r"platform to be one of .*'gpu'"):
        _platforms.named("gpu")


def test_choices_go_through_vmap_grad_and_scan():
    x = jnp.linspace(0.1, 1.0, 4)
    expected = jnp.cos(x) if _platforms.named(None) == "cpu" else None
    assert expected is not None or pytest.skip("the closed form below is of the CPU's form")
    np.testing.assert_allclose(jax.vmap(jax.grad(_three))(x), expected, rtol=1e-6)
    _, mapped = lax.scan(lambda c, x: (c, jax.grad(_three)(x)), 0, x)
    np.testing.assert_allclose(mapped, expected, rtol=1e-6)


@pytest.mark.parametrize(("platform", "native"), [("cpu", 0), ("cuda", 1), ("tpu", 1)])
def test_convolutions_in_loops_are_rewritten_for_cpus_alone(platform, native):
    def loop(xs, kernel):
        def step(carry, x):
            y = lax.conv_general_dilated(x, kernel, (1,), "SAME")
            return carry + y.sum(), None

        return lax.scan(step, 0.0, xs)[0]

    text = _lowered(loop_friendly(loop), (jnp.ones((5, 1, 2, 9)), jnp.ones((3, 2, 3))), platform)
    assert text.count("stablehlo.convolution") == native


def test_inside_a_program_for_cpus_a_choice_made_before_is_the_cpus():
    def inner(x, kernel):
        def native():
            return lax.conv_general_dilated(x, kernel, (1,), "SAME")

        return _platforms.choose(cpu=lambda: jnp.zeros((1, 3, 9)), default=native).sum()

    def loop(xs, kernel):
        return lax.scan(lambda c, x: (c + loop_friendly(inner)(x, kernel), None), 0.0, xs)[0]

    arguments = (jnp.ones((5, 1, 2, 9)), jnp.ones((3, 2, 3)))
    texts = {p: _lowered(loop_friendly(loop), arguments, p) for p in PLATFORMS}
    counts = {p: text.count("stablehlo.convolution") for p, text in texts.items()}
    assert counts == {"cpu": 0, "cuda": 1, "tpu": 1}


def test_noise_for_accelerators_is_drawn_without_the_loop_that_a_cpu_needs():
    arguments = (jax.random.key(0), {"w": jnp.ones((64, 32))})
    texts = {
        p: _lowered(lambda k, t: add_gaussian_noise(k, t, 1.0), arguments, p) for p in PLATFORMS
    }
    assert {p: "stablehlo.while" in text for p, text in texts.items()} == {
        "cpu": True,
        "cuda": False,
        "tpu": False,
    }


def test_one_module_for_three_platforms_holds_each_ones_form_of_a_private_gradient():
    exported = _exported(_clipped, _conv_arguments())
    text = exported.mlir_module()
    # The CPU's form is a loop over chunks of examples with patches, the others' has convolutions.
    assert "stablehlo.while" in text and "stablehlo.convolution" in text
    alone = {p: _lowered(_clipped, _conv_arguments(), p) for p in PLATFORMS}
    assert "stablehlo.convolution" not in alone["cpu"] and "stablehlo.while" in alone["cpu"]
    for platform in ("cuda", "tpu"):
        assert "stablehlo.while" not in alone[platform]
        assert "stablehlo.convolution" in alone[platform]
    # A group for each of 40 examples is one kernel after the other on a GPU.
    grouped = {p: "feature_group_count = 40" in alone[p] for p in PLATFORMS}
    assert grouped == {"cpu": False, "cuda": False, "tpu": True}


def test_the_exported_program_gives_what_the_jitted_one_does_here():
    arguments = _conv_arguments()
    exported = _exported(_clipped, arguments).call(*arguments)
    jitted = jax.jit(_clipped)(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), exported, jitted)


def test_where_platforms_differ_in_sums_alone_the_loss_and_its_pass_are_traced_once_for_all():
    traced = []

    def loss(params, example):
        traced.append(_platforms.candidates())
        return jnp.square(jnp.tanh(example["x"] @ params["w"]) - example["y"]).sum()

    arguments = {"w": jnp.ones((400, 8))}, {"x": jnp.ones((40, 400)), "y": jnp.ones((40, 8))}

    def clipped(params, batch):
        grads = per_example_grads(loss)(params, batch)
        return grads.weighted_sum(lambda norms: jnp.minimum(1.0, 1.0 / norms))

    text = _exported(clipped, arguments).mlir_module()
    # Once to see whether it is a loss of one example, and once for its plan.
    assert traced == [PLATFORMS, PLATFORMS]
    # A CPU's sum takes the input piece by piece. The forward pass is there once, not in each form.
    assert "stablehlo.case" in text and text.count("stablehlo.tanh") == 1


def test_explain_says_what_each_platform_would_do():
    matrix = per_example_grads(_conv_loss)(*_conv_arguments())
    texts = {platform: matrix.explain(platform) for platform in PLATFORMS}
    assert "chunks of" in texts["cpu"] and "chunks of" not in texts["tpu"]
    assert matrix.explain() == texts[_platforms.named(None)]


def test_the_kernels_ask_for_the_default_backend_in_one_place_for_what_the_host_decides():
    root = pathlib.Path(_platforms.__file__).parent
    asked = [
        path.name
        for path in root.rglob("*.py")
        if re.search(r"default_backend\(\)", path.read_text())
    ]
    assert asked == ["_platforms.py"]
