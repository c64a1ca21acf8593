"""What `fljax attack --attack lira` does once its flags are good: models through a scheme, LiRA,
bounds, a report.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, data, models, schemes
from fljax.accounting import words
from fljax.attacks import rounds, shadow, table, trained
from fljax.cli import _run_files
from fljax.simulation.report import attack_figures, run_page

TITLE = "Membership"
HEAD = (
    "epsilon",
    "noise",
    "AUC",
    "largest AUC",
    "TPR at 5 % FPR",
    "accuracy on members",
    "on others",
    "verdict",
)
_WRONG_LABELS, _HIDDEN = 0.2, (32,)


class Line(NamedTuple):
    """One budget. auc, tpr: of LiRA on the target. bound: the largest area that is certified.
    accuracies: of the target, on its members and on the rest of the pool. holds: the area is within
    the bound, beyond chance; None where no area could have been past it.
    """

    budget: float
    noise: float
    auc: float
    bound: float
    tpr: float
    member_accuracy: float
    other_accuracy: float
    holds: bool | None


class Found(NamedTuple):
    """lines: one a budget. bound: what it bounds. standing: of that."""

    lines: list[Line]
    bound: str = "area at most"
    standing: str = "certified"


def run(options: Any, say: Callable[[str], None]) -> Found:
    """LiRA at every budget; target and shadow models of a budget are one program.

    Raises:
      ValueError: a budget cannot be reached.
    """
    scheme = schemes.get(options.scheme)
    start = _config(options, scheme)
    pool, shape = _pool(options)
    root = jax.random.key(options.seed, impl="threefry2x32")
    model = models.create(
        "mlp", example_shape=shape, num_classes=10, key=jax.random.fold_in(root, 0), hidden=_HIDDEN
    )
    loss = models.softmax_cross_entropy(model.apply)
    # One pair more, less one: the target is nobody's complement.
    included = shadow.halves(jax.random.fold_in(root, 1), options.shadows + 2, options.pool)[1:]
    lines = []
    for place, budget in enumerate(options.budgets):
        event = lambda noise: scheme.run_event(
            dataclasses.replace(start, noise_multiplier=noise), options.num_rounds
        )
        method = rounds.quick_method(event(1.0))
        noise = float(
            accounting.calibrate(event, epsilon=budget, delta=options.delta, method=method)
        )
        config = dataclasses.replace(start, noise_multiplier=noise)
        keys = jax.random.split(jax.random.fold_in(root, 2 + place), len(included))
        params = trained.models(
            options.scheme,
            config,
            loss,
            model.params,
            pool,
            included,
            keys,
            num_rounds=options.num_rounds,
        )
        found = trained.lira(model.apply, params, pool, included, event(noise))
        target = jax.tree.map(lambda leaf: leaf[0], params)
        right = np.asarray(
            jax.vmap(model.apply, (None, 0))(target, pool["x"]).argmax(-1) == pool["y"]
        )
        lines.append(
            Line(
                budget=float(budget),
                noise=noise,
                auc=found.auc,
                bound=found.largest_auc,
                tpr=found.tpr,
                member_accuracy=float(right[found.members].mean()),
                other_accuracy=float(right[~found.members].mean()),
                holds=within(
                    found.auc,
                    found.largest_auc,
                    int(min(found.members.sum(), (~found.members).sum())),
                ),
            )
        )
        told = f"epsilon {words.at_most(budget)}: {len(included)} models trained and attacked"
        if lines[-1].holds is None:
            cannot = f"{options.pool} examples prove no area above {lines[-1].bound:.3g}"
            told += f"; cannot tell: {cannot}"
        say(told)
    return Found(lines)


def within(auc: float, bound: float, num: int) -> bool | None:
    """Whether an area is at most `bound`, up to three standard errors; None where not even an area
    of 1 would be above.

    If the true area is `bound`, the variance of one that is counted on groups of `num` examples and
    more is at most bound (1 - bound) / num, for examples that are independent. Those of one target
    model are not quite.
    """
    slack = 3 * math.sqrt(bound * (1 - bound) / num)
    return None if 1 - slack <= bound else auc - slack <= bound


def _config(options: Any, scheme: Any) -> Any:
    """One local step, no momentum, no cohorts, and clients that have room for the pool."""
    names = {field.name for field in dataclasses.fields(scheme.Config)}
    own = "local_learning_rate" if "local_learning_rate" in names else "server_learning_rate"
    changes: dict[str, Any] = {own: options.learning_rate}
    if "sampling_prob" in names:
        changes["sampling_prob"] = 1.0
    if "records_per_client" in names:
        found = rounds.config(options.scheme, noise_multiplier=1.0)
        num_clients = scheme.population(found).num_clients or 2
        changes["records_per_client"] = -(-options.pool // num_clients)
    return rounds.config(options.scheme, noise_multiplier=1.0, **changes)


def _pool(options: Any) -> tuple[dict[str, jax.Array], tuple[int, ...]]:
    digits, rng = data.load("digits").train, np.random.default_rng([options.seed, 2])
    x, y = digits["x"][: options.pool], digits["y"][: options.pool].copy()
    wrong = rng.random(len(y)) < _WRONG_LABELS
    y[wrong] = rng.integers(0, 10, wrong.sum())
    return {"x": jnp.asarray(x), "y": jnp.asarray(y)}, x.shape[1:]


def cells(line: Line) -> list[str]:
    """A line as text, in the order of HEAD."""
    shown = (
        line.budget,
        line.noise,
        line.auc,
        line.bound,
        line.tpr,
        line.member_accuracy,
        line.other_accuracy,
    )
    return [*(f"{value:.3g}" for value in shown), table.VERDICTS[line.holds]]


def sections(options: Any, found: Found) -> list[str]:
    """Of the report."""
    lines = found.lines
    picture = attack_figures.success(
        [line.budget for line in lines],
        {"LiRA": [line.auc for line in lines]},
        [line.bound for line in lines],
        unit=f"epsilon at delta {words.at_most(options.delta)}",
        quantity="area under the curve of rates",
        share=True,
    )
    note = (
        f"{options.pool} digits, a fifth with labels of chance, so that models have to memorise; "
        f"{options.shadows} shadow models trained as the target is, {options.num_rounds} rounds. "
        "At 50 % the attacker guesses."
    )
    numbers = (
        "Held: the area is at most the largest certified one, up to three standard errors. Cannot "
        "tell: no area would have been above it by so much. All examples share one target model, "
        "so that the standard error is a guide."
    )
    threat = (
        "<p>The attacker has the last model, the pool with its labels, and trains models of its "
        "own in the same way. The certificate also covers attackers who see every round.</p>"
    )
    return [
        run_page.section("Membership against budget", picture, note),
        run_page.section(
            "Numbers", _run_files.html_table(HEAD, [cells(line) for line in lines]), numbers
        ),
        run_page.section("Threat model", threat),
    ]
