"""Four schemes on the example's digits: what clients have, what they send, and their simulation.

The key is known to all, as in a simulation, so that both release the same models.
"""

import dataclasses
import json
import pathlib

import flwr.app
import flwr.clientapp
import jax
import jax.numpy as jnp
import numpy as np

from fljax import data
from fljax.interop import flower
from fljax.schemes import distributed_dgauss, higradavg, lightdp
from fljax.simulation import feed, seeds
from fljax.upload import key_agreement
from fljax.upload.secure_sum import signing
from tests.interop import _example

SEED = 7
digits = _example.task()
NUM = digits.NUM_CLIENTS
SECURE = "distributed_dgauss"
# What clients do is theirs; a simulation is told the same: steps over all examples of a client.
STEPS = {
    "local_learning_rate": digits.RATE,
    "local_batch_size": digits.EXAMPLES,
    "num_local_epochs": digits.STEPS,
}
SILOS = {"item_sampling_prob": 0.4, "expected_subjects": 6.0, "max_items_per_subject": 2}
CONFIGS = {
    "dp_fedavg": dataclasses.replace(digits.DEPLOYMENT.config, **STEPS),
    "higradavg": higradavg.Config(
        num_parties=NUM, noise_multiplier=0.8, silo_noise=(1.0, 1.5) * 5, **SILOS
    ),
    "lightdp": lightdp.Config(
        num_parties=NUM,
        noise_multiplier=0.9,
        max_colluders=2,
        max_stragglers=0,
        pair_variance_ratio=4.0,  # of huge ones, float32 keeps fewer digits of the sum
        l2_clip_norm=0.4,
        **STEPS,
    ),
    SECURE: distributed_dgauss.Config(
        num_parties=NUM,
        max_stragglers=2,
        max_colluders=1,
        straggler_law="custom",
        straggler_probs=(1.0,),
        l2_clip_norm=4.0,
        noise_multiplier=1.0,
        protocol="secagg_plus",
        local_learning_rate=1.0,
        num_local_epochs=1,
    ),
}


def key():
    return seeds.keys(SEED, "threefry")[1]


def deployment(scheme, num_rounds, **changed):
    config = dataclasses.replace(CONFIGS[scheme], **changed)
    return flower.Deployment(scheme=scheme, config=config, num_clients=NUM, num_rounds=num_rounds)


def initial(scheme):
    return {"w": digits.initial()["w"]} if scheme == SECURE else digits.initial()


def loss(params, example):
    logits = example["x"] @ params["w"] + params["b"]
    return jax.nn.logsumexp(logits) - logits[example["y"]]


def pool():
    """All examples; subject s has every fifteenth of them, in most of the clients."""
    x, y = digits.examples()
    subject = np.arange(len(y), dtype=np.int32) % 15
    return {"x": x, "y": y, "subject": subject}


def steps():
    """Of each client, the sum of its digits by class, float32 `[10, 64, 10]`: gradients of a loss
    that is linear, in whole 1024ths, so that both sides train to the same bits, and round alike.
    """
    x, y = (field.reshape(NUM, digits.EXAMPLES, -1) for field in digits.examples())
    return np.einsum("cej,cek->cjk", x, np.eye(10, dtype=np.float32)[y[:, :, 0]]) / 64


def clients(scheme):
    """(all clients' data, the loss) of a simulation."""
    if scheme == SECURE:
        found = data.ClientData(
            {"g": jnp.asarray(steps())}, jnp.arange(NUM, dtype=jnp.int32)[:, None]
        )
        return found, lambda params, example: jnp.sum(params["w"] * example["g"])
    rows = jnp.arange(len(pool()["y"]), dtype=jnp.int32).reshape(NUM, -1)
    return data.ClientData(jax.tree.map(jnp.asarray, pool()), rows), loss


def simulated(deployed):
    """The models after each round of a simulation, as `fljax.simulate` runs it."""
    everybody, of_example = clients(deployed.scheme)
    made = deployed.implementation.make(deployed.config, of_example, num_units=NUM)
    round_fun = jax.jit(feed.round_fun((made,), NUM), static_argnames="capacity")
    states, found = (made.init(jax.tree.map(jnp.asarray, initial(deployed.scheme))),), []
    for _ in range(deployed.num_rounds):
        states, _, _ = round_fun(states, everybody, key(), capacity=NUM)
        found.append(states[0].params)
    return found


def number(context):
    return context.node_config["partition-id"]


def party(context):
    """As in a simulation, whose key all parties have."""
    agreement = key_agreement.SimulatedKeyAgreement(number(context), key())
    return flower.Party(number=number(context), key=key(), agreement=agreement)


def app(deployed, trained=digits.train, party=party):
    made = flwr.clientapp.ClientApp()
    if deployed.scheme == "higradavg":

        def examples(context):
            begin = number(context) * digits.EXAMPLES
            mine = slice(begin, begin + digits.EXAMPLES)
            return {name: field[mine] for name, field in pool().items()}

        made.train()(flower.silo_train(deployed, loss, examples, digits.initial(), party))
        return made

    @made.train(mods=[flower.client_mod(deployed, party)])
    def train(message, context):
        params = flower.from_record(message.content["arrays"], initial(deployed.scheme))
        new = trained(params, number(context))
        metrics = flwr.app.MetricRecord({"train-loss": 0.123456789})
        content = flwr.app.RecordDict({"arrays": flower.to_record(new), "metrics": metrics})
        return flwr.app.Message(content, reply_to=message)

    return made


def write_keys(folder):
    """Signing keys of all clients, each in a file of its own, and who has which."""
    made = [signing.Identity(client) for client in range(NUM)]
    for one in made:
        one.save(folder / f"{one.client}.key", passphrase=None)
    public = {one.client: one.public_key.hex() for one in made}
    (folder / "roster.json").write_text(json.dumps(public))


def roster(folder):
    found = json.loads((folder / "roster.json").read_text())
    return {int(client): bytes.fromhex(public) for client, public in found.items()}


def client(config):
    """The ClientApp of a run; `config` is what the run was started with."""
    deployed = deployment(str(config["scheme"]), int(config["rounds"]))
    if deployed.scheme != SECURE:
        return app(deployed)
    folder = pathlib.Path(str(config["folder"]))

    def with_identity(context):
        path = folder / f"{number(context)}.key"
        mine = signing.Identity.load(path, passphrase=None)
        return flower.Party(key=key(), identity=mine, roster=roster(folder))

    return app(deployed, lambda params, n: {"w": params["w"] - steps()[n]}, with_identity)


def serve(config, grid):
    """The server of a run, as the example's."""
    scheme, folder = str(config["scheme"]), pathlib.Path(str(config["folder"]))
    strategy = flower.Strategy(
        deployment(scheme, int(config["rounds"])),
        nodes={int(node): n for n, node in enumerate(str(config["nodes"]).split())},
        target_epsilon=None,
        delta=1e-3,
        ledger_file=folder / "ledger.json",
        key=key(),
        roster=roster(folder) if scheme == SECURE else None,
    )

    def keep(rounds, arrays):
        np.savez(folder / f"model{rounds}.npz", **flower.from_record(arrays, initial(scheme)))

    start = flower.to_record(initial(scheme))
    strategy.start(grid, start, timeout=float(config["timeout"]), evaluate_fn=keep)
