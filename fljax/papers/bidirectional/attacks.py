"""What the server makes of one upload, and a client of the model, method by method.

Reconstruction: the server has ONE upload of a batch of one, recovered where the model was
disguised, knows the label, and searches for the example whose gradient has its direction; or reads
the example off Phi (off the gradient without one), which a first dense layer with a bias gives
away. A network that starts with a convolution has no such read-off: there it reads the true
gradient off Psi and Phi, and searches by that. "generative": it searches among the images of a
generator that was trained on public examples, as the paper's server does (`generative`). Noise is
that of epsilon 3 by equation (23) in one round: of a client that moves its upload by the clipping
norm, as the paper counts, or by twice that, where the mode has a guarantee. What PILE's server and
a trusted one see of a single client is FedAvg's row or nothing.

Membership: of a network that knows its members by heart, as the method sends it to a client that
knows half of the members and of the others; a threshold on losses, or a classifier on outputs and
losses, is set on that half and counted on the other. It is trained without noise: what the disguise
is worth. "corrected": after the client has found the secret vector by least squares from members
that it knows (`known_network`).

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", section 6.4.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import flatten_util

from fljax import models
from fljax.accounting.shared_noise import printed
from fljax.attacks import gradient_inversion
from fljax.local import perturbed
from fljax.models import scaling
from fljax.models.functions import Apply
from fljax.models.scaling import Plan, Triple
from fljax.papers.bidirectional import (
    disguised_membership,
    generative,
    known_network,
    perturbation_leak,
    training,
)
from fljax.papers.paper import Settings
from fljax.server import perturbation, recovery
from fljax.types import Batch, Params

KNOWN_MEMBERS, DRAWS = 20, 4
BLIND = "a blind guess"


class Method(NamedTuple):
    """sends: "truth", or "gradient" or "triple" of a disguised network. noise: of
    `perturbation_leak.MODES`, "local", or None. clips: before it, at 1. moves: what one client
    moves, in clipping norms. secrets: what `perturbation.draw` takes.
    """

    sends: str
    noise: str | None = None
    clips: bool = True
    moves: float = 1.0
    secrets: dict[str, Any] | None = None


NARROW: dict[str, Any] = {"law": "log_uniform", "scale_range": (0.9, 1.1)}
# How long the paper's secret vector is, it does not say.
SERVER = {
    "FedAvg": Method("truth", clips=False),
    "TP-SMC, HybridAlpha": Method("truth", "local"),
    "ours, as printed": Method("triple", "paper", False, secrets={"additive_norm": 1.0}),
    "ours, outputs hidden": Method(
        "triple", "upload_gaussian", moves=2.0, secrets={"additive_norm": 0.1, **NARROW}
    ),
    "ours, r = 0": Method(
        "gradient", "r0_gaussian", moves=2.0, secrets={"additive_norm": 0.0, **NARROW}
    ),
}
# What a client is sent; those that are not named get the model as it is.
CLIENT: dict[str, dict[str, Any]] = {
    "PILE": {
        "additive_norm": 1.0,
        "law": "log_uniform",
        "scale_range": (0.01, 100.0),
        "form": "base",
    },
    "ours, as printed": {"additive_norm": 1.0},
    "ours, outputs hidden": {"additive_norm": 0.1, **NARROW},
}


def _law(task: training.Task, secrets: dict[str, Any]) -> dict[str, Any]:
    return secrets | ({"form": "base"} if task.plain else {})


class _Attacked(NamedTuple):
    """The network whose uploads are attacked, with what is compiled for it once."""

    model: models.Functional
    plan: Plan
    sees: "Sees"
    quality: Callable[[jax.Array, jax.Array], perturbation_leak.Quality]
    read_input: Callable[[Triple], jax.Array]
    read_gradient: Callable[..., Params]
    agrees: Callable[[perturbation.Secrets, Batch, jax.Array], list[jax.Array]]
    box: tuple[float, float]


@functools.lru_cache(maxsize=2)
def _attacked(shape: str, scale: str, folder: str | None) -> _Attacked:
    """Trained by plain steps."""
    task = training.task(shape, scale, folder)
    steps: dict[str, Any] = {"num_steps": 300, "learning_rate": 0.5}
    few = len(task.data.train["y"])
    if task.plain:  # larger steps without clipping diverge
        steps, few = {"num_steps": 40, "learning_rate": 0.01, "momentum": 0.9}, 288
    some = {name: leaf[:few] for name, leaf in task.data.train.items()}
    model = disguised_membership.fit(training.start(task, jax.random.key(0)), some, **steps)
    plan = scaling.plan(model.apply, model.params, task.data.test["x"][0], allow_plain=task.plain)
    x = task.data.train["x"]
    box = float(x.min()), float(x.max())
    return _Attacked(
        model,
        plan,
        _server(model, plan),
        jax.jit(
            jax.vmap(
                lambda guess, truth: perturbation_leak.quality(
                    plan, model.params, guess, truth, box
                )
            )
        ),
        jax.jit(jax.vmap(functools.partial(perturbation_leak.read_input, plan))),
        jax.jit(
            jax.vmap(functools.partial(perturbation_leak.read_gradient, plan), (None, None, 0, 0))
        ),
        jax.jit(functools.partial(_agrees, model, plan)),
        box,
    )


@functools.lru_cache(maxsize=2)
def _generator(shape: str, scale: str, folder: str | None) -> generative.Generator:
    """Of images like those that are attacked."""
    task = training.task(shape, scale, folder)
    box = _attacked(shape, scale, folder).box
    return generative.fit(task.data.train["x"], jax.random.key(9), box)


def _agrees(
    model: models.Functional, plan: Plan, secrets: perturbation.Secrets, known: Batch, x: jax.Array
) -> list[jax.Array]:
    """How often the network says what the true one does: as it is sent, and once corrected."""
    says = jax.vmap(model.apply, (None, 0))(model.params, x).argmax(-1)
    sent, transition = perturbation.perturb(plan, model.params, secrets)
    found = known_network.attack(plan, sent, transition, known, x)
    return [jnp.mean(one == says) for one in found]


def _search(task: training.Task) -> tuple[gradient_inversion.Settings, bool]:
    """How to search, and whether to start near the mean training example."""
    if not task.plain:
        return perturbation_leak.SEARCH, False
    # From noise it ends in local minima below the blind guess, whatever the steps.
    near = dataclasses.replace(
        perturbation_leak.SEARCH, learning_rate=0.05, signed=False, num_iterations=400
    )
    return dataclasses.replace(near, num_restarts=3), True


Sees = Callable[[Method, perturbation.Secrets | None, Batch, jax.Array], tuple[Params, Triple]]


def _server(model: models.Functional, plan: Plan) -> Sees:
    """(method, secrets, batch of one, key) -> the gradient as the server has it, and what it was
    sent.
    """
    theta = float(printed.printed_theta(training.EPSILON, training.DELTA))
    loss, params = models.squared_error(model.apply), model.params
    clients = {
        "triple": perturbed.triples(plan),
        "gradient": perturbed.gradients(plan, loss.of_output),
    }
    noises: dict[str, Callable[[jax.Array], jax.Array]] = {}

    @functools.partial(jax.jit, static_argnames=("clips", "stddev"))
    def true(batch: Batch, key: jax.Array, clips: bool, stddev: float) -> tuple[Params, Triple]:
        gradient = jax.grad(loss)(params, jax.tree.map(lambda leaf: leaf[0], batch))
        flat, unravel = flatten_util.ravel_pytree(gradient)
        if clips:
            flat = flat / jnp.maximum(1, jnp.linalg.norm(flat))
        if stddev:
            flat = flat + stddev * jax.random.normal(key, flat.shape)
        upload = unravel(flat)
        return upload, Triple(*scaling.split(plan, upload))

    @functools.partial(jax.jit, static_argnames="sends")
    def recovered(
        secrets: perturbation.Secrets, batch: Batch, noise: jax.Array, bound: float, sends: str
    ) -> tuple[Params, Triple]:
        sent, transition = perturbation.perturb(plan, params, secrets)
        triple, _ = clients[sends](sent, transition, batch, jnp.ones(1, bool))
        clean, unravel = flatten_util.ravel_pytree(perturbed.clip(triple, bound)[0])
        upload = unravel(clean + noise)
        return recovery.recover(plan, secrets, upload), upload

    def noise_of(method: Method, batch: Batch) -> Callable[[jax.Array], jax.Array]:
        """One client's on all that it sends, its peers' shares included."""
        mode = str(method.noise)
        if mode not in noises:
            client = jax.eval_shape(clients[method.sends], params, None, batch, jnp.ones(1, bool))[
                0
            ]
            own = method.moves * printed.own_stddev_for(theta, perturbation_leak.CLIENTS)
            noises[mode] = perturbation_leak.upload_noise(mode, client, own, 10 * own)
        return noises[mode]

    def sees(
        method: Method, secrets: perturbation.Secrets | None, batch: Batch, key: jax.Array
    ) -> tuple[Params, Triple]:
        if secrets is None:
            stddev = float(method.moves * printed.own_stddev_for(theta, 1)) if method.noise else 0.0
            return true(batch, key, method.clips, stddev)
        bound = jnp.asarray(1.0 if method.clips else jnp.inf)
        return recovered(secrets, batch, noise_of(method, batch)(key), bound, method.sends)

    return sees


class Reconstruction(NamedTuple):
    """Of each method of `SERVER`, and a blind guess, how near the server comes, means over the
    seed's victims; and images of the first three victims, with what it found of each.
    """

    near: dict[str, dict[str, float]]
    pictures: dict[str, Any]


@functools.lru_cache(maxsize=16)
def reconstruction(shape: str, settings: Settings, seed: int) -> Reconstruction:
    """What the server makes of the victims of a seed."""
    task = training.task(shape, settings.scale, settings.data)
    here = _attacked(shape, settings.scale, settings.data)
    model, plan, box, quality = here.model, here.plan, here.box, here.quality
    victims = 4 if task.plain else 16
    train, test = (jax.tree.map(jnp.asarray, part) for part in (task.data.train, task.data.test))
    search, near_mean = _search(task)
    search = dataclasses.replace(search, box=box)
    rows = (seed * victims + np.arange(victims)) % len(test["y"])
    x, y = test["x"][rows], test["y"][rows]
    batches = [{"x": x[k : k + 1], "y": y[k : k + 1]} for k in range(len(y))]
    one, root = x.shape[1:], jax.random.fold_in(jax.random.key(seed), 7)

    def error(found: Params, truth: Params) -> jax.Array:
        less = flatten_util.ravel_pytree(jax.tree.map(jnp.subtract, found, truth))[0]
        return jnp.linalg.norm(less) / jnp.linalg.norm(flatten_util.ravel_pytree(truth)[0])

    gradients: dict[tuple[str, str], Params] = {}
    near: dict[str, dict[str, float]] = {label: {} for label in SERVER}
    pictures = {"target": _pictures(x, box)}
    for index, (label, method) in enumerate(SERVER.items()):
        draw_key, noise_key = jax.random.split(jax.random.fold_in(root, index))
        secrets = None
        if method.secrets is not None:
            secrets = perturbation.draw(plan, draw_key, **_law(task, method.secrets))
        keys = jax.random.split(noise_key, len(y))
        views = [
            here.sees(method, secrets, batch, key) for batch, key in zip(batches, keys, strict=True)
        ]
        uploads, triples = (
            jax.tree.map(lambda *a: np.stack(a), *part) for part in zip(*views, strict=True)
        )
        gradients[label, "search"] = uploads
        if not task.plain:
            read = here.read_input(triples).reshape(x.shape)
            near[label] |= _means("read", quality(read, x))
            pictures[f"{label}: read"] = _pictures(read, box)
        if secrets is not None and method.sends == "triple":
            told = here.read_gradient(model.params, secrets, triples, y)
            errors = jax.jit(jax.vmap(error))(told, gradients["FedAvg", "search"])
            near[label]["gradient off Psi and Phi"] = float(jnp.median(errors))
            if task.plain:
                gradients[label, "read"] = told
    stacked = jax.tree.map(lambda *a: np.concatenate(a), *gradients.values())
    mean = train["x"].mean(0)
    guess = perturbation_leak.search(
        model,
        stacked,
        jnp.tile(y, len(gradients)),
        root,
        search,
        shape=one,
        start=mean if near_mean else None,
    )
    for (label, what), part in zip(gradients, guess.reshape(len(gradients), *x.shape), strict=True):
        near[label] |= _means(what, quality(part, x))
        pictures[f"{label}: {what}"] = _pictures(part, box)
    sent = [gradients[label, "search"] for label in SERVER]
    stacked = jax.tree.map(lambda *a: np.concatenate(a), *sent)
    generator = _generator(shape, settings.scale, settings.data)
    made = generative.search(model, generator, stacked, jnp.tile(y, len(SERVER)), root)
    for label, part in zip(SERVER, made.reshape(len(SERVER), *x.shape), strict=True):
        near[label] |= _means("generative", quality(part, x))
        pictures[f"{label}: generative"] = _pictures(part, box)
    near[BLIND] = _means("search", quality(jnp.broadcast_to(mean, x.shape), x))
    return Reconstruction(near, pictures)


def _means(name: str, found: perturbation_leak.Quality) -> dict[str, float]:
    return {
        f"{name} {key}": round(float(jnp.mean(value)), 6) for key, value in found._asdict().items()
    }


def _pictures(x: jax.Array, box: tuple[float, float]) -> list[Any]:
    """The first three, in the box, for JSON; grey ones without their axis of one colour."""
    inside = np.squeeze(np.clip(np.nan_to_num(np.asarray(x[:3], np.float64)), *box))
    return np.round(inside, 3).tolist()


def membership(shape: str, settings: Settings, seed: int) -> dict[str, Any]:
    """For each method of `CLIENT`, and "as it is", shares of right answers; how often the network
    of `reconstruction`, as sent and corrected, says what the true one does.
    """
    task = training.task(shape, settings.scale, settings.data)
    size = 100 if shape == "breast cancer" else 200
    steps: dict[str, Any] = {"num_steps": 4000, "learning_rate": 0.2}
    wide: dict[str, Any] = {"hidden": (64, 64)}
    if shape == "breast cancer":
        steps["num_steps"] = 20_000
    if task.plain:
        steps, wide = {"num_steps": 200, "learning_rate": 0.01, "momentum": 0.9}, {}
    heart = disguised_membership.overfitted(
        seed,
        size=size,
        dataset=task.data,
        start=training.start(task, jax.random.key(seed), **wide),
        **steps,
    )
    x, y = (jnp.concatenate([heart.members[name], heart.others[name]]) for name in ("x", "y"))
    outputs = jax.jit(jax.vmap(heart.model.apply, (None, 0)))(heart.model.params, x)
    result: dict[str, Any] = {"as it is": {"as sent": _told(outputs, y, size)}}
    here = _attacked(shape, settings.scale, settings.data)
    test = jnp.asarray(task.data.test["x"])
    known = {name: jnp.asarray(task.data.train[name][:10]) for name in ("x", "y")}
    own = scaling.plan(heart.model.apply, heart.model.params, x[0], allow_plain=task.plain)
    looks = _looks(heart.model.apply, task.plain)
    for index, (label, law) in enumerate(CLIENT.items()):
        root = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 8), index)
        told = []
        *keys, last = jax.random.split(root, DRAWS + 1)
        for key in keys:
            secrets = perturbation.draw(own, key, **_law(task, law))
            told.append([_told(one, y, size) for one in looks(heart.model.params, secrets, x, y)])
        sent, corrected = np.mean(told, axis=0).tolist()
        secrets = perturbation.draw(here.plan, last, **_law(task, law))
        result[label] = {
            "as sent": sent,
            "corrected": corrected,
            "agrees": [float(share) for share in here.agrees(secrets, known, test)],
        }
    return result


@functools.lru_cache(maxsize=4)
def _looks(apply: Apply, allow_plain: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Jitted (params, secrets, x, y) -> outputs as sent, and corrected by `KNOWN_MEMBERS`."""

    @jax.jit
    def both(params: Params, secrets: Any, x: jax.Array, y: jax.Array) -> Any:
        plan = scaling.plan(apply, params, x[0], allow_plain=allow_plain)
        sent, transition = perturbation.perturb(plan, params, secrets)
        found = known_network.client_outputs(plan, sent, transition, x)
        targets = jax.nn.one_hot(y[:KNOWN_MEMBERS], plan.num_outputs)
        r = known_network.estimate_r(
            found.outputs[:KNOWN_MEMBERS], found.alpha[:KNOWN_MEMBERS], targets
        )
        return found.outputs, known_network.corrected(found, r)

    return both


def _told(outputs: jax.Array, y: jax.Array, size: int) -> list[float]:
    """Share of right answers of the threshold on losses, and of the classifier; the first `size`
    are members.
    """
    found = np.asarray(outputs, np.float64)
    right = np.eye(found.shape[1])[np.asarray(y)]
    losses = np.square(found - right).sum(axis=1) / 2
    features = np.column_stack(
        [np.sort(found, axis=1), (found * right).sum(axis=1), np.log(losses + 1e-12)]
    )
    return [
        disguised_membership.success(losses[:size], losses[size:]),
        surrogate(features[:size], features[size:]),
    ]


def surrogate(members: np.ndarray, others: np.ndarray) -> float:
    """Share of right answers, on the second halves, of a logistic regression that was trained on
    the first.

    Args:
      members, others: features `[n, d]` and `[m, d]`.

    Source: Shokri et al. (2017), arXiv:1610.05820, with the attacker's own records for shadows.
    """
    halves = [np.split(one, [len(one) // 2]) for one in (members, others)]
    known, asked = (np.concatenate([half[k] for half in halves]) for k in (0, 1))
    says = [np.repeat([1.0, 0.0], [len(half[k]) for half in halves]) for k in (0, 1)]
    center, scale = known.mean(axis=0), known.std(axis=0) + 1e-12

    def lifted(x: np.ndarray) -> np.ndarray:
        z = np.clip((x - center) / scale, -5, 5)
        return np.column_stack([np.ones(len(z)), z, z**2])

    design, weights = lifted(known), np.zeros(2 * known.shape[1] + 1)
    for _ in range(30):  # Newton's steps, with a ridge
        chance = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        slope = design.T @ (chance - says[0]) + weights
        bend = (design.T * (chance * (1 - chance))) @ design + np.eye(len(weights))
        weights = weights - np.linalg.solve(bend, slope)
    return float(np.mean((lifted(asked) @ weights > 0) == says[1]))
