"""The client's side: whatever a `ClientApp` trains leaves it as the scheme says."""

import logging
import math
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fljax import _validate, errors
from fljax.data.cohorts import Cohort
from fljax.interop.flower import records, secure
from fljax.interop.flower.deployment import IN_THE_RING, Deployment
from fljax.local import clipping
from fljax.schemes.silos import higradavg
from fljax.schemes.uploads import lightdp
from fljax.types import Batch, LossFn, Params
from fljax.upload import pair_noise
from fljax.upload.key_agreement import KeyAgreement, SimulatedKeyAgreement
from fljax.upload.secure_sum import signing
from fljax_kernels.chacha20 import api as chacha20

if TYPE_CHECKING:
    from flwr.app import ConfigRecord, Context, Message

    CallNext = Callable[[Message, Context], Message]
    Mod = Callable[[Message, Context, CallNext], Message]

_NEXT = "next round"
_FAILED = 6  # Flower's ErrorCode.MOD_FAILED_PRECONDITION
_log = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]


class Party(NamedTuple):
    """What a client is and has, and nobody else has.

    number: of a silo whose noise has a factor of its own, from 0 on. key: typed, of all that it
    draws; None: 256 bits of the operating system, anew for each round; anything else is for tests.
    agreement: for `lightdp`, its keys with all its peers; of a real client `KeyAgreement.load`,
    whose file follows. identity: for secure sums, its signing key, by `Identity.load`; it says the
    number. roster: of them, all clients' public keys.
    """

    number: int | None = None
    key: jax.Array | None = None
    agreement: KeyAgreement | SimulatedKeyAgreement | None = None
    identity: signing.Identity | None = None
    roster: Mapping[int, bytes] | None = None

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
      `distributed_dgauss`, `skellam`: the update is clipped, rounded to a grid, and carries the
      client's own noise in whole numbers, under masks that only the sum of all who are not gone is
      free of: that sum is one `deployment.event` for the unit "client", towards the server and at
      most `max_colluders` clients, while no more than `max_stragglers` are gone, within the
      protocol's threat model (`fljax.upload.secure_sum`). What a client must remember from step to
      step, secrets among it, is in the context of its own node.

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
        number = 0 if mine.number is None and not deployment.config.silo_noise else mine.number
        _validate.one_of(range(deployment.num_clients), number=number)
        batch = jax.tree.map(jnp.asarray, examples(context))
        rows = jnp.arange(len(jax.tree.leaves(batch)[0]), dtype=jnp.int32)[None]
        cohort = Cohort(batch, rows, jnp.asarray([number], jnp.int32))
        state = steps.init(jax.tree.map(jnp.asarray, records.from_record(record, like)))
        state = state._replace(round=jnp.int32(int(records.ours(message)["round"])))
        after, _ = step(state, cohort, mine.round_key())
        flwr = records.app()
        return flwr.Message(
            flwr.RecordDict({records.ARRAYS: records.to_record(after.params)}), reply_to=message
        )

    unchanged = lambda deployment, party, round_index, update, context: update
    mod = _mod(deployment, party, unchanged)
    return lambda message, context: mod(message, context, train)


# (deployment, party, round_index, update, context) -> what is sent: arrays, or else bytes
Protect = Callable[[Deployment, Party, int, Arrays, "Context"], Arrays | bytes]


def _mod(deployment: Deployment, party: PartyOf, protect: Protect) -> "Mod":
    """As `client_mod`; protect: what is made of an update before it leaves."""

    def mod(message: "Message", context: "Context", call_next: "CallNext") -> "Message":
        try:
            told = _checked(deployment, message)
            if told.get("step", secure.STEPS[0]) != secure.STEPS[0]:
                mine = party(context)
                part = secure.go_on(deployment, told, mine.identity, mine.roster, context)
                return _reply(deployment, message, part)
            _begin(deployment, told, context)
            received = records.only_arrays("a message of training", message)
        except (ValueError, errors.SecureSumError) as reason:
            return _refused(message, f"{type(reason).__name__}: {reason}")
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
            sent = protect(deployment, party(context), int(told["round"]), update, context)
        except Exception as reason:  # whose text may tell of data
            _log.exception("training failed")
            return _refused(message, f"the client's training failed: {type(reason).__name__}")
        return _reply(deployment, message, sent)

    return mod


def _reply(deployment: Deployment, message: "Message", sent: Arrays | bytes) -> "Message":
    own: dict[str, Any] = {"round": records.ours(message)["round"], "terms": deployment.terms}
    model = None
    if isinstance(sent, bytes):
        own["sent"] = sent
    else:
        model = records.of_arrays(sent)
    return records.app().Message(records.content(model, own), reply_to=message)


def _hide(
    deployment: Deployment, party: Party, round_index: int, update: Arrays, context: "Context"
) -> Arrays | bytes:
    """What leaves a client in place of its update."""
    config: Any = deployment.config
    if deployment.scheme == "dp_fedavg":
        return update
    if deployment.scheme in IN_THE_RING:
        whose = (party.identity, party.roster, party.round_key())
        return secure.begin(deployment, update, *whose, round_index, context)
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


def _checked(deployment: Deployment, message: "Message") -> "ConfigRecord":
    """Our own record of a message. Raises ValueError where it is none of training, or of other
    terms.
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
    return told


def _begin(deployment: Deployment, told: "ConfigRecord", context: "Context") -> None:
    """Enters a round. Raises ValueError where it is not above the last one, or beyond all."""
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


def _refused(message: "Message", reason: str) -> "Message":
    flwr = records.app()
    _log.warning("refused: %s", reason)
    return flwr.Message(flwr.Error(code=_FAILED, reason=reason), reply_to=message)
