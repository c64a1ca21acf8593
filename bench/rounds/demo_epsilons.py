"""What does the README's main job reach at other epsilons than its own?

    python -m bench.rounds.demo_epsilons [--seeds 3]
    # the README's plot, from the results, in a second
    python -m bench.rounds.demo_epsilons --plot docs/images/demo.svg

Runs `fljax simulate --target-epsilon EPSILON`, whole, for each epsilon and seed.
"""

import argparse
import collections
import math
import pathlib
import statistics
import sys

from bench import _harness, _tables
from bench.rounds import demo

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
# The plot's frame in user units: left, right, top, bottom; and the accuracies at its ends.
LEFT, RIGHT, TOP, BOTTOM = 64, 560, 44, 236
LOWEST, HIGHEST = 0.5, 1.0

STYLE = """.frame { stroke: #9db3d1; fill: none; } .grid { stroke: #dfe7f2; }
.curve { stroke: #3b5b8c; stroke-width: 2.5; fill: none; } .seed { fill: #3b5b8c; opacity: 0.45; }
.dot { fill: #3b5b8c; } .free { stroke: #b2521c; stroke-width: 2; stroke-dasharray: 7 5; }
text { fill: #1f2933; } .free-text { fill: #9a4414; }
@media (prefers-color-scheme: dark) {
.frame { stroke: #3d5270; } .grid { stroke: #26323f; } .curve { stroke: #8fb3e8; }
.seed, .dot { fill: #8fb3e8; } .free { stroke: #f0a070; } text { fill: #e6ebf1; }
.free-text { fill: #f0a070; }
}"""


def across(epsilon: float) -> float:
    """Where an epsilon is drawn: by its logarithm."""
    share = math.log(epsilon / EPSILONS[0]) / math.log(EPSILONS[-1] / EPSILONS[0])
    return LEFT + 24 + share * (RIGHT - LEFT - 48)


def up(accuracy: float) -> float:
    """Where an accuracy is drawn."""
    return BOTTOM - (accuracy - LOWEST) / (HIGHEST - LOWEST) * (BOTTOM - TOP)


def svg(rows: _tables.Rows) -> str:
    """The plot: a dot for each run, a line through the means, FedAvg without privacy above."""
    found = collections.defaultdict(list)
    for row in rows:
        found[row["target_epsilon"]].append(row["accuracy"])
    free = _tables.mean(rows, "accuracy_non_private")
    means = {epsilon: statistics.mean(values) for epsilon, values in sorted(found.items())}
    said = ", ".join(f"{mean:.0%} at {epsilon:g}" for epsilon, mean in means.items())
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 300" role="img" '
        'aria-labelledby="t d" font-family="system-ui, \'Segoe UI\', Roboto, sans-serif" '
        'font-size="14">',
        '<title id="t">Held-out accuracy of the demo against epsilon</title>',
        f'<desc id="d">Mean accuracy over seeds: {said}; {free:.0%} without privacy.</desc>',
        f"<style>\n{STYLE}\n</style>",
        f'<text x="{LEFT}" y="24">held-out accuracy on real digits, 500 clients</text>',
    ]
    for tenth in range(5, 11):
        y = up(tenth / 10)
        lines.append(f'<path class="grid" d="M{LEFT} {y:.1f} H{RIGHT}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{tenth}0 %</text>')
    lines.append(f'<path class="frame" d="M{LEFT} {TOP} V{BOTTOM} H{RIGHT}"/>')
    for epsilon in means:
        x = across(epsilon)
        lines.append(f'<text x="{x:.1f}" y="258" text-anchor="middle">{epsilon:g}</text>')
    lines.append(
        f'<text x="{(LEFT + RIGHT) / 2}" y="284" text-anchor="middle">epsilon of one client '
        "(smaller is more private)</text>"
    )
    lines.append(f'<path class="free" d="M{LEFT} {up(free):.1f} H{RIGHT}"/>')
    lines.append(
        f'<text class="free-text" x="{RIGHT}" y="{up(free) - 10:.1f}" text-anchor="end">'
        f"without privacy: {free:.1%}</text>"
    )
    points = " ".join(f"{across(epsilon):.1f},{up(mean):.1f}" for epsilon, mean in means.items())
    lines.append(f'<polyline class="curve" points="{points}"/>')
    for epsilon, values in sorted(found.items()):
        x = across(epsilon)
        for value in values:
            lines.append(f'<circle class="seed" cx="{x:.1f}" cy="{up(value):.1f}" r="3"/>')
        y = up(means[epsilon])
        lines.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        below = max(up(value) for value in values) + 24
        lines.append(
            f'<text x="{x:.1f}" y="{below:.1f}" text-anchor="middle">{means[epsilon]:.1%}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    """Runs all, or draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", metavar="FILE.svg", help="draw from the results and stop")
    options = parser.parse_args()
    if options.plot:
        pathlib.Path(options.plot).write_text(svg(_tables.rows("demo_epsilons")))
        return 0
    rows = [
        {"target_epsilon": epsilon, **demo.one_run(seed, "--target-epsilon", f"{epsilon:g}")}
        for epsilon in EPSILONS
        for seed in range(options.seeds)
    ]
    print(_harness.table(rows, list(rows[0])))
    note = "fljax simulate at several epsilons, one process for each epsilon and seed"
    print(_harness.write("demo_epsilons", rows, note=note))
    return 0


if __name__ == "__main__":
    sys.exit(main())
