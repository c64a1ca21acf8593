"""A search for hyper-parameters that is paid for: the best of a random number of private runs.

Each try is a whole run at a point of the grid, drawn anew; all have one noise and so one event. Who
sees the best try alone, and neither how many there were nor what the others reached, learns as much
as `events.RepeatAndSelect` of that event says. The score looks at held-out examples, which are
taken to be public, and at the model: it costs nothing more.

While a search goes on, its tries lie in the folder `tries.secret` of the run's folder, for their
owner alone. At its end the best one becomes the run, and the others are deleted with the secret
seed: from then on nobody can draw their noise again, or go on with the run.

Source: Papernot, Steinke (2022), "Hyperparameter Tuning with Renyi Differential Privacy",
arXiv:2110.03620, Algorithm 1.
"""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from fljax.accounting.renyi import repeat_select
from fljax.errors import PrivacyPreconditionError
from fljax.simulation import base_model, budget, fingerprint, own, run, seeds
from fljax.simulation import config as config_lib
from fljax.simulation.config import Config, SearchConfig
from fljax.simulation.job import Job
from fljax.simulation.outcome import Outcome
from fljax.simulation.record import folder

TRIES = "tries.secret"
_GONE, _SCORES = ".tries.gone", "scores.json"
_MOST_POINTS = 1000

Point = dict[tuple[str, str], Any]  # (section, key) -> value


def points(search: SearchConfig) -> list[Point]:
    """All points of the grid. Raises ValueError where there are too many."""
    axes = [
        ((name, key), values) for name, keys in search.grid.items() for key, values in keys.items()
    ]
    count = math.prod(len(values) for _, values in axes)
    if count > _MOST_POINTS:
        raise ValueError(f"Expected a grid of at most {_MOST_POINTS} points, got {count}.")
    names = [name for name, _ in axes]
    return [
        dict(zip(names, chosen, strict=True))
        for chosen in itertools.product(*(values for _, values in axes))
    ]


def at(config: Config, point: Point) -> Config:
    """`config` at a point of the grid. Raises ValueError where it is none that can run."""
    sections = config_lib.to_sections(config)
    for (section, key), value in point.items():
        sections[section][key] = list(value) if isinstance(value, tuple) else value
    return config_lib.from_sections(sections)


def drawn(search: SearchConfig, seed: seeds.Seed) -> list[Point]:
    """The points of all tries, with replacement, as many as the law draws; none is possible for a
    Poisson law.
    """
    grid = points(search)
    count = repeat_select.num_runs(
        search.mean, search.shape, seeds.uniform(seed, "number of tries")
    )
    return [grid[int(seeds.uniform(seed, f"point of try {i}") * len(grid))] for i in range(count)]


def prepare(config: Config, seed: seeds.Seed | None = None, brought: own.Own = own.NOTHING) -> Job:
    """The search before its first try: the noise, with which the whole of it meets the budget.

    Args:
      config: with its `search`.
      seed: of a search that goes on; None: a new one. brought: its frozen weights, if it has some.

    Raises:
      ValueError: as `run.prepare`; no guarantee; or a point that cannot run, or whose rounds are
        not the same mechanism as all others': it names the key.
      PrivacyPreconditionError: the server is not trusted, so that it may see every try.
    """
    search = config.search
    assert search is not None
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, baseline=False))
    job = run.prepare(config, seed, brought)
    if not math.isfinite(job.plan.epsilons[-1]):
        raise ValueError(
            f"Expected a scheme with an epsilon to search, got scheme={config.scheme!r} without "
            "one."
        )
    if config.implementation.noise_at != "server":
        # Whoever receives the uploads of all tries sees all of them, not the best one alone.
        raise PrivacyPreconditionError(
            "Expected a scheme whose server is trusted (noise_at='server') to search, since only "
            f"the best try may be seen, got scheme={config.scheme!r} with "
            f"noise_at={config.implementation.noise_at!r}."
        )
    if search.score == "accuracy" and "accuracy" not in job.task.measures.names:
        raise ValueError(
            f"Expected score='loss' for task={config.data.task!r}, which has no accuracy, got "
            "score='accuracy'."
        )
    for point in points(search):
        if not _is_the_same(job, at(config, point)):
            alone = [name for name in point if not _alone_is_the_same(job, config, name, point)]
            named = ", ".join(f"{key}={point[section, key]!r}" for section, key in alone or point)
            raise ValueError(
                "Expected a grid whose points all are the same mechanism, which is what a search "
                f"is paid for, got {named}: that changes what a round costs, or how many there "
                "are."
            )
    return job


def _is_the_same(job: Job, config: Config) -> bool:
    """Whether rounds at this point cost what those of `job` do."""
    scheme, plan = config.implementation, job.plan
    scheme_config = dataclasses.replace(
        scheme.fitted(config.scheme_config, job.facts),
        noise_multiplier=plan.scheme_config.noise_multiplier,
    )
    uses = tuple(budget.uses_of(scheme, scheme_config, done) for done in range(plan.num_rounds + 1))
    return scheme.event(scheme_config) == plan.event and uses == plan.uses


def _alone_is_the_same(job: Job, config: Config, name: tuple[str, str], point: Point) -> bool:
    try:
        return _is_the_same(job, at(config, {name: point[name]}))
    except ValueError:  # no config without the others
        return True


def launch(
    job: Job,
    config: Config,
    run_dir: pathlib.Path | None,
    observed: Callable[[pathlib.Path], run.Observer],
    tell: Callable[[str], None] = lambda line: None,
    **where: Any,
) -> Outcome | None:
    """Searches, in a new folder.

    Args:
      job, config: prepared, and what it was prepared from.
      run_dir, observed, where: as for `run.launch`.
      tell: is given a line at the start of each try, which is secret.

    Returns:
      how the best try ended; None where the law has drawn no try, so that nothing is released.

    Raises:
      As `run.launch`.
    """
    if run_dir is None:
        name = f"{job.config.data.dataset}-{job.config.scheme}"
        run_dir = folder.next_free(pathlib.Path("runs"), name)
    seeds.begin(run_dir, config, job.seed)
    return _search(job, config, run_dir, observed(run_dir), tell, where)


def resume(
    run_dir: pathlib.Path,
    observed: Callable[[pathlib.Path], run.Observer],
    tell: Callable[[str], None] = lambda line: None,
    **where: Any,
) -> Outcome | None:
    """Goes on with the search in `run_dir`, to the bits of one that was not interrupted; returns
    and raises as `launch`.
    """
    config = config_lib.from_sections(_sections(run_dir))
    brought = own.NOTHING._replace(base=base_model.read(run_dir / TRIES))
    job = prepare(config, seeds.of_run(config, run_dir), brought)
    return _search(job, config, run_dir, observed(run_dir), tell, where)


def _sections(run_dir: pathlib.Path) -> dict[str, Any]:
    """What a search began with, while it goes on; its config in the folder may be another since."""
    path = run_dir / TRIES / folder.CONFIG
    path = path if path.is_file() else run_dir / folder.CONFIG
    return config_lib.from_toml(folder.read_text(path), source=str(path)) if path.is_file() else {}


def goes_on(run_dir: pathlib.Path) -> bool:
    """Whether the folder holds a search that has not ended. Of one that has, secrets that its end
    left behind, cut off, are deleted.
    """
    if "search" not in _sections(run_dir):
        return False
    if (run_dir / TRIES).is_dir() or not (run_dir / folder.PRIVACY).is_file():
        return True
    _forget(run_dir)
    return False


def _search(
    job: Job,
    config: Config,
    run_dir: pathlib.Path,
    observer: run.Observer,
    tell: Callable[[str], None],
    where: dict[str, Any],
) -> Outcome | None:
    search, tries = config.search, run_dir / TRIES
    assert search is not None
    tries.mkdir(mode=0o700, exist_ok=True)
    with folder.locked(tries):
        if not (tries / folder.CONFIG).is_file():
            folder.write_atomically(tries / folder.CONFIG, config_lib.to_toml(config), mode=0o600)
        base_model.write(tries, config.model, job.task.base)
        _check_data(job, tries)
        todo = drawn(search, job.seed)
        scores: list[float] = []
        if (tries / _SCORES).is_file():
            scores = [float(score) for score in json.loads(folder.read_text(tries / _SCORES))]
        for number in range(len(scores), len(todo)):
            chosen = ", ".join(f"{key} {value}" for (_, key), value in todo[number].items())
            tell(f"try {number + 1}              {chosen} (for your eyes alone)")
            mine = _at_try(job, config, todo[number], number)
            scores.append(_score(search, _run(mine, _place(tries, number), observer, where)))
            text = json.dumps([budget.number(score) for score in scores])
            folder.write_atomically(tries / _SCORES, text + "\n", mode=0o600)
            _keep(tries, _best(scores))
        if not scores:
            claim = budget.certified_claim(job.plan, job.plan.num_rounds)
            text = json.dumps(claim, sort_keys=True, allow_nan=False, indent=2)
            folder.write_atomically(run_dir / folder.PRIVACY, text + "\n")
            _forget(run_dir)
            return None
        best = _best(scores)
        _publish(_place(tries, best), run_dir)
        # of the folder in which it now lies: no round is left
        outcome = _run(_at_try(job, config, todo[best], best), run_dir, _Nobody(), where)
    _forget(run_dir)
    return outcome


def _check_data(job: Job, tries: pathlib.Path) -> None:
    """Raises ValueError where a search goes on with other data than it began with: the best of
    tries on different data is not what is paid for.
    """
    before = fingerprint.read(tries)
    if before is None:
        fingerprint.write(tries, job.began_with)
        return
    now = job.began_with  # whose config may be that of the best try, if the end was cut off
    changed = fingerprint.changed(
        {**now, "data": before["data"], "damaged": before["damaged"]}, now
    )
    if changed:
        raise ValueError(
            f"Expected the search in {tries.parent} to go on with the data that it began with, got "
            f"another {', '.join(changed)}. Put it back, or begin anew."
        )


class _Nobody:
    """Who watches and says nothing."""

    def start(self, plan: budget.Plan, rounds_done: int) -> None:
        """Nothing."""

    def round(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


def _best(scores: list[float]) -> int:
    """The first of the best: among tries that are alike in law, that is one at random."""
    return max(range(len(scores)), key=lambda i: (scores[i], -i))


def _score(search: SearchConfig, outcome: Outcome) -> float:
    """What is most for the best try; a try that diverged is the worst."""
    value = float(outcome.records[-1][f"test_{search.score}"])
    if math.isnan(value):
        return -math.inf
    return -value if search.score == "loss" else value


def _place(tries: pathlib.Path, number: int) -> pathlib.Path:
    return tries / f"{number + 1:04d}"


def _keep(tries: pathlib.Path, best: int) -> None:
    """Deletes all tries that have ended but the best so far."""
    for path in tries.iterdir():
        if path.is_dir() and path != _place(tries, best):
            shutil.rmtree(path)


def _at_try(job: Job, config: Config, point: Point, number: int) -> Job:
    """A try before its first round: the search's noise, and keys of its own."""
    chosen = at(config, point)
    noise = job.plan.scheme_config.noise_multiplier
    chosen = dataclasses.replace(
        chosen,
        scheme_config=dataclasses.replace(chosen.scheme_config, noise_multiplier=noise),
        run=dataclasses.replace(chosen.run, baseline=False),
    )
    brought = own.NOTHING._replace(base=job.task.base)
    mine = run.prepare(chosen, job.seed, brought, attempt=number)
    if mine.plan.event != job.plan.event or mine.plan.epsilons != job.plan.epsilons:
        raise PrivacyPreconditionError(
            f"Expected a try at {point} to be the mechanism that the search is paid for, got "
            "another one."
        )
    return mine


def _run(mine: Job, place: pathlib.Path, observer: run.Observer, where: dict[str, Any]) -> Outcome:
    """One try, from its beginning or its newest checkpoint."""
    place.mkdir(exist_ok=True)
    if not (place / folder.CONFIG).is_file():
        folder.write_atomically(place / folder.CONFIG, config_lib.to_toml(mine.config))
    return run.continue_new(mine, place, observer, **where)


def _publish(best: pathlib.Path, run_dir: pathlib.Path) -> None:
    """The best try becomes the run, its config last. Cut off, it can be done again.

    When it ran, after how many others and before how many, is not told: neither by a line of
    sessions.jsonl nor by the times of its files.
    """
    (best / folder.SESSIONS).unlink(missing_ok=True)
    for path in sorted(best.iterdir(), key=lambda path: path.name == folder.CONFIG):
        if path.name != folder.LOCK:
            path.replace(run_dir / path.name)
    for path in run_dir.rglob("*"):
        if TRIES not in path.parts:
            os.utime(path)


def _forget(run_dir: pathlib.Path) -> None:
    """Deletes the tries, and the secret seed: its owner, too, can draw their noise no more."""
    if (run_dir / TRIES).is_dir():
        (run_dir / TRIES).replace(run_dir / _GONE)
    (run_dir / folder.SEED).unlink(missing_ok=True)
    if (run_dir / _GONE).is_dir():
        shutil.rmtree(run_dir / _GONE)
