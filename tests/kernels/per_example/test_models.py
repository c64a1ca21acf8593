"""Flax modules as users write them, and the shapes of the benchmark's models in small."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fljax_kernels.per_example.cases import B, Case
from tests.kernels.per_example._exact import check

EXTRA = ("gram", "materialize", "matvec")  # made of the same terms; the zoo has them for each rule


@pytest.fixture(autouse=True)
def as_flax_expects():
    """Flax mixes dtypes and ranks inside."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.slow(reason="compiles a large network; its layers stand alone in test_zoo.py")
def test_linen_cnn_with_group_norm():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.GroupNorm(num_groups=2)(nn.Conv(4, (3, 3), strides=2)(x)))
            x = nn.avg_pool(x, (2, 2), (2, 2))
            x = nn.ConvTranspose(2, (2, 2))(x)
            return nn.Dense(3)(x.reshape(-1))

    net = Net()
    x = jax.random.normal(jax.random.key(1), (B, 8, 8, 1))
    params = jax.jit(net.init)(jax.random.key(0), x[0])
    labels = jnp.arange(B) % 3
    check(
        lambda p, e: -jax.nn.log_softmax(net.apply(p, e[0]))[e[1]],
        params,
        (x, labels),
        leave_out=EXTRA,
        method="taps",
    )


@pytest.mark.slow(reason="compiles a deep network twice, in float32 and float64")
def test_linen_recurrent_cells():
    class Net(nn.Module):
        dtype: jnp.dtype

        @nn.compact
        def __call__(self, tokens):
            embed = nn.Embed(6, 3)
            x = embed(tokens)
            x = nn.RNN(nn.OptimizedLSTMCell(4, param_dtype=self.dtype))(x)
            x = nn.RNN(nn.GRUCell(3, param_dtype=self.dtype))(x)
            return embed.attend(x)

    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 6, (B, 5)), jnp.int32)
    params = jax.jit(Net(jnp.float32).init)(jax.random.key(0), tokens[0])

    def loss(p, e):
        net = Net(jax.tree.leaves(p)[0].dtype)
        return -jnp.take_along_axis(jax.nn.log_softmax(net.apply(p, e)), e[:, None], axis=-1).mean()

    check(loss, params, tokens, leave_out=EXTRA, method="taps")


def test_nnx_attention_block():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.LayerNorm(4, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
            self.rms = nnx.RMSNorm(4, rngs=rngs)
            self.up = nnx.Linear(4, 8, rngs=rngs)
            self.down = nnx.Linear(8, 4, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(self.rms(x))))

    graph, params, rest = nnx.split(Block(nnx.Rngs(0)), nnx.Param, ...)
    x = jax.random.normal(jax.random.key(1), (B, 5, 4))

    def loss(p, e):
        return jnp.mean(jnp.square(nnx.merge(graph, p, rest)(e)))

    check(loss, params, x, leave_out=EXTRA, method="taps")


def group_norm(p, x):
    y = x.reshape(*x.shape[:2], 2, -1)
    y = (y - y.mean((0, 1, 3), keepdims=True)) * jax.lax.rsqrt(
        y.var((0, 1, 3), keepdims=True) + 1e-3
    )
    y = y.reshape(x.shape)
    return y * jnp.broadcast_to(p["scale"], y.shape) + jnp.broadcast_to(p["bias"], y.shape)


def conv(w, x, stride=1):
    return jax.lax.conv_general_dilated(
        x[None], w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]


@pytest.mark.release(reason="a third of a minute")
@pytest.mark.slow(reason="compiles a deep network twice, in float32 and float64")
def test_resnet20_with_group_norm():
    rng = np.random.default_rng(0)

    def weight(*shape):
        return jnp.asarray(rng.standard_normal(shape) / shape[-2] ** 0.5, jnp.float32)

    def norm(width):
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    blocks, last = [], 2
    for width in (2, 2, 2, 4, 4, 4, 6, 6, 6):
        blocks.append(
            {
                "a": weight(3, 3, last, width),
                "b": weight(3, 3, width, width),
                "m": norm(width),
                "n": norm(width),
            }
        )
        if width != last:
            blocks[-1]["c"] = weight(1, 1, last, width)
        last = width
    params = {"stem": weight(3, 3, 3, 2), "blocks": blocks, "head": weight(6, 3)}

    def loss(p, e):
        x = jax.nn.relu(conv(p["stem"], e))
        for block in p["blocks"]:
            stride = 2 if "c" in block else 1
            y = jax.nn.relu(group_norm(block["m"], conv(block["a"], x, stride)))
            x = jax.nn.relu(
                group_norm(block["n"], conv(block["b"], y))
                + (conv(block["c"], x, stride) if "c" in block else x)
            )
        return jnp.mean(jnp.square(x.mean((0, 1)) @ p["head"]))

    check(loss, params, weight(B, 8, 8, 3), leave_out=EXTRA, method="taps")


@pytest.mark.slow(reason="compiles a large network; smaller ones have the same layers")
def test_femnist_cnn():
    shapes = {
        "c1": (5, 5, 1, 2),
        "c2": (5, 5, 2, 3),
        "d1": (12, 6),
        "d2": (6, 4),
        "b1": (2,),
        "b2": (6,),
    }

    def pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2, 1), (2, 2, 1), "VALID")

    def loss(p, e):
        x = conv(p["c1"], e)
        x = pool(jax.nn.relu(x + jnp.broadcast_to(p["b1"], x.shape)))
        x = pool(jax.nn.relu(conv(p["c2"], x))).reshape(-1)
        return jax.nn.logsumexp(jax.nn.relu(x @ p["d1"] + p["b2"]) @ p["d2"])

    check(loss, *Case("femnist", loss, shapes, (8, 8, 1)).make(0), method="taps")
