"""The client's side: whatever a `ClientApp` trains leaves it as the scheme says."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fljax.interop.flower import records
from fljax.interop.flower.deployment import Deployment

if TYPE_CHECKING:
    from flwr.app import Context, Message

    CallNext = Callable[[Message, Context], Message]

_NEXT = "next round"
_log = logging.getLogger(__name__)


def client_mod(deployment: Deployment) -> "Callable[[Message, Context, CallNext], Message]":
    """A mod for `@app.train(mods=[..])` of a `ClientApp`, whose function trains and replies with
    new parameters in one ArrayRecord.

    What leaves the client is its update (received minus new parameters) and nothing else: metrics
    of a reply are left out, and of an exception only the type is told, since both may depend on
    data in any way. That the client takes part, when, and how long it trains is not hidden.

    Guarantee: of `dp_fedavg` none by itself: the server, which is trusted, sees the update as it
      is, clips it and adds the noise; towards all others the claim is that of `Strategy`. The
      client is in each round of a run once, and in none from `num_rounds` on.

    Args:
      deployment: the same as the server's; a message that was made for another one is refused.

    The ClientApp's function is not called, and the reply is an error that names the rule, where a
    message is none of training, of other terms, or of a round that is not above the last one. To
    evaluate, register a function without this mod: what it returns is exact, and not covered.
    """

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
        except Exception as reason:
            _log.exception("training failed")
            return _refused(message, f"the client's training failed: {type(reason).__name__}")
        update = {
            name: received[name].astype(np.float32) - trained[name].astype(np.float32)
            for name in received
        }
        own = {"round": round_index, "terms": deployment.terms}
        return flwr.Message(records.content(records.of_arrays(update), own), reply_to=message)

    return mod


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


_FAILED = 6  # Flower's ErrorCode.MOD_FAILED_PRECONDITION
