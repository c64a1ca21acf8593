"""`fljax audit`."""

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import tyro

from fljax import _validate, attacks, schemes
from fljax.accounting.words import at_least, rounded_up
from fljax.attacks import replay, rounds
from fljax.cli import _args, _output, _run_files
from fljax.schemes import exact
from fljax.schemes.central import dp_ftrl

_DESCRIPTION = """Measures what an attacker learns from rounds of a scheme, next to what the scheme
certifies.

One privacy unit against the whole scheme in a small world, thousands of rounds in one program. The
attacker sees what the promise's adversary sees: each upload where noise is local, else the model.
Where the server sees uploads hidden by shared noise, its law is audited too. A bound "holds" only
where the same attack, in the same call, catches the scheme with half its noise; else the verdict is
"cannot tell". Channels promise no epsilon: Gaussian images are read through their noise instead,
and the error is compared with its bound, the nats that they tell with those declared. Noise too
little by a factor of 4 (of its variance) is seen, or the verdict is "cannot tell".

With --settings it is the scheme of a run's folder, or of a TOML, with its own numbers but for few
clients, and what has to fit their number: buffer_size, max_colluders, max_stragglers,
min_separation, silo_noise, silos_per_subject, straggler_law. With --replay one round is run again
with the same keys and one unit changed, for each unit: exact where trials count, and so is its
control, the same with half the noise, which must fail. With --correlation it is all rounds of one
event, whose noise is correlated over them.

With --floating-point the noise itself is attacked, and rounds of a scheme with it: by its lowest
bits, its precision and the order of a sum, in float32, where these succeed, and in whole numbers,
where they must not.

Writes config.toml, audit.json and report.html into one folder. Exits with 1 where a bound did not
hold.
"""
_ATTACK = (
    f"Play this attack alone: {', '.join(attacks.names())}, or PACKAGE.ATTACK. None: all that "
    "fit the scheme."
)
_SETTINGS = (
    "A run's folder, or a TOML of fljax simulate: audit its scheme with its own numbers, but for "
    "few clients and what has to fit that. None: scheme, with numbers of a small world."
)
_REPLAY = (
    "Replay this scheme instead: how far one unit moves what is seen, by the same keys, beside "
    "what the noise allows for. None: play against scheme."
)

_MOST_CONFIDENCE = 0.99  # of a bootstrap, so that resamples lie beyond either end
_CHOSEN = (
    "The interval is how far the area scatters, no bound on epsilon. It leaves out that game and "
    "view were chosen by these runs, as those that prove most."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What to audit, and how hard."""

    scheme: Annotated[str, tyro.conf.arg(help=f"One of {', '.join(rounds.promising())}.")] = (
        "higradavg"
    )
    all: bool = False
    """One table of all five papers' schemes, certified against measured."""
    replay: Annotated[str | None, tyro.conf.arg(metavar="SCHEME", help=_REPLAY)] = None
    noise: exact.Form = "float32"
    """How the scheme draws its noise, for replay: "float32", or "exact", in whole numbers."""
    correlation: dp_ftrl.Correlation | None = None
    """How the scheme correlates its noise, for replay of all rounds of one event. none: as it does
    by default, in a world of one round.
    """
    floating_point: bool = False
    """Attack the arithmetic of noise instead, and of rounds of scheme, in float32 and in whole
    numbers. Takes scheme, noise_multiplier (in [1, 64], of the noise alone), trials and seed.
    """
    settings: Annotated[pathlib.Path | None, tyro.conf.arg(help=_SETTINGS)] = None
    attack: Annotated[str | None, tyro.conf.arg(help=_ATTACK)] = None
    noise_multiplier: float | None = None
    """Noise of schemes with an epsilon. none: that of settings, or 1."""
    epsilon: float | None = None
    """Calibrate that noise for this epsilon at delta instead. none: take noise_multiplier."""
    nats: float = 8.0
    """What one use of a record may tell, for channels."""
    delta: float = 0.05
    """delta of the comparison: large enough to be counted in so many trials."""
    trials: int = 10_000
    """Runs in each of the two worlds."""
    num_rounds: int = 1
    """Rounds in one run."""
    confidence: float = 0.99
    """Of each lower bound that is measured; of the area's interval, too, but there at most 0.99."""
    seed: int = 0
    """Of everything random."""
    run_dir: pathlib.Path | None = None
    """Folder for what is found, empty or not there yet. None: the next free runs/audit-NNN."""

    def __post_init__(self) -> None:
        rounds.check_name(scheme=self.scheme, attack=self.attack)
        if self.replay is not None:
            self._check_replay(self.replay)
        if self.floating_point and (self.all or self.attack is not None or self.replay is not None):
            raise ValueError(
                "Expected no all, attack or replay with floating_point, which has attacks of its "
                f"own, got all={self.all}, attack={self.attack!r}, replay={self.replay!r}."
            )
        if self.floating_point:
            exact.check_offered(schemes.get(self.scheme))
        if self.all and self.attack is not None:
            raise ValueError(
                "Expected no attack with all, which plays all that fit, got "
                f"attack={self.attack!r}."
            )
        if self.noise != "float32" and self.replay is None:
            raise ValueError(
                "Expected noise='float32' without replay, as settings have a noise of their own, "
                f"got noise={self.noise!r}."
            )
        _validate.positive(nats=self.nats)
        if self.noise_multiplier is not None:
            _validate.positive(noise_multiplier=self.noise_multiplier)
        if self.epsilon is not None:
            _validate.positive(epsilon=self.epsilon)
        if self.correlation is not None and self.replay is None:
            raise ValueError(
                "Expected correlation=None without replay, as settings have a noise of their own, "
                f"got correlation={self.correlation!r}."
            )
        if self.settings is not None and (self.all or self.replay is not None):
            raise ValueError(
                f"Expected settings with neither all nor replay, got all={self.all} and "
                f"replay={self.replay!r}."
            )
        _validate.open_unit(delta=self.delta, confidence=self.confidence)
        _validate.positive_int(trials=self.trials, num_rounds=self.num_rounds)
        _validate.non_negative_int(seed=self.seed)
        if self.trials < 8:
            raise ValueError(f"Expected trials >= 8, got trials={self.trials}.")

    def _check_replay(self, name: str) -> None:
        rounds.check_name(replay=name)
        if self.noise != "float32":
            exact.check_offered(schemes.get(name))
        if self.correlation is not None:
            replay.check_correlated(schemes.get(name), self.correlation)
        if schemes.get(name).promise != "epsilon":
            raise ValueError(f"Expected replay of a scheme that promises an epsilon, got {name!r}.")
        if self.all or self.attack is not None or self.epsilon is not None:
            raise ValueError(
                "Expected no all, attack or epsilon with replay, which counts no trials, got "
                f"all={self.all}, attack={self.attack!r}, epsilon={self.epsilon!r}."
            )


def main(args: Sequence[str]) -> int:
    """Plays, prints the table, writes the folder."""
    try:
        options = _args.parse(Options, args, prog="fljax audit", description=_DESCRIPTION)
    except _args.Done:
        return 0
    if options.floating_point:
        return _floating_point(options)
    if options.replay is not None:
        return _replay(options)
    import jax

    from fljax.attacks import table

    asked = (
        [Asked(name) for name in table.PAPERS if name in schemes.NAMES]
        if options.all
        else [_asked(options)]
    )
    rows, areas = [], []
    with _run_files.opened(options.run_dir, "audit", options) as run_dir:
        for place, (name, config) in enumerate(asked):
            key = jax.random.fold_in(jax.random.key(options.seed, impl="threefry2x32"), place)
            channel = schemes.get(name).promise == "nats"
            noise = 1.0 if channel else _noise(name, config, options)
            settings = table.Settings(
                noise_multiplier=noise,
                nats=options.nats,
                trials=options.trials,
                delta=options.delta,
                confidence=options.confidence,
                # Channels promise something of one use; a table of all schemes says so in its row.
                num_rounds=1 if options.all and channel else options.num_rounds,
                attack=options.attack,
            )
            row = table.row(name, key, settings, config)
            rows.append((row, noise))
            areas.append(_area(row.scores, options.confidence, options.seed))
            _output.aside(f"{name} done, {place + 1} of {len(asked)}")
    found = [
        {k: v for k, v in row._asdict().items() if k not in {"event", "scores"}}
        | {"verdict": row.verdict, "noise_multiplier": noise, "paper": table.PAPERS.get(row.scheme)}
        | area
        for (row, noise), area in zip(rows, areas, strict=True)
    ]
    _print([row for row, _ in rows])
    told = [row for row in found if row["auc"] is not None]
    words = [f"{row['scheme']}: {_of_area(row, options.confidence)}." for row in told]
    if told:
        words.append(_CHOSEN)
    for text in words:
        print(text)
    results = {"confidence": options.confidence, "rows": found}
    _run_files.write_json(run_dir / "audit.json", results)
    picture = (
        "" if options.all or rows[0][0].scores is None else _curve(rows[0][0], options.confidence)
    )
    title = "Certified against measured" if options.all else f"Audit of {asked[0].scheme}"
    sections = _sections(options, [row for row, _ in rows], picture, words)
    report = _run_files.write_report(run_dir, title, sections)
    _output.give({"run_dir": run_dir, "report": report, **results})
    return _run_files.verdict([row.scheme for row, _ in rows if row.holds is False])


class Asked(NamedTuple):
    """scheme: its name. config: for a small world; None: the one that `rounds.config` makes."""

    scheme: str
    config: Any = None


def _asked(options: Options) -> Asked:
    if options.settings is None:
        return Asked(options.scheme)
    from fljax.cli import _own

    own = _own.read(options.settings)
    return Asked(own.scheme, own.config)


def _replay(options: Options) -> int:
    from fljax.cli import _audit_replay

    with _run_files.opened(options.run_dir, "audit", options) as run_dir:
        row = _audit_replay.run(options)
    _run_files.print_table(_audit_replay.HEAD, [_audit_replay.cells(row)])
    if row["holds"] is None:
        print(f"{row['scheme']}: cannot tell: half the noise was not caught.")
    results = {"rows": [row]}
    _run_files.write_json(run_dir / "audit.json", results)
    title = f"Replay of {row['scheme']}"
    report = _run_files.write_report(run_dir, title, _audit_replay.sections(row))
    _output.give({"run_dir": run_dir, "report": report, **results})
    return _run_files.verdict([row["scheme"]] if row["holds"] is False else [])


def _floating_point(options: Options) -> int:
    from fljax.cli import _audit_floating_point

    with _run_files.opened(options.run_dir, "audit", options) as run_dir:
        rows = _audit_floating_point.run(options)
    _run_files.print_table(_audit_floating_point.HEAD, list(map(_audit_floating_point.cells, rows)))
    results = {"rows": rows}
    _run_files.write_json(run_dir / "audit.json", results)
    sections = _audit_floating_point.sections(rows)
    report = _run_files.write_report(run_dir, "Attacks on floating point", sections)
    _output.give({"run_dir": run_dir, "report": report, **results})
    return _run_files.verdict([row["attack"] for row in rows if row["holds"] is False])


def _noise(name: str, config: Any, options: Options) -> float:
    """The noise multiplier that is asked for: by epsilon, by itself, by the settings."""
    from fljax import accounting

    if options.epsilon is None:
        told = None if config is None else config.noise_multiplier
        if options.noise_multiplier is None and told is None and config is not None:
            raise ValueError(
                "Expected noise_multiplier or epsilon with settings that leave the noise to be "
                "calibrated, got neither."
            )
        return float(options.noise_multiplier or told or 1.0)
    start = rounds.config(name, noise_multiplier=1.0) if config is None else config
    event: Any = lambda noise: schemes.get(name).run_event(
        dataclasses.replace(start, noise_multiplier=noise), options.num_rounds
    )
    method = rounds.quick_method(event(1.0))
    return float(
        accounting.calibrate(event, epsilon=options.epsilon, delta=options.delta, method=method)
    )


def _cells(row: Any) -> list[str]:
    from fljax.attacks import table

    shown = rounded_up(row.certified, 4) if row.bound == "at most" else at_least(row.certified, 4)
    return [
        row.scheme,
        row.unit,
        row.relation,
        row.quantity,
        f"{row.bound} {shown}",
        at_least(row.measured, 4) if row.bound == "at most" else f"{row.measured:.4g}",
        "" if row.undefended is None else f"{row.undefended:.4g}",
        table.VERDICTS[row.holds],
    ]


_HEAD = (
    "scheme",
    "unit",
    "neighbours or budget",
    "quantity",
    "certified",
    "measured",
    "without noise",
    "verdict",
)


def _print(rows: list[Any]) -> None:
    _run_files.print_table(_HEAD, [_cells(row) for row in rows])
    for row in rows:
        if row.standing != "certified":
            print(f"{row.scheme}: its bound is {row.standing}.")
        if row.holds is None:
            print(f"{row.scheme}: {_cannot_tell(row)}.")
        elif row.seen_from is not None:
            print(
                f"{row.scheme}: noise {row.seen_from:.2g} times too little (its variance) would "
                "have been seen."
            )
        if row.diverged:
            print(f"{row.scheme}: {row.attack}.")


def _cannot_tell(row: Any) -> str:
    from fljax.attacks import table

    if row.seen_from is not None:
        least = (
            f"only noise {row.seen_from:.2g} times too little (its variance)"
            if row.seen_from < math.inf
            else "no lack of noise"
        )
        return f"cannot tell: {least} would have been seen"
    return f"cannot tell: {table.cannot_tell(row.ceiling, row.control, row.law_alone)}"


def _area(scores: Any, confidence: float, seed: int) -> dict[str, float | None]:
    """The area under the curve of a game's scores that count, and how far it scatters: ends are
    None where resamples are all alike, everything is without a game.
    """
    if scores is None:
        return dict.fromkeys(("auc", "auc_low", "auc_high"))
    import numpy as np

    from fljax.attacks import audit, metrics

    # By the others the numbers of a view may have been weighed.
    present, absent = (world[-audit.counted(len(world)) :] for world in scores)
    # The area knows scores by their order alone: by places, which a resample need not sort.
    values, places = np.unique(np.concatenate([present, absent]), return_inverse=True)

    def area(yes: np.ndarray, no: np.ndarray) -> float:
        counts = np.bincount(no.astype(int), minlength=values.size)
        below = np.cumsum(counts) - counts / 2
        return float(below[yes.astype(int)].mean() / no.size)

    low, high = audit.bootstrap(
        area,
        places[: present.size],
        places[present.size :],
        np.random.default_rng([seed, 6]),
        confidence=min(confidence, _MOST_CONFIDENCE),
    )
    ends = (None, None) if low == high else (low, high)
    return {"auc": metrics.auc(present, absent), "auc_low": ends[0], "auc_high": ends[1]}


def _of_area(told: dict[str, Any], confidence: float) -> str:
    whose = ", of the law of uploads alone," if told["scores_of_law"] else ""
    if told["auc_low"] is None:
        alike = "no score crosses" if told["auc"] in (0, 1) else "all resamples are alike"
        scatter = f"{alike}, so that bootstrap does not say how far it scatters"
    else:
        scatter = (
            f"{told['auc_low']:.4g} to {told['auc_high']:.4g} by bootstrap at "
            f"{100 * min(confidence, _MOST_CONFIDENCE):g} %"
        )
    return f"the attack's area under the curve{whose} is {told['auc']:.4g} ({scatter})"


def _curve(row: Any, confidence: float) -> str:
    """The measured error rates beside the certified ones."""
    import numpy as np

    from fljax.simulation.report import attack_figures, run_page

    present, absent = row.scores
    thresholds = np.quantile(np.concatenate([present, absent]), np.linspace(0, 1, 201))
    fpr = np.array([np.mean(absent > t) for t in thresholds])
    fnr = np.array([np.mean(present <= t) for t in thresholds])
    at = np.linspace(0, 1, 401)
    # Dvoretzky-Kiefer-Wolfowitz, half of the chance to each world: holds at all thresholds at once.
    slack = tuple(
        float(np.sqrt(np.log(4 / (1 - confidence)) / (2 * scores.size)))
        for scores in (absent, present)
    )
    bound = rounds.certified_curve(row.event, at)
    picture = attack_figures.rates(fpr, fnr, at, bound, (slack[0], slack[1]))
    note = (
        f"{present.size} runs in each world. Counted rates scatter about their truth, which lies "
        f"in the band with confidence {confidence:.4g} (at all thresholds together)."
    )
    return run_page.section("Error rates", picture, note)


def _of_certified(row: Any) -> str:
    """What a measured number is worth beside the certified one, in words."""
    shown = rounded_up(row.certified, 4) if row.bound == "at most" else at_least(row.certified, 4)
    return f"{row.quantity} measured, of {shown} certified ({row.bound}): {row.scheme}"


def _sections(options: Options, rows: list[Any], picture: str, area: Sequence[str]) -> list[str]:
    from fljax.attacks import table
    from fljax.simulation.report import run_page

    threat = [
        [row.scheme, table.PAPERS.get(row.scheme, ""), row.attack, row.sees, row.standing]
        for row in rows
    ]
    note = (
        "Measured epsilons are lower bounds that are wrong with chance "
        f"{1 - options.confidence:.2g} each; an attack that stays far below its bound may be a "
        "weak attack. Holds: no attack got past the certified number, and the same attack did "
        "where the scheme drew half its noise. Without noise: what the same attack gets "
        "where nothing is hidden. Cannot tell: no data of so many trials could have "
        "got past it, or that control was not caught, or only the law of uploads was seen to hold, "
        "or the attack on a channel would have missed noise four times too little."
    )
    world = (
        "Rows with an epsilon: the attacker chose all data, knows every setting, and misses one "
        "bit: whether the unit was there."
    )
    images = (
        "Rows with a squared error or nats: the attacker reconstructs images it does not know; it "
        "knows label, model, mechanism, other images and the covariance of training data."
    )
    kinds = [
        text
        for text, kind in ((world, "at most"), (images, "at least"))
        if any(r.bound == kind for r in rows)
    ]
    note += "".join(f" {text}" for text in area)
    cards = "".join(run_page.card(f"{row.measured:.3g}", _of_certified(row)) for row in rows)
    return [
        f'<div class="cards">{cards}</div>',
        run_page.section(
            "Certified against measured",
            _run_files.html_table(_HEAD, [_cells(r) for r in rows]),
            note,
        ),
        picture,
        run_page.section(
            "Threat model",
            _run_files.html_table(
                ("scheme", "paper", "attack", "the attacker sees", "the bound is"), threat
            ),
            " ".join(kinds),
        ),
    ]
