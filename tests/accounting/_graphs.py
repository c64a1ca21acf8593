"""Graphs of pair noise that several tests share."""

import numpy as np

from fljax.accounting.shared_noise import exact as view

OWN = np.asarray([0.5, 0.8, 1.0, 0.6, 0.7])
PAIR = np.zeros((5, 5))
for _pair, _value in {
    (0, 1): 0.30,
    (0, 2): 0.20,
    (0, 3): 0.50,
    (0, 4): 0.40,
    (1, 2): 0.10,
    (1, 3): 0.25,
    (1, 4): 0.35,
    (2, 3): 0.15,
    (2, 4): 0.45,
    (3, 4): 0.05,
}.items():
    PAIR[_pair] = PAIR[_pair[::-1]] = _value
FIVE = view.from_matrix(OWN, PAIR)


def who(*members, size=5):
    return np.isin(np.arange(size), members)


def complete_edges(size):
    return np.argwhere(np.triu(np.ones((size, size)), 1))


def circulant(size, hops, own, pair):
    i = np.arange(size)
    edges = np.concatenate([np.stack([i, (i + h) % size], 1) for h in hops])
    return view.pair_graph(edges, num_clients=size, own_variance=own, pair_variance=pair)


def random_case(rng, size=6, density=0.7):
    """A connected graph with variances over four decades, some clients without own noise."""
    keep = np.triu(rng.random((size, size)) < density, 1)
    keep[np.arange(size - 1), np.arange(1, size)] = True
    # Missing edges are weak ones: graphs of one size are one program.
    matrix = np.triu(np.where(keep, 10 ** rng.uniform(-2, 2, (size, size)), 1e-15), 1)
    own = np.where(rng.random(size) < 0.2, 0.0, 10 ** rng.uniform(-2, 2, size))
    own[rng.integers(size)] = 1.0
    return own, matrix + matrix.T
