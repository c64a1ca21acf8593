"""What does exact noise cost, of a trusted server, of clients and of silos, beside float32 noise?

    python -m bench.rounds.exact_noise [--repeats 9] [--schemes dp_fedavg ...]
    python -m bench.rounds.exact_noise --demo [--keys 40] [--schemes higradavg ...]

- time: a round with `noise = "float32"` and `"exact"`, in turn. dp_fedavg and local_dp: 50 clients
  of 100 examples, MLP 784-256-128-10, one epoch in batches of 20. dp_fedsgd: half of the examples
  of as many clients. higradavg and user_ldp: 16 silos of 100 examples of 50 subjects, of that size,
  half of them in each step; softmax regression, and that MLP. Wanted: at most twice the time.
  local_dp in float32 draws the noise of all clients at once, which no client can:
  `float_by_clients` has each draw its own.
- --demo: the training of `fljax simulate` with the scheme's defaults, under each of many keys of
  its rounds, and how far it ends from float32 under the same key on average, with the reach of a
  95 % interval. Wanted: accuracy within half a point. Draws of exact noise are other ones, by which
  runs differ; so also with float32's own draws, each rounded to the grid, which have its law: what
  is left is what rows lose. And float32 with as much more noise as clipped sums are shorter on the
  grid, which `kept` says (of silos).
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench import _harness
from bench.rounds import round as rounds
from bench.rounds.integer_noise import NUM_CLIENTS, NUM_EXAMPLES
from fljax import data, models, schemes
from fljax.data.subjects import SUBJECT
from fljax.schemes.base import FederatedAlgorithm
from fljax.server.rounds import Performance
from fljax.simulation import config as config_lib
from fljax.simulation import feed
from fljax.simulation.job import Job, prepare
from fljax.upload import exact_noise
from fljax_kernels import add_gaussian_noise, gaussian_noise

NOISES = ("float32", "exact")
MODELS = {
    "dp_fedavg": ("mlp",),
    "dp_fedsgd": ("mlp",),
    "local_dp": ("mlp",),
    "higradavg": ("mlp", "softmax"),
    "user_ldp": ("softmax",),
}
DEMOS = {"higradavg": 300, "dp_fedavg": 50}  # keys, by how long one takes
ROUNDED, MORE = "float32's, rounded", "float32, more of it"
_SILOS, _SUBJECTS = 16, 50


def step(name: str, kind: str, form: str) -> _harness.Step:
    """A compiled round of a scheme and a model, with noise of a form."""
    scheme = schemes.get(name)
    noise = "exact" if form == "exact" else "float32"
    given: dict[str, Any] = {"noise_multiplier": 1.0, "noise": noise}
    count = num_units = _SILOS if scheme.noise_at == "silo" else NUM_CLIENTS
    if scheme.noise_at == "silo":
        given |= {"item_sampling_prob": 0.5, "max_items_per_subject": 2, "num_parties": count}
    elif name == "dp_fedsgd":
        given |= {"sampling_prob": 0.5}
        num_units *= NUM_EXAMPLES
    else:
        given |= {"num_local_epochs": 1, "local_batch_size": rounds.BATCH_SIZE}
        given |= {"num_parties": count} if name == "local_dp" else {}
    hidden = {"hidden": rounds.HIDDEN} if kind == "mlp" else {}
    model = models.create(
        kind, example_shape=(784,), num_classes=10, key=jax.random.key(1), **hidden
    )
    loss = models.softmax_cross_entropy(model.apply)
    algorithm = scheme.make(scheme.Config(**given), loss, num_units=num_units)
    clients = rounds.random_clients(count, (784,), 10, NUM_EXAMPLES, NUM_EXAMPLES)
    places = jnp.arange(count * NUM_EXAMPLES, dtype=jnp.int32)
    clients = clients._replace(examples=clients.examples | {SUBJECT: places % _SUBJECTS})
    cohort = data.cohort(clients, jnp.arange(count))

    def one_round(state: Any, cohort: Any, key: jax.Array) -> Any:
        after = algorithm.round(state, cohort, key)[0].params
        if form != "float_by_clients":
            return after

        def own(total: Any, key: jax.Array) -> tuple[Any, None]:
            drawn = gaussian_noise(key[None], total, 1.0)
            return jax.tree.map(lambda t, n: t + n[0], total, drawn), None

        return jax.lax.scan(own, after, jax.random.split(key, count))[0]

    return _harness.compile_step(one_round, algorithm.init(model.params), cohort, jax.random.key(0))


def times(name: str, kind: str, repeats: int) -> list[dict[str, Any]]:
    """Rows of a scheme's rounds with a model."""
    forms = NOISES + (("float_by_clients",) if name == "local_dp" else ())
    steps = {form: step(name, kind, form) for form in forms}
    timings = _harness.interleaved(
        {form: each.run for form, each in steps.items()}, repeats=repeats
    )
    base = timings["float32"]
    return [
        {"kind": "time", "scheme": name, "model": kind, "noise": form}
        | steps[form].row()
        | timing.row()
        | {
            "ratio": round(_harness.paired_ratio(timing, base), 3),
            "ratio_min": round(timing.min_ms / base.min_ms, 3),
            "ratio_cpu": round(timing.cpu_ms / base.cpu_ms, 3),
        }
        for form, timing in timings.items()
    ]


def trained(job: Job, algorithm: FederatedAlgorithm) -> Callable[[jax.Array], Any]:
    """Key `[]` of all rounds -> (held-out accuracy `[]`, params) of the run, compiled once."""
    one_round = feed.round_fun((algorithm,), job.facts.num_clients)
    capacity, test = job.usual_capacity(), jax.tree.map(jnp.asarray, job.task.dataset.test)
    model = job.task.model

    @jax.jit
    def train(key: jax.Array, params: Any, clients: Any, test: Any) -> Any:
        def step(states: Any, _: None) -> tuple[Any, jax.Array]:
            states, _, overflow = one_round(states, clients, key, capacity)
            return states, overflow

        start = (algorithm.init(params),)
        states, overflow = jax.lax.scan(step, start, None, length=job.plan.num_rounds)
        found = models.evaluate(model.apply, states[0].params, test)[1]
        return jnp.where(jnp.any(overflow), jnp.nan, found), states[0].params

    return lambda key: train(key, model.params, job.task.client_data, test)


def kept(job: Job, params: Any, key: jax.Array) -> float:
    """Of the silos' clipped sums of one step, how long the part along them is on the grid / their
    length.
    """
    scheme, config = (
        sys.modules[job.config.implementation.Config.__module__],
        job.plan.scheme_config,
    )
    exact = dataclasses.replace(config, noise="exact")
    plain, on_grid = (scheme.silo(each, job.task.loss, Performance()) for each in (config, exact))

    @jax.jit
    def both(rows: jax.Array, key: jax.Array) -> jax.Array:
        there = (params, job.task.client_data.examples, rows, key)
        sums = plain.query(*there).grad_sum
        short = exact_noise.in_unit(on_grid.grid, on_grid.query(*there).grad_sum)
        return jnp.stack([optax.tree.vdot(sums, short), optax.tree.vdot(sums, sums)])

    rows = job.task.client_data.indices
    keys = jax.random.split(key, rows.shape[0])
    along, square = jax.lax.map(lambda given: both(*given), (rows, keys)).sum(axis=0)
    return float(along / square)


def rounded(of: exact_noise.Grid, key: jax.Array, sums: Any) -> Any:
    """As `exact_noise.noised`, of the draws that float32 noise of this key has."""
    wide = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), sums)
    noise = add_gaussian_noise(key, wide, of.stddev)
    noisy = jax.tree.map(lambda leaf, n: leaf + jnp.round(n).astype(jnp.int32), sums, noise)
    return exact_noise.in_unit(of, noisy)


def demos(name: str, num_keys: int) -> list[dict[str, Any]]:
    """Rows of each form of a scheme's noise, trained with its defaults under as many keys."""
    run = {"seed": 0, "baseline": False}
    job = prepare(config_lib.from_sections({"scheme": {"scheme": name}, "run": run}))
    config, found = job.plan.scheme_config, None
    configs = {form: dataclasses.replace(config, noise=form) for form in NOISES}
    configs[ROUNDED] = configs["exact"]
    if job.config.implementation.noise_at == "silo":
        ends = (job.task.model.params, trained(job, job.algorithms[0])(jax.random.key(0))[1])
        found = float(np.mean([kept(job, params, jax.random.key(1)) for params in ends]))
        more = {"noise_multiplier": config.noise_multiplier / found}
        configs[MORE] = dataclasses.replace(config, **more)
    keys = [jax.random.key(seed, impl="threefry2x32") for seed in range(num_keys)]
    plain = np.zeros(num_keys)
    rows: list[dict[str, Any]] = []
    for form, each in configs.items():
        # The same draws leave runs together: fewer keys tell by how much they differ.
        some = keys if form in NOISES else keys[: max(2, num_keys // 2)]
        noised = rounded if form == ROUNDED else exact_noise.noised
        with mock.patch.object(exact_noise, "noised", noised):
            scheme = job.config.implementation
            made = scheme.make(each, job.task.loss, num_units=job.plan.num_units)
            train = trained(job, made)
            reached = np.array([float(train(key)[0]) for key in some])
        plain = reached if form == "float32" else plain
        gains = list(map(float, reached - plain[: len(some)]))
        row = {"kind": "demo", "scheme": name, "noise": form, "keys": len(some)}
        row |= {"noise_multiplier": each.noise_multiplier, "kept": found}
        row |= {"rounds": job.plan.num_rounds, "accuracy": float(reached.mean())}
        rows.append(row | {"gain": float(np.mean(gains)), "reach_95": _harness.half_width(gains)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Times both, or trains with both, and writes a JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--keys", type=int, help="of each demo")
    parser.add_argument("--demo", action="store_true", help="train, in place of timing")
    parser.add_argument("--schemes", nargs="+", choices=MODELS)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.schemes or (DEMOS if arguments.demo else MODELS):
        if arguments.demo:
            rows += demos(name, arguments.keys or DEMOS.get(name, 40))
            continue
        for kind in MODELS[name]:
            found = times(name, kind, arguments.repeats)
            for row in found:
                print(row, flush=True)
            rows += found
    name = "exact_noise_demo" if arguments.demo else "exact_noise"
    _harness.write(name, rows, note=(__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
