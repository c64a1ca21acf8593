"""Canaries of a run: units of crafted gradients among its training data, each there by a coin, so
that the released model says what one run told about each.

A canary is a unit as the scheme's event counts them: a client with one example, or an example (and
a subject of its own) among a client's others. Its gradient moves one parameter, one that ordinary
examples hardly move, and is longer than any clip norm. The claim of a run covers its canaries.
"""

import json
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fljax import data
from fljax.data import canaries, subjects
from fljax.local import keyed
from fljax.simulation import seeds
from fljax.simulation.record import folder
from fljax.types import LossFn, Params

_COINS = 2  # names the stream of numpy randomness that says which canaries are there
_NORM = 1e3
_LOOKED_AT = 256  # ordinary examples by which quiet parameters are found


class Planted(NamedTuple):
    """direction: of each canary's gradient. included: bool `[m]`, fair coins: who is there.
    ordinary: clients without canaries. plain_loss: the loss of ordinary examples, 0 of canaries.
    """

    direction: canaries.Direction
    included: np.ndarray
    ordinary: data.ClientData
    plain_loss: LossFn


class Scores(NamedTuple):
    """What one run told: `scores` float `[m]`, how far the model moved along each canary, and
    `included` bool `[m]`.
    """

    scores: npt.NDArray[np.float64]
    included: npt.NDArray[np.bool]


def coins(seed: seeds.Seed, num_canaries: int) -> np.ndarray:
    """Which canaries are there, bool `[num_canaries]`."""
    rng = np.random.default_rng([seeds.number(seed, "canaries"), _COINS])
    return rng.integers(0, 2, num_canaries).astype(bool)


def check(config: Any) -> None:
    """Raises ValueError for a run whose canaries would tell nothing of what its scheme promises."""
    scheme = config.implementation
    reason = None
    if scheme.promise != "epsilon":
        reason = "promises no epsilon"
    elif scheme.needs_network:
        reason = "takes losses of networks only"
    elif config.search is not None:
        reason = "is searched for, whose tries are secret"
    elif config.data.dataset.startswith(data.builtin.DISK):
        reason = "has its clients on disk"
    if reason is not None:
        raise ValueError(
            f"Expected canaries=0 for a run of scheme={config.scheme!r}, dataset="
            f"{config.data.dataset!r}, which {reason}, got canaries={config.run.canaries}."
        )


def table(ordinary: np.ndarray, first: int, included: np.ndarray, unit: str) -> np.ndarray:
    """Rows of clients with canaries among them, int32 `[C', N']`: canary i is row first + i of the
    pool, and nowhere where it is not included.

    Of clients each canary is one more, an empty one where it is not included; else they are dealt
    to the clients in turn.
    """
    rows = np.where(included, first + np.arange(included.size, dtype=np.int32), -1)
    if unit == "client":
        more = np.full((included.size, ordinary.shape[1]), -1, np.int32)
        more[:, 0] = rows
        return np.concatenate([ordinary, more])
    num_clients = len(ordinary)
    dealt = np.full(-(-included.size // num_clients) * num_clients, -1, np.int32)
    dealt[: included.size] = rows
    together = np.concatenate([ordinary, dealt.reshape(-1, num_clients).T], axis=1)
    order = np.argsort(together < 0, axis=1, kind="stable")
    return np.take_along_axis(together, order, axis=1)


def plant(
    client_data: data.ClientData,
    train: dict[str, np.ndarray],
    loss: LossFn,
    params: Params,
    included: np.ndarray,
    unit: str,
) -> tuple[Planted, data.ClientData, dict[str, np.ndarray], LossFn]:
    """(what is planted, clients, examples and loss with canaries).

    Args:
      client_data, train: ordinary ones; arrays of one pool.
      loss: of one ordinary example. params: of the initial model.
      included: bool `[m]`. unit: of privacy.

    Raises:
      ValueError: the loss draws, or there are more canaries than parameters.
    """
    if keyed.draws(loss):
        raise ValueError("Expected canaries=0 with a loss that draws, got some.")
    count, size = included.size, len(next(iter(train.values())))
    shown = jax.tree.map(lambda field: jnp.asarray(field[:_LOOKED_AT]), train)
    places = canaries.quiet(loss, params, shown, count)
    direction = canaries.axes(count, params, l2_norm=_NORM, places=places)

    def longer(name: str, field: np.ndarray) -> np.ndarray:
        more = np.zeros((count, *field.shape[1:]), field.dtype)
        if name == subjects.SUBJECT:
            more += np.arange(1, count + 1, dtype=field.dtype) + field.max(initial=0)
        return np.concatenate([field, more])

    examples = {name: longer(name, np.asarray(field)) for name, field in train.items()}
    examples[canaries.CANARY] = np.concatenate(
        [np.full(size, -1, np.int32), np.arange(count, dtype=np.int32)]
    )
    rows = table(np.asarray(client_data.indices), size, included, unit)
    clients = data.ClientData(jax.tree.map(jnp.asarray, examples), jnp.asarray(rows))
    planted = Planted(direction, included, client_data, canaries.without_canaries(loss))
    return planted, clients, examples, canaries.with_canaries(loss, direction)


def scores(planted: Planted, start: Params, end: Params) -> Scores:
    """How far a run moved its model along each canary's gradient, from `start` to `end`."""
    moved = jax.tree.map(lambda a, b: jnp.asarray(a) - jnp.asarray(b), start, end)
    ids = jnp.arange(planted.included.size)
    found = canaries.scores(moved, planted.direction, jax.tree.map(jnp.asarray, start), ids)
    return Scores(np.asarray(found, np.float64) / _NORM, planted.included)


def write(run_dir: pathlib.Path, found: Scores, unit: str) -> None:
    """Writes canaries.json, which is about canaries alone. Raises DiskFullError."""
    plain = {
        "privacy_unit": unit,
        "scores": found.scores.tolist(),
        "included": found.included.tolist(),
    }
    folder.write_atomically(run_dir / folder.CANARIES, json.dumps(plain) + "\n")
