"""Which subject-level method learns most at the same TRUE privacy, and how far is the paper's
accounting off?

    # tuning, training, then the table of claims: minutes
    python -m bench.papers.subject_levels
    python -m bench.papers.subject_levels --errata   # claims only

Task and methods are those of `fljax compare`: the writers stand-in (digits restyled by 400
subjects), 16 silos, every subject spread evenly over all of them, a softmax model. Everyone with a
guarantee is granted the same epsilon for one subject's data in all silos, add-or-remove-one,
towards a server that sees each silo's update, by privacy-loss distributions. Learning rates are
searched by factors of two on seeds that are not reported, until the best one has a
worse one on either side. Only differences mean anything: the data are a stand-in.

The second table holds claims of arXiv:2206.03617 against what is true of them, recomputed.
"""

import argparse
import dataclasses
import math
from typing import Any

import numpy as np

from bench import _harness, _tables
from fljax import data
from fljax.papers.subject_dp import claims as subject_claims
from fljax.papers.subject_dp import compare

SETTINGS = compare.Settings(accountant="pld", seeds=5, alphas=())
TUNING_SEEDS = (1000, 1001, 1002)
# Where the search starts; a clipped batch gradient is not divided by anything, so its noise is tens
# of times larger.
FIRST_RATES = {"FedAvg": 2.0, "UserLDP": 0.03}
OTHERS_FIRST_RATE = 4.0


def training() -> list[dict[str, Any]]:
    """One row for each method."""
    dataset = data.load(SETTINGS.dataset)
    ids = dataset.train[data.subjects.SUBJECT]
    splits = {capped: compare.tables(SETTINGS, ids, capped=capped) for capped in (False, True)}
    rows = []
    for contestant in compare.contestants(SETTINGS, dataset.train):
        config, epsilon = compare.calibrated(contestant, SETTINGS)
        train = compare.trainer(contestant.scheme, config, SETTINGS, dataset)
        own = splits[bool(np.isfinite(epsilon))]

        def score(rate: float, train: Any = train, own: np.ndarray = own) -> float:
            return float(np.mean([train(seed, own[0], rate)[0][-1] for seed in TUNING_SEEDS]))

        rate, tried = _harness.best_rate(
            score,
            FIRST_RATES.get(contestant.label, OTHERS_FIRST_RATE),
            lambda rate: (rate / 2, 2 * rate),
        )
        accuracy, loss = zip(
            *(train(seed, own[seed], rate) for seed in range(SETTINGS.seeds)), strict=True
        )
        config = dataclasses.replace(config, local_learning_rate=rate)
        result = compare.Result(
            contestant.label, config, epsilon, np.stack(accuracy), np.stack(loss), ()
        )
        row = compare.row(result)
        del row["accuracy at alphas"]
        rows.append(
            row | {"tuning": {f"{r:g}": round(value, 4) for r, value in sorted(tried.items())}}
        )
        print(rows[-1], flush=True)
    return rows


def errata() -> list[dict[str, Any]]:
    """Claims of (4, 1e-5) for a subject, and what is true of them."""
    return [
        {
            "case": claim.case,
            "claimed": subject_claims.CLAIMED_EPSILON,
            "true": round(claim.upper, 4),
            "true, at least": round(claim.lower, 4),
            "errata": claim.errata,
        }
        for claim in subject_claims.claims()
    ]


def claims_table(rows: _tables.Rows) -> str:
    """What the paper's claim of epsilon 4 is worth."""
    body = [
        [
            row["case"],
            f"{math.floor(row['true, at least'] * 1e3) / 1e3:.3f} to "
            f"{math.ceil(row['true'] * 1e3) / 1e3:.3f}",
            row["errata"],
        ]
        for row in rows
        if "case" in row
    ]
    return _tables.markdown(["claim", "true epsilon, certified", "errata"], body)


def table(rows: _tables.Rows) -> str:
    """Accuracy of each method at one true epsilon."""
    body = [
        [
            row["method"],
            "no guarantee" if row["true epsilon"] is None else _tables.up(row["true epsilon"], 4),
            f"{row['noise multiplier']:.2f}",
            f"{row['learning rate']:g}",
            row["accuracy"],
        ]
        for row in rows
        if "method" in row
    ]
    return _tables.markdown(
        ["method", "true epsilon", "noise multiplier", "learning rate", "accuracy"], body
    )


def main() -> None:
    """Runs what was asked for; writes results/subject_levels-<platform>.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--errata", action="store_true", help="only the claims")
    only_claims = parser.parse_args().errata
    rows = [] if only_claims else training()
    claims = errata()
    if rows:
        print(
            _harness.table(
                rows, ["method", "true epsilon", "noise multiplier", "learning rate", "accuracy"]
            )
        )
    print(_harness.table(claims, ["case", "claimed", "true", "errata"]))
    _harness.write("subject_claims" if only_claims else "subject_levels", [*rows, *claims])


if __name__ == "__main__":
    main()
