"""What does noise that pairs share cost, beside drawing as many plain normals?

    python -m bench.kernels.pair_noise [--quick]

- cohort: rows of 1000 clients, 20 neighbours each, 100,000 parameters, against |E| D plain normals;
  at most 1.3
- joint_law: complete graph of 200 clients, 10,000 parameters: pairs against their joint law; at
  least 20
- memory: complete graph of 100 clients, a million parameters: XLA's own count over N D 4 bytes; at
  most 3
- client: one client's own row, 20 neighbours, 100,000 parameters, against 20 D plain normals; -
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax_kernels import client_pair_noise, joint_pair_noise, pair_keys, pair_noise
from fljax_kernels.pairwise import graphs, reference


def plain_normals(keys: jax.Array, size: int) -> jax.Array:
    """Draws `size` normals a key, one key after the other, and keeps the last."""

    def draw(_: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        return jax.random.normal(key, (size,)), None

    return jax.lax.scan(draw, jnp.zeros(size), keys)[0]


def compare(
    case: str, ours: _harness.Step, other: _harness.Step, drawn: int, repeats: int
) -> list[dict[str, Any]]:
    """Two rows: ours with the ratio of its time to the other's."""
    print(f"{case}: timing", flush=True)
    timings = _harness.interleaved(
        {"ours": ours.run, "other": other.run}, repeats=repeats, budget_s=60.0
    )
    rows = [
        {"case": case, "form": name, **step.row(), **timings[name].row()}
        for name, step in (("ours", ours), ("other", other))
    ]
    rows[0] |= {
        "ratio": round(_harness.paired_ratio(timings["ours"], timings["other"]), 4),
        "ratio_min": round(timings["ours"].min_ms / timings["other"].min_ms, 4),
        "ratio_cpu": round(timings["ours"].cpu_ms / timings["other"].cpu_ms, 4),
        "normals": drawn,
        "ns_per_normal": round(1e6 * timings["ours"].min_ms / drawn, 3),
    }
    return rows


def checked() -> None:
    """Against float64 before anything is timed."""
    key, edges = jax.random.key(0), graphs.k_regular(20, 6, np.random.default_rng(0))
    found = pair_noise(key, edges, 20, jnp.zeros(50_000), 2.0)
    exact = reference.pair_noise(pair_keys(key, edges), edges, 20, 50_000, np.asarray(2.0))
    _harness.check("pair_noise", found, exact, rtol=1e-6)


def cohort(num_clients: int, degree: int, size: int, repeats: int) -> list[dict[str, Any]]:
    """The whole cohort's rows against plain normals."""
    edges = graphs.k_regular(num_clients, degree, np.random.default_rng(0))
    key, keys = jax.random.key(0), jax.random.split(jax.random.key(1), len(edges))
    ours = _harness.compile_step(
        lambda k: pair_noise(k, edges, num_clients, jnp.zeros(size), 1.0), key
    )
    other = _harness.compile_step(lambda k: plain_normals(k, size), keys)
    return compare(
        f"cohort N={num_clients} k={degree} D={size}", ours, other, len(edges) * size, repeats
    )


def joint_law(num_clients: int, size: int, repeats: int) -> list[dict[str, Any]]:
    """Pair by pair against the joint law: here the target is a large ratio."""
    edges, key = graphs.complete(num_clients), jax.random.key(0)
    ours = _harness.compile_step(
        lambda k: pair_noise(k, edges, num_clients, jnp.zeros(size), 1.0), key
    )
    other = _harness.compile_step(
        lambda k: joint_pair_noise(k, num_clients, jnp.zeros(size), 1.0), key
    )
    return compare(f"joint_law N={num_clients} D={size}", ours, other, len(edges) * size, repeats)


def client(degree: int, size: int, repeats: int) -> list[dict[str, Any]]:
    """What one real client computes."""
    keys, peers = jax.random.split(jax.random.key(1), degree), np.arange(1, degree + 1)
    ours = _harness.compile_step(
        lambda k: client_pair_noise(k, 0, peers, jnp.zeros(size), 1.0), keys
    )
    other = _harness.compile_step(lambda k: plain_normals(k, size), keys)
    return compare(f"client k={degree} D={size}", ours, other, degree * size, repeats)


def memory(num_clients: int, size: int) -> list[dict[str, Any]]:
    """Compiled, not run."""
    edges = graphs.complete(num_clients)
    program = jax.jit(lambda k: pair_noise(k, edges, num_clients, jnp.zeros(size), 1.0))
    found = program.lower(jax.random.key(0)).compile().memory_analysis()
    if found is None:
        return [{"case": "memory", "form": "ours", "error": "this backend does not say"}]
    total = found.temp_size_in_bytes + found.output_size_in_bytes + found.argument_size_in_bytes
    share = total / (4 * num_clients * size)
    return [
        {
            "case": f"memory N={num_clients} D={size}",
            "form": "ours",
            "memory_over_result": round(share, 4),
        }
    ]


COLUMNS = (
    "case",
    "form",
    "min_ms",
    "cpu_ms",
    "spread",
    "ratio",
    "ratio_min",
    "ratio_cpu",
    "ns_per_normal",
)


def table(rows: _tables.Rows) -> str:
    """Noise that pairs share, beside plain normals and beside its joint law."""
    ours = {row["case"].split()[0]: row for row in rows if row["form"] == "ours"}
    titles = {
        "cohort": "{case}: time of all rows over as many plain normals",
        "client": "{case}: time of a client's own row over as many plain normals",
        "joint_law": "{case}: time pair by pair over time of the joint law",
        "memory": "{case}: XLA's memory over the result's",
    }
    body = []
    for name, title in titles.items():
        row = ours[name]
        case = row["case"].removeprefix(f"{name} ")
        body.append(
            [title.format(case=case), f"{row.get('ratio') or row['memory_over_result']:.2f}x"]
        )
    return _tables.markdown(["pair noise (N clients, k neighbours, D parameters)", ""], body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the clients and parameters"
    )
    options = parser.parse_args(arguments)
    checked()
    part = 10 if options.quick else 1
    rows = memory(100, 10**6)
    rows += joint_law(200, 10_000 // part, 5)
    rows += client(20, 100_000 // part, 7)
    rows += cohort(1000 // part, 20, 100_000 // part, 5)
    print(_harness.table(rows, (*COLUMNS, "memory_over_result")))
    path = _harness.write("pair_noise_quick" if options.quick else "pair_noise", rows)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
