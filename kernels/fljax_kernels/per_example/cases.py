"""Small losses, one or more for each rule of per_example: shared by tests and bench. Plain jax, any
float dtype.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

B = 3


class Case(NamedTuple):
    """loss(params, example); shapes: of parameters. example: shapes, ("int", bound, *shape) or
    "key".
    """

    name: str
    loss: Callable[[Any, Any], jax.Array]
    shapes: Any
    example: Any

    def __str__(self) -> str:
        return self.name

    def make(self, seed: int = 0) -> tuple[Any, Any]:
        """(params, batch), float32: normal numbers of scale 1/2. Drawn by NumPy: nothing to
        compile.
        """
        rng = np.random.default_rng(seed)

        def draw(spec: Any, lead: tuple[int, ...]) -> jax.Array:
            if spec == "key":
                return jax.random.split(jax.random.key(seed), B)
            if spec and isinstance(spec[0], str):
                return jnp.asarray(rng.integers(0, spec[1], lead + tuple(spec[2:])), jnp.int32)
            return jnp.asarray(0.5 * rng.standard_normal(lead + tuple(spec)), jnp.float32)

        def tree(specs: Any, lead: tuple[int, ...]) -> Any:
            return jax.tree.map(
                lambda s: draw(s, lead), specs, is_leaf=lambda s: isinstance(s, tuple | str)
            )

        return tree(self.shapes, ()), tree(self.example, (B,))


CASES: list[Case] = []


def case(shapes: Any, example: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a loss under its name."""

    def register(loss: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(loss.__name__.lstrip("_"), loss, shapes, example))
        return loss

    return register


def _sq(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(x))


def _bias(x: jax.Array, b: jax.Array) -> jax.Array:
    return x + jnp.broadcast_to(b, x.shape)


@case({"w": (4,), "b": ()}, {"x": (4,), "y": ()})
def linear_regression(p: Any, e: Any) -> jax.Array:
    return jnp.square(jnp.dot(e["x"], p["w"]) + p["b"] - e["y"])


@case([{"w": (5, 4), "b": (4,)}, {"w": (4, 3), "b": (3,)}], {"x": (5,), "y": ("int", 3)})
def mlp(p: Any, e: Any) -> jax.Array:
    x = jax.nn.relu(e["x"] @ p[0]["w"] + p[0]["b"])
    return -jax.nn.log_softmax(x @ p[1]["w"] + p[1]["b"])[e["y"]]


@case({"w": (4, 5), "v": (5,)}, (6, 5))
def matrix_on_the_left(p: Any, e: Any) -> jax.Array:
    return _sq(jnp.tanh(p["w"] @ e.T) - jnp.broadcast_to((e @ p["v"])[None], (4, 6)))


@case({"a": (2, 3, 4), "b": (4, 2, 3)}, {"x": (5, 2, 3), "y": (5, 4)})
def einsum_over_two_axes(p: Any, e: Any) -> jax.Array:
    return _sq(jnp.einsum("tij,ijk->tk", e["x"], p["a"]) - e["y"]) + _sq(
        jnp.einsum("tk,kij->tij", e["y"], p["b"])
    )


@case({"w": (3, 4, 2), "u": (3, 2)}, (5, 3, 4))
def einsum_with_a_shared_axis(p: Any, e: Any) -> jax.Array:
    return _sq(
        jnp.tanh(jnp.einsum("tsi,sij->tsj", e, p["w"])) * jnp.broadcast_to(p["u"][None], (5, 3, 2))
    )


@case({"w": (3, 4)}, {"x": (3,), "y": (4,)})
def bilinear_form(p: Any, e: Any) -> jax.Array:
    return jnp.tanh(e["x"] @ p["w"] @ e["y"])


@case({"q": (4, 2, 3), "k": (4, 2, 3), "v": (4, 2, 3), "o": (2, 3, 4), "b": (2, 3)}, (5, 4))
def attention(p: Any, e: Any) -> jax.Array:
    q, k, v = (jnp.einsum("td,dhk->thk", e, p[n]) for n in "qkv")
    q = _bias(q, p["b"])
    weights = jax.nn.softmax(jnp.einsum("shk,thk->hst", q, k))
    return _sq(jnp.einsum("shk,hkd->sd", jnp.einsum("hst,thk->shk", weights, v), p["o"]))


def _conv(x: jax.Array, w: jax.Array, spec: tuple[str, str, str], **options: Any) -> jax.Array:
    options = {"window_strides": (1,) * (w.ndim - 2), "padding": "SAME"} | options
    return lax.conv_general_dilated(x, w, dimension_numbers=spec, **options)


@case({"w": (3, 2, 4), "b": (4,)}, (1, 9, 2))
def conv_1d_strided(p: Any, e: Any) -> jax.Array:
    return _sq(
        jnp.tanh(_bias(_conv(e, p["w"], ("NWC", "WIO", "NWC"), window_strides=(2,)), p["b"]))
    )


@case({"w": (3, 3, 2, 3), "v": (2, 2, 3, 2)}, (1, 6, 6, 2))
def conv_2d(p: Any, e: Any) -> jax.Array:
    spec = ("NHWC", "HWIO", "NHWC")
    x = jnp.tanh(_conv(e, p["w"], spec, window_strides=(2, 1)))
    return _sq(_conv(x, p["v"], spec, padding="VALID"))


@case({"w": (4, 2, 3, 2)}, (1, 2, 7, 6))
def conv_2d_channels_first_dilated(p: Any, e: Any) -> jax.Array:
    return _sq(
        jnp.tanh(
            _conv(
                e, p["w"], ("NCHW", "OIHW", "NCHW"), rhs_dilation=(2, 1), padding=((1, 2), (0, 1))
            )
        )
    )


@case({"w": (3, 3, 2, 6)}, (1, 5, 5, 4))
def conv_2d_grouped(p: Any, e: Any) -> jax.Array:
    return _sq(jnp.tanh(_conv(e, p["w"], ("NHWC", "HWIO", "NHWC"), feature_group_count=2)))


@case({"w": (3, 3, 1, 4), "v": (1, 1, 4, 2)}, (1, 5, 5, 4))
def conv_2d_depthwise_separable(p: Any, e: Any) -> jax.Array:
    spec = ("NHWC", "HWIO", "NHWC")
    return _sq(_conv(jnp.tanh(_conv(e, p["w"], spec, feature_group_count=4)), p["v"], spec))


@case({"w": (3, 3, 2, 3)}, (1, 4, 4, 2))
def conv_2d_transposed(p: Any, e: Any) -> jax.Array:
    return _sq(
        jnp.tanh(
            lax.conv_transpose(
                e, p["w"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        )
    )


@case({"w": (2, 2, 2, 2, 3)}, (1, 3, 4, 3, 2))
def conv_3d(p: Any, e: Any) -> jax.Array:
    return _sq(jnp.tanh(_conv(e, p["w"], ("NDHWC", "DHWIO", "NDHWC"))))


@case({"w": (3, 2, 2)}, (2, 8, 2))
def conv_of_several_samples(p: Any, e: Any) -> jax.Array:
    return _sq(jnp.tanh(_conv(e, p["w"], ("NWC", "WIO", "NWC"))))


@case({"w": (3, 3, 2, 3), "g": (3,)}, (1, 5, 5, 2))
def weight_standardized_conv(p: Any, e: Any) -> jax.Array:
    w = p["w"] - p["w"].mean((0, 1, 2), keepdims=True)
    w = w / (jnp.std(w, (0, 1, 2), keepdims=True) + 1e-2) * jnp.broadcast_to(p["g"], w.shape)
    return _sq(jnp.tanh(_conv(e, w, ("NHWC", "HWIO", "NHWC"))))


@case({"v": (4, 3), "g": (3,)}, (4,))
def weight_norm(p: Any, e: Any) -> jax.Array:
    w = p["v"] / jnp.linalg.norm(p["v"], axis=0, keepdims=True)
    return _sq(jnp.tanh(e @ (w * jnp.broadcast_to(p["g"], w.shape))))


@case({"a": (4,), "b": (4,), "c": (), "d": (5, 1), "f": (5, 4)}, (5, 4))
def add_sub_mul_div(p: Any, e: Any) -> jax.Array:
    x = _bias(e, p["a"]) * jnp.broadcast_to(p["b"], e.shape)
    x = (x - p["c"]) / (2 + jnp.square(e)) * p["d"]
    return _sq(jnp.tanh(p["f"] - x) / (3 + p["c"]))


@case({"scale": (4,), "bias": (4,), "rms": (4,), "w": (4, 4)}, (5, 4))
def layer_norm_and_rms_norm(p: Any, e: Any) -> jax.Array:
    x = e @ p["w"]
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)
    x = x * jnp.broadcast_to(p["scale"], x.shape) + jnp.broadcast_to(p["bias"], x.shape)
    x = x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-3)
    return _sq(jnp.sin(x * jnp.broadcast_to(p["rms"], x.shape)))


@case({"scale": (4,), "bias": (4,)}, (3, 3, 4))
def group_norm(p: Any, e: Any) -> jax.Array:
    x = e.reshape(3, 3, 2, 2)
    x = (x - x.mean((0, 1, 3), keepdims=True)) * lax.rsqrt(x.var((0, 1, 3), keepdims=True) + 1e-3)
    x = x.reshape(3, 3, 4)
    return _sq(
        jnp.sin(x * jnp.broadcast_to(p["scale"], x.shape) + jnp.broadcast_to(p["bias"], x.shape))
    )


@case({"table": (4, 3), "position": (7, 3)}, ("int", 4, 7))
def embedding_with_repeated_tokens(p: Any, e: Any) -> jax.Array:
    return _sq(jnp.sin(p["table"][e] + p["position"]))


@case({"table": (4, 3), "other": (5, 2)}, ("int", 6, 7))
def lookups_out_of_bounds(p: Any, e: Any) -> jax.Array:
    filled = jnp.take(p["table"], e - 1, axis=0, mode="fill", fill_value=0)
    clipped = jnp.take(p["other"], e, axis=0, mode="clip")
    return _sq(jnp.sin(filled)) + _sq(jnp.sin(clipped))


@case({"table": (5, 3), "cube": (3, 4, 2)}, {"i": ("int", 5), "j": ("int", 3), "k": ("int", 4)})
def dynamic_slices(p: Any, e: Any) -> jax.Array:
    a = lax.dynamic_index_in_dim(p["table"], e["i"], keepdims=False)
    b = lax.dynamic_slice(p["cube"], (e["j"], e["k"], jnp.int32(0)), (1, 2, 2))
    return _sq(jnp.sin(a)) + _sq(jnp.cos(b)) + _sq(jnp.sin(p["cube"][e["j"], e["k"]]))


@case({"table": (6, 4), "w": (4, 4)}, {"x": ("int", 6, 5), "y": ("int", 6, 5)})
def tied_embedding(p: Any, e: Any) -> jax.Array:
    hidden = jnp.tanh(p["table"][e["x"]] @ p["w"])
    logits = jax.nn.log_softmax(hidden @ p["table"].T)
    return -jnp.take_along_axis(logits, e["y"][:, None], axis=-1).mean()


@case({"table": (6, 4)}, {"x": ("int", 6, 2), "y": ("int", 6, 2)})
def tied_wide_embedding(p: Any, e: Any) -> jax.Array:
    logits = jnp.einsum("td,vd->tv", p["table"][e["x"]], p["table"])
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), e["y"][:, None], axis=-1).mean()


@case({"w": (6, 3), "b": (3,)}, (2, 6))
def tied_autoencoder(p: Any, e: Any) -> jax.Array:
    return _sq(jnp.tanh(_bias(e @ p["w"], p["b"])) @ p["w"].T - e)


@case({"w": (3, 3), "u": (2, 3), "b": (3,)}, (4, 2))
def unrolled_recurrence(p: Any, e: Any) -> jax.Array:
    h = jnp.zeros(3, e.dtype)
    for x in e:
        h = jnp.tanh(h @ p["w"] + x @ p["u"] + p["b"])
    return _sq(h)


@case({"w": (3, 3), "u": (2, 3), "b": (3,), "h": (3,)}, (4, 2))
def recurrence_with_learned_start(p: Any, e: Any) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(h @ p["w"] + x @ p["u"] + p["b"]), h

    last, hs = lax.scan(step, p["h"], e, reverse=True, unroll=2)
    return _sq(last) + _sq(hs @ p["w"])


@case([{"i": (2, 12), "h": (3, 12), "b": (12,)}, {"i": (3, 12), "h": (3, 12), "b": (12,)}], (6, 2))
def stacked_lstm(p: Any, e: Any) -> jax.Array:
    def layer(q: Any, xs: jax.Array) -> jax.Array:
        def step(carry: Any, x: jax.Array) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ q["i"] + h @ q["h"] + q["b"], 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), h

        zero = jnp.zeros(3, xs.dtype)
        return lax.scan(step, (zero, zero), xs)[1]

    return _sq(layer(p[1], layer(p[0], e)))


@case({"z": (5, 3), "r": (5, 3), "n": (5, 3), "bz": (3,), "bn": (3,)}, (4, 2))
def gru(p: Any, e: Any) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> Any:
        xh = jnp.concatenate([x, h])
        z, r = jax.nn.sigmoid(xh @ p["z"] + p["bz"]), jax.nn.sigmoid(xh @ p["r"])
        n = jnp.tanh(jnp.concatenate([x, r * h]) @ p["n"] + p["bn"])
        return (1 - z) * n + z * h, None

    return _sq(lax.scan(step, jnp.zeros(3, e.dtype), e)[0])


@case(
    {"i": {"a": (2, 3), "b": (2, 3)}, "h": {"a": (3, 3), "b": (3, 3)}, "c": {"a": (3,), "b": (3,)}},
    (4, 2),
)
def joined_gate_kernels(p: Any, e: Any) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> Any:
        i, w = (jnp.concatenate([p[n]["a"], p[n]["b"]], axis=-1) for n in "ih")
        a, b = jnp.split(x @ i + h @ w + jnp.concatenate([p["c"]["a"], p["c"]["b"]]), 2)
        return jnp.tanh(a) * jax.nn.sigmoid(b), None

    return _sq(lax.scan(step, jnp.zeros(3, e.dtype), e)[0])


@case({"w": (3, 4, 4), "s": (3, 4), "b": (3, 4), "o": (4, 2)}, (5, 4))
def scanned_layers(p: Any, e: Any) -> jax.Array:
    def layer(x: jax.Array, q: Any) -> Any:
        y = (
            x
            * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-3)
            * jnp.broadcast_to(q["s"], x.shape)
        )
        return x + jnp.tanh(_bias(y @ q["w"], q["b"])), jnp.sum(q["s"])

    out, sums = lax.scan(layer, e, {n: p[n] for n in "wsb"})
    return _sq(out @ p["o"]) + jnp.sum(sums)


@case({"w": (2, 3, 3), "u": (3, 3), "k": (2, 3)}, (4, 3))
def nested_scans(p: Any, e: Any) -> jax.Array:
    def outer(h: jax.Array, q: Any) -> Any:
        w, k = q

        def inner(h: jax.Array, x: jax.Array) -> Any:
            return jnp.tanh(h @ (w * 0.5) + x @ p["u"] + k * x), h @ w.T

        h, ys = lax.scan(inner, h, e)
        return h, _sq(ys)

    h, ys = lax.scan(outer, jnp.zeros(3, e.dtype), (p["w"], p["k"]))
    return _sq(h) + jnp.sum(ys)


@case({"w": (3, 3)}, (4, 3))
def carried_weight_and_reuse(p: Any, e: Any) -> jax.Array:
    def step(carry: Any, x: jax.Array) -> Any:
        h, w = carry
        return (jnp.tanh(h @ w + x), w), None

    (h, w), _ = lax.scan(step, (jnp.zeros(3, e.dtype), p["w"]), e)
    return _sq(h @ w) + jnp.sum(p["w"][0] * h)


@case({"w": (3, 4, 4), "b": (3, 4)}, (4,))
def indexed_layers(p: Any, e: Any) -> jax.Array:
    return _sq(lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ p["w"][i] + p["b"][i]), e))


@case({"w": (2, 3, 3, 2, 2)}, (1, 4, 4, 2))
def scanned_convolutions(p: Any, e: Any) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> Any:
        return x + jnp.tanh(_conv(x, w, ("NHWC", "HWIO", "NHWC"))), None

    return _sq(lax.scan(layer, e, p["w"])[0])


@case({"a": (4, 2), "b": (2, 4), "w": (4, 4)}, (3, 4))
def low_rank_adaptation(p: Any, e: Any) -> jax.Array:
    return _sq(jnp.tanh(e @ (lax.stop_gradient(p["w"]) + 0.5 * p["a"] @ p["b"])) @ p["w"])


@case({"w": (4, 9), "b": (9,)}, (5, 4))
def sliced_projection(p: Any, e: Any) -> jax.Array:
    q, k, v = (
        e @ w + jnp.broadcast_to(b, (5, 3))
        for w, b in zip(jnp.split(p["w"], 3, 1), jnp.split(p["b"], 3), strict=True)
    )
    return _sq(jax.nn.softmax(q @ k.T) @ v)


@case({"w": (6, 2, 2), "u": (3, 2, 4)}, (5, 8))
def rearranged_kernels(p: Any, e: Any) -> jax.Array:
    """Reshaped, transposed and reshaped again; u at two sites in one order and at a third in
    another.
    """
    w = p["w"].reshape(4, 3, 2).transpose(2, 0, 1).reshape(8, 3)
    u = p["u"].transpose(2, 1, 0).reshape(8, 3)
    x = jnp.tanh(e @ w) + jnp.sin(e @ u) * jnp.cos(e[::-1] @ u)
    return _sq(x + jnp.sin(e @ p["u"].reshape(3, 8).T))


@case((20,), (3,))
def one_flat_vector(p: Any, e: Any) -> jax.Array:
    w, b, v, s = p[:12].reshape(3, 4), p[12:16], p[16:19], p[19]
    return jnp.tanh(jnp.sum(jnp.tanh(e @ w + b)) * s + jnp.dot(v, e))


@case({"w": (4, 3), "unused": (2,), "only": (2, 2)}, (4,))
def weight_decay_and_unused(p: Any, e: Any) -> jax.Array:
    decay = sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves((p["w"], p["only"])))
    return _sq(jnp.tanh(e @ p["w"])) + 0.01 * decay


@case({"w": (3, 3), "v": (3, 2)}, (3,))
def branches_with_parameters(p: Any, e: Any) -> jax.Array:
    a = lax.cond(e[0] > 0, lambda x: jnp.tanh(x @ p["w"]) @ p["v"], lambda x: x @ p["v"], e)
    branches = [lambda x: x @ p["w"], lambda x: x * 2, lambda x: jnp.sin(x) @ p["w"]]
    return _sq(a) + _sq(lax.switch(jnp.int32(e[1] > 0) + jnp.int32(e[2] > 0), branches, e))


@case(
    {"w": (3, 3), "u": (3, 3), "s": (3,), "b": (3,), "table": (4, 3)},
    {"x": (4, 3), "i": ("int", 4, 4)},
)
def branches_inside_scan(p: Any, e: Any) -> jax.Array:
    def tall(h: jax.Array, x: jax.Array, i: jax.Array) -> jax.Array:
        inner = lax.cond(h[1] > 0, lambda h: jnp.tanh(h @ p["u"]), lambda h: h, h)
        return jnp.tanh(inner @ p["w"] + p["b"]) + p["table"][i]

    def flat(h: jax.Array, x: jax.Array, i: jax.Array) -> jax.Array:
        return jnp.sin(x * p["s"]) @ p["w"].T

    def step(h: jax.Array, xi: Any) -> Any:
        return lax.cond(xi[0][0] > 0, tall, flat, h, *xi), None

    h, _ = lax.scan(step, jnp.ones(3, e["x"].dtype), (e["x"], e["i"]))
    return _sq(h @ p["w"])


@case({"w": (3, 3, 2, 2), "v": (3, 3), "t": (4, 4), "c": ()}, {"x": (1, 4, 4, 2), "k": ("int", 4)})
def branches_of_many_kinds(p: Any, e: Any) -> jax.Array:
    def convolved(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(_conv(x, p["w"], ("NHWC", "HWIO", "NHWC"))), p["c"]

    def recurrent(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x, lax.scan(
            lambda h, _: (jnp.tanh(h @ (p["v"] @ p["v"]) + 0.1), None), x[0, 0, :3, 0], length=2
        )[0][0]

    def saved(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jax.checkpoint(lambda y: jnp.sin(y @ p["t"]))(x[0, 0, :, 0])
        return x * jnp.sum(y), jnp.ones((), x.dtype)

    images, number = lax.switch(
        e["k"], [convolved, recurrent, saved, lambda x: (x, jnp.zeros((), x.dtype))], e["x"]
    )
    return _sq(images) + jnp.square(number)


@jax.custom_vjp
def _doubled_gradient(w: jax.Array, x: jax.Array) -> jax.Array:
    return x @ w


_doubled_gradient.defvjp(
    lambda w, x: (x @ w, (w, x)), lambda res, g: (2 * jnp.outer(res[1], g), g @ res[0].T)
)


@jax.custom_jvp
def _odd(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sin(w) * x


@_odd.defjvp
def _odd_jvp(primals: Any, tangents: Any) -> Any:
    (w, x), (dw, dx) = primals, tangents
    return _odd(w, x), 3 * jnp.cos(w) * x * dw + jnp.sin(w) * dx


@case({"w": (3, 3), "s": (3,)}, (3,))
def custom_rules_with_parameters(p: Any, e: Any) -> jax.Array:
    return _sq(jnp.tanh(_odd(p["s"], _doubled_gradient(p["w"], e))))


@case({"w": (4, 4), "v": (4, 4), "b": (4,)}, (3, 4))
def remat(p: Any, e: Any) -> jax.Array:
    block = jax.checkpoint(lambda q, x: jnp.tanh(x @ q + jnp.broadcast_to(p["b"], x.shape)))
    return _sq(block(p["v"], block(p["w"], e)))


@case({"w": (4, 5), "v": (5, 2)}, {"x": (4,), "key": "key"})
def dropout(p: Any, e: Any) -> jax.Array:
    hidden = jnp.tanh(e["x"] @ p["w"])
    kept = jax.random.bernoulli(e["key"], 0.5, hidden.shape)
    return _sq(jnp.where(kept, hidden, jnp.zeros_like(hidden)) @ p["v"])


@case({"slope": (), "w": (4, 4), "low": (4,), "mix": (4,)}, (3, 4))
def selections(p: Any, e: Any) -> jax.Array:
    x = e @ p["w"]
    x = jnp.where(x > 0, x, p["slope"] * x)
    x = jnp.maximum(x, jnp.broadcast_to(p["low"], x.shape))
    x = jnp.concatenate([x, jnp.tanh(p["mix"])[None]])
    return _sq(jnp.sort(x, axis=0) * jnp.arange(4).astype(x.dtype)[:, None])


@case({"w": (2, 3, 4)}, {"x": (3,), "y": (4,)})
def ensemble_under_vmap(p: Any, e: Any) -> jax.Array:
    return _sq(jax.vmap(lambda w: jnp.tanh(e["x"] @ w))(p["w"]) - e["y"][None])


@case({"w": (4, 8), "b": (4,)}, {"x": (2,), "z": (4,)})
def hypernetwork(p: Any, e: Any) -> jax.Array:
    made = jnp.tanh(e["z"] @ p["w"]).reshape(2, 4)
    return _sq(e["x"] @ made + p["b"])


@case({"f": (6,)}, (6,))
def spectral_filter(p: Any, e: Any) -> jax.Array:
    return jnp.sum(jnp.square(jnp.abs(jnp.fft.rfft(p["f"] * e)) + 1))


@case({"w": (4, 4), "e": (3, 4)}, {"i": ("int", 3), "x": (4,)})
def scatter_into_parameters(p: Any, e: Any) -> jax.Array:
    table = p["e"].at[e["i"]].set(e["x"])
    return _sq(jnp.tanh(table @ p["w"]))


@case({"w": (4, 4), "u": (4,)}, (4,))
def power_iteration(p: Any, e: Any) -> jax.Array:
    u = lax.fori_loop(0, 3, lambda _, u: p["w"] @ (p["w"].T @ u) / 4, p["u"])
    sigma = jnp.linalg.norm(p["w"].T @ lax.stop_gradient(u)) + 1
    return _sq(jnp.tanh(e @ (p["w"] / sigma)))


@case({"w": (4, 4), "v": (4, 3)}, (6, 4))
def half_precision(p: Any, e: Any, half: Any = jnp.bfloat16) -> jax.Array:
    half = e.dtype if e.dtype == jnp.float64 else half
    x = jnp.tanh(e.astype(half) @ p["w"].astype(half)) @ p["v"].astype(half)
    return jnp.mean(jnp.square(x.astype(e.dtype)))


def _block(p: Any, x: jax.Array) -> jax.Array:
    def norm(x: jax.Array, s: jax.Array) -> jax.Array:
        return (
            x
            * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-3)
            * jnp.broadcast_to(s, x.shape)
        )

    y = norm(x, p["s"])
    q, k, v = (y @ p[n] for n in "qkv")
    x = x + jax.nn.softmax(q @ k.T) @ v @ p["o"]
    return x + jax.nn.gelu(_bias(norm(x, p["t"]) @ p["up"], p["b"])) @ p["down"]


_BLOCK = {
    "q": (4, 4),
    "k": (4, 4),
    "v": (4, 4),
    "o": (4, 4),
    "up": (4, 8),
    "b": (8,),
    "down": (8, 4),
    "s": (4,),
    "t": (4,),
}


@case({"table": (7, 4), "layers": [_BLOCK] * 4, "head": (4, 7)}, ("int", 7, 5))
def transformer(p: Any, e: Any) -> jax.Array:
    x = functools.reduce(lambda x, q: _block(q, x), p["layers"], p["table"][e])
    return -jnp.take_along_axis(jax.nn.log_softmax(x @ p["head"]), e[:, None], axis=-1).mean()


@case(
    {
        "table": (7, 4),
        "layers": jax.tree.map(lambda s: (4, *s), _BLOCK, is_leaf=lambda s: isinstance(s, tuple)),
    },
    ("int", 7, 5),
)
def scanned_tied_transformer(p: Any, e: Any) -> jax.Array:
    x = lax.scan(lambda x, q: (jax.checkpoint(_block)(q, x), None), p["table"][e], p["layers"])[0]
    return -jnp.take_along_axis(jax.nn.log_softmax(x @ p["table"].T), e[:, None], axis=-1).mean()
