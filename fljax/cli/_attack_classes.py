"""What `fljax attack --attack model_inversion` does once its flags are good: a model through a
scheme, what each class looks like to it, a report.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models, schemes
from fljax.accounting import words
from fljax.attacks import gradient_inversion, metrics, model_inversion, trained
from fljax.cli import _attack, _attack_looks, _attack_membership, _attack_noise, _own, _run_files
from fljax.simulation.report import attack_figures, run_page

TITLE = "What each class looks like"
HEAD = ("budget", "noise", "PSNR", "of the mean image", "classes told", "accuracy", "on others")
_LENGTH = 0.5  # of a class's mean from that of all, in what images are from it


class Line(NamedTuple):
    """One budget; infinite: without noise. psnr, guessed: medians over classes, beside the class's
    mean image, of what was found and of the attacker's own mean image, where it starts. picked: the
    share of classes towards whose mean image it went most, from the mean of all. member_accuracy,
    other_accuracy: of the model, on what it was trained on and on held-out images. No bound is
    taken: `bound` is 1, holds None.
    """

    budget: float
    noise: float
    psnr: float
    guessed: float
    picked: float
    member_accuracy: float
    other_accuracy: float
    images: np.ndarray
    bound: float = 1.0
    holds: bool | None = None


class Found(NamedTuple):
    """lines: without noise, then one a budget. truth: mean images of classes. unit: of budgets."""

    lines: list[Line]
    truth: np.ndarray
    unit: str
    bound: str = "share of classes at most"
    standing: str = "no bound is taken"


def told(found: Any, start: Any, truth: Any) -> float:
    """The share of classes whose image `found` `[classes, ...]` went from `start` towards its own
    mean image more than towards the others' (cosines, from the mean of all).
    """
    flat = lambda v: np.asarray(v, np.float64).reshape(len(v), -1)
    moved, own = flat(found) - flat(np.asarray(start)[None]), flat(truth)
    own = own - own.mean(0)
    own /= np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-30)
    return float(np.mean((moved @ own.T).argmax(1) == np.arange(len(own))))


def run(options: Any, own: _own.Own | None, say: Callable[[str], None]) -> Found:
    """Trains without noise and at every budget, or with the noise of `own`, and inverts each model.

    Raises:
      ValueError: a budget cannot be reached, or the data do not fit.
    """
    scheme = schemes.get(options.scheme)
    images = _attack.images(options, own)
    train, held = (_part(images, name, options.pool) for name in ("train", "test"))
    classes = images.num_classes
    labels = np.asarray(train["y"])
    if len(np.unique(labels)) < classes:
        raise ValueError(
            f"Expected each of {classes} classes among pool={options.pool} images, got "
            f"{len(np.unique(labels))}."
        )
    truth = np.stack([np.asarray(train["x"])[labels == c].mean(0) for c in range(classes)])
    sizes, base = _own.model(options.model, options.lora, own)
    root = jax.random.key(options.seed, impl="threefry2x32")
    model = models.create(
        options.model,
        example_shape=truth.shape[1:],
        num_classes=classes,
        key=jax.random.fold_in(root, 0),
        lora=options.lora,
        base=base,
        **sizes,
    )
    loss = models.softmax_cross_entropy(model.apply)
    start = jnp.mean(held["x"], 0)
    box = low, high = _attack_looks.box(images)
    psnr = lambda x, t: metrics.psnr(x, t, data_range=high - low)
    right = jax.jit(
        lambda params, part: jnp.mean(
            jax.vmap(model.apply, (None, 0))(params, part["x"]).argmax(-1) == part["y"]
        )
    )
    prior = gradient_inversion.gaussian_prior(held["x"])
    invert = jax.jit(
        lambda params: model_inversion.by_gradient(
            model.apply, params, prior, classes, length=_LENGTH
        )
    )

    def fitted(config: Any, key: jax.Array) -> Any:
        params = trained.models(
            options.scheme,
            config,
            loss,
            model.params,
            train,
            jnp.ones((1, options.pool), bool),
            key[None],
            num_rounds=options.num_rounds,
        )
        return jax.tree.map(lambda leaf: leaf[0], params)

    def by_rate(rate: float) -> Any:
        return _attack_membership.training(options, scheme, own, options.pool, rate)

    def learns(rate: float) -> float:
        bare = dataclasses.replace(by_rate(rate), noise_multiplier=0.0)
        return float(right(fitted(bare, jax.random.fold_in(root, 1)), train))

    rates = _attack_membership.RATES["classes"]
    rates = rates if options.learning_rate is None else (options.learning_rate,)
    rate = max(rates, key=learns) if own is None and len(rates) > 1 else rates[0]
    config = by_rate(rate)

    def line(place: int, budget: float, noise: float) -> Line:
        noisy = dataclasses.replace(config, noise_multiplier=noise)
        params = fitted(noisy, jax.random.fold_in(root, 2 + place))
        found = np.clip(invert(params), *box)
        near = lambda a: float(np.median([psnr(x, t) for x, t in zip(a, truth, strict=True)]))
        return Line(
            budget=float(budget),
            noise=noise,
            psnr=near(found),
            guessed=near(np.broadcast_to(start, truth.shape)),
            picked=told(found, start, truth),
            member_accuracy=float(right(params, train)),
            other_accuracy=float(right(params, held)),
            images=found,
        )

    noisy = _attack_noise.noises(
        scheme, config, options.budgets, num_rounds=options.num_rounds, delta=options.delta
    )
    lines = [line(len(noisy), math.inf, 0.0)]
    say("without noise: a model trained and inverted")
    for place, (budget, noise, _) in enumerate(noisy):
        lines.append(line(place, budget, noise))
        say(f"epsilon {words.at_most(budget)}: a model trained and inverted")
    return Found(lines, truth, f"epsilon at delta {words.at_most(options.delta)}")


def _part(images: data.Dataset, name: str, most: int) -> dict[str, jax.Array]:
    part = getattr(images, name)
    if name == "train" and len(part["y"]) < most:
        raise ValueError(f"Expected at least pool={most} training images, got {len(part['y'])}.")
    return {key: jnp.asarray(part[key][:most]) for key in ("x", "y")}


def cells(line: Line) -> list[str]:
    """A line as text, in the order of HEAD."""
    return [
        "no noise" if math.isinf(line.budget) else words.at_most(line.budget),
        f"{line.noise:.4g}",
        *(f"{value:.1f}" for value in (line.psnr, line.guessed)),
        *(f"{v:.3g}" for v in (line.picked, line.member_accuracy, line.other_accuracy)),
    ]


def sections(options: Any, found: Found) -> list[str]:
    """Of the report."""
    name = lambda line: cells(line)[0]
    rows = {"mean of the class": found.truth[:12]}
    rows |= {name(line): line.images[:12] for line in found.lines}
    lines = [line for line in found.lines if math.isfinite(line.budget)]
    picture = attack_figures.success(
        [line.budget for line in lines],
        {"classes told": [line.picked for line in lines]},
        [line.bound for line in lines],
        unit=found.unit,
        quantity="share of classes",
        share=True,
    )
    note = (
        f"{options.pool} images of {options.dataset} train a model, {options.num_rounds} rounds. A "
        "class is told where the guess went towards its mean image more than towards any other's."
    )
    threat = (
        "<p>The attacker holds the trained model, as every client does, and images that were "
        "not trained on. A class is no unit of a promise: a bound on what each example "
        "or client adds is none on what they have in common.</p>"
    )
    return [
        run_page.section(
            "Found beside the mean of each class", attack_figures.images(rows, {}), note
        ),
        run_page.section("Success against budget", picture),
        run_page.section(
            "Numbers", _run_files.html_table(HEAD, [cells(line) for line in found.lines])
        ),
        run_page.section("Threat model", threat),
    ]
