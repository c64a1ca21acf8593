"""What one of several processes tells the others, where they are played by a stand-in."""

import numpy as np
import pytest

from fljax.simulation.devices import processes


@pytest.fixture
def network(monkeypatch):
    """`network(first)`: what the first process sends comes, in its turn, whatever is sent here."""

    def of(first):
        sent = iter(first)
        monkeypatch.setattr(processes, "alone", lambda: False)
        monkeypatch.setattr(
            processes.multihost_utils, "broadcast_one_to_all", lambda mine: next(sent)
        )
        return sent

    return of


def test_arrays_of_the_first_process_come_bit_for_bit(network):
    theirs = {
        "a": np.array([-0.0, np.nan, 1.5], np.float32),
        "b": np.array([[7, -1]], np.int64),
        "c": np.array(True),
    }
    own = {name: np.zeros_like(leaf) for name, leaf in theirs.items()}
    network([np.frombuffer(b"".join(leaf.tobytes() for leaf in theirs.values()), np.uint8)])
    found = processes.from_first(own)
    for name, leaf in theirs.items():
        assert found[name].tobytes() == leaf.tobytes()
        assert (found[name].shape, found[name].dtype) == (leaf.shape, leaf.dtype)


@pytest.mark.parametrize("own", [{"longer": list(range(30))}, None])
def test_words_of_the_first_process_come_whatever_their_length(own, network):
    text = np.frombuffer('{"rounds": [1, 2.5], "ä": null}'.encode(), np.uint8)
    rest = network([np.int32(text.size), text])
    assert processes.words_from_first(own) == {"rounds": [1, 2.5], "ä": None}
    assert next(rest, None) is None


def test_what_any_process_says_is_true_in_all(monkeypatch):
    monkeypatch.setattr(processes, "alone", lambda: False)
    gathered = lambda flag: np.stack([flag, [False, True, False]])
    monkeypatch.setattr(processes.multihost_utils, "process_allgather", gathered)
    assert processes.either(np.array([True, False, False])).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("host:1", 2, None), "all given or none, got process_id=None"),
        (("host:1", 2, 2), "process_id < num_processes=2, got process_id=2"),
        (("host:1", 0, 0), "num_processes"),
    ],
)
def test_who_does_not_fit_joins_nobody(given, text, monkeypatch):
    joined = []
    monkeypatch.setattr(
        processes.jax.distributed, "initialize", lambda *given, **_: joined.append(given)
    )
    with pytest.raises(ValueError, match=text):
        processes.join(*given)
    assert not joined
    processes.join("host:1", 2, 1)
    assert joined == [("host:1", 2, 1)]


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (ValueError("nothing\nmore"), ValueError, "a cluster that JAX knows.*neither: nothing$"),
        (RuntimeError("late\nmore"), processes.PeerLostError, "2 processes at host:1 .*: late$"),
    ],
)
def test_a_network_that_does_not_come_about_is_one_line(raised, expected, text, monkeypatch):
    def initialize(*given, **how):
        raise raised

    monkeypatch.setattr(processes.jax.distributed, "initialize", initialize)
    with pytest.raises(expected, match=text):
        processes.join("host:1", 2, 0)


def test_a_process_that_fails_says_why_and_leaves_at_once(monkeypatch, capsys):
    codes = []
    monkeypatch.setattr(processes.os, "_exit", codes.append)
    for reason in (ValueError("two\n words"), KeyboardInterrupt("stopped"), MemoryError()):
        with processes.leaving_on_failure():
            raise reason
    assert codes == [2, 130, 2]
    said = capsys.readouterr().err.splitlines()
    assert said == ["fljax: error: two words", "fljax: stopped", "fljax: error: MemoryError"]
