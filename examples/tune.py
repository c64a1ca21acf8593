"""A search for hyper-parameters that is paid for: the best of a random number of private runs.

python examples/tune.py
"""

import json
import pathlib
import tempfile

from fljax import cli

NUM_CLIENTS, NUM_ROUNDS = 200, 20
GRID = """
[search]
mean = 4            # tries in the mean
shape = 1           # of their law: geometric
score = "accuracy"  # on held-out examples, which are public

[scheme]
l2_clip_norm = [0.1, 0.3, 1.0]
local_learning_rate = [0.05, 0.5]
"""


def main() -> None:
    """Searches, and prints what the best try reaches and what all of them cost."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "grid.toml").write_text(GRID)
        asked = ["simulate", "--tune", folder / "grid.toml", "--run-dir", folder / "run"]
        asked += ["--num-clients", NUM_CLIENTS, "--num-rounds", NUM_ROUNDS, "--model", "softmax"]
        asked += ["--seed", 0, "--target-epsilon", 4, "--quiet"]
        cli.main(list(map(str, asked)))
        claim = json.loads((folder / "run" / "privacy.json").read_text())
    print(claim["statement"]["guarantee"])
    one, all_of_them = claim["search"]["epsilon_of_one_try"], claim["epsilon"]
    print(f"one try: epsilon {one:.3f}; the search: epsilon {all_of_them:.3f}")


if __name__ == "__main__":
    main()
