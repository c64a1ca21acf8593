"""`fljax attack --attack lira`, where it is known what each model remembers."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from fljax import data, models, schemes
from fljax.attacks import trained
from fljax.cli import _attack_membership, _attack_noise

POOL, CLASSES = 80, 2
OPTIONS = {
    "scheme": "dp_fedsgd",
    "attack": "lira",
    "dataset": "few",
    "model": "softmax",
    "lora": None,
    "seed": 0,
    "pool": POOL,
    "shadows": 4,
    "num_rounds": 1,
    "budgets": (1.0, 3.0),
    "delta": 1e-3,
    "learning_rate": None,
}


def options(**changes):
    return SimpleNamespace(**OPTIONS | changes)


def test_members_of_models_that_remember_are_told_beyond_what_noise_allows(monkeypatch):
    """Logits are a table, an entry an example: sure of members' labels, and wrong of others'."""
    rng = np.random.default_rng(0)
    examples = {"x": jnp.eye(POOL), "y": jnp.asarray(rng.integers(0, CLASSES, POOL))}
    none = jax.tree.map(lambda leaf: leaf[:0], examples)
    asked = []

    def played(name, config, loss, params, pool, included, keys, **given):
        asked.append((config.server_learning_rate, config.noise_multiplier, len(included)))
        sure = np.where(np.asarray(included), 2.0, -2.0)
        if config.server_learning_rate != 0.6 or config.noise_multiplier == 2:
            sure = rng.normal(size=included.shape)  # it has learnt nothing
        sure = sure + 0.1 * rng.normal(size=sure.shape)
        table = sure[..., None] * np.eye(CLASSES)[np.asarray(pool["y"])]
        return {"table": jnp.asarray(table, jnp.float32)}

    def noises(scheme, start, budgets, **given):
        config = lambda noise: SimpleNamespace(**vars(start) | {"noise_multiplier": noise})
        pairs = zip(budgets, (2.0, 1.0), strict=True)
        return [_attack_noise.Noisy(b, z, scheme.run_event(config(z), 1)) for b, z in pairs]

    apply = lambda params, x: x @ params["table"]
    made = SimpleNamespace(params={"table": jnp.zeros((POOL, CLASSES))}, apply=apply)
    world = (examples, examples, none, "classes", CLASSES)
    monkeypatch.setattr(_attack_membership, "_pool", lambda *_: world)
    monkeypatch.setattr(models, "create", lambda *_, **__: made)
    monkeypatch.setattr(trained, "models", played)
    monkeypatch.setattr(_attack_noise, "noises", noises)
    pictures, said = [], []
    monkeypatch.setattr(
        _attack_membership.attack_figures,
        "success",
        lambda *given, **_: pictures.append(given) or "",
    )
    found = _attack_membership.run(options(), None, said.append)
    # The target alone by every rate, then all models by the one that it remembers most by.
    assert asked[:3] == [(rate, 0.0, 1) for rate in _attack_membership.RATES["classes"]]
    assert asked[3:] == [(0.6, noise, 5) for noise in (0.0, 2.0, 1.0)]
    plain, hidden, leaky = found.lines
    for line, sensitivity in ((hidden, 1 / 2), (leaky, 1.0)):
        # The area of two normals so far apart, from above.
        area = special.ndtr(sensitivity / math.sqrt(2))
        assert area <= line.bound < area + 3e-3
    assert plain.auc == leaky.auc == 1.0 and plain.bound == 1.0 and plain.holds is None
    assert (plain.member_accuracy, plain.other_accuracy) == (1.0, 0.0)
    assert all(rate.tpr == 1 for rate in leaky.rates)
    # Forty members and forty others: a standard error of 0.065.
    assert abs(hidden.auc - 0.5) < 0.33 and (hidden.holds, leaky.holds) == (True, False)
    text = "".join(_attack_membership.sections(options(), found))
    assert f"{POOL} examples of few; 4 shadow models" in text and "the last model" in text
    assert [_attack_membership.cells(line)[-1] for line in found.lines] == [
        "undefended",
        "holds",
        "violated",
    ]
    assert pictures[0][0] == [1.0, 3.0] and pictures[0][1] == {"lira": [hidden.auc, 1.0]}
    assert said[0] == "without noise: 5 models trained and attacked"


def test_few_examples_prove_no_area_above_a_bound():
    # Three standard errors of 10 examples at 0.9: 0.28.
    assert _attack_membership.within(1.0, 0.9, 10) is None
    assert _attack_membership.within(1.0, 0.5, 40) is False
    assert _attack_membership.within(0.7, 0.5, 40) is True  # 0.237


def test_a_fifth_of_the_digits_have_labels_of_chance():
    asked = options(dataset="digits", pool=200)
    pool, population, rest, task, classes = _attack_membership._pool(asked, None)
    true = data.load("digits").train
    assert (task, classes, len(rest["y"])) == ("classes", 10, 0)
    both = [np.concatenate([pool[name], population[name]]) for name in ("x", "y")]
    np.testing.assert_array_equal(both[0], true["x"][:400])
    share = np.mean(both[1] != true["y"][:400])  # a tenth of drawn labels are right
    assert abs(share - 0.18) < 5 * math.sqrt(0.18 * 0.82 / 400)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"attack": "exposure"}, "a model of text for canaries"),
        ({"pool": 2000}, "more training examples than pool=2000"),
        ({"dataset": "numbers"}, "a dataset of classes or text"),
    ],
)
def test_data_that_an_attack_cannot_use_are_refused(changes, text, monkeypatch):
    part = {"x": np.zeros((3, 2)), "y": np.zeros(3)}
    numbers = data.Dataset(part, part, 0, "numbers", task="regression")
    load = _attack_membership._own.dataset
    known = lambda name, *given, **how: numbers if name == "numbers" else load(name, *given, **how)
    monkeypatch.setattr(_attack_membership._own, "dataset", known)
    with pytest.raises(ValueError, match=text):
        _attack_membership._pool(options(**{"dataset": "digits"} | changes), None)


def test_clients_of_full_batches_have_room_for_the_pool():
    scheme = schemes.get("gd_dp")
    found = _attack_membership.training(options(scheme="gd_dp"), scheme, None, 41, 0.5)
    clients = scheme.population(found).num_clients or 2
    assert found.records_per_client * clients >= 41 > (found.records_per_client - 1) * clients
    assert found.server_learning_rate == 0.5 or found.local_learning_rate == 0.5
