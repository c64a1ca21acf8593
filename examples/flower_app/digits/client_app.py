"""A client: any code trains, and the mod sends what the scheme allows."""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from digits import task
from fljax.interop import flower

app = ClientApp()


@app.train(mods=[flower.client_mod(task.DEPLOYMENT)])
def train(message: Message, context: Context) -> Message:
    """New parameters, from those that the server sent."""
    params = flower.from_record(message.content["arrays"], task.initial())
    new = task.train(params, int(context.node_config["partition-id"]))
    return Message(RecordDict({"arrays": flower.to_record(new)}), reply_to=message)
