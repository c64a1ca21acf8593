"""How much noise is left in the average at equal exact privacy: pairwise noise, local noise, ideal
secure sum?

    python -m bench.papers.noise_in_average     # seconds; prints the tables of docs/explain/view.md

50 clients, one round, (3, 1e-5)-DP for a client whose upload moves by at most 1, by the same exact
accountant for all. Variances are per coordinate of the average, expected over who straggles.
`pair_paper` is pairwise noise with the printed rule at the same nominal epsilon, which really is
more private than asked.
"""

from typing import Any

import numpy as np

from bench import _harness, _tables
from fljax.accounting import gaussian
from fljax.accounting.shared_noise import least_noise

NUM_CLIENTS, EPSILON, DELTA = 50, 3.0, 1e-5
COLLUDERS = (0, 10, 20, 30, 40)
MECHANISMS = ("local", "pair_noise", "secure_sum", "secure_sum_corrected", "central")


def uniform(most: int) -> np.ndarray:
    """0 .. most stragglers, equally likely."""
    return np.full(most + 1, 1 / (most + 1))


def links(prob: float, most: int) -> np.ndarray:
    """Binomial link failures, at most `most` of them: rounds with more are repeated."""
    count = np.arange(NUM_CLIENTS + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, NUM_CLIENTS + 1)))])
    log_choose = log_factorial[-1] - log_factorial - log_factorial[::-1]
    pmf = np.exp(log_choose + count * np.log(prob) + (NUM_CLIENTS - count) * np.log1p(-prob))[
        : most + 1
    ]
    return pmf / pmf.sum()


LAWS = {
    "nobody": uniform(0),
    "uniform to 10": uniform(10),
    "uniform to 30": uniform(30),
    "uniform to 38": uniform(38),
    "uniform to 39": uniform(39),
    "links 5 %, to 10": links(0.05, 10),
    "links 5 %, to 30": links(0.05, 30),
    "links 5 %, to 35": links(0.05, 35),
}


def row(law: str, num_colluders: int) -> dict[str, Any]:
    """One line of the table; a scheme that cannot be is None."""
    mu = float(gaussian.epsilon_to_mu(EPSILON, DELTA))
    found: dict[str, Any] = {"stragglers": law, "colluders": num_colluders}
    for name in MECHANISMS:
        try:
            found[name] = least_noise.expected_variance(
                name, NUM_CLIENTS, num_colluders, LAWS[law], mu=mu
            )
        except ValueError:  # nobody honest is left to add noise
            found[name] = None
    printed = least_noise.pair_calibration(
        NUM_CLIENTS, num_colluders, LAWS[law], epsilon=EPSILON, delta=DELTA, formula="paper"
    )
    found |= {"pair_paper": printed.expected_variance, "pair_paper_true_epsilon": printed.epsilon}
    secure = found["secure_sum"]
    found["pair_over_secure"] = found["pair_noise"] / secure if secure else None
    return found


def figure_2() -> list[dict[str, Any]]:
    """Standard deviations against colluders, stragglers and epsilon, printed and exact rule."""
    settings = [(c, 10, 3.0) for c in range(0, 50, 5)] + [(15, s, 3.0) for s in range(0, 31, 5)]
    settings += [(10, 10, e) for e in (1.0, 3.0, 6.0, 9.0)]
    rows = []
    for colluders, most, epsilon in settings:
        for formula in ("paper", "sound"):
            found = least_noise.pair_calibration(
                NUM_CLIENTS, colluders, uniform(most), epsilon=epsilon, delta=DELTA, formula=formula
            )
            rows.append(
                {
                    "colluders": colluders,
                    "stragglers": f"uniform to {most}",
                    "epsilon": epsilon,
                    "formula": formula,
                    "own_stddev": found.own_variance**0.5,
                    "pair_stddev": found.pair_variance**0.5,
                    "true_epsilon": found.epsilon,
                }
            )
    return rows


# Settings of bench.papers.noise_in_average that the page shows: law of stragglers, most colluders.
_SHOWN = [
    ("nobody", 10, "nobody"),
    ("uniform to 10", 0, "uniform, 0 to 10"),
    ("uniform to 10", 10, "uniform, 0 to 10"),
    ("uniform to 10", 30, "uniform, 0 to 10"),
    ("uniform to 10", 40, "uniform, 0 to 10"),
    ("uniform to 38", 10, "uniform, 0 to 38"),
    ("uniform to 39", 10, "uniform, 0 to 39"),
    ("links 5 %, to 10", 10, "5 % of links fail, at most 10"),
    ("links 5 %, to 30", 10, "5 % of links fail, at most 30"),
    ("links 5 %, to 35", 10, "5 % of links fail, at most 35"),
]


def table(rows: _tables.Rows) -> str:
    """Noise left in the average at equal exact privacy."""
    found = {
        (row["stragglers"], row["colluders"]): row for row in rows if row["table"] == "average"
    }
    names = ("local", "pair_noise", "secure_sum", "secure_sum_corrected")
    body = []
    for law, colluders, title in _SHOWN:
        row = found[law, colluders]
        ratio = row["pair_over_secure"]
        cells = [_tables.up(row[name]) for name in names]
        body.append([title, str(colluders), *cells, "-" if ratio is None else f"{ratio:.2f}"])
    head = [
        "stragglers",
        "colluders",
        "local noise",
        "pairwise",
        "secure sum",
        "corrected",
        "pairwise / secure sum",
    ]
    return _tables.markdown(head, body)


def main() -> None:
    """Prints both tables and writes them."""
    rows = [row(law, colluders) for law in LAWS for colluders in COLLUDERS]
    columns = ["stragglers", "colluders", *MECHANISMS, "pair_paper", "pair_over_secure"]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for found in rows:
        cells = ["-" if found[c] is None else found[c] for c in columns]
        print("| " + " | ".join(c if isinstance(c, str) else f"{c:.4g}" for c in cells) + " |")
    second = figure_2()
    for found in second:
        print(
            {
                key: round(value, 4) if isinstance(value, float) else value
                for key, value in found.items()
            }
        )
    tables = [{"table": "average", **r} for r in rows] + [
        {"table": "figure 2", **r} for r in second
    ]
    _harness.write("noise_in_average", tables, note="arithmetic, no timing")


if __name__ == "__main__":
    main()
