"""The one cohort loop: what every federated round does with its clients, whatever the scheme.

It checks the cohort, lets the scheme choose who works, computes clients chunk by chunk, adds up
what they send, lets the scheme release the sum, and takes one step of the server's optimizer. What
is a scheme's own are three functions: `choose`, `local` and `release`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from fljax import _keys, _validate
from fljax._keys import Purpose as Purpose
from fljax.data.cohorts import Cohort, DealtCohort, map_clients, pooled
from fljax.server import aggregate
from fljax.server.aggregate import ServerState
from fljax.types import Batch, Params, PyTree
from fljax_kernels import _platforms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Performance:
    """What speed and memory depend on and no guarantee does; results differ by rounding at most.

    Raises:
      ValueError: a number is not an integer >= 1.
    """

    chunk_size: int | None = None
    """Clients that a device computes side by side. None: by platform and model."""
    microbatch_size: int = 64
    """Examples whose gradients a client takes together, where a step is over more of them."""
    groups: int | None = None
    """Client sums are added up in so many groups, in the same order on any number of devices that
    divides it: `aggregate.sum_in_chunks`. None: one sum for each device."""
    platform: str | None = None
    """Whose memory chunks are chosen for, "cpu", "cuda" or "tpu". None: JAX's default backend, when
    the algorithm is made. All other forms follow the platform that a round is lowered for."""

    def __post_init__(self) -> None:
        aggregate.check_sizes(self.chunk_size, self.groups)
        _validate.positive_int(microbatch_size=self.microbatch_size)
        if self.platform is not None:
            _validate.one_of(_platforms.PLATFORMS, platform=self.platform)


class RoundInfo(NamedTuple):
    """Diagnostics of one round, each `[]`. They are exact, hence NOT private: release none of them.

    loss: mean training loss. cohort_size: clients that took part. clipped_fraction: share of units
    that were clipped. lost_digits: by how much numbers cancel in the server's recovery of the
    gradient, for `fljax.server.recovery.warn_of_lost_digits`; 0 where nothing is recovered. lost:
    whether too few clients could be used, so that the round left the model as it was. kept: the one
    thing here that is not `[]`: what each client of the cohort now keeps, a tree of `[C, ...]`
    where the algorithm has a `ClientState`; whoever called the round gives it back to the clients.
    """

    loss: jax.Array
    cohort_size: jax.Array
    clipped_fraction: jax.Array
    lost_digits: jax.Array | float = 0.0
    lost: jax.Array | bool = False
    kept: Any = ()


class State(Protocol):
    """What the host loop reads of a state, which else is the scheme's own: any pytree of arrays."""

    @property
    def params(self) -> Params:
        """The model that is released."""

    @property
    def round(self) -> jax.Array:
        """int32 `[]`, rounds done."""


class ClientState(NamedTuple):
    """What a client keeps from one of its rounds to the next: its own, and no part of what is
    released.

    init: `params -> tree`, what a client has before its first round. It may depend on what all
    models of a run share with the first one; a cohort whose `kept` is () is of such clients.
    model: `(params, tree) -> params`, the model that a client uses, from the released one and from
    what it keeps. None: the released one.
    """

    init: Callable[[Params], PyTree]
    model: Callable[[Params, PyTree], Params] | None = None


class FederatedAlgorithm(NamedTuple):
    """A federated algorithm as pure functions.

    init: `params -> state`. round: `(state, cohort, key) -> (state, info)`, to be jitted by the
    caller; `key` is the run's key and the same in every round, since the round folds `state.round`
    into it. client_sampling_prob: with which chance each client must be put into each cohort,
    independently, for the scheme's event to be true. client_state: what clients keep between
    rounds: the round finds it in `cohort.kept` and returns it in `info.kept`. None: nothing.
    takes_dealt: whether `round` takes a `data.DealtCohort`, too.
    """

    init: Callable[[Params], Any]
    round: Callable[[Any, Any, jax.Array], tuple[Any, RoundInfo]]
    client_sampling_prob: float
    client_state: ClientState | None = None
    takes_dealt: bool = False


class Round(NamedTuple):
    """What all clients of a round see.

    state: before the round. examples: the pool `[M, ...]`. key: the run's key. shared: what else
    the scheme's `choose` made for all of them.
    """

    state: ServerState
    examples: Batch
    key: jax.Array
    shared: Any = ()

    @property
    def num_params(self) -> int:
        """Of the model."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.state.params))

    def server_key(self, purpose: _keys.Purpose) -> jax.Array:
        """Key `[]` of the server in this round."""
        return _keys.server_key(self.key, self.state.round, purpose)

    def client_keys(self, ids: jax.Array, purpose: _keys.Purpose) -> jax.Array:
        """A key for each of `ids`, `[K]` or `[]`, in this round."""
        keys = _keys.client_keys(self.key, self.state.round, jnp.atleast_1d(ids), purpose)
        return keys if ids.ndim else keys[0]


class Clients(NamedTuple):
    """The clients of a round, or of a chunk of it; a leading axis K, or none where one is meant.

    ids: int32 `[K]`. rows: int32 `[K, N]` of the pool, -1 is padding. present: bool `[K]`, whose
    work counts. given: tree of `[K, ...]`, what else each of them gets. kept: tree of `[K, ...]`,
    what each of them kept of its last round.
    """

    ids: jax.Array
    rows: jax.Array
    present: jax.Array
    given: Any = ()
    kept: Any = ()


class Sums(NamedTuple):
    """What a round's present clients sent, added up.

    total: tree. stats: `[S]`, S >= 2: summed losses, clipped units, and whatever else `local` adds.
    num_present: `[]`, clients.
    """

    total: PyTree
    stats: jax.Array
    num_present: jax.Array


class Release(NamedTuple):
    """What becomes of the sums.

    total: params-like; total / divisor is the gradient that the server's optimizer steps along.
    divisor: a public constant. counts: whether the round counts; one that does not leaves the
    model, and moves on the number of rounds and `clipping` alone. clipping: of the next state.
    info: fields of the RoundInfo that the loop would not know.
    """

    total: Params
    divisor: float = 1.0
    counts: jax.Array | bool = True
    clipping: Any = ()
    info: dict[str, Any] = {}  # noqa: RUF012


Choose = Callable[[Round, Cohort], tuple[Round, Clients]]
Local = Callable[[Round, Clients], tuple[PyTree, jax.Array]]
LocalKeeping = Callable[[Round, Clients], tuple[PyTree, jax.Array, PyTree]]


def everybody(here: Round, cohort: Cohort) -> tuple[Round, Clients]:
    """The clients of the cohort; absent ones have no rows."""
    present = cohort.client_ids >= 0
    rows = jnp.where(present[:, None], cohort.indices, -1)
    return here, Clients(cohort.client_ids, rows, present, kept=cohort.kept)


def each(one: Callable[[Round, Clients], Any]) -> Local | LocalKeeping:
    """`local` from `one(round, client) -> (upload, stats [S])`, what one client computes; or with a
    third tree, what it keeps.

    Uploads of present clients are added up as they are: clip them before.
    """

    def local(here: Round, clients: Clients) -> Any:
        uploads, stats, *kept = map_clients(one, (None, 0))(here, clients)

        def add(leaf: jax.Array) -> jax.Array:
            mask = clients.present.reshape((-1,) + (1,) * (leaf.ndim - 1))
            return jnp.sum(jnp.where(mask, leaf, 0), axis=0)

        return (jax.tree.map(add, uploads), add(jnp.where(jnp.isfinite(stats), stats, 0)), *kept)

    return local


def federated(
    local: Local | LocalKeeping,
    release: Callable[[Round, Clients, Sums], Release],
    *,
    server_optimizer: optax.GradientTransformation,
    performance: Performance,
    client_sampling_prob: float = 1.0,
    choose: Choose = everybody,
    clipping: Callable[[Params], Any] = lambda params: (),
    chunk_size: Callable[[Round, Clients, str], int] | None = None,
    client_state: ClientState | None = None,
    in_place: bool = False,
) -> FederatedAlgorithm:
    """The algorithm whose rounds are made of a scheme's functions.

    Guarantee: what leaves a client reaches the server's step through `release` alone. A client that
    is not present adds nothing, whatever it computes, and keeps what it kept before; so does one
    whose new state is not finite.

    Args:
      local: `(round, chunk of clients) -> (tree, stats [S])`, summed over the chunk's present
        clients: see `Sums`. `each` makes it from a function of one client. With client_state it
        returns a third tree, `[K, ...]`: what each of its clients keeps.
      release: `(round, clients, sums) -> Release`: noise, recovery, the divisor.
      server_optimizer: takes the step.
      performance: chunk_size and groups of it; only the order of additions depends on them.
      client_sampling_prob: of the `FederatedAlgorithm`.
      choose: `(round, cohort) -> (round, clients)`: who works, and with what.
      clipping: params -> the first state of what adapts a bound, or of correlated noise.
      chunk_size: `(round, clients, platform) -> K`, how many clients a chunk takes where
        performance does not say. None: `aggregate.default_chunk_size` of the model.
      client_state: what clients keep, of the `FederatedAlgorithm`.
      in_place: `choose` leaves each client at its place of the cohort, with rows of its own alone,
        as `everybody` does. Then the examples of a `data.DealtCohort` stay on the devices that
        compute their clients; else they go to all of them.
    """
    platform = _platforms.named(performance.platform)
    in_place = in_place or choose is everybody

    def round_fun(
        state: ServerState, cohort: Cohort | DealtCohort, key: jax.Array
    ) -> tuple[Any, RoundInfo]:
        brought = None
        if isinstance(cohort, DealtCohort):
            _check_dealt(cohort)
            brought, cohort = cohort.examples if in_place else None, pooled(cohort)
        check_round(cohort, key)
        if client_state is not None and not jax.tree.leaves(cohort.kept):
            first = client_state.init(state.params)
            cohort = cohort._replace(kept=_of_each(first, len(cohort.client_ids)))
        here, clients = choose(Round(state, cohort.examples, key), cohort)
        if brought is not None:  # rows from the client's own first on; no pool of everybody's
            first = cohort.indices.shape[1] * jnp.arange(len(cohort.client_ids), dtype=jnp.int32)
            clients = clients._replace(rows=_moved(clients.rows, -first))

        def chunk(some: Any, present: jax.Array, here: Round, pool: Batch | None = None) -> Any:
            if pool is not None:
                some, begin = some
                some = some._replace(rows=_moved(some.rows, begin))
                here = here._replace(examples=pool)
            found = local(here, some._replace(present=present))
            if client_state is None:
                return found
            total, stats, new = found  # type: ignore[misc]
            return (total, stats), _kept(new, some.kept, present)

        size = performance.chunk_size
        if size is None:
            fastest = aggregate.default_chunk_size(here.num_params, platform)
            size = fastest if chunk_size is None else chunk_size(here, clients, platform)
        sums = aggregate.sum_in_chunks(
            chunk,
            clients,
            clients.present,
            chunk_size=size,
            groups=performance.groups,
            shared=(here if brought is None else here._replace(examples=()),),
            kept=None if client_state is None else clients.kept,
            brought=brought,
        )
        (total, stats), kept = (sums, ()) if client_state is None else sums
        count = jnp.sum(clients.present)
        released = release(here, clients, Sums(total, stats, count))
        stepped = aggregate.step(
            state, released.total, divisor=released.divisor, server_optimizer=server_optimizer
        )._replace(clipping=released.clipping)
        loss, clipped_fraction = averages(stats[:2], count)
        info = RoundInfo(loss, count, clipped_fraction, kept=kept)._replace(**released.info)
        if released.counts is True:
            return stepped, info
        after = jax.tree.map(lambda new, old: jnp.where(released.counts, new, old), stepped, state)
        # What was seen of noise was seen: its state moves on.
        after = after._replace(round=stepped.round, clipping=stepped.clipping)
        return after, info._replace(lost=jnp.logical_not(released.counts))

    def init(params: Params) -> ServerState:
        return aggregate.init(params, server_optimizer, clipping(params))

    return FederatedAlgorithm(init, round_fun, client_sampling_prob, client_state, takes_dealt=True)


def _moved(rows: jax.Array, by: jax.Array) -> jax.Array:
    """Rows `[K, N]`, those of client k moved by `by[k]`; padding stays."""
    return jnp.where(rows >= 0, rows + by[:, None], rows)


def _of_each(tree: PyTree, count: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), tree)


def _kept(new: PyTree, old: PyTree, present: jax.Array) -> PyTree:
    """What clients keep, `[K, ...]`: the new where they were present and all of it is finite."""

    def wide(mask: jax.Array, leaf: jax.Array) -> jax.Array:
        return mask.reshape((-1,) + (1,) * (leaf.ndim - 1))

    good = present
    for leaf in jax.tree.leaves(new):
        good &= jnp.isfinite(leaf).reshape(len(present), -1).all(axis=1)
    return jax.tree.map(
        lambda now, before: jnp.where(wide(good, now), now.astype(before.dtype), before), new, old
    )


def check_round(cohort: Cohort, key: jax.Array) -> None:
    """Shapes and dtypes of a round's arguments; they are static: this costs nothing under jit."""
    _validate.stream_key(key=key)
    ids, rows = cohort.client_ids.shape, cohort.indices.shape
    if len(ids) != 1 or ids[0] < 1:
        raise ValueError(f"Expected cohort.client_ids of shape [C], C >= 1, got shape {ids}.")
    if len(rows) != 2 or rows[0] != ids[0]:
        raise ValueError(
            f"Expected cohort.indices of shape [C, N] with C = {ids[0]}, got shape {rows}."
        )


def _check_dealt(cohort: DealtCohort) -> None:
    """Shapes of a cohort whose clients bring their examples."""
    (capacity,) = cohort.client_ids.shape
    found = {leaf.shape[:3] for leaf in jax.tree.leaves(cohort.examples)}
    shape: tuple[int, ...] = next(iter(found), ())
    if len(found) != 1 or len(shape) != 3 or shape[0] * shape[1] < capacity:
        raise ValueError(
            f"Expected examples of shapes [R, G, N, ...] with R * G >= C = {capacity}, got "
            f"{sorted(found)}."
        )
    if cohort.num_examples.shape != (capacity,):
        raise ValueError(
            f"Expected num_examples of shape [C] = ({capacity},), got shape "
            f"{cohort.num_examples.shape}."
        )


def averages(sums: jax.Array, count: jax.Array) -> list[jax.Array]:
    """`sums / max(1, count)`, each apart.

    One division of them all XLA may make a product, on some devices and not on others, and that is
    rounded otherwise.
    """
    divisor = jnp.maximum(1, count).astype(sums.dtype)
    return [total / divisor for total in sums]
