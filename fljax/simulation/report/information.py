"""The report's part on nats: what was told about each record, and what that leaves of it."""

import html
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.accounting import information
from fljax.accounting.information.spent import Spent
from fljax.accounting.words import at_least, at_most
from fljax.data import channel, store
from fljax.simulation.report import figures

_MOST_ROWS = 20
_SHOWN = ("nats", "linear_nats", "psnr")


def seen_records(
    task: Any, inputs: dict[str, Any], round_key: jax.Array, most: int = 10
) -> tuple[np.ndarray, np.ndarray] | None:
    """Client 0's first records `[n, H, W]`, and the same as its training saw them at their first
    use.
    """
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


def section(
    found: Spent, history: list[tuple[int, Spent]], seen: tuple[np.ndarray, np.ndarray] | None
) -> str:
    """The part of the report: what was told, client by client, and what that leaves of a record.

    Args:
      found: at the end. history: (rounds, the same after so many rounds).
      seen: `[n, H, W]` some records, and what training saw of them; None where they are no images
        or carry no noise.
    """
    standing = "certified" if found.certified else "NOT certified"
    bound = "certified" if found.mse_certified else "NOT certified"
    titles = (
        "client",
        "records",
        "uses of each",
        "nats per record",
        "added up use by use",
        "squared error at least",
        "PSNR at most",
    )
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    order = np.argsort(-found.nats, kind="stable")
    rows = "".join(
        f"<tr><td>{int(c)}</td><td>{int(found.num_records[c])}</td><td>{found.uses[c]:g}</td>"
        f"<td>{at_most(found.nats[c], 4)}</td><td>{at_most(found.linear_nats[c], 4)}</td>"
        f"<td>{at_least(found.mse[c], 4)}</td><td>{at_most(found.psnr[c], 3)} dB</td></tr>"
        for c in order[:_MOST_ROWS]
    )
    more = (
        f"<p>and {order.size - _MOST_ROWS} clients of no more nats</p>"
        if order.size > _MOST_ROWS
        else ""
    )
    words = (
        f"Nats ({standing}: {html.escape(found.reason)}; covariance: {found.covariance_source}) "
        "hold for each record of a client whose records vary no more than the covariance they "
        f"were computed for; {at_most(found.label_nats, 4)} nats of its label are among them. The "
        f"error ({bound}: {html.escape(found.mse_reason)}) is the expected squared error per "
        "number of a record that any reconstruction makes at least, PSNR the same in decibels "
        "over the range of public values."
    )
    missing = "".join(f"<li>{html.escape(line)}</li>" for line in information.NOT_PROMISED)
    rounds = [count for count, _ in history]
    series = [[float(after._asdict()[name].max()) for _, after in history] for name in _SHOWN]
    pictures = figures.nats(rounds, *series)
    if seen is not None:
        pictures += figures.seen_records(*seen)
    table = f'<table class="numbers"><tr>{head}</tr>{rows}</table>{more}'
    return (
        f"<section><h2>Information about each record</h2>{pictures}<p>{words}</p>{table}"
        f"<h3>What nats do not promise</h3><ul>{missing}</ul></section>"
    )
