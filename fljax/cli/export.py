"""`fljax export`."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import tyro

from fljax.cli import _args, _output, _run_files

_DESCRIPTION = """Writes the private model of a run for other programs.

fljax export RUN --to safetensors: the model of the run's newest checkpoint, and beside it, as JSON,
what is certified of it. Using a model, however often, spends no more of its budget.
"""
_TO = (
    "safetensors: one file, for most programs (extra `export`). npz: one file of NumPy. orbax: a "
    "folder, for JAX."
)
_SUFFIX = {"safetensors": ".safetensors", "npz": ".npz", "orbax": ".orbax"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What is written, and where."""

    run: _run_files.Run
    to: Annotated[Literal["safetensors", "orbax", "npz"], tyro.conf.arg(help=_TO)] = "safetensors"
    output: pathlib.Path | None = None
    """Where it goes. None: into the run's folder, as model.safetensors and the like."""


def main(args: Sequence[str]) -> int:
    """Writes the model, and says what is certified of it."""
    try:
        args = _run_files.named(args, "run")
        options: Any = _args.parse(Options, args, prog="fljax export", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.simulation import trained

    found = trained.load(options.run)
    path = options.output or options.run.expanduser() / f"model{_SUFFIX[options.to]}"
    beside = trained.export(found, options.to, path)
    arrays = {
        name: {"shape": list(shape), "dtype": dtype}
        for name, (shape, dtype) in trained.shapes(found.params).items()
    }
    _output.give(
        {
            "model": path,
            "claim_file": beside,
            "rounds": found.rounds,
            "statement": found.claim["statement"]["guarantee"],
            "not_covered": found.claim["statement"]["not_covered"],
            "arrays": arrays,
        }
    )
    print(f"model    {path}, after {found.rounds} rounds")
    print(f"claim    {beside}")
    _output.aside(f"privacy  {found.claim['statement']['guarantee']}")
    if found.claim["seed"] == "fixed":
        _output.aside(
            "seed     fixed: an experiment. Whoever knows it can remove the noise: release no model"
        )
    return 0
