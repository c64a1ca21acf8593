"""Schemes named after a secure sum: what they release by an ideal sum, and by their protocol."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import cli, data, errors, models, schemes
from fljax.accounting import events
from fljax.upload import integer_grid
from fljax.upload.secure_sum import joint_paillier, paillier
from tests.upload._sums import entropy

FLOAT32_TOO = ("he_dp", "secagg_dp", "smpc_dp", "swiftagg_dp")
WITH_KEYS = ("pile", "tp_smc")
ALL = (*FLOAT32_TOO, "hybrid_alpha", *WITH_KEYS)
NUM, NORM = 8, 512


def config(name, **changes):
    given = {
        "num_parties": NUM,
        "noise_multiplier": 1.0,
        "max_colluders": 0 if name == "he_dp" else 2,
        "straggler_law": "fixed",
        "max_stragglers": 2,
        "l2_clip_norm": 0.5,
        "local_learning_rate": 0.1,
        "num_local_epochs": 1,
        "grid_norm": NORM,
    }
    given |= {"noise": "exact"} if name in FLOAT32_TOO else {}
    given |= {"key_bits": 128} if name in WITH_KEYS else {}
    return schemes.get(name).Config(**given | changes)


def linear_loss(params, example):
    return jnp.vdot(params["w"], example["x"])


@pytest.mark.parametrize("name", ALL)
def test_the_event_is_of_honest_clients_whole_numbers_whoever_takes_the_sum(name):
    scheme, made = schemes.get(name), config(name)
    honest = NUM - made.max_colluders - made.max_stragglers
    whole = events.DiscreteGaussianSum(
        2 * NORM / math.sqrt(honest), honest, 2.0 * NORM, 2.0 * NORM**2
    )
    assert scheme.event(made).mechanism == whole
    assert scheme.event(dataclasses.replace(made, execution="protocol")) == scheme.event(made)


@pytest.mark.parametrize("name", FLOAT32_TOO)
def test_float32_noise_is_that_of_an_ideal_sum_alone(name):
    scheme, made = schemes.get(name), config(name, noise="float32")
    assert scheme.event(made).mechanism == events.Gaussian(1.0)
    with pytest.raises(ValueError, match=r"noise='exact' with execution='protocol'.*'float32'"):
        dataclasses.replace(made, execution="protocol")
    plain = scheme.non_private(config(name, execution="protocol"))
    assert (plain.noise, plain.execution, plain.noise_multiplier) == ("float32", "ideal", 0.0)


def test_terms_that_a_protocol_does_not_stand_are_refused_before_the_first_round():
    for name, changes, match in (
        ("he_dp", {"max_colluders": 1}, "Expected max_colluders=0"),
        ("secagg_dp", {"max_colluders": 4}, "a server that deviates"),
        ("tp_smc", {"max_colluders": 3}, "without a dealer"),
    ):
        made = config(name, execution="protocol", **changes)
        with pytest.raises(errors.PrivacyPreconditionError, match=match):
            schemes.get(name).make(made, linear_loss, num_units=NUM)
        ideal = dataclasses.replace(made, execution="ideal")
        schemes.get(name).make(ideal, linear_loss, num_units=NUM)
    with pytest.raises(ValueError, match="key_bits"):
        config("pile", key_bits=100)
    with pytest.raises(ValueError, match="protocol"):
        config("secagg_dp", protocol="ckks")


def test_the_command_line_lists_how_each_takes_its_sums(capsys):
    assert cli.main(["schemes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["result"]["schemes"]
    choices = {scheme["name"]: scheme["choices"] for scheme in told}
    for name in ALL:
        assert choices[name]["execution"] == ["ideal", "protocol"]
        assert (choices[name].get("noise") == ["float32", "exact"]) is (name in FLOAT32_TOO)
    assert choices["secagg_dp"]["protocol"] == ["secagg", "secagg_plus"]
    assert choices["smpc_dp"]["protocol"] == ["servers", "shamir_servers"]
    assert "execution" not in choices["lightdp"]
    assert cli.main(["schemes"]) == 0
    out = capsys.readouterr().out.partition("\ntp_smc: ")[2].partition("\nuser_ldp")[0]
    assert "    execution: ideal or protocol" in out.splitlines()


def trained(name, made, key, num_rounds=2):
    """Parameters after rounds on digits, and whether each round was lost."""
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], NUM, np.random.default_rng(0))[:, :20]
    federated = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))
    cohort = data.cohort(federated, jnp.arange(NUM))
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    loss = models.softmax_cross_entropy(model.apply)
    algorithm = schemes.get(name).make(made, loss, num_units=NUM)
    state, one_round = algorithm.init(model.params), jax.jit(algorithm.round)
    lost = []
    for _ in range(num_rounds):
        state, info = one_round(state, cohort, jax.random.clone(key))
        lost.append(bool(info.lost))
    return jax.tree.leaves(state.params), lost, jax.tree.leaves(model.params)


@pytest.mark.release(reason="one more protocol", but=["secagg_dp"])
@pytest.mark.slow(reason="compiles two rounds of each scheme")
@pytest.mark.parametrize("name", ALL)
def test_digits_train_by_a_protocol_to_the_bits_of_the_ideal_sum(name, key):
    made = config(name)
    ideal, lost, start = trained(name, made, key)
    found, also_lost, _ = trained(name, dataclasses.replace(made, execution="protocol"), key)
    for one, other, before in zip(ideal, found, start, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.any(np.asarray(one) != before)
    assert lost == also_lost == [False, False]
    # No sum can wrap around, whatever clients send.
    stddev = 2 * NORM / math.sqrt(NUM - made.max_colluders - made.max_stragglers)
    noise = integer_grid.most_noise("discrete_gaussian", stddev)
    needed = integer_grid.bits_needed(most_norm=NORM, num_clients=NUM, most_noise=noise)
    assert NUM * (NORM + noise) < 2 ** (needed - 1) and needed <= 31


# Draws of `entropy()` at which safe primes of 1536 bits are near, and those that make, with the
# other clients' parts, two primes of the first candidate: searches for them take minutes.
LUCKY = {"pile": (paillier, (2052, 2160)), "tp_smc": (joint_paillier, (1191, 1720))}


# The curve of hybrid_alpha has no smaller one: the test above is at its full strength.
@pytest.mark.release(reason="one more protocol")
@pytest.mark.slow(reason="powers of numbers of 3072 bits")
@pytest.mark.parametrize("name", WITH_KEYS)
def test_at_128_bits_of_security_digits_train_to_the_bits_of_the_ideal_sum(name, key, monkeypatch):
    (module, first), keys = LUCKY[name], []
    new_key = module.new_key

    def lucky(*arguments, **options):
        keys.append(new_key(*arguments, **options, entropy=entropy(first=first)))
        return keys[-1]

    monkeypatch.setattr(module, "new_key", lucky)
    module._kept_key.cache_clear()
    made = config(name, key_bits=schemes.get(name).Config.key_bits)
    ideal, lost, start = trained(name, made, key, num_rounds=1)
    assert not keys
    found, also_lost, _ = trained(
        name, dataclasses.replace(made, execution="protocol"), key, num_rounds=1
    )
    assert [kept.modulus.bit_length() for kept in keys] == [paillier.MODULUS_BITS] == [3072]
    for one, other, before in zip(ideal, found, start, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.any(np.asarray(one) != before)
    assert lost == also_lost == [False]
    module._kept_key.cache_clear()


@pytest.mark.slow(reason="compiles the rounds of two schemes")
def test_an_ideal_sum_releases_what_distributed_dgauss_does_where_links_are_the_servers(key):
    same = {"noise_multiplier": 1.0, "max_colluders": 2}
    found, _, _ = trained("smpc_dp", config("smpc_dp", **same), key)
    known = {
        field.name: getattr(config("smpc_dp", **same), field.name)
        for field in dataclasses.fields(schemes.get("distributed_dgauss").Config)
        if field.name not in ("bits", "protocol")
    }
    other, _, _ = trained(
        "distributed_dgauss", schemes.get("distributed_dgauss").Config(**known), key
    )
    for one, two in zip(found, other, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.release(reason="one more protocol", but=["secagg_dp"])
@pytest.mark.slow(reason="compiles four rounds")
@pytest.mark.parametrize("name", ["secagg_dp", "tp_smc"])
def test_too_many_stragglers_lose_the_round_of_a_protocol_as_of_the_ideal_sum(name, key):
    failing = {"straggler_law": "bernoulli", "link_failure_prob": 0.9}
    for execution in ("ideal", "protocol"):
        made = config(name, execution=execution, **failing)
        found, lost, start = trained(name, made, key, num_rounds=1)
        assert lost == [True]
        for one, before in zip(found, start, strict=True):
            np.testing.assert_array_equal(one, before)
