"""How a model serves each client: accuracy on the client's own examples, over clients."""

from typing import NamedTuple

import numpy as np

from fljax.data import ClientData, store
from fljax.models.losses import Apply
from fljax.simulation import client_values, evaluation
from fljax.simulation.client_values import PERCENTILES as PERCENTILES
from fljax.simulation.client_values import OwnModels
from fljax.types import Params


class Accuracies(NamedTuple):
    """Of clients that hold something: client_ids int, accuracy float, examples int, each `[K]`.

    damaged: ids of clients on disk that were left out because their bytes do not match.
    """

    client_ids: np.ndarray
    accuracy: np.ndarray
    examples: np.ndarray
    damaged: list[int]


def accuracies(
    apply: Apply,
    params: Params,
    client_data: ClientData | store.Store,
    own: OwnModels | None = None,
    task: str = "classes",
) -> Accuracies:
    """Accuracy on the examples that each client holds, or the first number of another `task`: all
    clients in memory, a thousand spread over those on disk.

    Not private: it is computed on the clients' own data without noise. Where these were trained on,
    it flatters.
    """
    right = evaluation.right(apply, task)
    return Accuracies(*client_values.means(right, params, client_data, own))


def percentiles(found: Accuracies) -> np.ndarray:
    """Accuracy of the clients at each of `PERCENTILES`, `[5]`; NaN where no client holds
    anything.
    """
    return client_values.percentiles(found.accuracy)
