"""What `fljax attack --attack decepticons` does once its flags are good: updates of batches of
texts through a malicious server's decoder, the symbols read off them, a report.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import models
from fljax.accounting import words
from fljax.attacks import decepticons, reconstruction
from fljax.cli import _attack, _attack_malicious, _attack_symbols, _own, _run_files
from fljax.data import targets
from fljax.simulation.report import run_page
from fljax.types import PyTree

TITLE = "Texts read by a malicious server"
MODEL = "decoder:tiny"  # larger ones compute in bfloat16
HEAD = ("epsilon", "noise", "symbols read", "guessed", "texts picked", "certified", "verdict")
_PUBLIC = 400  # texts of the training split that say where thresholds lie


class Line(NamedTuple):
    """One budget; infinite: without noise. read: share of the batches' symbols that were read at
    their places. guessed: of those that are the most frequent one. picked: share of updates whose
    text is told among all. bound: of that share, certified. holds: it did not get past that beyond
    chance; None where it could not have.
    """

    budget: float
    noise: float
    read: float
    guessed: float
    picked: float
    bound: float
    holds: bool | None


class Found(NamedTuple):
    """lines: without noise, then one a budget. bound: what it bounds. standing: of that. length: of
    the texts, in symbols. public: texts that the attacker has.
    """

    lines: list[Line]
    bound: str
    standing: str
    length: int
    public: int


def check_model(options: Any) -> None:
    """Raises ValueError: the model is another one than the attack's."""
    if options.model != MODEL or options.lora is not None:
        raise ValueError(
            f"Expected model={MODEL!r} without lora with decepticons, whose thresholds are finer "
            f"than bfloat16, got model={options.model!r} with lora={options.lora}."
        )


def run(options: Any, own: _own.Own | None, say: Callable[[str], None]) -> Found:
    """Rounds of a batch of texts at every budget, or with the noise of `own`, and without noise.

    Raises:
      ValueError: a budget cannot be reached, or the data are no texts or too few.
    """
    texts = targets.settled(_own.dataset(options.dataset, own, text=True), "tokens")
    rows = np.random.default_rng([options.seed, 3]).permutation(len(texts.test["y"]))
    one = {name: jnp.asarray(texts.test[name][rows[: options.targets]]) for name in ("x", "y")}
    if len(one["y"]) < options.targets:
        raise ValueError(
            f"Expected targets <= {len(one['y'])}, the held-out texts of dataset="
            f"{options.dataset!r}, got targets={options.targets}."
        )
    root = jax.random.key(options.seed, impl="threefry2x32")
    length, symbols = one["x"].shape[1], texts.num_classes
    public = texts.train["x"][:_PUBLIC]
    sent = _sent(public, symbols, jax.random.fold_in(root, 0))
    given: dict[str, Any] = {"example_shape": (length,), "num_classes": symbols, "key": root}
    loss = models.next_token(models.create(MODEL, **given).apply)
    many = jax.tree.map(lambda leaf: jnp.tile(leaf, (options.repeats, 1)), one)
    beside = _attack_malicious.beside(options, texts, len(many["y"]))
    batches = np.asarray(many["x"])[:, None]
    if beside is not None:
        batches = np.concatenate([batches, np.asarray(beside["x"])], 1)
    usual = np.bincount(np.asarray(texts.train["x"]).ravel(), minlength=symbols).argmax()
    directions = _gates(reconstruction.gradients_of(loss, sent.params, one))
    promise = _attack.epsilons(options, own)
    told = [
        (math.inf, _attack.without_noise(options.scheme, promise.configs[0][1]), 0.0),
        *promise.configs,
    ]
    lines, standing = [], "certified"
    for place, (budget, config, noise) in enumerate(told):
        keys = jax.random.split(jax.random.fold_in(root, 1 + place), len(batches))
        gates = _gates(
            reconstruction.updates(
                options.scheme, config, loss, sent.params, many, keys, texts, beside=beside
            )
        )
        found = [decepticons.read(sent, gate) for gate in gates]
        read = [decepticons.share_read(a, b) for a, b in zip(found, batches, strict=True)]
        # Who read nothing picks by the direction of the update.
        picked = reconstruction.best_match(gates, directions)
        for at, seen in enumerate(found):
            if len(seen):
                picked[at] = (seen[:, None] == np.asarray(one["x"])[None]).sum(-1).max(0).argmax()
        hits = int((picked == np.arange(len(batches)) % options.targets).sum())
        bound, holds = 1.0, None
        if place:
            bound, standing = promise.bound(config)
            holds = _attack_symbols.held(hits, len(batches), bound)
        lines.append(
            Line(
                budget=float(budget),
                noise=noise,
                read=float(np.mean(read)),
                guessed=float(np.mean(batches == usual)),
                picked=hits / len(batches),
                bound=bound,
                holds=holds,
            )
        )
        what = "without noise" if place == 0 else f"epsilon {words.at_most(budget)}"
        say(f"{what}: {len(batches)} updates read")
    return Found(lines, "share of texts told right, at most", standing, length, len(public))


def _sent(public: Any, symbols: int, key: jax.Array) -> decepticons.Corrupted:
    shape = dataclasses.replace(
        models.decoder.SHAPES[MODEL.removeprefix("decoder:")], vocabulary=symbols
    )
    return decepticons.corrupted(shape, public, key)


def _gates(params: PyTree) -> np.ndarray:
    """What the attack reads of an update: nearly all of its length."""
    return np.asarray(params["layers"]["mlp"]["gate"]["kernel"])


def cells(line: Line) -> list[str]:
    """A line as text, in the order of HEAD."""
    numbers = (line.noise, line.read, line.guessed, line.picked, line.bound)
    return _attack_symbols.judged(line, *numbers)


def sections(options: Any, found: Found) -> list[str]:
    """Of the report."""
    series: dict[str, Callable[[Line], float]] = {
        "texts picked": lambda line: line.picked,
        "symbols read": lambda line: line.read,
    }
    drawn = _attack_symbols.picture(options, found.lines, series)
    note = (
        f"{options.targets} texts of {found.length} symbols of {options.dataset}, "
        f"{options.repeats} rounds of each, in batches of {options.batch_size} with others of the "
        "training split. The bound is on the share of texts that anybody tells, who knows the "
        "candidates; the share of symbols has none of its own."
    )
    threat = (
        "<p>The attacker is a malicious server, which sent a decoder that was made to give away "
        f"what it meets, and has {found.public} other texts of the same kind. It sees the model "
        f"after one round, in which one client has {options.batch_size} texts and nobody else has "
        f"any. Whoever looks at the model that was sent sees what it is. {_attack.RELEASED}.</p>"
    )
    return [
        run_page.section("Symbols and texts against budget", drawn, note),
        run_page.section(
            "Numbers", _run_files.html_table(HEAD, [cells(line) for line in found.lines])
        ),
        run_page.section("Threat model", threat),
    ]
