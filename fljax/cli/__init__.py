"""The command line. Only the chosen command is imported, so that help and errors come at once."""

import contextlib
import importlib
import os
import select
import sys
import warnings
from collections.abc import Sequence
from typing import Any

COMMANDS = {
    "simulate": "train a federated model under differential privacy, or resume such a run",
    "data": "describe a data set, or write it in another form",
    "predict": "what the model of a run says of examples",
    "export": "write the model of a run for other programs, with its claim",
    "report": "compare runs on one page",
    "verify": "hold a run's files against its hash chain, and recompute its epsilon",
    "watch": "show a run as it goes, in a browser of this machine",
    "compare": "train seven subject-level methods at the same true privacy, and rank them",
    "schemes": "list schemes, data sets, models, mechanisms and attacks by name",
    "completion": "print what makes a shell complete commands and flags",
    "attack": "reconstruct real digits through a scheme, or tell members, next to what it "
    "certifies",
    "audit": "measure what rounds of a scheme give away, next to the epsilon they certify",
    "account": "epsilon and delta of a mechanism, of rounds of a scheme, or of a run",
    "calibrate": "the noise that a mechanism or a scheme needs for an epsilon",
    "reproduce": "remake a paper's tables and figures, with a verdict on each conclusion",
    "errata": "what five papers print that does not hold, with counter-examples that run",
    "bench": "measure this machine: matrix products, noise, private gradients, a federated round",
}

_USAGE = "usage: fljax COMMAND [OPTIONS]"
_ASKING = {"-h", "--help", "help"}
_UNREAD = 141  # what a shell reports of a program that was stopped for want of a reader


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            _USAGE,
            "",
            "Federated learning under differential privacy, with accounting you can check.",
            "",
            "commands:",
            *lines,
            "",
            "with any command:",
            "  --json   print one JSON document, and nothing else, on standard output",
            "  --quiet  print what was asked for: no progress, no notes",
            "",
            "`fljax simulate` alone trains on handwritten digits, in half a minute or so.",
            "`fljax help COMMAND` or `fljax COMMAND --help` explains each; `fljax --version` "
            "prints the version.",
        ]
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _note(message: Warning | str, *_: Any, **__: Any) -> None:
    """Python's warnings as one plain line: nobody at a terminal looks for the file and the line of
    code.
    """
    from fljax.cli import _output

    if not _output.quiet():
        print(f"fljax: note: {' '.join(str(message).split())}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
      the exit code: 0; 1 where `attack` or `audit` got past what a scheme certifies; 2 where the
      input is bad or the disk is full, after one line on stderr; 130 after Ctrl-C; 141, without a
      word, where nobody reads on (`| head`).
    """
    args = list(sys.argv[1:] if argv is None else argv)
    code = _UNREAD
    try:
        code = _answer(args)
        _flush()
    except (BrokenPipeError, SystemExit) as left:
        # rich turns a pipe without a reader into SystemExit.
        if isinstance(left, SystemExit) and not isinstance(left.__context__, BrokenPipeError):
            raise
        _hush()
    except OSError as error:  # of the last words: /dev/full, say
        _hush()
        print(f"fljax: error: {_one_line(error)}", file=sys.stderr)
        return 2
    return code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _unread() -> bool:
    """Whether standard output or error is a pipe whose reader has gone."""
    asked = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or of a test
            asked.register(stream.fileno(), 0)
    return any(found & select.POLLERR for _, found in asked.poll(0))


def _hush() -> None:
    """Nothing more goes to a stream that cannot be written, or Python complains of it as it
    ends.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _answer(args: list[str]) -> int:
    if args and args[0] in _ASKING:
        about = [arg for arg in args if arg not in _ASKING]
        args = [*about, "--help"] if about else []
    if not args:
        print(_help())
        return 0
    if args[0] == "--version":
        from importlib.metadata import version

        print(f"fljax {version('fljax')}")
        return 0
    as_json, quiet = (flag in args for flag in ("--json", "--quiet"))
    name, *rest = [arg for arg in args if arg not in ("--json", "--quiet")] or [""]
    asked_for_help = bool(_ASKING & set(rest))
    if not as_json or asked_for_help:
        if not quiet:
            return _run(name, rest)[0]
        from fljax.cli import _output

        with _output.spoken(as_json=False, quiet=True):
            return _run(name, rest)[0]
    from fljax.cli import _output

    with _output.spoken(as_json=True, quiet=True) as said:
        code, error = _run(name, rest)
    print(_output.document(name, code, said.result, error))
    return code


def _run(name: str, args: list[str]) -> tuple[int, str | None]:
    """(the exit code of a command, what went wrong, which has been said on standard error)"""
    try:
        if name not in COMMANDS:
            from fljax import _near

            hint = _near.did_you_mean(name, COMMANDS)
            raise ValueError(f"Expected a command among {list(COMMANDS)}, got {name!r}.{hint}")
        if os.getcwd() not in sys.path:  # for schemes and models by path, as with `python -m`
            sys.path.append(os.getcwd())
        with warnings.catch_warnings():
            warnings.showwarning = _note
            return int(importlib.import_module(f"fljax.cli.{name}").main(args)), None
    except BrokenPipeError as error:
        if _unread():
            raise
        code, said = 2, f"error: {_one_line(error)}"
    except KeyboardInterrupt as stopped:
        again = f"stopped; `fljax {name}` does not go on where it was: start it again"
        code, said = 130, _one_line(stopped) if str(stopped) else again
    except ModuleNotFoundError as missing:
        code, said = 2, f"error: {_missing(missing.name)}"
    except (ValueError, ArithmeticError, OSError, ImportError) as error:
        code, said = 2, f"error: {_one_line(error)}"
    except (
        RuntimeError,
        MemoryError,
    ) as error:  # say, of the device; checkpoints already written are whole
        code, said = 2, f"error: {type(error).__name__}: {_one_line(error)[:500]}"
    print(f"fljax: {said}", file=sys.stderr)
    return code, said.removeprefix("error: ")


# Which extra brings a package; others are somebody else's, such as those of a user's own model.
_EXTRAS = {
    **dict.fromkeys(("matplotlib", "orbax", "PIL", "rich", "sklearn", "tomli_w", "tyro"), "sim"),
    "safetensors": "export",
    "pyarrow": "parquet",
    "h5py": "hdf5",
    "cryptography": "crypto",
    "coincurve": "secure",
    "gmpy2": "secure",
    "tenseal": "secure",
    "keras": "keras",
    "equinox": "equinox",
    "haiku": "haiku",
    "tensorboardX": "trackers",
    "wandb": "trackers",
}


def _missing(package: str | None) -> str:
    top = (package or "").partition(".")[0]
    bring = f": pip install 'fljax[{_EXTRAS[top]}]'" if top in _EXTRAS else ""
    bring += ", or choose --to npz" if top == "safetensors" else ""
    return f"Expected the package {package} to be installed, found none{bring}."
