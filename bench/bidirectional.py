"""The bidirectional scheme's round against FedAvg's, what it sends, and the time until a target accuracy.

    python -m bench.bidirectional [--quick]

A round of 10 clients with 64 digits each, one gradient a client. "simulation" is one backward pass a client (pair noise
cancels and is left out), "protocol" is gradient, Psi and Phi of every client; with noise, own and that of 45 pairs on
every number sent. The time to the target accuracy is that of the rounds until held-out accuracy first reaches it,
without evaluation, on real digits. Cryptographic peers are the paper's figures (its Table I), measured on its machine
and not on this one.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness
from fljax import data, models, schemes
from fljax.models import scaling
from fljax.server import costs

CLIENTS, BATCH, TARGET = 10, 64, 0.9
MODELS = {"mlp 64-128-64-10": ("mlp", {"hidden": (128, 64)}), "cnn 16-32-64-10": ("cnn", {})}
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


def algorithm(mode: str, model: models.Functional) -> Any:
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
        config = scheme.Config(num_parties=CLIENTS, local_batch_size=BATCH, **(settings | numbers))
    return scheme.make(config, models.squared_error(model.apply), num_units=CLIENTS)


def rounds(name: str, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of a round in every mode, in units of FedAvg's."""
    _, clients, model = problem(name)
    cohort = data.cohort(clients, jnp.arange(CLIENTS))
    cases = {}
    for mode in MODES:
        found = algorithm(mode, model)
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
    plan = scaling.plan(model.apply, model.params, clients.examples["x"][0])
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
    found = algorithm(mode, model)
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


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the mlp only, fewer repeats")
    options = parser.parse_args(arguments)
    names = list(MODELS)[: 1 if options.quick else None]
    rows = [row for name in names for row in rounds(name, 5 if options.quick else 15)]
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
