"""report.html: one file with everything in it, that opens offline and needs no script."""

import html
import inspect
import math
import pathlib
import re
from typing import Any

import jax
import numpy as np

from fljax import schemes
from fljax.accounting import gaussian, words
from fljax.accounting.information.spent import Spent
from fljax.data import store
from fljax.simulation import as_printed, baseline, client_values, nats_spent, remarks
from fljax.simulation import budget as spending
from fljax.simulation import config as config_lib
from fljax.simulation.outcome import Outcome
from fljax.simulation.record import chain, folder, provenance
from fljax.simulation.report import client_accuracy, figures, information, picture

CSS = """
:root { color-scheme: light dark; --page: #f5f6f8; --paper: #fff; --ink: #1f2933; --soft: #55606e;
  --line: #dfe3e8; --accent: #1f5fbf; }
@media screen and (prefers-color-scheme: dark) { :root { --page: #12161b; --paper: #1b2129;
  --ink: #e6eaf0; --soft: #a9b4c2; --line: #333d4a; --accent: #7db0ff; } }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 28px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 0 0 8px; }
a { color: var(--accent); }
.sub { color: var(--soft); margin: 4px 0 24px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 16px;
  margin-bottom: 16px; }
.grid { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); }
.card, section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px 20px; }
/* Charts never get smaller than can be read: where there is no room they are moved sideways. */
section { margin-bottom: 16px; min-width: 0; } section { overflow-x: auto; }
.grid section { margin: 0; } .grid { margin-bottom: 16px; }
.card b { display: block; font-size: 26px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 14px; }
.main b { color: var(--accent); }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); }
.note { color: var(--soft); font-size: 14px; margin: 8px 0 0; }
blockquote { margin: 8px 0; padding: 4px 16px; border-left: 4px solid var(--accent); }
table { border-collapse: collapse; font-size: 14px; width: 100%; }
td, th { padding: 3px 16px 3px 0; vertical-align: top; text-align: left; }
th[scope="row"] { font-weight: 500; }
.columns td:last-child, code { font-family: ui-monospace, monospace; }
caption { text-align: left; color: var(--soft); padding: 8px 0 4px; }
summary { color: var(--soft); font-size: 14px; cursor: pointer; }
.numbers th { padding: 3px 16px 3px 0; color: var(--soft); font-weight: 600; }
.numbers td { font-variant-numeric: tabular-nums; border-top: 1px solid var(--line); }
.numbers th[scope="row"] { border-top: 1px solid var(--line); }
.columns { display: grid; gap: 24px;
  grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); }
h3 { font-size: 14px; margin: 8px 0 4px; color: var(--soft); }
td, blockquote, li, code { overflow-wrap: anywhere; }
.words td { overflow-wrap: break-word; }
@media (max-width: 520px) {
  main { padding: 16px 12px 32px; } section { padding: 12px 10px; }
  .cards { grid-template-columns: 1fr 1fr; }
  .numbers td, .numbers th { padding-right: 8px; overflow-wrap: normal; }
}
@media print { body { background: none; font-size: 11pt; } main { max-width: none; padding: 0; }
  section { break-inside: avoid; overflow: visible; } svg { min-width: 0 !important; }
  details { display: none; } }
""" + picture.css()
_EXAMPLES, _MISTAKES = 24, 12
_LEAST_EXAMPLES = 7  # of a client, for a share of them to say something
_NO_EPSILON = {True: "epsilon: the claim is in nats", False: "no guarantee: epsilon is infinite"}


def card(value: str, label: str, css: str = "") -> str:
    """One big number with what it is."""
    return (
        '<div class="card '
        f'{css}"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
    )


def head(*names: str) -> str:
    """The first row of a table."""
    cells = (f'<th scope="col">{html.escape(name)}</th>' for name in names)
    return f"<tr>{''.join(cells)}</tr>"


def section(title: str, body: str, note: str = "") -> str:
    """A box; `body` is HTML, title and note are text."""
    note = f'<p class="note">{html.escape(note)}</p>' if note else ""
    return f"<section><h2>{html.escape(title)}</h2>{body}{note}</section>"


def _cards(outcome: Outcome) -> str:
    plan, last = outcome.plan, outcome.records[-1]
    epsilon = plan.epsilons[outcome.rounds]
    guaranteed = math.isfinite(epsilon)
    kind = spending.model_name(outcome.plan, outcome.rounds)
    what, shown = ("accuracy", "{:.1%}") if "test_accuracy" in last else ("loss", "{:.4g}")
    cards = [card(shown.format(float(last[f"test_{what}"])), f"held-out {what}, {kind}", "main")]
    if f"baseline_test_{what}" in last:
        cards.append(
            card(
                shown.format(float(last[f"baseline_test_{what}"])), f"held-out {what}, non-private"
            )
        )
    budget = "" if plan.target_epsilon is None else f" of {words.at_most(plan.target_epsilon)}"
    paper = as_printed.printed_claim(
        outcome.config.implementation, plan.scheme_config, outcome.rounds, plan.delta
    )
    if paper:
        cards.append(
            card(
                spending.shown_epsilon(float(paper["claimed_epsilon"])),
                "epsilon that the paper claims; NOT certified",
            )
        )
    told = _told(outcome)
    if told is not None:
        standing, bound = (
            "certified" if c else "NOT certified" for c in (told.certified, told.mse_certified)
        )
        cards += [
            card(
                words.at_most(told.nats.max(), 4),
                f"nats about a record at most, {standing}",
                "" if guaranteed else "main",
            ),
            card(
                f"{words.at_most(told.psnr.max(), 3)} dB",
                f"PSNR of any reconstruction at most, {bound}",
            ),
        ]
    cards += [
        card(
            spending.shown_epsilon(epsilon) if guaranteed else "none",
            ("epsilon spent" + budget) if guaranteed else _NO_EPSILON[plan.in_nats],
            "main",
        ),
    ]
    if guaranteed:
        cards.append(
            card(
                words.rounded_up(plan.delta, 3),
                f"delta; 1 / {plan.num_units} is {1 / plan.num_units:.2e}",
            )
        )
    cards += [
        card(str(plan.num_units), f"protected units: {plan.event.privacy_unit}s"),
        card(str(outcome.rounds), "rounds"),
    ]
    lost = remarks.num_lost(outcome.records)
    if lost:
        cards.append(card(str(lost), "rounds lost"))
    return f'<div class="cards">{"".join(cards)}</div>'


def _remarks(outcome: Outcome) -> str:
    found = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in remarks.remarks(outcome))
    return section("Before you read on", found) if found else ""


def _curves(outcome: Outcome) -> str:
    records = outcome.records
    guaranteed = math.isfinite(outcome.plan.epsilons[outcome.rounds])
    name = spending.model_name(outcome.plan, outcome.rounds)
    beside = ""
    if outcome.plan.baseline:
        plain = baseline.settings(outcome.config.model)
        own_task = config_lib.OWN in outcome.config.model.loss + outcome.config.model.model
        tuned = "not tuned, since model or loss are your own" if own_task else "tuned for the task"
        beside = (
            f"Non-private: FedAvg on the same cohorts, {tuned}: step size {plain.learning_rate:g}, "
            f"batches of {plain.batch_size}, {plain.num_epochs} passes of a client in a round, "
            f"server momentum {plain.server_momentum:g}."
        )
    own_loss = (
        "Training loss is the clients' own, where their scheme reports it: for local training, "
        "in the last epoch."
    )
    parts = []
    if "test_accuracy" in records[-1]:
        parts.append(section("Accuracy over rounds", figures.accuracy(records, name), beside))
        beside = ""
    parts.append(
        section(
            "Loss over rounds",
            figures.loss(records, name, outcome.config.model.loss),
            f"{own_loss} {beside}".strip(),
        )
    )
    measured = (name for name in outcome.task.measures.names if name != "accuracy")
    for metric in (*measured, *outcome.task.measures.metrics):
        parts.append(
            section(
                f"{metric.replace('_', ' ')} over rounds", figures.metric(records, metric, name)
            )
        )
    if guaranteed:
        parts += [
            section(
                "Privacy spent over rounds", figures.epsilon(records, outcome.plan.target_epsilon)
            ),
            section("Privacy against utility", figures.utility(records)),
        ]
    return f'<div class="grid">{"".join(parts)}</div>'


def _views(outcome: Outcome) -> str:
    scheme, plan = outcome.config.implementation, outcome.plan
    claimed = plan.epsilons[outcome.rounds]
    if scheme.views is None or not math.isfinite(claimed):
        return ""
    found = scheme.views(plan.scheme_config, outcome.task.round_key, outcome.rounds)
    if found is None:
        return ""
    epsilons = [np.asarray(gaussian.mu_to_epsilon(who.mu, plan.delta)) for who in found.adversaries]
    shown = min(60, found.reached.shape[1])
    picture = figures.uploads(found.reached, found.meaning, epsilons[0], claimed, shown)
    titles = head("adversary", "sees", "epsilon at most, client by client")
    rows = "".join(
        f"<tr><td>{html.escape(who.who)}{'' if who.promised else ' (outside the claim)'}</td>"
        f"<td>{html.escape(who.sees)}</td>"
        f"<td>{spending.shown_epsilon(values.min())} to "
        f"{spending.shown_epsilon(values.max())}</td></tr>"
        for who, values in zip(found.adversaries, epsilons, strict=True)
    )
    note = (
        f"The first {shown} of {found.reached.shape[1]} clients; bars are of the first adversary "
        f"in the table. Epsilon is of these {outcome.rounds} rounds at delta "
        f"{words.rounded_up(plan.delta, 3)}, by the exact composition of Gaussian views, for what "
        "really arrived. What is claimed holds whoever straggles, by the accountant that the "
        "privacy statement names."
    )
    return section("Who saw what", f'{picture}<table class="numbers">{titles}{rows}</table>', note)


def _exposure(outcome: Outcome) -> str:
    scheme = outcome.config.implementation
    if scheme.exposure is None:
        return ""
    titles = head("who", "about", "can learn")
    cells = (
        "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        for row in scheme.exposure(outcome.plan.scheme_config)
    )
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    note = "In words; the attacks named here measure it."
    return section("What each side can learn", f"<table>{titles}{rows}</table>", note)


def _told(outcome: Outcome) -> Spent | None:
    scheme = outcome.config.implementation
    return nats_spent.spent(
        scheme, outcome.plan.scheme_config, outcome.task, outcome.inputs, outcome.rounds
    )


def _nats(outcome: Outcome) -> str:
    found = _told(outcome)
    if found is None:
        return ""
    scheme = outcome.config.implementation
    history = nats_spent.history(
        scheme, outcome.plan.scheme_config, outcome.task, outcome.inputs, outcome.rounds
    )
    seen = information.seen_records(outcome.task, outcome.inputs, outcome.task.round_key)
    return information.section(found, history, seen)


def _clients(outcome: Outcome) -> str:
    sizes = store.num_examples(outcome.task.ordinary)
    if isinstance(outcome.task.ordinary, store.Store):
        cuts = ", ".join(
            f"{int(np.quantile(sizes, q))}" for q in (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
        )
        note = f"{sizes.size} clients on disk, {sizes.sum()} examples."
        return section(
            "What the clients hold", f"<p>Examples a client, least to most: {cuts}.</p>", note
        )
    table = np.asarray(outcome.task.ordinary.indices)
    dataset = outcome.task.dataset
    shown = min(60, len(table))
    counts = (
        f"Examples a client: {sizes.min()} to {sizes.max()}, median {int(np.median(sizes))}; "
        f"{sizes.sum()} in all."
    )
    names = outcome.task.client_names
    if names is not None:
        counts += (
            f" Clients go by {outcome.config.data.client_column}: {names[0]} to {names[-1]}, "
            f"{names.size} of them."
        )
    if not dataset.num_classes or dataset.train["y"].ndim != 1:
        return section("What the clients hold", f"<p>{html.escape(counts)}</p>")
    note = f"The first {shown} of {len(table)} clients. {counts}"
    return section(
        "What the clients hold",
        figures.labels(table, dataset.train["y"], dataset.num_classes, shown),
        note,
    )


def _served(outcome: Outcome) -> str:
    measures = outcome.task.measures
    if measures.task is None:
        return ""
    what = measures.names[0].replace("_", " ")
    shown = "{:.1%}" if what == "accuracy" else "{:.4g}"
    models = {spending.model_name(outcome.plan, outcome.rounds): outcome.params}
    if outcome.baseline_params is not None:
        models["non-private"] = outcome.baseline_params
    titles = head("model", *(f"{q}th percentile" for q in client_accuracy.PERCENTILES), "mean")
    rows, count, damaged, few = "", 0, 0, 0
    for name, params in models.items():
        own = outcome.own_models if params is outcome.params else None
        found = client_accuracy.accuracies(
            outcome.task.model.apply, params, outcome.task.ordinary, own, measures.task
        )
        enough = found.examples >= _LEAST_EXAMPLES
        few, damaged = int((~enough).sum()), len(found.damaged)
        found = found._replace(
            accuracy=found.accuracy[enough],
            client_ids=found.client_ids[enough],
            examples=found.examples[enough],
        )
        count = found.accuracy.size
        percentiles = client_accuracy.percentiles(found)
        cells = "".join(f"<td>{shown.format(value)}</td>" for value in percentiles)
        mean = found.accuracy.mean() if count else math.nan
        rows += f'<tr><th scope="row">{name}</th>{cells}<td>{shown.format(mean)}</td></tr>'
    note = (
        f"{what.capitalize()} on each client's own examples, over {count} clients that hold "
        f"{_LEAST_EXAMPLES} or more; {few} that hold fewer are left out, since a share of so few "
        "says nothing of a client. They were "
        "trained on, and these numbers carry no noise: diagnostics, not private."
    )
    if not count:
        note = (
            f"No client holds {_LEAST_EXAMPLES} examples or more, and a share of fewer says "
            "nothing of a client."
        )
    note += f" {damaged} more are damaged on disk and left out." if damaged else ""
    if not count:
        return section("How the model serves each client", "", note)
    table = f'<table class="numbers">{titles}{rows}</table>'
    return section("How the model serves each client", table, note)


def _metrics(outcome: Outcome) -> str:
    """Own metrics at the end, held out and over clients."""
    last, rows = outcome.records[-1], ""
    prefixes = {spending.model_name(outcome.plan, outcome.rounds): "", "non-private": "baseline_"}
    for metric in outcome.task.measures.metrics:
        for model, prefix in prefixes.items():
            by_client = last.get(f"{prefix}clients_{metric}")
            if by_client is None:
                continue
            values = np.asarray([float(value) for value in by_client.values()])
            numbers = [float(last[f"{prefix}test_{metric}"]), *client_values.percentiles(values)]
            cells = "".join(f"<td>{value:.4g}</td>" for value in numbers)
            named = f"<td>{html.escape(metric)}</td><td>{model}</td>"
            rows += f"<tr>{named}{cells}<td>{values.size}</td></tr>"
    if not rows:
        return ""
    percentiles = (f"{q}th percentile" for q in client_values.PERCENTILES)
    titles = head("metric", "model", "held out", *percentiles, "clients")
    note = (
        "Percentiles are over clients, on their own examples, without noise: diagnostics, not "
        "private."
    )
    table = f'<table class="numbers">{titles}{rows}</table>'
    return section("Your own metrics", table, note)


def _predictions(outcome: Outcome) -> str:
    test = outcome.task.dataset.test
    if outcome.task.dataset.task != "classes" or not outcome.task.dataset.num_classes:
        return ""
    if test["x"].ndim != 4:
        return ""  # not pictures of classes
    logits = jax.jit(jax.vmap(outcome.task.model.apply, (None, 0)))(outcome.params, test["x"])
    predicted = np.asarray(logits.argmax(-1))
    right, wrong = (
        np.flatnonzero(predicted == test["y"])[:_EXAMPLES],
        np.flatnonzero(predicted != test["y"])[:_MISTAKES],
    )
    chosen = np.concatenate([right, wrong])
    picture = figures.predictions(test["x"][chosen], test["y"][chosen], predicted[chosen])
    model = "private model" if math.isfinite(outcome.plan.epsilons[outcome.rounds]) else "model"
    note = (
        f"{len(right)} held-out examples that the {model} gets right, then {len(wrong)} that "
        "it gets wrong."
    )
    return section(f"What the {model} says", picture, note)


def _statement(outcome: Outcome) -> str:
    claim = spending.statement(outcome.plan, outcome.rounds)
    items = "".join(f"<li>{html.escape(line)}</li>" for line in claim["not_covered"])
    body = f"<blockquote>{html.escape(claim['guarantee'])}</blockquote>"
    if items:
        body += f"<h3>What this does not cover</h3><ul>{items}</ul>"
    name, promise = outcome.config.scheme, _promise(outcome.config.implementation.make)
    if promise:
        which = (
            f"The page Guarantees of fljax's documentation names the test that checks "
            f"fljax.schemes.{name}.make."
        )
        once = words.describe(outcome.plan.event.mechanism)
        told = f"<p>{html.escape(promise)}</p><p>Here event(config) is {html.escape(once)}.</p>"
        told += f'<p class="note">{html.escape(which)}</p>' if name in schemes.NAMES else ""
        body += f"<details><summary>What one round promises, and what is idealised</summary>{told}"
        body += "</details>"
    return section("Privacy statement", body)


def _promise(make: Any) -> str:
    """The paragraph of a scheme's `make` that says what it guarantees; "" without one."""
    written = inspect.getdoc(make) or ""
    found = re.search(r"^Guarantee: (.*?)(?:\n\n|\Z)", written, re.DOTALL | re.MULTILINE)
    return "" if found is None else " ".join(found[1].split()).replace("`", "")


def _paper(outcome: Outcome) -> str:
    plan = outcome.plan
    claim = as_printed.printed_claim(
        outcome.config.implementation, plan.scheme_config, outcome.rounds, plan.delta
    )
    if not claim:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(k)}</th><td>The paper {html.escape(v)}.</td></tr>'
        for k, v in claim["errata"].items()
    )
    claimed = spending.shown_epsilon(float(claim["claimed_epsilon"]))
    note = (
        f"This run follows the paper's own formulas, which claim epsilon {claimed}. "
        "That number is not certified, for these reasons. What holds is in the privacy statement."
    )
    return section("As printed", f"<table>{rows}</table>", note)


def _table(title: str, values: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(k)}</th><td>{html.escape(str(v))}</td></tr>'
        for k, v in values.items()
    )
    return f"<div><h3>{html.escape(title)}</h3><table>{rows}</table></div>"


def _configuration(outcome: Outcome) -> str:
    sections = config_lib.to_sections(outcome.config)
    if (
        outcome.plan.fixed_seed
    ):  # whoever knows it can remove the noise, and a report is there to be passed on
        sections["run"]["seed"] = "fixed: an experiment"
    fixed = outcome.plan.scheme_config.noise_multiplier is None
    if sections["scheme"]["noise_multiplier"] == config_lib.NONE and not fixed:
        calibrated = outcome.plan.scheme_config.noise_multiplier
        sections["scheme"]["noise_multiplier"] = f"{calibrated:.5g} (calibrated)"
    tables = "".join(_table(name, values) for name, values in sections.items())
    return section("Configuration", f'<div class="columns">{tables}</div>')


def _made(outcome: Outcome) -> str:
    """By which program, when, and the files beside the page."""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th>'
        f"<td><code>{html.escape(value)}</code></td></tr>"
        for name, value in provenance.lines(outcome.run_dir)
    )
    links = ", ".join(
        f'<a href="{name}">{name}</a>: {what}'
        for name, what in _FILES.items()
        if (outcome.run_dir / name).is_file()
    )
    body = f"<table>{rows}</table><p>{links}.</p>"
    note = "The links work while this page lies in the run's folder."
    return section("How this was made", body, note)


_FILES = {
    folder.METRICS: "every round",
    folder.PRIVACY: "the claim and its ledger",
    folder.CONFIG: "all settings",
    folder.MODEL: "what the model takes and gives",
}


def render(outcome: Outcome, beside: str = "") -> str:
    """The report of a run that has ended, as one HTML document without references to anything
    outside it. beside: sections that others made, as HTML.
    """
    config = outcome.config
    title = f"{config.data.dataset}, {config.scheme}"
    column = config.data.client_column
    dealt = f"partition {config.data.partition}" if column is None else f"one for each {column}"
    sub = (
        f"{config.model.model} trained by {config.data.num_clients} clients, {dealt}. Written "
        "by fljax."
    )
    if outcome.plan.fixed_seed:
        sub += (
            " An experiment with a fixed seed, by which its noise can be removed: no model of "
            "it is to be released."
        )
    parts = (
        _cards,
        _remarks,
        _curves,
        _paper,
        _statement,
        lambda _: beside,
        _nats,
        _views,
        _exposure,
        _clients,
        _served,
        _metrics,
        _predictions,
        _configuration,
        _made,
    )
    body = "".join(part(outcome) for part in parts)
    return page(title, sub, body)


def page(title: str, sub: str, body: str) -> str:
    """The HTML document around `body`, which is HTML; title and sub are text."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}: fljax run</title><style>{CSS}</style></head><body><main>"
        f"<h1>{html.escape(title)}</h1><p "
        f'class="sub">{html.escape(sub)}</p>{body}</main></body></html>\n'
    )


def write(outcome: Outcome, beside: str = "") -> pathlib.Path:
    """Writes `report.html` into the run folder, closes the run's hash chain, and returns the path.

    beside: as of `render`.

    Raises:
      ChainError: the chain is damaged. DiskFullError: no room.
    """
    path = outcome.run_dir / folder.REPORT
    folder.write_atomically(path, render(outcome, beside))
    chain.close(outcome.run_dir, outcome.rounds)
    return path
