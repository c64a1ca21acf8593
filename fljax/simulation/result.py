"""What `fljax.simulate` returns: typed, frozen, and nothing in it is to be looked up by a
string.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from fljax.simulation import budget, planted, remarks
from fljax.simulation.outcome import Outcome

_BASELINE, _TEST, _CLIENTS = "baseline_", "test_", "clients_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """One round of a run, a line of metrics.jsonl; all but `epsilon` is exact, hence not private.

    Attributes:
      number: of the round, from 1.
      epsilon: spent after it; infinite where nothing is guaranteed.
      train_loss: mean over the round's clients.
      cohort_size: clients that took part.
      clipped_fraction: share of units that were clipped.
      lost: whether the model stayed as it was, for lack of clients.
      test: "loss", "accuracy" where there are classes, and own metrics, on held-out examples; empty
        between evaluations.
      baseline_train_loss, baseline_test: the same of the non-private model; None and empty without.
    """

    number: int
    epsilon: float
    train_loss: float
    cohort_size: int
    clipped_fraction: float
    lost: bool
    test: Mapping[str, float]
    baseline_train_loss: float | None
    baseline_test: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A run that has ended.

    Attributes:
      run_dir, report: the run's folder, and report.html in it.
      params: the final model, a tree like the initial one; `baseline_params`: the non-private one.
      history: one entry a round; empty in other processes than the first.
      rounds: that were run, at most those asked for.
      epsilon, delta: what they spent, for `privacy_unit`, of which there are `num_units`; epsilon
        is infinite where nothing is guaranteed.
      noise_multiplier: as configured or calibrated; None for an algorithm that was built already.
      statement: the claim in a sentence; `not_covered`: what it does not cover; `notes`: what a
        reader must not miss.
      loss, accuracy, metrics: on held-out examples; accuracy is None where there are no classes.
      client_params: `client -> params`, the model of one client, where clients keep a part of it:
        the client's own, under no guarantee. None where all use `params`.
      canaries: of `canaries` planted, how far the model moved along each, `scores [m]`, and who was
        there, `included [m]`: what `fljax.attacks.one_run.audit` takes. None where there are none.
      client_metrics: name -> client -> own metric on the client's examples; not private.
    """

    run_dir: pathlib.Path
    report: pathlib.Path
    params: object
    baseline_params: object | None
    history: tuple[Round, ...]
    rounds: int
    epsilon: float
    delta: float
    privacy_unit: str
    num_units: int
    noise_multiplier: float | None
    statement: str
    not_covered: tuple[str, ...]
    notes: tuple[str, ...]
    loss: float | None
    accuracy: float | None
    metrics: Mapping[str, float]
    client_metrics: Mapping[str, Mapping[str, float]]
    client_params: Callable[[int], object] | None = None
    canaries: planted.Scores | None = None


def of(outcome: Outcome, report: pathlib.Path) -> Result:
    """The result of a run whose report has been written."""
    plan, rounds = outcome.plan, outcome.rounds
    claim = budget.statement(plan, rounds)
    history = tuple(_round(record) for record in outcome.records)
    last = dict(history[-1].test) if history else {}
    by_client = outcome.records[-1].items() if history else ()
    return Result(
        run_dir=outcome.run_dir,
        report=report,
        params=outcome.params,
        baseline_params=outcome.baseline_params,
        history=history,
        rounds=rounds,
        epsilon=float(plan.epsilons[rounds]),
        delta=float(plan.delta),
        privacy_unit=plan.event.privacy_unit,
        num_units=plan.num_units,
        noise_multiplier=plan.scheme_config.noise_multiplier,
        statement=claim["guarantee"],
        not_covered=tuple(claim["not_covered"]),
        notes=tuple(remarks.remarks(outcome)) if history else (),
        loss=last.pop("loss", None),
        accuracy=last.pop("accuracy", None),
        metrics=last,
        client_metrics={
            name.removeprefix(_CLIENTS): {client: float(value) for client, value in values.items()}
            for name, values in by_client
            if name.startswith(_CLIENTS)
        },
        client_params=outcome.own_models,
        canaries=outcome.canaries,
    )


def _round(record: dict[str, Any]) -> Round:
    def starting(prefix: str) -> dict[str, float]:
        names = [name for name in record if name.startswith(prefix)]
        return {name.removeprefix(prefix): float(record[name]) for name in names}

    plain = record.get(_BASELINE + "train_loss")
    return Round(
        number=int(record["round"]),
        epsilon=float(record["epsilon"]),
        train_loss=float(record["train_loss"]),
        cohort_size=int(record["cohort_size"]),
        clipped_fraction=float(record["clipped_fraction"]),
        lost=bool(record.get("lost", False)),
        test=starting(_TEST),
        baseline_train_loss=None if plain is None else float(plain),
        baseline_test=starting(_BASELINE + _TEST),
    )
