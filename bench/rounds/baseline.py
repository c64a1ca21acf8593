"""At which settings does FedAvg, the non-private model beside every run, learn each task?

    python -m bench.rounds.baseline [--only TASK ...]

The tasks are those that the schemes of `fljax simulate` start from, and other data and models. Each
is trained with the settings of `fljax.simulation.baseline`, at a third of the rate, at three times
of it, and without server momentum, or with it; all clients join every round. A row holds the
held-out accuracy after 5 rounds and at the end, mean over SEEDS.
"""

import argparse
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness
from fljax import data, models
from fljax.schemes import base
from fljax.schemes.central import dp_fedavg
from fljax.simulation import baseline, task
from fljax.simulation.config import from_sections

SEEDS = (0,)
EARLY = 5
_SQUARED = {"model": "mlp", "loss": "squared"}
TASKS: dict[str, dict[str, Any]] = {
    "digits, mlp, 500 clients": {"run": {"num_rounds": 60}},
    "digits, mlp, 50 clients": {"data": {"num_clients": 50}, "run": {"num_rounds": 40}},
    "digits, softmax, 50 alike": {
        "data": {"num_clients": 50, "partition": "iid"},
        "model": {"model": "softmax"},
        "run": {"num_rounds": 20},
    },
    "digits, mlp, squared loss, 10 alike": {
        "data": {"num_clients": 10, "partition": "iid"},
        "model": _SQUARED,
        "run": {"num_rounds": 60},
    },
    "digits, softmax, squared loss, 10 alike": {
        "data": {"num_clients": 10, "partition": "iid"},
        "model": _SQUARED | {"model": "softmax"},
        "run": {"num_rounds": 20},
    },
    "digits, softmax, 16 silos": {
        "data": {"num_clients": 16, "partition": "iid"},
        "model": {"model": "softmax"},
        "run": {"num_rounds": 30},
    },
    "writers, softmax, 16 silos": {
        "data": {"dataset": "writers", "num_clients": 16, "partition": "subject_uniform"},
        "model": {"model": "softmax"},
        "run": {"num_rounds": 30},
    },
    "writers, softmax, 400 alike": {
        "data": {"dataset": "writers", "num_clients": 400, "partition": "iid"},
        "model": {"model": "softmax"},
        "run": {"num_rounds": 20},
    },
    "fields, mlp, 50 alike": {
        "data": {"dataset": "fields", "num_clients": 50, "partition": "iid"},
        "run": {"num_rounds": 20},
    },
    "breast_cancer, softmax, 20 alike": {
        "data": {"dataset": "breast_cancer", "num_clients": 20, "partition": "iid"},
        "model": {"model": "softmax"},
        "run": {"num_rounds": 20},
    },
    "digits, cnn, 50 alike": {
        "data": {"num_clients": 50, "partition": "iid"},
        "model": {"model": "cnn"},
        "run": {"num_rounds": 10},
    },
    "sequences, token_lstm, 50 alike": {
        "data": {
            "dataset": "sequences",
            "task": "tokens",
            "num_clients": 50,
            "partition": "iid",
            "sequence_length": 19,
        },
        "run": {"num_rounds": 12},
    },
    "roles, lstm, 50 alike": {
        "data": {"dataset": "roles", "num_clients": 50, "partition": "iid"},
        "model": {"model": "lstm"},
        "run": {"num_rounds": 5},
    },
}


def sequences() -> data.Dataset:
    """Windows of the roles' texts, each symbol of which is to be told from those before it."""
    roles = data.load("roles")
    train, test = (
        {"x": part["x"][:most, :-1], "y": part["x"][:most, 1:]}
        for part, most in ((roles.train, 3000), (roles.test, 600))
    )
    return data.Dataset(train, test, roles.num_classes, "sequences", task="tokens")


data.builtin.register("sequences", sequences)


def accuracies(
    sections: dict[str, Any], rate: float, momentum: float, seed: int
) -> tuple[float, float]:
    """Held-out accuracy after EARLY rounds and at the end."""
    config = from_sections(sections | {"run": sections["run"] | {"seed": seed}})
    the_task, chosen, everybody = (
        task.build(config),
        baseline.settings(config.model),
        config.data.num_clients,
    )
    plain = dp_fedavg.Config(
        sampling_prob=1.0,
        l2_clip_norm=base.NEVER_CLIPS,
        noise_multiplier=0.0,
        local_learning_rate=rate,
        local_batch_size=chosen.batch_size,
        num_local_epochs=chosen.num_epochs,
        server_learning_rate=1.0,
        server_momentum=momentum,
    )
    algorithm = dp_fedavg.make(plain, the_task.loss, num_units=everybody)
    test = jax.tree.map(jnp.asarray, {name: the_task.dataset.test[name] for name in ("x", "y")})
    assert isinstance(the_task.client_data, data.ClientData)
    cohort = data.cohort(the_task.client_data, jnp.arange(everybody))
    step = jax.jit(lambda state: algorithm.round(state, cohort, the_task.round_key)[0])
    state, found = algorithm.init(the_task.model.params), []
    for done in range(1, config.run.num_rounds + 1):
        state = step(state)
        if done in (EARLY, config.run.num_rounds):
            reached = models.tasks.measure(
                the_task.model.apply, state.params, test, task=the_task.dataset.task
            )
            found.append(float(reached["accuracy"]))
    return found[0], found[-1]


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of one task, the chosen settings first."""
    sections = TASKS[name]
    chosen = baseline.settings(from_sections(sections).model)
    rate, momentum = chosen.learning_rate, chosen.server_momentum
    rows = []
    for settings in (
        (rate, momentum),
        (rate / 3, momentum),
        (3 * rate, momentum),
        (rate, 0.9 - momentum),
    ):
        early, final = np.mean([accuracies(sections, *settings, seed) for seed in SEEDS], axis=0)
        rows.append(
            {
                "task": name,
                "rate": round(settings[0], 3),
                "server momentum": settings[1],
                "chosen": "yes" if settings == (rate, momentum) else "",
                "after 5 rounds": round(float(early), 3),
                "at the end": round(float(final), 3),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Trains all tasks, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(TASKS))
    only = parser.parse_args().only
    path = _harness.RESULTS / "baseline-cpu.json"
    before = json.loads(path.read_text()) if path.is_file() else {"rows": []}
    new = [row for name in only for row in rows_of(name)]
    # Rows that stay say themselves where and when they were measured.
    told = {name: before.get("environment", {}).get(name) for name in ("commit", "date", "device")}
    rows = [told | row for row in before["rows"] if row["task"] not in only] + new
    print(_harness.table(rows, list(new[0])))
    print(
        _harness.write(
            "baseline", rows, note="FedAvg beside every run, at its settings and around them"
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
