"""What `fljax attack --attack symbols` does once its flags are good: updates of one text each, the
symbols read off them, a report.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models
from fljax.accounting import words
from fljax.attacks import analytic, audit, metrics, reconstruction, table
from fljax.cli import _attack, _own, _run_files
from fljax.data import targets
from fljax.simulation.report import attack_figures, run_page
from fljax.types import PyTree

TITLE = "Symbols of a text"
HEAD = ("epsilon", "noise", "AUC of symbols", "texts picked", "certified", "verdict")
_ERROR = 1e-3  # chance of each verdict's bound to be wrong


class Line(NamedTuple):
    """One budget; infinite: without noise. auc: chance that a symbol of the text scores above one
    that it has not, mean over updates. picked: share of updates whose text is told among all.
    bound: of that share, certified. holds: it did not get past that beyond chance; None where it
    could not have.
    """

    budget: float
    noise: float
    auc: float
    picked: float
    bound: float
    holds: bool | None


class Found(NamedTuple):
    """lines: without noise, then one a budget. bound: what it bounds. standing: of that. length: of
    the texts, in symbols.
    """

    lines: list[Line]
    bound: str
    standing: str
    length: int


def run(options: Any, own: _own.Own | None, say: Callable[[str], None]) -> Found:
    """Rounds of one text at every budget, or with the noise of `own`, and without noise.

    Raises:
      ValueError: a budget cannot be reached, the data are no text, or the model has no table of
        embeddings that its update shows.
    """
    texts = _texts(options, own)
    rows = np.random.default_rng([options.seed, 3]).permutation(len(texts.test["y"]))
    one = {name: jnp.asarray(texts.test[name][rows[: options.targets]]) for name in ("x", "y")}
    if len(one["y"]) < options.targets:
        raise ValueError(
            f"Expected targets <= {len(one['y'])}, the held-out texts of dataset="
            f"{options.dataset!r}, got targets={options.targets}."
        )
    root = jax.random.key(options.seed, impl="threefry2x32")
    sizes, base = _own.model(options.model, options.lora, own)
    create = lambda **how: models.create(
        options.model,
        example_shape=one["x"].shape[1:],
        num_classes=texts.num_classes,
        key=jax.random.fold_in(root, 0),
        **sizes,
        **how,
    )
    plain = create(base=base)
    model = create(lora=options.lora, base=plain.params)
    length = one["x"].shape[1]
    score = _scores(options, plain.params, model.params, length)
    loss = models.next_token(model.apply)
    many = jax.tree.map(lambda leaf: jnp.tile(leaf, (options.repeats, 1)), one)
    has = np.stack([np.bincount(x, minlength=texts.num_classes) > 0 for x in np.asarray(many["x"])])
    directions = reconstruction.gradients_of(loss, model.params, one)
    promise = _attack.epsilons(options, own)
    told = [
        (math.inf, _attack.without_noise(options.scheme, promise.configs[0][1]), 0.0),
        *promise.configs,
    ]
    lines, standing = [], "certified"
    for place, (budget, config, noise) in enumerate(told):
        keys = jax.random.split(jax.random.fold_in(root, 1 + place), len(has))
        moved = reconstruction.updates(
            options.scheme, config, loss, model.params, many, keys, texts
        )
        scores = score(moved)
        areas = [metrics.auc(s[there], s[~there]) for s, there in zip(scores, has, strict=True)]
        right = np.arange(len(has)) % options.targets
        hits = int((reconstruction.best_match(moved, directions) == right).sum())
        bound, holds = 1.0, None
        if place:
            bound, standing = promise.bound(config)
            holds = held(hits, len(has), bound)
        lines.append(
            Line(float(budget), noise, float(np.mean(areas)), hits / len(has), bound, holds)
        )
        what = "without noise" if place == 0 else f"epsilon {words.at_most(budget)}"
        say(f"{what}: {len(has)} updates read")
    return Found(lines, "share of texts told right, at most", standing, length)


def held(hits: int, count: int, bound: float) -> bool | None:
    """Whether so many of `count` texts told right do not get past a certified share beyond chance;
    None where all of them would not.
    """
    best, most = (audit.clopper_pearson(n, count, _ERROR)[0] for n in (hits, count))
    return bool(best <= bound) if most > bound else None


def _texts(options: Any, own: _own.Own | None) -> data.Dataset:
    return targets.settled(_own.dataset(options.dataset, own, text=True), "tokens")


def _scores(
    options: Any, plain: PyTree, trained: PyTree, length: int
) -> Callable[[PyTree], np.ndarray]:
    """What gives each symbol `[V]` a score, from updates `[T, ...]`: by the rows of a table that
    reads alone and is trained, or by what the first layer of a decoder is told, for texts of
    `length` symbols.
    """
    decoder = models.classifiers.is_decoder(options.model)
    if "embedding" not in plain or not (decoder or "embedding" in trained):
        raise ValueError(
            "Expected a model whose update shows its table of embeddings, token_lstm without lora "
            f"or a decoder, got model={options.model!r} with lora={options.lora}."
        )
    if not decoder:
        return lambda moved: np.linalg.norm(np.asarray(moved["embedding"], np.float64), axis=-1)
    inputs = _first_inputs(options.model, plain)

    def score(moved: PyTree) -> np.ndarray:
        total = np.zeros(())
        for name in ("q", "k", "v"):
            part, seen, changes = moved["layers"]["attention"][name], inputs, "kernel"
            if options.lora is not None:  # b meets what a makes of the input; a has not moved
                a = trained["layers"]["attention"][name]["a"][0]
                seen, changes = inputs @ np.asarray(a, np.float64), "b"
            each = [analytic.out_of_span(one[0], seen, length) for one in np.asarray(part[changes])]
            total = total - np.stack(each)
        return total

    return score


def _first_inputs(model: str, plain: PyTree) -> np.ndarray:
    """What the first layer's products read at each symbol, `[V, width]`: its place does not
    matter.
    """
    prefix = models.classifiers.WEIGHTS
    shape = (
        models.weights.shape_of(model.removeprefix(prefix))
        if model.startswith(prefix)
        else models.decoder.SHAPES[model.removeprefix("decoder:")]
    )
    rows = np.asarray(plain["embedding"], np.float64)
    rows = rows * (shape.width**0.5 if shape.scaled_embedding else 1.0)
    scale = np.asarray(plain["layers"]["before_attention"]["scale"][0], np.float64)
    size = np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + shape.norm_epsilon)
    return rows / size * (scale + shape.scale_from_one)


def cells(line: Line) -> list[str]:
    """A line as text, in the order of HEAD."""
    return judged(line, line.noise, line.auc, line.picked, line.bound)


def judged(line: Any, *numbers: float) -> list[str]:
    """The budget of a line, its numbers and its verdict, as text."""
    plain = math.isinf(line.budget)
    return [
        "no noise" if plain else words.at_most(line.budget),
        *(f"{value:.4g}" for value in numbers),
        "undefended" if plain else table.VERDICTS[line.holds],
    ]


def picture(options: Any, all_lines: list[Any], series: dict[str, Callable[[Any], float]]) -> str:
    """Shares against budgets, beside the bound. series: for each name a line's share."""
    lines = [line for line in all_lines if math.isfinite(line.budget)]
    return attack_figures.success(
        [line.budget for line in lines],
        {name: [share(line) for line in lines] for name, share in series.items()},
        [line.bound for line in lines],
        unit=f"epsilon at delta {words.at_most(options.delta)}",
        quantity="share of texts told right",
        share=True,
    )


def sections(options: Any, found: Found) -> list[str]:
    """Of the report."""
    series: dict[str, Callable[[Line], float]] = {
        "picked by gradient": lambda line: line.picked,
        "area for symbols": lambda line: line.auc,
    }
    drawn = picture(options, found.lines, series)
    what = "all of the model" if options.lora is None else f"matrices of rank {options.lora}"
    note = (
        f"{options.targets} texts of {found.length} symbols of {options.dataset}, "
        f"{options.repeats} rounds of each alone; what is trained is {what}. The bound is on the "
        "share of texts that anybody tells, who knows the candidates; the area has none of its "
        "own. At 50 % symbols are guessed. Matrices of a rank of no more than a text has symbols "
        "hide which ones they are from this attack."
    )
    threat = (
        "<p>The attacker sees the model before and after a round in which one text was all that "
        "anybody had, knows the model and how training goes, and the length of the text. Symbols "
        "are told by whether what the first layer reads at them lies in the span of its update, or "
        "by the rows of the table.</p>"
    )
    return [
        run_page.section("Symbols and texts against budget", drawn, note),
        run_page.section(
            "Numbers", _run_files.html_table(HEAD, [cells(line) for line in found.lines])
        ),
        run_page.section("Threat model", threat),
    ]
