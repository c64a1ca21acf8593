"""After training: more rounds of the same run, its model used and written, and a run that begins
with it.

    python examples/after_training.py
"""

import functools
import pathlib
import tempfile

import numpy as np

import fljax
from fljax.simulation import trained

NUM_CLIENTS, NUM_ROUNDS, MORE_ROUNDS = 200, 10, 5


def main() -> None:
    """Trains, goes on, uses the model, and begins another run with it."""
    test = fljax.data.load("digits").test
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        simulate = functools.partial(
            fljax.simulate,
            "dp_fedavg",
            num_clients=NUM_CLIENTS,
            num_rounds=NUM_ROUNDS,
            model="softmax",
            noise_multiplier=2.0,  # leaves a part of the budget for later
            target_epsilon=4.0,
            target_delta=1e-3,
            baseline=False,
            seed=0,
        )
        first = simulate(run_dir=folder / "first")
        more = simulate(run_dir=folder / "first", more_rounds=MORE_ROUNDS)
        for run in (first, more):
            print(
                f"{run.rounds} rounds: epsilon {run.epsilon:.3f} at delta {run.delta:g}, "
                f"accuracy {run.accuracy:.1%}"
            )
        found = trained.load(folder / "first")  # needs neither the data nor this program
        said = trained.outputs(found, test["x"]).argmax(-1)
        print(f"loaded: accuracy {np.mean(said == test['y']):.1%}")
        claim = trained.export(found, "npz", folder / "model.npz")
        print(f"written: {sorted(np.load(folder / 'model.npz'))}, with {claim.name}")
        second = simulate(run_dir=folder / "second", init=str(folder / "first"))
        print(f"begun with it: {second.statement[second.statement.index('Whose data') :]}")


if __name__ == "__main__":
    main()
