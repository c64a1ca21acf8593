"""Epsilon of events, calibration and the ledger."""

import json
import math
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import accounting
from fljax.accounting import events
from fljax.errors import NoGuaranteeError, PrivacyPreconditionError, UnsupportedEventError


def claim(mechanism, unit="client", relation="ADD_OR_REMOVE_ONE"):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit=unit, neighboring_relation=relation
    )


def run(sampling_prob, noise, steps):
    return claim(events.PoissonSampled(sampling_prob, events.Gaussian(noise))).repeat(steps)


# dp-accounting 0.6.0's RDP accountant at its default orders.
GOLDEN = [
    (0.01, 1.0, 10000, 1e-5, 6.71276, 4.1),
    (256 / 60000, 1.1, 14062, 1e-5, 2.59656, 8.1),
    (4096 / 50000, 3.0, 2000, 1e-5, 6.23906, 4.5),
    (1e-3, 0.8, 5000, 1e-6, 1.59231, 8.3),
    (100 / 342477, 0.6, 1500, 1e-6, 2.39243, 5.8),
]
DP_ACCOUNTING_ORDERS = (
    [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024]
)


@pytest.mark.parametrize(("q", "noise", "steps", "delta", "expected", "order"), GOLDEN)
def test_epsilon_meets_the_golden_values(q, noise, steps, delta, expected, order):
    found = accounting.spent(run(q, noise, steps), delta=delta, orders=DP_ACCOUNTING_ORDERS)
    # At fractional orders they sum the absolute values of an alternating series, 4e-5 too much in
    # the third row.
    assert expected - 5e-5 <= found.epsilon_upper <= expected + 5e-6
    assert found.order == order
    assert accounting.epsilon(run(q, noise, steps), delta=delta) <= found.epsilon_upper
    assert found.certified


def test_calibration_meets_the_golden_value_and_never_overspends():
    noise = accounting.calibrate(lambda s: run(0.01, s, 1000), epsilon=3.0, delta=1e-5)
    assert noise == pytest.approx(0.864607, abs=1e-5)  # dp-accounting 0.6.0
    assert accounting.epsilon(run(0.01, noise, 1000), delta=1e-5) <= 3.0
    assert accounting.epsilon(run(0.01, noise * (1 - 2e-6), 1000), delta=1e-5) > 3.0


def test_calibrated_steps_are_the_most_that_fit():
    steps = accounting.calibrate(lambda t: run(0.01, 1.0, t), epsilon=3.0, delta=1e-5, integer=True)
    assert isinstance(steps, int)
    assert (
        accounting.epsilon(run(0.01, 1.0, steps), delta=1e-5)
        <= 3.0
        < accounting.epsilon(run(0.01, 1.0, steps + 1), delta=1e-5)
    )


def test_a_sampling_probability_calibrates_within_its_bracket():
    def event(q):
        return run(q, 1.0, 1000)

    q = accounting.calibrate(event, epsilon=3.0, delta=1e-5, bracket=(1e-6, 1.0))
    assert (
        accounting.epsilon(event(q), delta=1e-5)
        <= 3.0
        < accounting.epsilon(event(q * 1.00001), delta=1e-5)
    )
    assert accounting.calibrate(event, epsilon=1e5, delta=1e-5, bracket=(1e-6, 1.0)) == 1.0


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 0.9), (1e-6, 0.1), (2.0, 1e-5)])
def test_calibration_by_distributions_meets_its_target_where_the_estimate_says_nothing(
    epsilon, delta
):
    # At the first two, a little less noise than has epsilon 0: nothing to take a tangent of.
    noise = accounting.calibrate(
        lambda s: claim(events.Gaussian(s)), epsilon=epsilon, delta=delta, method="pld"
    )
    mu = float(accounting.gaussian.epsilon_to_mu(epsilon, delta))
    assert noise == pytest.approx(1 / mu, rel=3e-6)
    assert accounting.epsilon(claim(events.Gaussian(noise)), delta=delta, method="pld") <= epsilon


@pytest.mark.slow(reason="compiles distributions of privacy losses, one program a shape")
def test_calibration_by_distributions_finds_what_is_close_to_the_floor_of_the_other_releases():
    others = events.SelfComposed(events.PoissonSampled(0.01, events.Gaussian(1.0)), 1000)

    def release(noise):
        return claim(events.Composed((others, events.Gaussian(noise))))

    noise = accounting.calibrate(release, epsilon=1.83, delta=1e-5, method="pld", tolerance=0.1)
    spent = [
        accounting.epsilon(release(scale * noise), delta=1e-5, method="pld") for scale in (1.0, 0.8)
    ]
    assert spent[0] <= 1.83 < spent[1]


def test_calibration_without_a_solution_says_so():
    with pytest.raises(PrivacyPreconditionError, match="bracket"):
        accounting.calibrate(
            lambda s: run(0.5, s, 1000), epsilon=0.1, delta=1e-5, bracket=(0.5, 1.0)
        )
    with pytest.raises(PrivacyPreconditionError, match="epsilon"):
        accounting.calibrate(lambda t: run(0.5, 0.3, t), epsilon=0.1, delta=1e-5, integer=True)


@pytest.mark.parametrize(
    ("q", "noise", "epsilon"),
    [(0.0, 1.0, 0.0), (0.5, 0.0, math.inf), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf)],
)
def test_nobody_sampled_costs_nothing_and_no_noise_costs_everything(q, noise, epsilon):
    assert accounting.epsilon(run(q, noise, 10), delta=1e-5) == epsilon


def test_delta_and_epsilon_invert_each_other():
    event = run(0.02, 1.2, 500)
    delta = accounting.delta(event, epsilon=1.5)
    assert accounting.epsilon(event, delta=delta) == pytest.approx(1.5, rel=1e-9)


def test_composed_gaussians_are_one_gaussian():
    many = claim(
        events.Composed((events.SelfComposed(events.Gaussian(3.0), 4), events.Gaussian(2.0)))
    )
    one = claim(events.Gaussian((4 / 9 + 1 / 4) ** -0.5))
    for method in ("rdp", "gdp"):
        assert accounting.epsilon(many, delta=1e-6, method=method) == pytest.approx(
            accounting.epsilon(one, delta=1e-6, method=method), rel=1e-12
        )


def test_the_exact_epsilon_lies_below_the_renyi_bound():
    event = claim(events.Gaussian(1.0))
    low, high = accounting.interval(event, delta=1e-5, method="gdp")
    assert (
        low == high == pytest.approx(4.377178, abs=1e-6)
    )  # Balle, Wang (2018): analytic Gaussian at sigma 1
    assert high < accounting.epsilon(event, delta=1e-5)


UNSUPPORTED = [
    ("rdp", events.PoissonSampled(0.1, events.ZCdp(0.1)), "ADD_OR_REMOVE_ONE"),
    ("rdp", events.SampledWithoutReplacement(10, 2, events.Gaussian(1.0)), "ADD_OR_REMOVE_ONE"),
    ("rdp", events.GaussianWeighted(1.0, 0.1, True), "ADD_OR_REMOVE_ONE"),
    ("pld", events.GaussianWeighted(1.0, 0.1, True), "REPLACE_ONE"),
    ("rdp", events.PoissonSampled(0.1, events.EpsilonDelta(1.0, 1e-6)), "ADD_OR_REMOVE_ONE"),
    ("rdp", events.MixtureOfGaussians(1.0, (0.0, 1.0), (0.5, 0.5)), "REPLACE_ONE"),
    ("rdp", events.PoissonSampled(0.1, events.Laplace(1.0)), "REPLACE_ONE"),
    ("gdp", events.PoissonSampled(0.1, events.Gaussian(1.0)), "ADD_OR_REMOVE_ONE"),
    ("gdp", events.Laplace(1.0), "ADD_OR_REMOVE_ONE"),
]


@pytest.mark.parametrize(("method", "mechanism", "relation"), UNSUPPORTED)
def test_a_combination_without_a_bound_raises_even_inside_a_composition(
    method, mechanism, relation
):
    with pytest.raises(UnsupportedEventError, match=type(mechanism).__name__):
        accounting.epsilon(claim(mechanism, relation=relation), delta=1e-5, method=method)
    mixed = events.Composed((events.Gaussian(1.0), events.SelfComposed(mechanism, 3)))
    with pytest.raises(UnsupportedEventError):
        accounting.epsilon(claim(mixed, relation=relation), delta=1e-5, method=method)


def test_bad_arguments_are_named():
    event = run(0.1, 1.0, 1)
    for delta in (1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="delta"):
            accounting.epsilon(event, delta=delta)
    with pytest.raises(ValueError, match="method"):
        accounting.epsilon(event, delta=1e-5, method="moments")
    with pytest.raises(ValueError, match="PrivacyEvent"):
        accounting.epsilon(events.Gaussian(1.0), delta=1e-5)
    with pytest.raises(ValueError, match="orders"):
        accounting.epsilon(event, delta=1e-5, orders=[0.5, 2.0])
    with pytest.raises(ValueError, match="one of delta and epsilon"):
        accounting.spent(event)


def test_a_best_order_at_the_end_of_the_grid_warns():
    with pytest.warns(accounting.OrderWarning, match="end of the grid"):
        accounting.epsilon(run(0.01, 1.0, 100), delta=1e-5, orders=[2.0, 3.0])


def test_the_default_grid_grows_where_its_end_is_best():
    event = claim(events.Gaussian(1000.0))
    found = accounting.spent(event, delta=1e-5)
    assert found.order > 1024
    continuous = float(accounting.conversion.zcdp_to_epsilon(0.5e-6, 1e-5))
    assert continuous <= found.epsilon_upper <= 1.01 * continuous


def test_a_ledger_counts_restores_and_adds_up():
    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE")
    assert ledger.epsilon(delta=1e-5) == 0.0
    first, second = run(0.01, 1.0, 1), claim(events.Gaussian(20.0))
    ledger.append(first, 30)
    ledger.append(first)
    ledger.append(second)
    ledger.append(first, 69)
    assert ledger.num_events == 101
    assert len(ledger.to_json()["entries"]) == 3
    back = accounting.Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
    assert back == ledger
    assert back.epsilon(delta=1e-5) == ledger.epsilon(delta=1e-5)
    other_order = accounting.compose([second, first.repeat(100)])
    assert ledger.epsilon(delta=1e-5) == pytest.approx(
        accounting.epsilon(other_order, delta=1e-5), rel=1e-12
    )


def test_a_ledger_refuses_other_claims_and_broken_files():
    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE")
    with pytest.raises(NoGuaranteeError):
        ledger.append(claim(events.Gaussian(1.0), unit="example"))
    with pytest.raises(ValueError, match="count"):
        ledger.append(claim(events.Gaussian(1.0)), 0)
    good = ledger.to_json()
    for broken in (
        {**good, "format": 9},
        {**good, "more": 1},
        {**good, "entries": [{"count": 1}]},
        {},
    ):
        with pytest.raises(ValueError, match="Expected"):
            accounting.Ledger.from_json(broken)


def test_asking_before_each_round_never_overspends():
    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE")
    event = run(0.1, 2.0, 1)
    while not ledger.would_exceed(event, target_epsilon=2.0, delta=1e-5):
        ledger.append(event)
    assert ledger.epsilon(delta=1e-5) <= 2.0
    expected = accounting.calibrate(
        lambda t: event.repeat(t), epsilon=2.0, delta=1e-5, integer=True
    )
    assert ledger.num_events == expected


def test_a_round_of_a_ledger_is_cheap():
    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE")
    times = []
    for i in range(50):
        start = time.perf_counter()
        ledger.append(run(0.01, 1.0 + 0.01 * i, 1))  # a new mechanism each round: the worst case
        ledger.epsilon(delta=1e-5)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 0.02


def test_the_statement_says_unit_relation_epsilon_delta_and_what_is_missing():
    text = accounting.statement(run(0.01, 1.0, 100), delta=1e-5)
    for part in (
        "one client",
        "adding or removing",
        "1e-05",
        "RDP",
        "100 times",
        "Poisson",
        "Not covered",
    ):
        assert part in text
    rows = accounting.table(run(0.01, 1.0, 100), delta=1e-5, methods=("rdp", "gdp"))
    assert [row["epsilon_upper"] is not None for row in rows] == [True, False]
    assert "Gaussian" in rows[1]["note"]


def test_an_epsilon_asked_for_while_tracing_is_a_plain_number():
    event = claim(events.Gaussian(1.0))
    seen = []

    @jax.jit
    def step(x):
        seen.append(accounting.epsilon(event, delta=1e-5, method="gdp"))
        seen.append(accounting.epsilon(run(0.1, 1.0, 1), delta=1e-5))
        return x * 2

    assert step(jnp.float32(1.0)).dtype == jnp.float32
    assert all(type(value) is float for value in seen)
    assert jnp.zeros(()).dtype == jnp.float32  # nothing global has changed


def test_adaptive_orders_find_the_best_real_order():
    event = claim(events.Gaussian(1.7))
    best = float(accounting.conversion.zcdp_to_epsilon(0.5 / 1.7**2, 1e-5))
    adaptive = accounting.spent(event, delta=1e-5, orders="adaptive")
    assert best * (1 - 1e-12) <= adaptive.epsilon_upper <= best * (1 + 1e-9)
    assert adaptive.epsilon_upper <= accounting.epsilon(event, delta=1e-5)
    sampled = run(0.01, 1.0, 10000)
    found = accounting.epsilon(sampled, delta=1e-5, orders="adaptive")
    # jax-privacy's finer grid finds 6.71236578, with fractional orders that err upward; the exact
    # loss is 6.18774.
    assert 6.18774 < found <= min(6.71236578, accounting.epsilon(sampled, delta=1e-5))
    with pytest.raises(ValueError, match="adaptive"):
        accounting.epsilon(event, delta=1e-5, orders="fine")


def test_a_grid_of_runs_is_calibrated_at_once_and_never_overspends():
    q, steps = np.asarray([1e-3, 0.01, 0.3, 1.0])[:, None], np.asarray([1, 1000])
    orders = DP_ACCOUNTING_ORDERS
    noise = accounting.calibration.poisson_gaussian_noise(
        q, steps, epsilon=1.5, delta=1e-6, orders=orders
    )
    assert noise.shape == (4, 2)
    for i in range(4):
        for j in range(2):
            event = run(float(q[i, 0]), float(noise[i, j]), int(steps[j]))
            assert accounting.epsilon(event, delta=1e-6, orders=orders) <= 1.5 * (1 + 1e-12)
            less = run(float(q[i, 0]), float(noise[i, j]) * (1 - 2e-7), int(steps[j]))
            assert accounting.epsilon(less, delta=1e-6, orders=orders) > 1.5
    # A search that halves the value of the wrong end stops at a hundred times this.
    found = accounting.calibration.poisson_gaussian_noise(0.55, 5000, epsilon=0.5, delta=2e-3)
    spent = [
        accounting.epsilon(run(0.55, float(found) * (1 - less), 5000), delta=2e-3)
        for less in (0, 2e-7)
    ]
    assert spent[0] <= 0.5 * (1 + 1e-12) < spent[1]
    hard = accounting.calibration.poisson_gaussian_noise(
        1.0, 1e12, epsilon=0.01, delta=1e-6, orders=orders
    )
    assert np.isnan(hard)


@given(
    q=st.floats(1e-4, 1.0),
    noise=st.floats(0.5, 10.0),
    steps=st.integers(1, 3000),
    more=st.integers(1, 3000),
    delta=st.floats(1e-10, 1e-3),
)
def test_epsilon_grows_with_steps_falls_with_delta_and_is_subadditive(q, noise, steps, more, delta):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", accounting.OrderWarning
        )  # corners of the range, where the grid ends
        base = accounting.epsilon(run(q, noise, steps), delta=delta)
        both = accounting.epsilon(run(q, noise, steps + more), delta=2 * delta)
        assert base <= accounting.epsilon(run(q, noise, steps + more), delta=delta) * (1 + 1e-12)
        assert accounting.epsilon(run(q, noise, steps), delta=2 * delta) <= base * (1 + 1e-12)
        # Never worse than basic composition, where epsilons and deltas add.
        parts = base + accounting.epsilon(run(q, noise, more), delta=delta)
        assert both <= parts * (1 + 1e-9)


@pytest.mark.parametrize("method", accounting.METHODS)
@pytest.mark.parametrize(
    "mechanism",
    [events.Gaussian(0.0), events.SelfComposed(events.Gaussian(1e-200), 3), events.NonPrivate()],
    ids=str,
)
def test_an_infinite_epsilon_is_no_certificate(method, mechanism):
    event = accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
    )
    if isinstance(mechanism, events.NonPrivate) and method == "gdp":
        return  # not its kind of event: an error
    found = accounting.spent(event, delta=1e-5, method=method)
    assert (
        found.epsilon_upper == math.inf
        and not found.certified
        and found.reason == "no bound: epsilon is infinite"
    )
    assert not accounting.spent(event, epsilon=1.0, method=method).certified
    text = accounting.statement(event, delta=1e-5, method=method)
    assert (
        text.startswith("No guarantee at delta 1e-05")
        and "differential" not in text
        and "proved" not in text
    )
    assert not any(row["certified"] for row in accounting.table(event, delta=1e-5))


def test_noise_of_any_size_composes_without_overflow():
    for noise in (1e-100, 1e-3, 1e100, 1e200):
        event = accounting.PrivacyEvent(
            mechanism=events.SelfComposed(events.Gaussian(noise), 4),
            privacy_unit="client",
            neighboring_relation="ADD_OR_REMOVE_ONE",
        )
        # 4 releases are one of twice the mu; at epsilon 0 its delta is 2 Phi(mu / 2) - 1.
        found = accounting.delta(event, epsilon=0.0, method="gdp")
        assert found == pytest.approx(math.erf(2 / noise / math.sqrt(8)), rel=1e-9)


AUTO = {
    "gaussian": events.SelfComposed(events.Gaussian(3.0), 7),
    "sampled": events.SelfComposed(events.PoissonSampled(0.02, events.Gaussian(1.2)), 200),
    "sampled, hardly any noise": events.PoissonSampled(0.5, events.Gaussian(0.02)),
    "laplace": events.SelfComposed(events.Laplace(4.0), 30),
    "zcdp": events.SelfComposed(events.ZCdp(0.01), 3),
    "mixed": events.Composed(
        (events.Laplace(2.0), events.PoissonSampled(0.1, events.Gaussian(1.0)))
    ),
    "tiny delta": events.PoissonSampled(0.01, events.Gaussian(1.0)),
}


@pytest.mark.parametrize("name", list(AUTO))
def test_auto_is_never_looser_than_any_accountant_and_names_the_one_it_took(name):
    event = claim(AUTO[name])
    delta = 1e-100 if name == "tiny delta" else 1e-5
    for ask in ({"delta": delta}, {"epsilon": 1.0}):
        found = accounting.spent(event, method="auto", **ask)
        assert found.method in accounting.METHODS and found.reason
        assert found.certified == (found.delta_upper < 1)
        bounds = []
        for method in accounting.METHODS:
            try:
                bounds.append(accounting.spent(event, method=method, **ask))
            except ValueError:
                continue
        assert found.epsilon_upper == min(one.epsilon_upper for one in bounds)
        assert found.delta_upper == min(one.delta_upper for one in bounds)
        assert found.epsilon_lower <= found.epsilon_upper and found.delta_lower <= found.delta_upper
    if name == "gaussian":
        assert found.method == "gdp"


def test_auto_calibrates_a_poisson_sampled_gaussian_to_less_noise_than_renyi():
    def event(noise):
        return claim(events.SelfComposed(events.PoissonSampled(0.1, events.Gaussian(noise)), 60))

    goal = dict(epsilon=4.0, delta=1e-3)
    noise = accounting.calibrate(event, **goal, method="auto")
    assert accounting.epsilon(event(noise), delta=1e-3, method="auto") <= 4.0
    assert noise < 0.95 * accounting.calibrate(event, **goal, method="rdp")


def test_auto_says_why_where_nobody_has_a_bound():
    event = claim(
        events.PoissonSampled(0.1, events.SampledWithoutReplacement(10, 2, events.Gaussian(1.0)))
    )
    with pytest.raises(UnsupportedEventError):
        accounting.epsilon(event, delta=1e-5, method="auto")


@pytest.mark.parametrize("method", ["rdp", "pld", "auto"])
def test_a_great_many_mechanisms_that_cost_next_to_nothing_cost_something(method):
    """Of k randomised responses of epsilon k ** -0.5 the composition is 1-GDP in the limit."""
    count, delta = 10**18, 1e-6
    event = claim(events.SelfComposed(events.EpsilonDelta(1e-9), count))
    truth = float(accounting.gaussian.mu_to_epsilon(1.0, delta))
    assert accounting.epsilon(event, delta=delta, method=method) > truth * (1 - 1e-6)


def test_counts_beyond_what_distributions_hold_are_left_to_renyi_divergences():
    many = events.SelfComposed(events.PoissonSampled(1e-9, events.Gaussian(10.0)), 2**40)
    event = claim(events.SelfComposed(many, 2**40))
    with pytest.raises(UnsupportedEventError, match="at most 4611686018427387904 times"):
        accounting.epsilon(event, delta=1e-6, method="pld")
    assert accounting.spent(event, delta=1e-6, method="auto").method == "rdp"
    with pytest.raises(ValueError, match="count <= 1e300"):
        events.SelfComposed(events.Gaussian(1.0), 10**400)
