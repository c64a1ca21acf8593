"""Small worlds that a scheme is checked in: config, data, loss, and the algorithm made of them."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import models
from fljax.accounting import events, mechanisms
from fljax.accounting.events import NeighboringRelation
from fljax.attacks import rounds
from fljax.data import facts
from fljax.data.cohorts import ClientData, Cohort, cohort
from fljax.data.dataset import Dataset
from fljax.data.subjects import SUBJECT
from fljax.schemes.base import FederatedAlgorithm, Performance, Scheme
from fljax.types import LossFn, Params

GROUPS = 8  # the same order of additions on 1 and on 8 devices
_DIM = 3  # of the model against one unit
_IMAGE, _HIDDEN, _CLASSES = (2, 2, 1), 4, 3  # some schemes take images only
_CLIENTS, _PLACES = 4, 4
_LONG = 1e3  # times whatever a contribution is clipped to


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


def least_config(scheme: Scheme) -> Any:
    """As `small_config`, with as few clients as the scheme admits: others add no noise."""
    sizes: dict[str, Any] = {"max_colluders": 0}
    for count in range(1, _CLIENTS + 1):
        try:
            config = small_config(scheme, num_parties=count, **sizes)
            worlds = Neighbours(scheme, config)
            jax.eval_shape(worlds.step, jax.random.key(0), True, 0, False)
        except ValueError:
            if count == _CLIENTS:
                raise
            continue
        break
    return config


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


class Neighbours:
    """Two data sets that differ in one unit, as far apart as any, and one round on either of them.

    The gradient of a record is -y x. That of the unit's is long, in the direction of the first
    parameter; if units are replaced, it points the other way in the world without the unit. Others
    have a gradient of zero, or, where asked, a long one against the unit's.
    """

    def __init__(self, scheme: Scheme, config: Any) -> None:
        event, population = scheme.event(config), scheme.population(config)
        self.num_clients = population.num_clients or 2
        examples, self._rows = _tables(population, event, self.num_clients)
        self._removed = event.privacy_unit == "client" and (
            event.neighboring_relation == NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        num_rows = examples["x"].shape[1]
        self._examples = examples
        self._start = {"w": jnp.zeros((_DIM, 1))}
        loss: LossFn = _own_gradient
        if scheme.needs_network:
            loss, self._start["a"] = models.squared_error(_two_layers), jnp.eye(_DIM)
        num_units = num_rows if event.privacy_unit == "example" else self.num_clients
        self._algorithm = scheme.make(config, loss, num_units=num_units)

    def step(self, key: jax.Array, present: Any, shift: Any, against: Any) -> jax.Array:
        """How far one round, which samples by `key`, moves the parameters: `[3]`.

        present: bool, whether the unit is there. shift: the number of the client that has it, or of
        the first that does. against: bool, whether other records point against the unit's.
        """
        choose = lambda pair: jnp.where(present, pair[1], pair[0])
        examples = jax.tree.map(choose, self._examples)
        silent = jnp.all(examples["x"] == 0, axis=1, keepdims=True)
        others = jnp.asarray([[1.0, 0, 0]]) * jnp.where(against, 1.0, 0.0)
        examples["x"] = jnp.where(silent, others, examples["x"])
        rows = jnp.roll(choose(self._rows), shift, axis=0)
        coin_key, round_key = jax.random.split(key)
        prob = self._algorithm.client_sampling_prob
        joins = jax.random.uniform(coin_key, (self.num_clients,)) < prob
        ids = jnp.arange(self.num_clients)
        if self._removed:
            joins &= jnp.asarray(present) | (ids != shift)
        here = cohort(ClientData(examples, rows), jnp.where(joins, ids, -1))
        moved = self._algorithm.round(self._algorithm.init(self._start), here, round_key)[0]
        return jnp.ravel(moved.params["w"])

    def steps(
        self, keys: jax.Array, present: np.ndarray, shift: np.ndarray, against: np.ndarray
    ) -> np.ndarray:
        """`step` of each: float64 `[T, 3]`, in one program."""
        one = lambda each: self.step(*each)
        run = jax.jit(lambda *each: jax.lax.map(one, each))
        given = [jnp.asarray(each) for each in (present, shift, against)]
        return np.asarray(run(keys, *given), np.float64)


def _own_gradient(params: Params, example: Any) -> jax.Array:
    """Its gradient is -y x; so is that of `squared_error(_two_layers)` where "w" is 0."""
    return -jnp.vdot(params["w"][:, 0], example["x"]) * example["y"][0]


def _two_layers(params: Params, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ params["a"]) @ params["w"]


def _tables(
    population: Any, event: Any, num_clients: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Examples `[2, M, ...]` and rows of clients `[2, C, N]`: without the unit, and with it."""
    relation, unit = event.neighboring_relation, event.privacy_unit
    mine, holders = 1, 1
    if unit == "subject":
        mine, holders = population.subject_examples, population.subject_clients or num_clients
    # Places for records are full; elsewhere one other record keeps a client from being empty.
    others = (population.places or 2) - 1 if unit == "example" else 1
    per_client = others + mine
    x = np.zeros((2, num_clients, per_client, _DIM), np.float32)
    x[:, :holders, others:, 0] = 1.0
    # Others are outdone even where a client clips the sum of its records, and not each of them.
    y = np.full((2, num_clients, per_client, 1), _LONG, np.float32)
    y[:, :holders, others:] = _LONG * _LONG
    y[1, :holders, others:] *= -1
    rows = np.arange(num_clients * per_client, dtype=np.int32)
    rows = np.tile(rows.reshape(num_clients, per_client), (2, 1, 1))
    rows[:, holders:, others:] = -1  # nobody else has anything of the unit
    if unit == "client":
        rows[:, :holders, :others] = -1  # it has nothing else
    if relation != NeighboringRelation.REPLACE_ONE:
        rows[0, :holders, others:] = -1
    rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=-1, kind="stable"), -1)
    subject = 1 + np.tile(np.arange(num_clients, dtype=np.int32)[:, None], (2, 1, per_client))
    subject[:, :, others:] = 0
    flat = {"x": x, "y": y, SUBJECT: subject}
    flat = {
        name: field.reshape(2, num_clients * per_client, *field.shape[3:])
        for name, field in flat.items()
    }
    return flat, rows


def mu_of(mechanism: Any) -> float | None:
    """Sensitivity / noise that a Gaussian mechanism declares, or one of integers, without sampling;
    None for others.
    """
    match mechanism:
        case events.DiscreteGaussianSum(stddev=stddev, count=count, l2_sensitivity=move):
            return move / (stddev * math.sqrt(count))
        case events.Skellam(variance=variance, l2_sensitivity=move):
            return move / math.sqrt(variance)
        case events.Gaussian(noise_multiplier=noise):
            return 1 / noise if noise else math.inf
        case events.CorrelatedGaussian():
            one = mechanisms.effective_noise(mechanism)
            return 1 / one if one else math.inf
        case events.MixtureOfGaussians(stddev=stddev, sensitivities=moves):
            return max(moves) / stddev if stddev else math.inf
        case events.PoissonSampled(event=inner) | events.SampledWithoutReplacement(event=inner):
            return mu_of(inner)
        case events.SelfComposed(event=inner, count=count):
            found = mu_of(inner)
            return None if found is None else found * math.sqrt(count)
        case events.Composed(events=parts):
            each = [mu_of(part) for part in parts]
            return None if None in each else math.hypot(*[mu for mu in each if mu is not None])
    return None
