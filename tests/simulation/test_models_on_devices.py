"""Schemes with models on two devices, data placed as a run places them.

What JAX refuses on a mesh it refuses while a round is traced, if the arguments are placed on the
mesh: shapes alone do not show it. So most pairs are traced only, which takes a second where a
compilation takes twenty. A pair fails by how a round takes gradients and by how a layer reads its
parameters: every scheme meets a model of each kind of layer, every small model and a residual one
a scheme of each family, every model one that takes gradients of examples, layer by layer.
"""

import functools
import inspect
import math
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, models, schemes
from fljax.server.rounds import Performance
from fljax.simulation.devices import mesh
from tests.simulation.test_devices import ALIKE

C, N = 3, 2
SHAPES = {
    "softmax": (4,),
    "mlp": (4,),
    "lstm": (3,),
    "token_lstm": (3,),
    "decoder:tiny": (3,),
    "look_up": (3,),
    "resnet10": (32, 32, 3),
    "resnet20": (32, 32, 3),
}
SHAPES |= {"alexnet": (32, 32, 3), "vgg16": (32, 32, 3)}
OF_SEQUENCES = ("token_lstm", "decoder:tiny")
LOOKS_UP = ("lstm", "look_up", *OF_SEQUENCES)
NEED_LAYERS = ("bidirectional", "mp_cdp", "mp_dp_naive")  # and parameters that enter by products
OF_EACH_LAYER = ("lstm", "lenet")  # look-ups, convolutions; products in both
OF_EACH_FAMILY = ("dp_fedavg", "white_channel", "mp_dp_naive", "higradavg", "lightdp", "gsgd_dp")
# Of layers that other models have, or more of its own. What takes gradients of means differentiates
# a model as a whole; gradients of examples have a rule for each of its layers.
DEEP = ("cnn", "leaf_cnn", "resnet10", "resnet18", "alexnet", "vgg16", "small_vit")
OF_DEEP = ("higradavg",)
# As many blocks as make each kind of block once.
OPTIONS = {"resnet20": {"blocks": 1}}
PAIRS = [
    (name, model)
    for model in models.NAMES
    for name in schemes.NAMES
    if (model in OF_EACH_LAYER and (model == "lstm" or name not in ALIKE))
    or name in (OF_DEEP if model in DEEP else OF_EACH_FAMILY)
    or (name, model) == ("bidirectional", "resnet20")  # whose protocol looks into its blocks
    if not (name in NEED_LAYERS and model in ("softmax", "lstm", *OF_SEQUENCES))
    if not model.startswith("decoder:") or model == "decoder:tiny"  # the others are too large
]
QUICK = [
    ("dp_fedavg", "mlp"),
    ("lightdp", "lstm"),
    ("bidirectional", "mlp"),
    ("gd_dp", "mlp"),
]


class LookUp(NamedTuple):
    """The least of a model that looks up its parameters."""

    params: dict[str, np.ndarray]

    def apply(self, params, x):
        return jnp.mean(params["table"][x], axis=0) @ params["w"]


def create(model):
    if model == "look_up":
        rng = np.random.default_rng(1)
        sizes = {"table": (3, 4), "w": (4, 3)}
        return LookUp(
            {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
        )
    return models.create(
        model,
        example_shape=SHAPES.get(model, (28, 28, 1)),
        num_classes=3,
        key=jax.random.key(1),
        **OPTIONS.get(model, {}),
    )


drawn = functools.cache(create)


@functools.cache
def network(model):
    """(shapes of its parameters, its apply): the largest has 134 million, which nobody draws."""
    made = []

    def params():
        made.append(create(model))
        return made[0].params

    return jax.eval_shape(params), made[0].apply


def algorithm(name, model, **options):
    scheme, fields = schemes.get(name), schemes.get(name).Config.__dataclass_fields__
    sizes = {
        "num_parties": C,
        "max_colluders": 1,
        "max_stragglers": 1,
        "records_per_client": N,
    }
    sizes |= {
        "local_batch_size": 2,
        "num_local_epochs": 1,
        "batch_size": 2,
        "allow_plain": True,
        "nats": math.inf,
    }
    sizes["noise_multiplier"] = 0.0 if fields["noise_multiplier"].default == 0 else 1.0
    if "grid_norm" in fields:  # of the largest model, with noise that can be drawn
        sizes |= {"grid_norm": 16384, "noise_multiplier": 0.1}
    kind = "next_token" if model in OF_SEQUENCES else "cross_entropy"
    loss = models.LOSSES["squared" if name in NEED_LAYERS else kind](network(model)[1])
    inputs = {"channel": None} if "channel" in inspect.signature(scheme.make).parameters else {}
    config = scheme.Config(**{field: size for field, size in sizes.items() if field in fields})
    return scheme.make(config, loss, num_units=C, performance=Performance(**options), **inputs)


def is_shape(params):
    return isinstance(jax.tree.leaves(params)[0], jax.ShapeDtypeStruct)


def placed(step, model, params):
    """(mesh, jitted round, its arguments); of shapes for parameters that are shapes."""
    over, shape = mesh.client_mesh(2), SHAPES.get(model, (28, 28, 1))
    x = (
        np.random.default_rng(0)
        .integers(0, 3, (C * N, *shape))
        .astype(np.int32 if model in LOOKS_UP else np.float32)
    )
    rows = np.arange(C * N, dtype=np.int32)
    y = x if model in OF_SEQUENCES else rows % 3
    clients = data.ClientData({"x": x, "y": y, "subject": rows}, rows.reshape(C, N))
    state = jax.eval_shape(step.init, params) if is_shape(params) else step.init(params)

    def one_round(state, clients, key):
        return step.round(state, data.cohort(clients, jnp.arange(C)), key)

    run = mesh.jit(over, one_round, state, others=1)
    whole = jax.sharding.NamedSharding(over, jax.sharding.PartitionSpec())
    if is_shape(params):
        at = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole)
        state = jax.tree.map(at, state)
    else:
        state = mesh.spread(over, state)
    return over, run, (state, mesh.everywhere(over, clients), jax.random.key(0))


def check_traced(name, model):
    params, _ = network(model)
    over, run, arguments = placed(algorithm(name, model), model, params)
    with mesh.over(over):
        state, info = run.eval_shape(*arguments)
    assert jax.tree.map(jnp.shape, state.params) == jax.tree.map(jnp.shape, params)
    assert info.loss.shape == ()


@pytest.mark.parametrize(("name", "model"), QUICK)
def test_each_kind_of_round_takes_a_model_on_two_devices(name, model):
    check_traced(name, model)


@pytest.mark.release(reason="a quick test has pairs of each kind")
@pytest.mark.slow(reason="traces or compiles every scheme with every model for two devices")
@pytest.mark.parametrize(("name", "model"), PAIRS)
def test_every_scheme_and_every_model_is_taken_on_two_devices(name, model):
    check_traced(name, model)


def test_a_scheme_of_each_family_meets_every_model():
    families = {
        path.parent.name for path in pathlib.Path(schemes.__file__).parent.glob("*/round.py")
    }
    assert {schemes.get(name).make.__module__.split(".")[2] for name in OF_EACH_FAMILY} == families


@pytest.mark.slow(reason="traces or compiles every scheme with every model for two devices")
@pytest.mark.parametrize("name", [name for name in OF_EACH_FAMILY if name not in NEED_LAYERS])
def test_a_model_that_looks_up_its_parameters_trains_on_two_devices_as_on_one(name):
    """Noise, drawn once, is the same bits; sums of three clients are added up in another order."""
    over, run, arguments = placed(algorithm(name, "look_up"), "look_up", drawn("look_up").params)
    with mesh.over(over):
        state, _ = run(*arguments)
    two = jax.tree.map(np.asarray, state.params)
    start, clients, key = arguments
    one, _ = jax.jit(run.__wrapped__)(*jax.tree.map(np.asarray, (start, clients)), key)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(b, np.asarray(a), rtol=0, atol=2e-6 * max(1.0, np.abs(a).max()))
    assert np.abs(two["table"] - drawn("look_up").params["table"]).max() > 1e-3


@pytest.mark.slow(reason="traces or compiles every scheme with every model for two devices")
@pytest.mark.parametrize(
    ("name", "model"), [("dp_fedavg", "lstm"), ("lightdp", "lstm"), ("higradavg", "cnn")]
)
def test_a_round_of_a_bundled_model_runs_on_two_devices(name, model):
    over, run, arguments = placed(algorithm(name, model), model, drawn(model).params)
    with mesh.over(over):
        _, info = run(*arguments)
    late = 1 if name == "lightdp" else 0  # its straggler is not in the average
    assert np.isfinite(info.loss) and C - late <= info.cohort_size <= C
