"""What does exact noise of a trusted server cost, beside float32 noise?

    python -m bench.rounds.exact_noise [--repeats 9] [--seeds 3]

- time: a round of dp_fedavg with 50 clients of 100 examples, MLP 784-256-128-10, one epoch in
  batches of 20, in turn with `noise = "float32"` and `"exact"`. Wanted: at most twice the time.
- demo: `fljax simulate` with its defaults, with either, for each seed. Wanted: accuracy within half
  a point.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp

from bench import _harness
from bench.rounds import demo
from bench.rounds import round as rounds
from bench.rounds.integer_noise import NUM_CLIENTS, NUM_EXAMPLES
from fljax import data, models
from fljax.schemes import dp_fedavg

NOISES = ("float32", "exact")


def step(noise: Any) -> _harness.Step:
    """A compiled round."""
    model = models.create(
        "mlp", example_shape=(784,), num_classes=10, key=jax.random.key(1), hidden=rounds.HIDDEN
    )
    config = dp_fedavg.Config(
        num_local_epochs=1, local_batch_size=rounds.BATCH_SIZE, noise_multiplier=1.0, noise=noise
    )
    loss = models.softmax_cross_entropy(model.apply)
    algorithm = dp_fedavg.make(config, loss, num_units=NUM_CLIENTS)
    clients = rounds.random_clients(NUM_CLIENTS, (784,), 10, NUM_EXAMPLES, NUM_EXAMPLES)
    cohort = data.cohort(clients, jnp.arange(NUM_CLIENTS))
    one_round = lambda state, cohort, key: algorithm.round(state, cohort, key)[0].params
    return _harness.compile_step(one_round, algorithm.init(model.params), cohort, jax.random.key(0))


def main() -> None:
    """Times both, trains with both, writes the JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    steps = {noise: step(noise) for noise in NOISES}
    timings = _harness.interleaved(
        {name: each.run for name, each in steps.items()}, repeats=arguments.repeats
    )
    base = timings["float32"]
    rows: list[dict[str, Any]] = [
        {"kind": "time", "noise": name, **steps[name].row(), **timing.row()}
        | {
            "ratio": round(_harness.paired_ratio(timing, base), 3),
            "ratio_min": round(timing.min_ms / base.min_ms, 3),
            "ratio_cpu": round(timing.cpu_ms / base.cpu_ms, 3),
        }
        for name, timing in timings.items()
    ]
    for seed in range(arguments.seeds):
        for noise in NOISES:
            rows.append({"kind": "demo", "noise": noise, **demo.one_run(seed, "--noise", noise)})
    for row in rows:
        print(row)
    _harness.write("exact_noise", rows, note=(__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
