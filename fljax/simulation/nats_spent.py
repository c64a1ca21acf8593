"""What a run told about its records in nats, for schemes that count in them: for privacy.json, report and terminal."""

import html
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.accounting import information
from fljax.accounting.words import at_least, at_most
from fljax.data import channel, store
from fljax.schemes.channels.round import Spent
from fljax.simulation import budget
from fljax.simulation.report import figures

_MOST_ROWS = 20
_SHOWN = ("nats", "linear_nats", "psnr")


def spent(scheme: ModuleType, scheme_config: Any, task: Any, inputs: dict[str, Any], rounds: int) -> Spent | None:
    """None where the scheme does not count in nats, or adds no noise."""
    if not hasattr(scheme, "spent"):
        return None
    found: Spent | None = scheme.spent(scheme_config, task, inputs, rounds)
    return found


def history(
    scheme: ModuleType, scheme_config: Any, task: Any, inputs: dict[str, Any], rounds: int
) -> list[tuple[int, Spent]]:
    """`spent` after up to 20 counts of rounds, from the first to the last."""
    counts = np.unique(np.linspace(1, max(1, rounds), 20).astype(int))
    found = [(int(count), spent(scheme, scheme_config, task, inputs, int(count))) for count in counts]
    return [(count, after) for count, after in found if after is not None]


def seen_records(
    task: Any, inputs: dict[str, Any], round_key: jax.Array, most: int = 10
) -> tuple[np.ndarray, np.ndarray] | None:
    """Client 0's first records `[n, H, W]`, and the same as its training saw them at their first use."""
    calibrated = inputs.get("channel")
    if isinstance(task.client_data, store.Store):
        return None
    rows = np.asarray(task.client_data.indices)[0]
    rows = rows[rows >= 0][:most]
    x = np.asarray(task.dataset.train["x"])[rows]
    if calibrated is None or x.ndim != 4 or not rows.size:
        return None
    client_key = channel.client_keys(round_key, jnp.zeros(1, jnp.int32))[0]
    keys = channel.record_keys(client_key, jnp.arange(rows.size), 0)
    noisy = channel.noisy(channel.of_client(calibrated.noise, 0), jnp.asarray(x), keys)
    return x.mean(axis=-1), np.asarray(noisy).mean(axis=-1)


def claim(found: Spent, plan: budget.Plan) -> dict[str, Any]:
    """Plain data for privacy.json. Every list has one entry a client, which holds for each of its records."""

    def numbers(values: np.ndarray) -> list[float | str]:
        return [budget.number(value) for value in values]

    return {
        "certified": found.certified,
        "certified_by": found.reason,
        "covariance_source": found.covariance_source,
        "label_nats": found.label_nats,
        "mse_certified": found.mse_certified,
        "mse_certified_by": found.mse_reason,
        "mse_lower_bound": numbers(found.mse),
        "nats_added_up": numbers(found.linear_nats),
        "nats_per_record": numbers(found.nats),
        "not_promised": [*information.NOT_PROMISED, budget.of_seed(plan)],
        "num_records": [int(count) for count in found.num_records],
        "psnr_upper_bound": numbers(found.psnr),
        "uses_per_record": numbers(found.uses),
    }


def summary(found: Spent) -> str:
    """Two lines for the terminal, of the records that were told most about."""
    standing = "certified" if found.certified else f"NOT certified: {found.reason}"
    bound = "certified" if found.mse_certified else f"NOT certified: {found.mse_reason}"
    error, psnr = at_least(found.mse.min(), 4), at_most(found.psnr.max(), 3)
    return (
        f"information        at most {at_most(found.nats.max(), 4)} nats per record ({standing})\n"
        f"reconstruction     error >= {error}, PSNR <= {psnr} dB ({bound})"
    )


def section(found: Spent, history: list[tuple[int, Spent]], seen: tuple[np.ndarray, np.ndarray] | None) -> str:
    """The part of the report: what was told, client by client, and what that leaves of a record.

    Args:
      found: at the end. history: (rounds, the same after so many rounds).
      seen: `[n, H, W]` some records, and what training saw of them; None where they are no images or carry no noise.
    """
    standing = "certified" if found.certified else "NOT certified"
    bound = "certified" if found.mse_certified else "NOT certified"
    head = (
        "<tr><th>client</th><th>records</th><th>uses of each</th><th>nats per record</th><th>added up use by use</th>"
        "<th>squared error at least</th><th>PSNR at most</th></tr>"
    )
    order = np.argsort(-found.nats, kind="stable")
    rows = "".join(
        f"<tr><td>{int(c)}</td><td>{int(found.num_records[c])}</td><td>{found.uses[c]:g}</td>"
        f"<td>{at_most(found.nats[c], 4)}</td><td>{at_most(found.linear_nats[c], 4)}</td>"
        f"<td>{at_least(found.mse[c], 4)}</td><td>{at_most(found.psnr[c], 3)} dB</td></tr>"
        for c in order[:_MOST_ROWS]
    )
    more = f"<p>and {order.size - _MOST_ROWS} clients of no more nats</p>" if order.size > _MOST_ROWS else ""
    words = (
        f"Nats ({standing}: {html.escape(found.reason)}; covariance: {found.covariance_source}) hold for each record "
        "of a client whose records vary no more than the covariance they were computed for; "
        f"{at_most(found.label_nats, 4)} nats of its label are among them. The error ({bound}: "
        f"{html.escape(found.mse_reason)}) is the expected squared error per number of a record that any "
        "reconstruction makes at least, PSNR the same in decibels over the range of public values."
    )
    missing = "".join(f"<li>{html.escape(line)}</li>" for line in information.NOT_PROMISED)
    rounds = [count for count, _ in history]
    series = [[float(getattr(after, name).max()) for _, after in history] for name in _SHOWN]
    pictures = figures.nats(rounds, *series)
    if seen is not None:
        pictures += figures.seen_records(*seen)
    table = f'<table class="numbers">{head}{rows}</table>{more}'
    return (
        f"<section><h2>Information about each record</h2>{pictures}<p>{words}</p>{table}"
        f"<h3>What nats do not promise</h3><ul>{missing}</ul></section>"
    )
