"""Other things to learn than classes: numbers, several yes or no, and each next letter of a text.

    python examples/tasks.py

Each is read from a table that a user could have written, by one setting, `task`.
"""

import csv
import functools
import pathlib
import tempfile

import numpy as np

import fljax

NUM_CLIENTS = 300
NUM_ROWS = 3000
NUM_ROUNDS = 20
TOKEN_ROUNDS = 10
CELLS = (16,)
TARGET_EPSILON = 8.0
TARGET_DELTA = 1e-3
LINES = ("the ward is quiet", "the bed is free", "a note is late", "the note is on the bed")


def write(folder: pathlib.Path) -> pathlib.Path:
    """A table of visits: what was measured, minutes that they took, two findings, and a note."""
    rng = np.random.default_rng(0)
    path = folder / "visits.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["age", "pulse", "minutes", "fever", "pain", "note", "nurse"])
        for row in range(NUM_ROWS):
            age, pulse = rng.normal(size=2)
            minutes = 1.5 + 0.5 * age - 0.8 * pulse + 0.1 * rng.normal()
            findings = [int(pulse > 0.3), int(age - pulse > 0)]
            note = LINES[rng.integers(len(LINES))]
            table.writerow([age, pulse, minutes, *findings, note, f"nurse {row % NUM_CLIENTS}"])
    return path


def kept(path: pathlib.Path, *columns: str) -> str:
    """The table with these columns alone, as data by name: all but targets and ids are features."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    short = path.with_name(f"{columns[0]}.csv")
    with short.open("w", newline="") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    return f"csv:{short}"


def main() -> None:
    """Trains three models and prints what each reaches."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        path = write(folder)
        simulate = functools.partial(
            fljax.simulate,
            clients="nurse",
            sampling_prob=0.5,
            target_epsilon=TARGET_EPSILON,
            target_delta=TARGET_DELTA,
            baseline=False,
        )
        ended = simulate(
            data=kept(path, "minutes", "age", "pulse", "nurse"),
            task="regression",
            label_column="minutes",
            model="softmax",
            num_rounds=NUM_ROUNDS,
            run_dir=folder / "minutes",
        )
        print(
            f"minutes: off by {ended.metrics['absolute_error']:.2f} at epsilon {ended.epsilon:.2f}"
        )
        ended = simulate(
            data=kept(path, "fever", "pain", "age", "pulse", "nurse"),
            task="multi_label",
            label_column="fever,pain",
            num_rounds=NUM_ROUNDS,
            run_dir=folder / "findings",
        )
        print(
            f"findings: accuracy {ended.accuracy:.1%}, F1 {ended.metrics['f1']:.3f} at epsilon "
            f"{ended.epsilon:.2f}"
        )
        ended = simulate(
            data=kept(path, "note", "nurse"),
            task="tokens",
            label_column="note",
            sequence_length=24,
            cells=CELLS,
            num_rounds=TOKEN_ROUNDS,
            run_dir=folder / "notes",
        )
        print(
            f"notes: perplexity {ended.metrics['perplexity']:.1f} of 257 symbols at epsilon "
            f"{ended.epsilon:.2f}, delta {ended.delta:g}"
        )


if __name__ == "__main__":
    main()
