"""`fljax simulate`."""

import dataclasses
import logging
import math
import pathlib
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import tyro
from rich.console import Console

from fljax import _deprecation, schemes
from fljax.accounting.words import rounded_up
from fljax.cli import _args, _output, _run_files
from fljax.schemes import exact
from fljax.simulation import config as config_lib
from fljax.simulation.config import Config
from fljax.simulation.observers import progress
from fljax.simulation.record import folder

_DESCRIPTION = """Trains a federated model under differential privacy and a non-private one beside
it.

fljax simulate [CONFIG.toml] [flags]: a new run; flags override the file, the file overrides the
defaults. fljax simulate --resume RUN: goes on with an interrupted run, bit for bit. fljax simulate
--resume RUN --num-rounds N: more rounds, N in all, as far as the run's budget goes.

Everything is written into one folder: config.toml, metrics.jsonl, privacy.json, report.html,
checkpoints/, and two files for your eyes alone: seed.secret, whose owner can remove the noise, and
fingerprint.json.
"""
_PROG = "fljax simulate"
_RUN_DIR = (
    "Folder of the new run, empty or not there yet. None: the next free runs/DATASET-SCHEME-NNN."
)
_RESUME = (
    "Folder of the run to go on with; only flags about this machine go with it (devices, "
    "processes, --profile, trackers), and --num-rounds for more rounds."
)
_TUNE = (
    "Grid of hyper-parameters to search, a TOML file: the run is the best of a random number of "
    "tries, and the budget pays for the whole search. None: no search."
)
_DEVICES = (
    "Devices that share a round's clients. None: all accelerators or, of several processes, all "
    "devices; a CPU becomes a device a core, up to 16, with --groups twice as many, unless "
    "--memory is given. It changes speed and, without --groups, sums' rounding."
)
_MODEL_DEVICES = (
    "Of --devices, those that share each model and its state, for models that one device "
    "cannot hold."
)
_DISTRIBUTED = (
    "Several processes compute this run together, each started with the same command. Who they are "
    "is read from SLURM, "
    "Open MPI or Kubernetes, or from --coordinator, --num-processes and --process-id."
)
# of a run that starts on several processes: it goes on with the same bits on any divisor of devices
_GROUPS = 16


_SECRET = (
    "File for the run's 256 secret bits, outside of its folder; --resume needs it again. None: "
    "seed.secret in the folder."
)
_PASSPHRASE = (
    "Encrypt these bits (extra `crypto`) under the passphrase in the variable FLJAX_PASSPHRASE, "
    "or else one that is asked for."
)


@dataclasses.dataclass(frozen=True)
class Machine:
    """What may differ between two runs of one config: where they run, who watches, and where their
    secret is.
    """

    devices: Annotated[int | None, tyro.conf.arg(help=_DEVICES)] = None
    model_devices: Annotated[int, tyro.conf.arg(help=_MODEL_DEVICES)] = 1
    distributed: Annotated[bool, tyro.conf.arg(help=_DISTRIBUTED)] = False
    coordinator: Annotated[
        str | None, tyro.conf.arg(help="HOST:PORT where the first process listens.")
    ] = None
    num_processes: Annotated[int | None, tyro.conf.arg(help="Processes of the run.")] = None
    process_id: Annotated[
        int | None, tyro.conf.arg(help="Which of them this is; 0 writes the run folder.")
    ] = None
    secret: Annotated[pathlib.Path | None, tyro.conf.arg(help=_SECRET)] = None
    passphrase: Annotated[bool, tyro.conf.arg(help=_PASSPHRASE)] = False
    profile: Annotated[
        bool, tyro.conf.arg(help="Take a trace of three rounds, into the folder `trace`.")
    ] = False
    tensorboard: Annotated[
        bool, tyro.conf.arg(help="Log for TensorBoard, into the folder `tensorboard`.")
    ] = False
    wandb: Annotated[str | None, tyro.conf.arg(help="Log to this project at Weights & Biases.")] = (
        None
    )


def _watchers(machine: Machine, run_dir: pathlib.Path, first: Any) -> Any:
    """All who watch: `first`, who shows progress, and those that were asked for."""
    from fljax.simulation.observers import trackers

    chosen = [first]
    chosen += [trackers.Profiler(run_dir)] if machine.profile else []
    chosen += [trackers.TensorBoard(run_dir)] if machine.tensorboard else []
    chosen += [trackers.WandB(run_dir, machine.wandb)] if machine.wandb is not None else []
    return trackers.Several(chosen)


def _renamed(args: list[str], scheme_config: Any) -> list[str]:
    """The arguments with the present names of fields of a scheme's config, in place of old ones."""
    known = [field.name for field in dataclasses.fields(scheme_config)]

    def one(arg: str) -> str:
        name, equals, value = arg.removeprefix("--").partition("=")
        given = {name.replace("-", "_"): value} if arg.startswith("--") else {}
        found = _deprecation.renamed(given, known)
        if found == given:
            return arg
        return "--" + next(iter(found)).replace("_", "-") + equals + value

    return [one(arg) for arg in args]


def parse(args: Sequence[str]) -> tuple[Config, pathlib.Path | None, Machine]:
    """The config; the run folder if one was named; what concerns this machine alone.

    Raises:
      ValueError: bad file, flag or value.
      _args.Done: help was printed.
    """
    args, sections = list(args), {}
    if args and not args[0].startswith("-"):
        path = pathlib.Path(args.pop(0))
        if not path.is_file():
            raise ValueError(f"Expected CONFIG.toml to be a file, got {str(path)!r}.")
        sections = config_lib.from_toml(folder.read_text(path), source=str(path))
        if "search" in sections:
            raise ValueError(
                f"Expected no [search] in {path}, got one: name the grid by --tune GRID.toml."
            )
    name = _args.value(args, "--scheme")
    if name is not None:
        before = sections.get("scheme", {})
        if not isinstance(before, dict):
            config_lib.from_sections(sections)  # says what is wrong
        if name != before.get("scheme", config_lib.DEFAULT_SCHEME):
            before = {}  # settings of another scheme do not carry over
        sections = {**sections, "scheme": {**before, "scheme": name}}
    # Of these depends what a run starts from.
    told = {key: _args.value(args, f"--{key}") for key in ("task", "dataset")}
    told = {key: value for key, value in told.items() if value is not None}
    if told and isinstance(sections.get("data", {}), dict):
        sections = {**sections, "data": {**sections.get("data", {}), **told}}
    model, lora = _args.value(args, "--model"), _args.value(args, "--lora")
    named: dict[str, Any] = {} if model is None else {"model": model}
    if lora is not None and lora.isdecimal():
        named["lora"] = int(lora)
    if named and isinstance(sections.get("model", {}), dict):
        sections = {**sections, "model": {**sections.get("model", {}), **named}}
    start = config_lib.parts(sections)
    told_noise = _args.value(args, "--noise")
    if told_noise is not None:
        exact.check_known(schemes.get(start["scheme"]), {"noise": told_noise})
    args = _renamed(args, start["scheme_config"])
    fields_of_machine = dataclasses.fields(Machine)
    fields: list[tuple[str, Any, Any]] = [
        ("run_dir", Annotated[pathlib.Path | None, tyro.conf.arg(help=_RUN_DIR)], None),
        ("resume", Annotated[pathlib.Path | None, tyro.conf.arg(help=_RESUME)], None),
        ("tune", Annotated[pathlib.Path | None, tyro.conf.arg(help=_TUNE)], None),
        *(
            (f.name, typing.get_type_hints(Machine, include_extras=True)[f.name], f.default)
            for f in fields_of_machine
        ),
        (
            "scheme",
            Annotated[
                str, tyro.conf.arg(help=f"One of {', '.join(schemes.names())}, or PACKAGE.SCHEME.")
            ],
            start["scheme"],
        ),
    ]
    parts = {name: start[name] for name in ("scheme_config", *config_lib.SECTIONS)}
    fields += [(name, type(part), part) for name, part in parts.items()]
    options_type = dataclasses.make_dataclass("Options", fields, frozen=True)
    options: Any = _args.parse(
        options_type, args, prog=_PROG, description=_DESCRIPTION, default=options_type()
    )
    found = Config(
        scheme=start["scheme"],
        search=None if options.tune is None else _grid(options.tune),
        **{name: getattr(options, name) for name in parts},
    )
    return (
        found,
        options.run_dir,
        Machine(**{f.name: getattr(options, f.name) for f in fields_of_machine}),
    )


def _grid(path: pathlib.Path) -> config_lib.SearchConfig:
    """The search of a file: [search] with mean, and perhaps shape and score, and lists of values by
    key in [scheme] and [model].

    Raises:
      ValueError: no such file, no TOML, or as `SearchConfig`; one line that names the file.
    """
    if not path.is_file():
        raise ValueError(f"Expected --tune to name a file, got {str(path)!r}.")
    found = config_lib.from_toml(folder.read_text(path), source=str(path))
    law = found.pop("search", {})
    try:
        if not isinstance(law, dict) or "grid" in law:
            raise ValueError(f"Expected [search] with mean, shape and score, got {law!r}.")
        return config_lib.of_search({**law, "grid": found})
    except ValueError as reason:
        raise ValueError(f"{path}: {reason}") from reason


@dataclasses.dataclass(frozen=True)
class Resumed(Machine):
    """What may be said of a run that goes on."""

    num_rounds: Annotated[
        int | None, tyro.conf.arg(help="Rounds in all, more than the run has. None: as many.")
    ] = None


def _resumed_on(args: Sequence[str], resume: str) -> Resumed:
    """The flags beside `--resume`.

    Raises:
      ValueError: one of them would change what the run computes.
      _args.Done: help was printed.
    """
    rest = [arg for arg in args if arg != f"--resume={resume}"]
    if "--resume" in rest:
        at = rest.index("--resume")
        del rest[at : at + 2]
    try:
        machine: Resumed = _args.parse(
            Resumed, rest, prog=_PROG, description=_DESCRIPTION, default=Resumed()
        )
    except ValueError as reason:
        flags = ", ".join(
            "--" + field.name.replace("_", "-") for field in dataclasses.fields(Machine)
        )
        raise ValueError(
            "Expected no other flag with --resume than --num-rounds and those about this machine "
            f"({flags}): a run goes on as it was configured. {reason}"
        ) from reason
    return machine


def _found(outcome: Any, report: pathlib.Path, left: int | None) -> dict[str, Any]:
    """How a run ended, for programs."""
    from fljax.simulation import result

    ended = result.of(outcome, report)
    last = outcome.records[-1]
    plain = {f"baseline_{name}": last.get(f"baseline_test_{name}") for name in ("loss", "accuracy")}
    kept = ("rounds", "epsilon", "delta", "privacy_unit", "num_units", "noise_multiplier")
    return {
        "run_dir": outcome.run_dir,
        "report": report,
        **{name: getattr(ended, name) for name in (*kept, "loss", "accuracy", "metrics")},
        **plain,
        "accountant": outcome.plan.accountant,
        "epsilon_of_one_try": outcome.plan.one_run,
        "seed": "fixed" if outcome.plan.fixed_seed else config_lib.RANDOM,
        "statement": ended.statement,
        "not_covered": ended.not_covered,
        "notes": ended.notes,
        "rounds_left": left,
    }


def _of_text(outcome: Any) -> list[str]:
    """Of a model that tells symbols: its perplexity beside that of symbols told by their frequency
    alone and of what it began with, and how much of it was trained.
    """
    import jax
    import numpy as np

    from fljax.data import targets
    from fljax.models import tasks

    last, task = outcome.records[-1], outcome.task
    if task.measures.task != "tokens":
        return []
    y = task.dataset.test["y"]
    shares = np.unique(y[y != targets.PADDING], return_counts=True)[1]
    shares = shares / shares.sum()
    unigram = float(np.exp(-(shares * np.log(shares)).sum()))
    began = tasks.measure(task.model.apply, task.model.params, task.dataset.test, task="tokens")
    lines = [
        f"perplexity         {float(last['test_perplexity']):.2f} held out; "
        f"{began['perplexity']:.2f} before the first round, {unigram:.2f} by frequency alone"
    ]
    rank = outcome.config.model.lora
    if rank is not None:
        trained, frozen = (
            sum(leaf.size for leaf in jax.tree.leaves(part))
            for part in (task.model.params, task.base)
        )
        lines.append(
            f"trained            {trained:,} numbers, LoRA of rank {rank}; {frozen:,} are frozen"
        )
    if isinstance(outcome.plan.origin, str):
        lines.append(f"began with         {outcome.plan.origin}")
    return lines


def _summary(
    outcome: Any, report: pathlib.Path, left: int | None = None, canaries: str = ""
) -> str:
    from fljax.simulation import as_printed, budget, nats_spent, remarks

    last, plan = outcome.records[-1], outcome.plan
    guaranteed = math.isfinite(plan.epsilons[outcome.rounds])
    what, shown = ("accuracy", "{:.1%}") if "test_accuracy" in last else ("loss", "{:.4g}")
    private = shown.format(float(last[f"test_{what}"]))
    lines = [f"{f'held-out {what}':<18} {budget.model_name(plan, outcome.rounds):<12} {private}"]
    if f"baseline_test_{what}" in last:
        lines.append(f"{'':<18} non-private  {shown.format(float(last[f'baseline_test_{what}']))}")
    lines += _of_text(outcome)
    lines += [f"note               {sentence}" for sentence in remarks.remarks(outcome)]
    scheme = outcome.config.implementation
    paper = as_printed.printed_claim(scheme, plan.scheme_config, outcome.rounds, plan.delta)
    if paper:
        claimed, errata = float(paper["claimed_epsilon"]), ", ".join(paper["errata"])
        lines.append(
            f"the paper claims   epsilon {budget.shown_epsilon(claimed)}, NOT certified: {errata}"
        )
    told = nats_spent.spent(
        scheme, plan.scheme_config, outcome.task, outcome.inputs, outcome.rounds
    )
    if told is not None:
        lines.append(nats_spent.summary(told))
    if plan.fixed_seed:
        lines.append(
            "seed               fixed: an experiment. Whoever knows it can remove the noise: "
            "release no model"
        )
    if guaranteed:
        epsilon = budget.shown_epsilon(plan.epsilons[outcome.rounds])
        claim = (
            f"epsilon {epsilon} at delta {rounded_up(plan.delta, 3)}, "
            f"unit {plan.event.privacy_unit}, {plan.num_units} units, {plan.accountant} accountant"
        )
    else:
        claim = "no epsilon is claimed" + (
            ", but the information above" if told is not None else ": no guarantee"
        )
    lines.append(f"privacy            {claim}")
    tail = budget.tail_delta(plan, outcome.rounds)
    if tail is not None:
        lines.append(
            f"float32            noise that ends adds {rounded_up(tail, 3)} to delta, not counted "
            "above"
        )
    lines += [canaries] if canaries else []
    if left:
        total = outcome.rounds + left
        lines.append(
            f"budget             {left} more rounds fit: fljax simulate --resume "
            f"{outcome.run_dir} --num-rounds {total}"
        )
    lines.append(f"report             {report}")
    return "\n".join(lines)


def main(args: Sequence[str]) -> int:
    """Runs or resumes a simulation and prints how it ended."""
    logging.getLogger("absl").setLevel(
        logging.CRITICAL
    )  # orbax reports to it what is raised here as one line anyway
    resume = _args.value(args, "--resume")
    config, named, machine = None, None, Machine()
    try:
        if resume is not None:
            named, machine = pathlib.Path(resume), _resumed_on(args, resume)
        else:
            config, named, machine = parse(args)
    except _args.Done:
        return 0
    who = (machine.coordinator, machine.num_processes, machine.process_id)
    if not machine.distributed:
        if any(value is not None for value in who):
            raise ValueError(
                "Expected --distributed with --coordinator, --num-processes and --process-id, got "
                f"{who} without it."
            )
        return _simulate(config, named, machine)
    from fljax.simulation.devices import processes

    processes.join(*who)
    with processes.leaving_on_failure():
        import jax

        # Of more devices all but so many would compute what others do.
        fits = jax.device_count() <= _GROUPS
        if config is not None and config.run.groups is None and fits:
            config = dataclasses.replace(
                config, run=dataclasses.replace(config.run, groups=_GROUPS)
            )
        return _simulate(config, named, machine)


def _devices(count: int) -> str:
    """What became of `--devices`, in words."""
    import jax

    from fljax.simulation.devices import mesh

    if jax.default_backend() != "cpu" or count <= mesh.available():
        return f"devices {count}"
    return f"devices {count}, on {mesh.available()} cores: more than a device a core do not pay"


def _in_groups(config: Config) -> Config:
    """A new run that names neither devices nor groups: on a CPU, in groups, so that it may go on
    with fewer cores.
    """
    import jax

    from fljax.simulation.devices import mesh

    mesh.as_devices(mesh.cores())
    devices = min(mesh.cores(), jax.device_count())
    if jax.default_backend() != "cpu" or devices == 1:
        return config
    return dataclasses.replace(config, run=dataclasses.replace(config.run, groups=2 * devices))


def _say_filled_in(asked: Any, found: Any) -> None:
    """Prints numbers of a scheme that follow from the data; its noise, which is calibrated, is not
    one of them.
    """
    for field in dataclasses.fields(found):
        before, now = (dataclasses.asdict(one)[field.name] for one in (asked, found))
        if before is None and now is not None and field.name != "noise_multiplier":
            _output.aside(f"of the data        {field.name} {now}")


def _check_alone(machine: Machine) -> None:
    """Raises ValueError for what would show tries that lose, or more rounds of the best."""
    shown = {"tensorboard": machine.tensorboard, "wandb": machine.wandb, "profile": machine.profile}
    if machine.secret is not None or machine.passphrase:
        raise ValueError(
            "Expected no --secret or --passphrase with a search, which deletes its secret as it "
            "ends."
        )
    for name, asked in {**shown, "distributed": machine.distributed}.items():
        if asked:
            raise ValueError(
                f"Expected no --{name} with a search: its tries are secret, but the best, and run "
                "in one process."
            )
    if isinstance(machine, Resumed) and machine.num_rounds is not None:
        raise ValueError(
            "Expected no --num-rounds for a search that goes on: all of its tries have as many."
        )


def _simulate(config: Config | None, named: pathlib.Path | None, machine: Machine) -> int:
    """One process of a run: of a new one with `config` in the folder `named` or the next free one,
    or on with it.
    """
    from fljax.simulation.devices import processes

    first, code = not machine.distributed or processes.first(), 0
    if config is not None and named is not None and first:
        folder.check_free(named)
    # Everything heavy comes after the flags have been found good.
    import jax

    from fljax.simulation import budget, run, search, seeds
    from fljax.simulation.devices import mesh
    from fljax.simulation.observers import trackers
    from fljax.simulation.record import chain
    from fljax.simulation.report import run_page

    if config is not None:
        searching = config.search is not None
    else:
        assert named is not None
        searching = search.goes_on(named)
    if searching:
        _check_alone(machine)
    unasked = not machine.distributed and machine.devices is None
    if config is not None and unasked and config.run.groups is None and config.run.memory is None:
        config = _in_groups(config)
    if not machine.distributed:
        mesh.as_devices(mesh.cores() if machine.devices is None else machine.devices)
    go_on = "" if named is None else str(named)

    def observed(run_dir: pathlib.Path) -> Any:
        nonlocal go_on
        go_on = str(run_dir)
        if not first:
            return trackers.Several([])
        shown = trackers.Several([]) if _output.quiet() else progress.observer(Console())
        observer = _watchers(machine, run_dir, shown)
        _output.aside(f"run folder {run_dir}")
        if machine.devices is not None and machine.devices <= jax.device_count():
            _output.aside(_devices(machine.devices))
        return observer

    where: dict[str, Any] = {"devices": machine.devices, "model_devices": machine.model_devices}
    where["secret"] = _run_files.kept(machine.secret, machine.passphrase and first)
    if config is not None:
        seeds.check_kept(config, where["secret"])
    try:
        if searching and config is not None:
            job = search.prepare(config)
            _say_filled_in(config.scheme_config, job.plan.scheme_config)
            outcome = search.launch(job, config, named, observed, _output.aside, **where)
        elif searching:
            assert named is not None
            outcome = search.resume(named, observed, _output.aside, **where)
        elif config is not None:  # what cannot run is refused before there is a folder
            if config.model.lora is not None:
                _output.aside("frozen weights     are read, or trained on public text first")
            job = run.prepare(config)
            if first:
                _say_filled_in(config.scheme_config, job.plan.scheme_config)
            outcome = run.launch(job, named, observed, **where)
        else:
            assert named is not None
            more = machine.num_rounds if isinstance(machine, Resumed) else None
            outcome = run.resume(named, observed(named), num_rounds=more, **where)
    except (run.Interrupted, processes.PeerLostError) as stopped:
        raise type(stopped)(f"{stopped}; to go on: fljax simulate --resume {go_on}") from None
    except KeyboardInterrupt:
        if not go_on:  # nothing is written yet
            raise
        raise KeyboardInterrupt(
            f"stopped at once; to go on from its last checkpoint: fljax simulate --resume {go_on}"
        ) from None
    if outcome is None:
        print(f"The law of the search drew no try: nothing is released. See {go_on}/privacy.json")
    elif first:
        told = None
        if outcome.canaries is not None:
            from fljax.cli import _canaries

            told = _canaries.judged(outcome)
        report = run_page.write(outcome, "" if told is None else _canaries.section(told))
        left = budget.rounds_left(outcome.plan, outcome.config.implementation, outcome.rounds)
        print(_summary(outcome, report, left, "" if told is None else _canaries.summary(told)))
        head = chain.read(outcome.run_dir)[-1].head
        _output.aside(f"record             {head} (to be published; fljax verify asks for it)")
        audited = {} if told is None else {"canaries": _canaries.plain(told)}
        _output.give({**_found(outcome, report, left), **audited})
        if told is not None and told.holds is False:
            code = _run_files.verdict([f"run {outcome.run_dir}"])
    if machine.distributed:
        processes.wait_for_all()  # until the report is written
    return code
