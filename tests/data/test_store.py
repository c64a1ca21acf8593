"""Clients on disk: what is read is what was written, or an error that names who is damaged."""

import hashlib
import json
import zlib

import numpy as np
import pytest

from fljax.data import store
from fljax.errors import CorruptDataError


def clients(count=7, seed=0):
    rng = np.random.default_rng(seed)
    for client in range(count):
        size = [3, 0, 5][client % 3]
        yield {
            "x": rng.normal(size=(size, 2, 3)).astype(np.float32),
            "y": rng.integers(0, 9, size).astype(np.int32),
        }


@pytest.fixture
def folder(tmp_path):
    store.write(tmp_path / "clients", clients())
    return tmp_path / "clients"


def test_a_cohort_read_from_disk_is_what_was_written(folder):
    opened = store.open_store(folder)
    assert opened.num_clients == 7 and opened.most_examples == 5
    ids = np.array([4, -1, 2, 0])
    examples, indices, skipped = store.read(opened, ids, 6)
    assert indices.shape == (4, 6) and indices.dtype == np.int32 and skipped == []
    written = list(clients())
    for place, client in enumerate(ids):
        rows = indices[place][indices[place] >= 0]
        expected = written[client] if client >= 0 else {"x": np.zeros((0, 2, 3)), "y": np.zeros(0)}
        for name, array in expected.items():
            np.testing.assert_array_equal(examples[name][rows], array)
        assert (indices[place][rows.size :] == -1).all()
    assert not isinstance(examples["x"], np.memmap)


def sha256(client):
    return hashlib.sha256(client["x"].tobytes() + client["y"].tobytes()).digest()[:16]


def test_each_client_has_a_digest_of_its_bytes(folder):
    opened = store.open_store(folder)
    assert [digest.tobytes() for digest in opened.digests] == [
        sha256(client) for client in clients()
    ]


def test_bytes_chosen_to_meet_a_checksum_are_found(folder):
    """CRC-32 is linear: flipping the bits of its own polynomial moves no checksum."""
    opened, path = store.open_store(folder), folder / "x.bin"
    start, size = 24 * int(opened.offsets[2]), 24 * 5
    data = bytearray(path.read_bytes())
    before = bytes(data[start : start + size])
    # In the order in which CRC-32 reads bits: the lowest of each byte first.
    pattern = int(f"{0x104C11DB7:033b}"[::-1], 2).to_bytes(5, "little")
    for at, byte in enumerate(pattern):
        data[start + at] ^= byte
    after = bytes(data[start : start + size])
    assert after != before and zlib.crc32(after) == zlib.crc32(before)
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match="client 2 "):
        store.read(store.open_store(folder), np.array([2]), 5)
    assert store.damaged(store.open_store(folder)) == [2]


def test_a_folder_of_an_earlier_format_is_refused_with_what_to_do(folder):
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | {"format": 1}))
    (folder / "digests.npy").unlink()
    with pytest.raises(CorruptDataError, match="of format 2, got 1: write the clients anew"):
        store.open_store(folder)


def test_opening_reads_no_examples(folder):
    opened = store.open_store(folder)
    assert not any(
        field.flags.owndata or field.flags.writeable for field in opened.fields.values()
    )  # maps of files
    with pytest.raises(ValueError, match="read-only"):
        opened.fields["x"][0] = 1


@pytest.mark.parametrize("field", ["x", "y"])
def test_one_flipped_bit_is_found_and_the_client_named(folder, field):
    path = folder / f"{field}.bin"
    data = bytearray(path.read_bytes())
    opened = store.open_store(folder)
    start = int(opened.offsets[2]) * (24 if field == "x" else 4)  # client 2's first byte
    data[start] ^= 16
    path.write_bytes(data)
    opened = store.open_store(folder)
    with pytest.raises(CorruptDataError, match="client 2 "):
        store.read(opened, np.array([0, 2]), 5)
    examples, indices, skipped = store.read(opened, np.array([0, 2, 3]), 5, skip_corrupt=True)
    assert skipped == [2] and (indices[1] == -1).all() and (indices[[0, 2], :3] >= 0).all()
    assert not examples["x"][5:10].any()  # nothing of the damaged client is handed on
    store.read(opened, np.array([0, 3, 6]), 5)  # others are as good as before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_client_with_numbers_that_are_not_finite_is_named(tmp_path, value):
    held = list(clients())
    held[2]["x"][4, 1, 2] = value
    with pytest.raises(ValueError, match="x of client 2 to be finite"):
        store.write(tmp_path / "clients", held)
    # Another program's folder may hold it, digests and all.
    opened = store.write(tmp_path / "clients", clients())
    path = tmp_path / "clients" / "x.bin"
    digests = opened.digests.copy()
    digests[2] = np.frombuffer(sha256(held[2]), np.uint8)
    data, start = bytearray(path.read_bytes()), 24 * int(opened.offsets[2])
    data[start : start + 120] = held[2]["x"].tobytes()
    path.write_bytes(data)
    opened = store.open_store(tmp_path / "clients")._replace(digests=digests)
    with pytest.raises(CorruptDataError, match=r"x of client 2 .* to be finite"):
        store.read(opened, np.array([0, 2]), 5)
    store.read(opened, np.array([0, 3]), 5)
    # Skipping is for damage, which does not depend on data: one bad record must not take its
    # client's others away.
    _, indices, skipped = store.read(opened, np.array([0, 2, 3]), 5, skip_corrupt=True)
    assert skipped == [] and (indices[1] >= 0).all()


@pytest.mark.parametrize("name", ["x.bin", "offsets.npy", "digests.npy", "index.json"])
@pytest.mark.parametrize("damage", ["truncate", "remove", "foreign"])
def test_truncated_missing_and_foreign_files_are_named(folder, name, damage):
    path = folder / name
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:-3])
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(b"not at all" * 50)
    with pytest.raises(CorruptDataError) as error:
        store.open_store(folder)
    assert "\n" not in str(error.value) and (
        name in str(error.value) or str(folder) in str(error.value)
    )


def test_a_writer_that_fails_leaves_no_store(tmp_path):
    def failing():
        yield from clients(2)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        store.write(tmp_path / "clients", failing())
    assert not (tmp_path / "clients").exists()
    assert (
        store.write(tmp_path / "clients", clients(2)).num_clients == 2
    )  # and does not stand in the way


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "none"),
        ([{"x": np.zeros((2, 3))}, {"x": np.zeros((2, 4))}], "client 1"),
        ([{"x": np.zeros((2, 3))}, {"y": np.zeros((2, 3))}], "client 1"),
        ([{"x": np.zeros((2, 3)), "y": np.zeros(3)}], "client 0"),
    ],
    ids=["nobody", "other shape", "other field", "unequal lengths"],
)
def test_clients_that_do_not_go_together_are_refused(tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        store.write(tmp_path / "clients", bad)


def test_bad_requests_are_refused(folder):
    opened = store.open_store(folder)
    for ids, capacity, message in (
        ([7], 5, "7"),
        ([-2], 5, "-2"),
        ([2], 4, "capacity=4"),
        ([2], 0, "capacity=0"),
    ):
        with pytest.raises(ValueError, match=message):
            store.read(opened, np.array(ids), capacity)
    with pytest.raises(ValueError, match="does not exist yet"):
        store.write(folder, clients())


@pytest.mark.parametrize("dtype", [object, "S3", "datetime64[s]", np.complex64], ids=str)
def test_types_whose_bytes_mean_nothing_elsewhere_are_refused(tmp_path, dtype):
    with pytest.raises(ValueError, match="got x of"):
        store.write(tmp_path / "clients", [{"x": np.zeros(3).astype(dtype)}])
    assert not (tmp_path / "clients").exists()
