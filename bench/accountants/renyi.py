"""What do Renyi accounting and calibration cost, beside dp-accounting?

    python -m bench.accountants.renyi [--quick] [--rounds 5]

- sweep: epsilon of 1,000 noise multipliers, one program; dp-accounting's RdpAccountant, one after
  the other
- one: epsilon of one run; the same
- calibrate: noise for a target epsilon; `calibrate_dp_mechanism` with RdpAccountant
- calibrate_grid: 1,000 noise multipliers, one program; the same, one after the other
- ledger: append a round of a new kind and ask for epsilon; the same, on an accountant that lives on

All at dp-accounting's own orders. Before timing, epsilons agree to 1e-10 at its integer orders; at
fractional ones it adds up the absolute values of an alternating series, so that ours must not be
larger there. The peer's sweep runs on every tenth configuration (`--quick`: every fiftieth) and its
time is scaled up; `peer_configs` says how many. Privacy-loss distributions:
bench/accountants/pld.py.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bench import _harness, _tables
from bench.accountants import cold
from fljax import accounting
from fljax.accounting import events
from fljax.accounting.renyi import conversion, noise_grid, rdp

SAMPLING_PROB, NUM_STEPS, DELTA = 0.01, 10_000, 1e-5
NOISE = np.geomspace(0.5, 10.0, 1000)
TARGETS = np.geomspace(0.5, 8.0, 1000)


def run_of(noise: float, steps: int = NUM_STEPS) -> accounting.PrivacyEvent:
    """A run of the sampled Gaussian mechanism on clients."""
    mechanism = events.SelfComposed(
        events.PoissonSampled(SAMPLING_PROB, events.Gaussian(noise)), steps
    )
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
    )


def sweep(noise: Any, orders: Any) -> jax.Array:
    """Epsilon of each noise multiplier `[...]`."""
    return conversion.rdp_to_epsilon(
        NUM_STEPS * rdp.poisson_gaussian(noise, SAMPLING_PROB, orders), orders, DELTA
    )


def within_x64(run: Callable[[], Any]) -> Callable[[], Any]:
    """A compiled float64 program as a plain function."""

    def wrapped() -> Any:
        with accounting.x64():
            return jax.block_until_ready(run())

    return wrapped


def not_above(what: str, ours: Any, theirs: Any) -> float:
    """Largest relative amount by which ours is below; raises AssertionError if it is above by more
    than 1e-5.
    """
    below = 1 - np.asarray(ours) / np.asarray(theirs)
    if not np.all(below >= -1e-5):
        raise AssertionError(f"{what}: above dp-accounting by a relative {-below.min():.3g}")
    return float(below.max())


def table(rows: _tables.Rows) -> str:
    """Speed of the accountants."""
    names = {
        "sweep_1000": "1,000 configurations, at its own orders",
        "one": "one epsilon",
        "calibrate": "noise for one epsilon",
        "calibrate_grid_1000": "noise for 1,000 targets in one program",
        "ledger_round": "epsilon after one more round",
    }
    first = cold.column(rows, "renyi")
    body = [
        [names[row["case"]], f"{row['speedup']:.0f}x", first.get(row["case"], "-")]
        for row in rows
        if row.get("speedup")
    ]
    head = ["Renyi accounting", "against dp-accounting 0.6.0", "cold, whole process"]
    return _tables.markdown(head, body)


def main() -> None:
    """Checks against the peer, times both in turn, prints and writes the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer peer configurations")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant as peer

    orders = rdp.as_orders(peer.DEFAULT_RDP_ORDERS)
    every = 50 if options.quick else 10
    few, few_targets = NOISE[::every], TARGETS[:: 20 * every]
    rows: list[dict[str, Any]] = []

    def peer_epsilon(noise: float, steps: int = NUM_STEPS, grid: Any = orders) -> float:
        accountant = peer.RdpAccountant(grid)
        sampled = dp_accounting.PoissonSampledDpEvent(
            SAMPLING_PROB, dp_accounting.GaussianDpEvent(noise)
        )
        return accountant.compose(sampled, steps).get_epsilon(DELTA)

    def peer_noise(epsilon: float) -> float:
        return dp_accounting.calibrate_dp_mechanism(
            lambda: peer.RdpAccountant(orders),
            lambda noise: dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(
                    SAMPLING_PROB, dp_accounting.GaussianDpEvent(noise)
                ),
                NUM_STEPS,
            ),
            epsilon,
            DELTA,
        )

    def report(
        case: str, cases: dict[str, Any], peer_share: float, compile_s: float | None, error: float
    ) -> None:
        timings = _harness.interleaved(cases, repeats=options.rounds)
        ours, theirs = timings["ours"], timings["dp_accounting"]
        for name, timing in timings.items():
            share = peer_share if name == "dp_accounting" else 1.0
            rows.append(
                {
                    "case": case,
                    "peer": name,
                    **timing.row(),
                    "full_ms": round(timing.min_ms / share, 3),
                    "compile_s": compile_s if name == "ours" else None,
                    "speedup": _harness.paired_ratio(theirs, ours) / peer_share
                    if name == "ours"
                    else None,
                    "speedup_cpu": theirs.cpu_ms / ours.cpu_ms / peer_share
                    if name == "ours"
                    else None,
                    "most_below": error if name == "ours" else None,
                }
            )

    with accounting.x64():
        step = _harness.compile_step(lambda noise: sweep(noise, orders), NOISE)
        found = np.asarray(step.run())
    theirs = np.asarray([peer_epsilon(float(noise)) for noise in few])
    whole = tuple(a for a in orders if a == int(a))
    expected = np.asarray([peer_epsilon(float(noise), grid=whole) for noise in few])
    _harness.check("sweep at integer orders", np.asarray(sweep(few, whole)), expected, rtol=1e-10)
    error = not_above("sweep", found[::every], theirs)
    report(
        "sweep_1000",
        {
            "ours": within_x64(step.run),
            "dp_accounting": lambda: [peer_epsilon(float(noise)) for noise in few],
        },
        few.size / NOISE.size,
        round(step.trace_s + step.compile_s, 2),
        error,
    )
    rows[-1]["peer_configs"] = int(few.size)

    def one() -> float:
        from fljax.accounting import renyi_of_mechanism

        renyi_of_mechanism.curve.cache_clear()
        return accounting.epsilon(run_of(1.0), delta=DELTA, orders=orders)

    error = not_above("one", one(), peer_epsilon(1.0))
    report("one", {"ours": one, "dp_accounting": lambda: peer_epsilon(1.0)}, 1.0, None, error)

    def ours_noise() -> float:
        from fljax.accounting import renyi_of_mechanism

        renyi_of_mechanism.curve.cache_clear()
        return accounting.calibrate(run_of, epsilon=2.0, delta=DELTA, orders=orders)

    error = not_above("calibrate", ours_noise(), peer_noise(2.0))
    report(
        "calibrate",
        {"ours": ours_noise, "dp_accounting": lambda: peer_noise(2.0)},
        1.0,
        None,
        error,
    )

    with accounting.x64():
        step = _harness.compile_step(
            lambda target: noise_grid.poisson_gaussian_noise(
                SAMPLING_PROB, NUM_STEPS, epsilon=target, delta=DELTA, orders=orders
            ),
            TARGETS,
        )
        found = np.asarray(step.run())
    theirs = np.asarray([peer_noise(float(target)) for target in few_targets])
    error = not_above("calibrate_grid", found[:: 20 * every], theirs)
    report(
        "calibrate_grid_1000",
        {
            "ours": within_x64(step.run),
            "dp_accounting": lambda: [peer_noise(float(target)) for target in few_targets],
        },
        few_targets.size / TARGETS.size,
        round(step.trace_s + step.compile_s, 2),
        error,
    )
    rows[-1]["peer_configs"] = int(few_targets.size)

    fresh = iter(np.geomspace(1.0, 2.0, 1_000_000))
    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE")
    theirs_so_far = peer.RdpAccountant(orders)

    def our_round() -> float:
        ledger.append(run_of(float(next(fresh)), 1))
        return ledger.epsilon(delta=DELTA)

    def their_round() -> float:
        event = dp_accounting.PoissonSampledDpEvent(
            SAMPLING_PROB, dp_accounting.GaussianDpEvent(float(next(fresh)))
        )
        return theirs_so_far.compose(event).get_epsilon(DELTA)

    report("ledger_round", {"ours": our_round, "dp_accounting": their_round}, 1.0, None, 0.0)

    columns = (
        "case",
        "peer",
        "min_ms",
        "cpu_ms",
        "full_ms",
        "compile_s",
        "speedup",
        "speedup_cpu",
        "most_below",
    )
    print(_harness.table(rows, columns))
    note = (
        "Renyi accounting at dp-accounting's own orders; full_ms scales the peer's part up to "
        "all configurations"
    )
    print(_harness.write("accounting", rows, note=note))


if __name__ == "__main__":
    main()
