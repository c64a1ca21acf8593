"""A grid of clients in this process, whose messages are bytes on their way."""

import contextlib
import itertools

import flwr.app
from flwr.common import serde

with contextlib.suppress(ImportError):  # of newer releases: whose process this is
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


class Grid:
    """Each client app is called when it is asked, with a context of its own that stays.

    drop: (round, client) whose answer never comes. late: those whose client works, and whose answer
    comes after the timeout. seen: every message that the server sent or was sent, as bytes.
    """

    def __init__(self, app, num_clients, *, drop=(), late=()):
        self.app, self.drop, self.late, self.seen = app, set(drop), set(late), []
        self.nodes = {1000 + 7 * number: number for number in range(num_clients)}
        self._counter = itertools.count(1)
        self.contexts = {
            node: flwr.app.Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": number},
                state=flwr.app.RecordDict(),
                run_config={},
            )
            for node, number in self.nodes.items()
        }

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        assert timeout > 0
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = str(next(self._counter))
            key = (int(message.metadata.group_id), self.nodes[node])
            if key in self.drop:
                continue
            reply = self.asked(node, message)
            if key not in self.late:
                replies.append(reply)
        return replies

    def asked(self, node, message):
        """What the client of a node replies; an exception of it is an error, as in Flower."""
        received = self.over_the_wire(message)
        try:
            reply = self.app(received, self.contexts[node])
        except Exception as reason:
            error = flwr.app.Error(code=2, reason=str(reason))
            reply = flwr.app.Message(error, reply_to=received)
        return self.over_the_wire(reply)

    def over_the_wire(self, message):
        sent = serde.message_to_proto(message).SerializeToString()
        self.seen.append(sent)
        return serde.message_from_proto(type(serde.message_to_proto(message)).FromString(sent))
