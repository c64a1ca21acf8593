"""`fljax verify`."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence
from typing import Any

from fljax.cli import _args, _output, _run_files

_DESCRIPTION = """Holds the files of a run against its hash chain, and recomputes its epsilon.

fljax verify RUN: every file is checked, the ledger is replayed, and epsilon is found again by the
run's accountant and by a second one. What does not fit is named, and the exit code is 1. The last
link of the chain, its head, is printed: published, it shows for good that nobody wrote the run's
files anew. Code that the folder names is not run, except with --data.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which run, and against what."""

    run: _run_files.Run
    head: str | None = None
    """A head that was published: the chain must have it. None: none was."""
    data: bool = False
    """Load the data again, as `fljax simulate` would with this config, and hold them, the model
    and the scheme against the run's fingerprint. Imports what the config names by path.
    """
    secret: pathlib.Path | None = None
    """File of the run's secret bits, which --data needs; that they are the run's is checked, too.
    None: seed.secret in the folder.
    """
    passphrase: bool = False
    """They are encrypted, under the passphrase in FLJAX_PASSPHRASE or one that is asked for."""


def main(args: Sequence[str]) -> int:
    """Prints a line for each check, what no check shows, and the head."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax: what is damaged is said below
    try:
        args = _run_files.named(args, "run")
        options: Any = _args.parse(Options, args, prog="fljax verify", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.simulation import verify

    found = verify.run(
        options.run,
        head=options.head,
        data=options.data,
        secret=_run_files.kept(options.secret, options.passphrase),
    )
    _output.give(
        {
            "run_dir": options.run,
            "fits": found.fits,
            **found._asdict(),
            "checks": [check._asdict() for check in found.checks],
        }
    )
    for check in found.checks:
        print(f"{'fits     ' if check.fits else 'REFUSED  '} {check.what}: {check.found}")
    for sentence in found.not_shown:
        print(f"not shown {sentence}")
    if found.fits:
        print(f"head      {found.head}")
        return 0
    wrong = ", ".join(dict.fromkeys(check.what for check in found.checks if not check.fits))
    print(f"The folder is not as a run left it: {wrong}. Exit code 1.")
    return 1
