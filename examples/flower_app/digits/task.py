"""What is the user's own: data, a model, training in NumPy; and the public numbers."""

import functools

import numpy as np
from sklearn.datasets import load_digits

from fljax.interop import flower
from fljax.schemes import dp_fedavg

NUM_CLIENTS, EXAMPLES, STEPS, RATE, DELTA = 10, 40, 2, 0.5, 1e-2
DEPLOYMENT = flower.Deployment(
    scheme="dp_fedavg",
    config=dp_fedavg.Config(
        sampling_prob=0.6,
        l2_clip_norm=0.4,
        noise_multiplier=1.3,
        server_learning_rate=1.0,
        server_momentum=0.5,
    ),
    num_clients=NUM_CLIENTS,
    num_rounds=5,
)


@functools.cache
def examples() -> tuple[np.ndarray, np.ndarray]:
    """All clients' digits, x float32 `[400, 64]` and y `[400]`; a real client has its own alone."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[: NUM_CLIENTS * EXAMPLES]
    return (x[order] / 16).astype(np.float32), y[order].astype(np.int32)


def initial() -> dict[str, np.ndarray]:
    """The model that training starts from."""
    return {"b": np.zeros(10, np.float32), "w": np.zeros((64, 10), np.float32)}


def train(params: dict[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    """Steps of gradient descent over all of a client's examples."""
    mine = slice(client * EXAMPLES, (client + 1) * EXAMPLES)
    x, y = (field[mine] for field in examples())
    w, b = params["w"], params["b"]
    for _ in range(STEPS):
        logits = x @ w + b
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        off = (chances - np.eye(10, dtype=np.float32)[y]) / np.float32(len(y))
        w, b = w - np.float32(RATE) * (x.T @ off), b - np.float32(RATE) * off.sum(axis=0)
    return {"b": b, "w": w}
