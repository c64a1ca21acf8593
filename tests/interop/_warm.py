"""One process that has imported what Flower's programs import, and becomes any of them by a fork.

Flower starts a new process for each message to each client, and importing takes it seconds of
computing. `serve` is that process. `Program` asks it for one, from a process that imports nothing:
`scripts` are such commands, under the names of Flower's own.
"""

import contextlib
import json
import os
import pathlib
import socket
import sys

NAMES = ("flower-superexec", "flower-supernode", "flwr", "flwr-clientapp", "flwr-serverapp")
# What apps import, some of it late, as messages come.
_IMPORTED = ("httpcore", "h11", "jaxlib.mlir.dialects.mhlo", "sklearn.datasets.data")
_IMPORTED += tuple(f"fljax.interop.flower.{name}" for name in ("client", "secure", "server"))
_IMPORTED += ("tests.interop._schemes", "flwr.serverapp.strategy")
_MOST = 2**20  # bytes of what is asked: a command and its environment
_WAITS_S = {"flwr.supernode.start_client_internal": 1.0, "flwr.superlink.grid.http_grid": 0.3}


class Program:
    """One of NAMES with its arguments, in a session of its own.

    pid: of its group. fds: its standard input, output and error.
    """

    def __init__(self, address, command, environment, fds=(0, 1, 2)):
        self._status = None
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(str(address))
        asked = json.dumps([list(map(str, command)), dict(environment), os.getcwd()]).encode()
        socket.send_fds(self._connection, [asked], list(fds))
        self.pid = int(self._connection.recv(64))

    def poll(self):
        """Its exit status, None while it runs."""
        if self._status is None:
            try:
                found = self._connection.recv(64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            self._status = int(found or b"-9")  # who cannot tell was killed
        return self._status

    def wait(self):
        """Its exit status, when it ends."""
        if self._status is None:
            self._status = int(self._connection.recv(64) or b"-9")
        self._connection.close()
        return self._status


def scripts(folder, address):
    """Commands by Flower's names, in a new folder."""
    folder.mkdir()
    for name in NAMES:
        path = folder / name
        path.write_text(
            f"#!{sys.executable} -IS\nimport os, sys\n"
            f"sys.path.insert(0, {os.path.dirname(__file__)!r})\nimport _warm\n"
            f"command = [{name!r}, *sys.argv[1:]]\n"
            f"sys.exit(_warm.Program({str(address)!r}, command, os.environ).wait())\n"
        )
        path.chmod(0o755)


def serve(address):
    """Until it is killed."""
    import importlib
    import importlib.metadata
    import signal

    programs = {
        point.name: point.load()
        for point in importlib.metadata.entry_points(group="console_scripts")
        if point.name in NAMES
    }
    _hurry()
    for name in _IMPORTED:
        importlib.import_module(name)

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(address))
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what it forks
    while True:
        connection, _ = listener.accept()
        asked, fds, _, _ = socket.recv_fds(connection, _MOST, 3)
        if os.fork() == 0:
            listener.close()
            _watch(connection, asked, fds, programs)
        connection.close()
        for fd in fds:
            os.close(fd)


def _watch(connection, asked, fds, programs):
    """In a fork: forks the program, and tells how it ended."""
    import signal

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.send(str(os.getpid()).encode())
    child = os.fork()
    if child == 0:
        connection.close()
        _become(json.loads(asked), fds, programs)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):  # nobody wants to know
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(asked, fds, programs):
    """In a fork of that: the program."""
    command, environment, folder = asked
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    code = 1
    try:
        code = programs[command[0]]() or 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _hurry():
    """Flower's loops look for messages every three seconds; here more often. Each look costs the
    SuperLink some ten milliseconds, and there are ten nodes.
    """
    import importlib
    import time
    import types

    for name, most in _WAITS_S.items():
        with contextlib.suppress(ImportError):  # of another release
            module = importlib.import_module(name)
            short = lambda seconds, most=most: time.sleep(min(seconds, most))
            module.time = types.SimpleNamespace(**vars(time) | {"sleep": short})


if __name__ == "__main__":
    # The folder of this file is no place to import from.
    sys.path[0] = str(pathlib.Path(__file__).parents[2])
    serve(sys.argv[1])
