"""The forward pass of a decoder once more, in float64 NumPy, token by token and head by head."""

import math

import jax
import numpy as np


def norm64(x, scale, shape):
    scaled = x / math.sqrt(np.mean(x * x) + shape.norm_epsilon)
    return scaled * (1 + scale if shape.scale_from_one else scale)


def turned64(x, position, shape, base, stretch):
    half = len(x) // 2
    out = np.empty(2 * half)
    for i in range(half):
        frequency = base ** (-2 * i / (2 * half))
        if stretch is not None:
            length = 2 * math.pi / frequency
            if length > stretch.original / stretch.low:
                frequency /= stretch.factor
            elif length >= stretch.original / stretch.high:
                part = (stretch.original / length - stretch.low) / (stretch.high - stretch.low)
                frequency = (1 - part) * frequency / stretch.factor + part * frequency
        cos, sin = math.cos(position * frequency), math.sin(position * frequency)
        out[i] = x[i] * cos - x[half + i] * sin
        out[half + i] = x[half + i] * cos + x[i] * sin
    return out


def activated64(x, shape):
    if shape.activation == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention64(p, xs, shape, local):
    width = shape.head_width
    base = shape.local_rope_base if local and shape.local_rope_base else shape.rope_base
    heads = {}
    for name, count in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        for t, x in enumerate(xs):
            for h in range(count):
                y = x @ p[name]["kernel"][:, h * width : (h + 1) * width]
                if name != "v":
                    if shape.norm_of_queries:
                        y = norm64(y, p[f"{name}_norm"]["scale"], shape)
                    y = turned64(y, t, shape, base, None if local else shape.rope_stretch)
                heads[name, t, h] = y
    outputs = []
    for t in range(len(xs)):
        joined = []
        for h in range(shape.heads):
            group = h // (shape.heads // shape.kv_heads)
            first = max(0, t - shape.window + 1) if local else 0
            places = range(first, t + 1)
            scores = [heads["q", t, h] @ heads["k", s, group] / math.sqrt(width) for s in places]
            weights = np.exp(np.array(scores) - max(scores))
            weights /= weights.sum()
            joined.append(
                sum(w * heads["v", s, group] for w, s in zip(weights, places, strict=True))
            )
        outputs.append(np.concatenate(joined) @ p["o"]["kernel"])
    return outputs


def logits64(params, tokens, shape):
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    factor = math.sqrt(shape.width) if shape.scaled_embedding else 1.0
    xs = [factor * params["embedding"][token] for token in tokens]
    for number in range(shape.layers):
        p = jax.tree.map(lambda leaf, number=number: leaf[number], params["layers"])
        local = shape.window is not None and (number + 1) % shape.global_every != 0
        normed = [norm64(x, p["before_attention"]["scale"], shape) for x in xs]
        added = attention64(p["attention"], normed, shape, local)
        if shape.norm_after:
            added = [norm64(x, p["after_attention"]["scale"], shape) for x in added]
        xs = [x + y for x, y in zip(xs, added, strict=True)]
        for t, x in enumerate(xs):
            y = norm64(x, p["before_mlp"]["scale"], shape)
            mlp = {name: p["mlp"][name]["kernel"] for name in ("gate", "up", "down")}
            y = (activated64(y @ mlp["gate"], shape) * (y @ mlp["up"])) @ mlp["down"]
            xs[t] = x + (norm64(y, p["after_mlp"]["scale"], shape) if shape.norm_after else y)
    return np.stack([params["embedding"] @ norm64(x, params["norm"]["scale"], shape) for x in xs])
