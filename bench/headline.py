"""The README's rows, each from the JSON of a bench of its own."""

from bench import _tables
from bench.accountants import cold
from bench.kernels import per_example

_GRADIENTS = "[per-example gradients](docs/reference/measured.md#per-example-gradients)"


def table(rows: _tables.Rows) -> str:
    """Rows of the benches `round`, `per_example` and `accounting`, warm and cold, told apart by
    their columns.
    """
    rounds = {row["peer"]: row for row in rows if row.get("clients") and row.get("median_ms")}
    gradients, on_gpu = (
        [row for row in rows if row.get("peer") == "ours_auto" and row["platform"] == platform]
        for platform in ("cpu", "gpu")
    )
    comes, kept = (
        [row for row in rows if row.get("peer") == process + per_example.PRIVATE]
        for process in (per_example.COMES, per_example.KEEPS)
    )
    epsilon = next(row for row in rows if row.get("case") == "one" and row.get("speedup"))
    first = cold.column(rows, "renyi")["one"]
    fastest = min((rounds[name]["median_ms"], name) for name in ("fedjax_pad", "fedjax_var"))
    body = [
        [
            "a round of 1,000 clients, MLP 784-256-128-10",
            f"{fastest[0] / rounds['fljax']['median_ms']:.2f}x as fast as FedJAX ({fastest[1]})",
            "[rounds](docs/reference/measured.md#rounds)",
        ],
        *(
            [
                [
                    f"a private step, noise too, over a mean gradient, {len(comes)} models",
                    f"{_range(comes)} the time as it comes, {_range(kept)} where freed memory is "
                    "kept",
                    _GRADIENTS,
                ]
            ]
            if comes
            else []
        ),
        [
            f"a private over a mean gradient, {len(gradients)} models, freed memory kept",
            f"{_range(gradients)} the time",
            _GRADIENTS,
        ],
        [
            f"a private over a mean gradient on one {on_gpu[0]['device']}, {len(on_gpu)} models, "
            f"batches of {min(row['batch'] for row in on_gpu):,} to "
            f"{max(row['batch'] for row in on_gpu):,}, before convolutions had a kernel there",
            f"{_range(on_gpu)} the time",
            _GRADIENTS,
        ],
        [
            "one epsilon by Renyi accounting",
            f"{epsilon['speedup']:.0f}x as fast as dp-accounting; {first} as a fresh process",
            "[accountants](docs/reference/measured.md#accountants)",
        ],
    ]
    return _tables.markdown(["on two CPU cores, unless said", "measured", "all of it"], body)


def _range(rows: _tables.Rows) -> str:
    ratios = [row["ratio"] for row in rows]
    return f"{min(ratios):.2f}x to {max(ratios):.2f}x"
