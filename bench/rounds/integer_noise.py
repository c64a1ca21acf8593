"""What do integers cost that clients noise, beside float32 noise?

    python -m bench.rounds.integer_noise [--repeats 7]

A round of 50 clients of 100 examples, MLP 784-256-128-10, one epoch in batches of 20:

- smpc_dp: float32 noise, drawn once for the sum
- float_by_clients: the same, and each client draws its own float32 noise, as real clients would
- distributed_dgauss, skellam: each client rounds and noises integers

Wanted: at most 1.3 times float_by_clients. `results/` has what it is.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp

from bench import _harness
from bench.rounds import round as rounds
from fljax import data, models, schemes
from fljax_kernels import gaussian_noise

NUM_CLIENTS, NUM_EXAMPLES = 50, 100


def step(name: str, *, by_clients: bool = False) -> _harness.Step:
    """A compiled round of a scheme."""
    scheme = schemes.get(name)
    model = models.create(
        "mlp", example_shape=(784,), num_classes=10, key=jax.random.key(1), hidden=rounds.HIDDEN
    )
    sizes = {"num_local_epochs": 1, "local_batch_size": rounds.BATCH_SIZE, "noise_multiplier": 1.0}
    config = scheme.Config(num_parties=NUM_CLIENTS, **sizes)
    loss = models.softmax_cross_entropy(model.apply)
    algorithm = scheme.make(config, loss, num_units=NUM_CLIENTS)
    clients = rounds.random_clients(NUM_CLIENTS, (784,), 10, NUM_EXAMPLES, NUM_EXAMPLES)
    cohort = data.cohort(clients, jnp.arange(NUM_CLIENTS))

    def one_round(state: Any, cohort: Any, key: jax.Array) -> Any:
        after = algorithm.round(state, cohort, key)[0].params
        if not by_clients:
            return after

        def own(total: Any, key: jax.Array) -> tuple[Any, None]:
            noise = gaussian_noise(key[None], total, 1.0)
            return jax.tree.map(lambda t, n: t + n[0], total, noise), None

        return jax.lax.scan(own, after, jax.random.split(key, NUM_CLIENTS))[0]

    return _harness.compile_step(one_round, algorithm.init(model.params), cohort, jax.random.key(0))


def main() -> None:
    """Times all four in turn and writes the JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    steps = {
        "smpc_dp": step("smpc_dp"),
        "float_by_clients": step("smpc_dp", by_clients=True),
        "distributed_dgauss": step("distributed_dgauss"),
        "skellam": step("skellam"),
    }
    timings = _harness.interleaved(
        {name: each.run for name, each in steps.items()}, repeats=arguments.repeats
    )
    base = timings["float_by_clients"]
    rows = [
        {"form": name, **steps[name].row(), **timing.row()}
        | {
            "ratio": round(_harness.paired_ratio(timing, base), 3),
            "ratio_min": round(timing.min_ms / base.min_ms, 3),
            "ratio_cpu": round(timing.cpu_ms / base.cpu_ms, 3),
        }
        for name, timing in timings.items()
    ]
    for row in rows:
        print(row)
    _harness.write("integer_noise", rows, note=(__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
