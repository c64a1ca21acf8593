"""What a plan says after each round."""

import math

from fljax import accounting
from fljax.accounting import events
from fljax.simulation import spending

ROUND = accounting.PrivacyEvent(
    mechanism=events.Gaussian(10.0), privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
)


def test_pld_is_asked_a_few_times_and_never_reports_less_than_was_spent(monkeypatch):
    asked = []

    def epsilon(event, *, delta, method):
        asked.append(event.mechanism.count)
        return math.sqrt(event.mechanism.count)

    monkeypatch.setattr(accounting, "epsilon", epsilon)
    found = list(spending._epsilons(ROUND, 1000, 1e-5, "pld"))
    assert len(asked) == len(set(asked)) == spending.MOST_COMPOSITIONS
    assert len(found) == 1000 and found[-1] == math.sqrt(1000)
    assert all(e >= math.sqrt(t) for t, e in enumerate(found, start=1))
    assert found == sorted(found)


def test_other_accountants_and_short_runs_report_every_round():
    for method, rounds in (("rdp", 40), ("pld", 20)):
        found = list(spending._epsilons(ROUND, rounds, 1e-5, method))
        expected = [accounting.epsilon(ROUND.repeat(t), delta=1e-5, method=method) for t in range(1, rounds + 1)]
        assert found == expected
