"""Bytes of a disguised model's round are those of the arrays that are sent, and the paper's table
is the paper's.
"""

import jax
import jax.numpy as jnp
import pytest

from fljax import models
from fljax.local import perturbed
from fljax.models import scaling
from fljax.server import costs, perturbation


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_upload_bytes_are_those_of_the_arrays_sent(name, key):
    model = models.create(name, example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    x = jnp.ones((2, 8, 8, 1))
    plan = scaling.plan(model.apply, model.params, x[0])

    def upload(key):
        secrets = perturbation.draw(plan, key, additive_norm=1.0)
        sent, transition = perturbation.perturb(plan, model.params, secrets)
        batch = {"x": x, "y": jnp.zeros(2, jnp.int32)}
        return (sent, transition), perturbed.triples(plan)(
            sent, transition, batch, jnp.ones(2, bool)
        )[0]

    down, up = jax.eval_shape(upload, key)

    def size(tree):
        return 4 * sum(leaf.size for leaf in jax.tree.leaves(tree))

    compact = costs.perturbed_model(plan, degree=9)
    assert (compact.upload_bytes, compact.download_bytes) == (size(up), size(down))
    assert compact.pair_normals == 9 * size(up) / 4
    num_params = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    whole = costs.perturbed_model(plan, degree=9, compact=False)
    assert whole.upload_bytes == 4 * 12 * num_params  # (2 + n_L) P floats
    bare = costs.perturbed_model(plan, degree=9, triples=False)
    assert bare.upload_bytes == 4 * num_params
    assert costs.backward_passes(10) == 12 and costs.backward_passes(10, triples=False) == 1


def test_the_reported_ratios_are_the_tables():
    ours = {
        (r.model, r.clients): r.seconds_to_target
        for r in costs.REPORTED_TIMES
        if r.method == "its own"
    }
    ratios = {
        (r.model, r.clients, r.method): r.seconds_to_target / ours[r.model, r.clients]
        for r in costs.REPORTED_TIMES
    }
    for where, printed in {
        ("CIFAR10", 5, "PILE"): 1194,
        ("CIFAR10", 100, "PILE"): 3243,
        ("CIFAR10", 5, "TP-SMC"): 18.1,
        ("CIFAR10", 100, "HybridAlpha"): 2277,
        ("CIFAR100", 100, "TP-SMC"): 22.1,
        ("CIFAR100", 5, "HybridAlpha"): 844,
    }.items():
        assert ratios[where] == pytest.approx(printed, rel=0.005)


def test_the_reported_parts_have_the_tables_sums_and_its_slips():
    wrong = {
        (r.model, r.clients, r.method): round(sum(part or 0 for part in r.seconds), 2)
        for r in costs.REPORTED_PARTS
        if not r.adds_up
    }
    # What the printed parts add up to, where the printed total is another one.
    assert wrong == {
        ("CIFAR10", 5, "TP-SMC"): 35.90,
        ("CIFAR10", 5, "HybridAlpha"): 1347.19,
        ("CIFAR10", 5, "PILE"): 3632.86,
        ("CIFAR10", 5, "its own"): 2.26,
        ("CIFAR10", 100, "HybridAlpha"): 5090.99,
        ("CIFAR10", 100, "PILE"): 10806.85,
        ("CIFAR100", 5, "TP-SMC"): 99.73,
        ("CIFAR100", 5, "HybridAlpha"): 5016.07,
    }
    assert len(costs.REPORTED_PARTS) == 20 and all(
        len(r.seconds) == len(costs.PARTS) for r in costs.REPORTED_PARTS
    )
