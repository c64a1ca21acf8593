"""A clipped gradient keeps its bound where products round their operands to bfloat16 or TF32.

An accelerator's programs are replayed on a CPU: each product that does not ask for the highest
precision gets operands rounded by `lax.reduce_precision`, as a matrix unit would round them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fljax_kernels import _platforms, _rounding, per_example_grads
from fljax_kernels.per_example import api, conv_cuda, dense_kernel, terms
from fljax_kernels.per_example import conv as conv_term

CLIP, B = 0.5, 8
MANTISSA = {"bfloat16": 7, "tf32": 10, "float32": 23}


def replayed(jaxpr, consts, args, bits):
    """The results of a program whose products round; counts them by what they ask for."""
    env = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(
        zip(jaxpr.invars, args, strict=True)
    )

    def read(atom):
        return atom.val if isinstance(atom, jax.extend.core.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        values = [read(atom) for atom in eqn.invars]
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if eqn.primitive.name in ("jit", "custom_jvp_call"):
            out = replayed(inner.jaxpr, inner.consts, values, bits)
        else:
            assert inner is None and "branches" not in eqn.params, eqn.primitive.name
            if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
                asked = eqn.params["precision"]
                if asked is None or "HIGHEST" not in str(asked):
                    values = [lax.reduce_precision(v, 8, bits) for v in values]
            out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
            out = out if eqn.primitive.multiple_results else [out]
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def dense(params, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ params["w"]) @ params["v"]))


def conv(params, x):
    layout = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x[None], params["w"], (1, 1), "SAME", dimension_numbers=layout)
    return jnp.sum(jnp.tanh(y) * params["v"][None])


def met_twice(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"]) * params["v"][None]) + jnp.sum(
        jnp.sin(x @ params["w"]) * params["u"][None]
    )


# Tokens nearly alike, whose cotangents nearly cancel: what rounding moves is large beside the sum.
CASES = {
    "one_position": (dense, {"w": (40, 30), "v": (30, 8)}, (40,)),
    "held_rows": (dense, {"w": (6, 5), "v": (5, 4)}, (12, 6)),
    "pairs_of_positions": (dense, {"w": (60, 50), "v": (50, 40)}, (3, 60)),
    "met_twice": (met_twice, {"w": (60, 50), "v": (50,), "u": (50,)}, (4, 60)),
    "convolution_held": (conv, {"w": (3, 3, 2, 3), "v": (6, 6, 3)}, (6, 6, 2)),
    "convolution_pairs": (conv, {"w": (3, 3, 20, 24), "v": (2, 2, 24)}, (2, 2, 20)),
    # What stands in for the kernel where there is none, with operands rounded as the kernel's.
    "convolution_kernel": (conv, {"w": (3, 3, 2, 3), "v": (6, 6, 3)}, (6, 6, 2)),
}


def norms_of_clipped_rows(name, bits, platform="cuda", method="taps"):
    loss, shapes, example = CASES[name]
    rng = np.random.default_rng(3)
    params = {k: jnp.asarray(rng.normal(size=s) * 0.3, jnp.float32) for k, s in shapes.items()}
    batch = jnp.asarray(1 + 0.2 * rng.normal(size=(B, *example)), jnp.float32)

    def one(params, batch, mask):
        grads = per_example_grads(loss, method=method)(params, batch, batch_mask=mask)
        total, norms = grads.weighted_sum(lambda n: jnp.where(n > 0, CLIP / n, 0.0))
        return jax.tree.leaves(total), norms

    with _platforms.only(platform), pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_cuda.CudaConv, "by_kernel", name == "convolution_kernel")
        closed = jax.make_jaxpr(one)(params, batch, np.ones(B, bool))
    replay = jax.jit(lambda *arguments: replayed(closed.jaxpr, closed.consts, arguments, bits))
    found = []
    for example in range(B):
        *total, norms = replay(*jax.tree.leaves(params), batch, np.arange(B) == example)
        assert norms[example] > 0
        rows = [np.asarray(leaf, np.float64).ravel() for leaf in total]
        found.append(np.linalg.norm(np.concatenate(rows)))
    return np.array(found)


@pytest.mark.slow(
    reason="compiles a loss in float32 and float64",
    but=[
        "held_rows-tf32",
        "pairs_of_positions-bfloat16",
        "convolution_held-float32",
        "convolution_kernel-tf32",
        "pairs_of_positions tpu-bfloat16",
        "met_twice tpu-bfloat16",
    ],
)
@pytest.mark.parametrize("kind", MANTISSA)
@pytest.mark.parametrize(
    "name", [*CASES, *(f"{name} tpu" for name in CASES if name != "convolution_kernel")]
)
def test_a_clipped_row_is_within_its_bound_however_products_round(name, kind):
    # Each row is scaled to the bound itself. 1e-5 is the margin that `sensitivity` states.
    name, _, platform = name.partition(" ")
    norms = norms_of_clipped_rows(name, MANTISSA[kind], platform or "cuda")
    assert norms.max() <= CLIP * (1 + 1e-5)
    assert norms.min() >= CLIP * (1 - 1e-3)


@pytest.mark.parametrize("name", ["pairs_of_positions", "convolution_pairs", "one_position"])
def test_a_norm_and_a_sum_of_differently_rounded_operands_break_the_bound(monkeypatch, name):
    # Norms of exact products, sums of rounded ones.
    einsum = terms.einsum
    monkeypatch.setattr(terms, "einsum", lambda *a, precision=None: einsum(*a))
    monkeypatch.setattr(conv_term, "HIGHEST", None)
    monkeypatch.setattr(dense_kernel, "takes", lambda *arrays: False)  # it asks for no precision
    with jax.default_matmul_precision("default"):
        norms = norms_of_clipped_rows(name, MANTISSA["bfloat16"])
    assert norms.max() > CLIP * (1 + 1e-5)


def test_on_a_tpu_a_norm_of_operands_before_they_are_rounded_breaks_the_bound(monkeypatch):
    found = norms_of_clipped_rows("one_position", MANTISSA["bfloat16"], "tpu")
    assert found.max() <= CLIP * (1 + 1e-5)
    rounds = _rounding._on_tpus

    def squares_before(x, *, kept, once):
        axes = tuple(a for a in range(x.ndim) if a not in kept)
        return [rounds(x, kept=kept, once=once)[0], jnp.sum(jnp.square(x), axis=axes)]

    monkeypatch.setattr(_rounding, "_on_tpus", squares_before)
    found = norms_of_clipped_rows("one_position", MANTISSA["bfloat16"], "tpu")
    assert found.max() > CLIP * (1 + 1e-5)


@pytest.mark.parametrize("name", ["pairs_of_positions"])
def test_two_passes_ask_for_whole_operands_and_without_that_break_the_bound(monkeypatch, name):
    found = norms_of_clipped_rows(name, MANTISSA["bfloat16"], method="two_pass")
    assert found.max() <= CLIP * (1 + 1e-5)
    monkeypatch.setattr(api, "_exact_products", lambda loss: loss)
    found = norms_of_clipped_rows(name, MANTISSA["bfloat16"], method="two_pass")
    assert found.max() > CLIP * (1 + 1e-5)
