"""What `--json` prints of each command, field by field: stable, and checked by a test.

A field that is marked as `NotRequired` is there where its command has something to say of it.
"""

import textwrap
import typing
from typing import Any, NotRequired, TypedDict

Number = float | str  # infinity and NaN are words


class Document(TypedDict):
    """Of every command: its own result, or None and what went wrong."""

    format: int
    command: str
    exit_code: int
    result: dict[str, Any] | None
    error: str | None


class Bound(TypedDict):
    """What one accountant proves."""

    accountant: str
    epsilon_lower: Number | None
    epsilon_upper: Number | None
    certified: bool
    note: str


class Account(TypedDict):
    """Of `account`."""

    delta: NotRequired[float]
    nats: NotRequired[Number]
    rows: NotRequired[list[Bound]]
    assumed: str
    tradeoff: NotRequired[str]
    configurations: NotRequired[int]
    table: NotRequired[str]
    picture: NotRequired[str]


class Found(TypedDict):
    """What one accountant finds; value and epsilon are None where it has no bound."""

    accountant: str
    value: float | None
    epsilon: Number | None
    risk: NotRequired[float]
    note: str


class Calibrate(TypedDict):
    """Of `calibrate`."""

    parameter: str
    target_epsilon: NotRequired[float]
    delta: NotRequired[float]
    risk: NotRequired[str]
    target_risk: NotRequired[float]
    rows: list[Found]
    assumed: str


class Canaries(TypedDict):
    """Of a run with canaries: what its model proves of them. curve_refuted: None where nothing is
    certified.
    """

    canaries: int
    guesses: int
    correct: int
    epsilon_lower: Number
    gdp_epsilon_lower: Number
    curve_refuted: bool | None
    confidence: float
    verdict: str


class Simulate(TypedDict):
    """Of `simulate`; accuracy is None where there are no labels, `baseline` without that model;
    metrics are the other numbers of the task, by name. epsilon_of_one_try: of a search, whose
    epsilon pays for all.
    """

    run_dir: str
    report: str
    rounds: int
    epsilon: Number
    delta: float
    privacy_unit: str
    num_units: int
    accountant: str
    epsilon_of_one_try: float | None
    noise_multiplier: float | None
    seed: str
    loss: Number | None
    accuracy: float | None
    metrics: dict[str, Number]
    baseline_loss: Number | None
    baseline_accuracy: float | None
    statement: str
    not_covered: list[str]
    notes: list[str]
    rounds_left: int | None
    canaries: NotRequired[Canaries]


class Data(TypedDict):
    """Of `data describe`, whose counts are exact, and of `data convert`: "dataset" alone."""

    dataset: NotRequired[str]
    name: NotRequired[str]
    training: NotRequired[int]
    held_out: NotRequired[int]
    fields: NotRequired[dict[str, Any]]
    task: NotRequired[str]
    num_classes: NotRequired[int]
    classes: NotRequired[dict[str, Any] | None]
    clients: NotRequired[dict[str, Any] | None]
    subjects: NotRequired[dict[str, Any] | None]
    picture: NotRequired[str]


class Predict(TypedDict):
    """Of `predict`: a line an example, with "row", and "class" and "probability" or outputs."""

    rounds: int
    examples: int
    accuracy: NotRequired[float]
    absolute_error: NotRequired[float]
    perplexity: NotRequired[Number]
    predictions: list[dict[str, Any]]


class Export(TypedDict):
    """Of `export`."""

    model: str
    claim_file: str
    rounds: int
    statement: str
    not_covered: list[str]
    arrays: dict[str, Any]


class ReportRow(TypedDict):
    """A run, with what it reached and spent; None where it has not said so yet, or has none."""

    run: str
    scheme: str
    dataset: str
    rounds: int
    accuracy: float | None
    loss: Number | None
    baseline_accuracy: float | None
    epsilon: Number | None
    delta: float | None
    privacy_unit: str | None
    neighboring_relation: str | None


class Report(TypedDict):
    """Of `report`."""

    page: str
    runs: list[ReportRow]


class Checked(TypedDict):
    """One thing that was looked at."""

    what: str
    found: str
    fits: bool


class Verify(TypedDict):
    """Of `verify`; head is "" where the chain is damaged."""

    run_dir: str
    fits: bool
    head: str
    rounds: int
    closed: bool
    checks: list[Checked]
    not_shown: list[str]


class Watch(TypedDict):
    """Of `watch`, once it has ended."""

    run: str
    url: str


class Compare(TypedDict):
    """Of `compare`: what compare.json holds, and where it is."""

    run_dir: str
    report: str
    settings: dict[str, Any]
    results: list[dict[str, Any]]
    claims: list[dict[str, Any]]


class Named(TypedDict):
    """Something by name; why: it cannot be loaded."""

    name: str
    origin: str
    why: NotRequired[str]
    summary: NotRequired[str]
    settings: NotRequired[dict[str, Any]]
    choices: NotRequired[dict[str, list[str]]]


class Schemes(TypedDict):
    """Of `schemes`; "settings" of a scheme are its own flags at the values they start from,
    "choices" the words that some of them take: "execution" says how its sums are taken.
    """

    schemes: list[Named]
    datasets: list[Named]
    models: list[Named]
    mechanisms: list[Named]
    attacks: list[Named]


class Completion(TypedDict):
    """Of `completion`."""

    shell: str
    script: str


class Rate(TypedDict):
    """Of true positives at a rate of false ones, and between what it is at 95 %."""

    fpr: float
    tpr: float
    low: float
    high: float


class AttackRow(TypedDict):
    """One budget (infinite: without noise), and what the attack measured at it; holds: None where
    it cannot tell. labelled_bound, least_mse: certified of whoever knows the label. Of a sweep
    scheme, whose own standing it is.
    """

    budget: Number
    noise: Number
    bound: Number
    holds: bool | None
    measured: NotRequired[Number]
    auc: NotRequired[float]
    rates: NotRequired[list[Rate]]
    largest_tpr: NotRequired[float]
    member_accuracy: NotRequired[float]
    other_accuracy: NotRequired[float]
    mse: NotRequired[Number]
    psnr: NotRequired[Number]
    registered_psnr: NotRequired[Number]
    ssim: NotRequired[Number]
    cw_ssim: NotRequired[Number]
    learnt_distance: NotRequired[float | None]
    inverted: NotRequired[float]
    picked: NotRequired[float]
    diverged: NotRequired[int]
    labelled_bound: NotRequired[Number]
    least_mse: NotRequired[Number]
    label_mix: NotRequired[float]
    scheme: NotRequired[str]
    standing: NotRequired[str]


class Attack(TypedDict):
    """Of `attack`: what attack.json holds, and where it is."""

    run_dir: str
    report: str
    bound: str
    standing: str
    rows: list[AttackRow]
    picture: NotRequired[str]


class AuditRow(TypedDict):
    """A scheme under attack: certified is a bound of the kind that `bound` says. auc: of the scores
    that count, of the game and view that prove most by them; scores_of_law: of a law of noise
    alone. auc_low, auc_high: where it scatters, by bootstrap at `confidence`, at most 0.99; no
    bound. None: all resamples are alike.
    """

    scheme: str
    unit: str
    relation: str
    attack: str
    sees: str
    quantity: str
    bound: str
    certified: Number
    measured: Number
    holds: bool | None
    verdict: str
    standing: str
    ceiling: Number | None
    diverged: int
    seen_from: Number | None
    control: Number | None
    law_alone: bool
    scores_of_law: bool
    undefended: Number | None
    noise_multiplier: float
    paper: str | None
    auc: float | None
    auc_low: float | None
    auc_high: float | None


class ReplayRow(TypedDict):
    """Of `audit --replay`: lengths in standard deviations of the noise."""

    scheme: str
    unit: str
    relation: str
    sees: str
    noise: str
    correlation: str | None
    noise_multiplier: float
    declared: Number
    allowed: Number
    measured: Number
    control: Number
    holds: bool | None
    verdict: str


class FloatingPointRow(TypedDict):
    """Of `audit --floating-point`: shares of sums that an attack gives away; None where it does not
    apply. scheme: whose rounds are attacked; None: noise by itself.
    """

    attack: str
    scheme: str | None
    noise_multiplier: float
    trials: int
    float32: float | None
    whole_numbers: float | None
    holds: bool | None
    verdict: str


class Audit(TypedDict):
    """Of `audit`: what audit.json holds, and where it is. Each row has a `verdict`, "holds",
    "violated" or "cannot tell", and `holds`: true, false or None. Only games have a confidence.
    """

    run_dir: str
    report: str
    confidence: NotRequired[float]
    rows: list[AuditRow | ReplayRow | FloatingPointRow]


class ShownFigure(TypedDict):
    """One figure of a counter-example."""

    what: str
    printed: Number
    holds: Number


class ErratumRow(TypedDict):
    """One statement of a paper that does not hold; shown is empty without `--run`, and where there
    is nothing to compute.
    """

    paper: str
    name: str
    where: str
    printed: str
    holds: str
    shown: list[ShownFigure]


class Errata(TypedDict):
    """Of `errata`."""

    rows: list[ErratumRow]


class VerdictRow(TypedDict):
    """How one conclusion of a paper stands."""

    where: str
    conclusion: str
    standing: str
    because: str


class Reproduce(TypedDict):
    """Of `reproduce`."""

    page: str
    verdicts: list[VerdictRow]


class Bench(TypedDict):
    """Of `bench`: each measurement with its spread."""

    machine: dict[str, Any]
    model: str
    matmul: dict[str, Any]
    gaussian_noise: dict[str, Any]
    private_gradient: dict[str, Any]
    round: dict[str, Any]
    chunk_size: dict[str, Any]
    simulate: dict[str, Any]


RESULTS: dict[str, Any] = {
    "simulate": Simulate,
    "data": Data,
    "predict": Predict,
    "export": Export,
    "report": Report,
    "verify": Verify,
    "watch": Watch,
    "compare": Compare,
    "schemes": Schemes,
    "completion": Completion,
    "attack": Attack,
    "audit": Audit,
    "account": Account,
    "calibrate": Calibrate,
    "reproduce": Reproduce,
    "errata": Errata,
    "bench": Bench,
}


def _words(hint: Any) -> str:
    """A type as JSON knows it."""
    arms = typing.get_args(hint)
    if typing.get_origin(hint) is NotRequired:
        return f"{_words(arms[0])} (perhaps)"
    if typing.get_origin(hint) is list:
        return f"list of {_words(arms[0])}"
    if typing.get_origin(hint) is dict:
        return "object"
    if typing.is_typeddict(hint):
        return "{" + ", ".join(f"{n}: {_words(h)}" for n, h in _hints(hint).items()) + "}"
    if arms:
        return " or ".join(dict.fromkeys(_words(arm) for arm in arms))
    plain = {float: "number", int: "integer", str: "string", bool: "true or false"}
    return plain.get(hint, "null" if hint is type(None) else "anything")


def _hints(schema: Any) -> dict[str, Any]:
    return typing.get_type_hints(schema, include_extras=True)


def page() -> str:
    """The schemas as a list in Markdown, for docs/reference/command_line.md."""
    paragraphs = []
    for command, schema in RESULTS.items():
        fields = ", ".join(f"`{name}`: {_words(hint)}" for name, hint in _hints(schema).items())
        wrapped = textwrap.fill(f"- `{command}`: {fields}", 100, subsequent_indent="  ")
        paragraphs.append(wrapped)
    return "\n".join(paragraphs)


def misfits(value: Any, hint: Any, where: str = "result") -> list[str]:
    """Places at which plain data are not what a schema says; empty where all is."""
    arms, origin = typing.get_args(hint), typing.get_origin(hint)
    if typing.is_typeddict(hint):
        if not isinstance(value, dict):
            return [where]
        hints = _hints(hint)
        needed = [
            name for name, part in hints.items() if typing.get_origin(part) is not NotRequired
        ]
        wrong = [f"{where}.{name} is missing" for name in needed if name not in value]
        for name, part in value.items():
            if name not in hints:
                wrong.append(f"{where}.{name} is not in the schema")
            else:
                wrong += misfits(part, hints[name], f"{where}.{name}")
        return wrong
    if origin is NotRequired:
        return misfits(value, arms[0], where)
    if origin is list:
        if not isinstance(value, list):
            return [where]
        return [
            bad for at, part in enumerate(value) for bad in misfits(part, arms[0], f"{where}[{at}]")
        ]
    if origin is dict:
        return [] if isinstance(value, dict) else [where]
    if arms:
        return [where] if all(misfits(value, arm, where) for arm in arms) else []
    if hint is Any:
        return []
    if hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    elif hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
    else:
        fits = isinstance(value, hint)
    return [] if fits else [f"{where} = {value!r}"]
