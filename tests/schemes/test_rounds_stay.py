"""Rounds of all schemes give the models that they gave when each family had a round of its own.

`rounds_reference.json` holds, for each case, all parameters of a small network after two rounds on
a CPU, in float32. It was made by `two_rounds` below at commit 67b42cd, the last one with six round
functions, under JAX 0.10.2, and not by the cohort loop that is tested here. The loop gave the same
bits in 78 of 79 settings of groups, chunks and devices; in the last one (dp_fedsgd, whose batches
groups now add up too) it differs by 4.5e-8. Models differ by the order of float additions only: two
dozen updates of norm 1 at most, two rounds, so TOLERANCE is 2 * 2 * 24 * 2**-24, rounded up.

SINCE are schemes that came later: their models are those of `two_rounds` when they came.
"""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, models, schemes
from fljax.data import channel as record_noise
from fljax.schemes import Performance
from fljax.schemes.channels import round as channels
from fljax.simulation.devices import mesh

REFERENCE = json.loads(pathlib.Path(__file__).with_name("rounds_reference.json").read_text())
TOLERANCE = 6e-6
C, N, D, H = 13, 6, 5, 4
SINCE = {
    "compressed_updates",
    "embedding_channel",
    "higradavg_sum",
    "parameter_channel",
    "subject_sampled",
}
CHANGES = {
    "dp_fedavg/adaptive": {"target_quantile": 0.5, "count_stddev": 2.0},
    "dp_fedavg/per_layer": {"clipping_style": "per_layer", "proximal": 0.1},
    "dp_fedsgd/client": {"privacy_unit": "client"},
    "dp_fedsgd/adaptive": {"target_quantile": 0.5, "count_stddev": 2.0},
    "gsgd_dp/isotropic": {"noise": "isotropic"},
    # The ratio of the reference, which took the star of a client's neighbours for its worst view.
    "lightdp/k_regular": {
        "graph": "k_regular",
        "degree": 6,
        "max_colluders": 2,
        "pair_variance_ratio": 0.7133369410633239,
    },
    "bidirectional/protocol": {"execution": "protocol"},
    "bidirectional/cohort": {"cohort_size": 9, "unit": "client_replace"},
    "higradavg/noise": {"silo_noise": tuple(1.0 + 0.1 * i for i in range(C))},
}
OPTIONS = {
    "dp_fedavg/in_groups": Performance(groups=4, chunk_size=1),
    "dp_fedsgd/in_groups": Performance(groups=4, microbatch_size=8),
    "higradavg/in_chunks": Performance(chunk_size=3, microbatch_size=8),
}


def apply(params, x):
    return jax.nn.relu(x @ params["a"] + params["b"]) @ params["w"] + params["c"]


def start():
    rng = np.random.default_rng(1)
    shapes = {"a": (D, H), "b": (H,), "w": (H, 3), "c": (3,)}
    return {
        name: jnp.asarray(rng.normal(size=s).astype(np.float32) * 0.3) for name, s in shapes.items()
    }


def a_cohort():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(C * N, D)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(0, 3, C * N).astype(np.int32)}
    examples["subject"] = (np.arange(C * N) // 2 % 20).astype(np.int32)
    table = np.arange(C * N).reshape(C, N).astype(np.int32)
    for client in range(C):
        table[client, N - client % 3 :] = -1
    return data.cohort(
        data.ClientData(jax.tree.map(jnp.asarray, examples), jnp.asarray(table)), jnp.arange(C)
    )


def config_of(scheme, changes):
    fields = scheme.Config.__dataclass_fields__
    values = {"num_parties": C, "local_batch_size": 4, "item_sampling_prob": 0.5}
    values |= {"sampling_prob": 0.5, "max_colluders": 2, "max_stragglers": 3}
    values |= {"records_per_client": N, "batch_size": 3.0} if "records_per_client" in fields else {}
    values |= (
        {}
        if scheme.promise == "nats" or scheme.Config().noise_multiplier == 0
        else {"noise_multiplier": NOISE}
    )
    return scheme.Config(**{name: v for name, v in (values | changes).items() if name in fields})


# Noise in the reference: a standard deviation of 0.7 clip norms, of a client's own noise or of the
# one that hides it in a sum.
NOISE = 0.7


def of_that_noise(name, config):
    """`config` with the noise of the reference, where the scheme measures it otherwise today."""
    if name.startswith(("lightdp", "bidirectional")):
        found = schemes.get(name).upload_noise(dataclasses.replace(config, noise_multiplier=1.0))
        share = 2 * config.l2_clip_norm / found.move  # REPLACE_ONE moves it by two clip norms
        own = NOISE * config.l2_clip_norm / share
        return dataclasses.replace(config, noise_multiplier=own / found.own_stddev)
    if name in (
        "local_dp",
        "he_dp",
        "smpc_dp",
        "secagg_dp",
        "swiftagg_dp",
        "mp_cdp",
        "mp_dp_naive",
        "user_ldp",
    ):
        return dataclasses.replace(config, noise_multiplier=NOISE / 2)
    if name == "local_group_dp":
        most = min(config.items_per_subject, config.max_items_per_subject)
        return dataclasses.replace(config, noise_multiplier=NOISE / most)
    return config


def two_rounds(name, changes, performance):
    scheme = schemes.get(name)
    config, options = of_that_noise(name, config_of(scheme, changes)), {}
    if scheme.promise == "nats" and not scheme.uploads_seen:
        noise = record_noise.RecordNoise(
            jnp.log(jnp.float32(0.3)), jnp.ones((), jnp.float32), value_range=None
        )
        if name == "embedding_channel":  # along two of the directions
            along, nowhere = jnp.eye(D, dtype=jnp.float32)[:, :2], jnp.zeros((), jnp.float32)
            centre = jnp.zeros(D, jnp.float32)
            noise = noise._replace(weights=nowhere, factor=along, centre=centre)
        options["channel"] = channels.Calibrated(noise, None, np.ones(D), 3, (-1.0, 1.0), None)
    loss = (
        models.squared_error(apply) if scheme.needs_network else models.softmax_cross_entropy(apply)
    )
    made = scheme.make(config, loss, num_units=C, performance=performance, **options)
    run, state, cohort = jax.jit(made.round), made.init(start()), a_cohort()
    for _ in range(2):
        state, _ = run(state, cohort, jax.random.key(7))
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(state.params)])


@pytest.mark.release(
    reason="one more scheme",
    but=[
        "bidirectional",
        "dp_sgd",
        "fedavg",
        "gd_dp",
        "item_sum_cap",
        "local_dp",
        "secagg_dp",
        "white_channel",
        "lightdp/k_regular",
        "gsgd_dp/isotropic",
        "dp_fedavg/adaptive",
        "subject_sampled",
    ],
)
@pytest.mark.slow(
    reason="compiles the round of one more scheme of a family, or of one more setting",
    but=[
        "dp_fedavg",
        "dp_fedsgd",
        "gsgd_dp",
        "higradavg",
        "lightdp",
        "local_group_dp",
        "personalized_channel",
        "bidirectional/protocol",
    ],
)
@pytest.mark.parametrize("case", REFERENCE)
def test_two_rounds_give_the_committed_model(case):
    name, _, _ = case.partition("/")
    found = two_rounds(name, CHANGES.get(case, {}), Performance(microbatch_size=8))
    np.testing.assert_allclose(found, REFERENCE[case], rtol=0, atol=TOLERANCE)
    assert (
        np.abs(found - np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start())])).max()
        > 1e-2
    )


@pytest.mark.slow(reason="compiles rounds for more devices")
@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("devices", [1, 8])
def test_groups_chunks_and_devices_change_the_order_of_additions_only(case, devices):
    name, _, _ = case.partition("/")
    performance = OPTIONS[case]
    with mesh.over(mesh.client_mesh(devices, groups=performance.groups)):
        found = two_rounds(name, {}, performance)
    np.testing.assert_allclose(found, REFERENCE[name], rtol=0, atol=TOLERANCE)


def test_every_scheme_that_stood_then_has_its_reference():
    names = {case.partition("/")[0] for case in REFERENCE}
    assert len(names - SINCE) == 25 and names >= SINCE
