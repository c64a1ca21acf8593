import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.upload import key_agreement

CLIENT = """
import socket, sys
import jax.numpy as jnp, numpy as np
from fljax.upload import key_agreement, pair_noise
client, port = int(sys.argv[1]), int(sys.argv[2])
agreement = key_agreement.KeyAgreement(client)
with socket.create_connection(("127.0.0.1", port), timeout=60) as server:
    server.sendall(bytes([client]) + agreement.public_key)
    peer_key = server.makefile("rb").read(32)
    agreement.agree(1 - client, peer_key)
    for round_index in (0, 3):
        noise = pair_noise.client_noise(
            agreement.round_keys(round_index, [1 - client]), agreement.own_key(round_index), client, [1 - client],
            jnp.zeros(1000), own_stddev=0.0, pair_stddev=2.0)
        server.sendall(np.asarray(noise).tobytes())
"""


def test_two_processes_draw_noise_that_cancels_and_the_server_relays_public_keys_only():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        port = str(listener.getsockname()[1])
        environment = {"PYTHONPATH": ":".join(path for path in sys.path if path), "JAX_PLATFORMS": "cpu", "PATH": ""}
        processes = [
            subprocess.Popen([sys.executable, "-c", CLIENT, str(i), port], env=environment, stderr=subprocess.PIPE)
            for i in (0, 1)
        ]
        try:
            links, keys = {}, {}
            for _ in processes:
                link, _ = listener.accept()
                link.settimeout(60)
                (client,) = link.recv(1)
                links[client], keys[client] = link, link.makefile("rb").read(32)
            for client, link in links.items():
                link.sendall(keys[1 - client])
            found = {i: np.frombuffer(link.makefile("rb").read(8000), np.float32) for i, link in links.items()}
            for link in links.values():
                link.close()
        finally:
            errors = [process.communicate(timeout=60)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert found[0].shape == (2000,) and not np.any(found[0] + found[1])
    # Both rounds have noise of stddev 2, and not the same.
    first, second = found[0][:1000], found[0][1000:]
    assert abs(np.corrcoef(first, second)[0, 1]) <= 5 / np.sqrt(1000)
    assert abs(np.mean(np.square(found[0])) / 4 - 1) <= 5 * np.sqrt(2 / 2000)


def data(keys):
    return np.asarray(jax.random.key_data(keys))


@pytest.fixture
def three():
    clients = [key_agreement.KeyAgreement(i) for i in (4, 9, 2)]
    for one in clients:
        for other in clients:
            if one is not other:
                one.agree(other.client, other.public_key)
    return clients


def test_keys_are_equal_at_both_ends_and_differ_by_pair_round_and_purpose(three):
    first, second, third = three
    mine = data(first.round_keys(5, [2, 9]))
    np.testing.assert_array_equal(mine[1], data(second.round_keys(5, [2, 4]))[1])
    np.testing.assert_array_equal(mine[0], data(third.round_keys(5, [4, 9]))[0])
    seen = [
        *mine,
        *data(first.round_keys(6, [2, 9])),
        data(first.own_key(5)),
        data(first.own_key(6)),
        data(second.own_key(5)),
    ]
    assert len(np.unique(seen, axis=0)) == len(seen)


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
def test_a_round_number_is_used_once(simulated, three, key):
    agreement = key_agreement.SimulatedKeyAgreement(4, key) if simulated else three[0]
    agreement.round_keys(3, [2, 9])
    agreement.own_key(3)
    for again in (3, 2):
        with pytest.raises(ValueError, match=f"round_index >= 4, got round_index={again}"):
            agreement.round_keys(again, [2, 9])
        with pytest.raises(ValueError, match=f"round_index >= 4, got round_index={again}"):
            agreement.own_key(again)
    agreement.round_keys(4, [2])


def test_bad_peers_are_named(three, monkeypatch):
    first = three[0]
    with pytest.raises(ValueError, match=r"each once, got peer=9"):
        first.agree(9, three[1].public_key)
    with pytest.raises(ValueError, match=r"other than client=4"):
        first.agree(4, first.public_key)
    with pytest.raises(ValueError, match="public_key of peer=7 to be an X25519 key"):
        first.agree(7, b"short")
    with pytest.raises(ValueError, match="public_key of peer=7 to be an X25519 key"):
        first.agree(7, bytes(32))  # the point that makes every shared secret zero
    with pytest.raises(ValueError, match=r"peers among \[2, 9\], which agreed on keys, got \[7\]"):
        first.round_keys(0, [2, 7])
    first.round_keys(0, [2])  # a refused call uses no round
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(ImportError, match=r"fljax\[crypto\]"):
        key_agreement.KeyAgreement(0)


def test_keys_are_typed_threefry_keys(three):
    assert three[0].round_keys(0, [2, 9]).dtype == jax.random.key(0, impl="threefry2x32").dtype
    assert three[0].round_keys(1, []).shape == (0,)
    assert jnp.issubdtype(three[0].own_key(0).dtype, jax.dtypes.prng_key)
