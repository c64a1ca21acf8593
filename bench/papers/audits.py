"""How much of its certificate does an audit measure, scheme by scheme?

    python -m bench.papers.audits

Every scheme with an epsilon is audited in its small world at noise multiplier 1, by many runs, as
its promise's adversary sees it and as one who sees the averaged model alone would; and by 5,000
runs at noise multipliers 1 and 2, where the scheme with half the noise is the control. What so many
runs prove of the worst that the event allows is `rounds.reachable`: where the attack finds less
than four fifths of the certificate, it is played 100,000 times.
"""

import argparse
import dataclasses
from typing import Any

import jax

from bench import _harness, _tables
from bench.rounds import defaults
from fljax import schemes
from fljax.attacks import rounds
from fljax.schemes.base import Scheme

RUNS, FEW, MANY = 20_000, 5_000, 100_000
SHARE = 0.8  # of a certificate that an attack should find
DELTA, CONFIDENCE = 0.05, 0.99
_HOW: dict[str, Any] = {"delta": DELTA, "confidence": CONFIDENCE}


def audit(name: str, runs: int) -> dict[str, Any]:
    """The row of one scheme: the attack that proves most."""
    scheme = schemes.get(name)
    found = [sharp(scheme, name, kind, runs) for kind in rounds.kinds(scheme)]
    row = max(found, key=lambda each: each["new"])
    if runs == RUNS and row["new"] < SHARE * row["certified"]:
        kind = rounds.kinds(scheme)[found.index(row)]
        row = sharp(scheme, name, kind, MANY)
    alone = dataclasses.replace(scheme, uploads_seen=False, upload_noise=None, released=None)
    config = rounds.config(name, noise_multiplier=1.0)
    scores = rounds.play(rounds.one_unit(alone, config), jax.random.key(0), runs)
    old = rounds.judge(scheme.event(config), scores, certified=row["certified"], **_HOW).measured
    return {"scheme": name, "old": round(old, 4), **row}


def sharp(scheme: Scheme, name: str, kind: rounds.Attack, runs: int) -> dict[str, Any]:
    """What one attack measures, and whether few runs catch half the noise."""
    games = {z: kind(scheme, rounds.config(name, noise_multiplier=z)) for z in (0.5, 1.0, 2.0)}
    times = {0.5: min(runs, RUNS), 1.0: runs, 2.0: min(runs, RUNS)}
    scores = {z: rounds.play(games[z], jax.random.key(round(2 * z)), times[z]) for z in games}
    event = games[1.0].event
    honest = rounds.judge(event, scores[1.0], **_HOW)
    caught = []
    for z in (1.0, 2.0):
        # Not the first of them, from which the weights of several numbers are learnt.
        few = tuple(world[..., -FEW:] for world in scores[z / 2])
        claim = rounds.certified_epsilon(games[z].event, DELTA)
        caught.append(rounds.judge(event, few, certified=claim, **_HOW).measured > claim)
    return {
        "unit": event.privacy_unit,
        "relation": str(event.neighboring_relation),
        "sees": games[1.0].sees,
        "certified": round(honest.certified, 4),
        "new": round(honest.measured, 4),
        "reachable": round(rounds.reachable(event, runs, **_HOW), 4),
        "half_the_noise_caught_at_1": caught[0],
        "half_the_noise_caught_at_2": caught[1],
        "runs": runs,
    }


def table(rows: _tables.Rows) -> str:
    """Shares of the certificate by scheme, the averaged model's beside those of the adversary."""
    share = lambda part, whole: f"{100 * part / whole:.0f} %"
    body = [
        [
            f"`{row['scheme']}`",
            f"{row['certified']:.3f}",
            share(row["old"], row["certified"]),
            share(row["new"], row["certified"]),
            share(row["new"], row["reachable"]),
            f"{row['runs']:,}",
            "yes" if row["half_the_noise_caught_at_1"] else "no",
            "yes" if row["half_the_noise_caught_at_2"] else "no",
        ]
        for row in sorted(rows, key=lambda row: str(row["scheme"]))
    ]
    head = [
        "scheme",
        "certified epsilon",
        "of it, from the averaged model",
        "of it, from what the adversary sees",
        "of what so many runs can prove",
        "runs",
        "half the noise caught at 1",
        "at 2",
    ]
    return _tables.markdown(head, body)


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two schemes, no JSON: does it run?")
    parser.add_argument("--only", nargs="*", default=[], help="schemes; other rows stay")
    options = parser.parse_args()
    names = [name for name in schemes.names() if schemes.get(name).promise == "epsilon"]
    rows = {}
    for name in ["gd_dp", "local_dp"] if options.quick else names:
        if name in defaults.WHOLE_NUMBERS or (options.only and name not in options.only):
            continue
        rows[name] = audit(name, FEW if options.quick else RUNS)
        print(rows[name], flush=True)
    for name, other in defaults.WHOLE_NUMBERS.items():
        if other in rows:
            rows[name] = rows[other] | {"scheme": name}
    found = [rows[name] for name in sorted(rows)]
    print(table(found))
    if options.only:
        print(_harness.amend("audits", found, keys=("scheme",)))
    elif not options.quick:
        note = f"epsilons at delta {DELTA}, measured ones at confidence {CONFIDENCE}"
        print(_harness.write("audits", found, note=note))


if __name__ == "__main__":
    main()
