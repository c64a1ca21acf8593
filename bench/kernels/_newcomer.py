"""What a newcomer runs on the workloads beside this file: a child of `per_example`.

The private step is `fljax.clipped_grad` and `fljax.gaussian_privatizer`, as their docstrings have
them, under one `jax.jit`: one device, no flag, no donated buffer, a key of the operating system.
With `--keep` freed memory is kept first, and nothing else differs.

Says first `{peer: {"l2_of_sum": ...}}`, with noise `{"noise_stddev": ...}` over what it must be, or
`{peer: {"failed": ...}}`. Then, for each line `PEER CALLS` that it reads, the wall and CPU seconds
a call.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import fljax
from bench import _child, _harness
from bench.kernels import workloads
from fljax.simulation.devices import allocator

L2_CLIP_NORM = STDDEV = 1.0
PLAIN, SUM, PRIVATE, BY_HAND = "non_private", "clipped_grad", "private", "vmap_private"
PEERS = (PLAIN, SUM, PRIVATE, BY_HAND)
# What else could tune a process. XLA_FLAGS and JAX_* may say so too, and are told in the JSON.
TUNING = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "XLA_FLAGS", "JAX_", "OMP_")
HARMLESS = {"JAX_PLATFORMS"}


def tuning(environment: Mapping[str, str]) -> list[str]:
    """Names of variables that would make the process another one than a newcomer's."""
    return sorted(
        name
        for name, value in environment.items()
        if value and name.startswith(TUNING) and name not in HARMLESS
    )


def step(peer: str, workload: workloads.Workload) -> Callable[[], Any]:
    """`() -> gradients`: the mean gradient, the clipped sum, or that with noise; the last by `vmap`
    and `jax.random.normal`, as one would by hand.
    """
    params, batch = workload.params, workload.batch
    loss = workload.loss
    if peer == PLAIN:
        mean = jax.jit(jax.grad(lambda p, b: jax.vmap(loss, (None, 0))(p, b).mean()))
        return lambda: mean(params, batch)
    clipped = fljax.clipped_grad(loss, l2_clip_norm=L2_CLIP_NORM, keep_batch_dim=False)
    if peer == SUM:
        summed = jax.jit(clipped)
        return lambda: summed(params, batch)
    if peer == PRIVATE:
        return _private(workload, clipped)
    key = jax.random.key(0)
    by_hand = jax.jit(_by_hand(loss))
    return lambda: by_hand(params, batch, key)


def _private(workload: workloads.Workload, clipped: Callable[..., Any]) -> Callable[[], Any]:
    privatizer = fljax.gaussian_privatizer(stddev=STDDEV)
    state = privatizer.init(workload.params)

    @jax.jit
    def private(params: Any, batch: Any, state: Any) -> Any:
        return privatizer.update(clipped(params, batch), state)

    def run() -> Any:
        nonlocal state
        noisy, state = private(workload.params, workload.batch, state)
        return noisy

    return run


def _by_hand(loss: Callable[[Any, Any], jax.Array]) -> Callable[[Any, Any, jax.Array], Any]:
    def fun(params: Any, batch: Any, key: jax.Array) -> Any:
        rows = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        squares = [jnp.sum(row.reshape(row.shape[0], -1) ** 2, 1) for row in jax.tree.leaves(rows)]
        norms = jnp.sqrt(sum(squares))
        factors = jnp.minimum(1.0, L2_CLIP_NORM / jnp.maximum(norms, 1e-12))
        leaves, tree = jax.tree.flatten(rows)
        noisy = [
            jnp.tensordot(factors, row, 1) + STDDEV * jax.random.normal(k, row.shape[1:])
            for k, row in zip(jax.random.split(key, len(leaves)), leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, noisy)

    return fun


def checked(peers: list[str], runs: Mapping[str, Callable[[], Any]]) -> dict[str, dict[str, Any]]:
    """A row a peer: the length of the sum; with noise, how long what differs from the sum is, which
    must be as long as the noise's stddev says.
    """
    total = runs[SUM]()
    size = sum(leaf.size for leaf in jax.tree.leaves(total))
    rows: dict[str, dict[str, Any]] = {PLAIN: {}}
    rows[SUM] = {"l2_of_sum": round(_harness.l2(total), 4)}
    for peer in (p for p in peers if p in (PRIVATE, BY_HAND)):
        noise = jax.tree.map(lambda noisy, exact: noisy - exact, runs[peer](), total)
        stddev = _harness.l2(noise) / size**0.5
        # The stddev of this figure is 1 / sqrt(2 size), below 0.2 % of it for the smallest model.
        found = {"noise_stddev": round(stddev / STDDEV, 4)}
        right = abs(stddev / STDDEV - 1) < 0.01
        rows[peer] = found if right else {"failed": f"wrong: noise is {found['noise_stddev']}x"}
    return {peer: rows[peer] for peer in peers}


def main() -> None:
    """Command line; the parent decides whose turn it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--keep", action="store_true", help="freed memory")
    parser.add_argument("--times", type=int, default=1, help="batches so many times as large")
    options = parser.parse_args()
    if found := tuning(os.environ):
        raise SystemExit(f"Expected a process that nothing tunes, got {', '.join(found)}.")
    if options.keep and not allocator.keep_freed_memory():
        raise SystemExit("Expected a malloc that can keep freed memory, got another.")
    say = _child.speaker()
    workload = workloads.make(options.workload, options.times)
    peers = options.peers.split(",")
    runs = {peer: step(peer, workload) for peer in dict.fromkeys([*peers, SUM])}
    say(checked(peers, runs))
    for line in sys.stdin:
        peer, calls = line.split()
        try:
            say({"seconds": _harness.seconds(runs[peer], int(calls))})
        except Exception as error:
            say({"error": _child.error_text(error)})


if __name__ == "__main__":
    main()
