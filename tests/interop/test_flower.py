"""Rounds by Flower's messages are those of a simulation with the same keys, and cost the same."""

import dataclasses
import json

import jax
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra flower: pip install 'fljax[flower]'")

import flwr.app
import flwr.clientapp

from fljax import accounting, errors
from fljax.interop import flower
from fljax.schemes import lightdp
from fljax.simulation import feed
from fljax.upload import key_agreement
from tests.interop import _grid, _schemes
from tests.interop._schemes import CONFIGS, app, key, loss, number, pool, simulated

ROUNDS = 3
_digits = _schemes.digits


def deployment(scheme, num_rounds=ROUNDS, **changed):
    return _schemes.deployment(scheme, num_rounds, **changed)


def run(deployed, grid, *, target_epsilon=None, **options):
    """(strategy, models after each round)."""
    strategy = flower.Strategy(
        deployed, nodes=grid.nodes, target_epsilon=target_epsilon, delta=1e-3, **options
    )
    released = []
    keep = lambda done, arrays: released.append(flower.from_record(arrays, _digits.initial()))
    strategy.start(grid, flower.to_record(_digits.initial()), timeout=60, evaluate_fn=keep)
    return strategy, released[1:]


def assert_equal(models, others):
    assert len(models) == len(others)
    for one, other in zip(models, others, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), one, other)


@pytest.mark.slow(reason="compiles two more rounds", ids=["adapting", "psac"])
@pytest.mark.parametrize(
    "changed",
    [{}, {"target_quantile": 0.5, "count_stddev": 1.5}, {"clipping_style": "psac"}],
    ids=["flat", "adapting", "psac"],
)
def test_models_of_dp_fedavg_are_those_of_the_simulation(changed):
    deployed = deployment("dp_fedavg", **changed)
    grid = _grid.Grid(app(deployed), _digits.NUM_CLIENTS)
    strategy, models = run(deployed, grid, key=key())
    assert_equal(models, simulated(deployed))
    assert strategy.ledger.event == deployed.event.repeat(ROUNDS)
    moved = np.linalg.norm(models[-1]["w"])
    assert moved > 0.1  # it is not that nothing happened


@pytest.mark.slow(reason="compiles rounds of silos, and noise of pairs")
@pytest.mark.parametrize("scheme", ["higradavg", "lightdp"])
def test_models_of_clients_that_add_noise_are_those_of_the_simulation(scheme):
    deployed = deployment(scheme, num_rounds=2)
    grid = _grid.Grid(app(deployed), _digits.NUM_CLIENTS)
    strategy, models = run(deployed, grid, key=key())
    assert_equal(models, simulated(deployed))
    assert strategy.ledger.event == deployed.event.repeat(2)


@pytest.mark.slow(reason="compiles noise of pairs")
def test_noise_of_pairs_with_real_keys_hides_each_upload_and_cancels_in_the_sum(tmp_path):
    deployed = deployment("lightdp", num_rounds=1, pair_variance_ratio=100.0)
    clients = [key_agreement.KeyAgreement(i) for i in range(_digits.NUM_CLIENTS)]
    for one in clients:
        for other in clients:
            if one is not other:
                one.agree(other.client, other.public_key)
        one.save(tmp_path / f"{one.client}.key", passphrase=None)

    def of_file(context):
        path = tmp_path / f"{number(context)}.key"
        return flower.Party(agreement=key_agreement.KeyAgreement.load(path))

    idle = lambda params, number: params  # nothing but noise is sent
    grid = _grid.Grid(app(deployed, idle, of_file), _digits.NUM_CLIENTS)
    own = lightdp.stddev(deployed.config)
    uploads, asked = [], grid.asked

    def seen(node, message):
        reply = asked(node, message)
        uploads.append(flower.from_record(reply.content["arrays"], _digits.initial())["w"])
        return reply

    grid.asked = seen
    _, models = run(deployed, grid)
    single, mean = np.std(uploads), np.std(models[0]["w"])
    # 9 pairs of 100 times the variance; of 640 numbers a deviation is known to 3 %, five times.
    assert abs(single / (own * np.sqrt(1 + 900)) - 1) < 0.15
    assert abs(mean / (own / np.sqrt(_digits.NUM_CLIENTS)) - 1) < 0.15
    # The same round for clients that remember nothing: the files of their keys do.
    again = _grid.Grid(app(deployed, idle, of_file), _digits.NUM_CLIENTS)
    _, models = run(deployed, again)
    assert not np.any(models[0]["w"])


def test_clients_whose_steps_are_private_and_others_are_told_apart():
    with pytest.raises(ValueError, match=r"register silo_train\(..\) instead"):
        flower.client_mod(deployment("higradavg"))
    with pytest.raises(ValueError, match="Expected scheme='higradavg' of a silo"):
        flower.silo_train(deployment("lightdp"), loss, pool, _digits.initial())
    # Whose factor is the noise's? No silo takes another one's, and none takes the first.
    for silo in (None, 10):
        grid = _grid.Grid(
            app(deployment("higradavg"), party=lambda context, n=silo: flower.Party(number=n)), 10
        )
        strategy, models = run(deployment("higradavg"), grid)
        assert not np.any(models[-1]["w"]) and strategy.rounds_begun == ROUNDS
        assert b"ValueError" in b"".join(grid.seen)
    with pytest.raises(ValueError, match="Expected num_parties to be the number of clients"):
        deployment("lightdp", num_parties=11)


def test_a_client_that_is_gone_or_late_is_not_in_the_sum_and_not_refunded():
    deployed = deployment("dp_fedavg")
    everybody = _grid.Grid(app(deployed), _digits.NUM_CLIENTS)
    _, whole = run(deployed, everybody, key=key())
    sampled = feed.host_sampler(0.6, _digits.NUM_CLIENTS, key(), _digits.NUM_CLIENTS)(0)
    gone, late = [int(number) for number in sampled if number >= 0][:2]
    grid = _grid.Grid(app(deployed), _digits.NUM_CLIENTS, drop=[(0, gone)], late=[(0, late)])
    strategy, models = run(deployed, grid, key=key())
    assert strategy.ledger.event == deployed.event.repeat(ROUNDS)
    # The first model differs by what these two would have moved it, over the public divisor.
    assert len(models) == ROUNDS
    updates = [
        {k: _digits.initial()[k] - v for k, v in _digits.train(_digits.initial(), n).items()}
        for n in (gone, late)
    ]
    for name in ("b", "w"):
        missing = 0
        for update in updates:
            norm = np.sqrt(sum(float(np.sum(leaf**2)) for leaf in update.values()))
            missing = missing + update[name] * min(1, 0.4 / norm) / (0.6 * _digits.NUM_CLIENTS)
        np.testing.assert_allclose(models[0][name], whole[0][name] + missing, rtol=0, atol=1e-6)


def test_the_budget_stops_and_a_server_that_is_started_again_goes_on_with_its_ledger(tmp_path):
    deployed = deployment("dp_fedavg", num_rounds=50)
    path, delta = tmp_path / "ledger.json", 1e-3
    target = accounting.epsilon(deployed.event.repeat(3), delta=delta, method="auto") * 1.001
    told = []
    grid = _grid.Grid(app(deployed), _digits.NUM_CLIENTS)

    class Killed(Exception):
        pass

    def killed(messages, *, timeout):
        told.append(json.loads(path.read_text())["ledger"]["entries"][0]["count"])
        raise Killed

    asked = grid.send_and_receive
    grid.send_and_receive = killed
    with pytest.raises(Killed):
        run(deployed, grid, target_epsilon=target, ledger_file=path)
    assert told == [1]  # on the disk before anybody was asked
    grid.send_and_receive = asked
    strategy, models = run(deployed, grid, target_epsilon=target, ledger_file=path)
    assert (strategy.rounds_begun, len(models)) == (3, 2)  # the first was paid for
    assert strategy.epsilon() <= target
    saved = json.loads(path.read_text())["ledger"]
    assert accounting.Ledger.from_json(saved) == strategy.ledger
    with pytest.raises(ValueError, match="of this deployment, got one of other terms"):
        run(deployment("dp_fedavg"), grid, ledger_file=path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="Expected ledger_file with the ledger"):
        run(deployed, grid, ledger_file=path)


def test_a_reply_holds_the_update_alone_and_an_error_no_data():
    deployed = deployment("dp_fedavg", sampling_prob=1.0, num_rounds=1)

    def failing(params, number):
        if number == 3:
            raise RuntimeError("patient 4711 has no value")
        return _digits.train(params, number)

    grid = _grid.Grid(app(deployed, failing), _digits.NUM_CLIENTS)
    strategy, _ = run(deployed, grid)
    sent = b"".join(grid.seen)
    assert b"train-loss" not in sent and b"4711" not in sent and b"RuntimeError" in sent
    assert strategy.rounds_begun == 1


def test_a_client_refuses_other_terms_old_rounds_and_other_messages():
    deployed = deployment("dp_fedavg", sampling_prob=1.0)
    grid = _grid.Grid(app(deployed), _digits.NUM_CLIENTS)
    node = next(iter(grid.nodes))

    def reply(round_index, *, terms=deployed.terms, kind="train"):
        content = flwr.app.RecordDict(
            {
                "arrays": flower.to_record(_digits.initial()),
                "fljax": flwr.app.ConfigRecord({"round": round_index, "terms": terms}),
            }
        )
        message = flwr.app.Message(content, dst_node_id=node, message_type=kind)
        found = grid.asked(node, message)
        return found.error.reason if found.has_error() else "an update"

    assert reply(1) == "an update"
    assert "Expected a round in [2, 3), got round 1" in reply(1)
    assert "Expected a round in [2, 3), got round 0" in reply(0)
    assert "Expected a round in [2, 3), got round 3" in reply(3)
    assert "of other terms" in reply(2, terms=deployment("dp_fedavg").terms)
    mod = flower.client_mod(deployed)
    content = flwr.app.RecordDict()
    message = flwr.app.Message(content, dst_node_id=node, message_type="evaluate")
    refused = mod(message, grid.contexts[node], None)
    assert "not covered by any guarantee" in refused.error.reason


@pytest.mark.slow(reason="compiles two rounds each", ids=["another shape", "not finite"])
@pytest.mark.parametrize(
    ("answer", "left_out"),
    [
        (lambda params: {"b": params["b"], "w": params["w"][:1]}, True),
        (lambda params: {"b": params["b"], "w": params["w"] * np.float32(np.nan)}, True),
        (lambda params: {"b": params["b"], "w": params["w"] + np.float32(1e20)}, False),
    ],
    ids=["another shape", "not finite", "huge"],
)
def test_whatever_one_client_sends_moves_the_model_by_its_clip_norm_at_most(answer, left_out):
    deployed = deployment("dp_fedavg", sampling_prob=1.0, num_rounds=1)
    idle = lambda params, number: params
    odd = lambda params, number: answer(params) if number == 2 else params
    models = [
        run(deployed, _grid.Grid(app(deployed, some), _digits.NUM_CLIENTS), key=key())[1][0]
        for some in (idle, odd)
    ]
    moved = np.sqrt(sum(np.sum((models[0][k] - models[1][k]) ** 2) for k in ("b", "w")))
    most = 0.4 / _digits.NUM_CLIENTS * (1 + 1e-5)
    assert moved <= (1e-7 if left_out else most) and (left_out or moved > 0.9 * most)


def test_a_deployment_that_promises_nothing_is_refused():
    plain = dataclasses.replace(CONFIGS["dp_fedavg"], noise_multiplier=None)
    options = {"scheme": "dp_fedavg", "num_clients": 10, "num_rounds": 3}
    for noise in (None, 0.0):
        with pytest.raises(errors.PrivacyPreconditionError, match="promises an epsilon"):
            flower.Deployment(config=dataclasses.replace(plain, noise_multiplier=noise), **options)
    banded = dataclasses.replace(
        CONFIGS["dp_fedavg"], correlation="banded", bands=2, sampling_prob=0.3
    )
    with pytest.raises(ValueError, match="Expected correlation='none' of real clients"):
        flower.Deployment(config=banded, **options)
    with pytest.raises(ValueError, match="Expected config to be"):
        flower.Deployment(config=object(), **options)
    # Each silo would draw for itself whether it joins: all might, and the ledger counts some.
    some = dataclasses.replace(CONFIGS["higradavg"], silos_per_round=1)
    with pytest.raises(ValueError, match="Expected silos_per_round=None of real clients"):
        flower.Deployment(scheme="higradavg", config=some, num_clients=10, num_rounds=3)


def test_a_server_refuses_nodes_that_are_no_clients():
    deployed = deployment("dp_fedavg")
    for nodes in ({1: 10}, {1: 3, 2: 3}):
        with pytest.raises(ValueError, match="Expected nodes of clients below num_clients=10"):
            flower.Strategy(deployed, nodes=nodes, target_epsilon=None, delta=1e-3)


def test_a_model_goes_into_a_record_and_back():
    params = {"a": {"w": np.float32([[1, 2]]), "b-": np.float32([3])}, "a-b": np.float32(4)}
    record = flower.to_record(params)
    jax.tree.map(np.testing.assert_array_equal, flower.from_record(record, params), params)
    with pytest.raises(ValueError, match="Expected record to hold"):
        flower.from_record(record, params["a"])
