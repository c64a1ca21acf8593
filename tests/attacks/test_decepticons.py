"""A malicious decoder reads most tokens of a batch of texts off one update, and none through a
clipped sum with noise.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fljax_kernels
from fljax import data, models
from fljax.attacks import decepticons
from fljax.data import targets
from fljax.models import decoder

SMALL = decoder.Shape(
    vocabulary=13,
    width=47,
    hidden=64,
    layers=3,
    heads=2,
    kv_heads=1,
    head_width=12,
    rope_base=10_000.0,
)
LENGTH = 6


def texts(rng, num, shape=SMALL, length=LENGTH):
    return rng.integers(0, shape.vocabulary, (num, length)).astype(np.int32)


def expected_numbers(sent, x):
    """What each token of texts `[n, length]` carries, `[n, length, 47]`, by loops."""
    codes, size = sent.codes, sent.codes.shape[1]
    out = np.zeros((*x.shape, SMALL.width))
    for text, symbols in enumerate(x):
        for place in range(x.shape[1]):
            own = codes[symbols[: place + 1]]
            before = own[:-1] if place else own
            parts = (
                codes[symbols[place]],
                sent.weights[place, : place + 1] @ own,
                own.mean(0),
                before.mean(0) * 0.7,  # both over the same number
            )
            out[text, place, 0], out[text, place, 1 + 4 * size] = 1.0, 0.7
            out[text, place, 1 : 1 + 4 * size] = np.concatenate(parts)
    return out


def test_tokens_that_are_alone_in_a_bin_are_read_at_their_places():
    rng = np.random.default_rng(0)
    sent = decepticons.corrupted(SMALL, texts(rng, 200), jax.random.key(0))
    x = texts(rng, 3)
    rows = expected_numbers(sent, x).reshape(-1, SMALL.width)
    gates = np.asarray(sent.params["layers"]["mlp"]["gate"]["kernel"], np.float64)
    gradient, alone = np.zeros(gates.shape), np.zeros(len(rows), bool)
    scales = rng.normal(size=len(rows))  # of either sign
    for layer in (1, 2):
        above = rows @ gates[layer] > 0
        gradient[layer] = (scales[:, None] * rows).T @ above
        own, count = np.unique(above.sum(1), return_counts=True)
        alone |= np.isin(above.sum(1), own[count == 1])
    found = decepticons.read(sent, gradient)
    assert alone.mean() > 0.9 and len(found) == 3
    falling = 8.0 ** -np.arange(LENGTH)  # so that each symbol of a name counts more than the rest
    np.testing.assert_allclose(sent.weights[-1], falling / falling.sum(), rtol=0.2)
    assert decepticons.share_read(found, x) >= alone.mean()
    right = {tuple(text[:4]): text for text in x}
    for text in found:
        truth = right[tuple(text[:4])]
        np.testing.assert_array_equal(text[text >= 0], truth[text >= 0])
    assert not len(decepticons.read(sent, np.zeros(gates.shape)))
    # Two texts that begin alike are one: what they share is read.
    twins = np.stack([x[0], np.concatenate([x[0][:4], (x[0][4:] + 1) % 13])])
    assert decepticons.share_read(x[:1], twins) == 0.5


def test_bad_arguments_raise_in_one_line():
    rng = np.random.default_rng(1)
    good = {"shape": SMALL, "public": texts(rng, 4), "key": jax.random.key(0)}
    for change, text in (
        ({"key": 3}, "key"),
        ({"public": np.zeros((4, 6))}, "public of float64"),
        ({"public": np.full((4, 6), 13)}, r"integers in \[0, 13\).* public in \[13, 13\]"),
        ({"public": [[1, 2], [1, 2, 3]]}, "public of texts that differ in length"),
        ({"public": np.zeros((4, 1), int)}, "length >= 2"),
        ({"shape": dataclasses.replace(SMALL, layers=1)}, "layers >= 2"),
        ({"shape": dataclasses.replace(SMALL, window=4)}, "without window"),
        ({"shape": dataclasses.replace(SMALL, norm_after=True)}, "without norm_after"),
    ):
        with pytest.raises(ValueError, match=text):
            decepticons.corrupted(**(good | change))
    small = {"layers": {"mlp": {"gate": {"kernel": np.zeros((2, 4, 3))}}}}
    sent = decepticons.Corrupted(small, np.zeros((2, 1)), np.eye(2))
    for gradient, text in (
        (np.zeros((2, 4)), r"shape \[2, 4\]"),
        (np.full((2, 4, 3), np.nan), "got NaN or infinite"),
    ):
        with pytest.raises(ValueError, match=f"gate_gradient .*{text}"):
            decepticons.read(sent, gradient)
    with pytest.raises(ValueError, match=r"of one length.* truth of shape \[1, 4\]"):
        decepticons.share_read(np.zeros((1, 3)), np.zeros((1, 4)))


@pytest.mark.release(reason="one more decoder", ids=["no norm of queries", "many heads"])
@pytest.mark.slow(reason="gradients of decoders")
@pytest.mark.parametrize("kind", ["tiny", "no norm of queries", "many heads"])
def test_most_of_a_batch_of_texts_is_read_and_nothing_through_noise(kind):
    rng = np.random.default_rng(2)
    if kind == "tiny":
        read = targets.settled(data.load("roles"), "tokens")
        shape = dataclasses.replace(decoder.SHAPES["tiny"], vocabulary=read.num_classes)
        public, x = read.train["x"][:400], read.test["x"][rng.choice(len(read.test["y"]), 13)]
    else:
        changed = {} if kind != "many heads" else {"heads": 6, "kv_heads": 3}
        shape = dataclasses.replace(SMALL, width=128, head_width=32, hidden=512, **changed)
        public, x = texts(rng, 400, shape, 32), texts(rng, 8, shape, 32)
    sent = decepticons.corrupted(shape, public, jax.random.key(0))
    plain = models.functional(decoder.Decoder(shape, rngs=nnx.Rngs(0)), batched=False)
    assert jax.tree.map(jnp.shape, plain.params) == jax.tree.map(jnp.shape, sent.params)
    loss = models.next_token(plain.apply)
    batch = {"x": jnp.asarray(x), "y": jnp.roll(jnp.asarray(x), -1, 1)}
    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(sent.params, batch)
    mean = jax.tree.map(lambda leaf: leaf.mean(0), each)
    clipped, _ = fljax_kernels.clip_and_sum(each, 1.0)
    gates = lambda tree: np.asarray(tree["layers"]["mlp"]["gate"]["kernel"])
    for seen in (mean, clipped):
        assert decepticons.share_read(decepticons.read(sent, gates(seen)), x) > 0.8
    # What is clipped is nearly all of it where tokens are read.
    norms = [float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(mean)]
    assert float(np.sum(np.square(gates(mean)))) > 0.9 * sum(norms)
    noisy = gates(clipped) + rng.normal(size=gates(clipped).shape)
    assert decepticons.share_read(decepticons.read(sent, noisy), x) <= 1 / shape.vocabulary
