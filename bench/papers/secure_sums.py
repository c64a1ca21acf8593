"""What does a secure sum that runs cost in seconds and bytes, by step?

    taskset -c 0 python -m bench.papers.secure_sums [--minutes 10]
    python -m bench.papers.secure_sums --plot docs/images/secure_sums.svg

N clients sum D words of 24 bits; N / 10 of them may collude (none in `ckks`, where all hold the
key), and 3 N / 10 may drop out; 0, 10 and 30 % do, as they should send their words. Every sum is
compared with the plain one before it is written down. Parties run one after the other in one
process. `client_ms` (a client's share of a round), `server_s` and `round_s` (all parties together)
are seconds that the process computed, which other work on the machine disturbs little; pinned to
one core, so that no threads wait in them. Rows whose "clock" is "wall" are older: seconds of the
wall clock, with the computed ones of the round in `cpu_s`, by whose share tables count them.
`lightdp` is no secure sum but what LightDP-FL has instead: clients agree on keys once and share
noise by pairs, drawn each round, in float32; what the server adds up is noisy.

The cells are D = 10^4, 10^5, 10^6, N = 10, 50, 200, with 0, 10 and 30 % dropouts. A run measures
cells that are not there yet, cheap ones first, for so many minutes of computing; each row has its
date and commit. Cells that would take longer are extrapolated when the tables are made, never
stored: a cell's cost is a line through the same clients' cost of two smaller D, and says so.
"""

import argparse
import gc
import itertools
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench import _harness, _tables
from fljax.papers.lightdp import timing
from fljax.upload import secure_sum
from fljax.upload.secure_sum import protocol

BITS = 24
SIZES = (10**4, 10**5, 10**6)
CLIENTS = (10, 50, 200)
DROPOUTS = (0.0, 0.1, 0.3)
NAMES = (*secure_sum.FAST, "lightdp")
# A power of numbers of 3072 bits a word, or one for a hundred of them: few words, of few clients.
# Paillier packs 127 words. A key without a dealer takes minutes: of three clients.
SLOW = (
    ("inner_product", 10, 25, 0.1),
    ("inner_product", 10, 100, 0.1),
    ("joint_paillier", 3, 127, 0.0),
    ("joint_paillier", 3, 508, 0.0),
    ("paillier", 10, 127, 0.1),
    ("paillier", 10, 508, 0.1),
)
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


def cells() -> list[tuple[str, int, int, float]]:
    """(protocol, clients, numbers, share that drops out), cheap ones first."""
    grid = itertools.product(NAMES, CLIENTS, SIZES, DROPOUTS)
    dear = {"ckks": 5, "light_secagg": 2}
    fast = sorted(grid, key=lambda c: (c[1] * c[2] * dear.get(c[0], 1) + 3000 * c[1] ** 2, c))
    fast.sort(key=lambda c: c[0] != "lightdp" or c[1] * c[2] > 5 * 10**7)
    return [*fast, *SLOW]


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
    start = time.process_time()
    made = secure_sum.simulated(name, agreed)
    set_up = time.process_time() - start
    gone = round(dropped * num_clients)
    dropouts = dict.fromkeys(range(gone), made.upload_step)
    found = protocol.run(made, words, dropouts=dropouts, clock=time.process_time)
    plain = integers[gone:].sum(axis=0, dtype=np.int64)
    if not np.array_equal(found.total, protocol.as_words(agreed, plain)):
        raise AssertionError(f"{name}: another sum than the plain one")
    seconds = sum(c.client_seconds + c.server_seconds for c in found.costs)
    return case | {
        "clock": "cpu",
        "set_up_s": set_up,
        "client_ms": 1e3 * sum(c.client_seconds / max(1, c.clients) for c in found.costs),
        "server_s": sum(c.server_seconds for c in found.costs),
        "round_s": seconds,
        "cpu_s": seconds,
        "up_kb": sum(c.bytes_up / max(1, c.clients) for c in found.costs) / 1e3,
        "down_kb": sum(c.bytes_down for c in found.costs) / num_clients / 1e3,
        "steps": [cost._asdict() for cost in found.costs],
    }


def _lightdp(num_clients: int, size: int) -> dict[str, Any]:
    """Key agreement of one client with all others, its noise of a round, and the server's sum."""
    agreed, drawing, serving = timing.shared_noise(num_clients, size)
    steps = [
        {
            "step": "keys",
            "client_ms": 1e3 * agreed,
            "bytes_up": 32,
            "bytes_down": 32 * (num_clients - 1),
        },
        {"step": "noise", "client_ms": 1e3 * drawing, "bytes_up": 4 * size, "bytes_down": 0},
    ]
    return {
        "clock": "cpu",
        "set_up_s": agreed,
        "client_ms": 1e3 * drawing,
        "server_s": serving,
        "round_s": num_clients * drawing + serving,
        "cpu_s": num_clients * drawing + serving,
        "up_kb": 4 * size / 1e3,
        "down_kb": 0.0,
        "steps": steps,
    }


_NUMBERS = ("client_ms", "server_s", "round_s", "up_kb", "down_kb")


def _key(found: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("protocol", "clients", "size", "dropout"))


def _computed(found: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its seconds as computed ones."""
    share = found["cpu_s"] / found["round_s"]
    return {**found, **{name: share * found[name] for name in _NUMBERS[:3]}}


def _line(low: Mapping[str, Any], high: Mapping[str, Any], size: int) -> dict[str, float]:
    """Costs of `size` numbers on the line through those of two other sizes."""
    share = (size - low["size"]) / (high["size"] - low["size"])
    return {name: max(0.0, low[name] + share * (high[name] - low[name])) for name in _NUMBERS}


def filled(rows: _tables.Rows) -> list[dict[str, Any]]:
    """All cells: measured ones, and the others from two smaller sizes of the same clients, of the
    same dropout if there are such, else of 10 %; "from" says which. A cell without any is left out.
    """
    known = {_key(found): _computed(found) for found in rows if not found.get("error")}
    cells = []
    for name, num, size, dropped in itertools.product(NAMES, CLIENTS, SIZES, DROPOUTS):
        if (name, num, size, dropped) in known:
            cells.append({**known[name, num, size, dropped], "from": "measured"})
            continue
        for other in (dropped, 0.1):
            pair = [known.get((name, num, d, other)) for d in SIZES if d != size]
            low, *more = [found for found in pair if found is not None] or [None]
            if low is not None and more:
                made = {"protocol": name, "clients": num, "size": size, "dropout": dropped}
                sizes = " and ".join(f"{found['size']:,}" for found in (low, *more))
                cells.append(made | _line(low, more[-1], size) | {"from": f"a line, {sizes}"})
                break
    return cells


def _digits(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_HEAD = ["protocol", "clients", "numbers", "ms a client", "server, s", "all parties, s"]


def table(rows: _tables.Rows) -> str:
    """A round of 10 % dropouts by protocol, clients and numbers; `~` where it is extrapolated."""
    body = []
    for found in filled(rows):
        if found["dropout"] != 0.1:
            continue
        about = "" if found["from"] == "measured" else "~"
        head = [f"`{found['protocol']}`", str(found["clients"]), f"{found['size']:,}"]
        body.append([*head, *(about + _digits(found[name]) for name in _NUMBERS)])
    order = lambda line: (int(line[1]), int(line[2].replace(",", "")), line[0])
    return _tables.markdown([*_HEAD, "up, kB", "down, kB"], sorted(body, key=order))


def large_table(rows: _tables.Rows) -> str:
    """Rounds apart from the grid, measured once, by the wall clock."""
    grid = set(itertools.product(NAMES, CLIENTS, SIZES, DROPOUTS))
    numbers = (*_NUMBERS[:3], "cpu_s", *_NUMBERS[3:])
    body = [
        [
            f"`{r['protocol']}`",
            str(r["clients"]),
            f"{r['size']:,}",
            *(_digits(r[n]) for n in numbers),
        ]
        for r in rows
        if r.get("clock", "wall") == "wall" and _key(r) not in grid
    ]
    return _tables.markdown([*_HEAD, "of it computing, s", "up, kB", "down, kB"], body)


def dropout_table(rows: _tables.Rows) -> str:
    """What dropouts cost: 50 clients with 10,000 numbers."""
    body = []
    for name in NAMES:
        mine = {r["dropout"]: r for r in filled(rows) if _key(r)[:3] == (name, 50, 10**4)}
        about = {d: "" if mine[d]["from"] == "measured" else "~" for d in DROPOUTS}
        body.append(
            [
                f"`{name}`",
                *(about[d] + _digits(mine[d]["client_ms"]) for d in DROPOUTS),
                *(about[d] + _digits(mine[d]["server_s"]) for d in DROPOUTS),
            ]
        )
    shares = [f"{d:.0%}" for d in DROPOUTS]
    head = [
        "protocol",
        *(f"ms a client, {s}" for s in shares),
        *(f"server, s, {s}" for s in shares),
    ]
    return _tables.markdown(head, body)


# What LightDP-FL's Table I says: which of our rows, overhead and accuracy in its words.
_TABLE_I = (
    ("lightdp", "LightDP-FL", "low", "high"),
    ("secagg", "SecAgg", "high", "high"),
    ("light_secagg", "SwiftAgg+", "medium", "high"),
    ("ckks", "HE + DP", "high", "high"),
    ("servers", "(SMPC + DP is not in it)", "", ""),
)


def claim_table(rows: _tables.Rows) -> str:
    """LightDP-FL's Table I, its words for overhead beside seconds and bytes: 50 clients, 10 %
    dropouts; each against LightDP-FL's own.
    """
    cells = {_key(found): found for found in filled(rows)}
    body = []
    for name, theirs, overhead, _ in _TABLE_I:
        line = [f"`{name}`", theirs, overhead]
        for size in SIZES:
            own, base = (cells[n, 50, size, 0.1] for n in (name, "lightdp"))
            about = "~" if {own["from"], base["from"]} != {"measured"} else ""
            line.append(f"{about}{own['client_ms'] / base['client_ms']:.2g}")
        line.append(f"{own['up_kb'] / base['up_kb']:.2g}")
        body.append(line)
    head = ["here", "there", "overhead in its Table I"]
    head += [f"a client's time / LightDP-FL's, {size:,} numbers" for size in SIZES]
    return _tables.markdown([*head, "bytes up / LightDP-FL's"], body)


def plot(path: pathlib.Path) -> None:
    """A client's milliseconds over the numbers and over the clients, from the committed rows."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fljax"  # the same file each time
    from matplotlib import pyplot

    cells = [found for found in filled(_tables.rows("secure_sums")) if found["dropout"] == 0.1]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for name in NAMES:
        for axis, fixed, along in (
            (axes[0], ("clients", 50), "size"),
            (axes[1], ("size", 10**5), "clients"),
        ):
            mine = sorted(
                (f[along], f["client_ms"], f["from"])
                for f in cells
                if f[fixed[0]] == fixed[1] and f["protocol"] == name
            )
            (line,) = axis.plot([x for x, *_ in mine], [y for _, y, _ in mine], label=name)
            for x, y, where in mine:
                face = line.get_color() if where == "measured" else "white"
                axis.plot([x], [y], "o", color=line.get_color(), markerfacecolor=face)
    for axis, label, title in (
        (axes[0], "numbers", "50 clients"),
        (axes[1], "clients", "100,000 numbers"),
    ):
        axis.set(xscale="log", yscale="log", xlabel=label, title=title)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms of computing, a client and round")
    axes[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Measures, writes the JSON after each cell; or draws it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of computing, at most")
    parser.add_argument("--quick", action="store_true", help="two cells, writes nothing")
    parser.add_argument("--only", nargs="*", default=[], help="protocols")
    parser.add_argument("--plot", type=pathlib.Path, help="draws the rows that are there")
    options = parser.parse_args()
    if options.plot is not None:
        plot(options.plot)
        return
    if options.quick:
        for name in ("secagg", "lightdp"):
            print(row(name, 10, 10**4, 0.1))
        return
    path = _harness.RESULTS / "secure_sums-cpu.json"
    before = json.loads(path.read_text())
    stamp = {name: before["environment"][name] for name in ("commit", "date")}
    rows = [{**stamp, "clock": "wall"} | found for found in before["rows"]]
    # What was too large may fit now; of older rows of `lightdp` nobody knows what they computed.
    stale = lambda r: r.get("error") or (r["clock"] == "wall" and r["protocol"] == "lightdp")
    rows = [r for r in rows if not stale(r)]
    here = {name: _harness.environment()[name] for name in ("commit", "date")}
    known, begin = {_key(found) for found in rows}, time.process_time()
    for case in cells():
        if case in known or (options.only and case[0] not in options.only):
            continue
        if time.process_time() - begin > 60 * options.minutes:
            print("time is up: the next run goes on")
            break
        rows.append(here | row(*case))
        gc.collect()
        print({key: value for key, value in rows[-1].items() if key != "steps"}, flush=True)
        note = "one process; messages in memory; sums checked against the plain ones"
        _harness.write("secure_sums", rows, note=note)
    print(table(rows))


if __name__ == "__main__":
    main()
