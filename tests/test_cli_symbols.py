"""`fljax attack --attack symbols`, where it is known what an update shows."""

import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, models
from fljax.attacks import reconstruction
from fljax.cli import _attack, _attack_symbols

SYMBOLS, WIDTH, LENGTH, TEXTS, RANK = 13, 12, 3, 5, 7
OPTIONS = SimpleNamespace(
    scheme="dp_sgd", dataset="texts", lora=None, model="token_lstm", seed=0, targets=TEXTS
)
OPTIONS.repeats, OPTIONS.delta = 4, 1e-3


def inputs(params, shape):
    """What the first layer reads: RMS norm, float64, written apart."""
    rows = params["embedding"].astype(np.float64)
    rows = rows * math.sqrt(shape.width) if shape.scaled_embedding else rows
    root = np.sqrt((rows**2).mean(axis=1) + shape.norm_epsilon)
    scale = params["layers"]["before_attention"]["scale"][0].astype(np.float64)
    return rows / root[:, None] * (scale + shape.scale_from_one)


def updates_of(name, params, lora, x, rng):
    """Sums of outer products, one a symbol of the text, in every table that the attack reads."""
    if name == "token_lstm":
        table = np.zeros((len(x), SYMBOLS, WIDTH))
        for text, symbols in enumerate(x):
            table[text, symbols] = rng.normal(size=(LENGTH, WIDTH))
        return {"embedding": table}
    seen = inputs(params, models.decoder.SHAPES[name.removeprefix("decoder:")])
    attention = {}
    for part in ("q", "k", "v"):
        own = seen if lora is None else seen @ params["layers"]["attention"][part]["a"][0]
        away = rng.normal(size=(len(x), LENGTH, 6))
        moved = np.einsum("tni,tno->tio", own[x], away)[:, None]  # of one layer
        attention[part] = {"kernel" if lora is None else "b": moved}
    return {"layers": {"attention": attention}}


@pytest.mark.parametrize(
    ("model", "lora"), [("token_lstm", None), ("decoder:tiny", None), ("decoder:tiny", RANK)]
)
def test_symbols_are_told_by_what_spans_the_update_and_noise_hides_them(model, lora, monkeypatch):
    rng = np.random.default_rng(0)
    options = SimpleNamespace(**vars(OPTIONS) | {"model": model, "lora": lora})
    x = np.stack([rng.permutation(SYMBOLS)[:LENGTH] for _ in range(TEXTS)]).astype(np.int32)
    part = {"x": x, "y": x}
    attention = {name: {"a": rng.normal(size=(1, WIDTH, RANK))} for name in ("q", "k", "v")}
    layers = {"before_attention": {"scale": rng.normal(size=(1, WIDTH))}, "attention": attention}
    params = {"embedding": rng.normal(size=(SYMBOLS, WIDTH)), "layers": layers}
    texts = data.Dataset(part, part, SYMBOLS, "texts", task="tokens")
    made = SimpleNamespace(params=params, apply=None)

    def gradients(loss, params, one):
        return updates_of(model, params, lora, np.asarray(one["x"]), np.random.default_rng(1))

    def updates(name, config, loss, params, many, keys, dataset):
        one = gradients(loss, params, {"x": np.asarray(many["x"])[:TEXTS]})
        drawn = np.random.default_rng(2)
        full = lambda leaf: np.tile(leaf, (options.repeats,) + (1,) * (leaf.ndim - 1))
        noisy = lambda leaf: full(leaf) + config * drawn.normal(size=full(leaf).shape)
        return _attack_symbols.jax.tree.map(noisy, one)

    promise = _attack.Promise(
        "epsilon", "share", [(0.5, 1e6, 2.0), (9.0, 0.0, 1e-9)], {1e6: 0.3, 0.0: 0.99}.get
    )
    bound = lambda config: (promise.bound(config), "certified")
    monkeypatch.setattr(_attack_symbols, "_texts", lambda *_: texts)
    monkeypatch.setattr(_attack_symbols._own, "model", lambda *_: ({}, None))
    monkeypatch.setattr(_attack, "epsilons", lambda *_: promise._replace(bound=bound))
    monkeypatch.setattr(_attack, "without_noise", lambda *_: 0.0)
    monkeypatch.setattr(models, "create", lambda *_, **__: made)
    monkeypatch.setattr(reconstruction, "gradients_of", gradients)
    monkeypatch.setattr(reconstruction, "updates", updates)
    pictures = []
    monkeypatch.setattr(
        _attack_symbols.attack_figures, "success", lambda *given, **_: pictures.append(given) or ""
    )
    said = []
    found = _attack_symbols.run(options, None, said.append)
    plain, noisy, clear = found.lines
    assert (plain.auc, plain.picked, plain.holds) == (1.0, 1.0, None)
    # 20 updates: 13 symbols, 3 of them there, have a standard error of the area of 0.19.
    assert abs(noisy.auc - 0.5) < 5 * 0.19 / math.sqrt(TEXTS * options.repeats)
    assert noisy.picked < 0.6 and noisy.holds is True
    # All 20 right prove a share of 0.001^(1 / 20) = 0.71, which is not above 0.99.
    assert (clear.auc, clear.picked, clear.holds) == (1.0, 1.0, None)
    assert found.length == LENGTH and said[0] == "without noise: 20 updates read"
    text = "".join(_attack_symbols.sections(options, found))
    assert f"{TEXTS} texts of {LENGTH} symbols" in text and "undefended" in text
    assert ("all of the model" if lora is None else f"matrices of rank {RANK}") in text
    budgets, told, bounds = pictures[0]
    assert budgets == [0.5, 9.0] and bounds == [0.3, 0.99] and told["area for symbols"][1] == 1.0
    assert _attack_symbols.cells(plain)[0] == "no noise"
    options.targets = TEXTS + 1
    with pytest.raises(ValueError, match=f"targets <= {TEXTS}, the held-out texts"):
        _attack_symbols.run(options, None, said.append)


def test_an_update_that_shows_no_table_of_embeddings_is_refused():
    table = {"embedding": jnp.zeros((SYMBOLS, WIDTH))}
    with pytest.raises(ValueError, match="token_lstm without lora or a decoder"):
        _attack_symbols._scores(OPTIONS, table, {"lstm": {}}, LENGTH)
    with pytest.raises(ValueError, match="its table of embeddings"):
        _attack_symbols._scores(OPTIONS, {"lstm": {}}, {"lstm": {}}, LENGTH)
