"""What a run may spend, what it has spent, and the claim in words."""

import dataclasses
import itertools
import json
import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from fljax import accounting
from fljax.accounting import events, float32_tail, words
from fljax.accounting.accountant import Method
from fljax.accounting.mechanisms import effective_noise
from fljax.accounting.words import shown_epsilon as shown_epsilon
from fljax.data.facts import Facts
from fljax.data.subjects import SUBJECT
from fljax.errors import PrivacyPreconditionError
from fljax.schemes import exact
from fljax.schemes.base import Scheme
from fljax.simulation import seeds, warm_start
from fljax.simulation.config import MOST_STEPS, RANDOM, Config, SearchConfig, delta_of
from fljax.simulation.record.folder import SEED

_TRUST = {
    "server": "The server sees each update before noise is added: it is trusted (central model).",
    "silo": (
        "Each silo adds its own noise; it sees its own data and is trusted with them. The "
        "server need not be."
    ),
    "silo, in a sum": (
        "Each silo adds its own noise; it sees its own data and is trusted with them. That nobody "
        "sees more than the mean of all silos is taken on trust, and that no silo tells its noise: "
        "to who sees one silo alone, and to a silo itself, less noise hides a subject than is "
        "counted here."
    ),
    "client": "Each client adds noise before it sends. That the server sees no more than the "
    "scheme "
    "says (the sum "
    "alone, where there is a secure sum), and that no more clients collude or fail than "
    "configured, is taken on trust.",
}


_NOTED = (accounting.OrderWarning, accounting.pld.WideIntervalWarning)
MOST_COMPOSITIONS = 25
MOST_CONVERSIONS = 10_000


class Plan(NamedTuple):
    """The privacy side of a run, fixed before its first round.

    scheme_config: noise_multiplier is a number. event: one round. num_units: protected units, a
      published constant.
    num_rounds: how many rounds may run, at most those asked for. epsilons: `[num_rounds + 1]`,
      spent after so many.
    noise_at: "server", "silo" or "client". baseline: a non-private model is trained beside.
    in_nats: what is claimed is information about records, in nats, and no epsilon. notes: sentences
    about how epsilon was found.
    fixed_seed: the run's randomness comes from a number in its config. by_chacha20: its rounds draw
    from a cipher under a key of 256 bits.
    uses: `[num_rounds + 1]`, how often the event counts after so many rounds, see `Scheme.uses`;
      (): once a round.
    origin: of the initial model, as `warm_start.model` tells it, or a sentence; None: drawn.
    search: of whose tries the run is the best: epsilons are then those of the search. one_run:
      epsilon of all rounds of one try alone, by the tightest accountant.
    num_params: numbers in the model. normals: of a round's noise, see `Scheme.normals`; None of
      either: not told.
    vocabulary: file of the symbols that texts are made of; None: bytes, or no text.
    canaries: of num_units, at most so many are planted to audit the run.
    alone: the promise holds towards who sees what each client or silo sends by itself.
    """

    scheme_config: Any
    event: events.PrivacyEvent
    num_units: int
    delta: float
    accountant: Method
    target_epsilon: float | None
    num_rounds: int
    epsilons: tuple[float, ...]
    noise_at: str
    baseline: bool = False
    in_nats: bool = False
    notes: tuple[str, ...] = ()
    fixed_seed: bool = False
    by_chacha20: bool = False
    uses: tuple[int, ...] = ()
    origin: dict[str, Any] | str | None = None
    search: SearchConfig | None = None
    one_run: float | None = None
    num_params: int | None = None
    normals: int | None = None
    vocabulary: str | None = None
    canaries: int = 0
    alone: bool = True

    def times(self, rounds: int) -> int:
        """How often the event counts after so many rounds."""
        return self.uses[rounds] if self.uses else rounds

    def spent_by(self, rounds: int) -> events.PrivacyEvent:
        """What so many rounds do to one unit's data, with the search that chose them."""
        return _all_of(self.search, self.event, self.times(rounds))


def _all_of(
    search: SearchConfig | None, event: events.PrivacyEvent, uses: int
) -> events.PrivacyEvent:
    """`event` so many times, in each of a search's tries if there is one."""
    event = event.repeat(uses)
    if search is None or uses == 0:
        return event
    best = events.RepeatAndSelect(event.mechanism, search.mean, search.shape)
    return dataclasses.replace(event, mechanism=best)


def plan(config: Config, scheme: Scheme, facts: Facts) -> Plan:
    """Calibrates the noise if that was asked for, and finds out how many rounds the budget allows.

    Args:
      config: its `scheme_config` is fitted to the data.
      scheme: of the config.
      facts: of the data.

    Raises:
      ValueError: the budget does not allow a single round, no noise meets it, or the scheme knows
        no budget.
    """
    settings, budget, scheme_config = config.run, config.privacy, config.scheme_config
    like = _event(scheme, scheme_config, 1.0)
    num_units = facts.num_units(like.privacy_unit)
    if not num_units:
        raise PrivacyPreconditionError(
            f"Expected examples that carry the key {SUBJECT!r} for a claim about subjects, got "
            "none: subjects unknown."
        )
    if budget.target_epsilon is not None:
        _check_budget(config.scheme, scheme_config.noise_multiplier, like, budget.target_epsilon)
    delta = delta_of(config, num_units)
    with warnings.catch_warnings(record=True) as heard:
        for category in _NOTED:
            warnings.simplefilter("always", category)
        scheme_config, event, method, epsilons = _within_budget(config, scheme, delta)
    notes = {}  # the last of a kind, which is of the most rounds
    for warning in heard:
        if issubclass(warning.category, _NOTED):
            notes[warning.category] = str(warning.message)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return Plan(
        scheme_config,
        event,
        num_units,
        delta,
        method,
        budget.target_epsilon,
        len(epsilons) - 1,
        epsilons,
        scheme.noise_at,
        settings.baseline,
        scheme.promise == "nats" and math.isfinite(scheme_config.nats),
        tuple(notes.values()),
        fixed_seed=settings.seed != RANDOM,
        by_chacha20=seeds.generator(config) == "chacha20",
        uses=tuple(uses_of(scheme, scheme_config, rounds) for rounds in range(len(epsilons))),
        search=config.search,
        one_run=_one_run(config, scheme, scheme_config, event, len(epsilons) - 1, delta),
        vocabulary=config.data.vocabulary,
        canaries=settings.canaries,
        alone=scheme.uploads_seen,
    )


def _within_budget(
    config: Config, scheme: Scheme, delta: float
) -> tuple[Any, events.PrivacyEvent, Method, tuple[float, ...]]:
    """The scheme's config with its noise, one round's event, who accounts, epsilon after each
    number of rounds.
    """
    settings, budget, scheme_config = config.run, config.privacy, config.scheme_config
    search = config.search
    used = [uses_of(scheme, scheme_config, rounds) for rounds in range(settings.num_rounds + 1)]
    if used[0] != 0 or used[1] < 1 or used != sorted(used):
        raise ValueError(
            f"Expected uses of scheme={config.scheme!r} to be 0 before the first round, 1 or more "
            f"after it, and never to fall, got {used[:10]}."
        )
    uses = used[-1]
    if budget.target_epsilon is not None and _noise_is_open(scheme, scheme_config):
        noise_multiplier = accounting.calibrate(
            lambda value: _all_of(search, _event(scheme, scheme_config, value), uses),
            epsilon=budget.target_epsilon,
            delta=delta,
            method=budget.accountant,
        )
        scheme_config = dataclasses.replace(scheme_config, noise_multiplier=float(noise_multiplier))
    event = scheme.event(scheme_config)
    method = budget.accountant
    if method == "auto":  # one accountant for the whole run: the best of all rounds
        whole = _all_of(search, event, uses)
        all_rounds = accounting.spent(whole, delta=delta, method="auto")
        method = cast(Method, all_rounds.method)
    by_use = [0.0]
    for epsilon in _epsilons(search, event, uses, delta, method):
        if budget.target_epsilon is not None and not epsilon <= budget.target_epsilon:
            break
        by_use.append(epsilon)
    spent = [by_use[count] for count in used if count < len(by_use)]
    if len(spent) == 1:
        noise = scheme_config.noise_multiplier
        at = "" if noise is None else f" at noise_multiplier={noise:.6g}"
        raise ValueError(
            f"Expected target_epsilon >= {words.at_most(epsilon)}, which one round spends{at}, or "
            f"none, for no budget, got target_epsilon={budget.target_epsilon!r}."
        )
    return scheme_config, event, method, tuple(spent)


def _one_run(
    config: Config,
    scheme: Scheme,
    scheme_config: Any,
    event: events.PrivacyEvent,
    rounds: int,
    delta: float,
) -> float | None:
    """Epsilon of one try of a search alone, if there is a search."""
    if config.search is None:
        return None
    whole = event.repeat(uses_of(scheme, scheme_config, rounds))
    return accounting.epsilon(whole, delta=delta, method="auto")


def uses_of(scheme: Scheme, scheme_config: Any, rounds: int) -> int:
    """How often the event counts after so many rounds."""
    return rounds if scheme.uses is None else scheme.uses(scheme_config, rounds)


def _noise_is_open(scheme: Scheme, scheme_config: Any) -> bool:
    """Whether the noise is still to be calibrated. Of an algorithm that is built already it is
    not.
    """
    if scheme_config.noise_multiplier is not None:
        return False
    return _event(scheme, scheme_config, 1.0) != _event(scheme, scheme_config, 2.0)


def _check_budget(
    scheme: str, noise_multiplier: float | None, event: events.PrivacyEvent, epsilon: float
) -> None:
    """Raises ValueError where no round fits any budget: nothing is guaranteed, or there is no
    noise.
    """
    if event.mechanism == events.NonPrivate():
        raise ValueError(
            f"Expected target_epsilon=none for scheme={scheme!r} as configured, which guarantees "
            f"no epsilon, got target_epsilon={epsilon!r}."
        )
    if noise_multiplier == 0:
        raise ValueError(
            f"Expected noise_multiplier > 0 where there is a budget (target_epsilon={epsilon!r} "
            f"unless told otherwise; none: no budget), got noise_multiplier={noise_multiplier!r}: "
            "without noise there is no guarantee."
        )


def _epsilons(
    search: SearchConfig | None,
    event: events.PrivacyEvent,
    num_rounds: int,
    delta: float,
    method: Method,
) -> Iterator[float]:
    """Bounds on epsilon after 1, 2, .., `num_rounds` rounds.

    A privacy-loss distribution is composed anew for each count; by Renyi divergences a round more
    is one addition and a conversion; of Gaussians all counts are one call. At most
    MOST_COMPOSITIONS or MOST_CONVERSIONS counts are asked for, and the rounds between two of them
    report the epsilon of the later one.
    """
    dear = method == "pld" or search is not None
    most = min(num_rounds, MOST_COMPOSITIONS if dear else MOST_CONVERSIONS)
    counts = [-(-num_rounds * i // most) for i in range(1, most + 1)]
    noise = effective_noise(event.mechanism) if method == "gdp" and search is None else None
    found: Iterable[float]
    if noise:
        found = accounting.gaussian.mu_to_epsilon(np.sqrt(counts) / noise, delta).tolist()
    else:
        found = (
            accounting.epsilon(_all_of(search, event, count), delta=delta, method=method)
            for count in counts
        )
    before = 0
    for count, epsilon in zip(counts, found, strict=True):
        yield from itertools.repeat(float(epsilon), count - before)
        before = count


def _event(scheme: Scheme, scheme_config: Any, noise_multiplier: float) -> events.PrivacyEvent:
    return scheme.event(dataclasses.replace(scheme_config, noise_multiplier=noise_multiplier))


def number(value: Any) -> float | str:
    """A number, or an array `[]`, for JSON, which has no infinity and no NaN: those become
    words.
    """
    value = float(value)
    return value if math.isfinite(value) else str(value)


def _spent(plan: Plan, rounds: int) -> accounting.Spent:
    with warnings.catch_warnings():
        for category in _NOTED:  # the plan has noted it
            warnings.simplefilter("ignore", category)
        return accounting.spent(plan.spent_by(rounds), delta=plan.delta, method=plan.accountant)


def certified_claim(plan: Plan, rounds: int) -> dict[str, Any]:
    """What `rounds` rounds have spent, as plain data: the content of privacy.json."""
    event = plan.event
    ledger = accounting.Ledger(
        privacy_unit=event.privacy_unit, neighboring_relation=event.neighboring_relation
    )
    if rounds and plan.search is None:
        ledger.append(event, plan.times(rounds))
    elif rounds:
        ledger.append(plan.spent_by(rounds))
    spent = _spent(plan, rounds)
    searched = {} if plan.search is None else {"search": _search_claim(plan)}
    return searched | {
        "accountant": plan.accountant,
        "certified": spent.certified,
        "certified_by": spent.reason,
        "delta": plan.delta,
        "epsilon": number(plan.epsilons[rounds]),
        "float32_tail_delta": tail_delta(plan, rounds),
        "format": 1,
        "ledger": ledger.to_json(),
        "neighboring_relation": str(event.neighboring_relation),
        "noise_multiplier": plan.scheme_config.noise_multiplier,
        "num_units": plan.num_units,
        "privacy_unit": event.privacy_unit,
        "rounds": rounds,
        "seed": "fixed" if plan.fixed_seed else RANDOM,
        "statement": statement(plan, rounds),
        "target_epsilon": plan.target_epsilon,
        "initial_model": plan.origin,
    }


def _search_claim(plan: Plan) -> dict[str, Any]:
    """What a search was, and what one of its tries spends alone."""
    search = plan.search
    assert search is not None and plan.one_run is not None
    return {
        "mean_tries": search.mean,
        "shape": search.shape,
        "score": f"held-out {search.score}",
        "epsilon_of_one_try": number(plan.one_run),
        "grid": json.loads(json.dumps(search.grid)),  # lists, as a checkpoint reads them back
    }


def agree(plan: Plan, ledger: dict[str, Any], rounds: int) -> bool:
    """Whether a checkpoint's `ledger` is what the plan claims after so many rounds.

    Where not every count of rounds is asked for, the epsilons between depend on how many rounds
    were
    planned: a run with more of them is told by its events alone.
    """
    claimed = certified_claim(plan, rounds)
    dear = plan.accountant == "pld" or plan.search is not None
    if plan.num_rounds > (MOST_COMPOSITIONS if dear else MOST_CONVERSIONS):
        between = ("epsilon", "statement")
        claimed, ledger = (
            {k: v for k, v in one.items() if k not in between} for one in (claimed, ledger)
        )
    return ledger == claimed


def delta_warning(plan: Plan) -> str | None:
    """What the delta allows, in words; None where it is small, or no claim."""
    if not math.isfinite(plan.epsilons[-1]):
        return None
    return words.large_delta(plan.delta, plan.event.privacy_unit, plan.num_units)


_FLOATS = (
    "The analysis is of real-valued Gaussian noise; the noise is drawn and added in float32, whose "
    "lowest bits tell more than is counted."
)
_INTEGERS = (
    "Noise is drawn and added in whole numbers, from random bits that are taken to be uniform."
)


_OF_THE_SEARCH = (
    "The held-out {} chose the model among tries: the examples held out are taken to be public, "
    "nobody in them is protected, and the number is a little too good. How many tries there were, "
    "what the others reached, and how long all of them took is secret; whoever learns it may learn "
    "more than epsilon says."
)


def of_search(plan: Plan) -> str:
    """What the claim owes to a search, where the plan has one."""
    assert plan.search is not None and plan.one_run is not None
    return (
        "Epsilon is that of the whole search for hyper-parameters, however many tries it had; one "
        f"of them alone spends epsilon {shown_epsilon(plan.one_run)}."
    )


def statement(plan: Plan, rounds: int) -> dict[str, Any]:
    """The claim in words: `guarantee` is a sentence, `not_covered` a list of them."""
    unit = plan.event.privacy_unit
    epsilon = plan.epsilons[rounds]
    if plan.in_nats and not math.isfinite(epsilon):
        counted = (
            "No epsilon: noise is in all that a client sends, and what is claimed is how much is "
            "told about each record, in nats."
        )
        if plan.origin is not None:
            counted += f" {of_origin(plan, rounds)}"
        return {"guarantee": counted, "not_covered": [of_seed(plan)]}
    if not math.isfinite(epsilon):
        why = (
            "it added no noise to what was sent, or noise and divisors that depend on private data"
        )
        return {"guarantee": f"None: {why}, so its epsilon is infinite.", "not_covered": []}
    found = dataclasses.replace(_spent(plan, rounds), epsilon_upper=epsilon)
    counted = f"{plan.num_units}"
    if plan.canaries:
        counted += f", of which up to {plan.canaries} are planted canaries"
    guarantee = words.claim(
        plan.spent_by(rounds), found, released=f"the model after each of {rounds} rounds, "
    ) + (
        f" The number of {unit}s ({counted}) and every number in the configuration "
        "except a seed are public."
    )
    if plan.origin is not None:
        guarantee += f" {of_origin(plan, rounds)}"
    if plan.search is not None:
        guarantee += f" {of_search(plan)}"
    others = "Trying several configurations" if plan.search is None else "Another search or run"
    not_covered = [
        "The diagnostics in metrics.jsonl and in this report (training loss, cohort size, clipped "
        "fraction, clients left out, label distribution, accuracy and metrics of clients) are "
        "exact. They are for the experimenter, not for release.",
        "Held-out accuracy and loss are computed on examples that are taken to be public.",
        f"{others} on the same data spends budget of its own, which is not counted here.",
        _TRUST["silo, in a sum" if plan.noise_at == "silo" and not plan.alone else plan.noise_at],
        _INTEGERS if _in_integers(plan) else _FLOATS,
        *([] if _in_integers(plan) else of_tail(plan, rounds)),
        of_seed(plan),
    ]
    if plan.vocabulary is not None:
        not_covered.insert(
            2,
            f"Text is told by the symbols of {plan.vocabulary}, which are taken to be public: what "
            "was in the text that they were made of is not counted.",
        )
    if plan.baseline:
        beside = (
            "The non-private model trained beside it, for comparison, has neither clipping nor "
            "noise: it protects "
        )
        not_covered.insert(2, beside + "nobody.")
    if plan.search is not None:
        not_covered.insert(0, _OF_THE_SEARCH.format(plan.search.score))
    warning = delta_warning(plan)
    if warning is not None:
        not_covered.insert(0, warning[0].upper() + warning[1:])
    if unit == "subject":
        not_covered.insert(
            0,
            "Subjects are told apart by the ids that examples carry; a bound on the silos of one "
            "subject, where the configuration sets one, was held against these data here, which "
            "no silo could do by itself.",
        )
    if unit == "example":
        not_covered.insert(
            0, "Several examples of one person are protected one by one, not together."
        )
    return {"guarantee": guarantee, "not_covered": not_covered}


def _in_integers(plan: Plan) -> bool:
    return exact.asked(plan.scheme_config) or words.in_integers(plan.event.mechanism)


def of_origin(plan: Plan, rounds: int) -> str:
    """What the claim owes to the initial model of a run whose plan has an `origin`."""
    if not isinstance(plan.origin, dict):
        return str(plan.origin)
    if not math.isfinite(plan.epsilons[rounds]):
        return warm_start.uncounted(plan.origin)
    claim = {
        "epsilon": plan.epsilons[rounds],
        "delta": plan.delta,
        "privacy_unit": plan.event.privacy_unit,
        "neighboring_relation": str(plan.event.neighboring_relation),
    }
    return warm_start.sentence(plan.origin, claim)


def rounds_left(plan: Plan, scheme: Scheme, rounds: int) -> int | None:
    """How many rounds more the budget allows at the run's noise; None where there is no budget."""
    target = plan.target_epsilon
    if target is None or plan.search is not None:  # what a search chose does not go on
        return None

    def fits(more: int) -> bool:
        uses = uses_of(scheme, plan.scheme_config, rounds + more)
        event = plan.event.repeat(uses)
        return accounting.epsilon(event, delta=plan.delta, method=plan.accountant) <= target

    with warnings.catch_warnings():
        for category in _NOTED:
            warnings.simplefilter("ignore", category)
        low, high = 0, 1
        while rounds + high <= MOST_STEPS and fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def tail_delta(plan: Plan, rounds: int) -> float | None:
    """What is to be added to delta because float32 normals end; None where there are none, nothing
    is claimed, or no bound is known.
    """
    if plan.normals is None or not rounds or _in_integers(plan):
        return None
    if plan.search is not None:  # whose delta is not that of the rounds of one try
        return None
    if not math.isfinite(plan.epsilons[rounds]):
        return None
    return float32_tail.of_event(plan.spent_by(rounds), plan.normals, plan.delta)


def of_tail(plan: Plan, rounds: int) -> list[str]:
    """The same as a sentence."""
    if not rounds:
        return []
    found = tail_delta(plan, rounds)
    end = f"float32 normals end at {float32_tail.END} standard deviations."
    if found is None:
        return [f"{end} What that adds to delta is not counted: no bound is known of such noise."]
    return [
        f"{end} Counted by itself, that adds {words.rounded_up(found, 3)} to delta at most, for "
        f"{rounds} rounds of {plan.num_params} parameters; the delta that is claimed leaves it out."
    ]


def model_name(plan: Plan, rounds: int) -> str:
    """What the run's own model is called beside the non-private one."""
    if math.isfinite(plan.epsilons[rounds]):
        return "private"
    return "noisy" if plan.in_nats else "no guarantee"


def of_seed(plan: Plan) -> str:
    """What the claim owes to the run's seed."""
    threefry = "JAX's threefry generator, which is not a cryptographic source,"
    if plan.fixed_seed:
        generator = "ChaCha20" if plan.by_chacha20 else threefry
        return (
            f"This run is an experiment: its randomness comes from {generator} and a fixed seed, "
            "which stands in config.toml and, below 2**32, is found by trying them all. Whoever "
            "knows it can remove the noise: release no model of this run."
        )
    secret = (
        f"made of 256 bits of the operating system ({SEED}, or the file of --secret, which is no "
        "part of what is published)."
    )
    if plan.by_chacha20:
        return (
            f"Randomness comes from ChaCha20 under a key of 256 bits, {secret} Whoever has that "
            "file can remove the noise; a search over keys cannot."
        )
    return (
        f"Randomness comes from {threefry} under a key of 64 bits, {secret} Whoever has that file "
        "can remove the noise, and so can a search over all 2**64 keys."
    )
