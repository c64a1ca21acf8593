"""Every scheme of the registry keeps the contracts of `fljax.testing.check_scheme`, and a scheme
that breaks one of them fails by that one's name.
"""

import dataclasses
import pathlib
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import accounting, errors, schemes, testing
from fljax.accounting import events, mechanisms
from fljax.attacks import replay
from fljax.schemes import exact
from fljax.server import aggregate
from fljax.testing import contracts
from tests.schemes import test_exact_noise

# In the default selection; each scheme compiles five programs.
FIRST = {"dp_fedavg"}
# What a scheme has no promise for, or no Gaussian event, is not asked.
SKIPPED = {
    "compressed_updates": {"neighbours", "event", "keys"},
    "embedding_channel": {"neighbours", "event"},
    "fedavg": {"neighbours", "event", "keys"},
    "gsgd_dp": {"neighbours"},
    "mp_dp_naive": {"neighbours", "event", "keys"},
    "natural_channel": {"neighbours", "event"},
    "parameter_channel": {"neighbours", "event"},
    "personalized_channel": {"neighbours", "event"},
    "white_channel": {"neighbours", "event"},
}
# What a secure sum adds up: by an ideal one, and by a protocol that runs.
IN_TWO_WAYS = {
    "distributed_dgauss",
    "he_dp",
    "hybrid_alpha",
    "pile",
    "secagg_dp",
    "skellam",
    "smpc_dp",
    "swiftagg_dp",
    "tp_smc",
}
# Their rounds are made by the module of another scheme, for the same event and links
# (tests/attacks/test_rounds.py says so): what is their own is the config and the protocol. he_dp
# stands for those who need the server's link alone.
OF_ANOTHER = {"hybrid_alpha", "pile", "smpc_dp", "swiftagg_dp", "tp_smc"}
OF_A_PROTOCOL = ("fields", "toml", "neighbours", "event", "keys", "execution")
SLOW = pytest.mark.slow(reason="compiles five programs of a scheme whose round FIRST stands for")
NAMES = [pytest.param(name, marks=() if name in FIRST else SLOW) for name in schemes.NAMES]


@pytest.mark.release(
    reason="one more protocol",
    ids=["he_dp", "hybrid_alpha", "skellam", "smpc_dp", "swiftagg_dp", "tp_smc"],
)
@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_keeps_every_contract(name):
    checks = OF_A_PROTOCOL if name in OF_ANOTHER else tuple(testing.CHECKS)
    report = testing.check_scheme(schemes.get(name), checks=checks)
    assert tuple(check.name for check in report.checks) == checks
    one_way = set() if name in IN_TWO_WAYS else {"execution"}
    assert set(report.skipped) == SKIPPED.get(name, set()) | one_way


CORRELATED = {
    "lightdp": {"correlation": "banded", "bands": 2, "rounds_per_start": 3},
    "higradavg": {"correlation": "banded", "bands": 2, "item_sampling_prob": 0.5},
}


@pytest.mark.slow(reason="compiles five programs of a scheme whose round FIRST stands for")
@pytest.mark.parametrize("name", CORRELATED)
def test_schemes_whose_noise_is_correlated_over_rounds_keep_every_contract(name):
    scheme = schemes.get(name)
    config = dataclasses.replace(replay.least_config(scheme), **CORRELATED[name])
    assert testing.check_scheme(scheme, config).skipped == ("execution",)


# What is asked of every scheme's exact noise; the other contracts are those of its kind of row.
OF_THE_NOISE = ("neighbours", "event", "keys", "execution")
IN_WHOLE_NUMBERS = [
    name for name in schemes.NAMES if issubclass(schemes.get(name).Config, exact.ExactConfig)
]


@pytest.mark.release(
    reason="one more scheme", but=["dp_fedavg", "dp_fedsgd", "higradavg", "local_dp"]
)
@pytest.mark.slow(reason="compiles five programs of a scheme whose round FIRST stands for")
@pytest.mark.parametrize("name", IN_WHOLE_NUMBERS)
def test_schemes_whose_noise_is_exact_keep_every_contract(name):
    scheme = schemes.get(name)
    config = dataclasses.replace(replay.least_config(scheme), noise="exact")
    one_way = () if name in IN_TWO_WAYS else ("execution",)
    checks = testing.CHECKS if name in test_exact_noise.OF_EACH_KIND else OF_THE_NOISE
    report = testing.check_scheme(scheme, config, checks=checks)
    assert report.skipped == tuple(check for check in one_way if check in checks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Public numbers."""

    noise_multiplier: float | None = None
    """Standard deviation of the noise / 1, the bound on a client's update."""


class State(NamedTuple):
    params: dict
    round: jax.Array
    other: object = ()


def plain_round(config, loss, state, cohort, key, *, share=1.0):
    """Every client sends the clipped gradient of its records' mean loss; noise is added once."""
    noise_key = jax.random.fold_in(key, state.round)

    def client(rows, present):
        def take(leaf):
            mask = (rows >= 0).reshape((-1,) + (1,) * (leaf.ndim - 1))
            return jnp.where(mask, leaf[jnp.maximum(rows, 0)], jnp.zeros_like(leaf[:1]))

        batch = jax.tree.map(take, cohort.examples)
        share = jnp.where(rows >= 0, 1.0, 0.0)
        share /= jnp.maximum(1.0, share.sum())

        def mean(params):
            return jnp.vdot(share, jax.vmap(loss, (None, 0))(params, batch))

        gradient = jax.grad(mean)(state.params)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)))
        counts = present & jnp.isfinite(norm)
        scale = jnp.minimum(1, 1 / jnp.maximum(norm, 1e-30))
        return jax.tree.map(lambda leaf: jnp.where(counts, leaf * scale, 0), gradient)

    sent = jax.vmap(client)(cohort.indices, cohort.client_ids >= 0)
    keys = dict(zip(state.params, jax.random.split(noise_key, len(state.params)), strict=True))
    moved = {
        name: leaf
        - sent[name].sum(0)
        - share * config.noise_multiplier * jax.random.normal(keys[name], leaf.shape)
        for name, leaf in state.params.items()
    }
    info = fljax.RoundInfo(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))
    return state._replace(params=moved, round=state.round + 1), info


def event(config, noise=1.0, prob=1.0):
    mechanism = accounting.events.Gaussian(noise * config.noise_multiplier)
    if prob < 1:
        mechanism = accounting.events.PoissonSampled(prob, mechanism)
    return fljax.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
    )


def start(params):
    return State(params, jnp.zeros((), jnp.int32))


def scheme(round_fun=plain_round, *, init=start, event=event, config=Config):
    def make(config, loss, *, num_units, performance=None):
        del num_units, performance
        step = lambda state, cohort, key: round_fun(config, loss, state, cohort, key)
        return fljax.FederatedAlgorithm(init, step, 1.0)

    return fljax.Scheme(
        summary="clipped gradients with central noise; unit: client",
        promise="epsilon",
        Config=config,
        make=make,
        event=event,
        fitted=lambda config, facts: config,
        non_private=lambda config: dataclasses.replace(config, noise_multiplier=0.0),
    )


def on_other(**changes):
    """The round on a cohort, state or key that `changes` make of the ones it gets."""

    def round_fun(config, loss, state, cohort, key):
        given = {"state": state, "cohort": cohort, "key": key}
        given |= {name: change(given[name]) for name, change in changes.items()}
        after, info = plain_round(config, loss, given["state"], given["cohort"], given["key"])
        return after._replace(round=state.round + 1), info

    return round_fun


def twice(client):
    def cohort(found):
        place = slice(client, client + 1)
        ids = jnp.concatenate([found.client_ids, found.client_ids[place]])
        return found._replace(
            client_ids=ids, indices=jnp.concatenate([found.indices, found.indices[place]])
        )

    return cohort


def every_place(cohort):
    return cohort._replace(client_ids=jnp.arange(cohort.client_ids.shape[0]))


def noise_of_a_trace(config, loss, state, cohort, key):
    """Draws on the host: once for a compiled program, and anew at each eager call."""
    after, info = plain_round(config, loss, state, cohort, key)
    noise = float(next(HOST))
    return after._replace(params=jax.tree.map(lambda leaf: leaf + noise, after.params)), info


HOST = iter(np.arange(1.0, 1e6))


def two_models(config, loss, state, cohort, key):
    after, info = plain_round(config, loss, state, cohort, key)
    return after._replace(other=jax.tree.map(lambda leaf: leaf + 1.0, state.other)), info


def by_device(config, loss, state, cohort, key):
    after, info = plain_round(config, loss, state, cohort, key)
    devices = aggregate.client_devices()
    return after._replace(params=jax.tree.map(lambda leaf: leaf * devices, after.params)), info


def server_noise_again(config, loss, state, cohort, key):
    """What clients add differs from round to round, what the server adds does not."""
    first = state._replace(round=jnp.zeros((), jnp.int32))
    after, info = plain_round(config, loss, first, cohort, key)
    present = cohort.client_ids >= 0
    drawn = jax.random.normal(jax.random.fold_in(key, 1 + state.round), present.shape)
    added = jnp.sum(jnp.where(present, drawn, 0))
    moved = jax.tree.map(lambda leaf: leaf + added, after.params)
    return after._replace(params=moved, round=state.round + 1), info


@dataclasses.dataclass(frozen=True, kw_only=True)
class Silent(Config):
    untold: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoToml(Config):
    """Public numbers."""

    weight: complex = 1j
    """A number that a config file cannot hold."""


# What is broken -> (the scheme, the check that says so).
BROKEN = {
    "half the noise": (scheme(lambda *a: plain_round(*a, share=0.5)), "event"),
    "half the noise, replayed": (scheme(lambda *a: plain_round(*a, share=0.5)), "neighbours"),
    "no noise": (scheme(lambda *a: plain_round(*a, share=0.0)), "event"),
    "a client counted twice": (scheme(on_other(cohort=twice(0))), "neighbours"),
    "another client counted twice": (scheme(on_other(cohort=twice(1))), "neighbours"),
    "the event claims twice the noise": (scheme(event=lambda c: event(c, noise=2.0)), "event"),
    "the event claims a sampling": (scheme(event=lambda c: event(c, prob=0.3)), "event"),
    "the order counts": (
        scheme(on_other(cohort=lambda c: c._replace(client_ids=c.client_ids.at[0].set(-1)))),
        "order",
    ),
    "padding counts": (
        scheme(on_other(cohort=lambda c: c._replace(indices=jnp.maximum(c.indices, 0)))),
        "padding",
    ),
    "the mask ignored": (scheme(on_other(cohort=every_place)), "absent"),
    "nobody counts": (
        scheme(on_other(cohort=lambda c: c._replace(client_ids=jnp.full_like(c.client_ids, -1)))),
        "absent",
    ),
    "noise of the host": (scheme(noise_of_a_trace), "jit"),
    "one array twice in the state": (
        scheme(two_models, init=lambda params: start(params)._replace(other=params)),
        "donation",
    ),
    "as many devices": (scheme(by_device), "devices"),
    "the key ignored": (scheme(on_other(key=lambda key: jax.random.key(0))), "keys"),
    "the round ignored": (
        scheme(on_other(state=lambda s: s._replace(round=jnp.zeros((), jnp.int32)))),
        "keys",
    ),
    "the server's noise again": (scheme(server_noise_again), "keys"),
    "a field without a sentence": (scheme(config=Silent), "fields"),
    "a field that is no TOML": (scheme(config=NoToml), "toml"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_scheme_fails_by_the_check_of_its_fault(fault):
    broken, name = BROKEN[fault]
    with pytest.raises(errors.SchemeError, match=f"to keep its contracts, {name}: ") as caught:
        testing.check_scheme(broken, checks=[name])
    assert caught.value.report.failed == (name,)


def test_the_sound_twin_of_the_broken_schemes_passes():
    report = testing.check_scheme(scheme())
    assert report.skipped == ("execution",) and report.failed == ()
    lines = [line.split()[:2] for line in str(report).splitlines()]
    assert lines[:-1] == [[name, "passed"] for name in testing.CHECKS if name != "execution"]


def test_all_that_is_broken_is_told_at_once():
    with pytest.raises(errors.SchemeError) as caught:
        testing.check_scheme(
            scheme(on_other(cohort=every_place, key=lambda key: jax.random.key(0)), config=Silent),
            checks=["fields", "toml", "absent", "keys"],
        )
    assert caught.value.report.failed == ("fields", "absent", "keys")
    assert "untold" in str(caught.value) and "the key is not used" in str(caught.value)


@pytest.mark.slow(reason="compiles five programs of one more scheme")
def test_a_scheme_of_another_package_runs_through_the_same_checks(monkeypatch):
    """Its bits may agree for two keys: that is no reason to say that the key is not used."""
    monkeypatch.setattr(events, "RECORDS", dict(events.RECORDS))  # it registers a record
    monkeypatch.setattr(mechanisms, "_RULES", {})
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[1] / "plugin")
    scheme = schemes.get("own_package.bits")
    try:
        report = testing.check_scheme(scheme)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "own_package"]:
            del sys.modules[name]
    assert report.skipped == ("neighbours", "execution")  # no Gaussian event, no sum of its own


def test_zero_times_nan_is_seen():
    """A mean by weights of 0 takes NaN of rows that belong to nobody, or its derivative does."""

    def careless(config, loss, state, cohort, key):
        seen = jnp.sum(0.0 * cohort.examples["x"])
        after, info = plain_round(config, loss, state, cohort, key)
        return after._replace(params=jax.tree.map(lambda leaf: leaf + seen, after.params)), info

    with pytest.raises(errors.SchemeError, match="NaN in rows of nobody differ by inf"):
        testing.check_scheme(scheme(careless), checks=["padding"])


def test_a_config_of_ones_own_is_checked_as_it_is():
    """Noise of 3 clip norms: the event of 3 allows what it is asked, and one of 1 is not meant."""
    report = testing.check_scheme(scheme(), Config(noise_multiplier=3.0), checks=["neighbours"])
    assert "the event allows 0.333" in report.checks[0].told


def test_what_cannot_be_asked_is_refused_in_words():
    with pytest.raises(ValueError, match=r"Expected checks to be one of .* got checks='evnt'"):
        testing.check_scheme(scheme(), checks=["evnt"])
    with pytest.raises(ValueError, match=r"Expected scheme to be a fljax\.Scheme, got str"):
        testing.check_scheme("dp_fedavg")
    with pytest.raises(ValueError, match="Expected config to be the scheme's Config, got dict"):
        testing.check_scheme(scheme(), {"noise_multiplier": 1.0})


@pytest.mark.parametrize(
    ("mechanism", "mu"),
    [
        (accounting.events.Gaussian(2.0), 0.5),
        (accounting.events.Gaussian(0.0), np.inf),
        (accounting.events.PoissonSampled(0.1, accounting.events.Gaussian(4.0)), 0.25),
        (accounting.events.SelfComposed(accounting.events.Gaussian(2.0), 9), 1.5),
        (
            accounting.events.Composed(
                (accounting.events.Gaussian(1 / 3), accounting.events.Gaussian(0.25))
            ),
            5.0,
        ),
        (accounting.events.MixtureOfGaussians(0.5, (0.0, 1.0), (0.5, 0.5)), 2.0),
        (accounting.events.Laplace(1.0), None),
        (
            accounting.events.Composed(
                (accounting.events.Gaussian(1.0), accounting.events.Laplace(1.0))
            ),
            None,
        ),
    ],
)
def test_the_declared_ratio_is_that_of_one_gaussian(mechanism, mu):
    """Independent Gaussian views of one unit are one with the root of the summed squares."""
    found = replay.mu_of(mechanism)
    assert found == mu if mu is None else found == pytest.approx(mu)


def test_the_advantage_of_two_gaussians_is_their_total_variation(key):
    """2 Phi(mu / 2) - 1 = 0.3829 for mu = 1 (a table of the normal law), within five errors."""
    one, other = np.asarray(jax.random.normal(key, (2, 40_000)))
    for side in (1.0, -1.0):
        found, error = contracts._advantage(side * (one + 1.0), side * other)
        assert found == pytest.approx(0.3829, abs=5 * error) and error < 0.005
    assert abs(contracts._advantage(one, other)[0]) < 5 * error
