"""What does a secure sum that runs cost in seconds and bytes, by step?

    python -m bench.papers.secure_sums [--quick]      # 10 minutes; 1 minute

N clients sum D words of 24 bits; N / 10 of them may collude (none in `ckks`, where all hold the
key), and 3 N / 10 may drop out; 0, 10 and 30 % do, as they should send their words. Every sum is
compared with the plain one before it is written down. Parties run one after the other in one
process on one core: `round_s` is the time of all of them together, `cpu_s` how long of it the
process computed, `client_ms` a client's share of it. `lightdp` is no secure sum but what LightDP-FL
has instead: clients agree on keys once and share noise by pairs, drawn each round, in float32; what
the server adds up is noisy.
"""

import argparse
import gc
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax.upload import key_agreement, pair_noise, secure_sum
from fljax.upload.secure_sum import protocol

BITS = 24
SIZES = (10**4, 10**5, 10**6)
NAMES = (*secure_sum.FAST, "lightdp")
# (clients, share that drops out, largest D): the rest of the grid is larger than its news.
CASES = (
    (10, 0.0, 10**5),
    (10, 0.1, 10**6),
    (10, 0.3, 10**5),
    (50, 0.0, 10**4),
    (50, 0.1, 10**5),
    (50, 0.3, 10**4),
    (200, 0.1, 10**4),
)
LARGEST = (("secagg_plus", 100, 10**6, 0.1), ("ckks", 100, 10**6, 0.1))
# A power of 3072 bits a number, or some numbers: so few of them, of ten clients.
SLOW, SLOW_SIZE = ("inner_product", "paillier"), 100
# Messages of a round, all in memory at once, may take so much.
MOST_BYTES = 5e9


def terms(name: str, num_clients: int, size: int) -> protocol.Terms:
    """What all parties agree on."""
    return protocol.Terms(
        num_clients=num_clients,
        size=size,
        bits=BITS,
        max_dropouts=3 * num_clients // 10,
        max_colluders=0 if name == "ckks" else num_clients // 10,
    )


def row(name: str, num_clients: int, size: int, dropped: float) -> dict[str, Any]:
    """One round."""
    case = {"protocol": name, "clients": num_clients, "size": size, "dropout": dropped}
    agreed = terms(name, num_clients, size)
    held = 4.0 * num_clients * size * (8 if name == "ckks" else 3)
    if name == "light_secagg":
        pieces = agreed.least - agreed.max_colluders
        held += 16.0 * num_clients**2 * size / pieces
    if held > MOST_BYTES:
        return case | {"error": f"not run: messages of {held / 1e9:.0f} GB in one process"}
    if name == "lightdp":
        return case | _lightdp(num_clients, size)
    rng = np.random.default_rng(0)
    integers = rng.integers(-agreed.most, agreed.most + 1, (num_clients, size), np.int32)
    words = protocol.as_words(agreed, integers)
    start = time.perf_counter()
    made = secure_sum.simulated(name, agreed)
    set_up = time.perf_counter() - start
    gone = round(dropped * num_clients)
    dropouts = dict.fromkeys(range(gone), made.upload_step)
    cpu = time.process_time()
    found = protocol.run(made, words, dropouts=dropouts)
    cpu = time.process_time() - cpu
    plain = integers[gone:].sum(axis=0, dtype=np.int64)
    if not np.array_equal(found.total, protocol.as_words(agreed, plain)):
        raise AssertionError(f"{name}: another sum than the plain one")
    steps = [cost._asdict() for cost in found.costs]
    return case | {
        "set_up_s": set_up,
        "client_ms": 1e3 * sum(c.client_seconds / max(1, c.clients) for c in found.costs),
        "server_s": sum(c.server_seconds for c in found.costs),
        "round_s": sum(c.client_seconds + c.server_seconds for c in found.costs),
        "cpu_s": cpu,
        "up_kb": sum(c.bytes_up / max(1, c.clients) for c in found.costs) / 1e3,
        "down_kb": sum(c.bytes_down for c in found.costs) / num_clients / 1e3,
        "steps": steps,
    }


def _lightdp(num_clients: int, size: int) -> dict[str, Any]:
    """Key agreement of one client with all others, its noise of a round, and the server's sum."""
    others = [key_agreement.KeyAgreement(i) for i in range(1, num_clients)]
    peers = list(range(1, num_clients))
    start = time.perf_counter()
    mine = key_agreement.KeyAgreement(0)
    for other in others:
        mine.agree(other.client, other.public_key)
    agreed = time.perf_counter() - start
    zeros = jnp.zeros(size, jnp.float32)

    def noise(round_index: int) -> float:
        start = time.perf_counter()
        keys = mine.round_keys(round_index, peers)
        drawn = pair_noise.client_noise(
            keys, mine.own_key(round_index), 0, peers, zeros, own_stddev=0.5, pair_stddev=1.0
        )
        jax.block_until_ready(drawn)
        return time.perf_counter() - start

    noise(0)  # compiles
    drawing = noise(1)
    upload = np.ones(size, np.float32)
    total = np.zeros(size, np.float32)
    start = time.perf_counter()
    for _ in range(num_clients):
        total += upload
    serving = time.perf_counter() - start
    steps = [
        {"step": "keys", "client_ms": 1e3 * agreed, "bytes_up": 32, "bytes_down": 32 * len(peers)},
        {"step": "noise", "client_ms": 1e3 * drawing, "bytes_up": 4 * size, "bytes_down": 0},
    ]
    return {
        "set_up_s": agreed,
        "client_ms": 1e3 * drawing,
        "server_s": serving,
        "round_s": num_clients * drawing + serving,
        "cpu_s": None,
        "up_kb": 4 * size / 1e3,
        "down_kb": 0.0,
        "steps": steps,
    }


def _digits(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(rows: _tables.Rows) -> str:
    """A round of 10 % dropouts by protocol, clients and numbers."""
    body = []
    for found in rows:
        if found["dropout"] != 0.1:
            continue
        head = [f"`{found['protocol']}`", str(found["clients"]), f"{found['size']:,}"]
        if found.get("error"):
            body.append([*head, found["error"], "", "", "", "", ""])
            continue
        names = ("client_ms", "server_s", "round_s", "cpu_s", "up_kb", "down_kb")
        body.append([*head, *(_digits(found[name]) for name in names)])
    head = ["protocol", "clients", "numbers", "ms a client", "server, s", "all parties, s"]
    return _tables.markdown([*head, "their CPU, s", "up, kB", "down, kB"], body)


def _add(rows: list[dict[str, Any]], *case: Any) -> None:
    """A row more, which is printed."""
    rows.append(row(*case))
    gc.collect()
    print({key: value for key, value in rows[-1].items() if key != "steps"}, flush=True)


def main() -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10 clients, prints alone")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in () if options.quick else LARGEST:
        _add(rows, *case)
    for name in () if options.quick else SLOW:
        _add(rows, name, 10, SLOW_SIZE, 0.1)
    for size in SIZES:
        for num_clients, dropped, largest in CASES:
            if size > largest or (options.quick and num_clients > 10):
                continue
            for name in NAMES:
                _add(rows, name, num_clients, size, dropped)
        if not options.quick:  # after each size: the next one takes ten times as long
            note = "one process, one core; messages in memory; sums checked against the plain ones"
            path = _harness.write("secure_sums", rows, note=note)
            print(f"wrote {path.relative_to(_harness.ROOT)}")
    print(table(rows))


if __name__ == "__main__":
    main()
