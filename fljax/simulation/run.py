"""The host loop: feeds cohorts to one compiled round, keeps the books, writes the run folder, resumes."""

import contextlib
import dataclasses
import functools
import pathlib
import signal
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys, data, models, schemes
from fljax.data import ClientData, facts, store
from fljax.data.facts import Facts
from fljax.errors import PrivacyPreconditionError
from fljax.schemes.base import FederatedAlgorithm
from fljax.server import aggregate, recovery
from fljax.simulation import as_printed, baseline, budget, feed, fingerprint, seeds, task
from fljax.simulation import config as config_lib
from fljax.simulation.config import Config
from fljax.simulation.devices import memory, mesh, processes
from fljax.simulation.record import folder, run_record
from fljax.types import PyTree

_OVERFLOW_CHANCE = 1e-9  # per round, of a second compilation for a bigger cohort; nothing else depends on it


class Observer(Protocol):
    """Who watches a run."""

    def start(self, plan: budget.Plan, rounds_done: int) -> None:
        """Called before the first round of this process."""

    def round(self, record: dict[str, Any]) -> None:
        """Called with each line of metrics.jsonl."""

    def stop(self) -> None:
        """Called after the last round of this process, also when the run fails."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; it stopped after a checkpoint."""


class Outcome(NamedTuple):
    """How a run ended. `records`: all of metrics.jsonl. `params`: final private model; `baseline_params` or None.
    `inputs`: what the scheme's `make` was given beside the loss.
    """

    run_dir: pathlib.Path
    config: Config
    plan: budget.Plan
    task: task.Task
    rounds: int
    records: list[dict[str, Any]]
    params: PyTree
    baseline_params: PyTree | None
    inputs: dict[str, Any]


class Job(NamedTuple):
    """A run before its first round. The private algorithm comes first, the non-private one, if any, second. `inputs`:
    what the scheme's `make` was given beside the loss. `config`: with every count that the data decide. `began_with`:
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


def round_fun(
    algorithms: tuple[FederatedAlgorithm, ...], num_clients: int
) -> Callable[[tuple[PyTree, ...], ClientData, jax.Array, int], tuple[tuple[PyTree, ...], tuple[Any, ...], jax.Array]]:
    """One round of all `algorithms` on the same cohort, sampled on the device; to be jitted with `capacity` static.

    Returns:
      `(states, client_data, key, capacity) -> (states, infos, overflow)`. Where `overflow` is True the sample had
      more than `capacity` clients: the states are of a truncated cohort and must be thrown away.
    """
    sampling_prob = algorithms[0].client_sampling_prob

    def fun(
        states: tuple[PyTree, ...], client_data: ClientData, key: jax.Array, capacity: int
    ) -> tuple[tuple[PyTree, ...], tuple[Any, ...], jax.Array]:
        sample_key = _keys.server_key(key, states[0].round, _keys.Purpose.SAMPLE_CLIENTS)
        sample = fljax_kernels.poisson_sample(sample_key, num_clients, sampling_prob, capacity)
        cohort = data.cohort(client_data, sample.indices)
        return *feed.rounds(algorithms, key, states, cohort), sample.overflow

    return fun


class _Stop:
    """Whether Ctrl-C (or SIGTERM) has been received; a second Ctrl-C interrupts at once."""

    requested = False

    def __call__(self, signum: int, frame: Any) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[_Stop]:
    stop = _Stop()
    try:
        previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever owns that handles signals
        previous = {}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def start(
    config: Config,
    run_dir: pathlib.Path,
    observer: Observer,
    *,
    devices: int | None = None,
    model_devices: int = 1,
) -> Outcome:
    """Runs `config` in the new folder `run_dir`, clients dealt over `devices` (None: see `mesh.side_by_side`).

    Raises:
      ValueError: the folder is not empty, there are fewer devices, or the config does not fit the data or the budget.
      DiskFullError: no room; checkpoints already written are whole.
      Interrupted: stopped by a signal, after a checkpoint.
      PeerLostError: of several processes another one has gone.
    """
    if processes.first():
        folder.check_free(run_dir)
    job = prepare(config)
    if processes.first():
        seeds.begin(run_dir, job.config, job.seed)
    return begun(job, run_dir, observer, devices=devices, model_devices=model_devices)


def begun(
    job: Job,
    run_dir: pathlib.Path,
    observer: Observer,
    *,
    devices: int | None = None,
    model_devices: int = 1,
) -> Outcome:
    """The rest of `start`, for a folder that `seeds.begin` has just made."""
    with _owned(run_dir):
        try:
            over = _named(job.config, devices, model_devices) or _unasked(job)
        except Exception as reason:
            lost = not processes.alone() and isinstance(reason, jax.errors.JaxRuntimeError)
            if processes.first() and not lost:
                folder.discard(run_dir)
            raise
        return _run(job, over, run_dir, observer)


def resume(run_dir: pathlib.Path, observer: Observer, *, devices: int | None = None, model_devices: int = 1) -> Outcome:
    """Goes on with the run in `run_dir` from its newest checkpoint, or from its beginning if there is none.

    What the run writes is bit for bit what it would have been without the interruption, on as many devices as before.
    If the run adds up in groups, so it is on any number of which each has two groups or more; but `gsgd_dp` differs in
    last bits. Else sums over clients are rounded in another order.

    Raises:
      ValueError: no run folder, or its config, seed or checkpoint is damaged or foreign, or its data have changed.
      DiskFullError, Interrupted, PeerLostError: as for `start`.
    """
    path = run_dir / folder.CONFIG
    text = None
    if processes.first():
        if not path.is_file():
            raise ValueError(
                f"Expected run folder {run_dir} to hold a {folder.CONFIG}, got none: no run to resume there."
            )
        text = folder.read_text(path)
    with processes.losses_in_one_line():
        text = processes.words_from_first(text)
    with _owned(run_dir):
        sections = config_lib.from_toml(text, source=str(path))
        if folder.of_another_command(sections):
            raise ValueError(
                f"Expected run folder {run_dir} to hold a run of `fljax simulate`, got an attack or an audit: neither "
                "goes on, start it again."
            )
        config = config_lib.from_sections(sections)
        over = _named(config, devices, model_devices)
        job = prepare(config, seeds.of_run(config, run_dir))
        fingerprint.check_bytes(job.task, config)
        return _run(job, over or _unasked(job), run_dir, observer)


@contextlib.contextmanager
def _owned(run_dir: pathlib.Path) -> Iterator[None]:
    with folder.locked(run_dir) if processes.first() else contextlib.nullcontext(), processes.losses_in_one_line():
        yield


def prepare(config: Config, seed: seeds.Seed | None = None) -> Job:
    """Everything before the first round that writes and compiles no round: data, noise, algorithms.

    What the scheme's claim assumes of the data is held against them here.

    Args:
      config: counts that the data decide may be None.
      seed: of a run that goes on. None: of a new one, from the operating system unless the config fixes it.

    Raises:
      ValueError: the config does not fit the data, the network or the budget; or other processes have another one.
      PrivacyPreconditionError: the data are not what the scheme's claim assumes.
    """
    with processes.losses_in_one_line():
        digest = config_lib.digest(config)
        if processes.words_from_first(digest) != digest:
            raise ValueError("Expected the same config in all processes, got another one than in the first.")
        return _prepared(config, seeds.new(config) if seed is None else seed)


def _prepared(config: Config, seed: seeds.Seed) -> Job:
    scheme = schemes.get(config.scheme)
    the_task = task.build(config, seed)
    found = facts.of(the_task.client_data)
    try:
        scheme_config = scheme.fitted(config.scheme_config, found)
    except PrivacyPreconditionError as reason:
        where = f"scheme={config.scheme!r}, dataset={config.data.dataset!r}"
        raise PrivacyPreconditionError(f"{str(reason).removesuffix('.')} ({where}).") from reason
    dealt = dataclasses.replace(config.data, num_clients=found.num_clients)
    config = dataclasses.replace(config, data=dealt, scheme_config=scheme_config)
    plan = budget.plan(as_printed.prepared(config, scheme, found), scheme, found)
    if hasattr(scheme, "check_network"):
        x = the_task.dataset.train["x"]
        example = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
        try:
            scheme.check_network(plan.scheme_config, the_task.model.apply, the_task.model.params, example)
        except ValueError as reason:
            name = config.model.model
            raise ValueError(f"Expected a model that fits {config.scheme}, got model={name!r}: {reason}") from reason
    inputs = scheme.inputs(plan.scheme_config, the_task) if hasattr(scheme, "inputs") else {}
    make = functools.partial(_algorithms, config, scheme, plan, the_task, inputs)
    began_with = fingerprint.of(the_task, config, seed)
    elsewhere = fingerprint.changed(processes.words_from_first(began_with), began_with)
    if processes.either(bool(elsewhere)):
        what = ", ".join(elsewhere) or "data in another process"
        raise ValueError(f"Expected the same data in all processes, got another {what} than in the first.")
    groups = {"groups": config.run.groups}
    job = Job(config, seed, found, plan, the_task, make(groups), inputs, began_with)
    if config.run.memory is None:
        return job
    if not memory.takes_chunks(scheme):
        raise ValueError(f"Expected memory=none for {config.scheme}, whose clients are not trained in chunks.")
    num_params = sum(leaf.size for leaf in jax.tree.leaves(the_task.model.params))
    # Asked of one device, whatever the run has: a run that goes on elsewhere takes the same chunks.
    size = memory.chunk_size(
        config.run.memory,
        aggregate.default_chunk_size(num_params),
        lambda size: _lowered(job._replace(algorithms=make({**groups, "chunk_size": size}))),
    )
    return job._replace(algorithms=make({**groups, "chunk_size": processes.words_from_first(size)}))


def _named(config: Config, devices: int | None, model_devices: int) -> jax.sharding.Mesh | None:
    """The devices that the run was told to take, if it was."""
    if devices is None and model_devices == 1 and config.run.memory is None:
        return None
    return mesh.client_mesh(devices, groups=config.run.groups, model_devices=model_devices)


def _unasked(job: Job) -> jax.sharding.Mesh:
    groups, num_params = job.config.run.groups, sum(leaf.size for leaf in jax.tree.leaves(job.task.model.params))
    return mesh.client_mesh(mesh.side_by_side(num_params, groups), groups=groups)


def _algorithms(
    config: Config,
    scheme: ModuleType,
    plan: budget.Plan,
    the_task: task.Task,
    inputs: dict[str, Any],
    options: dict[str, Any],
) -> tuple[FederatedAlgorithm, ...]:
    private: FederatedAlgorithm = scheme.make(
        plan.scheme_config, the_task.loss, num_units=plan.num_units, **inputs, **options
    )
    if not config.run.baseline:
        return (private,)
    assert config.data.num_clients is not None  # `_prepared` has asked the data
    plain = baseline.algorithm(
        config.model,
        the_task.loss,
        num_clients=config.data.num_clients,
        sampling_prob=private.client_sampling_prob,
        **options,
    )
    return private, plain


def _lowered(job: Job) -> jax.stages.Lowered:
    """The program of a round of usual size on one device, data included; nothing is computed."""
    client_data, algorithms = job.task.client_data, job.algorithms
    states, capacity = _shapes(job), _usual_capacity(job)
    if not isinstance(client_data, store.Store):
        fun = jax.jit(round_fun(algorithms, job.facts.num_clients), static_argnames="capacity")
        shapes = jax.eval_shape(lambda tree: tree, client_data)
        return fun.lower(states, shapes, job.task.round_key, capacity=capacity)
    places = max(1, client_data.most_examples)
    examples = {
        name: jax.ShapeDtypeStruct((capacity * places, *field.shape[1:]), field.dtype)
        for name, field in client_data.fields.items()
    }
    tables: list[Any] = [jax.ShapeDtypeStruct(shape, np.int32) for shape in ((capacity, places), (capacity,))]
    together = functools.partial(feed.rounds, algorithms)
    return jax.jit(together).lower(job.task.round_key, states, data.Cohort(examples, *tables))


def _shapes(job: Job) -> tuple[PyTree, ...]:
    return tuple(jax.eval_shape(algorithm.init, job.task.model.params) for algorithm in job.algorithms)


def _usual_capacity(job: Job) -> int:
    num_clients, prob = job.facts.num_clients, job.algorithms[0].client_sampling_prob
    return max(1, fljax_kernels.poisson_capacity(num_clients, prob, _OVERFLOW_CHANCE))


def _run(job: Job, over: jax.sharding.Mesh, run_dir: pathlib.Path, observer: Observer) -> Outcome:
    config, plan = job.config, job.plan
    initial = tuple(algorithm.init(job.task.model.params) for algorithm in job.algorithms)
    with _stop_on_signal() as stop, contextlib.ExitStack() as stack:
        take = stack.enter_context(_taker(job, over))
        ours = stack.enter_context(run_record.opened(run_dir, config, plan, job.task, job.inputs, job.began_with))
        states = mesh.spread(over, processes.from_first(ours.states(initial)))
        observer.start(plan, int(states[0].round))
        stack.callback(observer.stop)
        states = _rounds(job, take, over, states, ours, observer, stop)
        rounds = int(states[0].round)
    processes.wait_for_all()  # until the first one's last checkpoint is on the disk
    if rounds < plan.num_rounds:
        raise Interrupted(f"stopped after {rounds} of {plan.num_rounds} rounds")
    states = mesh.here(over, states)
    baseline_params = states[1].params if config.run.baseline else None
    records = folder.read_metrics(run_dir) if processes.first() else []
    return Outcome(run_dir, config, plan, job.task, rounds, records, states[0].params, baseline_params, job.inputs)


Take = Callable[[tuple[PyTree, ...], int], tuple[tuple[PyTree, ...], tuple[Any, ...], list[int]]]


@contextlib.contextmanager
def _taker(job: Job, over: jax.sharding.Mesh) -> Iterator[Take]:
    """`(states, rounds done) -> (states, infos, clients left out)`: one round of all algorithms, over the devices."""
    num_clients, usual_capacity = job.facts.num_clients, _usual_capacity(job)
    client_data, key = job.task.client_data, job.task.round_key
    if isinstance(client_data, store.Store):
        skip = job.config.data.corrupt_clients == "skip"
        with feed.FromDisk(
            job.algorithms,
            client_data,
            _shapes(job),
            key,
            usual_capacity,
            num_rounds=job.plan.num_rounds,
            skip_corrupt=skip,
            over=over,
        ) as from_disk:
            yield from_disk
        return
    client_data = mesh.everywhere(over, client_data)
    fun = round_fun(job.algorithms, num_clients)
    one_round = mesh.jit(over, fun, _shapes(job), others=2, static_argnames="capacity")

    def take(states: tuple[PyTree, ...], done: int) -> tuple[tuple[PyTree, ...], tuple[Any, ...], list[int]]:
        # From the usual capacity in every round, so that a resumed run, too, gives each round the capacity it had.
        capacity = usual_capacity
        while True:
            with mesh.over(over):
                new_states, infos, overflow = one_round(states, client_data, key, capacity=capacity)
            if not overflow:
                return new_states, infos, []
            # The same key draws the same number of clients again, now with room for all: still a Poisson sample.
            capacity = min(2 * capacity, num_clients)

    yield take


def _rounds(
    job: Job,
    take: Take,
    over: jax.sharding.Mesh,
    states: tuple[PyTree, ...],
    ours: run_record.Books,
    observer: Observer,
    stop: _Stop,
) -> tuple[PyTree, ...]:
    """Rounds until the plan is done or a stop is requested; returns the states, which the newest checkpoint holds."""
    settings = job.config.run
    test = jax.tree.map(jnp.asarray, job.task.dataset.test)
    done = int(states[0].round)
    while done < job.plan.num_rounds and not processes.either(stop.requested):
        states, infos, skipped = take(states, done)
        done += 1
        record: dict[str, Any] = {"round": done, "epsilon": budget.number(job.plan.epsilons[done])}
        record |= {"skipped_clients": skipped} if skipped else {}
        record |= {"lost": True} if infos[0].lost else {}
        record |= {"cohort_size": int(infos[0].cohort_size), "clipped_fraction": float(infos[0].clipped_fraction)}
        recovery.warn_of_lost_digits(infos[0].lost_digits)
        for prefix, state, info in zip(("", "baseline_"), states, infos, strict=False):
            record[prefix + "train_loss"] = budget.number(info.loss)
            if done == 1 or done % settings.eval_every == 0 or done == job.plan.num_rounds:
                loss, accuracy = models.evaluate(
                    job.task.model.apply, mesh.here(over, state.params), test, kind=job.config.model.loss
                )
                record |= {prefix + "test_loss": budget.number(loss), prefix + "test_accuracy": float(accuracy)}
        ours.append(record)
        observer.round(record)
        if done % settings.checkpoint_every == 0:
            ours.save(mesh.here(over, states), done)
    ours.save(mesh.here(over, states), done)
    return states
