"""Who saw what in a run of a scheme that hides uploads, for its report: what each adversary can
tell from the uploads that arrived.
"""

import math
from typing import NamedTuple

import numpy as np

from fljax import _validate
from fljax_kernels.correlated import Strategy

NEVER, LATE, IN_TIME = 0, 1, 2


class Adversary(NamedTuple):
    """One adversary and how much it learned of each client that is not part of it.

    Attributes:
      who, sees: in words.
      promised: False for one that the scheme's guarantee does not cover.
      mu: `[N]`, at least the Gaussian-DP parameter of all rounds that were run, together.
    """

    who: str
    sees: str
    promised: bool
    mu: np.ndarray


class Views(NamedTuple):
    """A run's uploads `[T, N]` (NEVER, LATE, IN_TIME), what these three mean, and who learned how
    much.
    """

    reached: np.ndarray
    meaning: tuple[str, str, str]
    adversaries: tuple[Adversary, ...]


class UploadNoise(NamedTuple):
    """What hides an upload from a server that sees all of a round, and how far neighbouring data
    move one of them.

    edges: `[E, 2]`, who shares noise with whom, between clients 0..num_clients - 1 of the round.
    num_colluders: clients that may tell the server their part of it, at most. own_stddev: of a
    client's own noise. variance_ratio: of a pair's noise / of own noise. move: L2 norm, in the unit
    of own_stddev. strategy: how noise is correlated over rounds; None: it is not. min_separation:
    a client's data are in one of so many rounds.
    """

    edges: np.ndarray
    num_clients: int
    num_colluders: int
    own_stddev: float
    variance_ratio: float
    move: float
    strategy: Strategy | None = None
    min_separation: int = 1


def _check(**mus: float) -> None:
    for name, mu in mus.items():
        if not mu >= 0:
            raise ValueError(f"Expected {name} >= 0, got {name}={mu!r}.")


def of_uploads(reached: np.ndarray, round_mu: float) -> np.ndarray:
    """Mu `[N]` towards who sees every upload that left its client, each with `round_mu`.

    Raises:
      ValueError: `round_mu` is negative or NaN; it is infinite where nothing hides an upload.
    """
    _check(round_mu=round_mu)
    return round_mu * np.sqrt((reached > NEVER).sum(axis=0))


def of_sums(reached: np.ndarray, own_mu: float, num_colluders: int) -> np.ndarray:
    """Mu `[N]` towards `num_colluders` clients that see each round's sum of what came in time.

    Args:
      own_mu: of an upload hidden by its own noise alone. All honest responders' noise, at least, is
        in the sum.

    Raises:
      ValueError: `own_mu` is negative or NaN, or `num_colluders` no number of clients.
    """
    _check(own_mu=own_mu)
    _validate.non_negative_int(num_colluders=num_colluders)
    answered = reached == IN_TIME
    hiding = np.maximum(answered.sum(axis=1) - num_colluders, 1)
    return own_mu * np.sqrt((answered / hiding[:, None]).sum(axis=0))


def uploads_views(
    reached: np.ndarray,
    *,
    max_colluders: int,
    own_mu: float,
    colluding_mu: float,
    alone_mu: float,
    moved: np.ndarray | None = None,
) -> Views:
    """Of a scheme whose server sees the uploads.

    Args:
      reached: `[T, N]`: NEVER, LATE, IN_TIME.
      moved: `[N]`, how far a client's data move C times its uploads that were seen, in units of a
        round, where noise is correlated over rounds. None: it is not.
      max_colluders: clients that may pool what they know, at most.
      own_mu, colluding_mu, alone_mu: of one seen upload towards the server and everybody else, the
        server and `max_colluders` clients, the server alone.
    """
    some = max_colluders
    every = "every upload that left its client, late or not"

    def seen(round_mu: float) -> np.ndarray:
        return of_uploads(reached, round_mu) if moved is None else round_mu * moved

    if moved is None:
        averages = of_sums(reached, own_mu, some)
    else:
        # Who answers in every round hides all others in their sum, whose noise is correlated alike;
        # whoever sees sums sees no more than who sees what is added up.
        hiding = int((reached == IN_TIME).all(axis=0).sum()) - some
        together = own_mu / math.sqrt(hiding) if hiding > 0 else math.inf
        averages = min(together, colluding_mu) * moved
    outsiders = (
        f"any {some} clients without the server"
        if some
        else "who gets the models, without the server"
    )
    rows = [
        Adversary(
            f"the server and any {some} clients",
            f"{every}; these clients' noise",
            True,
            seen(colluding_mu),
        ),
        Adversary("the server alone", every, True, seen(alone_mu)),
        Adversary(outsiders, "the averages", True, averages),
        Adversary(
            "the server and all other clients",
            f"{every}; all noise but the client's own",
            False,
            seen(own_mu),
        ),
    ]
    if own_mu == alone_mu:  # nothing is shared, so nobody helps
        rows = [rows[1]._replace(who="the server and any number of clients"), rows[2]]
    elif some == 0:
        del rows[0]
    return Views(
        reached,
        ("never left its client", "late: seen, not averaged", "in the average"),
        tuple(rows),
    )


def sum_views(reached: np.ndarray, *, max_colluders: int, least: int, share_mu: float) -> Views:
    """Of a scheme whose server sees sums: `share_mu` is of an upload hidden by its client's share
    of noise alone.

    Rounds with fewer than `least` uploads are aborted and open nothing, and a late share opens
    nothing either.
    """
    counts = (reached == IN_TIME).sum(axis=1) >= least
    reached = np.where(counts[:, None] & (reached == IN_TIME), IN_TIME, NEVER)
    some, sums = max_colluders, "the sum of each round that was not aborted"
    rows = [
        Adversary(
            f"the server and any {some} clients",
            f"{sums}; these clients' part of the noise",
            True,
            of_sums(reached, share_mu, some),
        ),
        Adversary("the server alone", sums, True, of_sums(reached, share_mu, 0)),
        Adversary(
            "the server and all other clients",
            f"{sums}; all noise but the client's own",
            False,
            of_sums(reached, share_mu, reached.shape[1]),
        ),
    ]
    return Views(reached, ("in no sum", "", "in a sum"), tuple(rows[0 if some else 1 :]))


def chosen_views(
    reached: np.ndarray,
    *,
    max_colluders: int,
    own_mu: float,
    colluding_mu: float,
    alone_mu: float,
) -> Views:
    """Of a scheme whose server disguises the model and sees the uploads of the clients it chose;
    arguments as of `uploads_views`. One client that gets the models is always there.
    """
    sees, clients = "every upload, and the secrets of every round", max(1, max_colluders)
    who, knows = "a client of the round", "the true models; its own noise"
    if clients > 1:
        who = f"any {clients} clients of the round, without the server"
        knows = "the true models; their own noise"
    rows = [
        Adversary("the server alone", sees, True, of_uploads(reached, alone_mu)),
        Adversary(who, knows, True, of_sums(reached, own_mu, clients)),
        Adversary(
            "the server and all other clients",
            f"{sees}; all shared noise",
            False,
            of_uploads(reached, own_mu),
        ),
    ]
    if max_colluders:
        some, mu = f"the server and any {max_colluders} clients", of_uploads(reached, colluding_mu)
        rows.insert(0, Adversary(some, f"{sees}; these clients' noise", True, mu))
    return Views(reached, ("not in the round", "", "in the average"), tuple(rows))
