"""The example runs as processes: a SuperLink and ten SuperNodes on this machine, TLS with a CA,
authenticated nodes; five rounds of digits, without faults and with a node killed and one late.
"""

import concurrent.futures
import dataclasses
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra flower: pip install 'fljax[flower]'")

import fljax
from fljax import accounting, data
from fljax.simulation import feed, seeds
from tests.interop import _example, _federation

SEED, ROUNDS = 7, 5
task = _example.task()
CONFIG = dataclasses.replace(
    task.DEPLOYMENT.config,
    local_learning_rate=task.RATE,
    local_batch_size=task.EXAMPLES,
    num_local_epochs=task.STEPS,
)


def models(folder):
    return [dict(np.load(folder / f"model{done}.npz")) for done in range(ROUNDS + 1)]


def run(federation, folder, timeout, watch=lambda rounds: None):
    """`flwr run` until it ends; `watch` is told how many rounds are booked, as soon as they are."""
    folder.mkdir()
    nodes, app = " ".join(map(str, federation.node_ids)), str(_example.FOLDER)
    config = f'nodes="{nodes}" folder="{folder}" seed={SEED} timeout={timeout:.1f}'
    began = federation.flwr("run", app, "here", "--run-config", config)["run-id"]

    def status():
        (found,) = (r for r in federation.flwr("list", "here")["runs"] if r["run-id"] == began)
        return found["status"]

    booked, path = 0, folder / "ledger.json"
    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # a command takes its seconds
        asked = thread.submit(status)
        for _ in range(72_000):
            time.sleep(0.05)
            if path.exists():
                ledger = accounting.Ledger.from_json(json.loads(path.read_text())["ledger"])
                if ledger.num_events > booked:
                    booked += 1
                    assert ledger.num_events == booked, "a round was over before it was seen"
                    watch(booked)
            if asked.done():
                if asked.result().startswith("finished"):
                    assert asked.result() == "finished:completed", federation.log("superlink")
                    return ledger
                asked = thread.submit(lambda: time.sleep(5) or status())
    raise AssertionError(f"{booked} rounds after an hour: {federation.log('superlink')}")


class Simulation:
    """Rounds of the simulation's own algorithm on cohorts from which some are away."""

    def __init__(self):
        x, y = task.examples()
        rows = jnp.arange(len(y), dtype=jnp.int32).reshape(task.NUM_CLIENTS, -1)
        self.clients = data.ClientData({"x": jnp.asarray(x), "y": jnp.asarray(y)}, rows)
        self.key, num = seeds.keys(SEED, "threefry")[1], task.NUM_CLIENTS
        loss = lambda params, example: cross_entropy(apply(params, example["x"]), example["y"])
        made = fljax.schemes.get("dp_fedavg").make(CONFIG, loss, num_units=num)
        self.sample = feed.host_sampler(made.client_sampling_prob, num, self.key, num)
        self.first = made.init(jax.tree.map(jnp.asarray, task.initial()))
        self._round = jax.jit(made.round)

    def round(self, state, away):
        ids = self.sample(int(state.round))
        there = np.where(np.isin(ids, sorted(away)), -1, ids)
        return self._round(state, data.cohort(self.clients, jnp.asarray(there)), self.key)[0]


def apply(params, x):
    return x @ params["w"] + params["b"]


def cross_entropy(logits, label):
    return jax.nn.logsumexp(logits) - logits[label]


def apart(model, state):
    return max(np.max(np.abs(model[name] - state.params[name])) for name in ("b", "w"))


@pytest.mark.slow(reason="starts some sixty processes of Python, and waits for timeouts")
def test_released_models_are_the_simulations_and_the_ledger_is_right_with_faults(tmp_path):
    simulation = Simulation()
    with _federation.Federation(tmp_path, task.NUM_CLIENTS) as federation:
        ledger = run(federation, tmp_path / "whole", timeout=600)
        assert ledger.event == task.DEPLOYMENT.event.repeat(ROUNDS)
        state, released = simulation.first, models(tmp_path / "whole")
        for model in released[1:]:
            state = simulation.round(state, away=set())
            assert apart(model, state) < 1e-6

        # In the second round one node is killed, and one answers after the timeout.
        asked = [int(number) for number in simulation.sample(1) if number >= 0]
        gone, late = asked[:2]
        count = lambda text: federation.log(f"node{late}").count(text)
        sent = []

        def fail(rounds):
            if rounds == 2:
                federation.kill(federation.nodes[gone])
                before = count("Received successfully")
                while count("Received successfully") == before:
                    time.sleep(0.05)
                federation.pause(federation.nodes[late])  # with the message, and without an answer
                sent.append(count("Sending: train"))
            if rounds == 3:
                federation.go_on(federation.nodes[late])

        ledger = run(federation, tmp_path / "faults", timeout=150, watch=fail)
        assert ledger.event == task.DEPLOYMENT.event.repeat(ROUNDS)  # nothing is refunded
        state = simulation.first
        for done, model in enumerate(models(tmp_path / "faults")[1:]):
            # Who was late may be busy with what came too late, or be back.
            ways = {0: [set()], 1: [{gone, late}]}.get(done, [{gone}, {gone, late}])
            found = [simulation.round(state, away) for away in ways]
            errors = [apart(model, one) for one in found]
            state = found[int(np.argmin(errors))]
            assert min(errors) < 1e-6, (done, errors)
        assert count("Sending: train") > sent[0]  # it did answer, too late
    # And `fljax.simulate` itself, with the same seed, ends at the same model.
    x, y = (field.reshape(task.NUM_CLIENTS, task.EXAMPLES, -1) for field in task.examples())
    result = fljax.simulate(
        "dp_fedavg",
        data=[{"x": x[i], "y": y[i, :, 0]} for i in range(task.NUM_CLIENTS)],
        test_data={"x": x[0], "y": y[0, :, 0]},
        num_classes=10,
        model=(task.initial(), apply),
        loss="cross_entropy",
        run_dir=tmp_path / "simulated",
        seed=SEED,
        num_rounds=ROUNDS,
        target_epsilon=None,
        target_delta=task.DELTA,
        baseline=False,
        **{k: v for k, v in dataclasses.asdict(CONFIG).items() if v is not None},
    )
    for name, leaf in result.params.items():
        np.testing.assert_allclose(released[-1][name], leaf, rtol=0, atol=1e-6)
    assert abs(result.epsilon - ledger.epsilon(delta=task.DELTA, method="auto")) < 1e-9
