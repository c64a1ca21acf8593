"""Least noise per client for one epsilon, bound by bound, at the sizes of Figure 5 of
arXiv:2405.04551.

    python -m bench.papers.wfna_noise     # two minutes of arithmetic, no timing

50 clients of 1,200 records, subsets (or weights of the scale) of 32, clip norm 10, delta 1e-4. Each
number is the standard deviation, in the unit of a client's average gradient, at which the named
bound says epsilon.
"""

from typing import Any

from bench import _harness, _tables
from fljax.accounting.weighted_sums import rounds as weighted_rounds
from fljax.accounting.weighted_sums.setups import Noise, Sampling

DELTA = 1e-4
ROUNDS, EPSILONS = (100, 3800), (1.0, 4.0, 10.0)
SETUP = weighted_rounds.Setup(
    num_clients=50, num_records=1200, batch_size=32, l2_clip_norm=10.0, noise_stddev=0.1
)
# Name -> sampling, noise, and how the rounds are composed.
BOUNDS: dict[str, tuple[Sampling, Noise, dict[str, str]]] = {
    "all records, exact": ("none", "isotropic", {"composition": "pld"}),
    "water filling, joint": ("gaussian", "water_filling", {}),
    "isotropic, joint": ("gaussian", "isotropic", {}),
    "subset, PLD": ("subset", "isotropic", {"composition": "pld"}),
    "subset, Renyi": ("subset", "isotropic", {}),
    "all records, KOV": ("none", "isotropic", {"composition": "kov"}),
    "water filling, Theorem 4, KOV": (
        "gaussian",
        "water_filling",
        {"composition": "kov", "formula": "paper"},
    ),
    "subset, KOV": ("subset", "isotropic", {"composition": "kov"}),
}


def rows() -> list[dict[str, Any]]:
    """One row for each number of rounds and epsilon; NaN never: a bound that no noise meets
    raises.
    """
    found = []
    for num_rounds in ROUNDS:
        for epsilon in EPSILONS:
            row: dict[str, Any] = {"rounds": num_rounds, "epsilon": epsilon}
            for name, (sampling, noise, options) in BOUNDS.items():
                arguments: Any = {"num_rounds": num_rounds, "delta": DELTA, **options}
                row[name] = weighted_rounds.least_noise_stddev(
                    sampling,
                    noise,
                    SETUP,
                    target_epsilon=epsilon,
                    tolerance=1e-5,
                    **arguments,
                )
            found.append(row)
            print(row, flush=True)
    return found


def table(rows: _tables.Rows) -> str:
    """Least noise a client needs, bound by bound."""
    body = [
        [f"{row['rounds']:,}", f"{row['epsilon']:g}", *(_tables.up(row[name]) for name in BOUNDS)]
        for row in rows
    ]
    return _tables.markdown(["rounds", "epsilon", *BOUNDS], body)


def main() -> None:
    """Computes all bounds and writes the JSON."""
    print(
        _harness.write(
            "wfna_noise", rows(), note="least noise_stddev per client; arithmetic, no timing"
        )
    )


if __name__ == "__main__":
    main()
