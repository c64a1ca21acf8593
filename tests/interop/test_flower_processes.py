"""Rounds between processes: a SuperLink and ten SuperNodes on this machine, TLS with a CA,
authenticated nodes; digits, by the example and by three other schemes, without faults and with a
node killed and one late.
"""

import concurrent.futures
import dataclasses
import json
import operator
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra flower: pip install 'fljax[flower]'")

import fljax
from fljax import accounting, data
from fljax.simulation import feed
from tests.interop import _example, _federation, _schemes

SEED, ROUNDS = _schemes.SEED, 5
APP = _federation.ROOT / "tests" / "interop" / "schemes_app"
OTHERS = ("lightdp", "higradavg", _schemes.SECURE)
task = _schemes.digits
CONFIG = _schemes.CONFIGS["dp_fedavg"]


def models(folder, num_rounds):
    return [dict(np.load(folder / f"model{done}.npz")) for done in range(1, num_rounds + 1)]


def run(federation, folder, timeout, *, scheme=None, rounds=ROUNDS, watch=lambda rounds: None):
    """`flwr run` until it ends, of the example or of another scheme; `watch` is told how many
    rounds are booked, as soon as they are. (ledger, seconds of the longest round).
    """
    folder.mkdir()
    nodes, app = " ".join(map(str, federation.node_ids)), str(_example.FOLDER)
    config = f'nodes="{nodes}" folder="{folder}" seed={SEED} timeout={timeout:.1f}'
    if scheme is not None:
        _schemes.write_keys(folder)
        app, config = str(APP), f'{config} scheme="{scheme}" rounds={rounds}'
    began = federation.flwr("run", app, "here", "--run-config", config)["run-id"]
    kept = [folder / f"model{done}.npz" for done in range(1, rounds + 1)]

    def status():
        for _ in range(200):  # a command takes its seconds
            if kept[-1].exists():
                break
            time.sleep(0.1)
        (found,) = (r for r in federation.flwr("list", "here")["runs"] if r["run-id"] == began)
        return found["status"]

    booked, path = [], folder / "ledger.json"
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        asked = thread.submit(status)
        for _ in range(72_000):
            time.sleep(0.05)
            if path.exists():
                ledger = accounting.Ledger.from_json(json.loads(path.read_text())["ledger"])
                if ledger.num_events > len(booked):
                    booked.append(time.time())
                    assert ledger.num_events == len(booked), "a round was over before it was seen"
                    watch(len(booked))
            if asked.done():
                if asked.result().startswith("finished"):
                    assert asked.result() == "finished:completed", federation.log("superlink")
                    ended = [path.stat().st_mtime for path in kept]
                    return ledger, max(map(operator.sub, ended, booked))
                asked = thread.submit(status)
    raise AssertionError(f"{len(booked)} rounds after an hour: {federation.log('superlink')}")


def patience(seconds):
    """How long a round with faults waits for answers: a multiple of what one without took."""
    return max(15.0, 4 * seconds)


class Simulation:
    """Rounds of the simulation's own algorithm on cohorts from which some are away."""

    def __init__(self, deployed):
        self.clients, loss = _schemes.clients(deployed.scheme)
        self.key, num = _schemes.key(), task.NUM_CLIENTS
        made = deployed.implementation.make(deployed.config, loss, num_units=num)
        self.sample = feed.host_sampler(made.client_sampling_prob, num, self.key, num)
        self.first = made.init(jax.tree.map(jnp.asarray, _schemes.initial(deployed.scheme)))
        self._round = jax.jit(made.round)

    def round(self, state, away=()):
        ids = self.sample(int(state.round))
        there = np.where(np.isin(ids, sorted(away)), -1, ids)
        return self._round(state, data.cohort(self.clients, jnp.asarray(there)), self.key)[0]


def apart(model, state):
    return max(np.max(np.abs(model[name] - state.params[name])) for name in model)


class Faults:
    """In the second round a node is killed, and one answers after the timeout; in runs after it
    that one is late again, in the first round.
    """

    def __init__(self, federation, gone, late):
        self._federation, self.gone, self.late = federation, gone, late
        self._sent, self._killed, self._until = [], False, 0

    def count(self, text):
        return self._federation.log(f"node{self.late}").count(text)

    def expect(self, messages):
        """Before a run: the late node is paused when it has got so many."""
        self._until = self.count("Received successfully") + messages

    def watch(self, rounds):
        nodes = self._federation.nodes
        if rounds == 1 + (not self._killed):
            if not self._killed:
                self._federation.kill(nodes[self.gone])
                self._killed = True
            while self.count("Received successfully") < self._until:
                time.sleep(0.05)
            self._federation.pause(nodes[self.late])  # with the message, and without an answer
            self._sent.append(self.count("Sending: train"))
        elif len(self._sent) == 1 and rounds == 3:
            self.back()

    def back(self):
        self._federation.go_on(self._federation.nodes[self.late])

    def answered(self):
        """Whether the late one did answer, at last."""
        for _ in range(600):
            if self.count("Sending: train") > self._sent[-1]:
                return True
            time.sleep(0.1)
        return False


@pytest.mark.release(reason="minutes")
@pytest.mark.slow(reason="starts a hundred processes, and waits for timeouts")
def test_released_models_are_the_simulations_and_the_ledger_is_right_with_faults(tmp_path):
    simulations = {
        scheme: Simulation(_schemes.deployment(scheme, 1)) for scheme in ("dp_fedavg", *OTHERS)
    }
    simulation = simulations["dp_fedavg"]
    with _federation.Federation(tmp_path, task.NUM_CLIENTS) as federation:
        took = {}
        ledger, took["dp_fedavg"] = run(federation, tmp_path / "whole", timeout=600)
        assert ledger.event == task.DEPLOYMENT.event.repeat(ROUNDS)
        state, released = simulation.first, models(tmp_path / "whole", ROUNDS)
        for model in released:
            state = simulation.round(state)
            assert apart(model, state) < 1e-6
        for scheme in OTHERS:
            folder, one = tmp_path / scheme, simulations[scheme]
            spent, took[scheme] = run(federation, folder, timeout=600, scheme=scheme, rounds=1)
            assert spent.event == _schemes.deployment(scheme, 1).event
            (model,) = models(folder, 1)
            assert apart(model, one.round(one.first)) < 1e-6, scheme
            assert np.linalg.norm(model["w"]) > 0.01  # it is not that nothing happened

        gone, late = [int(number) for number in simulation.sample(1) if number >= 0][:2]
        faults, folder = Faults(federation, gone, late), tmp_path / "faults"
        faults.expect(1 + (late in simulation.sample(0)))
        spent, _ = run(
            federation,
            folder,
            patience(took["dp_fedavg"]),
            scheme="dp_fedavg",
            rounds=3,
            watch=faults.watch,
        )
        assert spent.event == task.DEPLOYMENT.event.repeat(3)  # nothing is refunded
        state = simulation.first
        for done, model in enumerate(models(folder, 3)):
            # Who was late may be busy with what came too late, or be back.
            ways = [[set()], [{gone, late}], [{gone}, {gone, late}]][done]
            found = [simulation.round(state, away) for away in ways]
            errors = [apart(model, one) for one in found]
            state = found[int(np.argmin(errors))]
            assert min(errors) < 1e-6, (done, errors)
        assert faults.answered()
        for scheme in OTHERS:
            folder, one = tmp_path / f"{scheme}-faults", simulations[scheme]
            faults.expect(1)
            spent, _ = run(
                federation,
                folder,
                patience(took[scheme]),
                scheme=scheme,
                rounds=1,
                watch=faults.watch,
            )
            faults.back()
            assert spent.event == _schemes.deployment(scheme, 1).event
            (model,) = models(folder, 1)
            assert apart(model, one.round(one.first)) > 1e-3
            if scheme == _schemes.SECURE:  # the sum is of those who are there, exactly
                assert apart(model, one.round(one.first, {gone, late})) < 1e-6
            assert faults.answered()
    # And `fljax.simulate` itself, with the same seed, ends at the same model.
    x, y = (field.reshape(task.NUM_CLIENTS, task.EXAMPLES, -1) for field in task.examples())
    result = fljax.simulate(
        "dp_fedavg",
        data=[{"x": x[i], "y": y[i, :, 0]} for i in range(task.NUM_CLIENTS)],
        test_data={"x": x[0], "y": y[0, :, 0]},
        num_classes=10,
        model=(task.initial(), lambda params, x: x @ params["w"] + params["b"]),
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
