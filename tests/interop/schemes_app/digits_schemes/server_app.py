"""The server of the scheme that the run is of."""

from flwr.serverapp import ServerApp

from tests.interop import _schemes

app = ServerApp()


@app.main()
def main(grid, context):
    _schemes.serve(context.run_config, grid)
