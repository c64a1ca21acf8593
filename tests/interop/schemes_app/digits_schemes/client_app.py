"""A client of the scheme that the run is of."""

from flwr.clientapp import ClientApp

from tests.interop import _schemes

app = ClientApp()


@app.train()
def train(message, context):
    return _schemes.client(context.run_config)(message, context)
