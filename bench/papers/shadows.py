"""How long do 256 shadow models of the MLP take, and what do they tell?

    python -m bench.papers.shadows

The MLP that `fljax simulate` trains, on random halves of a pool of digits of which a fifth have
labels of chance, by Adam on minibatches: all models in one program, compile time apart, beside
torch's loop, one model after the other, which trains a few of them and is scaled. LiRA then tells
who the first model was trained on. Last, the command with as many shadow models by a scheme's own
rounds, from its start to its report. Seconds are the median of RUNS.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import data, models
from fljax.attacks import membership, metrics, shadow, trained
from fljax.cli import attack as command

NUM, POOL, STEPS, BATCH, RATE = 256, 1000, 300, 64, 1e-2
HIDDEN, WRONG, RUNS = 64, 0.2, 5
COMMAND = ["--attack", "lira", "--scheme", "dp_sgd", "--budgets", "4", "--delta", "1e-3"]


def pool() -> dict[str, np.ndarray]:
    """Digits, a fifth of them with labels of chance: models have to memorise."""
    digits, rng = data.load("digits").train, np.random.default_rng(0)
    x, y = digits["x"][:POOL], digits["y"][:POOL].copy()
    wrong = rng.random(POOL) < WRONG
    y[wrong] = rng.integers(0, 10, wrong.sum())
    return {"x": x, "y": y}


def timed(run: Callable[[], Any], runs: int) -> tuple[Any, list[float]]:
    """(What the last of so many runs gave, the seconds of each)."""
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        found = run()
        seconds.append(time.perf_counter() - began)
    return found, seconds


def ours(examples: dict[str, np.ndarray], num: int, runs: int) -> tuple[dict[str, Any], float]:
    """(The row of one program, the accuracy of models on their members)."""
    model = models.create("mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))

    def fresh(key: jax.Array) -> Any:
        return models.create("mlp", example_shape=(8, 8, 1), num_classes=10, key=key).params

    train = shadow.trainer(
        models.softmax_cross_entropy(model.apply),
        fresh,
        num_steps=STEPS,
        batch_size=BATCH,
        learning_rate=RATE,
    )
    # One model more than shadows, and not the complement of one of them: the target.
    included = shadow.halves(jax.random.key(1), num + 2, POOL)[1:]
    given = (examples, included, jax.random.split(jax.random.key(2), num + 1))
    began = time.perf_counter()
    program = jax.jit(train).lower(*given).compile()
    compiled = time.perf_counter()
    params, seconds = timed(lambda: jax.block_until_ready(program(*given)), runs)
    x, y = jnp.asarray(examples["x"]), jnp.asarray(examples["y"])
    scores = np.asarray(jax.jit(lambda p: shadow.confidences(model.apply, p, x, y))(params))
    members = np.asarray(included[0])
    found = membership.lira(scores[0], scores[1:], np.asarray(included[1:]))
    yes, no = found[members], found[~members]
    row = {
        "form": "one program",
        "models": num + 1,
        "compile_s": compiled - began,
        "seconds": statistics.median(seconds),
        "each": seconds,
        "auc": metrics.auc(yes, no),
        "rates": [trained.rate(yes, no, fpr)._asdict() for fpr in trained.FPRS],
    }
    # Confidence above 0 is a probability above one half: told right for sure.
    return row, float((scores > 0)[np.asarray(included)].mean())


def torchs(
    examples: dict[str, np.ndarray], num: int, share: int, runs: int
) -> tuple[dict[str, Any], float]:
    """The same by torch's loop: `share` models, scaled."""
    import torch

    torch.set_num_threads(_harness.cores())
    torch.manual_seed(0)
    x = torch.tensor(examples["x"].reshape(POOL, -1))
    y = torch.tensor(examples["y"].astype(np.int64))
    right = []

    def one() -> None:
        net = torch.nn.Sequential(
            torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)
        )
        by = torch.optim.Adam(net.parameters(), lr=RATE)
        members = torch.randperm(POOL)[: POOL // 2]
        for _ in range(STEPS):
            rows = members[torch.randint(len(members), (BATCH // 2,))]
            by.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            by.step()
        with torch.no_grad():
            odds = net(x[members]).softmax(1)[torch.arange(len(members)), y[members]]
        right.append(float((odds > 0.5).float().mean()))

    one()  # warms up
    _, seconds = timed(lambda: [one() for _ in range(share)], runs)
    scaled = [each / share * (num + 1) for each in seconds]
    row = {
        "form": f"torch's loop, {share} models, scaled",
        "models": num + 1,
        "seconds": statistics.median(scaled),
        "each": scaled,
    }
    return row, float(np.mean(right))


def commanded(num: int, runs: int) -> dict[str, Any]:
    """`fljax attack --attack lira` with so many shadow models, without noise and with it."""

    def once() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            where = pathlib.Path(folder) / "attack"
            flags = [*COMMAND, "--shadows", str(num), "--run-dir", str(where)]
            quiet = io.StringIO()
            with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                code = command.main(flags)
            if code:
                raise RuntimeError(f"fljax attack {' '.join(flags)} ended with {code}.")
            return json.loads((where / "attack.json").read_text())["rows"]

    (plain, noisy), seconds = timed(once, runs)
    return {
        "form": f"fljax attack {' '.join(COMMAND)} --shadows {num}",
        "models": 2 * (num + 1),
        "seconds": statistics.median(seconds),
        "each": seconds,
        "auc": plain["auc"],
        "rates": plain["rates"],
        "auc_with_noise": noisy["auc"],
    }


def _rate(rate: dict[str, float]) -> str:
    shares = (f"{100 * rate[name]:.0f}" for name in ("tpr", "low", "high"))
    return "{} % ({} to {})".format(*shares)


def table(rows: _tables.Rows) -> str:
    """Seconds, and what LiRA tells."""
    body = [
        [
            f"`{row['form']}`" if "--" in row["form"] else row["form"],
            str(row["models"]),
            f"{row['seconds']:.0f}" + (f" + {row['compile_s']:.0f}" if "compile_s" in row else ""),
            f"{row['auc']:.2f}" if "auc" in row else "-",
            _rate(row["rates"][1]) if "rates" in row else "-",
        ]
        for row in rows
    ]
    head = ["how", "models", "seconds + compilation", "LiRA's AUC without noise", "TPR at 1 % FPR"]
    return _tables.markdown(head, body)


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 models, no JSON: does it run?")
    options = parser.parse_args()
    num, runs, examples = 8 if options.quick else NUM, 1 if options.quick else RUNS, pool()
    row, learnt = ours(examples, num, runs)
    rows = [row]
    if importlib.util.find_spec("torch") is not None:
        row, theirs = torchs(examples, num, 1 if options.quick else 16, runs)
        rows.append(row)
        if abs(theirs - learnt) > 0.1:
            raise AssertionError(
                f"Models are not alike: {learnt:.2f} of members told, {theirs:.2f}."
            )
    rows.append(commanded(num, runs))
    print(table(rows))
    if not options.quick:
        print(
            _harness.write(
                "shadows",
                rows,
                note=f"{NUM} shadow models and a target, seconds the median of {RUNS}",
            )
        )


if __name__ == "__main__":
    main()
