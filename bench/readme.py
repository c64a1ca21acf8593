"""Splices measured tables into README and docs, from the committed JSON: `python -m
bench.readme`.
"""

import re
import sys
from collections.abc import Callable

from bench import _harness, _tables, headline
from bench.accountants import cold, correlated_errors, pld, renyi, their_tests, tight
from bench.aot import __main__ as aot
from bench.kernels import generators, pair_noise, per_example, randomness, water_filling
from bench.papers import (
    attacks,
    audits,
    bidirectional,
    bidirectional_attacks,
    channel,
    colluders,
    colluders_training,
    fresh_seeds,
    inversions,
    noise_in_average,
    overhead,
    pairwise_time,
    pairwise_training,
    reproduced,
    scheme_attacks,
    secure_sums,
    shadows,
    sweep,
    wfna_noise,
    wfna_training,
)
from bench.peers import __main__ as peers
from bench.rounds import (
    correlated_elsewhere,
    correlated_training,
    defaults,
    defaults_search,
    demo,
    record,
    scale,
    side_by_side,
    subject_steps,
)
from bench.rounds import round as one_round
from fljax.papers import reproduce

_REPRODUCED = " ".join(f"reproduce_{name}" for name in reproduce.NAMES)

# Page, then name between its markers: what makes the table, and whose JSON it is made from.
PAGES: dict[str, dict[str, tuple[Callable[[_tables.Rows], str], str]]] = {
    "README.md": {
        "headline": (
            headline.table,
            "round per_example per_example-gpu accounting accounting_cold",
        ),
    },
    "docs/reference/measured.md": {
        "demo": (demo.table, "demo"),
        "defaults_search": (defaults_search.table, "defaults_search"),
        "defaults": (defaults.table, "defaults"),
        "round": (one_round.table, "round"),
        "side_by_side": (side_by_side.table, "side_by_side-gpu"),
        "per_example": (per_example.table, "per_example"),
        "per_example_gpu": (per_example.gpu_table, "per_example-gpu"),
        "aot": (aot.table, "aot-tpu aot-cuda"),
        "accounting": (renyi.table, "accounting accounting_cold"),
        "accounting_pld": (pld.table, "accounting_pld accounting_cold"),
        "accounting_cold": (cold.table, "accounting_cold"),
        "accounting_tight": (tight.table, "accounting_tight"),
        "accounting_risk": (tight.risk_table, "accounting_tight"),
        "subject_steps": (subject_steps.table, "subject_steps"),
        "pair_noise": (pair_noise.table, "pair_noise"),
        "wfna": (water_filling.table, "wfna"),
        "generators": (generators.table, "generators"),
        "generators_gpu": (generators.gpu_table, "generators-gpu"),
        "randomness": (randomness.table, "randomness"),
        "record": (record.table, "record"),
    },
    "docs/explain/per_example.md": {"per_example_large": (per_example.large_table, "per_example")},
    "docs/explain/information.md": {
        "channel": (channel.table, "channel"),
        "channel_fig9": (reproduced.shown("fig9"), "reproduce_channel"),
        "channel_fig14": (reproduced.shown("fig14"), "reproduce_channel"),
        "channel_fig6": (reproduced.shown("fig6"), "reproduce_channel"),
        "channel_fig7": (reproduced.shown("fig7"), "reproduce_channel"),
        "channel_table2": (reproduced.shown("table2", "full"), "reproduce_channel_full"),
    },
    "docs/explain/accounting.md": {"their_tests": (their_tests.table, "their_tests")},
    "docs/explain/attacks.md": {
        "attacks": (attacks.table, "attacks"),
        "inversions": (inversions.table, "inversions"),
        "shadows": (shadows.table, "shadows"),
        "audits": (audits.table, "audits"),
        "scheme_attacks": (scheme_attacks.table, "scheme_attacks"),
        "sweep": (sweep.table, "sweep"),
    },
    "docs/appendix/rounds_measured.md": {
        "peers": (peers.table, "peers"),
        "scale": (scale.table, "scale_large scale"),
        "scale_disk": (scale.disk_table, "scale"),
        "scale_index": (scale.index_table, "scale"),
    },
    "docs/howto/language_models.md": {"aot_pod": (aot.pod_table, "aot-tpu aot-cuda")},
    "docs/explain/devices.md": {"aot_dealt": (aot.dealt_table, "aot-tpu aot-cuda")},
    "docs/explain/wfna_accounting.md": {"wfna_noise": (wfna_noise.table, "wfna_noise")},
    "docs/explain/correlated_noise.md": {
        "correlated_training": (correlated_training.table, "correlated_training"),
        "correlated_elsewhere": (
            correlated_elsewhere.table,
            "correlated_elsewhere correlated_costs",
        ),
        "correlated_errors": (correlated_errors.table, "correlated_errors"),
    },
    "docs/howto/reproduce.md": {
        "reproduce_subject-dp": (reproduced.table, "reproduce_subject-dp"),
        "reproduce_wfna": (reproduced.table, "reproduce_wfna"),
        "reproduce_lightdp": (reproduced.table, "reproduce_lightdp"),
        "reproduce_channel": (reproduced.table, "reproduce_channel"),
        "reproduce_bidirectional": (reproduced.table, "reproduce_bidirectional"),
        "reproduce_times": (reproduced.times_table, _REPRODUCED),
        "fresh_seeds": (fresh_seeds.table, "fresh_seeds"),
    },
    "docs/explain/water_filling.md": {
        "wfna_training": (wfna_training.table, "wfna_training"),
        "wfna_blocks": (reproduced.shown("blocks"), "reproduce_wfna"),
    },
    "docs/explain/view.md": {
        "colluders": (colluders.table, "colluders"),
        "colluders_training": (colluders_training.table, "colluders_training"),
        "noise_in_average": (noise_in_average.table, "noise_in_average"),
    },
    "docs/explain/secure_sums.md": {
        "secure_sums": (secure_sums.table, "secure_sums"),
        "secure_sums_claim": (secure_sums.claim_table, "secure_sums"),
        "secure_sums_dropouts": (secure_sums.dropout_table, "secure_sums"),
        "secure_sums_keyed": (secure_sums.keyed_table, "secure_sums"),
        "secure_sums_steps": (secure_sums.step_table, "secure_sums"),
    },
    "docs/explain/pair_noise.md": {
        "overhead": (overhead.table, "overhead"),
        "pairwise_time": (pairwise_time.table, "pairwise_time"),
        "lightdp_fig4": (reproduced.shown("fig4"), "reproduce_lightdp"),
        "lightdp_table1": (reproduced.shown("table1"), "reproduce_lightdp"),
        "pairwise_training": (pairwise_training.table, "pairwise_training"),
    },
    "docs/explain/subject_level.md": {
        "subject_claims": (reproduced.subject_claims_table, "reproduce_subject-dp"),
        "subject_levels": (reproduced.subject_levels_table, "reproduce_subject-dp"),
    },
    "docs/explain/bidirectional.md": {
        "bidirectional_attacks": (bidirectional_attacks.table, "bidirectional_attacks"),
        "bidirectional_reconstruction": (
            bidirectional_attacks.reconstruction_table,
            "bidirectional_attacks",
        ),
    },
    "docs/appendix/bidirectional_measured.md": {
        "bidirectional": (bidirectional.table, "bidirectional"),
        "bidirectional_time": (bidirectional.time_table, "bidirectional"),
        **{
            f"bidirectional_{item}": (reproduced.shown(item), "reproduce_bidirectional")
            for item in ("fig3", "table1", "table2", "table3", "table4", "table5", "cifar100")
        },
    },
}


def tables(page: str = "README.md") -> dict[str, str]:
    """The tables of a page."""
    return {
        name: make([row for part in names.split() for row in _tables.rows(part)])
        for name, (make, names) in PAGES[page].items()
    }


def main() -> int:
    """Rewrites what stands between the markers."""
    for page in PAGES:
        path = _harness.ROOT / page
        text = path.read_text()
        for name, table in tables(page).items():
            block = f"<!-- {name} -->\n{table}\n<!-- end -->"
            between = rf"<!-- {name} -->\n.*?<!-- end -->"
            text = re.sub(between, lambda _, block=block: block, text, flags=re.DOTALL)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
