"""A decoder over eight virtual devices: examples over two axes, matrices over two."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import fljax
from fljax import models
from fljax.models import decoder, functions, lora

SHAPE = decoder.Shape(
    vocabulary=64,
    width=32,
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_width=8,
    rope_base=1e4,
    norm_of_queries=True,
)
TINY = decoder.SHAPES["tiny"]
CLIP, EXAMPLES, LENGTH = 0.05, 8, 16
OVER = PartitionSpec(("data", "fsdp"))


def adapted(rank, shape):
    module = decoder.Decoder(shape, rngs=nnx.Rngs(0), remat=True)
    if rank:
        lora.add(module, rank, rngs=nnx.Rngs(1))
    model = functions.parted(module, batched=False)
    leaves, tree = jax.tree.flatten(model.params)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    pairs = zip(leaves, keys, strict=True)
    moved = [leaf + 0.05 * jax.random.normal(key, leaf.shape) for leaf, key in pairs]
    return model._replace(params=tree.unflatten(moved))


def step_of(model):
    """(params, frozen, batch, padding) -> (clipped sum, norms), in one program."""

    def step(params, frozen, batch, padding):
        loss = models.next_token(lambda params, x: model.apply(params, frozen, x))
        query = fljax.clipped_grad(
            loss, l2_clip_norm=CLIP, keep_batch_dim=False, return_grad_norms=True
        )
        total, aux = query(params, batch, is_padding_example=padding)
        return total, aux.grad_norms

    return step


def test_matrices_are_cut_along_both_axes_and_those_of_lora_with_their_layer():
    params = jax.eval_shape(lambda: adapted(2, SHAPE).params)
    found = decoder.specs(params)["layers"]
    assert found["attention"]["q"]["a"] == PartitionSpec(None, "fsdp", None)
    assert found["attention"]["q"]["b"] == PartitionSpec(None, None, "tensor")
    assert found["mlp"]["down"]["a"] == PartitionSpec(None, "tensor", None)
    found = decoder.specs(whole := jax.eval_shape(lambda: adapted(0, SHAPE).params))
    assert found["layers"]["attention"]["q_norm"]["scale"] == PartitionSpec()
    assert found["layers"]["mlp"]["up"]["kernel"] == PartitionSpec(None, "fsdp", "tensor")
    assert found["embedding"] == PartitionSpec("tensor", "fsdp")
    assert decoder.specs(whole, tensor=None)["embedding"] == PartitionSpec(None, "fsdp")


def test_a_side_that_an_axis_does_not_divide_stays_whole():
    params = jax.eval_shape(lambda: adapted(0, TINY).params)
    assert decoder.specs(params)["embedding"] == PartitionSpec(None, "fsdp")  # 257 symbols
    mesh = AbstractMesh((3, 4), ("fsdp", "tensor"))
    found = decoder.specs(params, mesh=mesh)
    assert found["embedding"] == PartitionSpec(None, None)
    assert found["layers"]["mlp"]["down"]["kernel"] == PartitionSpec(None, "tensor", None)


@pytest.mark.release(reason="one more model", ids=["lora"])
@pytest.mark.slow(reason="compiles a private step of a decoder for eight devices, and replays it")
@pytest.mark.parametrize("rank", [0, 2], ids=["full", "lora"])
def test_a_private_step_of_tiny_over_data_fsdp_and_tensor_axes_is_that_of_one_device(rank):
    model = adapted(rank, TINY)
    step = step_of(model)
    x = jax.random.randint(jax.random.key(5), (EXAMPLES, LENGTH), 0, TINY.vocabulary, jnp.int32)
    batch = {"x": x, "y": (3 * x + 1) % TINY.vocabulary}
    padding = jnp.arange(EXAMPLES) == 3
    alone = jax.jit(step)(model.params, model.frozen, batch, padding)

    axes = ("data", "fsdp", "tensor")
    mesh = jax.make_mesh((2, 2, 2), axes, axis_types=(AxisType.Auto,) * 3)

    def placed(tree, specs):
        return jax.tree.map(lambda z, s: jax.device_put(z, NamedSharding(mesh, s)), tree, specs)

    specs = decoder.specs(model.params)
    params = placed(model.params, specs)
    frozen = placed(model.frozen, decoder.specs(model.frozen))
    out = jax.tree.map(lambda s: NamedSharding(mesh, s), specs), NamedSharding(mesh, OVER)
    run = jax.jit(step, out_shardings=out)
    spread = placed((batch, padding), jax.tree.map(lambda _: OVER, (batch, padding)))
    total, norms = run(params, frozen, *spread)
    # Sums of 2^7 to 2^11 numbers in another order, after the backward pass of two layers.
    np.testing.assert_allclose(norms, alone[1], rtol=2e-5)
    for ours, theirs in zip(jax.tree.leaves(total), jax.tree.leaves(alone[0]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * CLIP)
    held = total["layers"]["mlp"]["up"]
    for part in held.values():  # no device holds the whole of a matrix
        assert part.addressable_shards[0].data.size < part.size

    def released(batch, mask):
        given = jax.lax.with_sharding_constraint((batch, ~mask), NamedSharding(mesh, OVER))
        return run(params, frozen, *given)[0]

    report = fljax.check_sensitivity(released, batch, sensitivity=CLIP)
    assert report.measured > 0.99 * CLIP


def numbers_sent(text):
    """What the collectives of a compiled program give one device, in numbers; what stands in a loop
    counts as often as that runs.
    """
    bodies, name, first = {}, "", ""
    for line in text.splitlines():
        if begins := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line):
            name = begins[2]
            bodies[name], first = [], name if begins[1] else first
        elif name:
            bodies[name].append(line)
    moves = re.compile(
        r" = (.*?) (?:all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)"
        r"(?:-start)?\("
    )
    named = re.compile(r"(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")

    def of(name):
        total = 0
        for line in bodies[name]:
            for shape in re.findall(r"\w+\[([\d,]*)\]", (moves.search(line) or "  ")[1]):
                total += math.prod(map(int, shape.split(","))) if shape else 1
            inside = named.findall(line)
            if branches := re.search(r"branch_computations=\{([^}]*)\}", line):
                inside += [one.strip().lstrip("%") for one in branches[1].split(",")]
            runs = (
                re.search(r'known_trip_count":\{"n":"(\d+)"', line) if " while(" in line else None
            )
            total += (int(runs[1]) if runs else 1) * sum(map(of, inside))
        return total

    return of(first)


@pytest.mark.slow(reason="compiles two steps of a decoder for eight devices")
@pytest.mark.parametrize("rank", [0, 2], ids=["full", "lora"])
def test_a_private_step_sends_little_more_than_the_plain_one(rank):
    model = adapted(rank, SHAPE)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)

    def like(tree, specs):
        def one(z, spec):
            return jax.ShapeDtypeStruct(z.shape, z.dtype, sharding=NamedSharding(mesh, spec))

        return jax.tree.map(one, tree, specs)

    x = jax.ShapeDtypeStruct((EXAMPLES, LENGTH), jnp.int32, sharding=NamedSharding(mesh, OVER))
    batch = {"x": x, "y": x}
    specs = decoder.specs(model.params)
    params, frozen = like(model.params, specs), like(model.frozen, decoder.specs(model.frozen))

    def plain(params, frozen, batch):
        loss = models.next_token(lambda params, x: model.apply(params, frozen, x))
        return jax.grad(lambda params: jnp.sum(jax.vmap(loss, (None, 0))(params, batch)))(params)

    def private(params, frozen, batch):
        return step_of(model)(params, frozen, batch, None)

    out = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    norms = NamedSharding(mesh, OVER)
    of_plain, of_private = (
        numbers_sent(
            jax.jit(fun, out_shardings=to).lower(params, frozen, batch).compile().as_text()
        )
        for fun, to in ((plain, out), (private, (out, norms)))
    )
    assert of_plain > 10_000  # else nothing was found in the program
    # One number an example for each array of each layer, and for a few sums of them.
    each = EXAMPLES * (SHAPE.layers * len(jax.tree.leaves(model.params)) + 16)
    # The table is read at both ends: its norm takes hidden states twice, and T x T inner products,
    # of the half of the examples that a device has.
    table = 0 if rank else EXAMPLES // 2 * LENGTH * (2 * SHAPE.width + 2 * LENGTH)
    assert of_private <= of_plain + each + table
