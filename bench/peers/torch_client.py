"""What one client does, in torch: the work that the torch loop and Flower's client app share. No
JAX here.
"""

import torch
from torch import nn

from bench.kernels._torch_models import losses


def clipped_update(
    net: nn.Module,
    server: list[torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    batch_size: int,
    learning_rate: float,
    l2_clip_norm: float,
) -> list[torch.Tensor]:
    """One epoch of SGD from the weights `server`; `server - client`, scaled to `l2_clip_norm` where
    it is longer.
    """
    weights = list(net.parameters())
    with torch.no_grad():
        torch._foreach_copy_(weights, server)
    for start in range(0, len(y), batch_size):
        loss = losses(net(x[start : start + batch_size]), y[start : start + batch_size]).mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-learning_rate)
    with torch.no_grad():
        update = torch._foreach_sub(server, weights)
        norm = torch.stack(torch._foreach_norm(update)).norm()
        torch._foreach_mul_(update, float((l2_clip_norm / norm).clamp(max=1.0)))
    return list(update)


@torch.no_grad()
def server_step(
    server: list[torch.Tensor], mean: list[torch.Tensor], noise_stddev_of_mean: float
) -> list[torch.Tensor]:
    """The next weights: learning rate 1, independent normal noise on the mean."""
    return [
        w - m - noise_stddev_of_mean * torch.randn_like(m)
        for w, m in zip(server, mean, strict=True)
    ]
