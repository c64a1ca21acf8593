"""A scheme is one file: what attacks need to know of it, its module says."""

import ast
import dataclasses
import functools
import importlib
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from fljax import attacks, cli, schemes
from fljax.accounting import events
from fljax.attacks import rounds, table
from fljax.schemes.base import Population, Scheme


@pytest.mark.parametrize("name", schemes.NAMES)
def test_a_scheme_promises_what_its_event_proves(name):
    scheme = schemes.get(name)
    assert scheme.promise in schemes.PROMISES
    epsilon = scheme.promise == "epsilon"
    event = scheme.event(rounds.config(name, **({"noise_multiplier": 1.0} if epsilon else {})))
    assert ("NonPrivate" in repr(event.mechanism)) is not epsilon
    if scheme.promise == "nats":
        assert {"nats", "data_model"} <= {field.name for field in dataclasses.fields(scheme.Config)}
        assert callable(scheme.inputs) and callable(scheme.spent)


def test_attacks_go_by_no_schemes_name():
    for path in pathlib.Path(attacks.__file__).parent.glob("*.py"):
        words = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
        }
        allowed = (
            set(table.PAPERS) if path.stem == "table" else set()
        )  # which rows `fljax audit --all` shows
        assert words & set(schemes.NAMES) <= allowed, path


class State(NamedTuple):
    params: Any
    round: jax.Array


class Algorithm(NamedTuple):
    init: Any
    round: Any
    client_sampling_prob: float
    client_state: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    noise_multiplier: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nats(Config):
    nats: float = 1.0
    data_model: str = "unknown"


@pytest.fixture
def register():
    """Registers a scheme of a few lines, the sum of clipped gradients and Gaussian noise, with
    attributes changed.
    """

    def make(config, loss, *, num_units, performance, scale=1.0):
        def play(state, cohort, key):
            rows = cohort.indices.reshape(-1)
            examples = jax.tree.map(lambda leaf: leaf[rows], cohort.examples)
            grads = jax.vmap(jax.grad(loss), (None, 0))(state.params, examples)["w"]
            clipped = grads / jnp.maximum(jnp.linalg.norm(grads, axis=1, keepdims=True), 1.0)
            noise = jax.random.normal(jax.random.fold_in(key, state.round), clipped.shape[1:])
            total = (
                jnp.sum(jnp.where(rows[:, None] >= 0, clipped, 0.0), 0)
                + scale * config.noise_multiplier * noise
            )
            return State({"w": state.params["w"] - total}, state.round + 1), None

        return Algorithm(lambda params: State(params, jnp.zeros((), jnp.int32)), play, 1.0)

    def event(config):
        return events.PrivacyEvent(
            mechanism=events.Gaussian(config.noise_multiplier),
            privacy_unit="example",
            neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
        )

    # The help of a command is written as it is imported: not with a scheme that goes again.
    importlib.import_module("fljax.cli.audit")

    def add(scale=1.0, **changes):
        given = {"Config": Config, "event": event, "summary": "for a test", "promise": "epsilon"}
        given["make"] = functools.partial(make, scale=scale)
        given |= {"fitted": lambda config, facts: config, "non_private": lambda config: config}
        schemes.register("thrown_away", Scheme(**(given | changes)))

    yield add
    schemes._registry.forget("thrown_away")


@pytest.mark.slow(reason="audits a scheme by thousands of trials", ids=["1.0"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_new_schemes_epsilon_is_audited_from_its_module_alone(scale, register, key):
    register(scale)
    assert "thrown_away" in rounds.promising()
    row = table.row("thrown_away", key, table.Settings(trials=4000))
    # Half the noise that the event states is the positive control.
    assert (
        row.holds is (scale == 1.0) and row.unit == "example" and row.measured > 0.7 * row.certified
    )


@pytest.mark.slow(reason="an audit by the command, from training to report")
def test_a_new_scheme_is_audited_from_the_command_line(register, tmp_path, capsys):
    register()
    assert (
        cli.main(
            [
                "audit",
                "--scheme",
                "thrown_away",
                "--trials",
                "500",
                "--run-dir",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    assert "thrown_away" in capsys.readouterr().out


def test_an_audit_of_half_the_noise_says_so_with_its_exit_code(register, tmp_path, capsys):
    register(0.5)
    flags = ["--scheme", "thrown_away", "--trials", "4000", "--run-dir", str(tmp_path / "run")]
    assert cli.main(["audit", *flags]) == 1
    out = capsys.readouterr().out
    assert (
        "violated" in out
        and "An attack got past what is certified: thrown_away. Exit code 1." in out
    )
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize(
    ("changes", "kinds", "promising"),
    [
        ({}, (rounds.one_unit,), True),
        ({"upload_noise": lambda config: None}, (rounds.uploads, rounds.one_unit), True),
        ({"needs_network": True}, (rounds.one_unit,), True),
        ({"promise": "none"}, (rounds.one_unit,), False),
        (
            {"promise": "nats", "Config": Nats, "inputs": dict, "spent": dict},
            (rounds.one_unit,),
            True,
        ),
    ],
)
def test_what_is_played_against_a_new_scheme_is_what_its_module_offers(
    changes, kinds, promising, register
):
    register(**changes)
    assert rounds.kinds(schemes.get("thrown_away")) == kinds
    assert ("thrown_away" in rounds.promising()) is promising


def test_an_attack_that_misses_half_the_noise_cannot_tell(register, key):
    register()

    def blind(scheme, config, *, num_rounds=1):
        score = lambda key, present: jax.random.normal(key)
        return rounds.Game(score, scheme.run_event(config, num_rounds), "nothing")

    attacks.register("blind", blind)
    try:
        found = table.row("thrown_away", key, table.Settings(trials=1000, attack="blind"))
    finally:
        attacks._registry.forget("blind")
    assert found.verdict == "cannot tell" and found.holds is None
    assert found.control <= found.certified < found.ceiling


@pytest.mark.parametrize("alone", [False, True])
def test_a_law_that_holds_says_nothing_of_rounds_that_were_not_run(alone, register, key):
    register(0.5)  # which no law sees

    def law(scheme, config, *, num_rounds=1):
        def score(key, present):
            return jnp.where(present, 1.0, 0.0) + config.noise_multiplier * jax.random.normal(key)

        event = scheme.run_event(config, num_rounds)
        return rounds.Game(score, event, "the law", law_alone=alone)

    attacks.register("law", law)
    try:
        found = table.row("thrown_away", key, table.Settings(trials=4000, attack="law"))
    finally:
        attacks._registry.forget("law")
    assert found.control > found.certified and found.law_alone is alone
    assert found.verdict == ("cannot tell" if alone else "holds")


@pytest.mark.slow(reason="plays thousands of rounds of three views")
def test_uploads_that_are_seen_are_looked_at_one_by_one(register, key):
    """Half the noise in one client's upload, which the sum of all four hides."""

    def make(config, loss, *, num_units, performance):
        def play(state, cohort, run_key):
            def upload(rows, client):
                examples = jax.tree.map(lambda leaf: leaf[rows], cohort.examples)
                grads = jax.vmap(jax.grad(loss), (None, 0))(state.params, examples)["w"]
                norms = jnp.linalg.norm(grads, axis=1, keepdims=True)
                kept = jnp.where(rows[:, None] >= 0, grads / jnp.maximum(norms, 1.0), 0.0)
                noise = jax.random.normal(jax.random.fold_in(run_key, client), kept.shape[1:])
                wide = config.noise_multiplier * jnp.where(client == 1, 0.5, 1.0)
                return jnp.where(client >= 0, jnp.sum(kept, axis=0) + wide * noise, 0.0)

            total = jnp.sum(jax.vmap(upload)(cohort.indices, cohort.client_ids), axis=0)
            return State({"w": state.params["w"] - total}, state.round + 1), None

        return Algorithm(lambda params: State(params, jnp.zeros((), jnp.int32)), play, 1.0)

    where = {"noise_at": "client", "population": lambda config: Population(num_clients=4)}
    register(make=make, uploads_seen=True, **where)
    assert table.row("thrown_away", key, table.Settings(trials=2000)).verdict == "violated"
    register(make=make, **where)
    assert table.row("thrown_away", key, table.Settings(trials=2000)).verdict != "violated"
