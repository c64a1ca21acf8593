"""The searches that breaching and DLG make, in torch: one target after the other, on our weights.

Signed Adam on cosine and total variation with its rate falling at 3/8, 5/8 and 7/8 of the steps,
and torch's own L-BFGS with its line search. Imports neither JAX nor fljax.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as nn

Net = Callable[[dict[str, Any], torch.Tensor], torch.Tensor]
_GROUPS, _GROUP_EPSILON = 8, 1e-6  # of the residual network
_PATCH, _HEADS, _LAYER_EPSILON = 4, 3, 1e-5  # of the vision transformer
_TRIALS_OF_A_LINE = 1.25  # evaluations that torch allows to an iteration, by its own default


def parameters(params: Any) -> dict[str, Any]:
    """Nested dicts of NumPy arrays as leaf tensors; kernels of convolutions torch's way."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, dict):
            found[str(name)] = parameters(value)
        else:
            array = np.asarray(value, np.float32)
            array = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array
            found[str(name)] = torch.tensor(array.copy(), requires_grad=True)
    return found


def leaves(tree: dict[str, Any]) -> list[torch.Tensor]:
    """In the order of sorted names, as JAX flattens dicts."""
    return [
        leaf
        for name in sorted(tree)
        for leaf in (leaves(tree[name]) if isinstance(tree[name], dict) else [tree[name]])
    ]


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Channels last, as our dense layers read them."""
    return x.permute(0, 2, 3, 1).flatten(1)


def _dense(layer: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return x @ layer["kernel"] + layer["bias"]


def smooth(params: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """`victims.smooth_lenet`: SAME with stride 2 pads one before and two behind."""
    for layer, stride in enumerate((2, 2, 1)):
        conv = params[f"conv{layer}"]
        x = nn.pad(x, (1, 2, 1, 2) if stride == 2 else (2, 2, 2, 2))
        x = torch.sigmoid(nn.conv2d(x, conv["kernel"], conv["bias"], stride))
    return _dense(params["dense"], _flat(x))


def cnn(params: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """`models.CNN` of two 3 x 3 convolutions."""
    for layer in ("0", "1"):
        conv = params["convs"][layer]
        x = nn.max_pool2d(nn.relu(nn.conv2d(x, conv["kernel"], conv["bias"], 1, 1)), 2)
    x = nn.relu(_dense(params["head"]["hidden"]["0"], _flat(x)))
    return _dense(params["head"]["logits"], x)


def lenet(params: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """`image_nets.LeNet`."""
    for layer in ("0", "1"):
        conv = params["convs"][layer]
        x = nn.max_pool2d(nn.relu(nn.conv2d(x, conv["kernel"], conv["bias"])), 2)
    x = _flat(x)
    for layer in ("0", "1"):
        x = nn.relu(_dense(params["hidden"][layer], x))
    return _dense(params["logits"], x)


def resnet20(params: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """`image_nets.ResNet` of three stages with three blocks each."""

    def normed(layer: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return nn.group_norm(x, _GROUPS, layer["scale"], layer["bias"], _GROUP_EPSILON)

    x = nn.relu(normed(params["norm"], nn.conv2d(x, params["stem"]["kernel"], padding=1)))
    for name in sorted(params["blocks"]):
        block = params["blocks"][name]
        stride = 2 if "conv3" in block else 1
        y = nn.conv2d(x, block["conv1"]["kernel"], None, stride, 1)
        y = nn.conv2d(nn.relu(normed(block["norm1"], y)), block["conv2"]["kernel"], padding=1)
        y = normed(block["norm2"], y)
        if stride == 2:
            x = normed(block["norm3"], nn.conv2d(x, block["conv3"]["kernel"], None, stride))
        x = nn.relu(y + x)
    return _dense(params["logits"], x.mean((2, 3)))


def vit(params: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """`models.vision_transformer.SmallViT`."""
    batch, channels, height, width = x.shape

    def normed(layer: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return nn.layer_norm(x, x.shape[-1:], layer["scale"], layer["bias"], _LAYER_EPSILON)

    x = x.reshape(batch, channels, height // _PATCH, _PATCH, width // _PATCH, _PATCH)
    x = x.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, _PATCH * _PATCH * channels)
    x = _dense(params["patches"], x) + params["places"]
    for name in sorted(params["blocks"]):
        block = params["blocks"][name]
        heads = _dense(block["qkv"], normed(block["norm1"], x)).unflatten(-1, (_HEADS, -1))
        query, key, value = heads.transpose(1, 2).chunk(3, -1)
        # Written out: torch's fused attention has no second derivative.
        attended = (query @ key.transpose(2, 3) / query.shape[-1] ** 0.5).softmax(-1)
        x = x + _dense(block["out"], (attended @ value).transpose(1, 2).flatten(2))
        hidden = nn.gelu(_dense(block["up"], normed(block["norm2"], x)), approximate="tanh")
        x = x + _dense(block["down"], hidden)
    return _dense(params["logits"], normed(params["norm"], x).mean(1))


NETS: dict[str, Net] = {
    "smooth": smooth,
    "cnn": cnn,
    "lenet": lenet,
    "resnet20": resnet20,
    "small_vit": vit,
}


def gradient(
    net: Net, params: dict[str, Any], x: torch.Tensor, y: torch.Tensor, *, create: bool = False
) -> list[torch.Tensor]:
    """Of the mean cross-entropy, `x` `[B, channels, H, W]`, `y` probabilities `[B, classes]`."""
    loss = nn.cross_entropy(net(params, x), y)
    return list(torch.autograd.grad(loss, leaves(params), create_graph=create))


def invert(
    net: Net,
    params: dict[str, Any],
    target: list[torch.Tensor],
    y: torch.Tensor,
    start: torch.Tensor,
    *,
    search: Literal["adam", "lbfgs"],
    steps: int,
    tv_weight: float,
) -> torch.Tensor:
    """The images `[B, channels, H, W]` of the least objective seen (L-BFGS: the last), clamped."""
    length = torch.sqrt(sum((t.square().sum() for t in target), torch.zeros(())))
    x = start.clone().requires_grad_()

    def objective() -> torch.Tensor:
        found = gradient(net, params, x, y, create=True)
        zero = torch.zeros(())
        inner = sum(((f * t).sum() for f, t in zip(found, target, strict=True)), zero)
        own = torch.sqrt(sum((f.square().sum() for f in found), zero))
        value = 1 - inner / (own * length)
        if tv_weight:
            down, across = x[:, :, 1:] - x[:, :, :-1], x[..., 1:] - x[..., :-1]
            value = value + tv_weight * (down.abs().mean() + across.abs().mean())
        return value

    if search == "lbfgs":
        by = torch.optim.LBFGS(
            [x],
            max_iter=steps,
            max_eval=round(_TRIALS_OF_A_LINE * steps),
            history_size=20,
            tolerance_grad=0,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

        def closure() -> torch.Tensor:
            by.zero_grad()
            value = objective()
            (x.grad,) = torch.autograd.grad(value, [x])
            return value

        by.step(closure)
        return x.detach().clamp(0, 1)
    adam = torch.optim.Adam([x], lr=0.1)
    falling = torch.optim.lr_scheduler.MultiStepLR(
        adam, [3 * steps // 8, 5 * steps // 8, 7 * steps // 8], 0.1
    )
    best, least = x.detach().clone(), torch.inf
    for _ in range(steps):
        value = objective()
        if value.item() < least:
            best, least = x.detach().clone(), value.item()
        (grad,) = torch.autograd.grad(value, [x])
        x.grad = grad.sign()
        adam.step()
        falling.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return best
