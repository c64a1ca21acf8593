"""The two neighbouring worlds of a scheme: with one privacy unit and without it, and what whoever
its promise is made to sees of its rounds there.

Everybody's data are the attacker's: a worst case that every guarantee covers. The gradient of a
record is a vector that the attacker chose, so that the unit's contribution is as long as clipping
lets it be.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _keys, models
from fljax.accounting.events import NeighboringRelation, PrivacyEvent
from fljax.data.cohorts import ClientData, Cohort, cohort
from fljax.data.subjects import SUBJECT
from fljax.schemes.base import Population, Scheme
from fljax.server.rounds import Performance
from fljax.types import LossFn, Params

DIM = 3  # of the model; data lie along its first parameter
_OTHERS = 6  # records of a client that are not of the unit
_LONG = 1e3  # times whatever a contribution is clipped to


class Neighbours:
    """Two data sets that differ in one unit, as far apart as any, and rounds on either of them.

    The gradient of a record is -y x. That of the unit's is long, in the direction of the first
    parameter; if units are replaced, it points the other way in the world without the unit. Others
    have a gradient of zero, or, where asked, a long one against the unit's.

    Attributes:
      num_clients: of the small world. holders: clients that hold records of the unit.

    Raises:
      ValueError: the scheme refuses its config, or its noise multiplier is None.
    """

    def __init__(self, scheme: Scheme, config: Any) -> None:
        event, population = scheme.event(config), scheme.population(config)
        self.num_clients = population.num_clients or 2
        self.holders = _holders(population, event, self.num_clients)
        self._examples, self._rows = _tables(population, event, self.num_clients, self.holders)
        # Each client has a unit of its own.
        self._owned = _tables(population, event, self.num_clients, self.num_clients)
        self._removed = event.privacy_unit == "client" and (
            event.neighboring_relation == NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        num_rows = self._examples["x"].shape[1]
        self._start: Params = {"w": jnp.zeros(DIM)}
        loss: LossFn = _own_gradient
        if scheme.needs_network:
            loss = models.squared_error(_two_layers)
            self._start = {"w": jnp.zeros((DIM, 1)), "a": jnp.eye(DIM)}
        num_units = num_rows if event.privacy_unit == "example" else self.num_clients
        self._released, self._alone = scheme.released, scheme.uploads_seen
        # Batches are filled up: a place that no record takes costs as much as a record.
        few = Performance(microbatch_size=self._rows.shape[-1])
        self._algorithm = scheme.make(config, loss, num_units=num_units, performance=few)

    def model(
        self,
        key: jax.Array,
        present: Any,
        shift: Any = 0,
        against: Any = False,
        *,
        num_rounds: int = 1,
    ) -> jax.Array:
        """How far rounds, which sample by `key`, move the parameters: `[3]`, and with `released` of
        the scheme what else there is.

        present: bool, whether the unit is there. shift: the number of the client that has it, or of
        the first that does. against: bool, whether other records point against the unit's, which
        counts where a client clips its whole sum.
        """
        gone = ~jnp.asarray(present) & (jnp.arange(self.num_clients) == shift)
        return self._moved(key, self._clients(present, shift, against), ~gone, num_rounds)

    def uploads(
        self, key: jax.Array, present: Any, against: Any = False, *, num_rounds: int = 1
    ) -> jax.Array:
        """What each client's uploads do to the parameters, read off rounds of that client alone:
        `[C, 3]`.

        Client c has the unit in a world of its own, so that row c is a view of two neighbours. Rows
        are drawn with keys of their own; rows of the clients that hold one unit are a view, too.
        Only for schemes whose clients draw noise for themselves alone.
        """
        return self.everybody(
            key, jnp.full(self.num_clients, present), against, num_rounds=num_rounds
        )

    def everybody(
        self,
        key: jax.Array,
        present: jax.Array,
        against: Any = False,
        *,
        num_rounds: int = 1,
        each: bool = False,
    ) -> jax.Array:
        """What is seen where each client has a unit of its own, or not, bool `[C]`: `[V, 3]`,
        and with `released` of the scheme what else there is.

        V is 1, for the model, or C where uploads are seen. against: as there. each: after each of
        the rounds, `[V, T, 3]`.
        """
        owner = np.arange(len(self._owned[0][SUBJECT][0])) // self._owned[1].shape[2]
        ids, (examples, rows) = jnp.arange(self.num_clients), self._owned
        here = present[owner]

        def choose(pair: np.ndarray) -> jax.Array:
            return jnp.where(here.reshape((-1,) + (1,) * (pair.ndim - 2)), pair[1], pair[0])

        clients = ClientData(
            _pointing(jax.tree.map(choose, examples), against),
            jnp.where(present[:, None], rows[1], rows[0]),
        )
        if not self._alone:
            return self._moved(key, clients, present, num_rounds, each=each)[None]

        def alone(client: jax.Array) -> jax.Array:
            own = jax.random.fold_in(key, client)
            return self._moved(own, clients, present, num_rounds, ids == client, each=each)

        return jax.vmap(alone)(ids)

    def _moved(
        self,
        key: jax.Array,
        clients: ClientData,
        present: jax.Array,
        num_rounds: int,
        there: jax.Array | bool = True,
        *,
        each: bool = False,
    ) -> jax.Array:
        """present: bool `[C]`, whose unit is there, where it is a client. there: who may join."""
        algorithm, ids = self._algorithm, jnp.arange(self.num_clients)
        prob, kept = algorithm.client_sampling_prob, algorithm.client_state
        coin_key, round_key = jax.random.split(key)
        start = algorithm.init(self._start)
        # Clients keep what they keep; what is seen is what is released.
        first = () if kept is None else kept.init(start.params)
        wide = lambda leaf: jnp.tile(leaf, (self.num_clients, *[1] * leaf.ndim))

        def seen(state: Any) -> jax.Array:
            moved = jnp.ravel(state.params["w"])
            if self._released is None:
                return moved
            beside = map(jnp.ravel, jax.tree.leaves(self._released(state)))
            return jnp.concatenate([moved, *beside])

        def one_round(carry: Any, index: jax.Array) -> tuple[Any, jax.Array]:
            state, clients_keep = carry
            joins = _keys.coins(jax.random.fold_in(coin_key, index), (self.num_clients,), prob)
            joins &= there
            if self._removed:
                joins &= present
            here: Cohort = cohort(clients, jnp.where(joins, ids, -1))
            state, info = algorithm.round(state, here._replace(kept=clients_keep), round_key)
            return (state, clients_keep if kept is None else info.kept), seen(state)

        begin = (start, jax.tree.map(wide, first))
        if num_rounds == 1:  # a loop of one round costs a compilation of its own
            _, last = one_round(begin, jnp.zeros((), jnp.int32))
            return last[None] if each else last
        _, found = jax.lax.scan(one_round, begin, jnp.arange(num_rounds))
        return found if each else found[-1]

    def _clients(self, present: Any, shift: Any, against: Any) -> ClientData:
        choose = lambda pair: jnp.where(present, pair[1], pair[0])
        examples = _pointing(jax.tree.map(choose, self._examples), against)
        return ClientData(examples, jnp.roll(choose(self._rows), shift, axis=0))


def _pointing(examples: dict[str, jax.Array], against: Any) -> dict[str, jax.Array]:
    """The examples; those that are not of the unit with a gradient against its own, where asked."""
    silent = jnp.all(examples["x"] == 0, axis=1, keepdims=True)
    others = jnp.asarray([[1.0, 0, 0]]) * jnp.where(against, 1.0, 0.0)
    return examples | {"x": jnp.where(silent, others, examples["x"])}


def seen_by(scheme: Scheme) -> str:
    """What the adversary of the scheme's promise sees, in words."""
    if scheme.uploads_seen:
        return "every client's upload"
    what = "the model before and after, and who could have joined"
    return what if scheme.released is None else f"{what}, and what else is released"


def _own_gradient(params: Params, example: Any) -> jax.Array:
    """Its gradient is -y x; so is that of `squared_error(_two_layers)` where "w" is 0."""
    return -jnp.vdot(params["w"], example["x"]) * example["y"][0]


def _two_layers(params: Params, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ params["a"]) @ params["w"]


def _holders(population: Population, event: PrivacyEvent, num_clients: int) -> int:
    return (population.subject_clients or num_clients) if event.privacy_unit == "subject" else 1


def _tables(
    population: Population, event: PrivacyEvent, num_clients: int, holders: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Examples `[2, M, ...]` and rows of clients `[2, C, N]`: without the unit, and with it."""
    relation, unit = event.neighboring_relation, event.privacy_unit
    mine = population.subject_examples if unit == "subject" else 1
    # Places for records are full; elsewhere so many that a sample is hardly ever without others.
    others = (population.places or _OTHERS + 1) - 1 if unit == "example" else _OTHERS
    per_client = others + mine
    x = np.zeros((2, num_clients, per_client, DIM), np.float32)
    x[:, :holders, others:, 0] = 1.0
    # Others are outdone even where a client clips the sum of its records, and not each of them.
    y = np.full((2, num_clients, per_client, 1), _LONG, np.float32)
    y[:, :holders, others:] = _LONG * _LONG
    y[1, :holders, others:] *= -1
    rows = np.arange(num_clients * per_client, dtype=np.int32)
    rows = np.tile(rows.reshape(num_clients, per_client), (2, 1, 1))
    rows[:, holders:, others:] = -1  # nobody else has anything of the unit
    if unit == "client":
        rows[:, :holders, :others] = -1  # it has nothing else
    if relation != NeighboringRelation.REPLACE_ONE:
        rows[0, :holders, others:] = -1
    rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=-1, kind="stable"), -1)
    # A subject each: a cap on a subject's items lets all of them through.
    subject = 1 + np.tile(np.arange(num_clients * per_client, dtype=np.int32), (2, 1))
    subject = subject.reshape(2, num_clients, per_client)
    subject[:, :, others:] = 0
    flat = {"x": x, "y": y, SUBJECT: subject}
    flat = {
        name: field.reshape(2, num_clients * per_client, *field.shape[3:])
        for name, field in flat.items()
    }
    return flat, rows
