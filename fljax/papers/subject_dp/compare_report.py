"""compare.html: what `fljax compare` found, as one page that opens offline."""

import html
import math
from collections.abc import Sequence

import numpy as np

from fljax.accounting import words
from fljax.papers import paper
from fljax.papers.subject_dp.claimed import CLAIMED_EPSILON, DELTA, Claim
from fljax.papers.subject_dp.compare import Result, Settings
from fljax.simulation.report import figures, run_page


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<table class="numbers">{run_page.head(*head)}{body}</table>'


def results_table(results: Sequence[Result]) -> list[list[str]]:
    """Method, true epsilon, noise multiplier, learning rate, accuracy with its interval, loss: one
    row each.
    """
    rows = []
    for result in results:
        epsilon = (
            words.rounded_up(result.epsilon, 4) if math.isfinite(result.epsilon) else "no guarantee"
        )
        noise = f"{result.config.noise_multiplier:.3f}" if result.config.noise_multiplier else "0"
        rate = f"{result.config.local_learning_rate:g}"
        accuracy = paper.percent(result.accuracy[:, -1])
        rows.append(
            [result.label, epsilon, noise, rate, accuracy, f"{result.loss[:, -1].mean():.3f}"]
        )
    return rows


def _claims(claims: Sequence[Claim]) -> str:
    rows = [
        [
            c.case,
            words.at_most(CLAIMED_EPSILON),
            words.at_least(c.lower, 5),
            words.rounded_up(c.upper, 5),
            c.errata,
            f"{c.noise_multiplier:.4g}",
        ]
        for c in claims
    ]
    head = (
        "claim of arXiv:2206.03617",
        "claimed",
        "true, at least",
        "true, at most",
        "errata",
        "noise multiplier",
    )
    note = (
        f"Epsilon at delta {words.at_most(DELTA)}, certified from both sides by privacy-loss "
        "distributions, recomputed just now. 100 rounds of 50 steps, items sampled with chance "
        "0.02, 8 items of a subject in a silo, 16 silos where said."
    )
    return run_page.section("What the paper claims and what is true", _rows(head, rows), note)


def render(
    settings: Settings,
    results: Sequence[Result],
    groups: dict[str, np.ndarray],
    claims: Sequence[Claim] = (),
) -> str:
    """The page as HTML without references to anything outside it.

    Args:
      settings: of the comparison.
      results: of `compare.run`.
      groups: for each split of the subjects the largest group of some batches.
      claims: of `claimed.claims`; empty: no table of them.
    """
    accuracy = {result.label: result.accuracy for result in results}
    loss = {result.label: result.loss for result in results}
    best = max(
        (r for r in results if math.isfinite(r.epsilon)), key=lambda r: r.accuracy[:, -1].mean()
    )
    cards = [
        run_page.card(
            words.at_most(settings.target_epsilon),
            f"true epsilon for each subject, delta {words.at_most(settings.target_delta)}",
            "main",
        ),
        run_page.card(best.label, "private method with the highest mean accuracy"),
        run_page.card(f"{best.accuracy[:, -1].mean():.1%}", "its held-out accuracy", "main"),
        run_page.card(
            f"{results[0].accuracy[:, -1].mean():.1%}", f"{results[0].label}, without a guarantee"
        ),
        run_page.card(str(settings.seeds), "seeds"),
    ]
    head = (
        "method",
        "true epsilon",
        "noise multiplier",
        "learning rate",
        "held-out accuracy, 95 %",
        "held-out loss",
    )
    who = f"{settings.accountant.upper()} accountant"
    who = "each by its tightest accountant" if settings.accountant == "auto" else who
    note = (
        "Everyone but FedAvg spends the same budget on all items of one subject in all silos, one "
        f"subject more or less, towards a server that sees every silo's update ({who}). Learning "
        "rates were given, not tuned on these seeds. LocalItemDP is accounted for subjects here; "
        "its own claim is about items."
    )
    parts = [
        f'<div class="cards">{"".join(cards)}</div>',
        run_page.section(
            "Who learns most at the same true privacy", _rows(head, results_table(results)), note
        ),
        '<div class="grid">',
        run_page.section(
            "Accuracy over rounds",
            figures.curves(accuracy, "held-out accuracy", percent=True),
            "Mean and range over seeds.",
        ),
        run_page.section(
            "Loss over rounds",
            figures.curves(loss, "cross-entropy, nats"),
            "Mean and range over seeds.",
        ),
        run_page.section(
            "Largest group in a batch",
            figures.group_sizes(groups),
            "Before any cap, on the data as it is spread: what the paper's LocalGroupDP scales "
            "its noise by.",
        ),
    ]
    if settings.alphas:
        even = {r.label: [float(r.accuracy[0, -1]), *r.skewed] for r in results}
        parts.append(
            run_page.section(
                "Accuracy against skew",
                figures.skew([1.0, *settings.alphas], even),
                "Seed 0. The cap on a subject's items in a silo makes private methods leave out "
                "what a skew piles up.",
            )
        )
    parts.append("</div>")
    if claims:
        parts.append(_claims(claims))
    title = f"Subject-level methods on {settings.dataset}"
    sub = (
        f"{settings.model}, {settings.num_silos} silos, {settings.num_rounds} rounds of "
        f"{settings.num_local_steps} "
        f"local steps, items sampled with chance {settings.item_sampling_prob:g}, "
        f"at most {settings.max_items_per_subject} items of a subject in a silo. Written by fljax."
    )
    return run_page.page(title, sub, "".join(parts))
