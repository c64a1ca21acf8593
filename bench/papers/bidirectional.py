"""The bidirectional scheme's round against FedAvg's, what it sends, and the time until a target
accuracy.

    python -m bench.papers.bidirectional [--quick | --model NAME]

A round of 10 clients with 64 digits each, one gradient a client. "simulation" is one backward pass
a client (pair noise cancels and is left out), "protocol" is gradient, Psi and Phi of every client;
with noise, own and that of 45 pairs on every number sent. The time to the target accuracy is that
of the rounds until held-out accuracy first reaches it, without evaluation, on real digits.
Cryptographic peers are the paper's figures (its Tables I and V), measured on its machine and not on
this one. `--model resnet20` measures the models whose name holds that word alone, and keeps the
other rows of the JSON.
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
from fljax.models import scaling
from fljax.server import costs

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


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the mlp only, fewer repeats")
    parser.add_argument(
        "--model", help="only models whose name holds this word; other rows of the JSON stay"
    )
    options = parser.parse_args(arguments)
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
