"""The server's side: whom a round asks, what it costs, and what becomes of the answers."""

import functools
import json
import logging
import os
import pathlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fljax_kernels
from fljax import _validate, errors
from fljax.accounting import Ledger
from fljax.data.cohorts import Cohort
from fljax.interop.flower import records, secure
from fljax.interop.flower.deployment import IN_THE_RING, Deployment
from fljax.local.sgd import LocalResult
from fljax.schemes import base
from fljax.schemes.central import dp_fedavg
from fljax.server import rounds
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.simulation.feed import host_sampler
from fljax.upload import key_agreement
from fljax_kernels.chacha20 import api as chacha20

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result

_FORMAT = 1
_OVERFLOW_CHANCE = 1e-9  # per round, of a second compilation for a bigger cohort; nothing else
_log = logging.getLogger(__name__)
Updates = Mapping[int, dict[str, np.ndarray]]  # client -> its update, array by array


class Strategy:
    """Runs a deployment's rounds from a `ServerApp`: `start` in its main function.

    Each round is entered into the ledger before a client is asked, so that one that fails, or that
    few answer, is paid for. A client that is gone, late, or whose answer has another form is not in
    the round; nobody is asked twice. What is released is the model after each round, and nothing of
    single clients.

    Guarantee: the models are together what `ledger.event` says, for the deployment's unit and
      relation, and cost `target_epsilon` at most at `delta`.
      `dp_fedavg`: clients are sampled by independent coins that nobody else sees; the server clips
      what each sends, whatever it is, so that one client moves the sum by the clip norm at most,
      and adds noise; the divisor is the expected number of clients, never that of answers. The
      server is trusted with updates, and with who is asked and answers. Who is away must not depend
      on who was sampled.
      `lightdp`, `higradavg`: the noise is the clients' (`client_mod`, `silo_train`), and the claim
      holds towards the server, too, which may be told every upload, late ones included. The model
      moves along the mean of those that came in time; how many did is public. A round in which
      none did leaves it as it was.
      `distributed_dgauss`, `skellam`: the server learns the sum of the words of those who stayed,
      and the model moves along their mean. A round in which more than `max_stragglers` are gone, or
      in which a message is not what the protocol says, is aborted: nothing is released, the model
      stays as it was, and the round is paid for. A client that deviates can make rounds abort.
    Idealisation: as the scheme's `make`.

    Args:
      deployment: public numbers, the same at all clients.
      nodes: Flower's node id -> number of the client, below `num_clients`, each once. With
        authentication of nodes an id stands for the key that was registered.
      target_epsilon: the budget; the round that would overspend does not begin. None: none.
      delta: of the budget.
      ledger_file: JSON of the ledger, replaced as a whole before each round. A server that is
        started again with it goes on with what was spent, and with the next round's number; the
        model and the optimizer begin as `start` is told. None: it is not kept.
      key: of all that the server draws. None: 256 bits of the operating system; anything else is
        for tests.
      server_optimizer: any optax optimizer in place of the configured one.
      roster: of secure sums, all clients' Ed25519 public keys by number, the same as they have.

    Attributes:
      ledger: `fljax.accounting.Ledger`. rounds_begun: how many rounds it has.

    Raises:
      ValueError: an argument is out of range, or the file is of another deployment.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        nodes: Mapping[int, int],
        target_epsilon: float | None,
        delta: float,
        ledger_file: str | os.PathLike[str] | None = None,
        key: jax.Array | None = None,
        server_optimizer: optax.GradientTransformation | None = None,
        roster: Mapping[int, bytes] | None = None,
    ):
        numbers = sorted(nodes.values())
        if numbers != sorted(set(numbers) & set(range(deployment.num_clients))):
            raise ValueError(
                f"Expected nodes of clients below num_clients={deployment.num_clients}, each once, "
                f"got clients {numbers[:9]}."
            )
        _validate.open_unit(delta=delta)
        if target_epsilon is not None:
            _validate.positive(target_epsilon=target_epsilon)
        if key is not None:
            _validate.stream_key(key=key)
        self.deployment, self._nodes = deployment, dict(nodes)
        self._budget = target_epsilon, delta
        self._key = chacha20.key(secrets.token_bytes(chacha20.BYTES)) if key is None else key
        self._optimizer, self._roster = server_optimizer, roster
        self._file = None if ledger_file is None else pathlib.Path(ledger_file).absolute()
        event = deployment.event
        self.ledger = Ledger(
            privacy_unit=event.privacy_unit, neighboring_relation=event.neighboring_relation
        )
        if self._file is not None and self._file.exists():
            self.ledger = self._read(self._file)

    @property
    def rounds_begun(self) -> int:
        """Rounds that the ledger has."""
        return self.ledger.num_events

    def epsilon(self) -> float:
        """Spent so far at the budget's delta."""
        return self.ledger.epsilon(delta=self._budget[1], method="auto")

    def start(
        self,
        grid: "Grid",
        initial_arrays: "ArrayRecord",
        *,
        timeout: float,
        train_config: "ConfigRecord | None" = None,
        evaluate_fn: "Callable[[int, ArrayRecord], MetricRecord | None] | None" = None,
    ) -> "Result":
        """Runs rounds until the deployment's last one, or until the budget allows no more.

        Args:
          grid: that a ServerApp's main function is given.
          initial_arrays: the model that training starts from; of clients' data it may tell what
            the ledger's rounds released, and no more.
          timeout: seconds that clients have to answer, > 0. What comes later is never used.
          train_config: what clients are told besides, as the record "config".
          evaluate_fn: called with the number of rounds and each model that is released, the initial
            one first: to measure it on public data, or to keep it.

        Returns:
          Flower's `Result`, with the last model, and what `evaluate_fn` returned.

        Raises:
          ValueError: an argument is out of range, or a secure sum lacks its roster, or has a grid
            that is too coarse for the model.
          ImportError: the package flwr is missing.
        """
        _validate.positive(timeout=timeout)
        records.app()
        from flwr.serverapp.strategy import Result

        deployment, result = self.deployment, Result()
        model = records.arrays(initial_arrays)
        records.check_alike("initial_arrays", model, model)
        if deployment.scheme in IN_THE_RING:  # refused before the first round
            secure.setting(deployment, _size(model), self._roster, {})
        algorithm = _algorithm(deployment, self._optimizer)
        state = algorithm.init([jnp.asarray(leaf) for leaf in model.values()])
        state = state._replace(round=jnp.int32(self.rounds_begun))
        sample = self._sampler(algorithm)
        step = jax.jit(algorithm.round)
        while True:
            result.arrays = records.of_arrays(dict(zip(model, state.params, strict=True)))
            done = int(state.round)
            if evaluate_fn is not None and (found := evaluate_fn(done, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[done] = found
            if not self._may_begin():
                return result
            ids = sample(done)
            self._book()
            asked = [int(number) for number in ids if number in self._nodes.values()]
            told = {"round": done, "terms": deployment.terms}
            if deployment.scheme in IN_THE_RING:
                ask = functools.partial(
                    self._step, grid, result.arrays, done, timeout, train_config
                )
                updates = self._secure_sum(model, done, ask)
            else:
                content = records.content(result.arrays, told, train_config)
                replies = self._ask(grid, dict.fromkeys(asked, content), done, timeout)
                updates = _updates(replies, model, finite=deployment.scheme != "dp_fedavg")
                _log.info("round %d: %d asked, %d answered", done, len(asked), len(updates))
            state, _ = step(state, _cohort(ids, updates, model), self._key)

    def _sampler(self, algorithm: base.FederatedAlgorithm) -> Callable[[int], np.ndarray]:
        """Round -> numbers of its clients, -1 is padding; as in a simulation with the key."""
        prob, num_clients = algorithm.client_sampling_prob, self.deployment.num_clients
        room = max(1, fljax_kernels.poisson_capacity(num_clients, prob, _OVERFLOW_CHANCE))
        return host_sampler(prob, num_clients, self._key, room)

    def _may_begin(self) -> bool:
        """Whether there is a next round, and the budget allows it."""
        target, delta = self._budget
        if self.rounds_begun >= self.deployment.num_rounds:
            return False
        return target is None or not self.ledger.would_exceed(
            self.deployment.event, target_epsilon=target, delta=delta, method="auto"
        )

    def _book(self) -> None:
        """Enters the next round, in the file too: from here on it is paid for."""
        self.ledger.append(self.deployment.event)
        if self._file is not None:
            tree = {
                "format": _FORMAT,
                "terms": self.deployment.terms,
                "ledger": self.ledger.to_json(),
            }
            key_agreement.replace_file(self._file, json.dumps(tree, indent=1).encode())

    def _read(self, path: pathlib.Path) -> Ledger:
        try:
            tree = json.loads(path.read_bytes())
            found = Ledger.from_json(tree["ledger"])
            same = tree["format"] == _FORMAT and tree["terms"] == self.deployment.terms
        except (KeyError, TypeError, ValueError) as reason:
            raise ValueError(
                f"Expected ledger_file with the ledger of a deployment, got {str(path)!r}: {reason}"
            ) from None
        if not same:
            raise ValueError(
                f"Expected ledger_file={str(path)!r} of this deployment, got one of other terms."
            )
        return found

    def _secure_sum(
        self, model: Mapping[str, np.ndarray], round_index: int, ask: secure.Ask
    ) -> Updates:
        """The mean of those in the sum, as if one client had sent it; none where it is aborted."""
        try:
            return {0: secure.total(self.deployment, model, self._roster, round_index, ask)}
        except errors.SecureSumError as reason:
            _log.warning("round %d aborted: %s: %s", round_index, type(reason).__name__, reason)
            return {}

    def _step(
        self,
        grid: "Grid",
        model: "ArrayRecord",
        round_index: int,
        timeout: float,
        train_config: "ConfigRecord | None",
        step: str,
        inbox: Mapping[int, bytes],
    ) -> dict[int, bytes]:
        """What clients send in a step of a secure sum; in its first they train."""
        first = step == secure.STEPS[0]
        told = {"round": round_index, "terms": self.deployment.terms, "step": step}
        there = set(self._nodes.values())
        contents = {
            number: records.content(
                model if first else None,
                told | {"received": received},
                train_config if first else None,
            )
            for number, received in inbox.items()
            if number in there
        }
        replies = self._ask(grid, contents, round_index, timeout)
        sent = {number: records.ours(reply).get("sent") for number, reply in replies.items()}
        return {number: part for number, part in sent.items() if isinstance(part, bytes)}

    def _ask(
        self, grid: "Grid", contents: Mapping[int, Any], round_index: int, timeout: float
    ) -> dict[int, "Message"]:
        """The first whole answer of each client that is asked, by its number."""
        flwr = records.app()
        at = {number: node for node, number in self._nodes.items()}
        messages = [
            flwr.Message(
                content,
                dst_node_id=at[number],
                message_type=flwr.MessageType.TRAIN,
                ttl=timeout,
                group_id=str(round_index),
            )
            for number, content in contents.items()
        ]
        found: dict[int, Message] = {}
        for reply in grid.send_and_receive(messages, timeout=timeout) if messages else ():
            number = self._nodes.get(reply.metadata.src_node_id)
            if number is None or number not in contents or number in found:
                continue  # not asked, or a second answer
            if reply.has_error():
                _log.warning("round %d: a client failed: %s", round_index, reply.error.reason)
                continue
            try:
                own = records.ours(reply)
                if (own["round"], own["terms"]) != (round_index, self.deployment.terms):
                    raise ValueError("it is of another round, or of other terms.")
            except (KeyError, ValueError) as reason:
                _log.warning("round %d: an answer is left out: %s", round_index, reason)
                continue
            found[number] = reply
        return found


def _size(model: Mapping[str, np.ndarray]) -> int:
    return sum(leaf.size for leaf in model.values())


def _updates(
    replies: "Mapping[int, Message]", model: Mapping[str, np.ndarray], *, finite: bool
) -> Updates:
    """What clients sent, where it has the model's form, and, if asked, holds finite numbers."""
    found = {}
    for number, reply in replies.items():
        try:
            update = records.only_arrays("an answer", reply)
            records.check_alike("an answer", update, model)
            if finite and not all(np.isfinite(leaf).all() for leaf in update.values()):
                raise ValueError("Expected an answer of finite numbers, got another.")
        except ValueError as reason:
            _log.warning("an answer is left out: %s", reason)
            continue
        found[number] = update
    return found


def _cohort(ids: Sequence[int] | np.ndarray, updates: Updates, model: Mapping[str, Any]) -> Cohort:
    """A cohort whose examples are updates: client i has one, or is absent."""
    answered = [int(number) if number in updates else -1 for number in ids]
    pool = []
    for name, leaf in model.items():
        rows = np.zeros((len(answered), *leaf.shape), np.float32)
        for place, number in enumerate(answered):
            if number >= 0:
                rows[place] = updates[number][name]
        pool.append(jnp.asarray(rows))
    client_ids = np.asarray(answered, np.int32)
    rows = np.where(client_ids >= 0, np.arange(len(answered)), -1).astype(np.int32)
    return Cohort(pool, jnp.asarray(rows[:, None]), jnp.asarray(client_ids))


def _sent(params: Any, updates: Any, rows: jax.Array, keys: jax.Array) -> LocalResult:
    """In place of a client's training: what it sent."""
    del params, keys
    at = jnp.maximum(rows[:, 0], 0)
    return LocalResult(jax.tree.map(lambda leaf: leaf[at], updates), jnp.zeros(at.shape))


def _algorithm(
    deployment: Deployment, server_optimizer: optax.GradientTransformation | None
) -> base.FederatedAlgorithm:
    """The scheme's round, on what clients sent in place of what they would compute."""
    given = base.given(
        deployment.config, deployment.num_clients, base.Performance(), server_optimizer, None
    )
    if deployment.scheme == "dp_fedavg":
        return dp_fedavg.algorithm(_sent, deployment.config, given)
    return rounds.federated(
        _added_up,
        _mean,
        server_optimizer=given.server_optimizer,
        performance=given.performance,
    )


def _added_up(here: Round, clients: Clients) -> tuple[Any, jax.Array]:
    """Uploads that carry their noise already, which nothing may clip or weigh."""
    sent = _sent(here.state.params, here.examples, clients.rows, clients.ids).update

    def add(leaf: jax.Array) -> jax.Array:
        mask = clients.present.reshape((-1,) + (1,) * (leaf.ndim - 1))
        return jnp.sum(jnp.where(mask, leaf, 0), axis=0)

    return jax.tree.map(add, sent), jnp.zeros(2)


def _mean(here: Round, clients: Clients, sums: Sums) -> Release:
    share = 1 / jnp.maximum(1, sums.num_present).astype(jnp.float32)
    return Release(jax.tree.map(lambda leaf: leaf * share, sums.total), counts=sums.num_present > 0)
