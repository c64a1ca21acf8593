"""Secure sums by Flower's messages: the ring's very sum, and aborts with a name."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra flower: pip install 'fljax[flower]'")

import flwr.app
import flwr.clientapp

from fljax import data, errors
from fljax.interop import flower
from fljax.interop.flower import secure
from fljax.schemes import distributed_dgauss, skellam
from fljax.simulation import feed, seeds
from fljax.upload.secure_sum import protocol, secagg, secagg_plus, signing
from tests.interop import _grid

NUM, MISSING, SIZE = 6, 2, 24
CONFIG = distributed_dgauss.Config(
    num_parties=NUM,
    max_stragglers=MISSING,
    max_colluders=1,
    straggler_law="custom",
    straggler_probs=(1.0,),
    l2_clip_norm=4.0,
    noise_multiplier=1.0,
    protocol="secagg_plus",
    local_learning_rate=1.0,
    num_local_epochs=1,
)
DEPLOYMENT = flower.Deployment(
    scheme="distributed_dgauss", config=CONFIG, num_clients=NUM, num_rounds=2
)
# Steps of a 64th: gradients of a loss that is linear, so that both sides train to the same bits.
STEPS = np.random.default_rng(0).integers(-8, 9, (NUM, SIZE)).astype(np.float32) / 64
ZERO = {"w": np.zeros(SIZE, np.float32)}


def key():
    return seeds.keys(3, "threefry")[1]


@pytest.fixture
def identities():
    return {number: signing.Identity(number) for number in range(NUM)}


def app(deployed, identities, steps=STEPS):
    roster = {number: one.public_key for number, one in identities.items()}
    made = flwr.clientapp.ClientApp()

    def party(context):
        mine = identities[context.node_config["partition-id"]]
        return flower.Party(key=key(), identity=mine, roster=roster)

    @made.train(mods=[flower.client_mod(deployed, party)])
    def train(message, context):
        params = flower.from_record(message.content["arrays"], ZERO)
        new = {"w": params["w"] - steps[context.node_config["partition-id"]]}
        content = flwr.app.RecordDict({"arrays": flower.to_record(new)})
        return flwr.app.Message(content, reply_to=message)

    return made, roster


class Grid(_grid.Grid):
    """gone: (step, client) that no longer answers from then on. change: of a reply to a step."""

    def __init__(self, app, *, gone=(), change=None):
        super().__init__(app, NUM)
        self.gone, self.change, self.lost = dict(gone), change or (lambda step, n, reply: reply), []

    def send_and_receive(self, messages, *, timeout=None):
        steps = [message.content["fljax"]["step"] for message in messages]
        for number, step in self.gone.items():
            if steps[0] == step and number not in self.lost:
                self.lost.append(number)
        self.drop = {(int(m.metadata.group_id), n) for m in messages for n in self.lost}
        replies = super().send_and_receive(messages, timeout=timeout)
        return [
            self.change(steps[0], self.nodes[reply.metadata.src_node_id], reply)
            for reply in replies
        ]


def run(deployed, made, roster, **more):
    grid = Grid(made, **more)
    strategy = flower.Strategy(
        deployed, nodes=grid.nodes, target_epsilon=None, delta=1e-3, key=key(), roster=roster
    )
    models = []
    keep = lambda done, arrays: models.append(flower.from_record(arrays, ZERO)["w"])
    strategy.start(grid, flower.to_record(ZERO), timeout=60, evaluate_fn=keep)
    return strategy, models[1:], grid


def expected(deployed, numbers, round_index=0):
    """The step of a round in which these clients' words are added up in the ring."""
    update = lambda n: {"['w']": STEPS[n]}
    words = [secure.words(deployed, update(n), n, key(), round_index) for n in numbers]
    grid, _ = secure.setting(deployed, SIZE, dict(enumerate(map(bytes, range(1, NUM + 1)))), {})
    total = np.sum(words, axis=0, dtype=np.uint32) & np.uint32(2**grid.bits - 1)
    unused = np.uint32(32 - grid.bits)
    integers = (total << unused).view(np.int32) >> int(unused)
    return -(integers.astype(np.float32) / np.float32(grid.scale)) / np.float32(len(numbers))


@pytest.mark.release(reason="one more distribution", ids=["distributed_dgauss"])
@pytest.mark.slow(reason="compiles discrete noise for two schemes")
@pytest.mark.parametrize("scheme", ["distributed_dgauss", "skellam"])
def test_models_are_those_of_the_simulation(scheme, identities):
    config = skellam.Config(**dataclasses.asdict(CONFIG))
    deployed = dataclasses.replace(DEPLOYMENT, scheme=scheme, config=config)
    made, roster = app(deployed, identities)
    strategy, models, _ = run(deployed, made, roster)
    clients = data.ClientData({"g": jnp.asarray(STEPS)}, jnp.arange(NUM, dtype=jnp.int32)[:, None])
    loss = lambda params, example: jnp.sum(params["w"] * example["g"])
    algorithm = deployed.implementation.make(config, loss, num_units=NUM)
    round_fun = jax.jit(feed.round_fun((algorithm,), NUM), static_argnames="capacity")
    states = (algorithm.init(jax.tree.map(jnp.asarray, ZERO)),)
    for model in models:
        states, _, _ = round_fun(states, clients, key(), capacity=NUM)
        np.testing.assert_allclose(model, states[0].params["w"], rtol=0, atol=1e-6)
    assert strategy.ledger.event == deployed.event.repeat(2) and np.any(models[1])


def test_the_sum_of_those_who_stayed_is_exact_whoever_is_gone_when(identities):
    deployed = dataclasses.replace(DEPLOYMENT, num_rounds=1)
    made, roster = app(deployed, identities)
    # Of words that never came nothing is in the sum; of words that did, all is.
    strategy, models, grid = run(deployed, made, roster, gone=[(1, "shares"), (4, "survivors")])
    np.testing.assert_allclose(models[0], expected(deployed, [0, 2, 3, 4, 5]), rtol=0, atol=1e-6)
    assert strategy.rounds_begun == 1
    assert all("fljax secure sum" not in grid.contexts[n].state for n in list(grid.nodes)[2:4])


@pytest.mark.slow(reason="compiles what clients send once more")
def test_a_round_with_too_few_clients_is_aborted_paid_for_and_not_repeated(identities, caplog):
    made, roster = app(DEPLOYMENT, identities)
    gone = [(number, "masked") for number in range(MISSING + 1)]
    strategy, models, _ = run(DEPLOYMENT, made, roster, gone=gone)
    assert strategy.ledger.event == DEPLOYMENT.event.repeat(2)
    assert not np.any(models) and "aborted: DropoutError" in caplog.text


@pytest.mark.slow(reason="compiles what clients send once more")
def test_messages_that_are_not_what_the_protocol_says_abort_the_round(identities, caplog):
    deployed = dataclasses.replace(DEPLOYMENT, num_rounds=1)
    made, roster = app(deployed, identities)

    def forged(step, number, reply):
        if step == "keys" and number == 2:
            reply.content["fljax"]["sent"] = bytes(len(reply.content["fljax"]["sent"]))
        return reply

    strategy, models, _ = run(deployed, made, roster, change=forged)
    assert not np.any(models) and "round 0 aborted" in caplog.text
    assert strategy.rounds_begun == 1
    stranger = roster | {2: signing.Identity(2).public_key}
    fresh = {number: signing.Identity(number) for number in range(NUM)}
    made, _ = app(deployed, fresh)
    _, models, _ = run(deployed, made, stranger)
    assert not np.any(models) and "SignatureError" in caplog.text


def test_what_a_deployment_lacks_is_named(identities):
    with pytest.raises(ValueError, match="Expected a roster of all clients' public keys"):
        flower.Strategy(DEPLOYMENT, nodes={}, target_epsilon=None, delta=1e-3).start(
            None, flower.to_record(ZERO), timeout=1
        )
    with pytest.raises(ValueError, match="protocol"):
        dataclasses.replace(DEPLOYMENT, config=dataclasses.replace(CONFIG, protocol="ckks"))
    with pytest.raises(ValueError, match="Expected bits=None of real clients"):
        dataclasses.replace(DEPLOYMENT, config=dataclasses.replace(CONFIG, bits=16))
    active = dataclasses.replace(CONFIG, protocol="secagg", max_colluders=3)
    with pytest.raises(errors.PrivacyPreconditionError, match="against a server that deviates"):
        dataclasses.replace(DEPLOYMENT, config=active)


@pytest.mark.parametrize("module", [secagg, secagg_plus])
def test_a_client_that_ends_between_steps_goes_on_as_another_process(module):
    terms = protocol.Terms(num_clients=5, size=40, bits=20, max_dropouts=1, max_colluders=1)
    made = module.simulated(terms)
    words = np.random.default_rng(1).integers(0, 2**20, (5, 40), dtype=np.uint32)
    states, server, inbox = {}, made.server(0), dict.fromkeys(range(5), b"")
    for step in made.steps:
        sent = {}
        for number, received in inbox.items():
            first = step == made.steps[0]
            mine = made.client(number, words[number], 0) if first else made.resumed(states[number])
            if (number, step) != (3, "masked"):
                sent[number] = mine.send(step, received)
            states[number] = mine.state()
        inbox = server.collect(step, sent)
    there = [0, 1, 2, 4]
    assert server.summed == tuple(there)
    total = words[there].sum(axis=0, dtype=np.uint32) & np.uint32(2**20 - 1)
    np.testing.assert_array_equal(server.total(), total)
    assert len(states[0]) < len(states[3])  # words that were sent are not kept
    with pytest.raises(errors.ReplayError):
        made.resumed(states[0]).send("masked", b"")
    with pytest.raises(errors.ReplayError):
        made.client(0, words[0], 0)
    with pytest.raises(errors.MalformedMessageError):
        made.resumed(states[0][:-3])
