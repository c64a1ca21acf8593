"""What can go wrong around a run: it ends by an error that says what, and goes on to the same bits
of the same noise.
"""

import errno
import os
import shutil

import numpy as np
import pytest

from fljax.simulation import run, verify
from fljax.simulation.record import chain, checkpoint, folder, provenance
from fljax.simulation.report import run_page
from tests.simulation import _killed
from tests.simulation.test_seeds import Watch
from tests.simulation.test_verify import begun, config

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def reference(tmp_path_factory, compiled_once):
    return begun(tmp_path_factory.mktemp("faults") / "run")


def bits(run_dir):
    """All that a run writes and nothing of when it did."""
    names = (folder.METRICS, folder.PRIVACY, folder.CONFIG, folder.FINGERPRINT)
    heads = [link.head for link in chain.read(run_dir) if link.kind != "closed"]
    return [(run_dir / name).read_bytes() for name in names], heads


def goes_on_to_the_same_bits(run_dir, reference):
    run_page.write(run.resume(run_dir, Watch()))
    assert bits(run_dir) == bits(reference)
    found = verify.run(run_dir)
    assert [check for check in found.checks if not check.fits] == []


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Each thing that a run writes, and after how many calls there is no room for it.
WRITES = {
    "a line of the metrics": (folder.Metrics, "append", (0, 2)),
    "a link of the chain": (chain.Chain, "_append", (0, 1, 4, 6)),
    "a checkpoint": (checkpoint.Checkpoints, "save", (0, 1)),
    "a file": (folder, "write_atomically", (0, 1, 2, 3, 4)),
}
CASES = [(name, after) for name, (_, _, times) in WRITES.items() for after in times]


@pytest.mark.release(
    reason="one more place",
    but=[
        "a line of the metrics-2",
        "a link of the chain-4",
        "a checkpoint-0",
        "a file-0",
        "a file-4",
    ],
)
@pytest.mark.slow(reason="a run that stops and goes on", but=["a file-2"])
@pytest.mark.parametrize(("name", "after"), CASES)
def test_a_disk_that_is_full_anywhere_loses_nothing(name, after, reference, tmp_path, monkeypatch):
    run_dir = _killed.of_one_secret(reference, tmp_path / "run")
    owner, method, _ = WRITES[name]
    usual, calls = getattr(owner, method), []

    def fails(*args, **options):
        calls.append(args)
        if len(calls) > after:
            with folder.disk_full_in_one_line(run_dir):
                full()
        return usual(*args, **options)

    monkeypatch.setattr(owner, method, fails)
    with pytest.raises(folder.DiskFullError, match="full disk or file size limit"):
        run.resume(run_dir, Watch())
    monkeypatch.undo()
    goes_on_to_the_same_bits(run_dir, reference)


@pytest.mark.slow(reason="a whole run")
@pytest.mark.parametrize("at", [1, pytest.param(3, marks=pytest.mark.slow(reason="one more run"))])
def test_a_folder_that_was_renamed_goes_on_to_the_same_bits(at, reference, tmp_path):
    run_dir = _killed.of_one_secret(reference, tmp_path / "run")
    with pytest.raises(RuntimeError, match="killed"):
        run.resume(run_dir, Watch(at))
    goes_on_to_the_same_bits(run_dir.rename(tmp_path / "another name"), reference)


@pytest.mark.slow(reason="a whole run")
def test_a_clock_that_goes_back_changes_no_bit(reference, tmp_path, monkeypatch):
    run_dir, years = _killed.of_one_secret(reference, tmp_path / "run"), iter(range(2030, 1990, -1))
    monkeypatch.setattr(provenance, "_now", lambda: f"{next(years)}-01-01T00:00:00+00:00")
    with pytest.raises(RuntimeError, match="killed"):
        run.resume(run_dir, Watch(3))
    goes_on_to_the_same_bits(run_dir, reference)
    (session,) = provenance.sessions(run_dir)
    assert session["ended"] < session["began"] and session["wall_s"] >= 0


def test_a_second_process_is_refused_by_name_and_changes_nothing(reference, tmp_path):
    run_dir = shutil.copytree(reference, tmp_path / "run")
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with folder.locked(run_dir), pytest.raises(ValueError, match="another process writes"):
        run.resume(run_dir, Watch())
    assert before == {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


def test_a_file_system_without_a_rename_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / folder.PRIVACY
    folder.write_atomically(path, "old")

    def refuses(self, target):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(target))

    monkeypatch.setattr(type(path), "replace", refuses)
    with pytest.raises(OSError, match=r"not supported.*privacy\.json"):
        folder.write_atomically(path, "new")
    assert path.read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow(reason="a run that is killed four times")
def test_a_round_that_is_taken_again_draws_the_noise_that_it_drew(reference, tmp_path):
    """A kill after each round: what each round says is what it said before."""
    run_dir = _killed.of_one_secret(reference, tmp_path / "run")
    told = {}

    class Notes(Watch):
        def round(self, record):
            told.setdefault(record["round"], []).append(record)
            super().round(record)

    for at in (1, 2, 3, 4):
        with pytest.raises(RuntimeError, match="killed"):
            run.resume(run_dir, Notes(at))
    goes_on_to_the_same_bits(run_dir, reference)
    assert sorted(told) == [1, 2, 3, 4] and len(told[1]) > 1
    assert all(record == records[0] for records in told.values() for record in records)


def test_data_that_are_not_finite_are_refused_before_a_round():
    """An update that is not finite adds zero: tests/schemes/test_central_noise.py."""
    from fljax import data

    original = data.load

    def load(name):
        dataset = original(name)
        dataset.train["x"] = np.where(np.arange(len(dataset.train["x"])) < 3, np.nan, 1.0)[
            :, None, None, None
        ] * np.asarray(dataset.train["x"], np.float32)
        return dataset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", load)
        with pytest.raises(ValueError, match=r"finite|NaN|nan"):
            run.prepare(config())
