"""What is paid less since the tightest certified accountant is the default, and since risks are
bounded from all epsilons at once.

    python -m bench.accountants.tight     # two minutes of arithmetic, no timing

`before` is what the library said at first: Renyi divergences for noise, and for a risk the line of
one (epsilon, delta) at DELTA. `now` is what it says by default. `peer` is riskcal 1.5.1's value at
its usual lattice. What pair noise on sparse graphs is charged stands in `bench.papers.colluders`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from bench import _harness, _tables
from fljax import accounting, schemes
from fljax.accounting import events, risk
from fljax.simulation.config import default_delta, from_sections

DELTA = 1e-5  # at which an epsilon was turned into a risk
RATE, ROUNDS = 0.01, 1000
# riskcal 1.5.1: of noise 1 at this rate and number of rounds, and the noise for an advantage of 0.1
THEIR_ADVANTAGE, THEIR_FNR, THEIR_NOISE = 0.16101842080506576, 0.9709002789031983, 1.422456


def run_of(name: str) -> tuple[Callable[[float], accounting.PrivacyEvent], float]:
    """(noise -> all rounds of a scheme's run by its name, its delta)."""
    scheme = schemes.get(name)
    config = from_sections({"scheme": {"scheme": name}})
    start, clients = config.scheme_config, config.data.num_clients
    assert clients is not None
    if "num_parties" in {field.name for field in dataclasses.fields(start)}:
        start = dataclasses.replace(start, num_parties=clients)

    def run(noise: float) -> accounting.PrivacyEvent:
        one = scheme.event(dataclasses.replace(start, noise_multiplier=noise))
        return one.repeat(config.run.num_rounds)

    return run, config.privacy.target_delta or default_delta(clients)


def noise_row(name: str, epsilon: float) -> dict[str, Any]:
    """The noise of a scheme's run for an epsilon, by Renyi divergences and by default."""
    run, delta = run_of(name)
    found: dict[str, Any] = {"kind": "noise", "case": name, "epsilon": epsilon, "delta": delta}
    before = float(accounting.calibrate(run, epsilon=epsilon, delta=delta, method="rdp"))
    now = float(accounting.calibrate(run, epsilon=epsilon, delta=delta, method="auto"))
    truth = accounting.spent(run(before), delta=delta, method="auto")
    return found | {
        "before": before,
        "now": now,
        "accountant": accounting.spent(run(now), delta=delta, method="auto").method,
        "epsilon_of_before": truth.epsilon_upper,
        "variance_saved": (before / now) ** 2,
    }


def sampled(noise: float) -> accounting.PrivacyEvent:
    """ROUNDS rounds at RATE."""
    return accounting.PrivacyEvent(
        mechanism=events.SelfComposed(events.PoissonSampled(RATE, events.Gaussian(noise)), ROUNDS),
        privacy_unit="client",
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _by_one_epsilon(noise: float) -> tuple[float, float]:
    """(advantage, TPR at FPR 0.01) that one (epsilon, DELTA) allows."""
    epsilon = accounting.epsilon(sampled(noise), delta=DELTA, method="rdp")
    advantage = (math.expm1(epsilon) + 2 * DELTA) / (math.exp(epsilon) + 1)
    lines = math.exp(epsilon) * 0.01 + DELTA, 1 - math.exp(-epsilon) * (1 - DELTA - 0.01)
    return advantage, min(1.0, *lines)


def risk_rows() -> list[dict[str, Any]]:
    """Advantage, TPR at FPR, and noise for an advantage."""
    advantage, tpr = _by_one_epsilon(1.0)
    low, high = 1.0, 64.0  # the noise whose one epsilon allows an advantage of 0.1
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _by_one_epsilon(middle)[0] <= 0.1 else (middle, high)
    rows = [
        ("advantage at noise 1", advantage, risk.advantage(sampled(1.0)), THEIR_ADVANTAGE),
        (
            "TPR at FPR 0.01 at noise 1",
            tpr,
            risk.tpr_at_fpr(sampled(1.0), 0.01),
            1 - THEIR_FNR,
        ),
        (
            "noise for an advantage of 0.1",
            high,
            float(risk.calibrate(sampled, advantage=0.1, tolerance=1e-4)),
            THEIR_NOISE,
        ),
    ]
    return [
        {"kind": "risk", "case": case, "before": before, "now": now, "peer": peer}
        for case, before, now, peer in rows
    ]


def table(rows: _tables.Rows) -> str:
    """Noise of runs by their names, before and now."""
    body = [
        [
            f"`{row['case']}`",
            f"{row['epsilon']:g}",
            _tables.up(row["before"]),
            _tables.up(row["now"]),
            row["accountant"],
            _tables.up(row["epsilon_of_before"], 4),
            f"{row['variance_saved']:.2f}",
        ]
        for row in rows
        if row["kind"] == "noise"
    ]
    head = ["run", "epsilon", "noise by Renyi", "noise now", "accountant"]
    return _tables.markdown([*head, "epsilon of the first", "variance saved"], body)


def risk_table(rows: _tables.Rows) -> str:
    """Risks from one epsilon, from all, and riskcal's."""
    body = [
        [row["case"], _tables.up(row["before"]), _tables.up(row["now"], 4), f"{row['peer']:.4g}"]
        for row in rows
        if row["kind"] == "risk"
    ]
    return _tables.markdown(["risk", "from one epsilon", "now", "riskcal 1.5.1"], body)


def main() -> None:
    """Prints the tables and writes their rows."""
    runs = (("dp_fedavg", 4.0), ("dp_fedavg", 3.0), ("lightdp", 8.0), ("lightdp", 3.0))
    rows = [*(noise_row(*one) for one in runs), *risk_rows()]
    print(table(rows), risk_table(rows), sep="\n\n")
    print(_harness.write("accounting_tight", rows, note="arithmetic, no timing"))


if __name__ == "__main__":
    main()
