"""Do our accountants pass dp-accounting's own tests of its accountants?

    python -m bench.accountants.their_tests     # a minute; no timing

The classes of `fljax.accounting.dp_accountants` stand in the place of theirs while the tests of
dp-accounting's Renyi and PLD accountants run, from its installed package. Their tests also read
private parts, a list of divergences and a dry run of `compose`, which are answered here from public
ones. A test that fails is a row with its reason: in which words, or beyond which digit.
"""

import collections
import importlib
import re
import unittest
from typing import Any

import numpy as np

from bench import _harness, _tables
from fljax.accounting import dp_accountants, renyi_of_mechanism
from fljax.accounting.renyi import rdp

_MODULES = {
    "dp_accounting.rdp.rdp_privacy_accountant": "RdpAccountant",
    "dp_accounting.pld.pld_privacy_accountant": "PLDAccountant",
}


def _at_fault(accountant: Any, event: Any) -> Any:
    """The innermost part of an event that there is no bound for."""
    for part in [*getattr(event, "events", ()), *filter(None, [getattr(event, "event", None)])]:
        if not accountant.supports(part):
            return _at_fault(accountant, part)
    return event


class _Details(collections.namedtuple("_Details", "invalid_event error_message")):
    """What a dry run of `compose` answers where it fails."""


def _dry_run(accountant: Any, event: Any, count: int, do_compose: bool) -> _Details | None:
    if do_compose:
        accountant.compose(event, count)
    return None if accountant.supports(event) else _Details(_at_fault(accountant, event), "")


class RdpAccountant(dp_accountants.RdpAccountant):
    """Ours, with what their tests read."""

    _maybe_compose = _dry_run

    def __init__(self, orders: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(rdp.DEFAULT_ORDERS if orders is None else orders, *args, **kwargs)

    @property
    def _rdp(self) -> np.ndarray:
        assert self._orders is not None
        event = self.event
        return renyi_of_mechanism.curve(event.mechanism, event.neighboring_relation, self._orders)


class PLDAccountant(dp_accountants.PLDAccountant):
    """Ours, with what their tests read."""

    _maybe_compose = _dry_run


_OURS = {"RdpAccountant": RdpAccountant, "PLDAccountant": PLDAccountant}


def _reason(error: str) -> tuple[str, str]:
    """(which of the reasons it is, its last line)."""
    last = [line for line in error.strip().splitlines() if line.strip()][-1].strip()
    if "does not match" in last:
        return "words", last
    if "no logs of level" in last:
        return "log", last
    if "not raised" in last or "True is not false" in last:
        return "bound here", last
    if "UnsupportedEventError" in last or "Expected" in last:
        return "refused here", last
    return "digits", last


def rows() -> list[dict[str, Any]]:
    """A row for each test file, and one for each test that fails."""
    found = []
    for name, accountant in _MODULES.items():
        module, tests = importlib.import_module(name), importlib.import_module(f"{name}_test")
        theirs = getattr(module, accountant)
        setattr(module, accountant, _OURS[accountant])
        try:
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromModule(tests).run(result)
        finally:
            setattr(module, accountant, theirs)
        failed: dict[str, str] = {}  # several parts of one test count once
        for test, error in [*result.failures, *result.errors]:
            case = getattr(test, "test_case", test)
            failed.setdefault(case._testMethodName, error)
        total = {"kind": "file", "file": name.rpartition(".")[2], "tests": result.testsRun}
        found.append(total | {"passed": result.testsRun - len(failed)})
        for test, error in failed.items():
            reason, last = _reason(error)
            short = re.sub(r"\s+", " ", last)[:200]
            found.append({"kind": "test", "test": test, "reason": reason, "said": short})
    return found


def table(found: _tables.Rows) -> str:
    """How many pass, and why others do not."""
    files = [row for row in found if row["kind"] == "file"]
    why = collections.Counter(row["reason"] for row in found if row["kind"] == "test")
    names = ("words", "log", "bound here", "refused here", "digits")
    body = [
        [
            str(sum(row["tests"] for row in files)),
            str(sum(row["passed"] for row in files)),
            *(str(why[name]) for name in names),
        ]
    ]
    head = ["their tests", "pass", "want their words", "want a line in a log"]
    head += ["want a refusal of what is proved here", "are refused here", "want other digits"]
    return _tables.markdown(head, body)


def main() -> None:
    """Prints the table and writes the rows."""
    found = rows()
    for row in found:
        print(row)
    print(table(found))
    print(_harness.write("their_tests", found, note="dp-accounting's tests on our accountants"))


if __name__ == "__main__":
    main()
