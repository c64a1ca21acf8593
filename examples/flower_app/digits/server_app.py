"""The server: rounds of the deployment, a ledger, and the models that are released."""

import pathlib
import time

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from digits import task
from fljax.interop import flower
from fljax.simulation import seeds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs until the last round, or until the budget of epsilon 8 is spent."""
    config = context.run_config
    nodes = [int(node) for node in str(config["nodes"]).split()]
    while len(nodes) < task.NUM_CLIENTS:
        time.sleep(1)
        nodes = sorted(grid.get_node_ids())
    folder = pathlib.Path(str(config["folder"])) if config["folder"] else None
    seed = int(config["seed"])
    strategy = flower.Strategy(
        task.DEPLOYMENT,
        nodes={node: number for number, node in enumerate(nodes)},
        target_epsilon=8.0,
        delta=task.DELTA,
        ledger_file=folder / "ledger.json" if folder else None,
        key=None if seed < 0 else seeds.keys(seed, "threefry")[1],  # as of `fljax.simulate`
    )

    def keep(rounds: int, arrays: ArrayRecord) -> None:
        if folder is not None:
            np.savez(folder / f"model{rounds}.npz", **flower.from_record(arrays, task.initial()))

    strategy.start(
        grid,
        flower.to_record(task.initial()),
        timeout=float(config["timeout"]),
        evaluate_fn=keep,
    )
    spent = f"epsilon {strategy.epsilon():.2f} at delta {task.DELTA:g}"
    print(f"{strategy.rounds_begun} rounds booked: {spent}")
