"""What does exact noise cost, of a trusted server, of clients and of silos, beside float32 noise?

    python -m bench.rounds.exact_noise [--repeats 9] [--schemes dp_fedavg ...]
    python -m bench.rounds.exact_noise --demo [--seeds 3] [--schemes higradavg ...]

- time: a round with `noise = "float32"` and `"exact"`, in turn. dp_fedavg and local_dp: 50 clients
  of 100 examples, MLP 784-256-128-10, one epoch in batches of 20. dp_fedsgd: half of the examples
  of as many clients. higradavg and user_ldp: 16 silos of 100 examples of 50 subjects, of that size,
  half of them in each step; softmax regression, and that MLP. Wanted: at most twice the time.
  local_dp in float32 draws the noise of all clients at once, which no client can:
  `float_by_clients` has each draw its own.
- --demo: `fljax simulate` with the scheme's defaults, with either, for each seed. Wanted: accuracy
  within half a point. With how far they differ on average, and the reach of a 95 % interval.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from bench import _harness
from bench.rounds import demo
from bench.rounds import round as rounds
from bench.rounds.integer_noise import NUM_CLIENTS, NUM_EXAMPLES
from fljax import data, models, schemes
from fljax.data.subjects import SUBJECT
from fljax_kernels import gaussian_noise

NOISES = ("float32", "exact")
MODELS = {
    "dp_fedavg": ("mlp",),
    "dp_fedsgd": ("mlp",),
    "local_dp": ("mlp",),
    "higradavg": ("mlp", "softmax"),
    "user_ldp": ("softmax",),
}
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


def demos(name: str, seeds: int) -> list[dict[str, Any]]:
    """Rows of runs with the defaults of a scheme, and of how far they differ by noise."""
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        for noise in NOISES:
            found = demo.one_run(seed, "--scheme", name, "--noise", noise)
            rows.append({"kind": "demo", "scheme": name, "noise": noise, **found})
    pairs = zip(rows[1::2], rows[::2], strict=True)
    apart = np.array([exact["accuracy"] - plain["accuracy"] for exact, plain in pairs])
    error = float(apart.std(ddof=1) / np.sqrt(seeds)) if seeds > 1 else None
    reach = None if error is None else float(stats.t.ppf(0.975, seeds - 1)) * error
    gain = {"mean": float(apart.mean()), "standard_error": error, "reach_95": reach}
    return [*rows, {"kind": "difference", "scheme": name, "seeds": seeds, **gain}]


def main() -> None:
    """Times both, or trains with both, and writes a JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--demo", action="store_true", help="train, in place of timing")
    parser.add_argument("--schemes", nargs="+", default=list(MODELS), choices=MODELS)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.schemes:
        for kind in ("its own",) if arguments.demo else MODELS[name]:
            if arguments.demo:
                found = demos(name, arguments.seeds)
            else:
                found = times(name, kind, arguments.repeats)
            for row in found:
                print(row, flush=True)
            rows += found
    name = "exact_noise_demo" if arguments.demo else "exact_noise"
    _harness.write(name, rows, note=(__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
