"""What does a first answer cost: a fresh process, an empty cache, imports included?

    python -m bench.accountants.cold [--rounds 3]     # minutes

CPU seconds of a whole process, the least of several, which a busy machine disturbs little: one
epsilon of 10,000 sampled steps, the noise for one epsilon, and one epsilon over twenty different
rates, by Renyi divergences and by privacy-loss distributions, beside dp-accounting's accountants at
their defaults.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from typing import Any

from bench import _harness, _tables

_OURS = """
from fljax import accounting
from fljax.accounting import events
def run_of(noise, steps=10_000, prob=0.01):
    sampled = events.PoissonSampled(prob, events.Gaussian(noise))
    return accounting.PrivacyEvent(
        mechanism=events.SelfComposed(sampled, steps),
        privacy_unit="client",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )
rates = [0.001 * (1 + i) for i in range(20)]
"""
_THEIRS = """
import dp_accounting
def run_of(noise, steps=10_000, prob=0.01):
    gaussian = dp_accounting.GaussianDpEvent(noise)
    sampled = dp_accounting.PoissonSampledDpEvent(prob, gaussian)
    return dp_accounting.SelfComposedDpEvent(sampled, steps)
rates = [0.001 * (1 + i) for i in range(20)]
"""
_ACCOUNTANTS = {
    "renyi": (
        "rdp",
        "from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant as Accountant\n",
    ),
    "pld": (
        "pld",
        "from dp_accounting.pld.pld_privacy_accountant import PLDAccountant as Accountant\n",
    ),
}
CASES = {
    "one": (
        "print(accounting.epsilon(run_of(1.0), delta=1e-5, method=METHOD))",
        "print(Accountant().compose(run_of(1.0)).get_epsilon(1e-5))",
    ),
    "calibrate": (
        "print(accounting.calibrate(run_of, epsilon=2.0, delta=1e-5, method=METHOD))",
        "print(dp_accounting.calibrate_dp_mechanism(Accountant, run_of, 2.0, 1e-5))",
    ),
    "twenty": (
        "all_of_them = accounting.compose([run_of(1.0, 50, rate) for rate in rates])\n"
        "print(accounting.epsilon(all_of_them, delta=1e-5, method=METHOD))",
        "accountant = Accountant()\n"
        "for rate in rates:\n"
        "    accountant.compose(run_of(1.0, 50, rate))\n"
        "print(accountant.get_epsilon(1e-5))",
    ),
}


def programs(accountant: str, case: str) -> dict[str, str]:
    """The text of our program and of the peer's."""
    method, peer = _ACCOUNTANTS[accountant]
    ours, theirs = CASES[case]
    return {
        "ours": f"METHOD = {method!r}\n{_OURS}{ours}\n",
        "dp_accounting": f"{_THEIRS}{peer}{theirs}\n",
    }


def run(program: str) -> tuple[float, float]:
    """(CPU seconds of a fresh process, what it printed)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as empty:
        paths = [str(_harness.ROOT), str(_harness.ROOT / "kernels")]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env=os.environ
            | {"JAX_COMPILATION_CACHE_DIR": empty, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=True,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, float(done.stdout.split()[-1])


def row(accountant: str, case: str, rounds: int) -> dict[str, Any]:
    """Both processes in turn. Raises RuntimeError where they do not mean the same."""
    found: dict[str, Any] = {"accountant": accountant, "cold_case": case}
    spent: dict[str, list[float]] = {"ours": [], "dp_accounting": []}
    for _ in range(rounds):
        for name, program in programs(accountant, case).items():
            seconds, found[f"{name}_answer"] = run(program)
            spent[name].append(seconds)
    ours, theirs = found["ours_answer"], found["dp_accounting_answer"]
    if not abs(ours / theirs - 1) < 0.02:  # orders and grids differ
        raise RuntimeError(f"{accountant}, {case}: {ours} beside {theirs}")
    least = {f"{name}_cpu_s": min(times) for name, times in spent.items()}
    return found | least | {"speedup_cold": least["dp_accounting_cpu_s"] / least["ours_cpu_s"]}


def column(rows: _tables.Rows, accountant: str) -> dict[str, str]:
    """How much faster a first answer is, by case."""
    return {
        row["cold_case"]: f"{row['speedup_cold']:.1f}x"
        for row in rows
        if row.get("accountant") == accountant
    }


def table(rows: _tables.Rows) -> str:
    """CPU seconds of a whole process."""
    accountants = {"renyi": "Renyi", "pld": "privacy losses"}
    cases = {
        "one": "one epsilon",
        "calibrate": "noise for one epsilon",
        "twenty": "one epsilon over 20 rates",
    }
    body = [
        [
            f"{cases[row['cold_case']]}, {accountants[row['accountant']]}",
            f"{row['ours_cpu_s']:.2f} s",
            f"{row['dp_accounting_cpu_s']:.2f} s",
            f"{row['speedup_cold']:.1f}x",
        ]
        for row in rows
    ]
    head = ["fresh process, empty cache, CPU time", "ours", "dp-accounting 0.6.0", "faster"]
    return _tables.markdown(head, body)


def main() -> None:
    """Runs all cases, prints the table and writes the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = [row(name, case, options.rounds) for name in _ACCOUNTANTS for case in CASES]
    print(table(rows))
    note = "CPU seconds of whole processes, the least of several; imports and compilations included"
    print(_harness.write("accounting_cold", rows, note=note))


if __name__ == "__main__":
    main()
