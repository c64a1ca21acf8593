"""Judges a conclusion, and holds the verdict to its seeds: one that turns when a seed is left out
cannot be told.
"""

import itertools
from collections.abc import Callable, Mapping, Set
from typing import Any

from fljax.papers.paper import Conclusion, Found, Paper, Verdict

_BY_SEEDS = ("reproduced", "only under the paper's accounting", "not reproduced")


def judge(paper: Paper, conclusion: Conclusion, found: Mapping[str, Found]) -> Verdict:
    """The verdict on what was found, by item; "cannot tell" where another one is passed without
    some seed.
    """
    used = {item: found[item] for item in conclusion.items}
    verdict = conclusion.judge(used)
    number = num_seeds(used, paper.by_seed)
    if verdict.standing not in _BY_SEEDS or number < 2:
        return verdict
    turned = sum(
        conclusion.judge(without(used, paper.by_seed, place)).standing != verdict.standing
        for place in range(number)
    )
    if not turned:
        return verdict
    told = f"{verdict.standing} by all seeds, but not without one ({turned} of {number})"
    return Verdict("cannot tell", f"{verdict.because}; {told}")


def num_seeds(found: Mapping[str, Found], by_seed: Set[str]) -> int:
    """The most seeds that anything was made with; 0 where seeds play no part."""
    lengths = [0]

    def see(values: list[Any]) -> list[Any]:
        lengths.append(len(values))
        return values

    _over_seeds(found, by_seed, see)
    for pieces in found.values():
        lengths += [len(list(group)) for _, group in _of_one_seed(pieces)]
    return max(lengths)


def without(found: Mapping[str, Found], by_seed: Set[str], place: int) -> dict[str, dict[str, Any]]:
    """What was found, the seed at `place` left out of all that has so many."""
    kept = _over_seeds(found, by_seed, lambda values: values[:place] + values[place + 1 :])
    for item, pieces in found.items():
        for _, group in _of_one_seed(pieces):
            for name in list(group)[place : place + 1]:
                del kept[item][name]
    return dict(kept)


def _of_one_seed(pieces: Found) -> Any:
    """Names of pieces of one seed each, ", seed 3" at their end, by what stands before it."""
    names = [name for name in pieces if ", seed " in name]
    return itertools.groupby(sorted(names), lambda name: name.rpartition(", seed ")[0])


def _over_seeds(value: Any, by_seed: Set[str], change: Callable[[list[Any]], list[Any]]) -> Any:
    """`value` with `change` made to each list over seeds."""

    def walk(value: Any, inside: bool) -> Any:
        if isinstance(value, Mapping):
            return {name: walk(one, inside or name in by_seed) for name, one in value.items()}
        if not isinstance(value, list):
            return value
        if inside and not any(isinstance(one, Mapping) for one in value):
            return change(value)
        return [walk(one, inside) for one in value]

    return walk(value, False)
