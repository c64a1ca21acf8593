"""From a mechanism record to the groups of `mechanisms`: the tree walk behind `method="pld"`."""

import math
from typing import NamedTuple

import numpy as np

from fljax.accounting import events, mechanisms
from fljax.accounting.events import Mechanism, NeighboringRelation
from fljax.accounting.pld.solve import Batch

_ADD_REMOVE_LIKE = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
LARGEST_STDDEV = 50.0
_MOST_TIMES = 2**62
MOST_SENSITIVITIES = 256


class Leaf(NamedTuple):
    """One mechanism of a kind of `mechanisms`; numbers: its parameters, each a tuple of one or
    more.
    """

    kind: str
    numbers: tuple[tuple[float, ...], ...]


NO_NOISE = Leaf("no_noise", ())


def _pair(p: np.ndarray, q: np.ndarray, sampling_prob: float = 1.0) -> Leaf | None:
    """The pair leaf of a unit that takes part with chance `sampling_prob`; None if the two are
    one.
    """
    p = (1 - sampling_prob) * q + sampling_prob * p
    there = (p > 0) | (q > 0)
    if np.array_equal(p, q):
        return None
    return Leaf("pair", (tuple(p[there].tolist()), tuple(q[there].tolist())))


def _pure_and_failure(epsilon: float, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """The pair of all that is (epsilon, delta)-DP: Kairouz, Oh, Viswanath (2015), arXiv:1311.0776,
    section 3.
    """
    high = 1 / (1 + math.exp(-epsilon))
    low = math.exp(-epsilon) * high  # not 1 / (1 + exp(epsilon)), which overflows
    p = np.array([delta, (1 - delta) * high, (1 - delta) * low, 0.0])
    return p, p[::-1].copy()


def mixture(weights: tuple[float, ...], shifts: tuple[float, ...]) -> Leaf | None:
    """The mixture leaf with the terms that do something; None if there is none."""
    terms = sorted((s, w) for w, s in zip(weights, shifts, strict=True) if w > 0 and s > 0)
    if not terms:
        return None
    if math.isinf(terms[-1][0]):
        return NO_NOISE
    return Leaf("mixture", (tuple(w for _, w in terms), tuple(s for s, _ in terms)))


def _shift(sensitivity: float, stddev: float) -> float:
    return 0.0 if sensitivity == 0 else math.inf if stddev == 0 else sensitivity / stddev


def _leaf(mechanism: Mechanism, relation: NeighboringRelation) -> Leaf | None:
    noise = mechanisms.effective_noise(mechanism)
    if noise is not None:
        return mixture((1.0,), (_shift(1.0, noise),))
    if isinstance(mechanism, events.NonPrivate):
        return NO_NOISE
    if isinstance(mechanism, events.Laplace):
        return (
            Leaf("laplace", ((mechanism.noise_multiplier,),))
            if mechanism.noise_multiplier > 0
            else NO_NOISE
        )
    if isinstance(mechanism, events.DiscreteGaussian):
        if mechanism.stddev > LARGEST_STDDEV:
            why = f"discrete Gaussians are tabulated up to stddev {LARGEST_STDDEV:g}"
            raise mechanisms.refuse(mechanism, relation, "pld", why)
        return Leaf("discrete_gaussian", ((mechanism.stddev,), (float(mechanism.sensitivity),)))
    if isinstance(mechanism, events.EpsilonDelta):
        return _pair(*_pure_and_failure(mechanism.epsilon, mechanism.delta))
    if mechanisms.rules(mechanism) is not None:
        return _pair(*mechanisms.pair(mechanism, relation))
    prob, inner = 1.0, mechanism
    if isinstance(mechanism, events.PoissonSampled):
        prob, inner = mechanism.sampling_prob, mechanism.event
    if relation not in _ADD_REMOVE_LIKE:
        why = "sampling is analysed for ADD_OR_REMOVE_ONE or REPLACE_SPECIAL"
        raise mechanisms.refuse(mechanism, relation, "pld", why)
    if isinstance(inner, events.MixtureOfGaussians):
        if len(inner.sensitivities) > MOST_SENSITIVITIES:
            raise mechanisms.refuse(
                mechanism, relation, "pld", f"mixtures may have {MOST_SENSITIVITIES} sensitivities"
            )
        total = sum(inner.sampling_probs)
        weights = tuple(prob * w / total for w in inner.sampling_probs)
        return mixture(weights, tuple(_shift(s, inner.stddev) for s in inner.sensitivities))
    if isinstance(mechanism, events.PoissonSampled):
        if isinstance(inner, events.EpsilonDelta):
            return _pair(*_pure_and_failure(inner.epsilon, inner.delta), prob)
        if mechanisms.rules(inner) is not None:
            return _pair(*mechanisms.pair(inner, relation), prob)
        noise = mechanisms.effective_noise(inner)
        if noise is None:
            why = (
                "only Gaussian mechanisms, mixtures, (epsilon, delta) and registered pairs can "
                "be sampled"
            )
            raise mechanisms.refuse(mechanism, relation, "pld", why)
        return mixture((prob,), (_shift(1.0, noise),))
    if isinstance(mechanism, tuple(events.RECORDS.values())):
        raise mechanisms.refuse(mechanism, relation, "pld", f"{type(mechanism).__name__} has none")
    raise mechanisms.unknown(mechanism)


def leaves(mechanism: Mechanism, relation: NeighboringRelation, count: int = 1) -> dict[Leaf, int]:
    """Leaves with how often each is composed.

    Raises:
      UnsupportedEventError: a leaf that no privacy-loss distribution is built for under `relation`.
    """
    found: dict[Leaf, int] = {}
    if isinstance(mechanism, events.SelfComposed):
        parts = {mechanism.event: mechanism.count}
    elif isinstance(mechanism, events.Composed):
        parts = {}
        for event in mechanism.events:
            parts[event] = parts.get(event, 0) + 1
    else:
        leaf = _leaf(mechanism, relation)
        return {leaf: count} if leaf is not None and count else {}
    for event, times in parts.items():
        for leaf, number in leaves(event, relation, count * times).items():
            found[leaf] = found.get(leaf, 0) + number
    if max(found.values(), default=0) > _MOST_TIMES:
        why = f"a mechanism is composed at most {_MOST_TIMES} times"
        raise mechanisms.refuse(mechanism, relation, "pld", why)
    return found


def batch(found: dict[Leaf, int]) -> Batch:
    """One configuration: leaves of one kind and width stand in one group."""
    groups: dict[tuple[str, int], list[Leaf]] = {}
    for leaf in found:
        width = len(leaf.numbers[0])
        padded = 1 if width == 1 else 2 ** math.ceil(math.log2(width))
        groups.setdefault((leaf.kind, padded), []).append(leaf)
    structure: list[str] = []
    params: list[tuple[np.ndarray, ...]] = []
    counts: list[int] = []
    for (kind, width), members in sorted(groups.items()):
        structure.append(kind)
        counts += [found[leaf] for leaf in members]
        if kind == "mixture":
            weights = [
                leaf.numbers[0] + (0.0,) * (width - len(leaf.numbers[0])) for leaf in members
            ]
            shifts = [leaf.numbers[1] + (1.0,) * (width - len(leaf.numbers[1])) for leaf in members]
            params.append((np.array([weights]), np.array([shifts])))
        elif kind == "pair":
            params.append(
                tuple(
                    np.array(
                        [
                            [
                                leaf.numbers[i] + (0.0,) * (width - len(leaf.numbers[i]))
                                for leaf in members
                            ]
                        ]
                    )
                    for i in (0, 1)
                )
            )
        else:
            params.append(
                tuple(
                    np.array([[leaf.numbers[i][0] for leaf in members]])
                    for i in range(len(members[0].numbers))
                )
            )
    return Batch(tuple(structure), tuple(params), np.array([counts], np.int64))


def symmetric(found: dict[Leaf, int]) -> bool:
    """True if the directions "add" and "remove" have the same curve."""

    def same(leaf: Leaf) -> bool:
        if leaf.kind == "mixture":
            return leaf.numbers[0] == (1.0,)
        return leaf.kind != "pair" or leaf.numbers[0] == leaf.numbers[1][::-1]

    return all(same(leaf) for leaf in found)
