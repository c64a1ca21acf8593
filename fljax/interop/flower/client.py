"""The client's side: whatever a `ClientApp` trains leaves it as the scheme says."""

import logging
import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fljax.data.cohorts import Cohort
from fljax.interop.flower import records
from fljax.interop.flower.deployment import Deployment
from fljax.local import clipping
from fljax.schemes.silos import higradavg
from fljax.schemes.uploads import lightdp
from fljax.types import Batch, LossFn, Params
from fljax.upload import pair_noise
from fljax.upload.key_agreement import KeyAgreement, SimulatedKeyAgreement
from fljax_kernels.chacha20 import api as chacha20

if TYPE_CHECKING:
    from flwr.app import Context, Message

    CallNext = Callable[[Message, Context], Message]
    Mod = Callable[[Message, Context, CallNext], Message]

_NEXT = "next round"
_FAILED = 6  # Flower's ErrorCode.MOD_FAILED_PRECONDITION
_log = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]


class Party(NamedTuple):
    """What a client is and has, and nobody else has.

    number: of the client, from 0 on. key: typed, of all that it draws; None: 256 bits of the
    operating system, anew for each round; anything else is for tests. agreement: for `lightdp`,
    its keys with all its peers; of a real client `KeyAgreement.load`, whose file follows.
    """

    number: int = 0
    key: jax.Array | None = None
    agreement: KeyAgreement | SimulatedKeyAgreement | None = None

    def round_key(self) -> jax.Array:
        """`key`, or a new one that nobody keeps."""
        if self.key is not None:
            return self.key
        return chacha20.key(secrets.token_bytes(chacha20.BYTES))


PartyOf = Callable[["Context"], Party]


def _anybody(context: "Context") -> Party:
    del context
    return Party()


def client_mod(deployment: Deployment, party: PartyOf = _anybody) -> "Mod":
    """A mod for `@app.train(mods=[..])` of a `ClientApp`, whose function trains and replies with
    new parameters in one ArrayRecord.

    What leaves the client is made of its update (received minus new parameters) and nothing else:
    metrics of a reply are left out, and of an exception only the type is told, since both may
    depend on data in any way. That the client takes part, when, and how long it trains is not
    hidden.

    Guarantee: the client is in each round of a run once, and in none from `num_rounds` on.
      `dp_fedavg`: none by itself: the server, which is trusted, sees the update as it is, clips it
      and adds the noise; towards all others the claim is that of `Strategy`.
      `lightdp`: the update is clipped, and carries the client's own noise and that of its pairs, so
      that what all clients send in a round is one `deployment.event` for the unit "client", towards
      a server that sees all of it and pools at most `max_colluders` clients. It rests on keys that
      `party` says, on parties that keep to the protocol, and on every client's noise being there:
      who sends none protects nobody. Noise is drawn in float32.

    Args:
      deployment: the same as the server's; a message that was made for another one is refused.
      party: what the client has, from the context of a message.

    The ClientApp's function is not called, and the reply is an error that names the rule, where a
    message is none of training, of other terms, or of a round that is not above the last one. To
    evaluate, register a function without this mod: what it returns is exact, and not covered.

    Raises:
      ValueError: clients of the scheme do not train by themselves: see `silo_train`.
    """
    if deployment.scheme == "higradavg":
        raise ValueError(
            "Expected a scheme whose clients send what any training made, got scheme='higradavg', "
            "whose steps are private themselves: register silo_train(..) instead."
        )
    return _mod(deployment, party, _hide)


def silo_train(
    deployment: Deployment,
    loss: LossFn,
    examples: "Callable[[Context], Batch]",
    like: Params,
    party: PartyOf = _anybody,
) -> "CallNext":
    """The train function of a silo, for `app.train()(silo_train(..))`: the scheme's own noisy
    steps, on the silo's examples.

    Guarantee: `higradavg`: what the silos send in a round is one `deployment.event` for the unit
      "subject", towards a server that sees all of it, if at most `silos_per_subject` silos hold
      items of one subject, which no silo can see for itself. The silo is in each round of a run
      once, and in none from `num_rounds` on. Noise is drawn in float32 (in whole numbers where it
      is "exact").

    Args:
      deployment: of `higradavg`, the same as the server's.
      loss: `loss(params, example) -> []`.
      examples: the silo's arrays `[M, ...]` by name, with the subject of each under "subject".
      like: any parameters of the model, of which the server's `to_record` made its initial arrays.
      party: what the silo is; its number says which factor of `silo_noise` is its own.

    Raises:
      ValueError: the deployment is of another scheme.
    """
    if deployment.scheme != "higradavg":
        raise ValueError(
            f"Expected scheme='higradavg' of a silo, got scheme={deployment.scheme!r}."
        )
    steps = higradavg.make(deployment.config, loss, num_units=1, server_optimizer=optax.sgd(1.0))
    step = jax.jit(steps.round)

    def train(message: "Message", context: "Context") -> "Message":
        record, mine = next(iter(message.content.array_records.values())), party(context)
        batch = jax.tree.map(jnp.asarray, examples(context))
        rows = jnp.arange(len(jax.tree.leaves(batch)[0]), dtype=jnp.int32)[None]
        cohort = Cohort(batch, rows, jnp.asarray([mine.number], jnp.int32))
        state = steps.init(jax.tree.map(jnp.asarray, records.from_record(record, like)))
        state = state._replace(round=jnp.int32(int(records.ours(message)["round"])))
        after, _ = step(state, cohort, mine.round_key())
        flwr = records.app()
        return flwr.Message(
            flwr.RecordDict({records.ARRAYS: records.to_record(after.params)}), reply_to=message
        )

    unchanged = lambda deployment, party, round_index, update: update
    mod = _mod(deployment, party, unchanged)
    return lambda message, context: mod(message, context, train)


Protect = Callable[[Deployment, Party, int, Arrays], Arrays]


def _mod(deployment: Deployment, party: PartyOf, protect: Protect) -> "Mod":
    """As `client_mod`; protect: what is made of an update before it leaves."""

    def mod(message: "Message", context: "Context", call_next: "CallNext") -> "Message":
        flwr = records.app()
        try:
            round_index = _begin(deployment, message, context)
            received = records.only_arrays("a message of training", message)
        except ValueError as reason:
            return _refused(message, str(reason))
        try:
            reply = call_next(message, context)
            if reply.has_error():
                return _refused(message, "the client's training failed")
            trained = records.only_arrays("a reply", reply)
            records.check_alike("a reply", trained, received)
            update = {
                name: received[name].astype(np.float32) - trained[name].astype(np.float32)
                for name in received
            }
            sent = protect(deployment, party(context), round_index, update)
        except Exception as reason:  # whose text may tell of data
            _log.exception("training failed")
            return _refused(message, f"the client's training failed: {type(reason).__name__}")
        own = {"round": round_index, "terms": deployment.terms}
        return flwr.Message(records.content(records.of_arrays(sent), own), reply_to=message)

    return mod


def _hide(deployment: Deployment, party: Party, round_index: int, update: Arrays) -> Arrays:
    """What leaves a client in place of its update."""
    config: Any = deployment.config
    if deployment.scheme == "dp_fedavg":
        return update
    if party.agreement is None:
        raise ValueError("Expected party with an agreement for scheme='lightdp', got none.")
    rows = [jnp.asarray(leaf)[None] for leaf in update.values()]
    clipped, _ = clipping.sum_updates(rows, config.l2_clip_norm, "flat", jnp.ones(1, bool))
    client, edges = party.agreement.client, lightdp.edges(config)
    peers = sorted(edges[(edges == client).any(axis=1)].sum(axis=1) - client)
    stddev = lightdp.stddev(config)
    noise = pair_noise.client_noise(
        party.agreement.round_keys(round_index, [int(peer) for peer in peers]),
        party.agreement.own_key(round_index),
        client,
        np.asarray(peers, np.int32),
        clipped,
        own_stddev=stddev,
        pair_stddev=stddev * math.sqrt(lightdp.variance_ratio(config)),
    )
    hidden = jax.tree.map(jnp.add, clipped, noise)
    return dict(zip(update, map(np.asarray, hidden), strict=True))


def _begin(deployment: Deployment, message: "Message", context: "Context") -> int:
    """Enters the round of a message, and says which it is.

    Raises:
      ValueError: the message is none of training, or of other terms; or the round is not above the
        last one, or beyond the last of all.
    """
    kind = message.metadata.message_type
    if kind.partition(".")[0] != "train":
        raise ValueError(
            f"Expected a message of training, got one of {kind!r}: register other functions "
            "without this mod; what they return is not covered by any guarantee."
        )
    told = records.ours(message)
    if told["terms"] != deployment.terms:
        raise ValueError(
            "Expected a message of this deployment, got one of other terms: the server's scheme, "
            "config, num_clients or num_rounds differ from the client's."
        )
    flwr = records.app()
    if records.OURS not in context.state:
        context.state[records.OURS] = flwr.ConfigRecord()
    kept = context.state[records.OURS]
    least, round_index = int(kept.get(_NEXT, 0)), int(told["round"])
    if not least <= round_index < deployment.num_rounds:
        raise ValueError(
            f"Expected a round in [{least}, {deployment.num_rounds}), got round {round_index}: a "
            "client takes part in a round once."
        )
    kept[_NEXT] = round_index + 1
    return round_index


def _refused(message: "Message", reason: str) -> "Message":
    flwr = records.app()
    _log.warning("refused: %s", reason)
    return flwr.Message(flwr.Error(code=_FAILED, reason=reason), reply_to=message)
