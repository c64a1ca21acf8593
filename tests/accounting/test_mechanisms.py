"""Mechanisms that somebody else registers, and pairs of distributions on finitely many outcomes."""

import dataclasses
import json
import math
import pathlib
import re

import mpmath
import numpy as np
import pytest
from scipy import stats

from fljax import accounting
from fljax.accounting import events, mechanisms
from fljax.errors import PrivacyPreconditionError, UnsupportedEventError

ADD_REMOVE = "ADD_OR_REMOVE_ONE"


@dataclasses.dataclass(frozen=True)
class Coin(events.Mechanism):
    """Randomised response: the truth with odds e^epsilon."""

    epsilon: float


@dataclasses.dataclass(frozen=True)
class Rumour(events.Mechanism):
    """Known by its Renyi divergence only."""

    rho: float


def coin_pair(coin, relation):
    truth = 1 / (1 + math.exp(-coin.epsilon))
    return accounting.Pair((truth, 1 - truth), (1 - truth, truth))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(events, "RECORDS", dict(events.RECORDS))
    monkeypatch.setattr(mechanisms, "_RULES", {})
    accounting.register(
        Coin, describe=lambda coin: f"a coin of odds e^{coin.epsilon:g}", pld=coin_pair
    )
    accounting.register(
        Rumour,
        describe=lambda rumour: "a rumour",
        rdp=lambda rumour, relation, orders: rumour.rho * orders,
    )


def event(mechanism, relation=ADD_REMOVE):
    return events.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation=relation
    )


def coins_delta(epsilon0, count, epsilon):
    """Delta of `count` coins: sum over the number of truths of (P - e^epsilon Q)+, to 50 digits."""
    with mpmath.workdps(50):
        truth = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon0)))
        total = mpmath.mpf(0)
        for heads in range(count + 1):
            p = mpmath.binomial(count, heads) * truth**heads * (1 - truth) ** (count - heads)
            q = mpmath.binomial(count, heads) * truth ** (count - heads) * (1 - truth) ** heads
            total += max(mpmath.mpf(0), p - mpmath.exp(epsilon) * q)
        return float(total)


@pytest.mark.parametrize(
    ("epsilon0", "count", "epsilon"), [(0.5, 1, 0.2), (0.1, 50, 1.0), (1.0, 8, 4.0)]
)
def test_composed_coins_cost_what_the_binomial_sum_says(epsilon0, count, epsilon):
    found = accounting.delta(event(Coin(epsilon0)).repeat(count), epsilon=epsilon, method="pld")
    exact = coins_delta(epsilon0, count, epsilon)
    assert exact <= found <= 1.01 * exact + 1e-15


@pytest.mark.parametrize("prob", [0.01, 0.5])
def test_a_sampled_coin_costs_what_its_two_outcomes_say(prob):
    coin = Coin(2.0)
    p, q = (np.array(side) for side in coin_pair(coin, None))
    mixed = prob * p + (1 - prob) * q
    for epsilon in (0.001, 0.01):
        exact = max(
            np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((mixed, q), (q, mixed))
        )
        found = accounting.delta(
            event(events.PoissonSampled(prob, coin)), epsilon=epsilon, method="pld"
        )
        assert exact * (1 - 1e-12) <= found <= 1.01 * exact + 1e-12


def test_a_coin_and_a_gaussian_cost_what_their_product_says():
    # delta(P1 x P2) = E over the coin's two outcomes of the Gaussian's delta at a shifted epsilon.
    coin, noise, epsilon = Coin(0.7), 2.0, 1.0
    (truth, lie), _ = coin_pair(coin, None)

    def gaussian_delta(eps):  # of N(1, s) against N(0, s), any real epsilon
        return stats.norm.cdf(0.5 / noise - eps * noise) - math.exp(eps) * stats.norm.cdf(
            -0.5 / noise - eps * noise
        )

    exact = truth * gaussian_delta(epsilon - coin.epsilon) + lie * gaussian_delta(
        epsilon + coin.epsilon
    )
    both = accounting.compose([event(coin), event(events.Gaussian(noise))])
    found = accounting.delta(both, epsilon=epsilon, method="pld")
    assert exact * (1 - 1e-9) <= found <= 1.01 * exact


def test_renyi_divergences_of_a_pair_are_its_sums():
    found = mechanisms.divergence(
        Coin(1.0), events.NeighboringRelation(ADD_REMOVE), (1.5, 2.0, 64.0)
    )
    p, q = (np.array(side) for side in coin_pair(Coin(1.0), None))
    exact = [math.log((p**a * q ** (1 - a)).sum()) / (a - 1) for a in (1.5, 2.0, 64.0)]
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    assert np.all(found >= exact)


def test_renyi_never_claims_less_than_the_pair_does():
    run = event(Coin(0.3)).repeat(40)
    assert accounting.epsilon(run, delta=1e-6, method="rdp") >= accounting.epsilon(
        run, delta=1e-6, method="pld"
    )


def test_outcomes_of_one_side_only_are_infinite_losses():
    accounting.register(  # half of the time it tells all
        Teller,
        describe=lambda teller: "a teller",
        pld=lambda t, r: accounting.Pair((0.5, 0.0, 0.5), (0.0, 0.5, 0.5)),
    )
    found = accounting.delta(event(Teller()).repeat(3), epsilon=1.0, method="pld")
    assert 1 - 0.5**3 <= found <= (1 - 0.5**3) * (1 + 1e-6)
    assert accounting.epsilon(event(Teller()), delta=1e-5, method="pld") == math.inf
    assert accounting.epsilon(event(Teller()), delta=1e-5, method="rdp") == math.inf


def test_chances_that_were_rounded_cost_what_exact_ones_do():
    # Sums of 1 +- 1e-13 must not make an infinite loss of what they lack, nor a smaller loss of
    # what they have more.
    def scaled(up):
        return lambda coin, relation: accounting.Pair(
            *(tuple(np.array(side) * up) for side in coin_pair(coin, None))
        )

    found = []
    for up in (1.0, 1 - 5e-14, 1 + 5e-14):
        accounting.register(Coin, describe=str, pld=scaled(up))
        found.append(accounting.epsilon(event(Coin(0.1)).repeat(50), delta=1e-9, method="pld"))
    np.testing.assert_allclose(found, found[0], rtol=1e-6)
    accounting.register(Coin, describe=str, pld=scaled(1 - 1e-9))
    with pytest.raises(PrivacyPreconditionError, match="sum to 1"):
        accounting.epsilon(event(Coin(0.1)), delta=1e-9, method="pld")


@dataclasses.dataclass(frozen=True)
class Teller(events.Mechanism):
    pass


@pytest.mark.parametrize(
    ("epsilon", "delta", "count"), [(1.0, 0.0, 5), (0.2, 1e-6, 20), (0.0, 1e-3, 3)]
)
def test_claims_compose_by_their_worst_pair(epsilon, delta, count):
    # Kairouz, Oh, Viswanath (2015): with probability 1 - (1 - delta)^k all is told, else k coins
    # were tossed.
    target = 0.5
    exact = 1 - (1 - delta) ** count * (1 - coins_delta(epsilon, count, target))
    found = accounting.delta(
        event(events.EpsilonDelta(epsilon, delta)).repeat(count), epsilon=target, method="pld"
    )
    assert exact * (1 - 1e-9) <= found <= 1.01 * exact + 1e-12


def test_a_registered_record_goes_through_json_words_and_the_ledger():
    run = event(events.Composed((Coin(0.5), events.Gaussian(1.0)))).repeat(2)
    assert events.from_json(json.loads(json.dumps(events.to_json(run)))) == run
    said = accounting.statement(run, delta=1e-5, method="pld")
    assert "a coin of odds e^0.5" in said
    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation=ADD_REMOVE)
    ledger.append(event(Coin(0.5)), 3)
    assert accounting.Ledger.from_json(ledger.to_json()).to_json() == ledger.to_json()


def test_a_record_known_by_its_renyi_divergence_answers_to_rdp_only():
    run = event(Rumour(0.1)).repeat(4)
    # rho = 0.4 in all: the same as zCDP of that rho.
    assert accounting.epsilon(run, delta=1e-5) == accounting.epsilon(
        event(events.ZCdp(0.4)), delta=1e-5
    )
    with pytest.raises(UnsupportedEventError, match="registered with pld"):
        accounting.epsilon(run, delta=1e-5, method="pld")


@dataclasses.dataclass(frozen=True)
class Stranger(events.Mechanism):
    x: float = 1.0


@pytest.mark.parametrize("method", accounting.METHODS)
def test_a_record_that_nobody_registered_is_refused_with_what_to_do(method):
    with pytest.raises(UnsupportedEventError, match=r"Stranger|Gaussian"):
        accounting.epsilon(event(Stranger()), delta=1e-5, method=method)
    if method != "gdp":
        with pytest.raises(UnsupportedEventError, match=r"fljax\.accounting\.register"):
            accounting.epsilon(event(Stranger()), delta=1e-5, method=method)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (accounting.Pair((0.5, 0.4), (0.5, 0.5)), "sum to 1"),
        (accounting.Pair((0.5, math.nan), (0.5, 0.5)), "sum to 1"),
        (accounting.Pair((1.5, -0.5), (0.5, 0.5)), "sum to 1"),
        (accounting.Pair((1.0,), (0.5, 0.5)), "sum to 1"),
        (accounting.Pair((1 / 600,) * 600, (1 / 600,) * 600), "at most 512"),
    ],
)
def test_what_is_no_pair_of_distributions_gives_no_epsilon(given, told):
    accounting.register(Stranger, describe=str, pld=lambda stranger, relation: given)
    with pytest.raises(PrivacyPreconditionError, match=told):
        accounting.epsilon(event(Stranger()), delta=1e-5, method="pld")


@pytest.mark.parametrize("values", [[-1.0, 2.0], [math.nan, 1.0], [1.0]])
def test_what_is_no_renyi_bound_gives_no_epsilon(values):
    accounting.register(Stranger, describe=str, rdp=lambda stranger, relation, orders: values)
    with pytest.raises(PrivacyPreconditionError, match="rdp of Stranger"):
        accounting.epsilon(event(Stranger()), delta=1e-5, orders=(2.0, 4.0))


def test_registering_checks_the_record():
    class Plain(events.Mechanism):
        pass

    @dataclasses.dataclass
    class Loose(events.Mechanism):
        x: float = 1.0

    @dataclasses.dataclass(frozen=True)
    class Hidden(events.Mechanism):
        x: float = dataclasses.field(default=1.0, compare=False)

    for record, told in (
        (Plain, "dataclass"),
        (Loose, "frozen"),
        (Hidden, "all count in a comparison, .*'x'"),
        (events.Gaussian, "of your own"),
        (
            dataclasses.make_dataclass("Laplace", [], bases=(events.Mechanism,), frozen=True),
            "no other record",
        ),
    ):
        with pytest.raises(ValueError, match=told):
            accounting.register(record, describe=str, pld=coin_pair)
    with pytest.raises(ValueError, match="rdp or pld"):
        accounting.register(Stranger, describe=str)
    accounting.register(Coin, describe=str, pld=coin_pair)  # anew: the module was imported again


@pytest.mark.filterwarnings("ignore::fljax.accounting.OrderWarning")
@pytest.mark.parametrize("epsilon", [700.0, 800.0, 1e300])
def test_a_claim_of_any_size_is_answered(epsilon):
    found = accounting.epsilon(event(events.EpsilonDelta(epsilon)), delta=1e-5, method="auto")
    assert found == pytest.approx(epsilon, rel=1e-6)


def test_a_record_that_is_registered_anew_costs_what_its_new_rules_say():
    def costs(move):
        accounting.register(
            Stranger, describe=str, rdp=lambda stranger, relation, orders: orders * move**2 / 2
        )
        return accounting.epsilon(event(Stranger()), delta=1e-5)

    for move in (0.1, 1.0):
        gaussian = accounting.epsilon(event(events.Gaussian(1 / move)), delta=1e-5)
        assert costs(move) == pytest.approx(gaussian, rel=1e-12)


def test_no_record_passes_for_one_of_another_kind():
    with pytest.raises(TypeError, match=r"Twice to extend events\.Mechanism alone, got a kind"):

        @dataclasses.dataclass(frozen=True)
        class Twice(events.Gaussian):  # would be accounted as Gaussian, whatever was registered
            factor: float = 2.0


def test_the_documented_example_prints_what_its_two_parts_cost(capsys, monkeypatch):
    monkeypatch.delitem(events.RECORDS, "Coin")  # which the page defines for itself
    text = (pathlib.Path(__file__).parents[2] / "docs" / "explain" / "accounting.md").read_text()
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "register(" in block
    ]
    exec(compile(code, "docs/explain/accounting.md", "exec"), {"__name__": "example"})
    printed = float(capsys.readouterr().out)
    # Never less than the Gaussian alone, never more than it at half of delta with the worst of the
    # coin beside.
    alone = accounting.epsilon(event(events.Gaussian(4.0)), delta=1e-5, method="gdp")
    assert alone < printed <= alone + math.log1p(0.1 * math.expm1(1.0))
