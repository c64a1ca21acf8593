"""Random small networks from the supported primitives, against float64."""

import jax
import jax.numpy as jnp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fljax_kernels.per_example.cases import Case
from tests.kernels.per_example._exact import check

WIDTH, TIME = 4, 5


def dense(p, x):
    return jnp.tanh(x @ p["w"] + jnp.broadcast_to(p["v"], x.shape))


def shared_dense(p, x):
    return jnp.sin(dense(p, x) @ p["w"].T)


def scale(p, x):
    return x * jnp.broadcast_to(p["v"], x.shape) + x


def norm(p, x):
    return (
        x
        * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 0.1)
        * jnp.broadcast_to(p["v"], x.shape)
    )


def attention(p, x):
    return x + jax.nn.softmax(x @ p["w"] @ x.T) @ (x @ p["u"])


def convolution(p, x):
    return jnp.tanh(
        jax.lax.conv_general_dilated(
            x[None], p["k"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )[0]
    )


def recurrence(p, x):
    def step(h, row):
        h = jnp.tanh(h @ p["w"] + row @ p["u"] + p["v"])
        return h, h

    return jax.lax.scan(step, jnp.zeros(WIDTH, x.dtype), x)[1]


def stack(p, x):
    return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, p["s"])[0]


def gathered(p, x):
    return x + p["w"][jnp.argsort(jax.lax.stop_gradient(x[:, 0])) % WIDTH]


def remat(p, x):
    return jax.checkpoint(dense)(p, x)


def branch(p, x):
    return jax.lax.cond(x[0, 0] > 0, lambda x: x @ p["w"], lambda x: x * 2, x)


LAYERS = [
    dense,
    shared_dense,
    scale,
    norm,
    attention,
    convolution,
    recurrence,
    stack,
    gathered,
    remat,
    branch,
]
SHAPES = {
    "w": (WIDTH, WIDTH),
    "u": (WIDTH, WIDTH),
    "v": (WIDTH,),
    "k": (3, WIDTH, WIDTH),
    "s": (2, WIDTH, WIDTH),
}


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, len(LAYERS) - 1), st.integers(0, 1)), min_size=1, max_size=4),
    st.integers(0, 2**16),
)
def test_random_networks_agree_with_float64(layers, seed):
    """Each layer is a letter of the grammar and the set of parameters it takes: sets are shared at
    random.
    """

    def loss(params, x):
        for kind, which in layers:
            x = LAYERS[kind](params[which], x)
        return jnp.mean(jnp.square(x))

    params, batch = Case("random", loss, [SHAPES] * 2, (TIME, WIDTH)).make(seed)
    check(loss, params, batch, method="taps")
