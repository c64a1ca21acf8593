"""Opacus and torch.func on the workloads beside this file, same weights and data: a child of
`per_example`.

Says first `{peer: {"l2_of_sum": ...}}`, or `{peer: {"failed": ...}}`, and `{}` of
"torch_non_private", the gradient of the mean loss in plain torch. Then, for each line `PEER CALLS`
that it reads, the wall and CPU seconds a call.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping

from bench import _child
from bench.kernels import workloads
from bench.kernels._torch_models import losses, model, tensor
from fljax.simulation.devices import allocator

L2_CLIP_NORM = 1.0
PLAIN = "torch_non_private"


def _clipped_sum(rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sums over examples of per-example gradients, a tensor `[B, ...]` each parameter, clipped
    together.
    """
    norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
    factors = (L2_CLIP_NORM / norms.clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factors, row) for row in rows]


def step(peer: str, net: Any, x: torch.Tensor, y: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
    """`() -> gradients`, one per parameter: of the mean loss for "torch_non_private", else clipped
    and summed.
    """
    if peer == PLAIN:
        leaves = list(net.parameters())
        return lambda: list(torch.autograd.grad(losses(net(x), y).mean(), leaves))
    if peer == "torch_func":
        params = {name: leaf.detach() for name, leaf in net.named_parameters()}

        def loss(params: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return losses(torch.func.functional_call(net, params, (x[None],)), y[None])[0]

        row_of = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
        return lambda: _clipped_sum(list(row_of(params, x, y).values()))
    if peer == "opacus_hooks":
        wrapped = GradSampleModule(net, batch_first=True, loss_reduction="sum")

        def hooks() -> list[torch.Tensor]:
            wrapped.zero_grad(set_to_none=True)
            losses(wrapped(x), y).sum().backward()
            return _clipped_sum([p.grad_sample for p in wrapped.parameters()])

        return hooks
    wrapped = GradSampleModuleFastGradientClipping(
        net,
        batch_first=True,
        loss_reduction="sum",
        max_grad_norm=L2_CLIP_NORM,
        use_ghost_clipping=True,
    )

    def ghost() -> list[torch.Tensor]:
        wrapped.enable_hooks()
        wrapped.zero_grad(set_to_none=True)
        values = losses(wrapped(x), y)
        values.sum().backward(retain_graph=True)
        factors = wrapped.get_clipping_coef()
        wrapped.zero_grad(set_to_none=True)
        wrapped.disable_hooks()
        (factors * values).sum().backward()
        return [p.grad for p in wrapped.parameters()]

    return ghost


def seconds(run: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Wall and CPU seconds per call; on a GPU, until the last one's work is done."""
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start, time.process_time() - cpu
    return elapsed[0] / calls, elapsed[1] / calls


def main() -> None:
    """Command line; the parent decides whose turn it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--keep", action="store_true", help="freed memory, as the parent does")
    parser.add_argument("--times", type=int, default=1, help="batches so many times as large")
    parser.add_argument("--device", default="cpu", help="of torch; JAX here makes the data alone")
    options = parser.parse_args()
    if options.keep and not allocator.keep_freed_memory():
        raise SystemExit("Expected a malloc that can keep freed memory, got another.")
    say = _child.speaker()
    warnings.simplefilter("ignore")
    torch.set_num_threads(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    # As JAX multiplies by default.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    workload = workloads.make(options.workload, options.times)
    params = jax.device_get(workload.params)
    images = np.array(workload.batch["x"])
    if images.ndim == 4:
        # A copy made by NumPy: Opacus' convolution norms are wrong on strided images, and torch's
        # own `contiguous` keeps the strides of a permuted image of one channel.
        images = images.transpose(0, 3, 1, 2).copy()
    x, y = (tensor(array).to(options.device) for array in (images, workload.batch["y"]))
    checked: dict[str, dict[str, Any]] = {}
    runs = {}
    for peer in filter(None, (PLAIN, *options.peers.split(","))):
        try:
            net = model(options.workload, params, peer.startswith("opacus")).to(options.device)
            run = step(peer, net, x, y)
            total = sum(float((g.detach().double() ** 2).sum()) for g in run())
            checked[peer] = {} if peer == PLAIN else {"l2_of_sum": round(total**0.5, 4)}
            runs[peer] = run
        except Exception as error:
            checked[peer] = {"failed": _child.error_text(error)}
    say(checked)
    for line in sys.stdin:
        peer, calls = line.split()
        try:
            say({"seconds": seconds(runs[peer], int(calls))})
        except Exception as error:
            say({"error": _child.error_text(error)})


if __name__ == "__main__":
    main()
