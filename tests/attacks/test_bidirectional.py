"""Both directions of the bidirectional scheme, attacked: the printed mode leaks, the sound modes do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.attacks import known_network, perturbation_leak
from fljax.models import scaling
from fljax.server import perturbation
from tests.server import _oracle
from tests.server._oracle import ADDITIVE, R1, R2, S1, S2


def test_oracle_d4_the_least_squares_estimate_and_its_limits():
    with jax.enable_x64(True):
        params, batch = _oracle.weights(), _oracle.samples(1, 4)
        plan = scaling.plan(_oracle.apply, params, batch["x"][0])
        secrets = perturbation.given(plan, out_scales=[R1, R2], in_scales=[S1, S2], additive=ADDITIVE)
        sent, transition = perturbation.perturb(plan, params, secrets)
        found = known_network.client_outputs(plan, sent, transition, batch["x"])
        targets = jax.nn.one_hot(batch["y"], 2, dtype=jnp.float64)
        r = known_network.estimate_r(found.outputs, found.alpha, targets)
        np.testing.assert_allclose(r, [0.1516438776, -0.4855275355], rtol=1e-9)
        # Of a model without errors the estimate is exact, and so is the corrected network.
        true = jax.vmap(_oracle.apply, (None, 0))(params, batch["x"])
        r = known_network.estimate_r(found.outputs, found.alpha, true)
        np.testing.assert_allclose(r, ADDITIVE, rtol=1e-12)
        np.testing.assert_allclose(known_network.corrected(found, r), true, atol=1e-12)


@pytest.fixture(scope="module")
def table():
    rows = perturbation_leak.run(victims=6)
    return {(row["mode"], row["direction"].split()[0]): row for row in rows}


def test_property_14_a_client_corrects_the_network_in_every_mode_that_hides_it(table):
    for mode in ("paper", "upload_gaussian"):
        row = table[mode, "client"]
        assert row["before"] < 0.5 < 0.95 < row["after"]
    assert table["r0_gaussian", "client"]["before"] == 1.0  # outputs are in plain sight


def test_property_13_a_batch_of_one_leaks_in_the_printed_mode_only(table):
    leaked, hidden, bare = (table[mode, "server"] for mode in ("paper", "upload_gaussian", "r0_gaussian"))
    assert leaked["input |cos|"] > 0.999
    assert leaked["last layer's gradient, relative error"] < 1e-2
    # A direction independent of 64 pixels has a mean |cos| of about 0.1.
    assert hidden["input |cos|"] < 0.5 and bare["input |cos|"] < 0.5
    assert hidden["last layer's gradient, relative error"] > 0.9


def test_rows_of_phi_lie_in_the_span_of_the_batch():
    from fljax.local import perturbed

    with jax.enable_x64(True):
        params = _oracle.weights()
        plan = scaling.plan(_oracle.apply, params, jnp.zeros(4))
        secrets = perturbation.given(plan, out_scales=[R1, R2], in_scales=[S1, S2], additive=ADDITIVE)
        sent, transition = perturbation.perturb(plan, params, secrets)
        for size in (1, 2):
            batch = _oracle.samples(1, size)
            triple, _ = perturbed.triples(plan)(sent, transition, batch, jnp.ones(size, bool))
            phi, x = np.asarray(triple.phi[0]), np.asarray(batch["x"])
            outside = phi - phi @ np.linalg.pinv(x) @ x
            assert np.abs(outside).max() < 1e-12 < 1e-3 < np.abs(phi).max()
