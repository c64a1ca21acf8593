"""`fljax watch`."""

import dataclasses
import http.server
import pathlib
from collections.abc import Sequence
from typing import Any

from fljax.cli import _args, _output, _run_files
from fljax.simulation.record import folder

_DESCRIPTION = """Shows a run as it goes, in a browser of this machine.

fljax watch RUN: a page on 127.0.0.1 that reads the files of the run's folder anew each time it is
asked. Nobody else can reach it, and it changes nothing. Ctrl-C ends it; the run goes on.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which run, and where its page is."""

    run: _run_files.Run
    port: int = 0
    """Port of the page on 127.0.0.1. 0: any free one."""
    refresh: int = 5
    """Seconds between two looks."""

    def __post_init__(self) -> None:
        if not (0 <= self.port < 2**16 and self.refresh >= 1):
            raise ValueError(
                f"Expected port in [0, 65536) and refresh >= 1, got port={self.port}, "
                f"refresh={self.refresh}."
            )


def server(run_dir: pathlib.Path, port: int, refresh_s: int) -> http.server.ThreadingHTTPServer:
    """A server of the run's page, on the loopback address alone.

    It answers `/` and `/report.html`, and only to who calls it by that address: a page of another
    site that has its name point here gets nothing.
    """
    from fljax.simulation.report import several

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            report = run_dir / folder.REPORT
            if host not in ("127.0.0.1", "localhost"):
                self.send_error(403)
            elif self.path == "/":
                self._send(several.as_it_goes(several.read(run_dir), refresh_s))
            elif self.path == "/report.html" and report.is_file():
                self._send(folder.read_text(report))
            else:
                self.send_error(404)

        def _send(self, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
            self.send_header("Content-Security-Policy", policy)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: nobody asked for a log."""

    return http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)


def main(args: Sequence[str]) -> int:
    """Serves until Ctrl-C."""
    try:
        args = _run_files.named(args, "run")
        options: Any = _args.parse(Options, args, prog="fljax watch", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.simulation.report import several

    run_dir = options.run.expanduser()
    several.read(run_dir)  # for its checks
    with server(run_dir, options.port, options.refresh) as page:
        url = f"http://127.0.0.1:{page.server_address[1]}/"
        _output.give({"run": run_dir, "url": url})
        print(f"{url} shows {run_dir}; Ctrl-C ends it", flush=True)
        try:
            page.serve_forever()
        except KeyboardInterrupt:
            _output.aside("ended; the run, if it goes on, is not touched")
    return 0
