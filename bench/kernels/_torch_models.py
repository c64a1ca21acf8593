"""The models of `bench.kernels.workloads` as torch modules with the same weights; imports neither
JAX nor Opacus.

Layouts differ: NCHW against NHWC, `[out, in]` against `[in, out]`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn


def tensor(array: Any) -> torch.Tensor:
    """A copy; int32 becomes int64, which torch wants for labels."""
    copy = torch.from_numpy(np.array(array))
    return copy.long() if copy.dtype == torch.int32 else copy.contiguous()


def _linear(params: Any, image: tuple[int, int, int] | None = None) -> nn.Linear:
    """`image`: (height, width, channels) where the input is a flattened image, which torch flattens
    channels first.
    """
    kernel = np.array(params["kernel"])
    if image:
        kernel = kernel.reshape(*image, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
    layer = nn.Linear(*kernel.shape)
    layer.weight.data, layer.bias.data = tensor(kernel.T.copy()), tensor(params["bias"])
    return layer


def _conv(params: Any, stride: int = 1) -> nn.Module:
    kernel = np.array(params["kernel"])
    size, _, fan_in, fan_out = kernel.shape
    padding = 0 if stride > 1 else size // 2
    layer = nn.Conv2d(fan_in, fan_out, size, stride, padding, bias="bias" in params)
    layer.weight.data = tensor(kernel.transpose(3, 2, 0, 1).copy())
    if "bias" in params:
        layer.bias.data = tensor(params["bias"])
    # "SAME" with stride 2 and an even image pads below and on the right only; torch pads both sides
    # alike.
    return nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), layer) if stride > 1 and size > 1 else layer


def _norm(params: Any, layer: Any) -> Any:
    layer.weight.data, layer.bias.data = tensor(params["scale"]), tensor(params["bias"])
    return layer


def _mlp(params: Any) -> nn.Module:
    first, *rest = (_linear(layer) for layer in params)
    return nn.Sequential(first, *(module for layer in rest for module in (nn.ReLU(), layer)))


def _pfl_cifar(params: Any) -> nn.Module:
    convs = [nn.Conv2d(*np.array(conv["kernel"]).shape[2:], 3) for conv in params["conv"]]
    for layer, conv in zip(convs, params["conv"], strict=True):
        layer.weight.data = tensor(np.array(conv["kernel"]).transpose(3, 2, 0, 1).copy())
        layer.bias.data = tensor(conv["bias"])
    head = [_linear(params["dense"], (14, 14, 64)), nn.ReLU(), _linear(params["head"])]
    return nn.Sequential(
        convs[0], nn.ReLU(), convs[1], nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *head
    )


def _femnist(params: Any) -> nn.Module:
    convs = [
        module for conv in params["conv"] for module in (_conv(conv), nn.ReLU(), nn.MaxPool2d(2))
    ]
    head = [_linear(params["dense"], (7, 7, 64)), nn.ReLU(), _linear(params["head"])]
    return nn.Sequential(*convs, nn.Flatten(), *head)


def _cifar(params: Any) -> nn.Module:
    convs: list[nn.Module] = []
    for pair in params["conv"]:
        convs += [module for conv in pair for module in (_conv(conv), nn.Tanh())] + [
            nn.MaxPool2d(2)
        ]
    head = [_linear(params["dense"], (4, 4, 128)), nn.Tanh(), _linear(params["head"])]
    return nn.Sequential(*convs, nn.Flatten(), *head)


class _Lstm(nn.Module):
    def __init__(self, params: Any, private: bool):
        super().__init__()
        self.embedding = nn.Embedding(*params["embedding"].shape)
        self.embedding.weight.data = tensor(params["embedding"])
        fan_in, hidden = params["embedding"].shape[1], params["lstm"][0]["hidden"].shape[0]
        plain = nn.LSTM(fan_in, hidden, len(params["lstm"]), batch_first=True)
        for index, layer in enumerate(params["lstm"]):
            for ours, theirs in (("input", "ih"), ("hidden", "hh")):
                getattr(plain, f"weight_{theirs}_l{index}").data = tensor(
                    np.array(layer[ours]).T.copy()
                )
                getattr(plain, f"bias_{theirs}_l{index}").data = tensor(layer[f"{ours}_bias"])
        self.lstm: nn.Module = plain
        if private:
            from opacus.layers import DPLSTM

            self.lstm = DPLSTM(fan_in, hidden, len(params["lstm"]), batch_first=True)
            self.lstm.load_state_dict(plain.state_dict())
        self.head = _linear(params["head"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


class _Block(nn.Module):
    def __init__(self, params: Any, heads: int = 4):
        super().__init__()
        width = params["query"]["kernel"].shape[0]
        self.heads = heads
        self.query, self.key, self.value, self.out, self.up, self.down = (
            _linear(params[name]) for name in ("query", "key", "value", "out", "up", "down")
        )
        self.norm1, self.norm2 = (
            _norm(params[name], nn.LayerNorm(width)) for name in ("norm1", "norm2")
        )
        self.gelu = nn.GELU(approximate="tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, size, width = x.shape
        y = self.norm1(x)
        q, k, v = (
            layer(y).view(batch, size, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, size, width))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class _Transformer(nn.Module):
    def __init__(self, params: Any):
        super().__init__()
        self.embedding, self.position = (
            nn.Embedding(*params[n].shape) for n in ("embedding", "position")
        )
        self.embedding.weight.data, self.position.weight.data = (
            tensor(params[n]) for n in ("embedding", "position")
        )
        self.layers = nn.Sequential(*(_Block(layer) for layer in params["layers"]))
        self.norm = _norm(params["norm"], nn.LayerNorm(params["embedding"].shape[1]))
        self.head = _linear(params["head"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # repeat, not expand: the ghost norm of an embedding refuses strided indices
        places = torch.arange(x.shape[1], device=x.device).repeat(x.shape[0], 1)
        return self.head(self.norm(self.layers(self.embedding(x) + self.position(places))))


class _ResidualBlock(nn.Module):
    def __init__(self, params: Any, stride: int):
        super().__init__()
        width = params["norm1"]["scale"].size
        self.conv1, self.conv2 = _conv(params["conv1"], stride), _conv(params["conv2"])
        self.norm1, self.norm2 = (
            _norm(params[name], nn.GroupNorm(8, width)) for name in ("norm1", "norm2")
        )
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if "shortcut" in params:
            norm = _norm(params["norm"], nn.GroupNorm(8, width))
            self.shortcut = nn.Sequential(_conv(params["shortcut"], stride), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _resnet(params: Any) -> nn.Module:
    stem = [_conv(params["stem"]), _norm(params["norm"], nn.GroupNorm(8, 16)), nn.ReLU()]
    blocks = [
        _ResidualBlock(block, 2 if i in (3, 6) else 1) for i, block in enumerate(params["blocks"])
    ]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), _linear(params["head"])
    )


def model(letter: str, params: Any, private: bool = False) -> nn.Module:
    """A torch module that computes what the workload's loss does before its cross entropy."""
    makers: dict[str, Callable[[Any], nn.Module]] = {
        "a": _mlp,
        "b": _femnist,
        "b256": _femnist,
        "c": _cifar,
        "pfl_cifar": _pfl_cifar,
        "d": lambda p: _Lstm(p, private),
        "e": _Transformer,
        "f": _resnet,
    }
    return makers[letter](params).train()


def losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """[B]: cross entropy, averaged over the places of a sequence."""
    flat = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(logits.shape[0], -1).mean(dim=1)
