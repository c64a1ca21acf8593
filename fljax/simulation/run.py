"""The host loop: feeds cohorts to one compiled round, writes the run folder, resumes."""

import contextlib
import functools
import pathlib
import signal
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fljax.data import ClientData, store
from fljax.server import recovery
from fljax.simulation import (
    base_model,
    budget,
    description,
    evaluation,
    extend,
    fingerprint,
    own,
    planted,
    seeds,
)
from fljax.simulation import config as config_lib
from fljax.simulation.client_values import ClientValues
from fljax.simulation.config import Config
from fljax.simulation.devices import mesh, processes
from fljax.simulation.feed import FromDisk, KeptStates, host_sampler, kept_round, round_fun
from fljax.simulation.job import Job, prepare
from fljax.simulation.outcome import Outcome
from fljax.simulation.record import client_states, folder, provenance, run_record
from fljax.simulation.secret_file import IN_FOLDER, Kept
from fljax.types import PyTree


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
        previous = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
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
    secret: Kept = IN_FOLDER,
) -> Outcome:
    """Runs `config` in the new folder `run_dir`, clients dealt over `devices`.

    Args:
      config: of the run.
      run_dir: empty, or not there yet.
      observer: told of the start, each round and the end.
      devices: None: see `mesh.side_by_side`.
      model_devices: of these, those that share each model.
      secret: where the run's secret bits are to be kept.

    Raises:
      ValueError: the folder is not empty, there are fewer devices, or the config does not fit the
        data or the budget.
      DiskFullError: no room; checkpoints already written are whole.
      Interrupted: stopped by a signal, after a checkpoint.
      PeerLostError: of several processes another one has gone.
    """
    if processes.first():
        folder.check_free(run_dir)
    return launch(
        prepare(config),
        run_dir,
        lambda _: observer,
        devices=devices,
        model_devices=model_devices,
        secret=secret,
    )


def launch(
    job: Job,
    run_dir: pathlib.Path | None,
    observed: Callable[[pathlib.Path], Observer],
    *,
    devices: int | None = None,
    model_devices: int = 1,
    secret: Kept = IN_FOLDER,
) -> Outcome:
    """The rest of `start`.

    Args:
      job: prepared.
      run_dir: free. None: the next free `runs/DATASET-SCHEME-NNN`.
      observed: who watches a run in the folder that it is given.
      devices, model_devices, secret: as for `start`.

    Raises:
      As `start`.
    """
    if processes.first():
        if run_dir is None:
            run_dir = folder.next_free(
                pathlib.Path("runs"), f"{job.config.data.dataset}-{job.config.scheme}"
            )
        seeds.begin(run_dir, job.config, job.seed, secret)
    run_dir = pathlib.Path(processes.words_from_first(str(run_dir)))
    try:
        observer = observed(run_dir)
    except (ImportError, ValueError):
        if processes.first():
            seeds.discard(run_dir, secret)
        raise
    return continue_new(
        job, run_dir, observer, devices=devices, model_devices=model_devices, secret=secret
    )


def continue_new(
    job: Job,
    run_dir: pathlib.Path,
    observer: Observer,
    *,
    devices: int | None = None,
    model_devices: int = 1,
    secret: Kept = IN_FOLDER,
) -> Outcome:
    """The rest of `start`, for a folder that `seeds.begin` has just made."""
    with _owned(run_dir):
        try:
            device_mesh = _named_mesh(job.config, devices, model_devices) or _usual_mesh(job)
        except Exception as reason:
            lost = not processes.alone() and isinstance(reason, jax.errors.JaxRuntimeError)
            if processes.first() and not lost:
                seeds.discard(run_dir, secret)
            raise
        return _run(job, device_mesh, run_dir, observer)


def resume(
    run_dir: pathlib.Path,
    observer: Observer,
    *,
    devices: int | None = None,
    model_devices: int = 1,
    config: Config | None = None,
    brought: own.Own = own.NOTHING,
    num_rounds: int | None = None,
    more_rounds: int | None = None,
    secret: Kept = IN_FOLDER,
) -> Outcome:
    """Goes on with the run in `run_dir` from its newest checkpoint, or else from its beginning.

    What the run writes is bit for bit what it would have been without the interruption, on as many
    devices as before. A run whose client sums are grouped has these bits on any number of devices
    that leaves each two groups or more, except `gsgd_dp`, whose last bits differ. Without groups,
    another number of devices rounds sums over clients in another order.

    Args:
      run_dir: of the run.
      observer, devices, model_devices: as for `start`.
      config: what the run is taken to be. None: whatever the folder says.
      brought: what its caller has of their own, the same as before.
      num_rounds: rounds in all, if the run is to have more than it was started with: at the noise
        that it has, within the budget that it has. None: as many as before.
      more_rounds: the same, as rounds beyond those that it has.
      secret: where the run's secret bits are.

    Raises:
      ValueError: no run folder, or its config, seed or checkpoint is damaged or foreign, or its
        data, or what was brought, have changed; the message names what.
      DiskFullError, Interrupted, PeerLostError: as for `start`.
    """
    path = run_dir / folder.CONFIG
    text = None
    if processes.first():
        if not path.is_file():
            raise ValueError(
                f"Expected run folder {run_dir} to hold a {folder.CONFIG}, got none: no run to "
                "resume there."
            )
        text = folder.read_text(path)
    with processes.losses_in_one_line():
        text = processes.words_from_first(text)
    with _owned(run_dir):
        sections = config_lib.from_toml(text, source=str(path))
        if folder.of_another_command(sections):
            raise ValueError(
                f"Expected run folder {run_dir} to hold a run of `fljax simulate`, got an attack "
                "or an audit: neither goes on, start it again."
            )
        if "search" in sections:
            raise ValueError(
                f"Expected run folder {run_dir} to hold a run that goes on, got the best try of a "
                "search, which has ended: the seed of its noise is deleted."
            )
        if config is None:
            config = config_lib.from_sections(sections)
        else:
            if more_rounds is not None:
                config = extend.as_it_stands(config, sections)
            _check_same(run_dir, sections, config, found=False)
        device_mesh = _named_mesh(config, devices, model_devices)
        brought = brought._replace(base=base_model.read(run_dir))
        job = prepare(config, seeds.of_run(config, run_dir, secret), brought)
        _check_same(run_dir, sections, job.config, found=True)
        if more_rounds is not None:
            num_rounds = job.plan.num_rounds + more_rounds
        if num_rounds is not None:
            brought = brought._replace(base=job.task.base)
            longer = prepare(extend.to(job.config, job.plan, num_rounds), job.seed, brought)
            extend.check_budget(job.plan, longer.plan, num_rounds)
            job = longer
            if processes.first() and _is_as_it_began(run_dir, job):
                folder.write_atomically(run_dir / folder.CONFIG, config_lib.to_toml(job.config))
        fingerprint.check_bytes(job.task, config)
        return _run(job, device_mesh or _usual_mesh(job), run_dir, observer)


def _check_same(
    run_dir: pathlib.Path, before: dict[str, Any], config: Config, *, found: bool
) -> None:
    """Raises ValueError where the folder's config is another; `found`: counts are filled in."""
    now = config_lib.from_toml(config_lib.to_toml(config))
    for section, values in now.items():
        for key, value in values.items():
            was = before.get(section, {}).get(key, value)
            if was != value and (found or value != config_lib.NONE):
                raise ValueError(
                    f"Expected the run in {run_dir} to go on as it began, with {key}={was!r} in "
                    f"[{section}], got {key}={value!r}: give it back, or another run_dir."
                )


def _is_as_it_began(run_dir: pathlib.Path, job: Job) -> bool:
    """Whether the run may go on: of one that its record refuses, the config stays as it is."""
    before = fingerprint.read(run_dir)
    return before is None or not fingerprint.changed(before, job.began_with)


@contextlib.contextmanager
def _owned(run_dir: pathlib.Path) -> Iterator[None]:
    lock = folder.locked(run_dir) if processes.first() else contextlib.nullcontext()
    with lock, processes.losses_in_one_line():
        yield


def _named_mesh(
    config: Config, devices: int | None, model_devices: int
) -> jax.sharding.Mesh | None:
    """The devices that the run was told to take, if it was."""
    if devices is None and model_devices == 1 and config.run.memory is None:
        return None
    return mesh.client_mesh(devices, groups=config.run.groups, model_devices=model_devices)


def _usual_mesh(job: Job) -> jax.sharding.Mesh:
    groups = job.config.run.groups
    return mesh.client_mesh(mesh.side_by_side(job.num_params(), groups), groups=groups)


def _run(
    job: Job, device_mesh: jax.sharding.Mesh, run_dir: pathlib.Path, observer: Observer
) -> Outcome:
    config, plan = job.config, job.plan
    initial = tuple(algorithm.init(job.task.model.params) for algorithm in job.algorithms)
    initial = jax.tree.map(jnp.copy, initial)  # rounds write over them, and the task keeps its own
    if processes.first():  # before the fingerprint, which a run is not to have without them
        base_model.write(run_dir, config.model, job.task.base)
    with _stop_on_signal() as stop, contextlib.ExitStack() as stack:
        run_round = stack.enter_context(round_runner(job, device_mesh))
        record = stack.enter_context(
            run_record.opened(run_dir, config, plan, job.task, job.inputs, job.began_with)
        )
        states = mesh.spread(device_mesh, processes.from_first(record.states(initial)))
        if processes.first():
            description.write(run_dir, description.of(config, job.task, job.has_own_models()))
        clients = record.clients(job.client_start(), int(states[0].round))
        session = provenance.Session(int(states[0].round))
        observer.start(plan, int(states[0].round))
        stack.callback(observer.stop)
        states = _rounds(job, run_round, device_mesh, states, record, clients, observer, stop)
        rounds = int(states[0].round)
        if processes.first():
            session.write(run_dir, rounds)
    processes.wait_for_all()  # until the first one's last checkpoint is on the disk
    if rounds < plan.num_rounds:
        raise Interrupted(f"stopped after {rounds} of {plan.num_rounds} rounds")
    states = mesh.here(device_mesh, states)
    plain = states[1].params if config.run.baseline else None
    records = folder.read_metrics(run_dir) if processes.first() else []
    params = states[0].params
    own = job.own_models(
        params, functools.partial(client_states.of_client, run_dir, job.client_start())
    )
    found = None
    if job.task.canaries is not None:
        found = planted.scores(job.task.canaries, job.task.model.params, params)
        if processes.first():
            planted.write(run_dir, found, plan.event.privacy_unit)
    return Outcome(
        run_dir, config, plan, job.task, rounds, records, params, plain, job.inputs, own, found
    )


class RoundRunner(Protocol):
    """A round of all algorithms."""

    def __call__(
        self, states: tuple[PyTree, ...], done: int, clients: KeptStates | None = None
    ) -> tuple[tuple[PyTree, ...], tuple[Any, ...], list[int]]:
        """`(states, rounds done, what clients keep) -> (states, infos, clients left out)`."""


@contextlib.contextmanager
def round_runner(job: Job, device_mesh: jax.sharding.Mesh) -> Iterator[RoundRunner]:
    """The rounds of the run's algorithms on its clients.

    They may write new states over those that they are given: of noise that is correlated over
    rounds these can be many times the model.
    """
    num_clients, usual_capacity = job.facts.num_clients, job.usual_capacity()
    client_data, key = job.task.client_data, job.task.round_key
    if isinstance(client_data, store.Store):
        with FromDisk(
            job.algorithms,
            client_data,
            job.state_shapes(),
            key,
            usual_capacity,
            num_rounds=job.plan.num_rounds,
            skip_corrupt=job.config.data.corrupt_clients == "skip",
            device_mesh=device_mesh,
            groups=job.config.run.groups,
        ) as from_disk:
            yield from_disk
        return
    client_data = mesh.everywhere(device_mesh, client_data)
    if job.algorithms[0].client_state is not None:
        yield _with_kept_states(job, device_mesh, client_data)
        return
    fun = round_fun(job.algorithms, num_clients)
    # A sample that may be drawn again, for want of room, needs the states that it began with.
    overwritten = (0,) if usual_capacity == num_clients else ()
    one_round = mesh.jit(
        device_mesh,
        fun,
        job.state_shapes(),
        others=2,
        static_argnames="capacity",
        donate_argnums=overwritten,
    )

    def run_round(
        states: tuple[PyTree, ...], done: int, clients: KeptStates | None = None
    ) -> tuple[tuple[PyTree, ...], tuple[Any, ...], list[int]]:
        # From the usual capacity in every round, so that a resumed run gives each round the same.
        capacity = usual_capacity
        while True:
            with mesh.over(device_mesh):
                new_states, infos, overflow = one_round(states, client_data, key, capacity=capacity)
            if not overflow:
                return new_states, infos, []
            # The same key draws as many clients again, now with room for all: a Poisson sample.
            capacity = min(2 * capacity, num_clients)

    yield run_round


def _with_kept_states(
    job: Job, device_mesh: jax.sharding.Mesh, client_data: ClientData
) -> RoundRunner:
    """Rounds of clients in memory that keep something: who is sampled is known to the host
    first.
    """
    key, prob = job.task.round_key, job.algorithms[0].client_sampling_prob
    sample = host_sampler(prob, job.facts.num_clients, key, job.usual_capacity())
    fun = functools.partial(kept_round, job.algorithms)
    one_round = mesh.jit(device_mesh, fun, job.state_shapes(), others=1, donate_argnums=0)

    def run_round(
        states: tuple[PyTree, ...], done: int, clients: KeptStates | None = None
    ) -> tuple[tuple[PyTree, ...], tuple[Any, ...], list[int]]:
        assert clients is not None
        ids = sample(done)
        given = mesh.everywhere(device_mesh, (ids, clients.read(ids)))
        with mesh.over(device_mesh):
            states, infos = one_round(states, client_data, key, *given)
        clients.write(done + 1, ids, jax.device_get(infos[0].kept))
        return states, infos, []

    return run_round


def _named(job: Job, found: ClientValues) -> dict[str, float | str]:
    """A number of each client, by the client's name, for JSON."""
    names = (
        found.client_ids
        if job.task.client_names is None
        else job.task.client_names[found.client_ids]
    )
    return {
        str(name): budget.number(value) for name, value in zip(names, found.values, strict=True)
    }


def _rounds(
    job: Job,
    run_round: RoundRunner,
    device_mesh: jax.sharding.Mesh,
    states: tuple[PyTree, ...],
    record: run_record.RunRecord,
    clients: client_states.ClientStates | None,
    observer: Observer,
    stop: _Stop,
) -> tuple[PyTree, ...]:
    """Rounds until the plan is done or a stop is requested; the newest checkpoint holds the
    result.
    """
    settings = job.config.run
    test = jax.tree.map(jnp.asarray, job.task.dataset.test)
    done = int(states[0].round)
    while done < job.plan.num_rounds and not processes.either(stop.requested):
        states, infos, skipped = run_round(states, done, clients)
        done += 1
        line: dict[str, Any] = {"round": done, "epsilon": budget.number(job.plan.epsilons[done])}
        line |= {"skipped_clients": skipped} if skipped else {}
        line |= {"lost": True} if infos[0].lost else {}
        line["cohort_size"] = int(infos[0].cohort_size)
        line["clipped_fraction"] = float(infos[0].clipped_fraction)
        recovery.warn_of_lost_digits(infos[0].lost_digits)
        for prefix, state, info in zip(("", "baseline_"), states, infos, strict=False):
            line[prefix + "train_loss"] = budget.number(info.loss)
            if done == 1 or done % settings.eval_every == 0 or done == job.plan.num_rounds:
                params = mesh.here(device_mesh, state.params)
                own = None if prefix or clients is None else job.own_models(params, clients.one)
                measured = evaluation.held_out(
                    job.task.measures, params, test, own, job.facts.num_clients
                )
                line |= {
                    f"{prefix}test_{name}": budget.number(value) for name, value in measured.items()
                }
            if done == job.plan.num_rounds and job.task.measures.metrics:
                by_client = evaluation.of_clients(job.task.measures, params, job.task.ordinary, own)
                line |= {
                    f"{prefix}clients_{name}": _named(job, found)
                    for name, found in by_client.items()
                }
        record.append(line)
        observer.round(line)
        if done % settings.checkpoint_every == 0:
            record.save(mesh.here(device_mesh, states), done)
    record.save(mesh.here(device_mesh, states), done)
    return states
