"""Who answers in time: laws of the number of stragglers, and draws of the clients.

A law is an array `[s]`: chance of 0, 1, ... stragglers. Given their number, stragglers are a
uniform subset, independent of data and of other rounds. The mechanism does not know them. A
straggler's upload may still arrive late; no law of stragglers earns privacy, because an upload that
is late has been seen all the same.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate


class Attendance(NamedTuple):
    """One round's clients, bool `[N]` each.

    responds: the upload is in the average. late: it reached the server after the average. seen:
      either.
    """

    responds: jax.Array
    late: jax.Array

    @property
    def seen(self) -> jax.Array:
        """Whose upload the server holds in the end."""
        return self.responds | self.late


def fixed(count: int) -> np.ndarray:
    """Always `count` stragglers."""
    _validate.non_negative_int(count=count)
    return np.append(np.zeros(count), 1.0)


def uniform(most: int) -> np.ndarray:
    """Any number from 0 to `most`, each with the same chance."""
    _validate.non_negative_int(most=most)
    return np.full(most + 1, 1 / (most + 1))


def bernoulli(num_clients: int, link_failure_prob: float, most: int | None = None) -> np.ndarray:
    """Each client's link fails on its own: a binomial number of stragglers.

    Args:
      num_clients: N. link_failure_prob: in [0, 1).
      most: condition on at most so many stragglers, < N. None: nothing is cut off, so all N may
        straggle.
    """
    _validate.positive_int(num_clients=num_clients)
    _probability(link_failure_prob=link_failure_prob)
    if most is None:
        most = num_clients
    else:
        _below(num_clients, most=most)
    count, log = np.arange(most + 1), math.lgamma
    if link_failure_prob == 0:
        return fixed(0)
    ways = [log(num_clients + 1) - log(s + 1) - log(num_clients - s + 1) for s in count]
    mass = np.exp(
        ways
        + count * math.log(link_failure_prob)
        + (num_clients - count) * math.log1p(-link_failure_prob)
    )
    return mass / mass.sum()


def arbitrary(pmf: Any, num_clients: int) -> np.ndarray:
    """A user's own law, checked: at most N + 1 entries >= 0 with sum 1.

    Raises:
      ValueError: it is not a law of at most `num_clients` stragglers.
    """
    _validate.positive_int(num_clients=num_clients)
    found = np.asarray(pmf, np.float64)
    fits = (
        found.ndim == 1
        and 1 <= found.size <= num_clients + 1
        and np.all(found >= 0)
        and np.all(np.isfinite(found))
    )
    if not (fits and abs(found.sum() - 1) <= 1e-9):
        raise ValueError(
            f"Expected pmf [s] >= 0 with sum 1 and s <= {num_clients}, got pmf={found.tolist()}."
        )
    return found


def peers_and_server(num_clients: int, link_failure_prob: float) -> float:
    """Chance that any of a client's N links (N - 1 to its peers, one to the server) fails."""
    _validate.positive_int(num_clients=num_clients)
    _probability(link_failure_prob=link_failure_prob)
    return -math.expm1(num_clients * math.log1p(-link_failure_prob))


def more_than(pmf: np.ndarray, most: int) -> float:
    """Chance of more than `most` stragglers: of an aborted round, where a scheme is sized for
    `most`.
    """
    return min(1.0, math.fsum(pmf[most + 1 :]))


def at_most(pmf: np.ndarray, most: int) -> float:
    """Chance of at most `most` stragglers; keeps its digits where it is tiny, as 1 - `more_than`
    would not.
    """
    return min(1.0, math.fsum(pmf[: most + 1]))


def draw(
    key: jax.Array, pmf: np.ndarray, num_clients: int, *, late_prob: float = 0.0
) -> Attendance:
    """Draws one round's stragglers; works under jit and vmap.

    Args:
      key: typed key, used once.
      pmf: one of the laws above, known while tracing.
      num_clients: N.
      late_prob: chance of each straggler's upload to arrive after the average instead of never, in
        [0, 1].

    Raises:
      ValueError: an argument is out of range.
    """
    pmf = arbitrary(pmf, num_clients)
    if late_prob != 0:
        _validate.probability(late_prob=late_prob)
    count_key, who_key, late_key = jax.random.split(key, 3)
    reach = jnp.asarray(np.cumsum(pmf), jnp.float32)
    # The uniform is below 1, and rounding may leave the last entry of the sum there too.
    count = jnp.minimum(
        jnp.searchsorted(reach, jax.random.uniform(count_key), side="right"), pmf.size - 1
    )
    straggles = chosen(who_key, num_clients, count)
    late = straggles & jax.random.bernoulli(late_key, late_prob, (num_clients,))
    return Attendance(~straggles, late)


def chosen(key: jax.Array, num_clients: int, count: int | jax.Array) -> jax.Array:
    """A uniform set of `count` clients, bool `[N]`: stragglers, or the colluders of a simulated
    adversary.
    """
    return jax.random.permutation(key, num_clients) < count


@dataclasses.dataclass(frozen=True, kw_only=True)
class StragglerConfig(_validate.Checked):
    """Public numbers of who does not answer in time.

    Raises:
      ValueError: a number is out of its range.
    """

    straggler_law: Literal["fixed", "uniform", "bernoulli", "custom"] = "uniform"
    """Clients that do not answer in time: always max_stragglers; any number up to it; every link
    fails by itself; or straggler_probs."""
    max_stragglers: int = 5
    """Most stragglers under the first two laws, and what the noise of a secure sum allows for."""
    link_failure_prob: float = 0.05
    """Chance of each link to fail in a round, under the law bernoulli."""
    straggler_probs: tuple[float, ...] = ()
    """Chances of 0, 1, ... stragglers, under the law custom."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.non_negative_int(max_stragglers=self.max_stragglers)
        laws = ("fixed", "uniform", "bernoulli", "custom")
        _validate.one_of(laws, straggler_law=self.straggler_law)
        if self.straggler_law != "custom" and self.straggler_probs:
            raise ValueError(
                f"Expected no straggler_probs under the law {self.straggler_law}, got some."
            )
        _validate.non_negative(link_failure_prob=self.link_failure_prob)
        if not self.link_failure_prob < 1:
            raise ValueError(
                f"Expected link_failure_prob < 1, got link_failure_prob={self.link_failure_prob!r}."
            )

    def check_stragglers(self, num_parties: int) -> None:
        """Raises ValueError where nobody is left to respond."""
        if not self.max_stragglers < num_parties:
            raise ValueError(
                f"Expected max_stragglers < num_parties={num_parties}, else nobody is left to "
                f"respond, got max_stragglers={self.max_stragglers}."
            )
        if self.straggler_law == "custom":
            law = arbitrary(self.straggler_probs, num_parties)
            if not law[:num_parties].sum() > 0:
                raise ValueError(
                    "Expected straggler_probs under which somebody responds, got all N clients "
                    "straggling."
                )

    def straggler_pmf(
        self, num_parties: int, *, links: Literal["server", "peers"] = "server"
    ) -> np.ndarray:
        """The law `[s]` of clients that cannot be used in a round.

        Args:
          num_parties: clients.
          links: a law of links applies to each client's link to the server, or "peers": to its
            links to all the others as well, every one of which it needs.
        """
        if self.straggler_law == "fixed":
            return fixed(self.max_stragglers)
        if self.straggler_law == "uniform":
            return uniform(self.max_stragglers)
        if self.straggler_law == "custom":
            return arbitrary(self.straggler_probs, num_parties)
        prob = self.link_failure_prob
        if links == "peers":
            prob = peers_and_server(num_parties, prob)
        return bernoulli(num_parties, prob)


def _below(num_clients: int, **values: int) -> None:
    _validate.non_negative_int(**values)
    for name, value in values.items():
        if not value < num_clients:
            raise ValueError(f"Expected {name} < num_clients={num_clients}, got {name}={value!r}.")


def _probability(**values: float) -> None:
    _validate.non_negative(**values)
    for name, value in values.items():
        if not value < 1:
            raise ValueError(f"Expected {name} in [0, 1), got {name}={value!r}.")
