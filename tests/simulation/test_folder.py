"""The run folder: one writer, whole files, lines that a checkpoint knows of."""

import contextlib
import errno
import resource

import pytest

from fljax.simulation.record import folder


def test_two_writers_are_one_too_many(tmp_path):
    with (
        folder.locked(tmp_path),
        pytest.raises(ValueError, match="another process"),
        folder.locked(tmp_path),
    ):
        pass
    with folder.locked(tmp_path):
        pass


def test_a_folder_in_use_is_not_started_in(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="--resume"):
        folder.new(tmp_path)
    with pytest.raises(ValueError, match="a file"):
        folder.new(tmp_path / "notes.txt")
    assert folder.new(tmp_path / "a" / "b").is_dir()


def test_free_names_are_numbered(tmp_path):
    names = [folder.next_free(tmp_path / "runs", "digits").name for _ in range(3)]
    assert names == ["digits-001", "digits-002", "digits-003"]


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("disk:/data/mine-dp_fedavg", "disk-data-mine-dp_fedavg"),
        ("idx:../x y/Z-audit", "idx-..-x-y-z-audit"),
        ("cifar:.\\caf\u00e9\n-x", "cifar-.-caf-x"),
        ("../..", "run"),
        (".hidden", "hidden"),
        ("", "run"),
        ("disk:/" + 300 * "a", 100 * "a"),
    ],
)
def test_whatever_is_in_a_name_a_folder_beside_the_others_is_made(tmp_path, stem, name):
    made = folder.next_free(tmp_path / "runs", stem)
    assert made == tmp_path / "runs" / f"{name}-001" and made.is_dir()


def test_metrics_are_cut_to_what_the_checkpoint_knows(tmp_path):
    with contextlib.closing(folder.Metrics(tmp_path, 0)) as metrics:
        metrics.append('{"round": 1}')
        known = metrics.length
        metrics.append('{"round": 2}')
    with (tmp_path / folder.METRICS).open("a") as file:
        file.write('{"roun')  # what a kill leaves
    with contextlib.closing(folder.Metrics(tmp_path, known)) as metrics:
        metrics.append('{"round": 2}')
    assert folder.read_metrics(tmp_path) == [{"round": 1}, {"round": 2}]
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        folder.Metrics(tmp_path, 1000)


def test_metrics_that_are_not_json_are_named(tmp_path):
    (tmp_path / folder.METRICS).write_text('{"round": 1}\nnonsense\n')
    with pytest.raises(ValueError, match="line 2"):
        folder.read_metrics(tmp_path)


def test_a_file_over_the_limit_leaves_the_old_one(tmp_path):
    path = tmp_path / "privacy.json"
    folder.write_atomically(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(folder.DiskFullError, match=r"privacy\.json"):
            folder.write_atomically(path, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == [
        "privacy.json"
    ]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "x"),
        OSError(errno.EDQUOT, "x"),
        ValueError(
            'RESOURCE_EXHAUSTED: Error writing "a/b": [OS error 28: ENOSPC No space left on device]'
        ),
        RuntimeError("x"),
    ],
    ids=str,
)
def test_a_full_disk_is_recognised_by_errno_or_words_and_nothing_else_is(tmp_path, error):
    expected = RuntimeError if isinstance(error, RuntimeError) else folder.DiskFullError
    with pytest.raises(expected), folder.disk_full_in_one_line(tmp_path):
        raise error
