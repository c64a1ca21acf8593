"""A malicious server's transformer, whose MLPs' gradient holds what texts say, and where.

The server sends a decoder whose attention notes beside each token which place it has and which text
it is of, and whose MLPs measure one number of that against thresholds that rise. A threshold's
gradient sums the tokens above it, so that the difference of two neighbours is what lies between
them: where that is one token, the token, its place and its text, to rounding. Nobody searches, and
one update is enough. This is no honest but curious server: whoever looks at the model that was sent
sees it. A scheme that clips and adds noise promises the same whatever model is sent. That is about
whoever sees only what the mechanism releases: a server that itself adds the noise, or sums uploads
that only together have enough of it, sees more, and nothing is promised against it.

Source: Fowl et al. (2023), "Decepticons: Corrupted Transformers Breach Privacy in Federated
Learning for Language Models", arXiv:2201.12675, sections 3 and 4. There layers have biases and
ReLUs, and a table says places; `models.decoder` has none of these. Here a number that all symbols'
embeddings have in common is what thresholds multiply, and what each difference is divided by; a
steep gate is a ReLU; and a place follows from a token's code c, the mean M of codes up to it and
the mean P of those before it, as place * (M - P) = c - M. A text is known by its first symbols, of
which all of its tokens note a mean with weights that fall, by rotary positions. Where a text says
one symbol from its start on, all its tokens are the same to the decoder and no place is told.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, special

from fljax import _validate
from fljax.models import decoder
from fljax.types import Params

_FIRST, _FALL = 4, 8.0  # symbols that name a text; the weight of each over that of the next
_STRAIGHT = 0.5  # radians up to which a sine is nearly its angle
_SHARP = 40.0  # score by which a head looks at one token alone
_STEEP = 4.0  # of gates, so that most of a bin is far from its thresholds
# What an open gate is multiplied by, and the scale of the norm before MLPs, by which their weights
# are divided again; no units. The larger, the more of a clipped gradient is that of the gates; no
# number leaves float32.
_UP, _INPUT = 10.0, 1e17
_DOWN, _LOGITS = 0.01, 1e-6  # small: symbols stay as likely as each other, and each has a gradient
# How far what is read may be off: a code, in L2, where codes are as long as 1; a place, in tokens,
# from a whole number; and what a name leaves of the noted mean of codes, in L2.
_NEAR, _WHOLE, _REST = 0.05, 0.25, 1e-3


class Corrupted(NamedTuple):
    """params: of the decoder, for clients. codes: `[vocabulary, D]` of symbols. weights: `[length,
    length]`, of earlier tokens (columns) in what each token notes of its text's first ones.
    """

    params: Params
    codes: np.ndarray
    weights: np.ndarray


def corrupted(shape: decoder.Shape, public: Any, key: jax.Array) -> Corrupted:
    """The decoder of the malicious server. Of N tokens behind an update a layer of K thresholds
    tells about N exp(-N / K); every layer but the first has a measure of its own.

    Args:
      shape: of two layers and two heads at least, as Llama's or Qwen's. In float32: thresholds are
        finer than bfloat16.
      public: texts like the clients', int `[n, length]`, length >= 2, whose measures say where
        thresholds lie: as many of them between any two.
      key: for codes and measures.

    Raises:
      ValueError: the key is no typed key, the shape is too small or has norms after layers, windows
        or scales from one, or public are no such texts.
    """
    _validate.typed_key(key=key)
    wanted = (
        f"Expected public [n, length] of integers in [0, {shape.vocabulary}), n >= 1 and length >= "
        "2, got public"
    )
    try:
        tokens = np.asarray(public)
    except ValueError:
        raise ValueError(f"{wanted} of texts that differ in length.") from None
    fits = tokens.ndim == 2 and len(tokens) and tokens.shape[1] >= 2 and tokens.dtype.kind in "iu"
    if not fits:
        raise ValueError(f"{wanted} of {tokens.dtype}{list(tokens.shape)}.")
    if not (0 <= tokens.min() and tokens.max() < shape.vocabulary):
        raise ValueError(f"{wanted} in [{tokens.min()}, {tokens.max()}].")
    if min(shape.layers, shape.heads) < 2 or shape.head_width < 8 or shape.width < 31:
        raise ValueError(
            "Expected shape with layers >= 2, heads >= 2, head_width >= 8 and width >= 31, got "
            f"layers={shape.layers}, heads={shape.heads}, head_width={shape.head_width}, "
            f"width={shape.width}."
        )
    given = dataclasses.asdict(shape)
    for name in ("norm_after", "window", "scale_from_one", "scaled_embedding"):
        if given[name]:
            raise ValueError(f"Expected shape without {name}, got {name}={given[name]}.")
    size = min(shape.head_width - 1, (shape.width - 3) // 4)
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    codes = rng.normal(size=(shape.vocabulary, size))
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    turns, slow = _turns(shape, tokens.shape[1])
    ahead = np.arange(tokens.shape[1])[:, None] - np.arange(tokens.shape[1])[None]
    scores = np.where(
        ahead >= 0, np.log(_FALL) / turns[slow] * np.sin(turns[slow] * ahead), -np.inf
    )
    weights = special.softmax(scores, axis=1)
    own = codes[tokens]
    means = np.cumsum(own, 1) / np.arange(1, own.shape[1] + 1)[:, None]
    noted = np.concatenate([own, weights @ own, means], -1).reshape(-1, 3 * size)
    gates = np.zeros((shape.layers, shape.width, shape.hidden))
    for layer in range(1, shape.layers):
        measure = rng.normal(size=3 * size)
        measure /= max(float((noted @ measure).std()), 1e-6)
        at = np.quantile(noted @ measure, np.arange(shape.hidden) / shape.hidden)
        at[0] -= 1.0  # a token below all would be in no bin
        gates[layer, 1 : 1 + 3 * size] = measure[:, None]
        gates[layer, 0] = -at
    params = _attending(shape, codes, turns, slow)
    params["layers"] |= _measuring(shape, gates)
    return Corrupted(jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), params), codes, weights)


def _turns(shape: decoder.Shape, length: int) -> tuple[np.ndarray, int]:
    """(Radians a token by which rotary positions turn each pair of a head; the first pair that
    turns little in a whole text).
    """
    at = decoder.positions(shape, 2, jnp.float32)[0]
    turns = np.arctan2(np.asarray(at.sin[1], np.float64), np.asarray(at.cos[1], np.float64))
    small = np.flatnonzero(turns * length <= _STRAIGHT)
    # Neither the first, which tells neighbours apart, nor the last, which no key has.
    return turns, int(np.clip(small[0] if small.size else len(turns), 1, len(turns) - 2))


def _attending(
    shape: decoder.Shape, codes: np.ndarray, turns: np.ndarray, slow: int
) -> dict[str, Any]:
    """All but the MLPs. A token's numbers, in this order: 1; its code; by the first layer's heads
    the weighted mean of its text's first codes, and the mean so far; by the second's the latter of
    the token before it, and that one's 1, both over the root mean square there; last, what MLPs
    add, which alone tells the next token.
    """
    size, width, head = codes.shape[1], shape.width, shape.head_width
    half = head // 2
    root = (3 / width + shape.norm_epsilon) ** 0.5  # what the first norm divides by
    embedding = np.zeros((shape.vocabulary, width))
    embedding[:, 0], embedding[:, 1 : 1 + size] = 1.0, codes
    embedding[:, -1] = np.where(np.arange(shape.vocabulary) % 2, 1.0, -1.0)
    near = np.arange(min(4, slow))  # pairs that tell one place from all others
    pairs = np.asarray([*near, slow])
    keys = np.zeros(head)
    keys[pairs] = (head / len(pairs)) ** 0.5
    # Scores are the sum over pairs of a size times cos(turn * distance + phase).
    queries, lengths = np.zeros((2, shape.heads, head)), np.zeros(2)
    for layer, (where, phase, most) in enumerate(
        (
            (np.asarray([slow]), np.asarray([-np.pi / 2]), np.log(_FALL) / turns[slow]),
            (near, -turns[near], _SHARP),
        )
    ):
        grown = most * head**0.5 / keys.max()
        lengths[layer] = grown * len(where) ** 0.5
        queries[layer, 1:, half - 1] = lengths[layer]  # no key has this pair: all score alike
        queries[layer, 0, where] = grown * np.cos(phase)
        queries[layer, 0, half + where] = grown * np.sin(phase)
    q, k, v, o = (
        np.zeros((shape.layers, rows, columns))
        for rows, columns in (
            (width, shape.heads * head),
            (width, shape.kv_heads * head),
            (width, shape.kv_heads * head),
            (shape.heads * head, width),
        )
    )
    q[:2, 0] = root * queries.reshape(2, -1)
    k[:2, 0] = root * np.tile(keys, shape.kv_heads)
    own = np.arange(size)
    for group in range(0, shape.kv_heads * head, head):
        v[0, 1 + own, group + own] = v[1, 1 + 2 * size + own, group + own] = 1.0
        v[1, 0, group + size] = 1.0
    o[0, own, 1 + size + own] = o[0, head + own, 1 + 2 * size + own] = root
    o[1, np.arange(size + 1), 1 + 3 * size + np.arange(size + 1)] = root
    attention: dict[str, Any] = {
        "q": {"kernel": q},
        "k": {"kernel": k},
        "v": {"kernel": v},
        "o": {"kernel": o},
    }
    if shape.norm_of_queries:
        scale = np.ones((shape.layers, head))
        attention |= {"k_norm": {"scale": scale}, "q_norm": {"scale": scale.copy()}}
        attention["q_norm"]["scale"][:2] = lengths[:, None] / head**0.5
    told = np.zeros(width)
    told[-1] = _LOGITS
    norm = np.ones((shape.layers, width))
    layers: dict[str, Any] = {"attention": attention, "before_attention": {"scale": norm}}
    return {"embedding": embedding, "layers": layers, "norm": {"scale": told}}


def _measuring(shape: decoder.Shape, gates: np.ndarray) -> dict[str, Any]:
    """The MLPs, whose gate k is open to what is above its threshold: `gates` `[layers, width,
    hidden]`, of measures that vary by 1.
    """
    steep = _STEEP * shape.hidden
    up, down = np.zeros_like(gates), np.zeros((shape.layers, shape.hidden, shape.width))
    up[1:, 0] = _UP * steep / _INPUT
    down[1:, :, -1] = _DOWN / (shape.hidden * _UP * steep**2)
    mlp = {"gate": gates * steep / _INPUT, "up": up, "down": down}
    scale = np.full((shape.layers, shape.width), _INPUT)
    return {
        "mlp": {name: {"kernel": leaf} for name, leaf in mlp.items()},
        "before_mlp": {"scale": scale},
    }


def read(sent: Corrupted, gate_gradient: Any) -> np.ndarray:
    """The texts behind an update, int `[texts, length]`, -1 where no bin held a token alone; two
    that begin with the same four symbols are one.

    Args:
      gate_gradient: `[layers, width, hidden]`, of the MLPs' gates ({"layers": {"mlp": {"gate":
        {"kernel"}}}}), of the sum or mean over any texts of any clients, clipped or not.

    Raises:
      ValueError: the shape is that of another decoder, or a number is not finite.
    """
    moved = np.asarray(gate_gradient, np.float64)
    expected = sent.params["layers"]["mlp"]["gate"]["kernel"].shape
    if moved.shape != expected or not np.isfinite(moved).all():
        got = "NaN or infinite" if moved.shape == expected else f"shape {list(moved.shape)}"
        raise ValueError(f"Expected gate_gradient {list(expected)} of finite numbers, got {got}.")
    size, length = sent.codes.shape[1], len(sent.weights)
    bins = -np.diff(moved[1:], axis=-1, append=0.0).transpose(0, 2, 1).reshape(-1, expected[1])
    ones = bins[:, [0, 1 + 4 * size]]
    bins = bins[(ones != 0).all(1)]
    bins = bins / bins[:, :1]
    own, first, mean, before = (bins[:, 1 + at * size : 1 + (at + 1) * size] for at in range(4))
    before = before / bins[:, 1 + 4 * size, None]
    symbols, far = _nearest(sent.codes, own)
    steps = np.maximum(np.linalg.norm(mean - before, axis=1), 1e-4)
    places = np.minimum(np.linalg.norm(own - mean, axis=1) / steps, length)
    whole = np.rint(places).astype(int)
    found = (far < _NEAR) & (np.abs(places - whole) < _WHOLE) & (whole < length)
    named = [
        (_name(sent, place, noted), place, symbol)
        for place, noted, symbol in zip(whole[found], first[found], symbols[found], strict=True)
    ]
    texts: dict[tuple[int, ...], np.ndarray] = {}
    # By the longest first: the first tokens of a text know less of its name.
    for name, place, symbol in sorted(named, key=lambda one: -len(one[0])):
        alike = [text for other, text in texts.items() if other[: len(name)] == name]
        if name and not alike:
            texts[name] = np.full(length, -1)
            texts[name][: len(name)] = name
            alike = [texts[name]]
        for text in alike if name else ():
            if text[place] < 0:
                text[place] = symbol
    return np.stack(list(texts.values())) if texts else np.zeros((0, length), int)


def share_read(found: Any, truth: Any) -> float:
    """The share of the tokens of `truth`, int `[B, length]`, that `found` `[texts, length]` of
    `read` has at their places, each text for one true text.

    Raises:
      ValueError: there is no token, or lengths differ.
    """
    a, b = np.asarray(found), np.asarray(truth)
    if b.ndim != 2 or not b.size or a.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(
            "Expected found [texts, length] and truth [B, length] of one length, truth not empty, "
            f"got found of shape {list(a.shape)} and truth of shape {list(b.shape)}."
        )
    right = (a[:, None] == b[None]).sum(-1)
    rows, columns = optimize.linear_sum_assignment(right, maximize=True)
    return float(right[rows, columns].sum() / b.size)


def _nearest(codes: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(The symbols whose codes, of length 1, are nearest to rows, how far these are)."""
    near = (rows @ codes.T).argmax(1)
    return near, np.linalg.norm(rows - codes[near], axis=1)


def _name(sent: Corrupted, place: int, noted: np.ndarray) -> tuple[int, ...]:
    """The first symbols of the text of a token, as far as there are any up to it; none where they
    are not all that was noted.
    """
    name: list[int] = []
    weights = sent.weights[place, : min(_FIRST, place + 1)]
    for weight in weights:
        symbol = int((sent.codes @ noted).argmax())
        noted = noted - weight * sent.codes[symbol]
        name.append(symbol)
    whole = np.linalg.norm(noted) <= 1 - weights.sum() + _REST
    return tuple(name) if whole else ()
