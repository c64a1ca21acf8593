"""Banded noise in the training of a decoder over eight virtual devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fljax import data, models
from fljax.models import decoder, lora
from fljax.schemes.central import dp_fedavg
from fljax.server.rounds import Performance
from fljax.simulation.devices import mesh
from tests.models.test_decoder_on_a_mesh import SHAPE

CLIENTS, EACH, LENGTH, BANDS = 4, 2, 8, 4


def model_of(rank):
    module = decoder.Decoder(SHAPE, rngs=nnx.Rngs(0))
    return models.functional(
        lora.add(module, rank, rngs=nnx.Rngs(1)) if rank else module, batched=False
    )


def trained(params, apply, over, num_rounds=2):
    """The state after rounds over a mesh, as it lies there."""
    config = dp_fedavg.Config(
        sampling_prob=1 / BANDS,
        correlation="banded",
        bands=BANDS,
        noise_multiplier=1.0,
        l2_clip_norm=0.5,
        local_batch_size=EACH,
        num_local_epochs=1,
    )
    step = dp_fedavg.make(
        config, models.next_token(apply), num_units=CLIENTS, performance=Performance(groups=2)
    )
    x = np.random.default_rng(0).integers(0, SHAPE.vocabulary, (CLIENTS * EACH, LENGTH + 1))
    x = x.astype(np.int32)
    rows = np.arange(CLIENTS * EACH, dtype=np.int32).reshape(CLIENTS, EACH)
    clients = data.ClientData({"x": x[:, :-1], "y": x[:, 1:]}, rows)
    state = step.init(params)

    def one_round(state, clients, key):
        return step.round(state, data.cohort(clients, jnp.arange(CLIENTS)), key)

    run = mesh.jit(over, one_round, state, others=1)
    state, clients = mesh.spread(over, state), mesh.everywhere(over, clients)
    key = jax.random.key(0)
    with mesh.over(over):
        for _ in range(num_rounds):
            # One after the other: eight devices that wait for each other on few cores give up.
            state, _ = jax.block_until_ready(run(state, clients, key))
    return state


def bytes_of(tree):
    """(of all numbers once, the most that lie on one device)."""
    leaves = jax.tree.leaves(tree)
    held = {}
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return sum(leaf.nbytes for leaf in leaves), max(held.values())


@pytest.mark.release(reason="one more model", ids=["lora"])
@pytest.mark.slow(reason="compiles rounds of a decoder for one device and for eight")
# One client is in turn in each round: of two models one is then computed for nobody.
@pytest.mark.parametrize(("rank", "shared"), [(0, 8), (4, 4)], ids=["full", "lora"])
def test_banded_noise_of_a_decoder_is_kept_in_parts_and_is_that_of_one_device(rank, shared):
    params, apply = model_of(rank)
    over = mesh.client_mesh(8, groups=2, model_devices=shared)
    state = trained(params, apply, over)
    # What is kept between rounds: a copy of what is trained for each band but one, and a counter.
    buffers = [leaf for leaf in jax.tree.leaves(state.clipping) if leaf.ndim]
    trained_bytes, _ = bytes_of(state.params)
    whole, on_one = bytes_of(buffers)
    assert (
        whole
        == (BANDS - 1) * trained_bytes
        == (BANDS - 1) * sum(4 * leaf.size for leaf in jax.tree.leaves(params))
    )
    # All matrices are cut; a norm's numbers may lie whole on each device.
    assert on_one <= 1.05 * whole / shared
    alone = trained(params, apply, mesh.client_mesh(1, groups=2))
    for one, eight in zip(
        jax.tree.leaves(alone.clipping), jax.tree.leaves(state.clipping), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(eight))
    for one, eight in zip(
        jax.tree.leaves(alone.params), jax.tree.leaves(state.params), strict=True
    ):
        np.testing.assert_allclose(np.asarray(eight), np.asarray(one), atol=1e-5)
