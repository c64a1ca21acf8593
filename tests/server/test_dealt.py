"""Clients that bring their examples: the bits of one pool, and nothing that grows with devices."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, models, schemes
from fljax.server.rounds import Performance
from fljax.simulation.devices import mesh
from tests._environment import READ_ONLY

pytestmark = pytest.mark.optimized(reason="compares bits and the memory of compiled programs")

C, N, D = 13, 6, 5


def loss(params, example):
    return -jax.nn.log_softmax(example["x"] @ params["w"])[example["y"]]


def a_cohort():
    """13 clients of 1 to 6 examples, in a pool where they lie in no order."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(C * N).reshape(C, N).astype(np.int32)
    rows[np.arange(N)[None] >= rng.integers(1, N + 1, C)[:, None]] = -1
    examples = {
        "x": rng.normal(size=(C * N, D)).astype(np.float32),
        "y": rng.integers(0, 3, C * N).astype(np.int32),
        "subject": np.arange(C * N, dtype=np.int32),
    }
    everyone = data.ClientData(jax.tree.map(jnp.asarray, examples), jnp.asarray(rows))
    return data.cohort(everyone, jnp.asarray([4, 1, *range(5, C), 0, 2, 3]))


def test_a_pool_of_dealt_clients_holds_what_they_had():
    cohort = a_cohort()
    back = data.pooled(data.dealt(cohort, 4))
    there = np.asarray(cohort.indices) >= 0
    np.testing.assert_array_equal(np.asarray(back.indices) >= 0, there)
    for name, leaf in cohort.examples.items():
        mine = np.asarray(leaf)[np.asarray(cohort.indices)[there]]
        np.testing.assert_array_equal(
            np.asarray(back.examples[name])[np.asarray(back.indices)[there]], mine
        )


def after_two_rounds(algorithm, cohort, params):
    state, step = algorithm.init(params), jax.jit(algorithm.round)
    for _ in range(2):
        state, info = step(state, cohort, jax.random.key(0))
    return jax.tree.map(np.asarray, (state, info))


CASES = [
    *[("dp_fedavg", *on) for on in ((1, None), (8, None), (2, 8))],
    *[(name, 2, 8) for name in ("dp_fedbuff", "dp_scaffold", "higradavg", "lightdp", "sgd_dp")],
]


@pytest.mark.release(
    reason="one more scheme", ids=["higradavg-2-8", "dp_fedbuff-2-8", "dp_scaffold-2-8"]
)
@pytest.mark.slow(reason="compiles rounds for 1, 2 and 8 devices")
@pytest.mark.parametrize(("name", "devices", "groups"), CASES)
def test_dealt_clients_make_the_bits_of_pooled_ones(name, devices, groups):
    """Also where a scheme moves clients from place to place, and they go to all devices."""
    scheme = schemes.get(name)
    fields = scheme.Config.__dataclass_fields__
    sizes = {field: C for field in ("num_parties",) if field in fields}
    config = scheme.Config(**{"noise_multiplier": 1.0, **sizes})
    algorithm = scheme.make(config, loss, num_units=C, performance=Performance(groups=groups))
    assert algorithm.takes_dealt
    cohort = a_cohort()
    with mesh.over(mesh.client_mesh(devices)):
        params = {"w": jnp.zeros((D, 3))}  # on the mesh, as rounds leave them: one program
        expected = after_two_rounds(algorithm, cohort, params)
        found = after_two_rounds(algorithm, data.dealt(cohort, groups or devices), params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(expected[0].params["w"]).max() > 1e-3


def sizes_on_a_device(jaxpr):
    """How many numbers of the examples' width each input of a device's own program has."""
    found = []
    for equation in jaxpr.eqns:
        inner = [one for one in jax.tree.leaves(equation.params) if hasattr(one, "jaxpr")]
        bodies = [getattr(one, "jaxpr", one) for one in equation.params.values()]
        for body in [one.jaxpr for one in inner] + [one for one in bodies if hasattr(one, "eqns")]:
            if equation.primitive.name == "shard_map":
                shapes = [var.aval.shape for var in body.invars]
                found += [math.prod(shape) for shape in shapes if shape[-1:] == (D,)]
            else:
                found += sizes_on_a_device(body)
    return found


@pytest.mark.parametrize("name", ["sgd_dp", "higradavg"])
def test_examples_of_a_dealt_client_go_to_no_other_device(name):
    scheme = schemes.get(name)
    sizes = {"num_parties": C} if "num_parties" in scheme.Config.__dataclass_fields__ else {}
    algorithm = scheme.make(scheme.Config(noise_multiplier=1.0, **sizes), loss, num_units=C)
    state, cohort = algorithm.init({"w": jnp.zeros((D, 3))}), data.dealt(a_cohort(), 2)
    with mesh.over(mesh.client_mesh(2)):
        traced = jax.make_jaxpr(algorithm.round)(state, cohort, jax.random.key(0))
    found = sizes_on_a_device(traced.jaxpr)
    whole = cohort.examples["x"].size
    assert found and max(found) == whole // 2, (found, whole)


def needs(devices, deal):
    """(bytes of arguments, bytes of temporaries, collectives) of one device of `devices` with 20
    clients each.
    """
    count, places, size = 20 * devices, 10, 256
    model = models.create("softmax", example_shape=(size,), num_classes=10, key=jax.random.key(0))
    scheme = schemes.get("dp_fedavg")
    algorithm = scheme.make(
        scheme.Config(sampling_prob=1.0, noise_multiplier=1.0),
        models.softmax_cross_entropy(model.apply),
        num_units=count,
        performance=Performance(chunk_size=1),
    )
    over = mesh.client_mesh(devices)
    whole, spread = (
        jax.sharding.NamedSharding(over, jax.sharding.PartitionSpec(*axes))
        for axes in ((), (None, mesh.CLIENTS))
    )

    def shape(*sizes, dtype=jnp.int32, at=whole):
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=at)

    if deal:
        at = 20, devices, places
        examples = {
            "x": shape(*at, size, dtype=jnp.float32, at=spread),
            "y": shape(*at, at=spread),
        }
        cohort = data.DealtCohort(examples, shape(count), shape(count))
    else:
        rows = count * places
        examples = {"x": shape(rows, size, dtype=jnp.float32), "y": shape(rows)}
        cohort = data.Cohort(examples, shape(count, places), shape(count))
    state = jax.eval_shape(algorithm.init, model.params)
    with jax.set_mesh(over):
        program = jax.jit(algorithm.round, compiler_options=READ_ONLY)
        program = program.lower(state, cohort, jax.random.key(0)).compile()
    memory, text = program.memory_analysis(), program.as_text()
    sent = re.findall(r"(all-[a-z]+|reduce-scatter|collective-permute)(?:-start)?\(", text)
    return memory.argument_size_in_bytes, memory.temp_size_in_bytes, sent


@pytest.mark.slow(reason="compiles rounds for 2 and 8 devices")
def test_what_a_device_holds_does_not_grow_with_their_number():
    arguments, temporaries, sent = zip(*(needs(n, deal=True) for n in (2, 8)), strict=True)
    assert max(arguments) <= 1.05 * min(arguments)
    assert max(temporaries) <= 1.05 * min(temporaries)
    assert sent == (["all-reduce"],) * 2  # of the sums, and nothing of the examples
    # Of one pool each device holds the examples of all.
    assert needs(8, deal=False)[0] > 3.5 * needs(2, deal=False)[0]


def test_examples_of_other_shapes_are_refused():
    scheme = schemes.get("dp_fedavg")
    algorithm = scheme.make(scheme.Config(noise_multiplier=1.0), loss, num_units=C)
    cohort = data.dealt(a_cohort(), 2)
    state = algorithm.init({"w": jnp.zeros((D, 3))})
    for wrong, message in (
        (cohort._replace(examples=a_cohort().examples), "examples of shapes"),
        (cohort._replace(num_examples=cohort.num_examples[:-1]), "num_examples of shape"),
    ):
        with pytest.raises(ValueError, match=message):
            algorithm.round(state, wrong, jax.random.key(0))
