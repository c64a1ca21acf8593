"""Clients that all join every round: how many a config says there are, held against the data."""

import dataclasses
from typing import Any

from fljax import _validate
from fljax.data.facts import Facts
from fljax.errors import PrivacyPreconditionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parties(_validate.Checked):
    """How many clients there are, a part of configs.

    Raises:
      ValueError: the number is out of its range.
    """

    num_parties: int | None = 50
    """Clients, all of which join every round. none: as many as the data have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_parties is not None:
            _validate.positive_int(num_parties=self.num_parties)

    @property
    def parties(self) -> int:
        """`num_parties`. Raises ValueError where it is none."""
        return known(num_parties=self.num_parties)


def check_number(config: Parties, num_clients: int) -> None:
    """Raises ValueError where there is another number of clients."""
    if num_clients != config.parties:
        raise ValueError(
            f"Expected num_parties to be the number of clients, {num_clients}, since all of them "
            f"join every round, got num_parties={config.parties}."
        )


def known(**count: int | None) -> int:
    """The value of one count of a config, given by its name. Raises ValueError where the data still
    decide it.
    """
    ((name, value),) = count.items()
    if value is None:
        raise ValueError(
            f"Expected {name} to be a number, got {name}=None, which stands for what the data "
            "have: without data, say it; with data, the scheme's `fitted` does."
        )
    return value


def fitted(config: Any, facts: Facts) -> Any:
    """`config` with num_parties from the data. What nobody can count, such as who colludes or
    fails, is taken on trust.

    Raises:
      PrivacyPreconditionError: num_parties is not the number of clients.
      ValueError: there are too few clients for the rest of the config, such as its colluders,
        stragglers, cohort, buffer or graph, or a number for each of them is missing.
    """
    given = config.num_parties
    if given is None:
        return dataclasses.replace(config, num_parties=facts.num_clients)
    if given != facts.num_clients:
        raise PrivacyPreconditionError(
            f"Expected num_parties to be num_clients={facts.num_clients}, since all clients of the "
            f"data join every round, got num_parties={given}."
        )
    return config
