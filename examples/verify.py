"""A run whose record anybody can check: its secret kept elsewhere, its head published, and what an
editor of its folder is told.

    python examples/verify.py
"""

import json
import pathlib
import shutil
import tempfile

import fljax
from fljax.simulation import secret_file, verify

NUM_CLIENTS, NUM_ROUNDS = 200, 10


def say(what: str, run_dir: pathlib.Path, head: str | None = None) -> verify.Verified:
    """Holds a folder against its hash chain, and prints what does not fit."""
    found = verify.run(run_dir, head=head)
    wrong = [f"{check.what}: {check.found}" for check in found.checks if not check.fits]
    print(f"{what}: {'; '.join(wrong) or f'{len(found.checks)} checks fit'}")
    return found


def main() -> None:
    """Trains, checks the folder, edits copies of it, and checks these."""
    with tempfile.TemporaryDirectory() as name:
        where = pathlib.Path(name)
        kept = secret_file.Kept(where / "run.key")  # with a passphrase it would be encrypted
        result = fljax.simulate(
            "dp_fedavg",
            run_dir=where / "run",
            secret=kept.file,
            num_clients=NUM_CLIENTS,
            num_rounds=NUM_ROUNDS,
            model="softmax",
            target_epsilon=4.0,
            target_delta=1e-3,
            baseline=False,
        )
        print(
            f"epsilon {result.epsilon:.3f} at delta {result.delta:g}, accuracy "
            f"{result.accuracy:.1%}"
        )
        head = say("as the run left it", where / "run").head
        print(f"publish this with the model: {head}")
        print(f"not shown, for one: {verify.run(where / 'run').not_shown[0]}")

        edited = shutil.copytree(where / "run", where / "edited")
        claim = json.loads((edited / "privacy.json").read_text())
        (edited / "privacy.json").write_text(json.dumps(claim | {"epsilon": 0.1}))
        say("a smaller epsilon claimed", edited)

        again = shutil.copytree(where / "run", where / "again")
        lines = (again / "metrics.jsonl").read_text().splitlines(keepends=True)
        (again / "metrics.jsonl").write_text("".join(lines[:-1]))
        say("a round left out", again)

        # Who has the data and the secret can look at more: that they are those of the run.
        found = verify.run(where / "run", data=True, secret=kept)
        print(f"with data and secret: {'fits' if found.fits else 'does not fit'}")

        other = fljax.simulate(
            "dp_fedavg",
            run_dir=where / "other",
            num_clients=NUM_CLIENTS,
            num_rounds=NUM_ROUNDS,
            model="softmax",
            target_epsilon=4.0,
            target_delta=1e-3,
            baseline=False,
        )
        say("a whole run made anew", other.run_dir)
        say("the same, against the published head", other.run_dir, head)


if __name__ == "__main__":
    main()
