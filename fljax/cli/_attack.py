"""What `fljax attack` does once its flags are good: rounds, inversions, bounds, a report."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fljax import attacks, data, models, schemes
from fljax.accounting import words
from fljax.attacks import (
    audit,
    gradient_inversion,
    metrics,
    reconstruction,
    recursive,
    table,
    victims,
)
from fljax.cli import (
    _attack_first_dense,
    _attack_looks,
    _attack_malicious,
    _attack_noise,
    _attack_observed,
    _own,
    _run_files,
)
from fljax.simulation.report import attack_figures, run_page

TITLE = "Reconstruction"
HEAD = (
    "budget",
    "noise",
    "diverged",
    "MSE",
    "inverted, then picked",
    "picked",
    "certified",
    "verdict",
)
LOOKS_HEAD = ("budget", *_attack_looks.HEAD)
_TV = 1e-3
_OPTIMIZERS: dict[str, Any] = {
    "inversion": "adam",
    "inversion_lbfgs": "lbfgs",
    "inversion_gauss_newton": "gauss_newton",
    "inversion_feature_prior": "adam",
    "dlg": "lbfgs",
    "fishing": "gauss_newton",
}
# By what a scheme promises. 1,000 nats leave a pixel of these digits exp(-31) of its variance, and
# noise of 100,000 is below what float32 holds.
BUDGETS = {"epsilon": (1.0, 10.0, 1000.0, 100_000.0), "nats": (1.0, 10.0, 100.0, 1000.0)}
RELEASED = (
    "The certificate holds for whatever model is sent, and is about whoever sees only what the "
    "mechanism releases: a server that itself adds the noise, or sums uploads that only together "
    "have enough of it, sees more, and nothing is promised against it"
)
_ERROR = 1e-3  # chance of each verdict to be wrong
_TESTS = 3  # of a verdict on an epsilon: who inverts, who picks, the error


Looks = Callable[[np.ndarray, np.ndarray], _attack_looks.Looks]


class Line(NamedTuple):
    """One budget; infinite: without noise. mse: mean over inversions, and so are psnr to
    learnt_distance, the numbers of `_attack_looks.Looks`. inverted,
    picked: shares of images told right by either attacker. bound: certified. labelled_bound: of
    whoever knows the label, which who inverts does. least_mse: of that one, certified. holds:
    nothing got past these beyond chance; None where nobody could have. images: the first inversion
    of each image.
    diverged: inversions without a finite result, which count as the mean image and as not told
    right.
    """

    budget: float
    noise: float
    diverged: int
    mse: float
    psnr: float
    registered_psnr: float
    ssim: float
    cw_ssim: float
    learnt_distance: float | None
    inverted: float
    picked: float
    bound: float
    labelled_bound: float
    least_mse: float
    holds: bool | None
    images: np.ndarray


class Found(NamedTuple):
    """lines: without noise, then one a budget. truth: the images. unit: of budgets. bound: what it
    bounds. standing: of that. sees: what the attacker sees, in words. box: the least and largest
    value of the data, of whose difference decibels are.
    """

    lines: list[Line]
    truth: np.ndarray
    unit: str
    bound: str
    standing: str
    sees: str
    box: tuple[float, float]


class Promise(NamedTuple):
    """What a scheme certifies. configs: (budget, config, its noise) of each. bound: config ->
    number, and its standing.
    """

    unit: str
    quantity: str
    configs: list[tuple[float, Any, float]]
    bound: Callable[[Any], tuple[float, str]]


def epsilons(options: Any, own: _own.Own | None, num_rounds: int = 1) -> Promise:
    """Of a scheme with an epsilon: the share of records told right, by so many rounds of each."""
    scheme = schemes.get(options.scheme)
    several, local = {"num_clients": options.clients}, _attack_observed.local_fields(options)
    if own is None:
        changes = {"noise_multiplier": 1.0, **local}
        start = reconstruction.config(options.scheme, options.batch_size, **several, **changes)
    else:
        start = reconstruction.alone(scheme, own.config, options.batch_size, **several)
        start = dataclasses.replace(start, **local)
    configs = [
        (budget, dataclasses.replace(start, noise_multiplier=noise), noise)
        for budget, noise, _ in _attack_noise.noises(
            scheme, start, options.budgets, num_rounds=num_rounds, delta=options.delta
        )
    ]

    def bound(config: Any) -> tuple[float, str]:
        event = scheme.run_event(config, num_rounds)
        return reconstruction.identification_bound(event, options.targets), "certified"

    return Promise(
        f"epsilon at delta {words.at_most(options.delta)}",
        "share of digits told right, at most",
        configs,
        bound,
    )


def nats(options: Any, dataset: data.Dataset) -> Promise:
    """Of a channel: the squared error."""
    clients = data.ClientData(dataset.train, jnp.zeros((1, 1), jnp.int32))
    seen = reconstruction.Seen(dataset, clients)
    configs = []
    for budget in options.budgets:
        config = reconstruction.config(options.scheme, options.batch_size, nats=budget)
        inputs, _ = reconstruction.of_channel(options.scheme, config, seen)
        noise = float(jnp.exp(0.5 * jnp.mean(inputs["channel"].noise.log_noise_var)))
        configs.append((budget, config, noise))

    def bound(config: Any) -> tuple[float, str]:
        _, spent = reconstruction.of_channel(options.scheme, config, seen)
        return float(
            spent.mse[0]
        ), "certified" if spent.mse_certified else f"not certified: {spent.mse_reason}"

    return Promise("nats a use", "squared error per pixel, at least", configs, bound)


class World(NamedTuple):
    """What all rounds of a call share. dataset: whose images. truth `[K, ...]`, y `[K]`: the images
    and the labels that they go by. labels `[K]`: their own. many: {"x", "y"} `[repeats K, ...]`, of
    all rounds of a budget. beside: the rest of each one's batch. victim: the model. sent: what
    clients get of it. searched: what an inversion compares with. casts: of several uploads of a
    batch, directions and thresholds of each class. first_dense: the path of the layer that this
    attack reads.
    """

    dataset: data.Dataset
    truth: np.ndarray
    y: np.ndarray
    labels: np.ndarray
    many: dict[str, jax.Array]
    beside: Any
    victim: models.Functional
    sent: models.Functional
    searched: Any
    casts: _attack_malicious.Casts | None = None
    first_dense: Any = None

    @property
    def loss(self) -> Any:
        """Of the model that clients get."""
        return models.softmax_cross_entropy(self.sent.apply)


def world(options: Any, own: _own.Own | None) -> World:
    """The images, their rounds' records and the model, as the attack has them. Those of a sweep
    have one label, the most frequent: who is told it has them all to tell apart.

    Raises:
      ValueError: there are too few images, how alike they look cannot be said, or the model has no
        layer that the attack reads.
    """
    digits = images(options, own)
    _attack_looks.check(options, digits)
    places = np.arange(len(digits.test["y"]))
    if options.sweep is not None:
        labels = np.asarray(digits.test["y"])
        places = np.flatnonzero(labels == np.bincount(labels).argmax())
        if len(places) < options.targets:
            raise ValueError(
                f"Expected targets <= {len(places)}, the held-out images of one label, with sweep, "
                f"got targets={options.targets}."
            )
    chosen = places[: options.targets]
    truth, y = digits.test["x"][chosen], digits.test["y"][chosen]
    shape = (truth.shape[1], truth.shape[2], truth.shape[3])
    make: Any = victims.smooth_lenet
    if options.attack == "recursive":
        make = lambda **given: victims.leaky_chain(**given).functional
    if options.attack == "first_dense":
        make = functools.partial(models.create, "mlp")
    if options.model is not None:
        make = functools.partial(models.create, options.model)
    victim = make(example_shape=shape, num_classes=digits.num_classes, key=jax.random.key(0))
    first = None
    if options.attack == "first_dense":
        first = _attack_first_dense.layer(victim, shape, digits.num_classes)
    searched = victim.apply
    many = {
        "x": jnp.asarray(np.tile(truth, (options.repeats, 1, 1, 1))),
        "y": jnp.asarray(np.tile(y, options.repeats)),
    }
    beside = _attack_malicious.beside(options, digits, len(many["y"]))
    sent, labels, casts = victim, y, None
    if options.attack in attacks.MALICIOUS:
        sent, searched = _attack_malicious.sent(options, victim, digits)
    if options.attack == "fishing":
        own_class = many["y"]
        if beside is not None:
            beside = _attack_malicious.relabelled(beside, own_class, digits.num_classes)
        many, y = many | {"y": jnp.zeros_like(own_class)}, np.zeros_like(y)
        casts = _attack_malicious.casts(options, victim, digits, labels)
    return World(digits, truth, y, labels, many, beside, victim, sent, searched, casts, first)


def promised(options: Any, own: _own.Own | None, dataset: data.Dataset) -> Promise:
    """What the scheme certifies at each budget."""
    if schemes.get(options.scheme).promise == "nats":
        return nats(options, dataset)
    return epsilons(options, own, _attack_malicious.num_casts(options, dataset))


def played(
    options: Any, here: World, promise: Promise, say: Callable[[str], None]
) -> tuple[list[tuple[float, Any, float]], list[Any]]:
    """((budget, config, noise), how far its rounds moved the model) without noise and of each
    budget.
    """
    root = jax.random.key(options.seed, impl="threefry2x32")
    told = [
        (math.inf, without_noise(options.scheme, promise.configs[0][1]), 0.0),
        *promise.configs,
    ]
    moved = []
    many, beside, heads = here.many, here.beside, None
    number = _attack_malicious.num_casts(options, here.dataset)
    if number > 1:
        every = lambda leaf: jnp.tile(leaf, (number,) + (1,) * (leaf.ndim - 1))
        many, beside = jax.tree.map(every, (many, beside))
        heads = {"head": _attack_malicious.heads(options, here)}
    for place, (budget, config, _) in enumerate(told):
        keys = jax.random.split(jax.random.fold_in(root, place), len(many["y"]))
        moved.append(
            reconstruction.updates(
                options.scheme,
                config,
                here.loss,
                here.sent.params,
                many,
                keys,
                here.dataset,
                beside=beside,
                sent=heads,
                num_clients=options.clients,
            )
        )
        what = "without noise" if place == 0 else f"{words.at_most(budget)} {promise.unit}"
        say(f"{what}: rounds done")
    return told, moved


def inverted(
    options: Any, here: World, config: Any, moved: list[Any], key: jax.Array, *, channel: bool
) -> np.ndarray:
    """The images behind all of `moved`, one after the other, in one program, by the `config` of
    rounds without noise; a channel's noise leaves the box that images are in.
    """
    together = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *moved)
    known = here.dataset.train["x"]
    informed = _OPTIMIZERS.get(options.attack) == "gauss_newton"
    box = None if channel else _attack_looks.box(here.dataset)
    if options.attack == "imprint":
        return _attack_malicious.read(together["imprint"], here.truth, box)
    if options.attack == "recursive":
        return _solved(here, together, jnp.tile(here.many["y"], len(moved)), box)
    if options.attack == "first_dense":
        return _attack_first_dense.read(here, together, box)
    number = _attack_malicious.num_casts(options, here.dataset)
    search = gradient_inversion.Settings(
        optimizer=_OPTIMIZERS[options.attack],
        num_iterations=options.iterations,
        # The prior says how images vary; DLG asks for none of it.
        tv_weight=0.0 if informed or options.attack == "dlg" else _TV,
        box=box,
        fit_labels=options.attack == "dlg",
    )
    if number > 1:
        prior = gradient_inversion.gaussian_prior(known)
        return _attack_malicious.caught(
            options, here, together["model"], len(moved), number, key, search, prior
        )
    whole = _whole(options)
    y = here.many["y"]
    if whole:
        y = jnp.concatenate([y[:, None], here.beside["y"]], 1)
        if options.clients > 1:
            y = y.reshape(-1, options.clients, options.batch_size)
    labels = jnp.tile(y, (len(moved), *(1,) * (y.ndim - 1)))
    if options.read_labels:
        read = _attack_observed.read(here, together, y[0].size)
        labels = jnp.asarray(read.reshape(labels.shape))
    searches = options.attack in attacks.SEARCHES
    observe = _attack_observed.observe(options, here, config) if searches else None
    penalty = None
    if options.attack == "inversion_feature_prior":
        key, learns = jax.random.split(key)
        penalty = _attack_looks.usual(here.dataset, learns)
    found = reconstruction.invert(
        here.searched,
        here.sent.params,
        together,
        labels,
        key,
        shape=here.truth.shape[1:],
        settings=search,
        prior=gradient_inversion.gaussian_prior(known) if informed else None,
        observe=observe,
        penalty=penalty,
    )
    if not whole:
        return np.asarray(found)
    of_one = jnp.zeros_like(labels) if not knows_label(options) else labels
    flat = found.reshape(len(labels), -1, *here.truth.shape[1:])
    return _of_label(flat, of_one.reshape(len(labels), -1), here.truth)


def _whole(options: Any) -> bool:
    """Whether all images of a batch are searched for together."""
    return options.batch_size * options.clients > 1 and options.attack in attacks.INVERSIONS


def knows_label(options: Any) -> bool:
    """Whether who inverts is told the label of the image, or uses none that it is not told."""
    return options.attack not in ("dlg", "first_dense") and not options.read_labels


def _of_label(found: jax.Array, labels: jax.Array, candidates: np.ndarray) -> np.ndarray:
    """Of each batch `[T, B, ...]` the image of the first label that is nearest to any of the
    candidates, `[T, ...]`: a guess, made without the truth. NaN where none is finite.
    """
    images = np.asarray(found)
    rows = images.reshape(*images.shape[:2], -1)
    flat = candidates.reshape(len(candidates), -1)
    far = np.stack([np.square(rows - one).mean(-1) for one in flat]).min(0)
    same = np.asarray(labels) == np.asarray(labels)[:, :1]
    best = np.where(same & np.isfinite(far), far, np.inf).argmin(1)
    return np.asarray(images[np.arange(len(images)), best])


def _solved(
    here: World, together: Any, y: jax.Array, box: tuple[float, float] | None
) -> np.ndarray:
    """The images by linear equations; NaN where an upload is not finite."""
    shape = here.truth.shape[1:]
    chain = victims.leaky_chain(
        example_shape=shape, num_classes=here.dataset.num_classes, key=jax.random.key(0)
    )
    names = sorted(together)
    found = np.full((len(y), *shape), np.nan, np.float32)
    for place, label in enumerate(np.asarray(y)):
        gradients = [jax.tree.map(lambda v, at=place: v[at], together[name]) for name in names]
        if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients)):
            found[place] = recursive.invert(
                chain.layers,
                [here.sent.params[name] for name in names],
                gradients,
                int(label),
                shape=shape,
                slope=chain.slope,
            ).x
    return found if box is None else np.clip(found, *box)


def judged(
    options: Any,
    here: World,
    promise: Promise,
    told: list[tuple[float, Any, float]],
    moved: list[Any],
    images: np.ndarray,
    looks: Looks,
) -> tuple[list[Line], str]:
    """(A line for each of `told`, what stands behind its bounds), by the images that were found."""
    scheme = schemes.get(options.scheme)
    channel = scheme.promise == "nats"
    known = here.dataset.train["x"]
    plain = reconstruction.gradients_of(
        here.loss,
        here.sent.params,
        {"x": jnp.asarray(here.truth), "y": jnp.asarray(here.y)},
    )
    lines = []
    number = _attack_malicious.num_casts(options, here.dataset)
    standing, each = "certified", len(here.many["y"])
    for place, (budget, config, noise) in enumerate(told):
        part = images[place * each : (place + 1) * each]
        failed = reconstruction.diverged(part)
        if channel:
            part = table.linear_estimate(part, known).astype(np.float32)
        else:
            part = np.where(failed[:, None, None, None], known.mean(0), part)
        certified = Certified(0.0, 0.0, 0.0) if channel else Certified(1.0, 1.0, 0.0)
        if place:
            bound, standing = promise.bound(config)
            certified = Certified(bound, bound, bound)
            event = scheme.run_event(config, number) if not channel else None
            if event is not None and knows_label(options):
                certified = _of_labels(event, here, bound)
            elif event is not None:
                error = reconstruction.error_bound(event, here.truth)
                certified = Certified(bound, bound, error)
        if number > 1:
            choices = _attack_malicious.picked(options, here, moved[place], number)
        else:
            choices = reconstruction.best_match(moved[place], plain)
        lines.append(_line(budget, noise, part, failed, here, choices, certified, channel, looks))
    return lines, standing


class Certified(NamedTuple):
    """`bound`, `labelled_bound` and `least_mse` of a `Line`."""

    bound: float
    labelled_bound: float
    least_mse: float


def _of_labels(event: Any, here: World, bound: float) -> Certified:
    """`bound` counts for all images; who knows the label has those of one label to tell apart, in
    the mean over images.
    """
    groups = [here.truth[here.y == label] for label in np.unique(here.y)]
    shares = [len(group) / len(here.y) for group in groups]
    picks = [reconstruction.identification_bound(event, len(group)) for group in groups]
    errors = [reconstruction.error_bound(event, group) for group in groups]
    return Certified(bound, float(np.dot(shares, picks)), float(np.dot(shares, errors)))


def run(options: Any, own: _own.Own | None, say: Callable[[str], None]) -> Found:
    """Attacks without noise and at every budget, or with the noise of `own`; all inversions of all
    budgets are one program.

    Raises:
      ValueError: a budget cannot be reached.
    """
    here = world(options, own)
    promise = promised(options, own, here.dataset)
    told, moved = played(options, here, promise, say)
    key = jax.random.fold_in(jax.random.key(options.seed, impl="threefry2x32"), len(told))
    channel = schemes.get(options.scheme).promise == "nats"
    images = inverted(options, here, told[0][1], moved, key, channel=channel)
    say("inversions done")
    looks = _attack_looks.beside(here.dataset)
    lines, standing = judged(options, here, promise, told, moved, images, looks)
    sees = seen(options, _attack_malicious.num_casts(options, here.dataset))
    box = _attack_looks.box(here.dataset)
    return Found(lines, here.truth, promise.unit, promise.quantity, standing, sees, box)


def seen(options: Any, num_casts: int) -> str:
    """What the attacker sees, in words, by so many uploads of each batch."""
    label = ", the label" if knows_label(options) else ""
    sees = f"the model before and after a round{label}, and how the mechanism works"
    if _whole(options) and knows_label(options):
        sees += "; who inverts has the labels of the whole batch"
    if options.read_labels:
        sees += (
            "; labels are read off the last layer's bias, by what the model answers to other "
            "images of the same kind"
        )
    if options.attack == "dlg":
        sees += "; labels are searched for beside images"
    if options.local_epochs > 1 or options.local_batch_size is not None:
        size = options.local_batch_size or options.batch_size
        sees += (
            f"; the client passes over its images {options.local_epochs} times in steps of {size}, "
            "in orders that the attacker does not know"
        )
    if options.clients > 1:
        sees += f"; it has the sum of {options.clients} clients, and the upload of none"
    if _OPTIMIZERS.get(options.attack) == "gauss_newton" or "feature_prior" in options.attack:
        sees += "; who inverts also has the training split, other images of the same kind"
    if options.attack in attacks.MALICIOUS:
        sees += (
            ". It is a malicious server, which sent a model that was made to give away what it "
            f"meets. {RELEASED}"
        )
    if num_casts > 1:
        sees += (
            f". Of schemes with an epsilon it has {num_casts} rounds of the same batch, each for "
            "another feature: the budget is that of all rounds"
        )
    return sees


def _line(
    budget: float,
    noise: float,
    found: np.ndarray,
    failed: np.ndarray,
    here: World,
    choices: np.ndarray,
    certified: Certified,
    channel: bool,
    looks: Looks,
) -> Line:
    many, truth = here.many, here.truth
    right = np.arange(len(found)) % len(truth)
    inverted = (reconstruction.nearest(found, truth) == right) & ~failed
    picked = choices == right
    errors = (
        np.square(found.astype(np.float64) - np.asarray(many["x"])).reshape(len(found), -1).mean(1)
    )
    holds: bool | None
    if math.isinf(budget):
        holds = None
    elif channel:
        holds = within(errors.reshape(-1, len(truth)), certified.least_mse)
    else:
        least = lambda right: audit.clopper_pearson(right, len(found), _ERROR / _TESTS)[0]
        bounds = (certified.labelled_bound, certified.bound)
        told = zip((sum(inverted), sum(picked)), bounds, strict=True)
        holds = all(least(right) <= bound for right, bound in told)
        holds &= within(errors.reshape(-1, len(truth)), certified.least_mse, _ERROR / _TESTS)
        if holds and least(len(found)) <= min(bounds):  # nobody could have been told from chance
            holds = None
    return Line(
        budget=float(budget),
        noise=noise,
        diverged=int(failed.sum()),
        mse=float(errors.mean()),
        **looks(found, truth)._asdict(),
        inverted=float(inverted.mean()),
        picked=float(picked.mean()),
        **certified._asdict(),
        holds=holds,
        images=found[: len(truth)],
    )


def images(options: Any, own: _own.Own | None) -> data.Dataset:
    """The data of the images.

    Raises:
      ValueError: they are no images, or have too few held-out ones.
    """
    found = _own.dataset(options.dataset, own)
    x = found.test["x"]
    if x.ndim != 4 or not found.num_classes or x.dtype.kind != "f":
        raise ValueError(
            "Expected a dataset of images [n, height, width, channels] with classes, got "
            f"dataset={options.dataset!r} of shape {list(x.shape)}."
        )
    if len(x) < options.targets:
        raise ValueError(
            f"Expected targets <= {len(x)}, the held-out images of dataset={options.dataset!r}, "
            f"got targets={options.targets}."
        )
    return found


def company(options: Any) -> str:
    """What else there is, in words."""
    if options.clients > 1:
        return (
            f"The image is one of {options.batch_size} records of its client, of "
            f"{options.clients} clients with as many; the others are drawn of the training split. "
            "The certificate is of one client, or one record, whatever the others have."
        )
    if options.batch_size > 1:
        return (
            f"The image is one of {options.batch_size} records of its client, the others are drawn "
            "of the training split, and no other client has any."
        )
    return "The image is the only record of its client and nobody else has any: a worst case."


def without_noise(name: str, config: Any) -> Any:
    """The config of the same rounds without noise: of a scheme with an epsilon it clips as
    before.
    """
    scheme = schemes.get(name)
    if scheme.promise == "nats":
        return scheme.non_private(config)
    return dataclasses.replace(config, noise_multiplier=0.0)


def within(errors: np.ndarray, bound: float, wrong: float = _ERROR) -> bool:
    """Whether a mean error is at least `bound`, from errors `[repeats, targets]`, up to chance.

    Repeats of one target are no targets of their own: their mean is one number, for Student's law.
    """
    each = errors.mean(0)
    margin = stats.t.isf(wrong, each.size - 1) * each.std(ddof=1) / each.size**0.5
    return bool(each.mean() + margin >= bound)


def decibels(error: float, data_range: float) -> float:
    """The signal-to-noise ratio of a mean squared error; infinite where there is none."""
    return 20 * math.log10(data_range) - 10 * math.log10(error) if error > 0 else math.inf


def cells(line: Line) -> list[str]:
    """A line as text, in the order of HEAD."""
    numbers = [line.mse, line.inverted, line.picked, line.bound]
    plain = math.isinf(line.budget)
    budget = "no noise" if plain else words.at_most(line.budget)
    start = [budget, f"{line.noise:.4g}", str(line.diverged)]
    verdict = "undefended" if plain else table.VERDICTS[line.holds]
    return [*start, *(f"{value:.4g}" for value in numbers), verdict]


def looks_cells(line: Line) -> list[str]:
    """The same in the order of LOOKS_HEAD."""
    return [cells(line)[0], *_attack_looks.cells(line)]


def sections(options: Any, found: Found) -> list[str]:
    """Of the report."""
    lines = [line for line in found.lines if math.isfinite(line.budget)]
    budgets = [line.budget for line in lines]
    bounds = [line.bound for line in lines]
    share = "share" in found.bound
    series = (
        {
            "gradient inverted, then picked": [line.inverted for line in lines],
            "picked by gradient": [line.picked for line in lines],
        }
        if share
        else {"gradient inversion and linear estimate": [line.mse for line in lines]}
    )
    low, high = found.box
    shown = lambda pictures: (pictures[:12] - low) / (high - low)
    rows = {"truth": shown(found.truth)}
    name = lambda line: cells(line)[0]
    rows |= {name(line): shown(line.images) for line in found.lines}
    of_error = lambda error: decibels(error, high - low)
    notes = {
        name(line): [
            f"{float(metrics.psnr(a, b, data_range=high - low)):.0f} dB"
            for a, b in zip(line.images, found.truth, strict=True)
        ]
        for line in found.lines
    }
    told = (
        "Who inverts knows the label, too, and is held to the bound for images of that label "
        "alone; so is the error."
        if knows_label(options)
        else "Who inverts is not told the label, and is held to the bound for all images."
    )
    knows = (
        f"It is one of {options.targets} equally likely ones: the attacker who picks knows them "
        "beforehand, who inverts learns the candidates only afterwards, to name the nearest. "
        f"{told}"
        if share
        else (
            "The attacker has no candidates: it inverts the gradient, and knows mean and "
            "covariance of training data."
        )
    )
    caption = f"Rows: {found.unit}. Below each image its signal-to-noise ratio."
    table_html = _run_files.html_table(HEAD, [cells(line) for line in found.lines])
    return [
        run_page.section(
            "Reconstructions beside the truth", attack_figures.images(rows, notes), caption
        ),
        '<div class="grid">',
        run_page.section(
            "Success against budget",
            attack_figures.success(
                budgets, series, bounds, unit=found.unit, quantity=found.bound, share=share
            ),
            f"The bound is {found.standing}.",
        ),
        run_page.section(
            "Signal-to-noise ratio against budget",
            attack_figures.success(
                budgets,
                {"gradient inversion": [of_error(line.mse) for line in lines]},
                [of_error(line.least_mse) for line in lines],
                unit=found.unit,
                quantity="PSNR of the mean error, dB",
                share=False,
            ),
            f"The bound is {found.standing}"
            f"{', for whoever knows the label' if knows_label(options) else ''}.",
        ),
        "</div>",
        run_page.section(
            "Numbers",
            table_html,
            f"Certified: {found.bound}; {found.standing}. Diverged: searches that ended nowhere; "
            "they count as the "
            "mean of all images, the best guess of who has seen nothing, and as not told right.",
        ),
        run_page.section(
            "How alike they look",
            _run_files.html_table(LOOKS_HEAD, [looks_cells(line) for line in found.lines]),
            _attack_looks.WORDS,
        ),
        run_page.section(
            "Threat model",
            f"<p>The attacker sees {found.sees}. {company(options)} {knows}</p>",
        ),
    ]
