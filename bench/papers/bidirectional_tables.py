"""The columns of the bidirectional paper's tables, method by method: accuracy, reconstruction,
membership.

    python -m bench.papers.bidirectional_tables [--quick]

Three settings: mlp 64-32-32-10 and a group-normalised ResNet20 on digits, mlp 30-16-2 on the real
breast-cancer table.
Reconstruction: the server has ONE upload of a batch of one, recovered where the model was
disguised, knows the label, and searches for the example whose gradient has its direction; or reads
the example off Phi (off the gradient without one), which a first dense layer with a bias gives
away; the ResNet20 starts with a convolution, so there it reads the true gradient off Psi and Phi,
and searches by that. Noise on that upload is that for epsilon 3 by equation (23) in one round, a
client exchanged, as in `fljax.papers.bidirectional.perturbation_leak`; "FedAvg" has none, and
neither has what the trusted server of "central" sees.
Membership: a loss threshold on a network that knows its members by heart, disguised as the method
does it; it is trained without noise, so that these columns say what the disguise is worth, and
`ceiling` what epsilon promises. Accuracy is not trained again: it is read from
`bidirectional_accuracy-cpu.json`, at epsilon 3 or the least that is there; that of "FedAvg" is
clipped by records and without noise, and "paper" and "naive" have no guarantee at theirs. The
paper's own figures stand beside as "reported, not measured".
"""

import argparse
import dataclasses
import functools
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import flatten_util

from bench import _harness, _tables
from fljax import accounting, data, models
from fljax.accounting.shared_noise import printed
from fljax.attacks import gradient_inversion
from fljax.local import perturbed
from fljax.models import scaling
from fljax.models.scaling import Plan, Triple
from fljax.papers.bidirectional import disguised_membership, known_network, perturbation_leak
from fljax.server import perturbation, recovery
from fljax.types import Batch, Params

EPSILON, DELTA, SEEDS = 3.0, 1e-5, 3


class Setting(NamedTuple):
    """data, kind, options: what `models.create` takes. accuracy: the data's name in the JSON of
    accuracies.

    examples, fit: of the training of the network whose uploads are attacked. wide, members,
    member_fit: options of the network that learns its members by heart, how many, and its training.
    search: how to search, from_mean: starting near the mean training example. base: scales in
    affine pairs alone.
    """

    data: str
    kind: str
    options: dict[str, Any]
    accuracy: str
    examples: int
    fit: dict[str, Any]
    wide: dict[str, Any]
    members: int
    member_fit: dict[str, Any]
    victims: int = 10
    search: gradient_inversion.Settings = perturbation_leak.SEARCH
    from_mean: bool = False
    base: bool = False
    seeds: int = SEEDS


# Larger steps without clipping diverge.
MOMENTUM = {"learning_rate": 0.01, "momentum": 0.9}
# From noise it ends in local minima below the blind guess, whatever the steps.
FROM_MEAN = dataclasses.replace(
    perturbation_leak.SEARCH, learning_rate=0.05, signed=False, num_iterations=400, num_restarts=3
)
SETTINGS = {
    "mlp, digits": Setting(
        "digits",
        "mlp",
        {"hidden": (32, 32)},
        "digits",
        1438,
        {"num_steps": 300, "learning_rate": 0.5},
        {"hidden": (64, 64)},
        200,
        {"num_steps": 4000, "learning_rate": 0.2},
    ),
    "mlp, breast cancer": Setting(
        "breast_cancer",
        "mlp",
        {"hidden": (16,)},
        "breast_cancer",
        455,
        {"num_steps": 300, "learning_rate": 0.5},
        {"hidden": (64, 64)},
        100,
        {"num_steps": 20_000, "learning_rate": 0.2},
    ),
    "ResNet20-GN, digits": Setting(
        "digits",
        "resnet20",
        {},
        "digits, resnet20",
        288,
        {"num_steps": 40, **MOMENTUM},
        {},
        200,
        {"num_steps": 200, **MOMENTUM},
        victims=4,
        search=FROM_MEAN,
        from_mean=True,
        base=True,
        seeds=1,
    ),
}


class Method(NamedTuple):
    """sends: "truth", or "gradient" or "triple" of a disguised network. noise: on it. clips: before
    it, at 1.

    secrets: what `perturbation.draw` takes. accuracy: the method's name in the JSON of accuracies.
    """

    sends: str
    noise: str | None
    clips: bool
    secrets: dict[str, Any] | None
    accuracy: str


NARROW: dict[str, Any] = {"law": "log_uniform", "scale_range": (0.9, 1.1)}
WIDE: dict[str, Any] = {"law": "log_uniform", "scale_range": (0.01, 100.0), "form": "base"}
METHODS = {
    "FedAvg": Method("truth", None, False, None, "none"),
    "central": Method("truth", None, True, None, "central"),
    "local": Method("truth", "local", True, None, "local"),
    "naive, equation (4)": Method(
        "triple", "naive", True, {"additive_norm": 0.3, **WIDE}, "naive, equation (4)"
    ),
    "paper": Method("triple", "paper", False, {"additive_norm": 0.3}, "oracle_clip"),
    "upload_gaussian": Method(
        "triple", "upload_gaussian", True, {"additive_norm": 0.1, **NARROW}, "upload_gaussian"
    ),
    "r0_gaussian": Method(
        "gradient",
        "r0_gaussian",
        True,
        {"additive_norm": 0.0, **NARROW},
        "r0_gaussian, scales in [0.9, 1.1]",
    ),
}
BLIND = "a blind guess: the mean example"
# Accuracy in %, PSNR in dB, Test-MSE, Feat-MSE, ASR in %; the paper's Tables II to IV. None: not
# printed.
REPORTED: dict[str, dict[str, tuple[float | None, ...]]] = {
    "CIFAR10, ResNet20": {
        "FedAvg": (84.60, 13.56, 0.80, 0.15, 72.01),
        "PILE": (83.74, 13.68, 0.78, 0.14, 50.44),
        "TP-SMC": (65.66, 10.39, 1.54, 1.29, 58.19),
        "HybridAlpha": (67.13, 10.21, 1.53, 1.91, 59.49),
        "MP-CDP": (84.21, 12.15, 0.91, 0.51, None),
        "its own": (83.15, 9.22, 2.00, 4.13, 50.30),
    },
    "CIFAR100, ResNet56": {
        "FedAvg": (53.58, 14.10, 0.46, 0.12, 67.30),
        "PILE": (52.70, 13.67, 0.54, 0.14, 50.85),
        "TP-SMC": (48.98, 10.70, 1.72, 1.25, 57.18),
        "HybridAlpha": (47.86, 10.54, 1.40, 1.34, 60.77),
        "MP-CDP": (51.03, 12.85, 0.40, 0.23, None),
        "its own": (50.64, 8.49, 2.57, 3.78, 50.23),
    },
    "breast cancer images, ResNet11, K = 5": {
        "FedAvg": (56.95, 15.61, None, None, 73.05),
        "PILE": (55.47, 11.03, None, None, 58.95),
        "TP-SMC": (55.15, 12.26, None, None, 50.27),
        "HybridAlpha": (53.84, 12.71, None, None, 56.82),
        "its own": (56.47, 9.81, None, None, 50.18),
    },
    "breast cancer images, ResNet11, K = 100": {
        "FedAvg": (60.31, 15.30, None, None, 72.36),
        "PILE": (59.92, 12.13, None, None, 55.11),
        "TP-SMC": (58.49, 12.38, None, None, 50.45),
        "HybridAlpha": (57.09, 12.50, None, None, 55.68),
        "its own": (58.98, 9.79, None, None, 50.24),
    },
}


def start(setting: Setting, options: dict[str, Any], seed: int) -> models.Functional:
    """The fresh network; a ResNet's head at a tenth, whose outputs then have the size of the
    targets.
    """
    found = data.load(setting.data)
    shape = found.train["x"].shape[1:]
    model = models.create(
        setting.kind,
        example_shape=shape,
        num_classes=found.num_classes,
        key=jax.random.key(seed),
        **options,
    )
    if setting.kind != "resnet20":
        return model
    head = jax.tree.map(lambda leaf: 0.1 * leaf, model.params["logits"])
    return models.Functional({**model.params, "logits": head}, model.apply)


def law(setting: Setting, method: Method) -> dict[str, Any]:
    """What `perturbation.draw` takes for that method's secrets on that network."""
    return (method.secrets or {}) | ({"form": "base"} if setting.base else {})


Sees = Callable[[Method, perturbation.Secrets | None, Batch, jax.Array], tuple[Params, Triple]]


def server(setting: Setting, model: models.Functional, plan: Plan) -> Sees:
    """(method, secrets, batch of one, key) -> the gradient as the server has it, and what it was
    sent.
    """
    theta = float(printed.printed_theta(EPSILON, DELTA))
    own, local = (
        2 * printed.own_stddev_for(theta, count) for count in (perturbation_leak.CLIENTS, 1)
    )
    loss, params = models.squared_error(model.apply), model.params
    gradient = jax.jit(
        lambda params, batch: jax.grad(loss)(params, jax.tree.map(lambda leaf: leaf[0], batch))
    )
    clients = {
        "triple": perturbed.triples(plan),
        "gradient": perturbed.gradients(plan, loss.of_output),
    }
    noises: dict[str, Callable[[jax.Array], jax.Array]] = {}

    @functools.partial(jax.jit, static_argnames="sends")
    def recovered(
        params: Params,
        secrets: perturbation.Secrets,
        batch: Batch,
        noise: jax.Array,
        bound: jax.Array,
        sends: str,
    ) -> tuple[Params, Triple]:
        sent, transition = perturbation.perturb(plan, params, secrets)
        triple, _ = clients[sends](sent, transition, batch, jnp.ones(1, bool))
        clean, unravel = flatten_util.ravel_pytree(perturbed.clip(triple, bound)[0])
        upload = unravel(clean + noise)
        return recovery.recover(plan, secrets, upload), upload

    def noise_of(mode: str, sends: str, batch: Batch) -> Callable[[jax.Array], jax.Array]:
        """One client's on all that it sends, its peers' shares included."""
        if mode not in noises:
            client = jax.eval_shape(clients[sends], params, None, batch, jnp.ones(1, bool))[0]
            noises[mode] = perturbation_leak.upload_noise(mode, client, own, 10 * own)
        return noises[mode]

    def truth(batch: Batch, clips: bool, key: jax.Array, stddev: float) -> tuple[Params, Params]:
        """The true gradient, clipped at 1 or not; normal noise of its shape."""
        flat, unravel = flatten_util.ravel_pytree(gradient(params, batch))
        clipped = flat / jnp.maximum(1, jnp.linalg.norm(flat)) if clips else flat
        return unravel(clipped), unravel(stddev * jax.random.normal(key, flat.shape))

    def sees(
        method: Method, secrets: perturbation.Secrets | None, batch: Batch, key: jax.Array
    ) -> tuple[Params, Triple]:
        if secrets is None:
            clean, noise = truth(batch, method.clips, key, local if method.noise else 0.0)
            upload = jax.tree.map(jnp.add, clean, noise)
            return upload, Triple(*scaling.split(plan, upload))
        if (
            method.noise == "naive"
        ):  # as the scheme `mp_dp_naive`: clipped in the simulator; Psi, Phi without noise
            clean, noise = truth(batch, True, key, local)
            pairs = zip(
                jax.tree.leaves(noise), perturbation.multipliers(plan, secrets), strict=True
            )
            scaled = jax.tree.unflatten(
                plan.structure, [leaf * multiplier for leaf, multiplier in pairs]
            )
            _, triple = recovered(
                params, secrets, batch, jnp.zeros(()), jnp.asarray(jnp.inf), method.sends
            )
            return jax.tree.map(jnp.add, clean, scaled), triple
        noise = noise_of(str(method.noise), method.sends, batch)(key)
        return recovered(
            params,
            secrets,
            batch,
            noise,
            jnp.asarray(1.0 if method.clips else jnp.inf),
            method.sends,
        )

    return sees


def accuracy(setting: Setting, method: Method) -> dict[str, Any]:
    """What `bidirectional_accuracy` measured, at `EPSILON` or else the least there; empty:
    nothing.
    """
    path = _harness.RESULTS / "bidirectional_accuracy-cpu.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [
        row
        for row in rows
        if row["dataset"] == setting.accuracy and row["method"] == method.accuracy
    ]
    if not rows:
        return {}
    row = min(rows, key=lambda row: (row["epsilon"] != EPSILON, row["epsilon"]))
    found = {
        "accuracy": row["accuracy"],
        "accuracy of": method.accuracy,
        "accuracy runs": row["seeds"],
    }
    if method.accuracy != "none":
        found["epsilon"] = row["epsilon"]
    if row["guarantee"]:
        mu = accounting.gaussian.epsilon_to_mu(row["epsilon"], DELTA)
        found["ceiling"] = float((1 + accounting.gaussian.advantage(mu)) / 2)
    return found


def _length(tree: Params) -> jax.Array:
    return jnp.linalg.norm(flatten_util.ravel_pytree(tree)[0])


def _means(name: str, found: perturbation_leak.Quality) -> dict[str, float]:
    return {f"{name} {key}": float(jnp.mean(value)) for key, value in found._asdict().items()}


def reconstruction(
    setting: Setting, seed: int, model: models.Functional, plan: Plan
) -> dict[str, Any]:
    """For each method, and a blind guess, how near the server comes: means over the seed's
    victims.
    """
    found = data.load(setting.data)
    train, test = jax.tree.map(jnp.asarray, found.train), jax.tree.map(jnp.asarray, found.test)
    box = float(train["x"].min()), float(train["x"].max())
    rows = slice(seed * setting.victims, (seed + 1) * setting.victims)
    x, y = test["x"][rows], test["y"][rows]
    batches = [{"x": x[k : k + 1], "y": y[k : k + 1]} for k in range(len(y))]
    shape = x.shape[1:]
    quality = jax.jit(
        jax.vmap(
            lambda guess, truth: perturbation_leak.quality(plan, model.params, guess, truth, box)
        )
    )
    settings = dataclasses.replace(setting.search, box=box)
    mean = train["x"].mean(0)
    first = mean if setting.from_mean else None
    sees, root = server(setting, model, plan), jax.random.fold_in(jax.random.key(seed), 7)
    body, _ = scaling.split(plan, model.params)
    features = jax.vmap(lambda x: scaling.hidden(plan, body, None, x))(x)
    read_gradients = jax.jit(
        jax.vmap(functools.partial(perturbation_leak.read_gradient, plan), (None, None, 0, 0))
    )
    errors = jax.vmap(
        lambda found, truth: _length(jax.tree.map(jnp.subtract, found, truth)) / _length(truth)
    )
    gradients: dict[tuple[str, str], Params] = {}
    result: dict[str, dict[str, Any]] = {}
    for index, (label, method) in enumerate(METHODS.items()):
        draw_key, noise_key = jax.random.split(jax.random.fold_in(root, index))
        secrets = (
            None
            if method.secrets is None
            else perturbation.draw(plan, draw_key, **law(setting, method))
        )
        keys = jax.random.split(noise_key, len(y))
        views = [
            sees(method, secrets, batch, key) for batch, key in zip(batches, keys, strict=True)
        ]
        uploads, triples = (
            jax.tree.map(lambda *a: jnp.stack(a), *part) for part in zip(*views, strict=True)
        )
        row: dict[str, Any] = {}
        if label != "central":  # its direction is FedAvg's
            gradients[label, "search"] = uploads
        if setting.kind == "mlp":
            read = jax.vmap(lambda triple: perturbation_leak.read_input(plan, triple))(triples)
            row |= _means("read", quality(read.reshape(x.shape), x))
        if secrets is not None and method.sends == "triple":
            read = jax.vmap(
                lambda triple, s=secrets: perturbation_leak.read_features(plan, s, triple)
            )(triples)
            row["features off Psi"] = float(jnp.mean(jnp.square(read - features)))
            told = read_gradients(model.params, secrets, triples, y)
            row["gradient off Psi and Phi"] = float(
                jnp.median(errors(told, gradients["FedAvg", "search"]))
            )
            if setting.kind != "mlp":
                gradients[label, "read"] = told
        result[label] = row
    stacked = jax.tree.map(lambda *a: jnp.concatenate(a), *gradients.values())
    labels = jnp.tile(y, len(gradients))
    guess = perturbation_leak.search(
        model, stacked, labels, root, settings, shape=shape, start=first
    )
    for (label, what), part in zip(gradients, guess.reshape(len(gradients), *x.shape), strict=True):
        result[label] |= _means(what, quality(part, x))
    result["central"] |= {
        key: value for key, value in result["FedAvg"].items() if key.startswith("search")
    }
    blind = quality(jnp.broadcast_to(mean, x.shape), x)
    return result | {BLIND: _means("search", blind) | {"box": box}}


def membership(setting: Setting, seed: int, **fit: Any) -> dict[str, Any]:
    """For each method the share of right answers; where nothing is disguised, on the model as it
    is.
    """
    task = disguised_membership.overfitted(
        seed,
        size=setting.members,
        dataset=setting.data,
        start=start(setting, setting.wide, seed),
        **(setting.member_fit | fit),
    )
    _, known = models.evaluate(task.model.apply, task.model.params, task.members)
    result: dict[str, dict[str, Any]] = {BLIND: {"members known by heart": float(known)}}
    for index, (label, method) in enumerate(METHODS.items()):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 8), index)
        if method.secrets is not None:
            told = disguised_membership.attack(
                task, key, allow_plain=setting.base, **law(setting, method)
            )
            result[label] = {"asr as sent": told.as_sent, "asr corrected": told.corrected}
    return result | {
        label: {"asr as sent": told.true_model}
        for label, method in METHODS.items()
        if method.secrets is None
    }


def agreement(setting: Setting, seed: int, model: models.Functional, plan: Plan) -> dict[str, Any]:
    """For each disguise, how often a client's network says what the true one says: as sent, and
    corrected.
    """
    found = data.load(setting.data)
    x = jnp.asarray(found.test["x"])
    true = jax.vmap(model.apply, (None, 0))(model.params, x).argmax(-1)
    known: Batch = {
        name: jnp.asarray(found.train[name][: perturbation_leak.KNOWN]) for name in ("x", "y")
    }
    result = {}
    for index, (label, method) in enumerate(METHODS.items()):
        if method.secrets is None:
            continue
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 9), index)
        secrets = perturbation.draw(plan, key, **law(setting, method))
        sent, transition = perturbation.perturb(plan, model.params, secrets)
        before, after = known_network.attack(plan, sent, transition, known, x)
        result[label] = {
            "agrees as sent": float(jnp.mean(before == true)),
            "agrees corrected": float(jnp.mean(after == true)),
        }
    return result


def reported() -> list[dict[str, Any]]:
    """The paper's figures, as rows."""
    names = ("accuracy", "search psnr", "search mse", "search feature_mse", "asr as sent")
    shares = ("accuracy", "asr as sent")
    rows = []
    for where, methods in REPORTED.items():
        for label, numbers in methods.items():
            cells = {
                name: value / 100 if name in shares else value
                for name, value in zip(names, numbers, strict=True)
                if value is not None
            }
            rows.append(
                {"setting": where, "method": label, "source": "reported, not measured", **cells}
            )
    return rows


def run(name: str, setting: Setting, **fit: Any) -> list[dict[str, Any]]:
    """All rows of a setting. `fit`: what to change in the training of the network that knows its
    members.
    """
    found = data.load(setting.data)
    some = {part: leaf[: setting.examples] for part, leaf in found.train.items()}
    model = disguised_membership.fit(start(setting, setting.options, 0), some, **setting.fit)
    plan = scaling.plan(model.apply, model.params, found.test["x"][0], allow_plain=setting.base)
    _, right = models.evaluate(model.apply, model.params, jax.tree.map(jnp.asarray, found.test))
    rows = []
    for seed in range(setting.seeds):
        begin = time.perf_counter()
        parts = [
            reconstruction(setting, seed, model, plan),
            membership(setting, seed, **fit),
            agreement(setting, seed, model, plan),
        ]
        for label in (*METHODS, BLIND):
            row: dict[str, Any] = {
                "setting": name,
                "seed": seed,
                "method": label,
                "source": "measured",
            }
            for part in parts:
                row |= part.get(label, {})
            if label in METHODS:
                row |= accuracy(setting, METHODS[label])
            else:
                row |= {"attacked model's accuracy": float(right), "victims": setting.victims}
            # NaN is no JSON.
            rows.append(
                {
                    key: None if isinstance(v, float) and not np.isfinite(v) else v
                    for key, v in row.items()
                }
            )
        rows[-1]["seconds"] = round(time.perf_counter() - begin, 1)
        print(
            _harness.table(
                rows[-len(METHODS) - 1 :], list(dict.fromkeys(k for r in rows for k in r))
            ),
            flush=True,
        )
    return rows


def table(rows: _tables.Rows) -> str:
    """Accuracy, reconstruction and membership method by method: measured here, then as the paper
    reports them.
    """
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["setting"], row["method"]), []).append(row)

    def mean(here: list[dict[str, Any]], name: str, form: str) -> str:
        values = [row[name] for row in here if row.get(name) is not None]
        return format(_tables.mean(here, name), form) if len(values) == len(here) else ""

    def parts(here: list[dict[str, Any]], what: str) -> str:
        forms = {"psnr": ".1f", "mse": ".3f", "feature_mse": ".2g"}
        if here[0]["source"] != "measured":  # as they are printed
            forms = dict.fromkeys(forms, ".2f")
        return " / ".join(
            text for key, form in forms.items() if (text := mean(here, f"{what} {key}", form))
        )

    body = []
    for (setting, method), here in cells.items():
        share = ".1%" if here[0]["source"] == "measured" else ".2%"
        accuracy = mean(here, "accuracy", share)
        if here[0].get("ceiling") is not None:  # which rows with a guarantee have
            accuracy += f" ({here[0]['epsilon']:g})"
        elif here[0].get("epsilon") is not None:
            accuracy += f" (*, noise as for {here[0]['epsilon']:g})"
        elif here[0].get("accuracy of") == "none":
            accuracy += " (clipped, without noise)"
        agrees = " / ".join(
            text for key in ("as sent", "corrected") if (text := mean(here, f"agrees {key}", ".0%"))
        )
        found = " / ".join(
            text for key in ("as sent", "corrected") if (text := mean(here, f"asr {key}", share))
        )
        body.append(
            [
                setting,
                method,
                accuracy,
                parts(here, "search"),
                parts(here, "read"),
                mean(here, "gradient off Psi and Phi", ".0e"),
                agrees,
                found,
                mean(here, "ceiling", ".1%"),
                here[0]["source"],
            ]
        )
    head = [
        "model, data",
        "method",
        "accuracy (epsilon)",
        "server, search on the gradient: PSNR / Test-MSE / Feat-MSE",
        "server, by Psi and Phi, or read off the gradient without them",
        "gradient off Psi and Phi, relative error",
        "client: agrees with the true model, as sent / corrected",
        "client finds members of a model trained without noise: as sent / corrected",
        "with the noise at most",
        "here or in the paper",
    ]
    return _tables.markdown(head, body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints the tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one seed, few victims and steps; no ResNet20"
    )
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name, setting in SETTINGS.items():
        if options.quick and setting.base:
            continue
        few = dataclasses.replace(setting.search, num_iterations=50)
        if options.quick:
            rows += run(name, setting._replace(victims=2, search=few, seeds=1), num_steps=200)
        else:
            rows += run(name, setting)
    note = (
        f"uploads of a batch of one, noise for epsilon {EPSILON:g} in one round of "
        f"{perturbation_leak.CLIENTS} clients"
    )
    file = "bidirectional_tables_quick" if options.quick else "bidirectional_tables"
    path = _harness.write(file, rows + reported(), note=note)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
