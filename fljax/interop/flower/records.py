"""Flower's records: models, and what of ours goes with them in a message."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fljax.types import Params

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

ARRAYS, CONFIG = "arrays", "config"  # as Flower's own strategies call them
OURS = "fljax"


def app() -> Any:
    """`flwr.app`. Raises ImportError that names the extra."""
    try:
        import flwr.app
    except ImportError:
        raise ImportError("Flower needs the package flwr: pip install 'fljax[flower]'.") from None
    return flwr.app


def to_record(params: Params) -> "ArrayRecord":
    """A model as Flower sends it: each array by its path in the tree, in the tree's order."""
    named = jax.tree_util.tree_flatten_with_path(params)[0]
    return of_arrays({jax.tree_util.keystr(path) or ".": leaf for path, leaf in named})


def from_record(record: "ArrayRecord", like: Params) -> Params:
    """The model that `to_record` made a record of, as NumPy arrays; `like`: any tree of its form.

    Raises:
      ValueError: the record holds other arrays.
    """
    wanted, got = to_record(like), arrays(record)
    check_alike("record", got, arrays(wanted))
    return jax.tree.unflatten(jax.tree.structure(like), [got[name] for name in wanted])


def of_arrays(named: Mapping[str, Any]) -> "ArrayRecord":
    """A record of arrays by name."""
    flwr = app()
    return flwr.ArrayRecord({name: flwr.Array(np.asarray(leaf)) for name, leaf in named.items()})


def arrays(record: "ArrayRecord") -> dict[str, np.ndarray]:
    """Its arrays by name, in its order."""
    return {name: array.numpy() for name, array in record.items()}


def check_alike(what: str, got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError unless both have the same names and shapes, all of floating numbers."""
    shapes = [{name: leaf.shape for name, leaf in one.items()} for one in (got, wanted)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"Expected {what} to hold {sorted(shapes[1].items())[:4]}, got "
            f"{sorted(shapes[0].items())[:4]}."
        )
    for name, leaf in got.items():
        if not np.issubdtype(leaf.dtype, np.floating):
            raise ValueError(f"Expected {what} of floating numbers, got {name} of {leaf.dtype}.")


def only_arrays(what: str, message: "Message") -> dict[str, np.ndarray]:
    """The one model in a message. Raises ValueError where there is none, or several."""
    found = list(message.content.array_records.values())
    if len(found) != 1:
        raise ValueError(f"Expected {what} with one ArrayRecord, got {len(found)}.")
    return arrays(found[0])


def ours(message: "Message") -> "ConfigRecord":
    """Our own record of a message. Raises ValueError where there is none."""
    found = message.content.config_records.get(OURS)
    if found is None:
        raise ValueError(f"Expected a message with the record {OURS!r}, got none.")
    return found


def content(
    model: "ArrayRecord | None", own: Mapping[str, Any], config: "ConfigRecord | None" = None
) -> "RecordDict":
    """What a message holds: a model, our own numbers, and the user's."""
    flwr = app()
    found = flwr.RecordDict({OURS: flwr.ConfigRecord(dict(own))})
    if model is not None:
        found[ARRAYS] = model
    if config is not None:
        found[CONFIG] = config
    return found
