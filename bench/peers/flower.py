"""Flower's simulation: a server app that sends each client the weights, client apps in Ray actors
of one core each.

The clients train in torch, exactly as `torch_loop` does, and send their clipped updates; `FedAvg`
averages them, and the server adds the noise. Which client a node plays is said in its message, so
that every round has the same clients. As "flwr" few nodes play several clients each, and messages
go out some at a time, which is the quickest way that we found; as "flwr_nodes" each client is a
node and all messages go out at once, as in Flower's own templates. Flower's queue looks through all
waiting messages for each node: 1,000 nodes took nine minutes here, all but seconds of them in the
queue. A wave ends with its last client, which costs up to 0.1 s of polling. The client app's module
imports no JAX: actors would pay for it in time and memory.
"""

import functools
import os
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from bench.peers import torch_client

client_app = ClientApp()
NODES_S = 120.0
MOST_NODES, WAVE = 20, 40


def save(
    folder: pathlib.Path, net: nn.Module, clients: list[tuple[np.ndarray, np.ndarray]]
) -> None:
    """What the actors read: the module, and all clients' examples in one memory-mapped file."""
    torch.save(net, folder / "net.pt")
    np.save(folder / "x.npy", np.concatenate([x for x, _ in clients]))
    np.save(folder / "y.npy", np.concatenate([y for _, y in clients]).astype(np.int64))
    np.save(folder / "ends.npy", np.cumsum([len(y) for _, y in clients]))


@functools.cache
def _loaded(folder: str) -> tuple[nn.Module, np.ndarray, np.ndarray, np.ndarray]:
    torch.set_num_threads(1)  # one actor a core
    path = pathlib.Path(folder)
    net = torch.load(path / "net.pt", weights_only=False)
    return (
        net,
        np.load(path / "x.npy", mmap_mode="r"),
        np.load(path / "y.npy"),
        np.load(path / "ends.npy"),
    )


@client_app.train()
def _train(message: Message, context: Context) -> Message:
    config: Any = message.content["config"]
    arrays: Any = message.content["arrays"]
    net, xs, ys, ends = _loaded(config["folder"])
    client = config["client"]
    rows = slice(0 if client == 0 else int(ends[client - 1]), int(ends[client]))
    update = torch_client.clipped_update(
        net,
        [torch.from_numpy(a) for a in arrays.to_numpy_ndarrays()],
        torch.from_numpy(np.array(xs[rows])),
        torch.from_numpy(ys[rows]),
        batch_size=config["batch_size"],
        learning_rate=config["learning_rate"],
        l2_clip_norm=config["l2_clip_norm"],
    )
    content = {
        "arrays": ArrayRecord(numpy_ndarrays=[u.numpy() for u in update]),
        "metrics": MetricRecord({"num-examples": 1}),  # every client weighs the same
    }
    return Message(RecordDict(content), reply_to=message)


class _Clients(FedAvg):
    """FedAvg that tells nodes in turn which clients to play."""

    def __init__(self, num_clients: int, config: dict[str, Any]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.num_clients, self.config = num_clients, config

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        nodes = list(grid.get_node_ids())
        contents = [
            RecordDict({"arrays": arrays, "config": ConfigRecord({**self.config, "client": i})})
            for i in range(self.num_clients)
        ]
        return [
            Message(content, dst_node_id=nodes[i % len(nodes)], message_type="train")
            for i, content in enumerate(contents)
        ]


def serve(
    folder: pathlib.Path,
    server: list[torch.Tensor],
    num_clients: int,
    config: dict[str, Any],
    l2_clip_norm: float,
    a_node_a_client: bool,
    protocol: Callable[[Callable[[int, float], Callable[[], list[torch.Tensor]]]], None],
) -> None:
    """Starts Flower with a node a client, or at most `MOST_NODES`, and runs `protocol(make)` in its
    server app.

    `make(number of clients, noise multiplier)` is a function `() -> weights after one round`.
    """
    server_app = ServerApp()
    config = {**config, "folder": str(folder), "l2_clip_norm": l2_clip_norm}
    failures: list[BaseException] = []
    num_nodes, wave_size = (
        (num_clients, num_clients) if a_node_a_client else (min(num_clients, MOST_NODES), WAVE)
    )

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        def make(clients: int, noise: float) -> Callable[[], list[torch.Tensor]]:
            strategy = _Clients(clients, config)

            def run() -> list[torch.Tensor]:
                arrays = ArrayRecord(numpy_ndarrays=[w.numpy() for w in server])
                messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
                waves = [messages[at : at + wave_size] for at in range(0, clients, wave_size)]
                replies = [reply for wave in waves for reply in grid.send_and_receive(wave)]
                failed = [reply for reply in replies if reply.has_error()]
                if failed or len(replies) != clients:
                    raise RuntimeError(
                        f"{len(replies) - len(failed)} of {clients} clients answered: {failed[:1]}"
                    )
                mean, _ = strategy.aggregate_train(1, replies)
                assert mean is not None
                tensors = [torch.from_numpy(np.array(a)) for a in mean.to_numpy_ndarrays()]
                return torch_client.server_step(server, tensors, noise * l2_clip_norm / clients)

            return run

        try:
            until = time.monotonic() + NODES_S  # the nodes register while the server app runs
            while len(list(grid.get_node_ids())) < num_nodes:
                if time.monotonic() > until:
                    raise RuntimeError(f"fewer than {num_nodes} nodes after {NODES_S:.0f} s")
                time.sleep(0.2)
            protocol(make)
        except BaseException as reason:  # Flower swallows what a server app raises
            failures.append(reason)

    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    run_simulation(
        server_app,
        client_app,
        num_supernodes=num_nodes,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": cores, "include_dashboard": False, "log_to_driver": False},
        },
    )
    if failures:
        raise failures[0]
