"""What does hiding an upload cost in bytes, links and lost rounds? A model, no measurement: it
takes a second.

    python -m bench.papers.overhead

50 clients, ResNet-18 (11,173,962 parameters), at most 10 colluders and 10 stragglers, every link
fails with chance 0.05 in a round; 100 Mbit/s and 0.1 s latency for each client, 60 s of local
training, 5 ns for a normal (`bench.kernels.pair_noise`).
"""

from bench import _harness, _tables
from fljax import schemes
from fljax.schemes.uploads import secure_sums
from fljax.server import costs, stragglers

NUM_CLIENTS, NUM_PARAMS, MOST, FAILURE = 50, 11_173_962, 10, 0.05
SECONDS = {
    "compute_seconds": 60.0,
    "bandwidth": 12.5e6,
    "latency_seconds": 0.1,
    "seconds_per_normal": 5e-9,
}
NAMES = ("lightdp", "local_dp", "smpc_dp", "he_dp", "secagg_dp", "swiftagg_dp")


def row(name: str) -> dict[str, object]:
    """One scheme."""
    scheme = schemes.get(name)
    config = scheme.Config(
        num_parties=NUM_CLIENTS,
        max_colluders=MOST,
        max_stragglers=MOST,
        straggler_law="bernoulli",
        link_failure_prob=FAILURE,
    )
    moved = scheme.costs(config, NUM_PARAMS)
    law = config.straggler_pmf(config.parties, links=secure_sums.LINKS.get(name, "server"))
    completed = stragglers.at_most(law, MOST) if name in secure_sums.LINKS else 1.0
    return {
        "scheme": name,
        "upload_mb": moved.upload_bytes / 1e6,
        "download_mb": moved.download_bytes / 1e6,
        "to_peers_mb": moved.peer_bytes / 1e6,
        "message_rounds": moved.message_rounds,
        "peer_links": moved.peer_links,
        "unusable_clients": float(sum(s * p for s, p in enumerate(law))),
        "completed": completed,
        "seconds": costs.round_seconds(moved, **SECONDS),
        "seconds_with_repeats": costs.round_seconds(moved, completed_prob=completed, **SECONDS),
    }


def _count(value: float) -> str:
    """Megabytes and seconds: three digits, or whole from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(rows: _tables.Rows) -> str:
    """Bytes, links and lost rounds of each way to hide an upload: a model."""
    body = [
        [
            f"`{row['scheme']}`",
            _count(row["upload_mb"]),
            _count(row["download_mb"]),
            f"{row['to_peers_mb']:.2g}",
            str(row["message_rounds"]),
            f"{row['unusable_clients']:.1f}",
            f"{row['completed']:.5g}" if row["completed"] > 0.01 else f"{row['completed']:.0e}",
            _count(row["seconds"]),
            _count(row["seconds_with_repeats"]) if row["completed"] > 1e-9 else "never",
        ]
        for row in rows
    ]
    head = ["scheme", "up, MB", "down, MB", "to peers, MB", "messages", "clients lost on average"]
    head += ["a round succeeds with chance", "seconds per round", "until one succeeds"]
    return _tables.markdown(head, body)


def main() -> None:
    """Prints the table and writes the JSON."""
    rows = [row(name) for name in NAMES]
    print(_harness.table(rows, list(rows[0])))
    path = _harness.write("overhead", rows)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
