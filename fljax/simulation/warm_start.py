"""A run that begins with the model of another one, and what that means for its claim."""

import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from fljax.accounting import words
from fljax.simulation import config as config_lib
from fljax.simulation.record import checkpoint, folder
from fljax.types import Params

CALLER = "The initial model was given by the caller and is taken to be public."


def model(run_dir: str, like: Params) -> tuple[Params, dict[str, Any]]:
    """(the model of the newest checkpoint of a run, where it comes from).

    Args:
      run_dir: folder of the other run.
      like: a model of the run that begins.

    Returns:
      The parameters, and as plain data what is certified of them: "run", "rounds", "dataset",
      "privacy_unit", "neighboring_relation", "epsilon" ("inf" where nothing is guaranteed),
      "delta", "seed", and "before", the same of the model that it began with, or the sentence of
      one that is taken to be public, or None.

    Raises:
      ValueError: no such run, or its model has other arrays. CheckpointError: it is damaged.
    """
    where = pathlib.Path(run_dir)
    path = where / folder.CONFIG
    if not path.is_file():
        raise ValueError(f"Expected init to be the folder of a run, got init={run_dir!r}.")
    params, rounds, claim = checkpoint.read_model(where)
    if checkpoint.structure(params) != checkpoint.structure(like):
        raise ValueError(
            "Expected init to be a run of the same model on examples of the same shape, got "
            f"{', '.join(checkpoint.structure(params))} in {run_dir}, not "
            f"{', '.join(checkpoint.structure(like))}."
        )
    sections = config_lib.from_toml(folder.read_text(path), source=str(path))
    before = claim.get("initial_model")
    kept = ("privacy_unit", "neighboring_relation", "epsilon", "delta", "seed")
    origin = {
        "run": str(where),
        "rounds": rounds,
        "dataset": sections["data"]["dataset"],
        **{name: claim[name] for name in kept},
        "before": before,
    }
    return jax.tree.map(jnp.asarray, params), origin


def is_private(origin: dict[str, Any]) -> bool:
    """Whether something is certified of the model, and of those that it goes back to."""
    return all(math.isfinite(float(part["epsilon"])) for part in _chain(origin))


def saw(origin: dict[str, Any], dataset: str) -> bool:
    """Whether the model, or one of those that it goes back to, was trained on the data set of this
    name.
    """
    return any(part["dataset"] == dataset for part in _chain(origin))


def _began(origin: dict[str, Any]) -> str:
    seeds = {part["seed"] for part in _chain(origin)}
    return (
        f"The run did not begin with a drawn model, but with that of another run ({origin['run']}, "
        f"{origin['rounds']} rounds on {origin['dataset']}"
        f"{', from a fixed seed, with which its noise is removed' if 'fixed' in seeds else ''})"
    )


def uncounted(origin: dict[str, Any]) -> str:
    """What a claim that is no epsilon owes to the model that the run began with."""
    return (
        f"{_began(origin)}: what that run told about the same data is not counted here."
        f"{_public(origin)}"
    )


def _public(origin: dict[str, Any]) -> str:
    """What the first run of the chain owes to a model that is taken to be public, if to one."""
    first = _chain(origin)[-1]
    return f" Before that: {first['before']}" if isinstance(first["before"], str) else ""


def sentence(origin: dict[str, Any], claim: dict[str, Any]) -> str:
    """What an epsilon owes to the model that the run began with.

    Args:
      origin: as `model` gives it.
      claim: "epsilon", "delta", "privacy_unit" and "neighboring_relation" of the run's own rounds.
    """
    unit, start = origin["privacy_unit"], _began(origin)
    if not is_private(origin):
        return (
            f"{start}, of which nothing is guaranteed: this claim holds only for data that had no "
            f"part in it.{_public(origin)}"
        )
    total = [float(part["epsilon"]) for part in _chain(origin)]
    deltas = [float(part["delta"]) for part in _chain(origin)]
    shown = words.shown_epsilon(total[0])
    alone = (
        f"{start}, which has epsilon {shown} at delta {words.rounded_up(deltas[0], 3)} for one "
        f"{unit}. This claim counts the rounds of this run alone."
    )
    same = all(
        part[name] == claim[name]
        for part in _chain(origin)
        for name in ("privacy_unit", "neighboring_relation")
    )
    if not same:
        return (
            f"{alone} Of data that had a part in both, the two together are not counted."
            f"{_public(origin)}"
        )
    epsilon, delta = sum(total) + float(claim["epsilon"]), sum(deltas) + float(claim["delta"])
    return (
        f"{alone} Whose data had a part in all of them is covered by epsilon "
        f"{words.shown_epsilon(epsilon)} at delta {words.rounded_up(delta, 3)} (the sums)."
        f"{_public(origin)}"
    )


def _chain(origin: dict[str, Any]) -> list[dict[str, Any]]:
    """The model's origin, that of the model before it, and so on."""
    before = origin["before"]
    return [origin, *(_chain(before) if isinstance(before, dict) else [])]
