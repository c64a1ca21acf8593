"""What does water-filling noise cost, beside the K x K eigendecomposition it is defined by and
beside isotropic noise?

    python -m bench.kernels.water_filling            # about five minutes; pins itself to one core

One client's step of GSGD-DP (clipped gradients of all D records, Gram matrix, eigenpairs above the
floor, lifted draw), of GD-DP (the same gradients, isotropic noise), and the definition: NumPy's
eigh of K x K matrices, in the kernel's float32, timed at smaller K and scaled by K^3 from the
largest (`scaled_from_k`; the smaller sizes show how near to K^3 the growth is). What a step costs
depends on how many eigenvalues are above the floor (`above`), so it is timed with the noise of a
private run, which leaves few there, and with so little that all of them are and the whole
eigensystem is taken. It is compared with the definition in CPU time, which other processes disturb
least. Every lifted draw is checked
first: on a small model, in covariance, against the definition, both ways.
"""

import argparse
import os
import time
from typing import Any

if __name__ == "__main__":  # before JAX and BLAS count the cores
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import models
from fljax.local import gaussian_sampling
from fljax.schemes.weighted import gd_dp, gsgd_dp
from fljax.schemes.weighted import round as weighted
from fljax.server.rounds import Performance
from fljax_kernels import spectral
from fljax_kernels.spectral import reference

BATCH_SIZE, CLIP = 32, 10.0
# Noise multipliers: two that private runs have, and one under which every eigenvalue is above the
# floor.
NOISES = (30.0, 10.0, 1.0)
DENSE_SIZES = (500, 1000, 2000)
# Model, records of one client.
CASES = (("softmax", 1200), ("softmax", 256), ("cnn", 256), ("cnn", 1200))


def check_law() -> None:
    """The lifted draw of a small matrix, as a linear map of its normals, against the K x K
    definition.
    """
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(160, 200)).astype(np.float32)
    rows[:, :3] *= 20
    for stddev in (2.5, 0.5):  # three eigenvalues above the floor, or nearly all
        draw = jax.vmap(spectral.lifted_weights, (None, 1, None, None), spectral.Draw(None, 1))(
            jnp.asarray(rows @ rows.T), jnp.asarray(rows), stddev, 1 / 160
        )
        push = np.asarray(draw.stddev) * np.eye(200) + rows.T @ np.asarray(draw.weights)
        expected = reference.lifted_covariance(rows, 1 / 160, stddev)
        _harness.check("lifted covariance", push @ push.T, expected, rtol=1e-4)


def client_steps(
    model: str, num_records: int
) -> tuple[dict[str, _harness.Step], dict[str, int], int]:
    """Compiled steps of one client by name, how many eigenvalues are above the floor of each, and
    K.
    """
    key = jax.random.key(0, impl="threefry2x32")
    functional = models.create(model, example_shape=(28, 28, 1), num_classes=10, key=key)
    loss = models.softmax_cross_entropy(functional.apply)
    rng = np.random.default_rng(1)
    examples = {
        "x": jnp.asarray(rng.uniform(size=(num_records, 28, 28, 1)), jnp.float32),
        "y": jnp.asarray(rng.integers(0, 10, num_records), jnp.int32),
    }
    rows = jnp.arange(num_records, dtype=jnp.int32)
    common = {"records_per_client": num_records, "batch_size": BATCH_SIZE, "l2_clip_norm": CLIP}
    forms = {f"wfna {m:g}": (gsgd_dp, gsgd_dp.Config(**common, noise_multiplier=m)) for m in NOISES}
    forms["gd_dp"] = (gd_dp, gd_dp.Config(**common, noise_multiplier=NOISES[0]))
    steps = {}
    for name, (scheme, config) in forms.items():
        step = scheme.client(config, loss, Performance())

        def of_client(params: Any, step: weighted.Client = step) -> Any:
            keys = jax.random.key(1), jax.random.key(2)
            return step(weighted.Turn(params, examples, rows, *keys)).sum

        steps[name] = _harness.compile_step(of_client, functional.params)
    gradients = gaussian_sampling.clipped_gradients(loss, l2_clip_norm=CLIP)
    gram = jax.jit(lambda params: gradients(params, examples, rows, jax.random.key(0)).gram())(
        functional.params
    )
    values = np.linalg.eigvalsh(np.asarray(gram, np.float64)) / (BATCH_SIZE * num_records)
    above = {
        name: int(np.sum(values > weighted.client_stddev(config, num_records) ** 2))
        for name, (_, config) in forms.items()
    }
    return steps, above, sum(leaf.size for leaf in jax.tree.leaves(functional.params))


def dense_seconds() -> dict[int, float]:
    """CPU seconds of one float32 eigh of a K x K covariance, by K: the least of two."""
    found = {}
    for size in DENSE_SIZES:
        rows = np.random.default_rng(2).normal(size=(size // 2, size)).astype(np.float32)
        matrix, seconds = rows.T @ rows, []
        for _ in range(2):
            start = time.process_time()
            np.linalg.eigh(matrix)
            seconds.append(time.process_time() - start)
        found[size] = min(seconds)
    return found


def table(rows: _tables.Rows) -> str:
    """Water filling beside its definition and beside isotropic noise."""
    body = [
        [
            f"{row['case'].split()[0]}, {row['k']:,} parameters, {row['records']:,} records",
            f"{row['noise_multiplier']:g}",
            f"{row['above']:,}",
            f"{row['cpu_ms']:,.{1 if row['cpu_ms'] < 100 else 0}f} ms",
            f"{row['over_gd_dp']:.1f}x",
            f"{row['dense_over_ours']:,.0f}x",
            f"{row['temp_mib']:.0f} MiB",
        ]
        for row in rows
        if row.get("over_gd_dp")
    ]
    head = [
        "water filling, one client, one core",
        "noise multiplier",
        "eigenvalues above the floor",
        "CPU time",
    ]
    return _tables.markdown([*head, "against isotropic noise", "dense eigensystem", "memory"], body)


def main() -> None:
    """Measures, writes the JSON and prints the table."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    check_law()
    dense = dense_seconds()
    largest = max(dense)
    table: list[dict[str, Any]] = [
        {"case": "dense eigh", "k": k, "median_ms": 1e3 * s, "over_cubed_ps": 1e12 * s / k**3}
        for k, s in dense.items()
    ]
    for model, num_records in CASES:
        steps, above, num_params = client_steps(model, num_records)
        timings = _harness.interleaved(
            {name: step.run for name, step in steps.items()}, repeats=7, budget_s=25
        )
        scaled_ms = 1e3 * dense[largest] * (num_params / largest) ** 3
        for name, timing in timings.items():
            row = {
                "case": f"{model} {name}",
                "k": num_params,
                "records": num_records,
                **steps[name].row(),
                **timing.row(),
            }
            if name != "gd_dp":
                row |= {"noise_multiplier": float(name.split()[1]), "above": above[name]}
                row["over_gd_dp"] = round(_harness.paired_ratio(timing, timings["gd_dp"]), 2)
                row |= {"dense_ms": round(scaled_ms), "scaled_from_k": largest}
                row["dense_over_ours"] = round(scaled_ms / timing.cpu_ms, 1)
            table.append(row)
            print(row, flush=True)
    path = _harness.write("wfna", table, note="one client's step, one core; times in milliseconds")
    print(
        _harness.table(
            table,
            (
                "case",
                "k",
                "records",
                "above",
                "median_ms",
                "temp_mib",
                "over_gd_dp",
                "dense_over_ours",
            ),
        )
    )
    print(path)


if __name__ == "__main__":
    main()
