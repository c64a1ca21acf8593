"""Counts of a run's data, taken on the host: what a scheme's certificate assumes is held against
them.
"""

from typing import NamedTuple

import numpy as np

from fljax.data import store, subjects
from fljax.data.cohorts import ClientData


class Facts(NamedTuple):
    """What the data of a run are; observed, hence private beside the public caps that they are
    compared with.

    num_clients: clients, silos or parties, empty ones included. num_examples: of all clients.
    most_examples: of one client. num_subjects: None where examples carry no subject, as are the
    rest then. most_clients_of_subject: clients that hold examples of one subject, at most.
    most_items_of_subject: examples of one subject at one client, at most.
    client_column: the field of the data whose values are the clients; None where they have no
      names.
    """

    num_clients: int
    num_examples: int
    most_examples: int
    num_subjects: int | None = None
    most_clients_of_subject: int | None = None
    most_items_of_subject: int | None = None
    client_column: str | None = None

    def num_units(self, unit: str) -> int:
        """How many clients, examples or subjects there are; 0 subjects where examples carry
        none.
        """
        counts = {
            "client": self.num_clients,
            "example": self.num_examples,
            "subject": self.num_subjects or 0,
        }
        return counts[unit]


def of(client_data: ClientData | store.Store) -> Facts:
    """The counts of clients in memory or on disk; of clients on disk no field but the subjects is
    read.

    Raises:
      PrivacyPreconditionError: some example has no subject where others have one.
    """
    sizes = store.num_examples(client_data)
    counted = Facts(sizes.size, int(sizes.sum()), int(sizes.max(initial=0)))
    fields = client_data.fields if isinstance(client_data, store.Store) else client_data.examples
    if not isinstance(fields, dict) or subjects.SUBJECT not in fields:
        return counted
    ids = subjects.subject_ids(fields)
    if not isinstance(client_data, store.Store):
        table = np.asarray(client_data.indices)
        ids = ids[table[table >= 0]]  # client after client
    clients = np.repeat(np.arange(sizes.size), sizes)
    # Pairs (subject, client), not a table of all: there may be a million subjects and as many
    # clients.
    (pairs, items) = np.unique(np.stack([ids, clients]), axis=1, return_counts=True)
    _, holders = np.unique(pairs[0], return_counts=True)
    return counted._replace(
        num_subjects=holders.size,
        most_clients_of_subject=int(holders.max(initial=0)),
        most_items_of_subject=int(items.max(initial=0)),
    )
