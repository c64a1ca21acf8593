"""Writes pld.json: epsilon of 200 Poisson-sampled Gaussian runs by dp-accounting 0.6.0,
connect-the-dots, grid 1e-4.

python tests/accounting/oracles/make_pld.py      (some minutes; needs dp-accounting)

A fixed random grid, then the corners. Each row: noise_multiplier, sampling_prob, steps, delta,
epsilon. The peer's epsilon is an upper bound (grid error and truncation both count upward): no
certified lower bound may exceed it.
"""

import json
import pathlib
import time

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant

CORNERS = [
    (0.3, 0.01, 1, 1e-12),
    (0.3, 1e-6, 1000, 1e-9),
    (0.3, 1e-4, 100, 1e-6),
    (1.0, 1e-6, 100_000, 1e-9),
    (1.0, 1e-6, 1_000_000, 1e-7),
    (30.0, 1e-2, 1_000_000, 1e-5),
    (5.0, 1e-3, 1_000_000, 1e-12),
    (1.0, 1.0, 1, 1e-5),
    (10.0, 1.0, 100, 1e-12),
    (100.0, 1.0, 1_000_000, 1e-5),
]


def epsilon(noise: float, prob: float, steps: int, delta: float) -> float:
    event = dp_accounting.PoissonSampledDpEvent(prob, dp_accounting.GaussianDpEvent(noise))
    return PLDAccountant().compose(event, steps).get_epsilon(delta)


def main() -> None:
    rng = np.random.default_rng(20261121)
    rows = list(CORNERS)
    while len(rows) < 200:
        noise = float(np.exp(rng.uniform(np.log(0.5), np.log(10))))
        prob = float(min(1.0, np.exp(rng.uniform(np.log(1e-4), np.log(0.5)))))
        steps = int(np.exp(rng.uniform(0, np.log(2e4))))
        rows.append((noise, prob, steps, float(10 ** rng.uniform(-12, -3))))
    out, start = [], time.time()
    for row in rows:
        mu = row[1] * row[2] ** 0.5 / row[0]
        if mu > 6:  # tens of thousands of grid points per unit of epsilon: too slow there
            continue
        out.append([*row, epsilon(*row)])
        print(len(out), round(time.time() - start), out[-1], flush=True)
    text = ",\n".join(json.dumps(row) for row in out)
    pathlib.Path(__file__).with_name("pld.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
