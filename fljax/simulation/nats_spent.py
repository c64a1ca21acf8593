"""What a run told about its records in nats: for privacy.json, the report and the terminal."""

from typing import Any

import numpy as np

from fljax.accounting import information
from fljax.accounting.information.spent import Spent
from fljax.accounting.words import at_least, at_most
from fljax.schemes.base import Scheme
from fljax.simulation import budget, warm_start


def spent(
    scheme: Scheme, scheme_config: Any, task: Any, inputs: dict[str, Any], rounds: int
) -> Spent | None:
    """None where the scheme does not count in nats, or adds no noise."""
    return None if scheme.spent is None else scheme.spent(scheme_config, task, inputs, rounds)


def history(
    scheme: Scheme, scheme_config: Any, task: Any, inputs: dict[str, Any], rounds: int
) -> list[tuple[int, Spent]]:
    """`spent` after up to 20 counts of rounds, from the first to the last."""
    counts = np.unique(np.linspace(1, max(1, rounds), 20).astype(int))
    found = [
        (int(count), spent(scheme, scheme_config, task, inputs, int(count))) for count in counts
    ]
    return [(count, after) for count, after in found if after is not None]


def nats_claim(found: Spent, plan: budget.Plan) -> dict[str, Any]:
    """Plain data for privacy.json. Every list has one entry a client, which holds for each of its
    records.
    """

    def numbers(values: np.ndarray) -> list[float | str]:
        return [budget.number(value) for value in values]

    began = [warm_start.uncounted(plan.origin)] if isinstance(plan.origin, dict) else []

    return {
        "certified": found.certified,
        "certified_by": found.reason,
        "covariance_source": found.covariance_source,
        "label_nats": found.label_nats,
        "mse_certified": found.mse_certified,
        "mse_certified_by": found.mse_reason,
        "mse_lower_bound": numbers(found.mse),
        "nats_added_up": numbers(found.linear_nats),
        "nats_per_record": numbers(found.nats),
        "not_promised": [*information.NOT_PROMISED, *began, budget.of_seed(plan)],
        "num_records": [int(count) for count in found.num_records],
        "psnr_upper_bound": numbers(found.psnr),
        "uses_per_record": numbers(found.uses),
    }


def summary(found: Spent) -> str:
    """Two lines for the terminal, of the records that were told most about."""
    standing = "certified" if found.certified else f"NOT certified: {found.reason}"
    bound = "certified" if found.mse_certified else f"NOT certified: {found.mse_reason}"
    error, psnr = at_least(found.mse.min(), 4), at_most(found.psnr.max(), 3)
    return (
        f"information        at most {at_most(found.nats.max(), 4)} nats per record ({standing})\n"
        f"reconstruction     error >= {error}, PSNR <= {psnr} dB ({bound})"
    )
