"""`fljax bench`."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fljax.cli import _args, _output, _run_files

_DESCRIPTION = """Measures this machine: matrix products, noise, private gradients, a federated
round, chunk sizes.

Medians of five calls after a warm-up; compilation is apart. Random data, nothing is downloaded.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How long, and where the numbers go."""

    quick: bool = False
    """A smaller model, 100 clients in place of 1,000, one chunk size, no run: seconds in place of a
    minute.
    """
    output: pathlib.Path | None = None
    """File for all numbers, with the spread of each; overwritten."""

    def __post_init__(self) -> None:
        if self.output is not None and (
            self.output.is_dir() or not self.output.absolute().parent.is_dir()
        ):
            raise ValueError(
                "Expected output to be a file in a folder that exists, got "
                f"output={str(self.output)!r}."
            )


def main(args: Sequence[str]) -> int:
    """Measures, prints the table, writes the JSON."""
    try:
        options = _args.parse(Options, args, prog="fljax bench", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.cli import _bench

    found = _bench.measure(quick=options.quick, say=lambda what: _output.aside(f"measuring {what}"))
    _output.give(found)
    where = found["machine"]
    print(f"{where['device']}, {where['cores']} cores, {where['platform']}, jax {where['jax']}")
    table = Table("what", "measured", "beside")
    for row in rows(found):
        table.add_row(*row)
    _output.console().print(table)
    if options.output is not None:
        _run_files.write_json(options.output, found)
        print(f"numbers {options.output}")
    return 0


def rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What a person reads of what `_bench.measure` found."""
    gradient, one, chunk, job = (
        found[name] for name in ("private_gradient", "round", "chunk_size", "simulate")
    )
    ours, plain = one["dp_fedavg"], one["plain_scan"]
    side = ", ".join(f"{size}: {speed:,.0f}/s" for size, speed in chunk["clients_per_s"].items())
    private_ms, plain_ms = gradient["private"]["median_ms"], gradient["non_private"]["median_ms"]
    return [
        ("matrix product, float32", f"{found['matmul']['gflops_per_s']:,.0f} GFLOP/s", ""),
        (
            "Gaussian noise",
            f"{found['gaussian_noise']['normals_per_s'] / 1e6:,.0f} million normals/s",
            "",
        ),
        (
            f"private gradient, {found['model']}, batch {gradient['batch']}",
            f"{gradient['ratio']:.2f}x the time without privacy",
            f"{private_ms:.1f} ms, without {plain_ms:.1f} ms",
        ),
        (
            f"round of dp_fedavg, {ours['clients']:,} clients",
            f"{ours['clients_per_s']:,.0f} clients/s",
            f"plain JAX scan {plain['clients_per_s']:,.0f}, compiled in {ours['compile_s']:.1f} s",
        ),
        (
            "the same, of its matrix products alone",
            f"{ours['share_of_matmul_limit']:.0%} of the limit",
            f"limit {one['products']['clients_per_s']:,.0f} clients/s, spread {ours['spread']:.0%}",
        ),
        (
            "quickest number of clients side by side",
            f"{chunk['fastest']}",
            f"{side}; chosen: {chunk['chosen']}",
        ),
        (
            "fljax simulate, with its defaults",
            f"about {job['estimated_s']:.0f} s",
            f"{job['rounds']} rounds of {job['round_ms']:.0f} ms, {job['how']}",
        ),
    ]
