import os
import pathlib
import socket
import stat
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax.upload import key_agreement
from tests._environment import COMPILING

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
            agreement.round_keys(round_index, [1 - client]), agreement.own_key(round_index),
            client, [1 - client],
            jnp.zeros(1000), own_stddev=0.0, pair_stddev=2.0)
        server.sendall(np.asarray(noise).tobytes())
"""


@pytest.mark.slow(reason="two processes of their own")
def test_two_processes_draw_noise_that_cancels_and_the_server_relays_public_keys_only():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        port = str(listener.getsockname()[1])
        environment = COMPILING | {
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            "JAX_PLATFORMS": "cpu",
            "PATH": "",
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", CLIENT, str(i), port],
                env=environment,
                stderr=subprocess.PIPE,
            )
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
            found = {
                i: np.frombuffer(link.makefile("rb").read(8000), np.float32)
                for i, link in links.items()
            }
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


P = 2**255 - 19
SMALL_ORDER = (
    325606250916557431795983626356110631294008115727848805560023387167927233504  # of order 8
)


def plus_small_point(public_key):
    """The u-coordinate of Q + T, T of order 8: another public key whose X25519 secrets are those of
    Q.
    """
    a, (x1, x2) = 486662, (int.from_bytes(public_key, "little"), SMALL_ORDER)

    def root(x):
        square = (x**3 + a * x**2 + x) % P
        y = pow(square, (P + 3) // 8, P)
        y = y if y * y % P == square else y * pow(2, (P - 1) // 4, P) % P
        return y if y * y % P == square else None

    y1, y2 = root(x1), root(x2)
    slope = (y2 - y1) * pow(x2 - x1, -1, P) % P
    return ((slope**2 - a - x1 - x2) % P).to_bytes(32, "little")


@pytest.mark.parametrize("same", ["bytes", "other_bytes", "other_point"])
def test_one_key_is_no_pair_with_itself_and_not_that_of_two_peers(three, same):
    first, second, _ = three

    def again(key):
        if same == "other_point":
            return plus_small_point(key)
        return (
            key if same == "bytes" else key[:31] + bytes([key[31] | 0x80])
        )  # the bit that X25519 ignores

    with pytest.raises(
        ValueError, match=r"public_key of peer=7 to be the peer's, got that of client=4 itself"
    ):
        first.agree(7, again(first.public_key))
    with pytest.raises(
        ValueError, match=r"of its own for each peer, got that of peer=9 for peer=7 too"
    ):
        first.agree(7, again(second.public_key))
    with pytest.raises(ValueError, match=r"peers among \[2, 9\]"):
        first.round_keys(0, [7])


@pytest.mark.parametrize("public_key", ["ab" * 16, None, 5, np.zeros(32)], ids=str)
def test_a_public_key_that_is_no_bytes_is_named(public_key):
    with pytest.raises(ValueError, match="public_key of peer=7 to be an X25519 key"):
        key_agreement.KeyAgreement(0).agree(7, public_key)


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
def test_a_pair_has_two_clients_and_its_key_goes_out_once(simulated, three, key):
    agreement = key_agreement.SimulatedKeyAgreement(4, key) if simulated else three[0]
    for peers in ([2, 2], [4]):
        with pytest.raises(ValueError, match=r"Expected peers .*, got "):
            agreement.round_keys(0, peers)
    assert agreement.round_keys(0, []).shape == (0,)


@pytest.mark.parametrize("passphrase", [None, "long words", b"\xff\x00"], ids=str)
def test_a_client_that_stops_goes_on_from_its_file(three, tmp_path, passphrase):
    first, second, _ = three
    path = tmp_path / "keys.pem"
    before = os.umask(0)
    try:
        first.save(path, passphrase=passphrase)
        modes = [stat.S_IMODE(path.stat().st_mode)]
        first.round_keys(0, [2])
        first.own_key(1)  # both calls are in the file without another save
        modes.append(stat.S_IMODE(path.stat().st_mode))
    finally:
        os.umask(before)
    assert modes == [0o600] * 2
    assert [file.name for file in tmp_path.iterdir()] == ["keys.pem"]
    again = key_agreement.KeyAgreement.load(path, passphrase=passphrase)
    assert (again.client, again.public_key) == (4, first.public_key)
    with pytest.raises(ValueError, match="round_index >= 1, got round_index=0"):
        again.round_keys(0, [2])
    with pytest.raises(ValueError, match="round_index >= 2, got round_index=1"):
        again.own_key(1)
    np.testing.assert_array_equal(
        data(again.round_keys(3, [2, 9])), data(first.round_keys(3, [2, 9]))
    )
    np.testing.assert_array_equal(data(again.own_key(3)), data(first.own_key(3)))
    other = key_agreement.KeyAgreement(5)
    again.agree(5, other.public_key)
    with pytest.raises(ValueError, match="got that of peer=9 for peer=6"):
        again.agree(6, second.public_key)
    once_more = key_agreement.KeyAgreement.load(path, passphrase=passphrase)
    other.agree(4, once_more.public_key)
    np.testing.assert_array_equal(
        data(once_more.round_keys(4, [5])), data(other.round_keys(4, [4]))
    )


def test_the_private_key_is_a_standard_one(three, tmp_path):
    from cryptography.hazmat.primitives import serialization

    three[0].save(tmp_path / "keys.pem", passphrase="words")
    found = serialization.load_pem_private_key((tmp_path / "keys.pem").read_bytes(), b"words")
    assert found.public_key().public_bytes_raw() == three[0].public_key


def test_a_file_that_cannot_be_written_gives_out_no_keys(three, tmp_path):
    folder = tmp_path / "folder"
    with pytest.raises(FileNotFoundError):
        three[0].save(folder / "keys.pem")
    three[0].round_keys(0, [2])  # it has no file yet
    folder.mkdir()
    three[0].save(folder / "keys.pem")
    (folder / "keys.pem").unlink()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        three[0].round_keys(1, [2])


def test_a_second_file_that_would_lag_behind_is_refused(three, tmp_path):
    three[0].save(tmp_path / "keys.pem")
    with pytest.raises(
        ValueError, match=r"Expected path=.*keys\.pem., where this client is saved already"
    ):
        three[0].save(tmp_path / "copy.pem")
    assert not (tmp_path / "copy.pem").exists()
    three[0].save(tmp_path / "keys.pem", passphrase="words")  # the same file, hidden now


def test_files_of_others_and_broken_ones_are_refused(three, tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519

    load = key_agreement.KeyAgreement.load
    path, hidden = tmp_path / "keys.pem", tmp_path / "hidden.pem"
    three[0].save(path)
    three[1].save(hidden, passphrase="words")
    for one in three[:2]:
        with pytest.raises(ValueError, match=r"path of a new file, got path=.*it may hold keys"):
            three[2].save(path if one is three[0] else hidden)
    whole = path.read_bytes()
    broken = tmp_path / "broken.pem"
    for content in (
        whole[:40],
        whole[:-20],
        whole[:-120],
        whole[: whole.rindex(b"{")],
        b"",
        b"\xff\x00",
        b"text",
    ):
        broken.write_bytes(content)
        with pytest.raises(
            ValueError,
            match=r"^Expected path of a whole file that KeyAgreement.save wrote, got path=",
        ):
            load(broken)
    for old, new in ((b'"client": 4', b'"client": 5'), (b'"own_key": 0', b'"own_key": 9')):
        assert old in whole
        broken.write_bytes(whole.replace(old, new))
        with pytest.raises(ValueError, match="behind the key are missing or edited"):
            load(broken)

    def plain(private):
        form = serialization.PrivateFormat.PKCS8
        return private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

    for private in (ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()):
        broken.write_bytes(plain(private))
        with pytest.raises(
            ValueError, match=r"with an X25519 private key, got path=.*broken.pem' with E"
        ):
            load(broken)
    broken.write_bytes(plain(x25519.X25519PrivateKey.generate()))
    with pytest.raises(ValueError, match="behind the key are missing or edited"):
        load(broken)
    with pytest.raises(ValueError, match="encrypted and no passphrase"):
        load(hidden)
    with pytest.raises(ValueError, match="with this passphrase, got path="):
        load(hidden, passphrase="other words")
    with pytest.raises(ValueError, match="which is not encrypted"):
        load(path, passphrase="words")
    for passphrase in ("", b"", 5):
        with pytest.raises(ValueError, match="Expected passphrase to be text, not empty"):
            load(hidden, passphrase=passphrase)
        with pytest.raises(ValueError, match="Expected passphrase to be text, not empty"):
            three[2].save(tmp_path / "new.pem", passphrase=passphrase)
    assert not pathlib.Path(tmp_path / "new.pem").exists()


def test_keys_are_typed_keys_of_chacha20(three):
    assert three[0].round_keys(0, [2, 9]).dtype == fljax_kernels.chacha20.key(bytes(32)).dtype
    assert three[0].round_keys(1, []).shape == (0,)
    assert jnp.issubdtype(three[0].own_key(0).dtype, jax.dtypes.prng_key)
