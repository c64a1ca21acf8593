"""Membership through a scheme: a target and shadow models, all trained by the scheme's own rounds,
in one program.

Threat: the attacker has the last model, the pool of examples with their labels, and knows how
training goes; it trains models of its own in the same way on random halves of the pool. What it
must not beat is the trade-off curve that the scheme certifies for one example.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _keys, _validate, schemes
from fljax.accounting.events import PrivacyEvent
from fljax.attacks import membership, metrics, rounds, shadow
from fljax.data.cohorts import ClientData, cohort
from fljax.data.subjects import SUBJECT
from fljax.types import Batch, LossFn, Params


class Membership(NamedTuple):
    """Scores `[N]` of a pool's examples, who was trained on `[N]`, and what they amount to.

    largest_auc: of any attack, from the certified trade-off curve (1 where nothing is certified).
    """

    scores: np.ndarray
    members: np.ndarray
    auc: float
    tpr: float
    largest_auc: float


def models(
    name: str,
    config: Any,
    loss: LossFn,
    params: Params,
    pool: Batch,
    included: jax.Array,
    keys: jax.Array,
    *,
    num_rounds: int,
) -> Params:
    """Models after `num_rounds` rounds of a scheme, each on its own members of the pool: leaves
    `[S, ...]`.

    Members are dealt to the scheme's clients in turn; every example is a subject of its own.

    Args:
      included: bool `[S, N]`. keys: `[S]`, of the runs.
    """
    _validate.positive_int(num_rounds=num_rounds)
    scheme = schemes.get(name)
    num_clients = scheme.population(config).num_clients or 2
    size = included.shape[1]
    unit = scheme.event(config).privacy_unit
    algorithm = scheme.make(config, loss, num_units=num_clients if unit == "client" else size)
    everyone = np.full((num_clients, -(-size // num_clients)), -1, np.int32)
    for client in range(num_clients):
        mine = np.arange(client, size, num_clients)
        everyone[client, : mine.size] = mine
    examples = jax.tree.map(jnp.asarray, pool) | {SUBJECT: jnp.arange(size, dtype=jnp.int32)}

    def one(members: jax.Array, key: jax.Array) -> Params:
        rows = jnp.where((everyone >= 0) & members[jnp.maximum(everyone, 0)], everyone, -1)
        rows = jnp.take_along_axis(rows, jnp.argsort(rows < 0, axis=1, stable=True), axis=1)
        clients = ClientData(examples, rows)
        coin_key, round_key = jax.random.split(key)

        def one_round(state: Any, index: jax.Array) -> tuple[Any, None]:
            coins = _keys.coins(
                jax.random.fold_in(coin_key, index), (num_clients,), algorithm.client_sampling_prob
            )
            here = cohort(clients, jnp.where(coins, jnp.arange(num_clients), -1))
            return algorithm.round(state, here, round_key)[0], None

        return jax.lax.scan(one_round, algorithm.init(params), jnp.arange(num_rounds))[0].params

    return jax.jit(jax.vmap(one))(included, keys)


def lira(
    apply: Any,
    trained: Params,
    pool: Batch,
    included: jax.Array,
    event: PrivacyEvent,
    *,
    fpr: float = 0.05,
) -> Membership:
    """LiRA on model 0 with the others as shadow models, and the largest area that `event` allows.

    Args:
      trained: of `models`, leaves `[1 + shadows, ...]`. included: bool `[1 + shadows, N]`.
      event: of all rounds. fpr: at which the rate of true positives is reported.
    """
    own = np.asarray(jax.jit(lambda p: shadow.confidences(apply, p, pool["x"], pool["y"]))(trained))
    inside = np.asarray(included)
    scores = membership.lira(own[0], own[1:], inside[1:])
    members = inside[0]
    at = np.linspace(0, 1, 2001)
    return Membership(
        scores=scores,
        members=members,
        auc=metrics.auc(scores[members], scores[~members]),
        tpr=metrics.tpr_at_fpr(scores[members], scores[~members], fpr),
        largest_auc=largest_auc(rounds.certified_curve(event, at), at),
    )


def largest_auc(fnr: np.ndarray, fpr: np.ndarray) -> float:
    """An upper bound on the area under the curve of rates, from least false-negative rates `[n]` at
    rising `fpr` `[n]`.

    Each step counts with its right end, where a falling curve is least: trapezia of a convex one
    would be too large.
    """
    return float(1 - np.sum(fnr[1:] * np.diff(fpr)))
