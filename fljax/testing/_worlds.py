"""Small worlds that a scheme is checked in: config, data, loss, and the algorithm made of them.

Those that differ in one unit are `fljax.attacks.worlds`.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import models
from fljax.attacks import rounds
from fljax.data import facts
from fljax.data.cohorts import ClientData, Cohort, cohort
from fljax.data.dataset import Dataset
from fljax.data.subjects import SUBJECT
from fljax.schemes.base import FederatedAlgorithm, Performance, Scheme
from fljax.types import LossFn, Params

GROUPS = 8  # the same order of additions on 1 and on 8 devices
_IMAGE, _HIDDEN, _CLASSES = (2, 2, 1), 4, 3  # some schemes take images only
_CLIENTS, _PLACES = 4, 4


class World(NamedTuple):
    """Clients, and an algorithm for them.

    cohort: of all clients. params: to start from. owned: rows of the pool that belong to somebody;
    the first and the last row are nobody's.
    """

    config: Any
    algorithm: FederatedAlgorithm
    params: Params
    cohort: Cohort
    owned: np.ndarray


def small_config(scheme: Scheme, **sizes: Any) -> Any:
    """The Config of a scheme for few clients, with noise; `sizes` count where it has the fields."""
    config = rounds.small(scheme.Config, rounds.sizes(scheme) | sizes, required={})
    return with_noise(config)


def with_noise(config: Any) -> Any:
    """`config`, with a noise multiplier of 1 where it has none yet."""
    if config.noise_multiplier is not None:
        return config
    return dataclasses.replace(config, noise_multiplier=1.0)


def ordinary(scheme: Scheme, config: Any) -> World:
    """Random records, some clients with fewer than others; the state before the first round.

    Raises:
      ValueError: the scheme refuses its config, the data or the network.
    """
    population = scheme.population(config)
    num_clients = population.num_clients or _CLIENTS
    places = population.places or _PLACES
    rng = np.random.default_rng(0)
    num_rows = num_clients * places + 2
    examples = {
        "x": rng.uniform(0.1, 1.0, (num_rows, *_IMAGE)).astype(np.float32),
        "y": rng.integers(0, _CLASSES, num_rows).astype(np.int32),
        SUBJECT: (np.arange(num_rows) // 2).astype(np.int32),
    }
    table = 1 + np.arange(num_clients * places, dtype=np.int32).reshape(num_clients, places)
    table[1::2, max(1, places - 1) :] = -1
    client_data = ClientData(jax.tree.map(jnp.asarray, examples), jnp.asarray(table))
    config = scheme.fitted(config, facts.of(client_data))
    params, apply = _network(rng) if scheme.needs_network else _linear(rng)
    loss: LossFn = models.softmax_cross_entropy(apply)
    if scheme.needs_network:
        loss = models.squared_error(apply)
    inputs: dict[str, Any] = {}
    if scheme.inputs is not None:
        inputs = scheme.inputs(config, _task(examples, client_data, params, apply, loss))
    algorithm = scheme.make(
        config,
        loss,
        num_units=num_clients,
        performance=Performance(groups=GROUPS, chunk_size=1),
        **inputs,
    )
    everybody = cohort(client_data, jnp.arange(num_clients))
    return World(config, algorithm, params, everybody, np.unique(table[table >= 0]))


def _linear(rng: np.random.Generator) -> tuple[Params, Any]:
    size = (math.prod(_IMAGE), _CLASSES)
    params = {"w": jnp.asarray(rng.normal(size=size).astype(np.float32) * 0.3)}
    return params, lambda params, x: x.reshape(-1) @ params["w"]


def _network(rng: np.random.Generator) -> tuple[Params, Any]:
    shapes = {
        "a": (math.prod(_IMAGE), _HIDDEN),
        "b": (_HIDDEN,),
        "w": (_HIDDEN, _CLASSES),
        "c": (_CLASSES,),
    }
    params = {
        name: jnp.asarray(rng.normal(size=shape).astype(np.float32) * 0.3)
        for name, shape in shapes.items()
    }

    def apply(params: Params, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x.reshape(-1) @ params["a"] + params["b"])
        return hidden @ params["w"] + params["c"]

    return params, apply


def _task(
    examples: dict[str, np.ndarray],
    client_data: ClientData,
    params: Params,
    apply: Any,
    loss: LossFn,
) -> Any:
    """What a run would give the scheme's `inputs`; every record is held out, too."""
    from fljax.simulation import evaluation, task  # slow to import, and few schemes have inputs

    return task.Task(
        Dataset(examples, examples, _CLASSES, "check_scheme"),
        client_data,
        models.Functional(params, apply),
        loss,
        jax.random.key(0),
        evaluation.Measures(apply, loss, "classes"),
    )


def changed(world: World, rows: np.ndarray, value: str) -> Cohort:
    """The cohort, with other records in these rows of the pool: "other" ones, or "nan".

    Labels and subjects stay: they are integers, and a scheme may count by them.
    """
    x = np.array(world.cohort.examples["x"])
    x[rows] = np.nan if value == "nan" else 5.0 - 7.0 * x[rows]
    return world.cohort._replace(examples=world.cohort.examples | {"x": jnp.asarray(x)})
