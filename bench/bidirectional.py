"""The bidirectional scheme's round against FedAvg's, what it sends, and the time until a target accuracy.

    python -m bench.bidirectional [--quick | --parts]

A round of 10 clients with 64 digits each, one gradient a client. "simulation" is one backward pass a client (pair noise
cancels and is left out), "protocol" is gradient, Psi and Phi of every client; with noise, own and that of 45 pairs on
every number sent. The time to the target accuracy is that of the rounds until held-out accuracy first reaches it,
without evaluation, on real digits. Cryptographic peers are the paper's figures (its Tables I and V), measured on its
machine and not on this one. `--parts` times the parts of a round alone: the server's perturbing, adding up and
recovering, and one client's training and noise.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness
from fljax import data, models, schemes
from fljax.local import perturbed
from fljax.models import scaling
from fljax.server import costs, perturbation, recovery
from fljax.upload import pair_noise, split_noise

CLIENTS, BATCH, TARGET = 10, 64, 0.9
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp 64-128-64-10": ("mlp", {"hidden": (128, 64)}),
    "cnn 16-32-64-10": ("cnn", {}),
    "resnet20 with group norm": ("resnet20", {}),
}
# Scales of a normalised network sit in its affine pairs alone.
NEEDS: dict[str, dict[str, Any]] = {"resnet20 with group norm": {"form": "base", "allow_plain": True}}
PROTOCOL = {"execution": "protocol"}
CLIENT = {"unit": "client_replace"}
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("dp_fedavg", {}),
    "simulation, paper": ("bidirectional", {"noise": "paper"}),
    "simulation, r0_gaussian": ("bidirectional", {"noise": "r0_gaussian", **CLIENT}),
    "protocol, without noise": ("bidirectional", {"noise": "paper", "noise_multiplier": 0.0, **PROTOCOL}),
    "protocol, clipped, without noise": (
        "bidirectional",
        {"noise": "upload_gaussian", "noise_multiplier": 0.0, **CLIENT, **PROTOCOL},
    ),
    "protocol, paper": ("bidirectional", {"noise": "paper", **PROTOCOL}),
    "protocol, upload_gaussian": ("bidirectional", {"noise": "upload_gaussian", **CLIENT, **PROTOCOL}),
}
LIMITS = {"simulation, paper": 1.3, "simulation, r0_gaussian": 1.3, "protocol, without noise": 6.0}
TRAINED = ("fedavg", "simulation, paper", "simulation, r0_gaussian", "protocol, paper")


def problem(name: str) -> tuple[data.Dataset, data.ClientData, models.Functional]:
    """Digits, the clients' shares of 64, and a model."""
    digits = data.load("digits")
    rows = np.random.default_rng(0).permutation(len(digits.train["y"]))[: CLIENTS * BATCH]
    clients = data.ClientData(
        jax.tree.map(jnp.asarray, digits.train), jnp.asarray(rows.reshape(CLIENTS, BATCH), jnp.int32)
    )
    kind, options = MODELS[name]
    model = models.create(kind, example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0), **options)
    return digits, clients, model


def algorithm(mode: str, name_of_model: str, model: models.Functional) -> Any:
    """The algorithm of a mode, with noise that does not hinder learning: what it costs is the question."""
    name, numbers = MODES[mode]
    scheme = schemes.get(name)
    if name == "dp_fedavg":
        config = scheme.non_private(
            scheme.Config(
                sampling_prob=1.0,
                local_batch_size=BATCH,
                num_local_epochs=1,
                local_learning_rate=0.5,
                server_learning_rate=1.0,
                server_momentum=0.0,
            )
        )
    else:
        settings: dict[str, Any] = {"l2_clip_norm": 10.0, "noise_multiplier": 1e-3, "server_learning_rate": 0.5}
        config = scheme.Config(
            num_parties=CLIENTS, local_batch_size=BATCH, **(settings | numbers | NEEDS.get(name_of_model, {}))
        )
    return scheme.make(config, models.squared_error(model.apply), num_units=CLIENTS)


def rounds(name: str, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of a round in every mode, in units of FedAvg's."""
    _, clients, model = problem(name)
    cohort = data.cohort(clients, jnp.arange(CLIENTS))
    cases = {}
    for mode in MODES:
        if name in NEEDS and mode not in ("fedavg", *LIMITS):
            continue  # noise costs what it costs on the others, a number sent
        found = algorithm(mode, name, model)
        step = _harness.compile_step(found.round, found.init(model.params), cohort, jax.random.key(1))
        cases[mode] = step.run
    timings = _harness.interleaved(cases, repeats=repeats)
    rows = []
    for mode, timing in timings.items():
        ratio = _harness.paired_ratio(timing, timings["fedavg"])
        row = {"model": name, "mode": mode, **timing.row(), "times fedavg": ratio, "limit": LIMITS.get(mode)}
        rows.append(row | {"least times": timing.min_ms / timings["fedavg"].min_ms})
        print(rows[-1], flush=True)
    return rows


def sent(name: str) -> dict[str, Any]:
    """Bytes of an upload, counted on the arrays that a client sends, beside the cost model's."""
    _, clients, model = problem(name)
    allow_plain = NEEDS.get(name, {}).get("allow_plain", False)
    plan = scaling.plan(model.apply, model.params, clients.examples["x"][0], allow_plain=allow_plain)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    counted = costs.perturbed_model(plan, degree=CLIENTS - 1)
    return {
        "model": name,
        "parameters": num_params,
        "upload bytes": counted.upload_bytes,
        "(2 + n_L) P bytes": costs.perturbed_model(plan, degree=CLIENTS - 1, compact=False).upload_bytes,
        "fedavg bytes": 4 * num_params,
    }


def time_to_target(name: str, mode: str, most: int) -> dict[str, Any]:
    """Seconds of the rounds until held-out accuracy first reaches TARGET."""
    digits, clients, model = problem(name)
    found = algorithm(mode, name, model)
    cohort, test = data.cohort(clients, jnp.arange(CLIENTS)), jax.tree.map(jnp.asarray, digits.test)
    one_round = jax.jit(found.round)
    state = found.init(model.params)
    jax.block_until_ready(one_round(state, cohort, jax.random.key(0)))
    seconds = 0.0
    for count in range(1, most + 1):
        start = time.perf_counter()
        state, _ = jax.block_until_ready(one_round(state, cohort, jax.random.key(0)))
        seconds += time.perf_counter() - start
        if float(models.evaluate(model.apply, state.params, test)[1]) >= TARGET:
            return {"model": name, "mode": mode, "rounds": count, "seconds": seconds}
    return {"model": name, "mode": mode, "error": f"not reached in {most} rounds"}


def parts(name: str, repeats: int) -> list[dict[str, Any]]:
    """Seconds of each part of a round, method by method, beside the paper's Table V.

    Peers' keys are there already: a client draws its own noise and that of CLIENTS - 1 peers, and expands 9 keys.
    """
    _, clients, model = problem(name)
    batch = {leaf: rows[clients.indices[0]] for leaf, rows in clients.examples.items()}
    plan = scaling.plan(model.apply, model.params, batch["x"][0])
    loss, mask, peers = models.squared_error(model.apply), jnp.ones(BATCH, bool), jnp.arange(1, CLIENTS)
    cases: dict[str, Any] = {}

    def case(method: str, part: str, fun: Any, *arguments: Any) -> None:
        cases[f"{method}: {part}"] = _harness.compile_step(fun, *arguments).run

    def mean(*uploads: Any) -> Any:
        return jax.tree.map(lambda *rows: sum(rows) / CLIENTS, *uploads)

    def copies(upload: Any) -> list[Any]:
        return [jax.tree.map(lambda leaf, k=k: leaf + float(k), upload) for k in range(CLIENTS)]

    gradient = jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, batch)))
    case("FedAvg", "train", gradient, model.params)
    case("FedAvg", "aggregate", mean, *copies(model.params))
    for method in ("paper", "upload_gaussian", "r0_gaussian"):
        norm = 0.0 if method == "r0_gaussian" else 0.3
        secrets = perturbation.draw(plan, jax.random.key(1), additive_norm=norm)
        sent, transition = perturbation.perturb(plan, model.params, secrets)
        whole = perturbed.gradients(plan, loss.of_output) if method == "r0_gaussian" else perturbed.triples(plan)

        def perturb(key: jax.Array, norm: float = norm) -> Any:
            drawn = perturbation.draw(plan, key, additive_norm=norm)
            return drawn, perturbation.perturb(plan, model.params, drawn)

        def train(sent: Any, transition: Any, method: str = method, whole: Any = whole) -> Any:
            found, _ = whole(sent, transition, batch, mask)
            return found if method == "paper" else perturbed.clip(found, 1.0)[0]

        def paper_noise(key: jax.Array, upload: Any) -> Any:
            def one(key: jax.Array) -> Any:
                return [split_noise.dn(jax.random.fold_in(key, k), leaf.shape, 1.0) for k, leaf in enumerate(upload)]

            return jax.tree.map(
                lambda leaf, drawn: leaf + jnp.sum(drawn, 0), upload, jax.vmap(one)(jax.random.split(key, CLIENTS))
            )

        def sound_noise(key: jax.Array, upload: Any) -> Any:
            keys = jax.random.split(key, CLIENTS)
            drawn = pair_noise.client_noise(keys[1:], keys[0], 0, peers, upload, own_stddev=1.0, pair_stddev=10.0)
            return jax.tree.map(jnp.add, upload, drawn)

        triple = jax.jit(train)(sent, transition)
        case(method, "perturb", perturb, jax.random.key(2))
        case(method, "recover", lambda secrets, mean: recovery.recover(plan, secrets, mean), secrets, triple)
        case(method, "aggregate", mean, *copies(triple))
        case(method, "train", train, sent, transition)
        if method == "paper":
            case(method, "noise", paper_noise, jax.random.key(3), [*triple.body, *triple.head])
        else:
            case(method, "noise", sound_noise, jax.random.key(3), triple)
    timings = _harness.interleaved(cases, repeats=repeats)
    rows = []
    for method in dict.fromkeys(key.split(": ")[0] for key in timings):
        found = {key.split(": ")[1]: t.min_ms / 1e3 for key, t in timings.items() if key.startswith(f"{method}: ")}
        row = {"model": name, "method": method, "clients": CLIENTS}
        row |= {"seconds": [found.get(part) for part in costs.PARTS], "total": sum(found.values())}
        rows.append(row | {"adds up": True, "source": "measured"})
    for reported in costs.REPORTED_PARTS:
        row = reported._asdict() | {"adds up": reported.adds_up, "source": "reported, not measured"}
        rows.append(row)
    return rows


def write_parts(repeats: int) -> None:
    """Measures, prints and writes the parts."""
    found = parts(next(iter(MODELS)), repeats)
    flat = [row | dict(zip(costs.PARTS, row["seconds"], strict=True)) for row in found]
    print(_harness.table(flat, ["model", "clients", "method", *costs.PARTS, "total", "adds up", "source"]))
    path = _harness.write("bidirectional_parts", found, note=f"seconds of {', '.join(costs.PARTS)}; least of {repeats}")
    print(f"wrote {path.relative_to(_harness.ROOT)}")


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the mlp only, fewer repeats")
    parser.add_argument("--parts", action="store_true", help="the parts of a round only")
    options = parser.parse_args(arguments)
    if options.parts or not options.quick:
        write_parts(15)
    if options.parts:
        return
    names = list(MODELS)[: 1 if options.quick else None]
    rows = [row for name in names for row in rounds(name, 5 if options.quick or name in NEEDS else 15)]
    uploads = [sent(name) for name in names]
    target = [time_to_target(names[0], mode, 300) for mode in TRAINED]
    base = next((row["seconds"] for row in target if row["mode"] == "fedavg" and "seconds" in row), None)
    for row in target:
        row |= {"times fedavg": row["seconds"] / base, "source": "measured"} if base and "seconds" in row else {}
    for table in costs.REPORTED_TIMES:
        target.append(
            {"model": table.model, "mode": table.method, "seconds": table.seconds_to_target}
            | {
                "times fedavg": table.seconds_to_target / table.fedavg_seconds_to_target,
                "source": "reported, not measured",
            }
        )
    print(_harness.table(rows, ["model", "mode", "median_ms", "min_ms", "times fedavg", "least times", "limit"]))
    print(_harness.table(uploads, list(uploads[0])))
    print(_harness.table(target, ["model", "mode", "rounds", "seconds", "times fedavg", "source"]))
    over = [row for row in rows if row["limit"] and row["least times"] > row["limit"]]
    print(f"rounds over their limit: {len(over)} of {sum(bool(row['limit']) for row in rows)}")
    path = _harness.write("bidirectional_quick" if options.quick else "bidirectional", rows + uploads + target)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
