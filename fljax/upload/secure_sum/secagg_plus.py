"""SecAgg+: SecAgg where each client shares masks with few others, its neighbours in a random graph.

The server draws the graph anew each round, after clients have published their keys: a ring of the
clients in random order, in which each is joined to the k nearest. Costs of a client grow with k
instead of N.

Threat model: a server that keeps to the protocol and only looks on, with at most `max_colluders`
clients. Who colludes and who drops out does not depend on the graph. All else is as in `secagg`.

Security level: 128 bits where keys decide. Over the graph a round is bad in either of two ways:
- with a chance of 2**-40 at most an honest client has as many colluding neighbours as give its
  secrets back, or the honest clients that are present do not hang together;
- with a chance of 2**-30 at most so many neighbours of some client drop out that its secrets are
  lost, and the round aborts.

`degree` takes the smallest k that keeps both, by exact binomials and a union bound; where none
does, all pairs of clients share masks.

Source: Bell et al. (2020), "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead",
section 3.
"""

import functools
import math
import os
from fractions import Fraction
from typing import Any

import numpy as np

from fljax import _validate
from fljax.upload.secure_sum import protocol, secagg, signing, stream

LOG_INSECURE, LOG_LOST = 40, 30


def _more_than(marked: int, num_clients: int, degree: int) -> list[Fraction]:
    """Chance that more than m of a client's neighbours are among `marked` others, for m = 0 to k.

    A client's neighbours are a random set of `degree` of the N - 1 others.
    """
    others = num_clients - 1
    ways = [
        math.comb(marked, m) * math.comb(others - marked, degree - m) for m in range(degree + 1)
    ]
    tail, found = 0, [Fraction(0)] * (degree + 1)
    for m in range(degree, -1, -1):
        found[m] = Fraction(tail, math.comb(others, degree))
        tail += ways[m]
    return found


def _split(gone: int, num_clients: int, degree: int) -> Fraction:
    """Bound on the chance that clients hang together no more, when `gone` of them are taken out.

    On a ring where each is joined to k / 2 on either side that needs k / 2 in a row that are gone.
    """
    half, chance = degree // 2, Fraction(num_clients)
    for i in range(half):
        chance *= Fraction(max(0, gone - i), num_clients - i)
    return chance


@functools.cache
def degree(num_clients: int, max_colluders: int, max_dropouts: int) -> tuple[int, int]:
    """(k, T): the least even number of neighbours, and how many shares give a secret back.

    (N - 1, N - S) where no smaller graph is safe enough: all pairs.

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative_int(max_colluders=max_colluders, max_dropouts=max_dropouts)
    insecure, lost = Fraction(1, 2**LOG_INSECURE), Fraction(1, 2**LOG_LOST)
    for k in range(2, num_clients - 1, 2):
        if 2 * _split(max_colluders + max_dropouts, num_clients, k) > insecure:
            continue
        colluding = _more_than(max_colluders, num_clients, k)
        dropped = _more_than(max_dropouts, num_clients, k)
        # The largest T that is not lost is the safest one.
        kept = (t for t in range(k, 1, -1) if num_clients * dropped[k - t] <= lost)
        threshold = next(kept, 0)
        if threshold and 2 * num_clients * colluding[threshold - 1] <= insecure:
            return k, threshold
    return num_clients - 1, num_clients - max_dropouts


def ring(num_clients: int, degree: int, threshold: int, seed: bytes) -> secagg.Graph:
    """The graph of a seed of 32 bytes: each client is joined to `degree` / 2 on either side.

    Raises:
      ValueError: degree is odd or not below the number of clients.
    """
    if degree % 2 or not 2 <= degree < num_clients:
        raise ValueError(
            f"Expected an even degree in [2, {num_clients - 1}], got degree={degree!r}."
        )
    drawn = stream.words(seed, 2 * num_clients).astype(np.uint64)
    order = np.argsort((drawn[::2] << np.uint64(32)) | drawn[1::2], kind="stable")
    steps = [s for s in range(-(degree // 2), degree // 2 + 1) if s]
    found: list[tuple[int, ...]] = [()] * num_clients
    for place, number in enumerate(order.tolist()):
        found[number] = tuple(sorted(int(order[(place + s) % num_clients]) for s in steps))
    return secagg.Graph(tuple(found), threshold)


def options(terms: protocol.Terms) -> dict[str, Any]:
    """What makes SecAgg+ of `secagg.SecAgg` with these terms: its keyword arguments."""
    k, threshold = degree(terms.num_clients, terms.max_colluders, terms.max_dropouts)
    graph_of = functools.partial(ring, terms.num_clients, k, threshold)
    return {
        "server_kind": "semi_honest",
        "graph_of": None if k == terms.num_clients - 1 else graph_of,
    }


def simulated(
    terms: protocol.Terms,
    *,
    entropy: signing.Entropy = os.urandom,
) -> secagg.SecAgg:
    """The protocol with all its clients in this process. Raises as `secagg.SecAgg`."""
    return secagg.simulated(terms, **options(terms), entropy=entropy)
