"""One private step of a decoder of a billion parameters over a pod: fine-tuning of all of it, and
of LoRA, compiled for machines that are not here.

Texts of a batch are spread over the axes "data" and "fsdp", matrices over "fsdp" and "tensor". A
step goes through the batch in microbatches, adds up their clipped sums, and draws noise once.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import fljax
import fljax_kernels
from bench.kernels import per_example
from fljax import models
from fljax.models import decoder, functions, lora

SHAPE, LENGTH, BATCH = decoder.SHAPES["gemma3_1b"], 1024, 2048  # tokens of a text, texts of a step
RANK = 16
CLIP = STDDEV = 1.0
AXES = ("data", "fsdp", "tensor")
OVER = PartitionSpec(None, ("data", "fsdp"))


class Plan(NamedTuple):
    """How many devices there are along each of `AXES`, and microbatches in a step."""

    sizes: tuple[int, int, int]
    steps: int


# A chip of 16 GB has room for one text's logits, 262,144 for each token, where four share them. No
# matrix is cut along "fsdp": XLA then cuts hidden states so, too, and computes texts many times.
PLANS = {256: Plan((64, 1, 4), 32), 8: Plan((8, 1, 1), 64)}


def mesh(plan: Plan) -> AbstractMesh:
    """Of a plan; devices come later."""
    return AbstractMesh(plan.sizes, AXES, axis_types=(AxisType.Auto,) * 3)


def weights(rank: int) -> functions.Parted:
    """Shapes of what is trained and what is frozen, and the decoder, in bfloat16 over float32."""
    found: list[Any] = []

    def make() -> Any:
        module: nnx.Module = decoder.Decoder(
            SHAPE, rngs=nnx.Rngs(0), dtype=jnp.bfloat16, remat=True
        )
        if rank:
            lora.add(module, rank, rngs=nnx.Rngs(1))
        model = functions.parted(module, batched=False)
        found.append(model.apply)
        return model.params, model.frozen

    params, frozen = jax.eval_shape(make)
    return functions.Parted(params, frozen, found[0])


def reference(loss: Any, params: Any, batch: Any) -> Any:
    """The gradient of the summed loss, which is not private."""
    total = lambda params: jnp.sum(jax.vmap(loss, (None, 0))(params, batch))
    return jax.grad(total)(params)


def plain(loss: Any, params: Any, batch: Any) -> Any:
    """A row for each text by `vmap(grad)`, as jax-privacy's `clipped_grad` has them."""
    rows, factors = _rows(loss, params, batch)
    return jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, 1), rows)


def two_pass(loss: Any, params: Any, batch: Any) -> Any:
    """Norms by `vmap(grad)`, and a second backward pass of the weighted loss."""
    factors = _rows(loss, params, batch)[1]
    weighted = lambda params: jnp.sum(factors * jax.vmap(loss, (None, 0))(params, batch))
    return jax.grad(weighted)(params)


def ours(loss: Any, params: Any, batch: Any) -> Any:
    """`fljax.clipped_grad`."""
    return fljax.clipped_grad(loss, l2_clip_norm=CLIP, keep_batch_dim=False)(params, batch)


def _rows(loss: Any, params: Any, batch: Any) -> tuple[Any, jax.Array]:
    rows = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
    squares = [jnp.square(leaf.reshape(leaf.shape[0], -1)) for leaf in jax.tree.leaves(rows)]
    return rows, per_example.clip_factors(jnp.sqrt(sum(s.sum(axis=1) for s in squares)))


FORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "reference": reference,
    "plain": plain,
    "two_pass": two_pass,
    "ours": ours,
}


def program(form: str, rank: int, count: int) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    """(a step, its arguments as shapes on `mesh(PLANS[count])`, how its result is spread)."""
    plan = PLANS[count]
    on, model = mesh(plan), weights(rank)
    specs = decoder.specs(model.params)

    def spread(tree: Any) -> Any:
        return jax.tree.map(jax.lax.with_sharding_constraint, tree, specs)

    def step(params: Any, frozen: Any, batch: Any, key: jax.Array) -> Any:
        loss = models.next_token(lambda params, x: model.apply(params, frozen, x))
        sum_of = functools.partial(FORMS[form], loss, params)

        def add(total: Any, some: Any) -> tuple[Any, None]:
            return spread(jax.tree.map(jnp.add, total, sum_of(some))), None

        total, _ = jax.lax.scan(add, spread(jax.tree.map(jnp.zeros_like, params)), batch)
        if form == "reference":
            return total
        return spread(fljax_kernels.add_gaussian_noise(key, total, STDDEV))

    def shaped(tree: Any, where: Any) -> Any:
        def one(leaf: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(on, spec))

        return jax.tree.map(one, tree, where)

    text = jax.ShapeDtypeStruct((plan.steps, BATCH // plan.steps, LENGTH), jnp.int32)
    batch = {"x": text, "y": text}
    arguments = (
        shaped(model.params, specs),
        shaped(model.frozen, decoder.specs(model.frozen)),
        shaped(batch, {"x": OVER, "y": OVER}),
        jax.eval_shape(lambda: jax.random.key(0)),
    )
    return step, arguments, specs
