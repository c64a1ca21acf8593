"""The bidirectional scheme's round against FedAvg's, what it sends, and the time until a target
accuracy.

    python -m bench.papers.bidirectional [--quick | --parts | --model NAME]

A round of 10 clients with 64 digits each, one gradient a client. "simulation" is one backward pass
a client (pair noise cancels and is left out), "protocol" is gradient, Psi and Phi of every client;
with noise, own and that of 45 pairs on every number sent. The time to the target accuracy is that
of the rounds until held-out accuracy first reaches it, without evaluation, on real digits.
Cryptographic peers are the paper's figures (its Tables I and V), measured on its machine and not on
this one. `--model resnet20` measures the models whose name holds that word alone, and keeps the
other rows of the JSON. `--parts` times the parts of a round alone: the server's perturbing, adding
up and recovering, and one client's training and noise.
"""

import argparse
import functools
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
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
NEEDS: dict[str, dict[str, Any]] = {
    "resnet20 with group norm": {"form": "base", "allow_plain": True}
}
PROTOCOL = {"execution": "protocol"}
CLIENT = {"unit": "client_replace"}
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("dp_fedavg", {}),
    "simulation, paper": ("bidirectional", {"noise": "paper"}),
    "simulation, r0_gaussian": ("bidirectional", {"noise": "r0_gaussian", **CLIENT}),
    "protocol, without noise": (
        "bidirectional",
        {"noise": "paper", "noise_multiplier": 0.0, **PROTOCOL},
    ),
    "protocol, clipped, without noise": (
        "bidirectional",
        {"noise": "upload_gaussian", "noise_multiplier": 0.0, **CLIENT, **PROTOCOL},
    ),
    "protocol, paper": ("bidirectional", {"noise": "paper", **PROTOCOL}),
    "protocol, upload_gaussian": (
        "bidirectional",
        {"noise": "upload_gaussian", **CLIENT, **PROTOCOL},
    ),
}
LIMITS = {"simulation, paper": 1.3, "simulation, r0_gaussian": 1.3, "protocol, without noise": 6.0}
# Those whose time to the target is measured.
TRAINED = {
    "mlp 64-128-64-10": (
        "fedavg",
        "simulation, paper",
        "simulation, r0_gaussian",
        "protocol, paper",
    ),
    "resnet20 with group norm": ("fedavg", *LIMITS),
}
# (learning rate, momentum) of all modes: squared loss on a fresh ResNet20, whose outputs are large,
# diverges above.
STEPS = {"resnet20 with group norm": (0.003, 0.9)}


def problem(name: str) -> tuple[data.Dataset, data.ClientData, models.Functional]:
    """Digits, the clients' shares of 64, and a model."""
    digits = data.load("digits")
    rows = np.random.default_rng(0).permutation(len(digits.train["y"]))[: CLIENTS * BATCH]
    clients = data.ClientData(
        jax.tree.map(jnp.asarray, digits.train),
        jnp.asarray(rows.reshape(CLIENTS, BATCH), jnp.int32),
    )
    kind, options = MODELS[name]
    model = models.create(
        kind, example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0), **options
    )
    return digits, clients, model


def algorithm(mode: str, name_of_model: str, model: models.Functional) -> Any:
    """The algorithm of a mode, with noise that does not hinder learning: what it costs is the
    question.
    """
    name, numbers = MODES[mode]
    scheme = schemes.get(name)
    learning_rate, momentum = STEPS.get(name_of_model, (0.5, 0.0))
    if name == "dp_fedavg":
        config = scheme.non_private(
            scheme.Config(
                sampling_prob=1.0,
                local_batch_size=BATCH,
                num_local_epochs=1,
                local_learning_rate=learning_rate,
                server_learning_rate=1.0,
                server_momentum=momentum,
            )
        )
    else:
        settings: dict[str, Any] = {
            "l2_clip_norm": 10.0,
            "noise_multiplier": 1e-3,
            "server_learning_rate": learning_rate,
            "server_momentum": momentum,
        }
        config = scheme.Config(
            num_parties=CLIENTS,
            local_batch_size=BATCH,
            **(settings | numbers | NEEDS.get(name_of_model, {})),
        )
    return scheme.make(config, models.squared_error(model.apply), num_units=CLIENTS)


def rounds(name: str, repeats: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Milliseconds of a round in every mode, in units of FedAvg's; and the compiled rounds."""
    _, clients, model = problem(name)
    cohort = data.cohort(clients, jnp.arange(CLIENTS))
    cases, compiled = {}, {}
    for mode in MODES:
        if name in NEEDS and mode not in ("fedavg", *LIMITS):
            continue  # noise costs what it costs on the others, a number sent
        found = algorithm(mode, name, model)
        state = found.init(model.params)
        compiled[mode] = jax.jit(found.round).lower(state, cohort, jax.random.key(1)).compile()
        cases[mode] = functools.partial(compiled[mode], state, cohort, jax.random.key(1))
    timings = _harness.interleaved(cases, repeats=repeats, slow_s=10.0)
    rows = []
    for mode, timing in timings.items():
        ratio = _harness.paired_ratio(timing, timings["fedavg"])
        row = {
            "model": name,
            "mode": mode,
            **timing.row(),
            "times fedavg": ratio,
            "limit": LIMITS.get(mode),
        }
        least = {"least times": timing.min_ms / timings["fedavg"].min_ms}
        rows.append(row | least | {"cpu times": timing.cpu_ms / timings["fedavg"].cpu_ms})
        print(rows[-1], flush=True)
    return rows, compiled


def sent(name: str) -> dict[str, Any]:
    """Bytes of an upload, counted on the arrays that a client sends, beside the cost model's."""
    _, clients, model = problem(name)
    allow_plain = NEEDS.get(name, {}).get("allow_plain", False)
    plan = scaling.plan(
        model.apply, model.params, clients.examples["x"][0], allow_plain=allow_plain
    )
    num_params = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    counted = costs.perturbed_model(plan, degree=CLIENTS - 1)
    return {
        "model": name,
        "parameters": num_params,
        "upload bytes": counted.upload_bytes,
        "(2 + n_L) P bytes": costs.perturbed_model(
            plan, degree=CLIENTS - 1, compact=False
        ).upload_bytes,
        "fedavg bytes": 4 * num_params,
    }


def time_to_target(name: str, mode: str, most: int, one_round: Any) -> dict[str, Any]:
    """Seconds of the compiled rounds until held-out accuracy first reaches TARGET."""
    digits, clients, model = problem(name)
    cohort, test = data.cohort(clients, jnp.arange(CLIENTS)), jax.tree.map(jnp.asarray, digits.test)
    accuracy = jax.jit(lambda params: models.evaluate(model.apply, params, test)[1])
    state = algorithm(mode, name, model).init(model.params)
    seconds = 0.0
    for count in range(1, most + 1):
        start = time.perf_counter()
        state, _ = jax.block_until_ready(one_round(state, cohort, jax.random.key(0)))
        seconds += time.perf_counter() - start
        if float(accuracy(state.params)) >= TARGET:
            return {"model": name, "mode": mode, "rounds": count, "seconds": seconds}
    return {"model": name, "mode": mode, "error": f"not reached in {most} rounds"}


def parts(name: str, repeats: int) -> list[dict[str, Any]]:
    """Seconds of each part of a round, method by method, beside the paper's Table V.

    Peers' keys are there already: a client draws its own noise and that of CLIENTS - 1 peers, and
    expands 9 keys.
    """
    _, clients, model = problem(name)
    batch = {leaf: rows[clients.indices[0]] for leaf, rows in clients.examples.items()}
    plan = scaling.plan(model.apply, model.params, batch["x"][0])
    loss, mask, peers = (
        models.squared_error(model.apply),
        jnp.ones(BATCH, bool),
        jnp.arange(1, CLIENTS),
    )
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
        whole = (
            perturbed.gradients(plan, loss.of_output)
            if method == "r0_gaussian"
            else perturbed.triples(plan)
        )

        def perturb(key: jax.Array, norm: float = norm) -> Any:
            drawn = perturbation.draw(plan, key, additive_norm=norm)
            return drawn, perturbation.perturb(plan, model.params, drawn)

        def train(sent: Any, transition: Any, method: str = method, whole: Any = whole) -> Any:
            found, _ = whole(sent, transition, batch, mask)
            return found if method == "paper" else perturbed.clip(found, 1.0)[0]

        def paper_noise(key: jax.Array, upload: Any) -> Any:
            def one(key: jax.Array) -> Any:
                return [
                    split_noise.dn(jax.random.fold_in(key, k), leaf.shape, 1.0)
                    for k, leaf in enumerate(upload)
                ]

            return jax.tree.map(
                lambda leaf, drawn: leaf + jnp.sum(drawn, 0),
                upload,
                jax.vmap(one)(jax.random.split(key, CLIENTS)),
            )

        def sound_noise(key: jax.Array, upload: Any) -> Any:
            keys = jax.random.split(key, CLIENTS)
            drawn = pair_noise.client_noise(
                keys[1:], keys[0], 0, peers, upload, own_stddev=1.0, pair_stddev=10.0
            )
            return jax.tree.map(jnp.add, upload, drawn)

        triple = jax.jit(train)(sent, transition)
        case(method, "perturb", perturb, jax.random.key(2))
        case(
            method,
            "recover",
            lambda secrets, mean: recovery.recover(plan, secrets, mean),
            secrets,
            triple,
        )
        case(method, "aggregate", mean, *copies(triple))
        case(method, "train", train, sent, transition)
        if method == "paper":
            case(method, "noise", paper_noise, jax.random.key(3), [*triple.body, *triple.head])
        else:
            case(method, "noise", sound_noise, jax.random.key(3), triple)
    timings = _harness.interleaved(cases, repeats=repeats)
    rows = []
    for method in dict.fromkeys(key.split(": ")[0] for key in timings):
        found = {
            key.split(": ")[1]: t.min_ms / 1e3
            for key, t in timings.items()
            if key.startswith(f"{method}: ")
        }
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
    print(
        _harness.table(
            flat, ["model", "clients", "method", *costs.PARTS, "total", "adds up", "source"]
        )
    )
    path = _harness.write(
        "bidirectional_parts",
        found,
        note=f"seconds of {', '.join(costs.PARTS)}; least of {repeats}",
    )
    print(f"wrote {path.relative_to(_harness.ROOT)}")


def measured(name: str, quick: bool) -> list[dict[str, Any]]:
    """All rows of one model: its rounds, its bytes, its time to the target."""
    rows, compiled = rounds(name, 5 if quick or name in NEEDS else 15)
    target = [time_to_target(name, mode, 300, compiled[mode]) for mode in TRAINED.get(name, ())]
    base = next(
        (row["seconds"] for row in target if row["mode"] == "fedavg" and "seconds" in row), None
    )
    for row in target:
        row |= (
            {"times fedavg": row["seconds"] / base, "source": "measured"}
            if base and "seconds" in row
            else {}
        )
        print(row, flush=True)
    return [*rows, sent(name), *target]


def reported() -> list[dict[str, Any]]:
    """The paper's own times."""
    return [
        {"model": table.model, "mode": table.method, "seconds": table.seconds_to_target}
        | {
            "times fedavg": table.seconds_to_target / table.fedavg_seconds_to_target,
            "source": "reported, not measured",
        }
        for table in costs.REPORTED_TIMES
    ]


def table(rows: _tables.Rows) -> str:
    """Rounds of the bidirectional scheme in units of FedAvg's."""
    rounds, cpu = [row for row in rows if "limit" in row], {}
    for row in rounds:
        if row["mode"] == "fedavg":
            cpu[row["model"]] = row["cpu_ms"]
    body = [
        [
            row["model"],
            row["mode"],
            f"{row['times fedavg']:.2f}x",
            f"{row['cpu_ms'] / cpu[row['model']]:.2f}x",
            "" if row["limit"] is None else f"{row['limit']:g}x",
        ]
        for row in rounds
        if row["mode"] != "fedavg"
    ]
    return _tables.markdown(
        ["10 clients of 64 digits", "round", "of FedAvg's time", "of its CPU time", "asked"], body
    )


def time_table(rows: _tables.Rows) -> str:
    """Time to the target accuracy: ours measured, the paper's peers as the paper reports them."""
    body = [
        [
            row["model"],
            row["mode"],
            str(row.get("rounds", "")),
            f"{row['times fedavg']:,.{0 if row['times fedavg'] >= 100 else 2}f}x",
            row["source"],
        ]
        for row in rows
        if row.get("seconds")
    ]
    head = [
        "model or data",
        "method",
        "rounds",
        "of FedAvg's time to the target accuracy",
        "here or in the paper",
    ]
    return _tables.markdown(head, body)


def parts_table(rows: _tables.Rows) -> str:
    """Seconds of the parts of a round: ours measured, the paper's as it reports them."""

    def cell(row: dict[str, Any], seconds: float | None) -> str:
        if seconds is None:
            return ""
        return f"{seconds:.2g}" if row["source"] == "measured" else f"{seconds:,.2f}"

    body = [
        [
            f"{row['model']}, {row['clients']}",
            row["method"],
            *(cell(row, part) for part in row["seconds"]),
            cell(row, row["total"]) + ("" if row["adds up"] else " (*)"),
            row["source"],
        ]
        for row in rows
    ]
    names = ["perturb", "recover", "aggregate", "decrypt", "keys", "train", "encrypt", "noise"]
    return _tables.markdown(
        ["model or data, K", "method", *names, "total", "here or in the paper"], body
    )


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the mlp only, fewer repeats")
    parser.add_argument("--parts", action="store_true", help="the parts of a round only")
    parser.add_argument(
        "--model", help="only models whose name holds this word; other rows of the JSON stay"
    )
    options = parser.parse_args(arguments)
    if options.parts or not (options.quick or options.model):
        write_parts(15)
    if options.parts:
        return
    names = [name for name in MODELS if (options.model or "") in name][
        : 1 if options.quick else None
    ]
    if not names:
        raise ValueError(
            f"Expected --model to be part of one of {list(MODELS)}, got {options.model!r}."
        )
    found = [row for name in names for row in measured(name, options.quick)]
    file = "bidirectional_quick" if options.quick else "bidirectional"
    old = _harness.RESULTS / f"{file}-cpu.json"
    if options.model and old.exists():
        found += [
            row
            for row in json.loads(old.read_text())["rows"]
            if row["model"] in set(MODELS) - set(names)
        ]
    rows = [row for row in found if "limit" in row]
    uploads = [row for row in found if "upload bytes" in row]
    target = [row for row in found if "limit" not in row and "upload bytes" not in row] + reported()
    order = list(MODELS) + [row["model"] for row in target]
    rows, uploads, target = (
        sorted(part, key=lambda row: order.index(row["model"])) for part in (rows, uploads, target)
    )
    print(
        _harness.table(
            rows,
            ["model", "mode", "median_ms", "times fedavg", "least times", "cpu times", "limit"],
        )
    )
    print(_harness.table(uploads, list(uploads[0])))
    print(_harness.table(target, ["model", "mode", "rounds", "seconds", "times fedavg", "source"]))
    over = [row for row in rows if row["limit"] and row["least times"] > row["limit"]]
    print(f"rounds over their limit: {len(over)} of {sum(bool(row['limit']) for row in rows)}")
    note = (
        f"last measured: {', '.join(names)}; the environment is that of this run"
        if options.model
        else ""
    )
    path = _harness.write(file, [*rows, *uploads, *target], note=note)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
