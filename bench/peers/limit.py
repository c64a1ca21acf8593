"""The matrix products of the MLP's SGD steps and nothing else, in a chain: no element-wise work,
data or updates.

Each product of a step feeds a later one, and the step after starts from its result, so that none
can be left out or taken out of the loop.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from bench import _harness
from bench.peers import tasks, torch_peers
from bench.rounds import round as one_round
from fljax.simulation.devices import mesh


def _start(task: one_round.Task) -> tuple[jax.Array, list[jax.Array]]:
    return task.clients.examples["x"][: task.batch_size], [layer["kernel"] for layer in task.params]


def in_jax(task: one_round.Task, devices: int = 1) -> _harness.Step:
    """`num_steps` times 3 products forwards and 5 backwards, dealt over devices."""
    x, weights = _start(task)
    steps = -(-tasks.num_steps(task) // devices)

    def run(x: jax.Array, weights: list[jax.Array]) -> Any:
        def step(_: jax.Array, carry: Any) -> Any:
            x, _ = carry
            layers = [x]
            for w in weights:
                layers.append(layers[-1] @ w)
            g, gradients = layers[-1], []
            for number in (2, 1, 0):
                gradients.append(layers[number].T @ g)
                if number:
                    g = g @ weights[number].T
            # Far below float32's resolution of x, and not known to be so by the compiler.
            return x + 1e-30 * gradients[-1][:1, :1], gradients

        zeros = [jnp.zeros_like(w) for w in reversed(weights)]
        return jax.lax.fori_loop(0, steps, step, (x, zeros))

    if devices > 1:
        every = jax.P()
        over = mesh.client_mesh(devices)
        run = jax.shard_map(
            run, mesh=over, in_specs=(every, every), out_specs=every, check_vma=False
        )
        x, weights = mesh.everywhere(over, (x, weights))
    return _harness.compile_step(run, x, weights)


def in_torch(task: one_round.Task) -> Callable[[], Any]:
    """The same products, each into a buffer of its own."""
    torch_peers.use_all_cores()
    first, kernels = _start(task)
    weights = [torch.tensor(jax.device_get(w)) for w in kernels]
    layers = [torch.tensor(jax.device_get(first))] + [
        torch.empty(task.batch_size, w.shape[1]) for w in weights
    ]
    gradients = [torch.empty_like(w) for w in weights]
    back = [torch.empty(task.batch_size, w.shape[0]) for w in weights]
    steps = tasks.num_steps(task)

    @torch.no_grad()
    def run() -> Any:
        for _ in range(steps):
            for number, w in enumerate(weights):
                torch.mm(layers[number], w, out=layers[number + 1])
            g = layers[-1]
            for number in (2, 1, 0):
                torch.mm(layers[number].T, g, out=gradients[number])
                if number:
                    g = torch.mm(g, weights[number].T, out=back[number])
        return gradients

    return run
