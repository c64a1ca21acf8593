"""A run before its first round: data, noise, algorithms; nothing is written, no round is
compiled.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

import fljax_kernels
from fljax import data, models, schemes
from fljax.accounting import events
from fljax.data import facts, store, text
from fljax.data.facts import Facts
from fljax.errors import PrivacyPreconditionError
from fljax.schemes.base import FederatedAlgorithm, Scheme
from fljax.server import aggregate
from fljax.server.rounds import Performance
from fljax.simulation import (
    as_printed,
    base_model,
    baseline,
    budget,
    evaluation,
    extend,
    feed,
    fingerprint,
    own,
    seeds,
    task,
    warm_start,
)
from fljax.simulation import config as config_lib
from fljax.simulation.config import Config
from fljax.simulation.devices import memory, processes
from fljax.types import PyTree

_OVERFLOW_CHANCE = 1e-9  # per round, of a second compilation for a bigger cohort; nothing else


class Job(NamedTuple):
    """A run before its first round.

    config: with every count that the data decide. algorithms: the private one, then the non-private
    one if there is any. inputs: what the scheme's `make` was given beside the loss. began_with:
    fingerprint of config, seed and data.
    """

    config: Config
    seed: seeds.Seed
    facts: Facts
    plan: budget.Plan
    task: task.Task
    algorithms: tuple[FederatedAlgorithm, ...]
    inputs: dict[str, Any]
    began_with: dict[str, Any]

    def num_params(self) -> int:
        """Numbers in the model."""
        assert self.plan.num_params is not None  # `_prepared` has counted them
        return self.plan.num_params

    def state_shapes(self) -> tuple[PyTree, ...]:
        """Of each algorithm's state."""
        return tuple(jax.eval_shape(each.init, self.task.model.params) for each in self.algorithms)

    def client_start(self) -> PyTree:
        """What a client keeps before its first round; None where clients keep nothing."""
        kept = self.algorithms[0].client_state
        return None if kept is None else kept.init(self.task.model.params)

    def has_own_models(self) -> bool:
        """Whether clients use models of their own, of which the released one is a part."""
        kept = self.algorithms[0].client_state
        return kept is not None and kept.model is not None

    def own_models(
        self, params: PyTree, kept: Callable[[int], PyTree]
    ) -> evaluation.OwnModels | None:
        """`client -> the model that it uses`, from the released one; None where that is the
        same.
        """
        clients = self.algorithms[0].client_state
        if clients is None or clients.model is None:
            return None
        model = clients.model
        return lambda client: model(params, kept(client))

    def usual_capacity(self) -> int:
        """Places in a cohort that a sample exceeds once in a thousand million rounds."""
        num_clients, prob = self.facts.num_clients, self.algorithms[0].client_sampling_prob
        return max(1, fljax_kernels.poisson_capacity(num_clients, prob, _OVERFLOW_CHANCE))


def prepare(
    config: Config,
    seed: seeds.Seed | None = None,
    brought: own.Own = own.NOTHING,
    attempt: int | None = None,
) -> Job:
    """Everything before the first round that writes and compiles no round: data, noise, algorithms.

    What the scheme's claim assumes of the data is held against them here.

    Args:
      config: counts that the data decide may be None.
      seed: of a run that goes on. None: of a new one, from the operating system unless the config
        fixes it.
      brought: what the caller has of their own.
      attempt: which try of a search it is.

    Raises:
      ValueError: the config does not fit the data, the network or the budget; or other processes
        have another one.
      PrivacyPreconditionError: the data are not what the scheme's claim assumes.
    """
    with processes.losses_in_one_line():
        digest = config_lib.digest(config)
        if processes.words_from_first(digest) != digest:
            raise ValueError(
                "Expected the same config in all processes, got another one than in the first."
            )
        return _prepared(config, seeds.new(config) if seed is None else seed, brought, attempt)


def _prepared(config: Config, seed: seeds.Seed, brought: own.Own, attempt: int | None) -> Job:
    scheme = config.implementation
    built = task.build(config, seed, brought, attempt)
    observed = facts.of(built.client_data)._replace(client_column=config.data.client_column)
    ordinary_clients = observed.num_clients
    if config.run.canaries:
        built = task.with_canaries(built, config, seed, _unit(config, scheme, observed))
        observed = facts.of(built.client_data)._replace(client_column=observed.client_column)
    scheme_config = _fitted(config, scheme, observed)
    dealt = dataclasses.replace(config.data, num_clients=ordinary_clients)
    config = dataclasses.replace(config, data=dealt, scheme_config=scheme_config)
    plan = budget.plan(as_printed.prepared(config, scheme, observed), scheme, observed)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(built.model.params))
    normals = scheme.num_normals(plan.scheme_config, num_params)
    plan = plan._replace(origin=built.origin, num_params=num_params, normals=normals)
    _check_origin(config, plan)
    _check_network(config, scheme, plan, built)
    inputs = {} if scheme.inputs is None else scheme.inputs(plan.scheme_config, built)
    make = functools.partial(_algorithms, config, scheme, plan, built, inputs)
    performance = Performance(groups=config.run.groups, microbatch_size=config.run.microbatch_size)
    job = Job(config, seed, observed, plan, built, make(performance), inputs, {})
    if built.canaries is not None and job.has_own_models():
        raise ValueError(
            f"Expected canaries=0 with scheme={config.scheme!r}, whose clients keep a part of the "
            f"model, got canaries={config.run.canaries}."
        )
    _check_sampling(plan.event, job.algorithms[0])
    outside = not models.classifiers.is_own(config.model.model)
    programs = own.programs(brought, built.model, built.dataset, outside=outside)
    if config.data.vocabulary is not None:
        programs["vocabulary"] = text.digest(config.data.vocabulary)
    if built.base is not None:
        programs["frozen weights"] = own.digest_of(built.base)
    elif config.model.init is not None or base_model.is_published(config.model):
        programs["initial model"] = own.digest_of(built.model.params)
    if config.scheme_object is not None or config.scheme not in schemes.NAMES:
        lowered = _lowered(job._replace(algorithms=job.algorithms[:1])).as_text()
        begun = own.program(job.algorithms[0].init, built.model.params)
        programs["scheme"] = hashlib.sha256(f"{begun} {lowered}".encode()).hexdigest()
    if job.algorithms[0].client_state is not None and not processes.alone():
        raise ValueError(
            f"Expected one process for scheme={config.scheme!r}, whose clients keep something "
            "between rounds in one file, got several."
        )
    began_with = fingerprint.of(built, extend.identity(config, plan), seed, programs)
    different = fingerprint.changed(processes.words_from_first(began_with), began_with)
    if processes.either(bool(different)):
        what = ", ".join(different) or "data in another process"
        raise ValueError(
            f"Expected the same data in all processes, got another {what} than in the first."
        )
    job = job._replace(began_with=began_with)
    if config.run.memory is None:
        return job
    in_chunks = functools.partial(dataclasses.replace, performance)
    # Asked of one device, whatever the run has: a run that goes on elsewhere takes the same chunks.
    size = memory.chunk_size(
        config.run.memory,
        aggregate.default_chunk_size(job.num_params()),
        lambda size: _lowered(job._replace(algorithms=make(in_chunks(chunk_size=size)))),
    )
    return job._replace(algorithms=make(in_chunks(chunk_size=processes.words_from_first(size))))


def _fitted(config: Config, scheme: Scheme, observed: Facts) -> Any:
    """The scheme's config, with counts of the data; its error says which run it is of."""
    try:
        return scheme.fitted(config.scheme_config, observed)
    except PrivacyPreconditionError as reason:
        where = f"scheme={config.scheme!r}, dataset={config.data.dataset!r}"
        raise PrivacyPreconditionError(f"{str(reason).removesuffix('.')} ({where}).") from reason


def _unit(config: Config, scheme: Scheme, observed: Facts) -> str:
    """The unit of privacy, which no count changes; a config may leave counts to the data."""
    try:
        own = dataclasses.replace(config.scheme_config, noise_multiplier=1.0)
        return scheme.event(own).privacy_unit
    except ValueError:
        own = dataclasses.replace(_fitted(config, scheme, observed), noise_multiplier=1.0)
        return scheme.event(own).privacy_unit


def _sampling_probs(mechanism: events.Mechanism) -> Iterator[float]:
    """Chances with which the mechanism says that a unit joins."""
    if isinstance(mechanism, events.PoissonSampled):
        yield mechanism.sampling_prob
    elif isinstance(mechanism, events.SelfComposed):
        yield from _sampling_probs(mechanism.event)
    elif isinstance(mechanism, events.Composed):
        for part in mechanism.events:
            yield from _sampling_probs(part)


def _check_sampling(event: events.PrivacyEvent, algorithm: FederatedAlgorithm) -> None:
    """Raises PrivacyPreconditionError where clients, if they are what is protected, join more often
    than the event says: the loop draws the cohorts, and knows.
    """
    claimed = min(_sampling_probs(event.mechanism), default=1.0)
    if event.privacy_unit == "client" and algorithm.client_sampling_prob > claimed:
        raise PrivacyPreconditionError(
            f"Expected client_sampling_prob <= {claimed!r}, the chance with which the event says "
            "that a client joins a round, got an algorithm with "
            f"client_sampling_prob={algorithm.client_sampling_prob!r}."
        )


def _check_origin(config: Config, plan: budget.Plan) -> None:
    """Raises PrivacyPreconditionError where the initial model saw the same data unprotected."""
    origin = plan.origin
    if not isinstance(origin, dict) or not math.isfinite(plan.epsilons[-1]):
        return
    if warm_start.saw(origin, config.data.dataset) and not warm_start.is_private(origin):
        raise PrivacyPreconditionError(
            f"Expected init to be a run with a guarantee where both have dataset="
            f"{config.data.dataset!r}, got init={origin['run']!r}, whose model nothing protects, "
            "or one that it goes back to: an epsilon of further rounds would say nothing."
        )


def _check_network(config: Config, scheme: Scheme, plan: budget.Plan, built: task.Task) -> None:
    if scheme.check_network is None:
        return
    if "x" not in built.dataset.train:
        raise ValueError(
            f"Expected data with the field x for {config.scheme}, got "
            f"{sorted(built.dataset.train)}."
        )
    x = built.dataset.train["x"]
    example = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    try:
        scheme.check_network(plan.scheme_config, built.model.apply, built.model.params, example)
    except ValueError as reason:
        name = config.model.model
        raise ValueError(
            f"Expected a model that fits {config.scheme}, got model={name!r}: {reason}"
        ) from reason


def _algorithms(
    config: Config,
    scheme: Scheme,
    plan: budget.Plan,
    built: task.Task,
    inputs: dict[str, Any],
    performance: Performance,
) -> tuple[FederatedAlgorithm, ...]:
    private: FederatedAlgorithm = scheme.make(
        plan.scheme_config, built.loss, num_units=plan.num_units, performance=performance, **inputs
    )
    if not config.run.baseline:
        return (private,)
    assert config.data.num_clients is not None  # `_prepared` has asked the data
    plain = baseline.algorithm(
        config.model,
        built.loss if built.canaries is None else built.canaries.plain_loss,
        num_clients=config.data.num_clients,
        sampling_prob=private.client_sampling_prob,
        performance=performance,
    )
    return private, plain


def _lowered(job: Job) -> jax.stages.Lowered:
    """The program of a round of usual size on one device, data included; nothing is computed."""
    client_data, algorithms = job.task.client_data, job.algorithms
    states, capacity, first = job.state_shapes(), job.usual_capacity(), job.client_start()
    kept = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((capacity, *leaf.shape), leaf.dtype), first or ()
    )
    if not isinstance(client_data, store.Store):
        together = feed.round_fun(algorithms, job.facts.num_clients)
        shapes = jax.eval_shape(lambda tree: tree, client_data)
        if first is not None:
            ids = jax.ShapeDtypeStruct((capacity,), np.int32)
            one_round = functools.partial(feed.kept_round, algorithms)
            return jax.jit(one_round).lower(states, shapes, job.task.round_key, ids, kept)
        return jax.jit(together, static_argnames="capacity").lower(
            states, shapes, job.task.round_key, capacity=capacity
        )
    places = max(1, client_data.most_examples)
    examples = {
        name: jax.ShapeDtypeStruct((capacity * places, *field.shape[1:]), field.dtype)
        for name, field in client_data.fields.items()
    }
    tables: list[Any] = [
        jax.ShapeDtypeStruct(shape, np.int32) for shape in ((capacity, places), (capacity,))
    ]
    on_cohort = functools.partial(feed.rounds, algorithms)
    return jax.jit(on_cohort).lower(
        job.task.round_key, states, data.Cohort(examples, tables[0], tables[1], kept)
    )
