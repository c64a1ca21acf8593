"""Is a record told by what a sum holds outside the span of all other records' gradients?

Where nothing but random weights of records hides them, it is: whatever the weights are, a record
whose gradient is no combination of the others' leaves a part that nothing else can have made.

Source: Zhang et al. (2024), arXiv:2405.04551, Theorem 1 and Figure 3.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.accounting.events import NeighboringRelation
from fljax.attacks.rounds import Game
from fljax.data.cohorts import ClientData, cohort
from fljax.schemes.base import Scheme
from fljax.types import Params

_DIM, _LONG = 3, 1e3  # numbers of the model; times whatever a gradient is clipped to


def span(scheme: Scheme, config: Any, *, num_rounds: int = 1) -> Game:
    """A game against rounds of a scheme whose unit is one example that is replaced, and whose
    clients are all in every round.

    All gradients are known to the attacker, who chose them, but one. That points in a direction of
    its own, or in one that others have, too; the score is how long the sum of all rounds is outside
    the span of the others.

    Raises:
      ValueError: the scheme protects another unit or relation, or samples clients.
    """
    event, population = scheme.run_event(config, num_rounds), scheme.population(config)
    replaced = event.neighboring_relation == NeighboringRelation.REPLACE_ONE
    if event.privacy_unit != "example" or not replaced or scheme.needs_network:
        raise ValueError(
            "Expected a scheme that protects one example that is replaced, with any model, got "
            f"unit {event.privacy_unit!r}, {event.neighboring_relation}."
        )
    clients, places = population.num_clients or 2, population.places or 4
    rows = jnp.arange(clients * places, dtype=jnp.int32).reshape(clients, places)
    own, others = np.eye(_DIM, dtype=np.float32)[:2]
    x = jnp.asarray(np.tile(others, (clients * places, 1)))

    def loss(params: Params, example: Any) -> jax.Array:
        return -_LONG * jnp.vdot(params["w"], example["x"])

    algorithm = scheme.make(config, loss, num_units=clients * places)
    if algorithm.client_sampling_prob != 1:
        raise ValueError(
            "Expected a scheme whose clients are all in every round, got "
            f"client_sampling_prob={algorithm.client_sampling_prob!r}."
        )

    def score(key: jax.Array, present: jax.Array) -> jax.Array:
        examples = {"x": x.at[0].set(jnp.where(present, own, others))}
        here = cohort(ClientData(examples, rows), jnp.arange(clients))

        def one_round(state: Any, _: None) -> tuple[Any, None]:
            return algorithm.round(state, here, key)[0], None

        start = algorithm.init({"w": jnp.zeros(_DIM)})
        last, _ = jax.lax.scan(one_round, start, None, length=num_rounds)
        moved = jnp.ravel(last.params["w"])
        return jnp.linalg.norm(moved - jnp.vdot(moved, others) * others)

    return Game(score, event, "the sum of all clients, and every record but one")
