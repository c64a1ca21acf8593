"""A SuperLink and its SuperNodes as processes on this machine, with TLS and authenticated nodes.

All but the SuperLink are forks of one process that has imported everything (`_warm`): a round
starts a ClientApp for each message to each client.
"""

import contextlib
import datetime
import ipaddress
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests import _environment
from tests.interop import _warm

BIN = pathlib.Path(sys.executable).parent
ROOT = pathlib.Path(__file__).parents[2]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def certificates(folder):
    """ca.pem, server.pem and server.key of a CA that lives for this test."""
    name = lambda common: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)

    def made(common, key, issuer, issuer_key, *extensions):
        builder = x509.CertificateBuilder(
            name(issuer),
            name(common),
            key.public_key(),
            x509.random_serial_number(),
            start,
            start + datetime.timedelta(days=1),
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(issuer_key, hashes.SHA256())

    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    of_ca = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    usage = dict.fromkeys(["content_commitment", "data_encipherment", "digital_signature"], False)
    usage |= dict.fromkeys(["encipher_only", "decipher_only"], False)
    usage |= dict.fromkeys(["key_agreement", "key_encipherment"], False)
    ca = made(
        "a test's CA",
        ca_key,
        "a test's CA",
        ca_key,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False),
    )
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = made(
        "localhost",
        key,
        "a test's CA",
        ca_key,
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName(here), False),
        (of_ca, False),
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    (folder / "server.pem").write_bytes(server.public_bytes(pem))
    (folder / "server.key").write_bytes(_private(key, serialization.PrivateFormat.PKCS8))


def _private(key, form):
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def node_key(folder, number):
    """Writes node's key, NUMBER.key and NUMBER.pub, as Flower reads them."""
    key = ec.generate_private_key(ec.SECP384R1())
    (folder / f"{number}.key").write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    (folder / f"{number}.pub").write_bytes(public)


class Federation:
    """`with Federation(folder, 10) as federation`: ends what it started.

    node_ids: in the order of clients' numbers. nodes: number -> process.
    """

    def __init__(self, folder, num_clients):
        self.folder, self.num_clients = folder, num_clients
        self.nodes, self.node_ids, self._superlink = {}, [], None
        self.port = free_port()
        self._scripts = folder / "bin"
        self._warm = pathlib.Path(tempfile.mkdtemp()) / "socket"  # whose path may not be long
        self._stack = contextlib.ExitStack()

    def environment(self, name):
        home = self.folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        return {
            "PATH": f"{self._scripts}:{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
            "HOME": str(home),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "JAX_PLATFORMS": "cpu",
        } | _environment.COMPILING

    def start(self, name, *command):
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            command,
            env=self.environment(name),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that all of its children can be ended with it
        )
        self._stack.callback(self.kill, process)
        return process

    def fork(self, name, *command):
        """As `start`, from the process that has imported everything."""
        with (self.folder / f"{name}.log").open("wb") as log:
            fds = (0, log.fileno(), log.fileno())
            process = _warm.Program(self._warm, command, self.environment(name), fds)
        self._stack.callback(self.kill, process)
        return process

    def pause(self, process):
        """It and what it started do nothing until `go_on`."""
        os.killpg(process.pid, signal.SIGSTOP)

    def go_on(self, process):
        os.killpg(process.pid, signal.SIGCONT)

    def kill(self, process):
        """Ends a process and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name, text, process):
        """Until a log has the text."""
        for _ in range(3000):
            if re.search(text, self.log(name)):
                return
            assert process.poll() is None, self.log(name)
            time.sleep(0.1)
        raise AssertionError(f"no {text!r} in the log of {name}: {self.log(name)}")

    def flwr(self, *command):
        """What the command line prints as JSON."""
        done = subprocess.run(
            [self._scripts / "flwr", *command, "--format", "json"],
            env=self.environment("operator"),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert found.get("success", True), done.stdout
        return found

    def __enter__(self):
        certificates(self.folder)
        ca, address = self.folder / "ca.pem", f"127.0.0.1:{self.port}"
        _warm.scripts(self._scripts, self._warm)
        try:
            warm = self.start("warm", sys.executable, _warm.__file__, self._warm)
            while not self._warm.exists():
                assert warm.poll() is None, self.log("warm")
                time.sleep(0.1)
            self._superlink = self.start(
                "superlink",
                BIN / "flower-superlink",
                *("--host", "127.0.0.1", "--port", str(self.port)),
                *("--ssl-ca-certfile", ca, "--ssl-certfile", self.folder / "server.pem"),
                *("--ssl-keyfile", self.folder / "server.key", "--enable-supernode-auth"),
                *("--database", self.folder / "superlink.db"),
                "--disable-runtime-dependency-installation",
            )
            self.wait_for("superlink", "running|started|Uvicorn", self._superlink)
            operator = self.folder / "home-operator"
            operator.mkdir()
            (operator / "config.toml").write_text(
                f'[superlink.here]\naddress = "{address}"\nroot-certificates = "{ca}"\n'
            )
            for number in range(self.num_clients):
                node_key(self.folder, number)
                found = self.flwr(
                    "supernode", "register", str(self.folder / f"{number}.pub"), "here"
                )
                self.node_ids.append(int(found["node-id"]))
                self.nodes[number] = self.fork(
                    f"node{number}",
                    "flower-supernode",
                    *("--root-certificates", ca, "--superlink", address),
                    *("--auth-supernode-private-key", self.folder / f"{number}.key"),
                    *("--node-config", f"partition-id={number}"),
                    *("--port", str(free_port())),
                )
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_):
        self._stack.close()
        shutil.rmtree(self._warm.parent)
        # Apps have sessions of their own; those of a run that was cut short are still there.
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"FLWR_HOME={self.folder}/".encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
