"""Accuracy at equal epsilon where noise is correlated in text, in silos and between pairs.

    python -m bench.rounds.correlated_elsewhere [--seeds 5]
    python -m bench.rounds.correlated_elsewhere --costs  # a round's time, over independent noise

- sentences, `dp_ftrl`: next words of a stand-in of Stack Overflow's shape: 1,000 users in turns of
  four, six short sentences each, words of a Zipf law of which each follows another, topics that
  differ by user; a small LSTM.
- digits, `lightdp`: 50 clients, 5 of which may collude with a server that sees every upload; in
  turns of four, and, beside, all of them in every round.
- writers, `higradavg`: 16 silos, noise of each its own, each subject in one of them.

Rows of a setting are paired by seed: data of clients, noise and batches. Epsilon is that of the
scheme's accountant, for the whole run.
"""

import argparse
import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from bench.rounds import correlated_training
from fljax import accounting, data, models, schemes
from fljax.simulation import feed
from fljax_kernels import poisson_capacity

DELTA = 1e-3
WORDS, LENGTH, SENTENCES, USERS = 30, 8, 6, 1000
STEPS = {"l2_clip_norm": 0.5, "server_learning_rate": 1.0}
TURNS = {"min_separation": 4}
SETTINGS: tuple[dict[str, Any], ...] = (
    {
        "dataset": "sentences",
        "scheme": "dp_ftrl",
        "rounds": 48,
        "epsilon": 1.0,
        "config": {
            "num_parties": USERS,
            **TURNS,
            **STEPS,
            "rounds_per_start": 48,
            "local_learning_rate": 1.0,
            "local_batch_size": 3,
            "num_local_epochs": 2,
            "server_momentum": 0.9,
        },
        "kinds": correlated_training.KINDS,
    },
    {
        "dataset": "digits",
        "scheme": "lightdp",
        "rounds": 32,
        "epsilon": 8.0,
        "config": {
            "num_parties": 50,
            **STEPS,
            "rounds_per_start": 32,
            "straggler_law": "fixed",
            "max_stragglers": 0,
            "draw": "joint_law",
            "server_momentum": 0.0,
            "local_learning_rate": 0.5,
            "num_local_epochs": 1,
        },
        "kinds": {
            "independent": {"correlation": "banded", "bands": 1, **TURNS},
            "banded": {"correlation": "banded", "bands": 4, **TURNS},
            "buffered": {"correlation": "buffered", "bands": 3, **TURNS},
            "independent, all clients": {"correlation": "none"},
        },
    },
    {
        "dataset": "writers",
        "scheme": "higradavg",
        "rounds": 30,
        "epsilon": 8.0,
        "config": {
            "num_parties": 16,
            "silos_per_subject": 1,
            "max_items_per_subject": 1,
            "item_sampling_prob": 0.25,
            "expected_subjects": 5.0,
            "num_local_steps": 4,
            "l2_clip_norm": 0.33,
            "local_learning_rate": 5.0,
            "server_learning_rate": 1.0,
            "server_momentum": 0.0,
        },
        "kinds": {
            "independent": {"correlation": "none"},
            "banded": {"correlation": "banded", "bands": 4, "banded_for": 120},
        },
    },
)

# Whose rounds are timed beside, as a run feeds them: sampled on the device.
SAMPLED: dict[str, dict[str, Any]] = {
    "dp_fedavg": {"sampling_prob": 0.2},
    "dp_fedsgd": {"sampling_prob": 0.2, "privacy_unit": "example"},
}


def configured(setting: dict[str, Any], kind: str) -> Any:
    """With the noise that spends epsilon in all rounds."""
    scheme = schemes.get(setting["scheme"])
    plain = scheme.Config(**setting["config"] | setting["kinds"][kind])

    def run(noise_multiplier: float) -> accounting.PrivacyEvent:
        noisy = dataclasses.replace(plain, noise_multiplier=noise_multiplier)
        return scheme.run_event(noisy, setting["rounds"])

    found = accounting.calibrate(run, epsilon=setting["epsilon"], delta=DELTA)
    return dataclasses.replace(plain, noise_multiplier=found)


def sentences(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train and test, x and y int32 `[M, LENGTH]`; rows of a user lie together."""
    rng = np.random.default_rng(seed)
    common = 1 / np.arange(1, WORDS + 1)
    common /= common.sum()
    follows = rng.permutation(WORDS)

    def spoken(users: int) -> dict[str, np.ndarray]:
        topics = rng.dirichlet(20 * common, size=users)
        own = np.repeat(topics, SENTENCES, axis=0).cumsum(axis=1)
        words = np.full((len(own), LENGTH + 1), WORDS)  # the last symbol begins a sentence
        for place in range(1, LENGTH + 1):
            drawn = (rng.random((len(own), 1)) > own[:, :-1]).sum(axis=1)
            before = words[:, place - 1]
            after = follows[np.minimum(before, WORDS - 1)]
            told = (rng.random(len(own)) < 0.6) & (before < WORDS)
            words[:, place] = np.where(told, after, drawn)
        return {"x": words[:, :-1].astype(np.int32), "y": words[:, 1:].astype(np.int32)}

    return spoken(USERS), spoken(200)


def _whole_subjects(subjects: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of 16 silos, -1 is padding; each subject lies in one of them."""
    silo_of = rng.permutation(int(subjects.max()) + 1) % 16
    rows = [np.flatnonzero(silo_of[subjects] == silo) for silo in range(16)]
    table = np.full((16, max(map(len, rows))), -1, np.int32)
    for silo, mine in enumerate(rows):
        table[silo, : len(mine)] = mine
    return table


@functools.cache
def parts(name: str, seed: int, kind: str = "softmax") -> tuple[Any, Any, Any, Any]:
    """Model, loss, cohort of everybody, held-out examples."""
    rng = np.random.default_rng(seed)
    if name == "sentences":
        train, test = sentences(seed)
        table = np.arange(USERS * SENTENCES, dtype=np.int32).reshape(USERS, SENTENCES)
        shape = {"example_shape": (LENGTH,), "num_classes": WORDS + 1}
        small = {"embedding": 8, "cells": (24,), "hidden": ()}
        model = models.create("token_lstm", key=jax.random.key(0), **shape, **small)
        loss: Any = models.next_token(model.apply)
    else:
        found = data.load(name)
        train, test = found.train, found.test
        if name == "digits":
            table = data.partition.iid(train["y"], 50, rng)
        else:
            table = _whole_subjects(np.asarray(train[data.subjects.SUBJECT]), rng)
        shape = {"example_shape": train["x"].shape[1:], "num_classes": found.num_classes}
        wide = {"hidden": (200,)} if kind == "mlp" else {}
        model = models.create(kind, key=jax.random.key(0), **shape, **wide)
        loss = models.softmax_cross_entropy(model.apply)
    clients = data.ClientData(jax.tree.map(jnp.asarray, train), jnp.asarray(table))
    everybody = data.cohort(clients, jnp.arange(len(table)))
    return model, loss, everybody, jax.tree.map(jnp.asarray, test)


def accuracies(setting: dict[str, Any], config: Any, seeds: int) -> list[float]:
    """Held out, after all rounds, one for each seed."""
    scheme, found, run = schemes.get(setting["scheme"]), [], None
    for seed in range(seeds):
        model, loss, everybody, test = parts(setting["dataset"], seed)
        algorithm = scheme.make(config, loss, num_units=len(everybody.client_ids))
        run = run or jax.jit(algorithm.round)
        state, key, kept = algorithm.init(model.params), jax.random.key(seed), ()
        for _ in range(setting["rounds"]):
            state, info = run(state, everybody._replace(kept=kept), key)
            kept = info.kept
        logits = jax.vmap(functools.partial(model.apply, state.params))(test["x"])
        found.append(float(jnp.mean(jnp.argmax(logits, axis=-1) == test["y"])))
    return found


def timed() -> list[dict[str, Any]]:
    """One round of each kind of noise, run in turn, of an mlp with 200 hidden units."""
    found = []
    for name, cases in _cases():
        times = _harness.interleaved(cases, repeats=41, least_seconds=0.03)
        row = {"costs": name, "milliseconds": times["banded"].row()["min_ms"]}
        ratio = _harness.paired_ratio(times["banded"], times["independent"])
        found.append(row | {"ratio": ratio})
        print(found[-1], flush=True)
    return found


class _Run:
    """Rounds after each other, as a run takes them: a cohort of everybody writes the next state
    over the last one, a sample keeps that.
    """

    def __init__(self, round_fun: Any, state: Any, *given: Any, overwrite: bool, **static: Any):
        names, donated = list(static), (0,) if overwrite else ()
        self._round = jax.jit(round_fun, static_argnames=names, donate_argnums=donated)
        self._state, self._rest = jax.tree.map(jnp.copy, state), (given, static)
        jax.block_until_ready(self())  # compiled: `interleaved` takes a slow first call for dear

    def __call__(self) -> Any:
        given, static = self._rest
        found = self._round(self._state, *given, **static)
        self._state = found[0]
        return found


def _cases() -> Iterator[tuple[str, dict[str, Callable[[], Any]]]]:
    """Each scheme with its rounds."""
    key = jax.random.key(0)
    for setting in SETTINGS[1:]:
        model, loss, everybody, _ = parts(setting["dataset"], 0, "mlp")
        scheme, cases = schemes.get(setting["scheme"]), {}
        for kind in ("independent", "banded"):
            config = configured(setting, kind)
            algorithm = scheme.make(config, loss, num_units=len(everybody.client_ids))
            state, kept = algorithm.init(model.params), ()
            if algorithm.client_state is not None:
                kept = jax.jit(algorithm.round)(state, everybody, key)[1].kept
            here = everybody._replace(kept=kept)
            cases[kind] = _Run(algorithm.round, state, here, key, overwrite=True)
        yield setting["scheme"], cases
    model, loss, everybody, _ = parts("digits", 0, "mlp")
    clients = data.ClientData(everybody.examples, everybody.indices)
    count = len(everybody.client_ids)
    for name, sampled in SAMPLED.items():
        scheme, cases = schemes.get(name), {}
        of_examples = "privacy_unit" in sampled
        units = int(jnp.sum(everybody.indices >= 0)) if of_examples else count
        for kind, correlation in (("independent", "none"), ("banded", "banded")):
            config = scheme.Config(**sampled, noise_multiplier=1.0, correlation=correlation)
            algorithm = scheme.make(config, loss, num_units=units)
            capacity = poisson_capacity(count, algorithm.client_sampling_prob)
            cases[kind] = _Run(
                feed.round_fun((algorithm,), count),
                (algorithm.init(model.params),),
                clients,
                key,
                overwrite=capacity == count,
                capacity=capacity,
            )
        yield name, cases


def table(rows: _tables.Rows) -> str:
    """Accuracy and gain at equal epsilon."""
    head = ["data", "scheme", "epsilon", "noise", "accuracy", "gain on independent noise (95 %)"]
    body = [
        [
            row["dataset"],
            f"`{row['scheme']}`",
            f"{row['epsilon']:g}",
            row["kind"],
            f"{row['accuracy']:.1%}",
            ""
            if row["kind"] == "independent"
            else f"{100 * row['gain']:+.1f} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})",
        ]
        for row in rows
        if "dataset" in row
    ]
    gains = _tables.markdown(head, body)
    costs = [[f"`{row['costs']}`", f"{row['ratio']:.2f}"] for row in rows if "costs" in row]
    return (
        gains + "\n\n" + _tables.markdown(["scheme", "a round's time, banded / independent"], costs)
    )


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", help="data of one setting; writes nothing")
    parser.add_argument("--costs", action="store_true", help="time rounds instead")
    options = parser.parse_args(arguments)
    if options.costs:
        path = _harness.write("correlated_costs", timed(), note="rounds of an mlp, run in turn")
        print(f"wrote {path.relative_to(_harness.ROOT)}")
        return
    rows: list[dict[str, Any]] = []
    for setting in SETTINGS:
        if options.only not in (None, setting["dataset"]):
            continue
        plain: list[float] = []
        for kind in setting["kinds"]:
            config = configured(setting, kind)
            found = accuracies(setting, config, options.seeds)
            plain = plain or found
            gains = [ours - theirs for ours, theirs in zip(found, plain, strict=True)]
            gain, half = statistics.mean(gains), _harness.half_width(gains)
            row = {name: setting[name] for name in ("dataset", "scheme", "epsilon", "rounds")}
            row |= {"kind": kind, "seeds": options.seeds, "accuracy": statistics.mean(found)}
            row |= {"noise_multiplier": config.noise_multiplier, "gain": gain}
            rows.append(row | {"low": gain - half, "high": gain + half})
            print(rows[-1], flush=True)
    print(table(rows))
    if options.only is None:
        note = f"delta {DELTA}; units: user, client (any data exchanged), subject"
        path = _harness.write("correlated_elsewhere", rows, note=note)
        print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
