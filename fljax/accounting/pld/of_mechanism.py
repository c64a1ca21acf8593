"""From a mechanism record to the groups of `mechanisms`: the tree walk behind `method="pld"`."""

import math
from typing import NamedTuple

import numpy as np

from fljax.accounting import _cut_samples, events, finite_pairs, mechanisms
from fljax.accounting.events import Mechanism, NeighboringRelation
from fljax.accounting.pld.solve import Batch

_ADD_REMOVE_LIKE = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
LARGEST_STDDEV = 50.0
_MOST_TIMES = 2**62
MOST_SENSITIVITIES = 256
_SAMPLED_REACH = 2040.0


class Leaf(NamedTuple):
    """One mechanism of a kind of `mechanisms`; numbers: its parameters, each a tuple of one or
    more.
    """

    kind: str
    numbers: tuple[tuple[float, ...], ...]
    exact: bool = True  # some two neighbours have just this pair


NO_NOISE = Leaf("no_noise", ())


def _pair(found: finite_pairs.Dominating, sampling_prob: float = 1.0) -> Leaf | None:
    """The pair leaf of a unit that takes part with chance `sampling_prob`; None if the two are
    one.

    Where they only round to the same numbers the leaf stays: its losses are known up to a slack.
    """
    if found.p.size == 1 or sampling_prob == 0:
        return None
    if sampling_prob == 1 and not np.any(found.p * found.q):
        return NO_NOISE
    p, q = (1 - sampling_prob) * found.q + sampling_prob * found.p, found.q
    there = (p > 0) | (q > 0)
    return Leaf("pair", (tuple(p[there].tolist()), tuple(q[there].tolist())), found.exact)


def _known(mechanism: Mechanism, relation: NeighboringRelation) -> finite_pairs.Dominating | None:
    """The pair of few outcomes, of this package or registered; None where there is none."""
    if mechanisms.rules(mechanism) is None:
        return finite_pairs.pair(mechanism, relation)
    p, q = mechanisms.pair(mechanism, relation)
    if np.array_equal(p, q):
        p = q = np.ones(1)
    return finite_pairs.Dominating(p, q, False)


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
    match mechanism:
        case events.NonPrivate():
            return NO_NOISE
        case events.TreeAggregation():
            return mixture((1.0,), (_shift(1.0, mechanisms.tree_noise(mechanism, relation)),))
        case events.TruncatedPoissonGaussian():
            return _truncated(mechanism, relation)
        case events.PoissonSampled(prob, event):
            return _sampled(mechanism, prob, event, relation)
        case events.MixtureOfGaussians():
            return _sampled(mechanism, 1.0, mechanism, relation)
        case events.Laplace() | events.DiscreteGaussian():
            return _noise(mechanism, 1.0, mechanism, relation)
    if (found := _known(mechanism, relation)) is not None:
        return _pair(found)
    if isinstance(mechanism, events.DiscreteGaussianSum | events.Skellam):
        why = (
            "integer noise has one for a dimension of 1 and up to 512 outcomes; which of the moves "
            "of a longer vector is the worst is not known"
        )
        raise mechanisms.refuse(mechanism, relation, "pld", why)
    if isinstance(mechanism, tuple(events.RECORDS.values())):
        raise mechanisms.refuse(mechanism, relation, "pld", f"{type(mechanism).__name__} has none")
    raise mechanisms.unknown(mechanism)


def _noise(
    whole: Mechanism,
    prob: float,
    mechanism: events.Laplace | events.DiscreteGaussian,
    relation: NeighboringRelation,
) -> Leaf | None:
    """Laplace or discrete Gaussian noise, on a Poisson sample if `prob` < 1."""
    if prob == 0:
        return None
    if isinstance(mechanism, events.Laplace):
        scale = mechanism.noise_multiplier
        return Leaf("laplace", ((scale,), (prob,))) if scale > 0 else NO_NOISE
    stddev, sensitivity = mechanism.stddev, float(mechanism.sensitivity)
    if stddev > LARGEST_STDDEV:
        why = f"discrete Gaussians are tabulated up to stddev {LARGEST_STDDEV:g}"
        raise mechanisms.refuse(whole, relation, "pld", why)
    if prob == 1:
        return Leaf("discrete_gaussian", ((stddev,), (sensitivity,)))
    if 38 * stddev + sensitivity > _SAMPLED_REACH:
        why = f"sampled discrete Gaussians are tabulated up to {_SAMPLED_REACH:g}"
        raise mechanisms.refuse(whole, relation, "pld", why)
    return Leaf("sampled_discrete_gaussian", ((stddev,), (sensitivity,), (prob,)))


def _sampled(
    whole: Mechanism, prob: float, inner: Mechanism, relation: NeighboringRelation
) -> Leaf | None:
    """`inner` on a Poisson sample."""
    noise = mechanisms.effective_noise(inner)
    if relation not in _ADD_REMOVE_LIKE:
        if noise is not None:  # relative to the distance of an exchange, twice that of a removal
            return _replaced(prob, _shift(0.5, noise))
        why = (
            "of samples, those of Gaussian mechanisms are analysed for REPLACE_ONE, others for "
            "ADD_OR_REMOVE_ONE or REPLACE_SPECIAL"
        )
        raise mechanisms.refuse(whole, relation, "pld", why)
    if isinstance(inner, events.MixtureOfGaussians):
        if len(inner.sensitivities) > MOST_SENSITIVITIES:
            raise mechanisms.refuse(
                whole, relation, "pld", f"mixtures may have {MOST_SENSITIVITIES} sensitivities"
            )
        total = sum(inner.sampling_probs)
        weights = tuple(prob * w / total for w in inner.sampling_probs)
        return mixture(weights, tuple(_shift(s, inner.stddev) for s in inner.sensitivities))
    if noise is not None:
        return mixture((prob,), (_shift(1.0, noise),))
    if isinstance(inner, events.Laplace | events.DiscreteGaussian):
        return _noise(whole, prob, inner, relation)
    if (found := _known(inner, relation)) is not None:
        return _pair(found, prob)
    why = "only single mechanisms with a pair of distributions can be sampled, and Gaussian ones"
    raise mechanisms.refuse(whole, relation, "pld", why)


def _replaced(prob: float, shift: float) -> Leaf | None:
    if prob == 0 or shift == 0:
        return None
    return NO_NOISE if shift == math.inf else Leaf("replaced", ((prob,), (shift,)))


def _truncated(
    mechanism: events.TruncatedPoissonGaussian, relation: NeighboringRelation
) -> Leaf | None:
    """Two cases, seen apart: others fill the sample, or they do not."""
    population, prob, most = mechanism.population, mechanism.sampling_prob, mechanism.most
    if prob == 0 or most == 0 or population == 0:
        return None
    if mechanism.noise_multiplier == 0:
        return NO_NOISE
    shift = 1 / mechanism.noise_multiplier
    cut, share = _cut_samples.chances(mechanism)
    plain = _replaced(prob, shift) if relation not in _ADD_REMOVE_LIKE else None
    if cut == 0:
        return plain or mixture((prob,), (shift,))
    if plain is not None:
        why = "truncated samples are analysed for ADD_OR_REMOVE_ONE or REPLACE_SPECIAL"
        raise mechanisms.refuse(mechanism, relation, "pld", why)
    numbers = (cut, prob, shift, share, 2 * shift)
    return Leaf("truncated", tuple((number,) for number in numbers), exact=False)


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
        if leaf.kind == "laplace":
            return leaf.numbers[1] == (1.0,)
        if leaf.kind == "pair":
            return leaf.numbers[0] == leaf.numbers[1][::-1]
        return leaf.kind in ("discrete_gaussian", "replaced")

    return all(same(leaf) for leaf in found)
